//! The process that the conformance suite starts, stops and kills while it holds a lock.

fn main() {
    let registry = tenure::Registry::default().with(tenure_sqlite::SqliteFactory);
    tenure_conformance::holder::main(&registry);
}
