//! tenure-local.
