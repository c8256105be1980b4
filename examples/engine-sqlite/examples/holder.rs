//! The process that the conformance suite starts, stops and kills while it holds a lock.

fn main() {
    tenure_conformance::holder::main(
        tenure::Registry::default().with(tenure_sqlite::SqliteFactory),
    );
}
