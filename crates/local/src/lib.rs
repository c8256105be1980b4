//! Locks for the processes of one Linux machine, with no server.
//!
//! Code here may map files, take turns at a table with other processes and wake them. It may not
//! decide who is admitted (that is `tenure-proto`'s), nor retry or keep a lease alive (that is
//! `tenure-core`'s). `unsafe` is allowed in `mapping`, `ofd`, `readiness` and `sigbus` only.
//!
//! # The directory
//! Private to one user (0700, files 0600), on a local disk. Network file systems, FUSE and what
//! belongs to another user are refused, unless [`LocalOptions`] says otherwise. Shared with a group
//! it is 2770 and its files are 0660: files follow the mode of the directory.
//!
//! | file | what |
//! |---|---|
//! | `table` | all locks, holders and waiters of this boot, mapped into every process |
//! | `tokens` | the durable ceiling of the fencing tokens: two checksummed records in turns |
//! | `members` | byte *i* is locked by the process in slot *i* for as long as it lives, in all versions |
//! | `wake/`*i* | the FIFO on which the process in slot *i* hears of its waiters' news |
//! | `audit.log` | one JSON line per eviction |
//! | `init` | locked while the table is created or replaced |
//!
//! # How it works
//! - A claim is a few dozen stores to shared memory, under a *gate*: a futex word that names the
//!   member inside. A process that finds the member inside dead takes over the gate; a member that
//!   lives and does not come out within two seconds is named in an error.
//! - Every change is journaled word by word before it is made, and so is undone if the process
//!   is killed in the middle (module `txn`). Work on many claims is many small changes, with the
//!   gate left in between where the claims are many (module `stretch`).
//! - No change waits for the disk to confirm a write: fencing tokens are reserved ahead of need, on
//!   a thread of the process that finds few left (module `reserve`).
//! - A release hands the lock to the next in line in the same change, and then wakes that one
//!   waiter: in this process directly, in another by eight bytes down its FIFO. Leaving the line
//!   costs the same anywhere in it.
//! - A waiter's process watches the processes right before it (a pidfd), so that the death of a
//!   holder lets the next one in at once. The truth about a death is the lock on its byte.
//! - Everything read from the table is checked: links against the table's bounds and the kind of
//!   record they lead to, records against their checksums. Damage is an error with a remedy.
//! - The file grows by blocks that are allocated before they are used, and is written in place: a
//!   full disk is an error. A page that cannot be had all the same (the file was truncated, the disk
//!   failed, a snapshot on btrfs makes the next write a copy) is an error, too, and not a SIGBUS
//!   (module `sigbus`).
//! - A table of an earlier boot, of another version, or of a clock with another offset (a time
//!   namespace) is replaced by an empty one, unless a process still uses it: then it is refused.
//!   Tokens go on from their ceiling, which was synced before any token below it was handed out.
//!
//! # Assumptions
//! - All processes see the same directory and the same clock, on one kernel. In different pid namespaces a death is
//!   noticed by the lock on the byte, when somebody asks (core's poll), not at once.
//! - Nobody edits the table while it is in use.
//! - The store is not used in a child after `fork` without `exec`: the child would share its
//!   parent's place among the members, and keep it alive.
//! - A claim is renewed and repeated through the store (or a clone of it) that made it; it can be
//!   released, evicted and inspected through any.

// Elsewhere the crate is empty, so that a program with this feature builds on all its platforms.
#![cfg(target_os = "linux")]

mod access;
mod audit;
mod check;
mod clock;
mod death;
mod diagnose;
mod fault;
mod files;
mod gate;
mod header;
#[cfg(test)]
mod killed;
mod layout;
mod line;
#[cfg(test)]
mod lost_page;
mod mapping;
mod members;
mod ofd;
mod ops;
mod options;
mod readiness;
mod records;
mod reserve;
mod seats;
mod sigbus;
mod state;
mod store;
mod stretch;
mod table;
mod tokens;
mod txn;
mod wait;
mod wake;

#[doc(hidden)]
pub use check::Census;
pub use options::LocalOptions;
pub use store::LocalStore;
#[doc(hidden)]
pub use table::Setup;
