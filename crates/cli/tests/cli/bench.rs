//! `bench`: how fast locks are on a store.

use serde_json::Value;

use crate::common::Store;

#[test]
fn bench_prints_a_row_for_each_operation_and_leaves_no_lock() {
    let store = Store::new();
    let table = store.run(&["bench", "--time", "10ms", "--tasks", "3"]).ok();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(lines[0].starts_with("MEASURED") && lines[0].ends_with("PER SECOND"), "{table}");
    let objects = store.run(&["bench", "--time", "10ms", "--tasks", "3", "--json"]).ok();
    let rows: Vec<Value> =
        objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let measured: Vec<_> = rows.iter().map(|row| row["measured"].as_str().unwrap()).collect();
    assert_eq!(
        measured,
        [
            "look at a free lock",
            "acquire + release",
            "acquire + release, 3 tasks",
            "release to the next holder"
        ]
    );
    for row in &rows {
        assert!(row["count"].as_u64() > Some(0), "{row}");
        let times = ["median_us", "p99_us", "p999_us"].map(|field| row[field].as_f64().unwrap());
        assert!(times.is_sorted() && times[0] > 0.0, "{row}");
    }
    // Only a hand-off has pauses in it.
    assert!(rows[1]["per_second"].as_f64() > Some(0.0) && rows[3]["per_second"].is_null());
    assert_eq!(store.run(&["ls", "bench/", "--json"]).ok(), "");
}

#[test]
fn a_memory_store_has_no_hand_off_between_two_connections() {
    let store = Store::new();
    let memory = store.run(&["--store", "memory:", "bench", "--time", "1ms", "--tasks", "1"]).ok();
    assert_eq!(memory.lines().count(), 3, "{memory}");
}
