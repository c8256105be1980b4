//! Commands of newer servers that compare a value and act on it in one step.
//!
//! A value that is exactly what this client wrote means that the claim holds and that no claim waits,
//! because a waiter marks the value. So a lock without contention is released and renewed without a
//! script.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::wire::{Command, Refusal, cmd};

/// Which of these commands one server takes. It is learnt from the first refusal and not from the
/// version, which forks and proxies report as they like; and anew with each connection, since the
/// server may have been replaced.
#[derive(Debug, Default)]
pub(crate) struct NativeCommands {
    delete: AtomicU8,
    lacks_set: AtomicBool,
}

/// A spelling of compare-and-delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delete {
    /// `DELIFEQ key value`: Valkey 9.0.
    DelIfEq,
    /// `DELEX key IFEQ value`: Redis 8.4.
    DelEx,
}

/// In the order in which they are tried.
const SPELLINGS: [Delete; 2] = [Delete::DelIfEq, Delete::DelEx];

impl NativeCommands {
    /// How to delete a key that still has a value, if the server can. Where it cannot, values are
    /// not remembered.
    pub(crate) fn delete(&self) -> Option<Delete> {
        SPELLINGS.get(usize::from(self.delete.load(Ordering::Relaxed))).copied()
    }

    /// Whether a `SET` may compare with `IFEQ`.
    pub(crate) fn has_set_if_equal(&self) -> bool {
        !self.lacks_set.load(Ordering::Relaxed)
    }

    /// The server refused to delete. If it lacks the command, or the user the right, the next spelling is
    /// tried the next time.
    pub(crate) fn refused_delete(&self, tried: Delete, refusal: &Refusal) {
        if is_lacking(refusal) {
            let at = SPELLINGS.iter().position(|spelling| *spelling == tried).unwrap_or_default();
            // Of many calls that were refused, the first has already gone on.
            let (at, next) = (at as u8, at as u8 + 1);
            let _ = self.delete.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(crate) fn refused_set(&self, refusal: &Refusal) {
        if is_lacking(refusal) {
            self.lacks_set.store(true, Ordering::Relaxed);
        }
    }

    /// Another server may answer from now on.
    pub(crate) fn reset(&self) {
        self.delete.store(0, Ordering::Relaxed);
        self.lacks_set.store(false, Ordering::Relaxed);
    }
}

impl Delete {
    pub(crate) fn command(self, key: &str, value: &str) -> Command {
        match self {
            Self::DelIfEq => cmd("DELIFEQ").arg(key).arg(value),
            Self::DelEx => cmd("DELEX").arg(key).arg("IFEQ").arg(value),
        }
    }
}

/// Restarts the term of a key that still has this value.
pub(crate) fn set_if_unchanged(key: &str, value: &str, ttl_ms: u64) -> Command {
    cmd("SET").arg(key).arg(value).arg("IFEQ").arg(value).arg("PX").number(ttl_ms)
}

/// A server that does not know `IFEQ` takes it for a syntax error.
fn is_lacking(refusal: &Refusal) -> bool {
    let said = &*refusal.words;
    refusal.code == "NOPERM"
        || refusal.code == "ERR"
            && (said.contains("nknown command") || said.contains("syntax error"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: &str, words: &str) -> Refusal {
        Refusal { code: code.into(), words: words.into() }
    }

    #[test]
    fn a_command_that_a_server_refuses_is_not_tried_again() {
        let native = NativeCommands::default();
        let unknown = refusal("ERR", "unknown command 'DELIFEQ', with args beginning with: ");
        assert_eq!(native.delete(), Some(Delete::DelIfEq));
        for _ in 0..3 {
            // Several calls may be on their way when the first is refused.
            native.refused_delete(Delete::DelIfEq, &unknown);
        }
        assert_eq!(native.delete(), Some(Delete::DelEx));
        native.refused_delete(Delete::DelEx, &refusal("NOPERM", "this user has no permissions"));
        assert_eq!(native.delete(), None);
        assert!(native.has_set_if_equal());
        native.refused_set(&refusal("ERR", "syntax error"));
        assert!(!native.has_set_if_equal());
        native.reset();
        assert!(native.has_set_if_equal() && native.delete() == Some(Delete::DelIfEq));
    }

    #[test]
    fn a_refusal_for_another_reason_says_nothing_of_the_command() {
        let native = NativeCommands::default();
        for (code, words) in [
            ("LOADING", "Redis is loading"),
            ("OOM", "command not allowed"),
            ("READONLY", "You can't write"),
            ("MOVED", "1 127.0.0.1:1"),
            ("BUSY", "a script"),
        ] {
            native.refused_delete(Delete::DelIfEq, &refusal(code, words));
            native.refused_set(&refusal(code, words));
        }
        assert_eq!(native.delete(), Some(Delete::DelIfEq));
        assert!(native.has_set_if_equal());
    }
}
