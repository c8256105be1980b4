//! The holder process for the engines that are compiled into tenure.

fn main() {
    tenure_conformance::holder::main(&tenure::Registry::default());
}
