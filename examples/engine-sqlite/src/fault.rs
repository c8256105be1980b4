//! What SQLite's errors mean for a lock.

use rusqlite::ErrorCode;
use tenure_core::{Error, ErrorKind};

/// Turns an error of a transaction into tenure's. `operation` completes "could not …".
///
/// A transaction that failed is rolled back. Where it may have failed while it was committed, the effect is
/// unknown.
pub(crate) fn fault(operation: &'static str, cause: rusqlite::Error) -> Error {
    let (kind, remedy) = match cause.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Unreachable, "another process keeps the file locked: find what holds it")
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::Full, "the disk is full"),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Damaged, "the file is damaged, or no SQLite database: move it away")
        }
        Some(
            ErrorCode::PermissionDenied
            | ErrorCode::ReadOnly
            | ErrorCode::AuthorizationForStatementDenied,
        ) => (ErrorKind::Denied, "this user may not write to the file and its directory"),
        Some(ErrorCode::CannotOpen) => {
            (ErrorKind::Denied, "the file cannot be opened: check that its directory exists")
        }
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unreachable, "the disk fails"),
        _ => (ErrorKind::Internal, "SQLite refused"),
    };
    let may_be_committed = !matches!(
        cause.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::CannotOpen)
    );
    let error = Error::new(kind, operation, format!("{remedy} ({cause})")).caused_by(cause);
    if may_be_committed { error.with_unknown_effect() } else { error }
}
