//! `top`, on a terminal of 80 columns and 24 rows.

use crate::common::*;
use crate::terminal::Session;

#[tokio::test]
async fn top_shows_locks_and_releases_one_by_force_when_its_name_is_typed() {
    let store = Store::new();
    let (holder, ..) = store.hold(&["--label", "nightly"], "hot").await;
    let waiter = store.start(&["hold", "hot"]);
    store.wait_for_waiters("hot", 1).await;
    let line = "stty rows 24 cols 80; NO_COLOR=1 TERM=xterm \"$TENURE\" top --every 50ms; \
                echo code-$?";
    let mut session = Session::start(&store, line, "");
    session.expect("hot");
    session.expect(&format!(":{}", holder.pid()));
    session.expect("doctor:");
    assert_eq!(colours(&session.seen), [""; 0], "{:?}", session.seen);
    session.type_in("x");
    session.expect("Reason:");
    session.type_in("it hangs\r");
    session.expect("Name:");
    session.type_in("hot\r");
    session.expect("evicted");
    let next = || async { store.status("hot")["holders"][0]["pid"] == waiter.pid() };
    assert!(tenure_testkit::eventually(tenure_testkit::GENEROUS, next).await);
    assert!(store.run(&["audit", "hot"]).ok().contains("it hangs"));
    session.type_in("q");
    session.expect("code-0");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn without_a_terminal_top_refuses() {
    let refused = Store::new().run(&["top"]).failed(64);
    assert!(refused.contains("needs a terminal"), "{refused}");
}

/// The sequences that set a colour.
fn colours(text: &str) -> Vec<&str> {
    let sequences = text.split("\x1b[").filter_map(|rest| {
        let (numbers, end) = rest.split_at(rest.find(|c: char| c.is_ascii_alphabetic())?);
        end.starts_with('m').then_some(numbers)
    });
    let is_colour = |number: &str| matches!(number.parse(), Ok(30..=38 | 40..=48 | 90..=107));
    sequences.filter(|numbers| numbers.split(';').any(is_colour)).collect()
}

#[test]
fn a_sequence_that_sets_a_colour_is_found() {
    assert_eq!(colours("\x1b[3;1Hx\x1b[7mx\x1b[0;33mx\x1b[?25l\x1b[38;5;1mx"), ["0;33", "38;5;1"]);
}
