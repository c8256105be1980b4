//! tenure-testkit.
