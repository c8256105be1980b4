//! tenure-conformance.
