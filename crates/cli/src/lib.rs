//! tenure-cli.
