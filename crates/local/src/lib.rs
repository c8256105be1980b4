//! Locks for the processes of one Linux machine, with no server.
//!
//! This crate maps files, synchronizes access to a shared table, and wakes other processes. The admission
//! rule is in `tenure-proto`; retries, renewals and deadlines are in `tenure-core`. `unsafe` code is
//! confined to the modules `async_fd`, `byte_locks`, `mapping` and `sigbus`. On systems other than Linux
//! the crate is empty.
//!
//! # The directory
//! By default the directory is private to one user (mode 0700, files 0600) and on a local disk. Network
//! file systems, FUSE and directories of other users are refused unless [`LocalOptions`] accepts them. A
//! directory that is shared with a group has mode 2770 and its files 0660: new files follow the mode of
//! the directory.
//!
//! | file | content |
//! |---|---|
//! | `table` | all locks, holders and waiters of this boot, mapped into every process |
//! | `tokens` | the durable ceiling of the fencing tokens: two checksummed records, written alternately |
//! | `members` | byte *i* is locked by the process in slot *i* while it lives; the same in all versions |
//! | `wake/`*i* | the FIFO through which the process in slot *i* receives wake-ups for its waiters |
//! | `audit.log`, `audit.log.1` | one line per eviction or revocation; the second has the 4 MiB before the first |
//! | `cells/` | values: one file each, and the locks of their swaps (module `cells`) |
//! | `init` | locked while the table is created or replaced |
//!
//! # A claim, step by step
//! 1. [`LocalStore`] (`store`) calls the operation in `claims`, which runs as one or more *changes*.
//! 2. A change (`txn`) enters the *gate* (`gate`), a futex word that names the process inside, and so has
//!    the table to itself. It finds the lock's record by its name (`queue`, `records`), and grants the
//!    claim or links it into the queue. An operation takes well under a microsecond, so it runs inside the
//!    `async` call.
//! 3. A release grants the lock to the next waiter in the same change. Then it wakes that one waiter: in
//!    this process directly, in another one by eight bytes through its FIFO (`wakes`).
//!
//! 4. A downgrade changes the claim's mode and the lock's counts, and admits the readers at the head of the
//!    queue as a release does. The first commit has both the reader and the first of them, or neither.
//!
//! # The gate and the journal
//! - The gate is our own and not a robust pthread mutex. It costs one atomic instruction each way, damage
//!   to it cannot make libc follow wild pointers, and programs built with different C libraries can share
//!   it. If the process inside is dead, the next process takes over. If it lives but does not leave within
//!   two seconds, the error names it.
//! - The old value of every word goes into an undo journal in the table before the word is changed. A
//!   process that takes over the gate from a dead one rolls back what that one left half done. The tests
//!   kill a process before every store of every operation, and again before every store of the recovery,
//!   and then check and use the table (`kill_tests`).
//! - Work on many claims is many small changes, and the gate is left in between (`batches`).
//! - Everything that is read from the table is checked: links against the table's bounds and the kind of
//!   record they lead to, records against their checksums. Damage is an error with a remedy.
//!
//! # Dead processes
//! - A process that uses the table has one byte of the file `members` locked (`process_slots`,
//!   `byte_locks`). The kernel releases that lock when the process ends, so the lock is the proof that it
//!   lives. Process ids prove nothing, because they are reused.
//! - A waiter's process watches, through a pidfd, the processes right before it: the predecessor in the
//!   queue, or the holders if it is first (`process_watch`). So one death wakes one waiter, usually within
//!   a millisecond. At most 64 processes are watched and eight FIFOs of other processes kept open, because
//!   file descriptors belong to the host program.
//! - A claim that finds no room checks all holders for expired and dead ones, 256 in each change. So the
//!   permits of dead processes are free for `try_acquire` as well.
//!
//! # Fencing tokens
//! Tokens are reserved in blocks. The new ceiling is synced to the file `tokens` before a token of the
//! block is used, so tokens go on rising after a reboot or a new table. A block is reserved when half of
//! the last one is used, by a thread outside the gate (`reservation`). So a slow or full disk delays only
//! claims that find no token left.
//!
//! # Clocks and reboots
//! - Terms run on `CLOCK_MONOTONIC`, in the table and in the client. While the machine sleeps, no process
//!   on it can be granted a lock, so a hold survives a suspend of any length. For what a holder does on
//!   other machines, only its token protects.
//! - A table belongs to a boot, to a clock (time namespace) and to a format version (`header`). With
//!   another one it is replaced by an empty table, but only if no process has a byte of `members` locked;
//!   otherwise opening fails. An unused table holds no lock, because locks end with their processes.
//!
//! # Lost pages
//! The file grows by blocks that are allocated before they are used, so a full disk is an error. A page
//! can still be lost: the file was truncated, the disk failed, or a snapshot on btrfs makes the next write
//! a copy. The kernel then raises SIGBUS. Our handler (`sigbus`) maps zeros at that page for this process
//! and marks its table as broken: every call fails from then on and commits nothing, and the next process
//! rolls back the interrupted change. Other SIGBUS signals go to the handler that was installed before. On
//! btrfs the table is not copied on write, because a block allocated for it would not serve later writes.
//!
//! # Assumptions
//! - All processes see the same directory and the same clock, on one kernel. In different pid namespaces a
//!   death is noticed by the byte lock at the next poll, not at once.
//! - The table is not edited while it is in use.
//! - The store is not used in a child after `fork` without `exec`: the child would share its parent's slot
//!   and keep it alive.
//! - A claim is renewed and repeated through the store that made it, or a clone of it. It can be released,
//!   evicted and inspected through any store on the directory.

#![cfg(target_os = "linux")]

mod access;
mod async_fd;
mod audit;
mod batches;
mod byte_locks;
mod cells;
mod claim_index;
mod claims;
mod clock;
mod consistency;
mod diagnose;
mod directory;
mod factory;
mod fault;
mod files;
mod gate;
mod header;
mod inspect;
#[cfg(test)]
mod kill_tests;
mod layout;
#[cfg(test)]
mod lost_page_tests;
mod mapping;
mod options;
mod process_slots;
mod process_watch;
mod queue;
mod records;
mod reservation;
mod sigbus;
mod store;
mod table;
mod tokens;
mod txn;
mod wakes;

#[doc(hidden)]
pub use consistency::RecordCounts;
pub use factory::LocalFactory;
pub use options::LocalOptions;
pub use store::LocalStore;
#[doc(hidden)]
pub use table::Setup;
