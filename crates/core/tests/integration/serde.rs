//! The plain data types with the feature `serde`.

use std::time::Duration;

use tenure_core::{Finding, Holder, LockName, LockState, LossReason, Mode, Token, Waiter};

#[test]
fn a_lock_state_is_read_as_it_was_written() {
    let mut holder = Holder::new("ab", Mode::Permits { take: 2, of: 5 });
    holder.token = Some(Token::new(7));
    holder.age = Some(Duration::from_millis(1500));
    let waiters = vec![Waiter::new("cd", Mode::Exclusive)];
    let state = LockState::new(LockName::new("orders/42").unwrap(), vec![holder], waiters);
    let text = serde_json::to_string(&state).unwrap();
    assert!(text.starts_with(r#"{"name":"orders/42","holders":[{"owner":"ab","#), "{text}");
    assert!(text.contains(r#""mode":{"permits":{"take":2,"of":5}},"token":7"#), "{text}");
    assert_eq!(serde_json::from_str::<LockState>(&text).unwrap(), state);
}

#[test]
fn a_name_that_no_lock_can_have_is_not_read() {
    assert!(serde_json::from_str::<LockName>(r#""a{b}""#).is_err());
}

#[test]
fn findings_and_reasons_are_read_as_they_were_written() {
    let finding = Finding::advice("one replica", "add one");
    let text = serde_json::to_string(&finding).unwrap();
    assert_eq!(text, r#"{"severity":"advice","what":"one replica","remedy":"add one"}"#);
    assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), finding);
    assert_eq!(serde_json::to_string(&LossReason::MaxHold).unwrap(), r#""max_hold""#);
}
