//! `--metrics`: what the library counts, for Prometheus.

use std::net::SocketAddr;

use metrics_exporter_prometheus::PrometheusBuilder;

use crate::output::report;

/// The bounds of histograms, in seconds: from a hand-off on one machine to a nightly job.
const BOUNDS: [f64; 15] = [
    0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0,
    86_400.0,
];

/// Serves the metrics on this address until the process ends. If it cannot, it warns: monitoring does not
/// decide about the work.
pub(crate) fn serve(address: SocketAddr) {
    if !address.ip().is_loopback() {
        report(&format!(
            "other machines can reach the metrics on {address}, which need no password and show the lock's name"
        ));
    }
    let builder = PrometheusBuilder::new().with_http_listener(address).set_buckets(&BOUNDS);
    if let Err(error) = builder.and_then(PrometheusBuilder::install) {
        report(&format!("cannot serve metrics on {address}, so there are none: {error}"));
    }
}
