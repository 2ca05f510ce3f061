//! The commands around scenarios, as a user gives them.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn scenario(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("scenarios")
        .join(name);
    path.to_str().expect("UTF-8").to_owned()
}

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wayside-sim"))
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn run_prints_what_scripts_ask_for_and_leaves_a_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    let log = folder.path().join("events.log");
    let path = scenario("attackers.toml");
    let (out_text, log_text) = (out.to_str().expect("UTF-8"), log.to_str().expect("UTF-8"));
    let output = sim(&[
        "run",
        &path,
        "-c",
        "job.schedule.merges=20",
        "--format",
        "json",
        "--quiet",
        "--out",
        out_text,
        "--log",
        log_text,
        "--threads",
        "2",
    ]);
    assert!(output.status.success(), "{output:?}");
    let printed = json(&output);
    for key in [
        "fits_per_s",
        "rounds",
        "simulated_s",
        "wall_s",
        "peak_rss_bytes",
        "model_digest",
        "log_digest",
        "accuracy",
    ] {
        assert!(!printed[key].is_null(), "{key} is missing: {printed}");
    }
    assert_eq!(printed["success"], true);
    for file in ["record.json", "rounds.csv", "curve.csv", "report.html"] {
        assert!(out.join(file).is_file(), "{file} is missing");
    }
    // The digest is that of the log as it is written.
    let written = std::fs::read(&log).expect("the log");
    let digest = blake3::hash(&written).to_hex().to_string();
    assert_eq!(printed["log_digest"], digest.as_str());

    let replayed = sim(&[
        "replay", &path, "--seed", "1", "--expect", &digest, "--format", "json",
    ]);
    assert!(replayed.status.success(), "{replayed:?}");
    assert_eq!(json(&replayed)["model_digest"], printed["model_digest"]);
    let other = sim(&["replay", &path, "--seed", "2", "--expect", &digest]);
    assert_eq!(other.status.code(), Some(1), "another seed has another log");

    let page = folder.path().join("page.html");
    let report = sim(&["report", out_text, "--out", page.to_str().expect("UTF-8")]);
    assert!(report.status.success(), "{report:?}");
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.contains("accuracy-by-version") && html.contains("fleet-map"));
    assert!(
        !html.contains("http://") || html.contains("http://www.w3.org"),
        "no network"
    );
}

#[test]
fn compare_tells_runs_and_scenarios_apart() {
    let (sync, asynchronous) = (scenario("sync.toml"), scenario("async.toml"));
    let output = sim(&[
        "compare",
        &sync,
        &asynchronous,
        "-c",
        "job.schedule.merges=10",
        "--format",
        "json",
        "--quiet",
    ]);
    assert!(output.status.success(), "{output:?}");
    let groups = json(&output)["groups"].as_array().expect("groups").clone();
    let names: Vec<&str> = groups
        .iter()
        .filter_map(|group| group["name"].as_str())
        .collect();
    assert_eq!(names, ["synchronous", "asynchronous"]);
}

#[test]
fn what_cannot_be_run_is_named_with_a_remedy() {
    for (arguments, code, named) in [
        (vec!["run", "nowhere.toml"], 10, "nowhere.toml"),
        (vec!["run", "SCENARIO", "-c", "vehicels=3"], 11, "vehicles"),
        (vec!["run", "SCENARIO", "-c", "vehicles=0"], 12, "vehicles"),
        (
            vec!["run", "SCENARIO", "-c", "world.roads.columns=0"],
            12,
            "roads.columns",
        ),
        (
            vec![
                "run",
                "SCENARIO",
                "-c",
                "job.strategy.rule={ name = \"trimmed-mean\", trim_ratio = 0.9 }",
            ],
            42,
            "trim",
        ),
        (vec!["report", "nowhere"], 1, "nowhere"),
    ] {
        let path = scenario("attackers.toml");
        let mut arguments: Vec<&str> = arguments
            .into_iter()
            .map(|argument| {
                if argument == "SCENARIO" {
                    &path
                } else {
                    argument
                }
            })
            .collect();
        if arguments[0] == "run" {
            arguments.extend(["--format", "json"]);
        }
        let output = sim(&arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(named), "{arguments:?}: {text}");
    }
}
