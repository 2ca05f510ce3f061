//! The demo of the README, run as a user would.

use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wayside_tests::process::{Process, program};

fn demo(seed: u64) -> Value {
    let output = Command::new(program("wayside-sim").expect("built"))
        .args(["demo", "--seed", &seed.to_string(), "--format", "json"])
        .current_dir(wayside_tests::site::project())
        .stdin(Stdio::null())
        .output()
        .expect("the demo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "seed {seed}: {errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: not one JSON object: {text}"))
}

fn number(report: &Value, path: &str) -> f64 {
    report
        .pointer(path)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("no {path} in {report}"))
}

#[test]
fn the_federation_is_near_central_training_and_far_above_a_vehicle_alone() {
    for seed in 1..=3 {
        let report = demo(seed);
        let gaps = |figure: &str| {
            let value = |way: &str| 100.0 * number(&report, &format!("/{figure}/{way}"));
            (
                value("central") - value("federated"),
                value("federated") - value("local_mean"),
            )
        };
        let (below_central, above_alone) = gaps("accuracy");
        assert!(
            below_central <= 1.5 && above_alone >= 15.0,
            "seed {seed}: accuracy {below_central} {above_alone}"
        );
        let (below_central, above_alone) = gaps("macro_recall");
        assert!(
            below_central <= 8.0 && above_alone >= 20.0,
            "seed {seed}: macro recall {below_central} {above_alone}"
        );
        for way in ["up", "down"] {
            let bytes = number(&report, &format!("/bytes_per_parameter/{way}"));
            assert!(
                bytes > 0.5 && bytes <= 2.1,
                "seed {seed}: {bytes} bytes {way}"
            );
        }
        assert!(number(&report, "/wall_s") <= 240.0, "seed {seed}");
        assert_eq!(report["versions"], report["rounds"]);
        assert!(number(&report, "/vehicles") >= 12.0 && number(&report, "/roadside_units") >= 3.0);
        let share = number(&report, "/within_budget_share");
        assert!((0.0..=1.0).contains(&share));
        for figure in ["accuracy", "macro_recall"] {
            for way in [
                "untrained",
                "local_mean",
                "local_worst",
                "federated",
                "central",
            ] {
                assert!(
                    (0.0..=1.0).contains(&number(&report, &format!("/{figure}/{way}"))),
                    "{figure} {way}"
                );
            }
        }
    }
}

#[test]
fn an_interrupt_ends_it_within_two_seconds_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    for after in [1500, 5000] {
        let mut command = Command::new(program("wayside-sim").expect("built"));
        command
            .args(["demo", "--rounds", "100000"])
            .env("TMPDIR", folder.path());
        command.current_dir(wayside_tests::site::project());
        let mut demo = Process::start("demo", command, &folder.path().join("demo.log"))
            .expect("the demo starts");
        std::thread::sleep(Duration::from_millis(after));
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", demo.id()))
            .unwrap_or_default();
        demo.signal("INT").expect("a signal");
        let asked = Instant::now();
        let status = demo.wait(Duration::from_secs(2)).expect("it ends");
        assert!(asked.elapsed() <= Duration::from_secs(2));
        assert!(!status.success(), "an interrupted demo has no result");
        assert_eq!(children, "", "everything ran in one process");
        let left: Vec<_> = std::fs::read_dir(folder.path())
            .expect("a folder")
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left.len(), 1, "left behind: {left:?}");
    }
}
