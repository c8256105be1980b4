//! tenure-bench.
