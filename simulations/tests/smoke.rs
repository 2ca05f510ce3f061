//! The program itself: what it says to a wrong command line. That the demo works is for the end-to-end tests, which run
//! this very program.

use std::process::{Command, Stdio};

fn demo(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_wayside-sim"))
        .arg("demo")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn each_mistake_is_one_line_with_its_code() {
    let check = |arguments: &[&str], code, says: &str| {
        let (got, stdout, stderr) = demo(&[arguments, &["--quiet"]].concat());
        assert_eq!(got, Some(code), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{arguments:?}: {stderr}");
    };
    check(&["--data", "/nowhere"], 41, "--data");
    check(&["--weights", "/nowhere"], 40, "--weights");
    check(&["--vehicles", "2"], 2, "2 vehicles at 3 roadside units");
    check(&["--rounds", "0"], 2, "--rounds");
    check(&["--vehicles", "500"], 41, "fewer vehicles");
    let (code, _, stderr) = demo(&["--partition", "shards:2"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("dirichlet:ALPHA"), "{stderr}");
}

#[test]
fn a_failure_is_one_json_object() {
    let (code, stdout, _) = demo(&["--data", "/nowhere", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON object");
    assert_eq!(
        (code, &report["success"]),
        (Some(41), &serde_json::Value::Bool(false))
    );
    assert_eq!(report["error"]["code"], 41);
}
