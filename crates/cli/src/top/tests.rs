//! What the screen shows, drawn into memory.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use tenure::{Finding, Holder, LockName, LockState, Mode, Token, Waiter, WatchEvent};

use super::{Action, Screen, View, draw};
use crate::live::board::Board;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lock(name: &str, label: &str, waits: &[u64]) -> LockState {
    let mut holder = Holder::new("0".repeat(32), Mode::Exclusive);
    (holder.host, holder.pid, holder.label) = (Some("db1".into()), Some(812), label.into());
    holder.token = Some(Token::new(1_842_630_127_616));
    (holder.age, holder.expires_in) = (Some(seconds(75)), Some(seconds(30)));
    let waiter = |age: &u64| {
        let mut waiter = Waiter::new("1".repeat(32), Mode::Exclusive);
        (waiter.host, waiter.pid, waiter.age) = (Some("web3".into()), Some(90), seconds(*age));
        waiter
    };
    LockState::new(name.parse().unwrap(), vec![holder], waits.iter().map(waiter).collect())
}

fn board(states: &[LockState]) -> Board {
    let mut board = Board::default();
    let snapshot = WatchEvent::Snapshot(states.to_vec());
    board.update(vec![snapshot], states.iter().map(|state| (state, Duration::ZERO)));
    board
}

/// The lines of a terminal of 80 columns and 24 rows.
fn drawn(screen: &mut Screen, board: &Board) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    for _ in 0..2 {
        // The first look finds out how much room there is.
        screen.refresh(board);
        terminal.draw(|frame| draw::screen(frame, screen, board)).unwrap();
    }
    let text = terminal.backend().to_string();
    text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
}

fn screen() -> Screen {
    Screen::new("redis://cache/".into(), false)
}

fn press(screen: &mut Screen, code: KeyCode) -> Action {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(screen: &mut Screen, text: &str) {
    text.chars().for_each(|c| assert_eq!(press(screen, KeyCode::Char(c)), Action::Stay));
}

/// The names in the list, in order.
fn names(lines: &[String]) -> Vec<&str> {
    let rows = lines[2..22].iter().filter_map(|line| line.split_whitespace().next());
    rows.collect()
}

#[test]
fn the_worst_lock_comes_first_with_its_holder_and_waits() {
    let states = [lock("a", "", &[]), lock("hot", "report", &[42, 7]), lock("warm", "", &[9])];
    let board = board(&states);
    let mut screen = screen();
    let lines = drawn(&mut screen, &board);
    assert!(lines[0].contains("redis://cache/") && lines[0].contains("3 locks, 2 contended"));
    assert_eq!(names(&lines), ["hot", "warm", "a"]);
    for part in ["exclusive", "db1:812", "~127616", "1m15s", "[======]", "2", "42s"] {
        assert!(lines[2].contains(part), "{part}: {}", lines[2]);
    }
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    press(&mut screen, KeyCode::Char('w'));
    assert_eq!(names(&drawn(&mut screen, &board)), ["hot", "warm"]);
    press(&mut screen, KeyCode::Char('s'));
    assert_eq!(names(&drawn(&mut screen, &board)), ["hot", "warm"], "by name");
}

#[test]
fn a_term_of_which_less_than_half_is_left_is_marked_also_without_colour() {
    let mut late = lock("a", "", &[]);
    let mut board = board(&[late.clone()]);
    late.holders[0].expires_in = Some(seconds(10));
    std::thread::sleep(Duration::from_millis(1));
    board.update(Vec::new(), [(&late, Duration::ZERO)].into_iter());
    assert!(drawn(&mut screen(), &board)[2].contains("[==....!"));
    let mut coloured = Screen::new(String::new(), true);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    coloured.refresh(&board);
    terminal.draw(|frame| draw::screen(frame, &mut coloured, &board)).unwrap();
    let has = |colour| terminal.backend().buffer().content.iter().any(|cell| cell.fg == colour);
    assert!(has(Color::Yellow));
}

#[test]
fn a_lock_that_was_not_read_for_long_is_not_in_danger() {
    let healthy = lock("a", "", &[]);
    let mut board = Board::default();
    // Of ten thousand locks, each is read once in many samples.
    for ago in [20, 25] {
        let seen = [(&healthy, seconds(ago))];
        board.update(vec![WatchEvent::Snapshot(vec![healthy.clone()])], seen.into_iter());
    }
    let line = &drawn(&mut screen(), &board)[2];
    assert!(line.contains("[======]"), "{line}");
}

#[test]
fn without_colour_no_cell_has_one() {
    let mut board = board(&[lock("a", "", &[3])]);
    board.findings = vec![Finding::danger("it forgets", "keep it")];
    let mut screen = screen();
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    for code in [KeyCode::Null, KeyCode::Enter, KeyCode::Char('x')] {
        press(&mut screen, code);
        screen.refresh(&board);
        terminal.draw(|frame| draw::screen(frame, &mut screen, &board)).unwrap();
        let cells = &terminal.backend().buffer().content;
        assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
}

#[test]
fn a_filter_that_matches_nothing_says_so_and_escape_shows_all_again() {
    let board = board(&[lock("orders/1", "", &[]), lock("jobs", "Nightly", &[])]);
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('/'));
    type_in(&mut screen, "nIGHT");
    assert_eq!(names(&drawn(&mut screen, &board)), ["jobs"]);
    type_in(&mut screen, "\u{202e}z");
    let lines = drawn(&mut screen, &board);
    assert!(lines[2].contains("no lock matches \"nIGHT\\u{202e}z\""), "{}", lines[2]);
    press(&mut screen, KeyCode::Esc);
    assert_eq!(names(&drawn(&mut screen, &board)).len(), 2);
}

#[test]
fn a_store_that_does_not_answer_is_shown_as_such_until_it_does() {
    let states = [lock("a", "", &[])];
    let mut board = board(&states);
    board.fail("could not list locks: connection refused".into(), false);
    let lines = drawn(&mut screen(), &board);
    assert!(lines[0].contains("NO ANSWER for"), "{}", lines[0]);
    assert_eq!(names(&lines), ["a"], "as it was seen last");
    assert!(lines[22].contains("connection refused"));
    board.update(vec![WatchEvent::Recovered], states.iter().map(|s| (s, Duration::ZERO)));
    assert!(!drawn(&mut screen(), &board)[0].contains("NO ANSWER"));
    board.fail("could not list locks: NOPERM".into(), true);
    assert!(drawn(&mut screen(), &board)[0].contains("REFUSED for"), "it does answer");
    let mut never = Board::default();
    never.fail("could not connect".into(), false);
    assert!(drawn(&mut screen(), &never)[2].contains("could not connect"));
}

#[test]
fn hostile_names_and_labels_stay_within_their_columns() {
    let hostile = "\u{202e}gnp.exe<script>\u{200b}".repeat(5);
    let states = [
        lock(&hostile, "\x1b[2J\x07\r\n\u{9b}31m", &[1]),
        lock("日本語の鍵".repeat(8).as_str(), "", &[]),
    ];
    let board = board(&states);
    let mut screen = screen();
    for code in [KeyCode::Null, KeyCode::Enter] {
        press(&mut screen, code);
        let lines = drawn(&mut screen, &board);
        assert_eq!(lines.len(), 24);
        for line in &lines {
            assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
    }
}

#[test]
fn enter_shows_the_queue_the_tokens_and_the_events_of_a_lock() {
    let board = board(&[lock("hot", "report", &[42, 7])]);
    let mut screen = screen();
    drawn(&mut screen, &board);
    press(&mut screen, KeyCode::Enter);
    let text = drawn(&mut screen, &board).join("\n");
    for part in [
        "LOCK hot",
        "(report)",
        "token 1842630127616",
        "QUEUE: 2 waiting",
        "HOLDS",
        "TOKENS",
        "EVENTS",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        text.find("42s").unwrap() < text.find(" 7s").unwrap(),
        "in the order of the queue: {text}"
    );
    press(&mut screen, KeyCode::Esc);
    assert_eq!(screen.mode, View::List);
}

#[test]
fn a_release_by_force_needs_a_reason_and_the_name() {
    let board = board(&[lock("hot", "", &[])]);
    let name: LockName = "hot".parse().unwrap();
    let mut screen = screen();
    drawn(&mut screen, &board);
    press(&mut screen, KeyCode::Char('x'));
    assert_eq!(press(&mut screen, KeyCode::Enter), Action::Stay, "no reason was given");
    type_in(&mut screen, "it hangs");
    assert!(drawn(&mut screen, &board).join("\n").contains("Reason: it hangs_"));
    press(&mut screen, KeyCode::Enter);
    type_in(&mut screen, "ho");
    assert_eq!(press(&mut screen, KeyCode::Enter), Action::Stay);
    assert!(drawn(&mut screen, &board)[23].contains("another one: nothing was released"));
    press(&mut screen, KeyCode::Char('x'));
    type_in(&mut screen, "it hangs");
    press(&mut screen, KeyCode::Enter);
    let mut next = lock("hot", "", &[]);
    next.holders[0].owner = "2".repeat(32);
    drawn(&mut screen, &self::board(&[next]));
    type_in(&mut screen, "hot");
    let released = press(&mut screen, KeyCode::Enter);
    let owners = vec!["0".repeat(32)];
    let evicted = Action::Evict { lock: name, owners, reason: "it hangs".into() };
    assert_eq!(released, evicted, "only the holder that was shown");
}

#[test]
fn ten_thousand_locks_are_listed_page_by_page() {
    let states: Vec<_> = (0..10_000).map(|n| lock(&format!("{n:05}"), "", &[])).collect();
    let board = board(&states);
    let mut screen = screen();
    assert_eq!(names(&drawn(&mut screen, &board))[0], "00000");
    press(&mut screen, KeyCode::PageDown);
    press(&mut screen, KeyCode::PageDown);
    let lines = drawn(&mut screen, &board);
    assert!(names(&lines).contains(&"00038"), "{lines:#?}");
    assert!(screen.refresh(&board).len() <= 24, "only what is visible is looked at");
    press(&mut screen, KeyCode::End);
    assert_eq!(names(&drawn(&mut screen, &board)).last(), Some(&"09999"));
}
