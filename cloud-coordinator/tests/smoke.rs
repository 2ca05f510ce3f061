//! The binary: bad configurations end it at once with one line, a good one serves.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of tests may fail where it stands"
)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_cloud-coordinator");

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args).env_remove("WAYSIDE_LOG");
    command
}

/// Runs to the end, which must come within 5 s.
fn ended(mut command: Command) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(5) {
            child.kill().unwrap();
            panic!("still running after 5 s");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// A refusal: this exit code, and one error line that holds all of `words`.
fn refuse(command: Command, code: i32, words: &[&str]) {
    let output = ended(command);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    let errors: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{text}");
    for word in words {
        assert!(errors[0].contains(word), "{} lacks {word}", errors[0]);
    }
}

#[test]
fn bad_configurations_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = |more: &[&str]| {
        let mut command = command(&["run"]);
        command.args(more).current_dir(dir.path());
        command
    };
    refuse(
        run(&["--config", "absent.toml"]),
        10,
        &["absent.toml", "no such file", "create the file"],
    );
    let unknown = file("unknown.toml", "[server]\nlissten = '1'\n");
    refuse(
        run(&["--config", &unknown]),
        11,
        &["unknown.toml line 2", "server.lissten", "`server.listen`"],
    );
    let wrong = file("type.toml", "[limits]\nmax_jobs = 'many'\n");
    refuse(
        run(&["--config", &wrong]),
        11,
        &["type.toml line 2", "limits.max_jobs"],
    );
    let range = ["-c", "limits.keep_rounds=1"];
    refuse(
        run(&range),
        12,
        &["limits.keep_rounds", "is 1, expected 64"],
    );
    refuse(
        run(&["-c", "log.level=chatty"]),
        12,
        &["log.level", "chatty"],
    );
    let mut by_environment = run(&[]);
    by_environment.env("WAYSIDE__SERVER__LISTEN", "somewhere");
    refuse(
        by_environment,
        12,
        &["WAYSIDE__SERVER__LISTEN", "server.listen"],
    );
    refuse(
        command(&["check-config", "--config", &unknown]),
        11,
        &["server.lissten"],
    );

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("server.listen={}", taken.local_addr().unwrap());
    refuse(
        run(&["-c", &address]),
        20,
        &["server.listen", "choose another port"],
    );
    assert!(
        !dir.path().join("cloud-state").exists(),
        "nothing was written"
    );

    let free = "server.listen=127.0.0.1:0";
    let blocked = file("blocked", "a file where a folder should be");
    let state = format!("state.dir={blocked}/state");
    refuse(
        run(&["-c", free, "-c", &state]),
        30,
        &["blocked/state", "name another folder"],
    );
    std::fs::create_dir(dir.path().join("other")).unwrap();
    std::fs::write(dir.path().join("other/letter.txt"), "mine").unwrap();
    refuse(
        run(&["-c", free, "-c", "state.dir=other"]),
        31,
        &["other", "letter.txt"],
    );
    let storage = format!("storage.path={blocked}/versions");
    refuse(
        run(&["-c", free, "-c", &storage]),
        30,
        &["blocked/versions", "storage.path"],
    );
}

#[test]
fn commands_say_what_is_wrong() {
    let output = ended(command(&[
        "job",
        "list",
        "--server",
        "http://127.0.0.1:1",
        "--format",
        "json",
    ]));
    assert_eq!(output.status.code(), Some(21));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (
            answer["success"].as_bool(),
            answer["error"]["code"].as_u64()
        ),
        (Some(false), Some(21))
    );
    refuse(
        command(&["job", "list", "--server", "nowhere"]),
        2,
        &["http://HOST:PORT"],
    );
    refuse(
        command(&["job", "create", "absent.toml"]),
        10,
        &["absent.toml"],
    );
    assert_eq!(ended(command(&["fly"])).status.code(), Some(2));
    let help = ended(command(&["job", "create", "--help"]));
    assert!(help.status.success());
    assert!(String::from_utf8(help.stdout).unwrap().contains("readable"));
    let checked = ended(command(&["check-config", "--format", "json"]));
    assert!(checked.status.success());
    let answer: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(answer["config"]["limits"]["piece_bytes"], 262_144);
}

/// A running binary, ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the binary and gives its address, from the log.
fn start(dir: &Path) -> (Running, String) {
    let mut command = command(&[
        "run",
        "-c",
        "server.listen=127.0.0.1:0",
        "-c",
        "log.format=json",
    ]);
    let mut child = command
        .current_dir(dir)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let running = Running(child);
    let address = lines
        .by_ref()
        .map_while(Result::ok)
        .take(5)
        .find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line).ok()?;
            Some(format!("http://{}", line.get("address")?.as_str()?))
        });
    // The log goes on being read, so that the process never waits for us.
    std::thread::spawn(move || lines.for_each(drop));
    (running, address.expect("an address"))
}

fn json(address: &str, args: &[&str], dir: &Path) -> serde_json::Value {
    let mut command = command(args);
    command
        .args(["--server", address, "--format", "json"])
        .current_dir(dir);
    let output = ended(command);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_operator_s_day() {
    let dir = tempfile::tempdir().unwrap();
    let (running, address) = start(dir.path());
    common::write_job(dir.path(), "lights", "");
    let created = json(&address, &["job", "create", "lights.toml"], dir.path());
    assert_eq!(
        (created["job"].as_str(), created["state"].as_str()),
        (Some("lights"), Some("pending"))
    );
    assert_eq!(
        json(&address, &["job", "pause"], dir.path())["state"],
        "paused"
    );
    drop(running); // kill -9

    let (_running, address) = start(dir.path());
    assert_eq!(
        json(&address, &["job", "show"], dir.path())["state"],
        "paused"
    );
    assert_eq!(
        json(&address, &["job", "resume", "lights"], dir.path())["state"],
        "pending"
    );
    assert_eq!(
        json(&address, &["job", "list"], dir.path())["jobs"][0]["job"],
        "lights"
    );
    let models = json(&address, &["model", "list"], dir.path());
    assert_eq!(models["models"][0]["version"], 0);
    assert!(models["models"][0]["accuracy"].is_number());
    assert_eq!(
        json(&address, &["round", "list"], dir.path())["rounds"],
        serde_json::json!([])
    );
    json(
        &address,
        &["model", "export", "--out", "m.safetensors"],
        dir.path(),
    );
    let bytes = std::fs::read(dir.path().join("m.safetensors")).unwrap();
    assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok());
    let mut table = command(&["model", "show", "0", "--server", &address]);
    table.current_dir(dir.path());
    let text = String::from_utf8(ended(table).stdout).unwrap();
    assert!(
        text.starts_with("VERSION") && text.contains("v0 *") && text.contains("file://"),
        "{text}"
    );

    common::write_job(dir.path(), "bad", "[training]\nlr = 0\n");
    let mut bad = command(&["job", "create", "bad.toml", "--server", &address]);
    bad.current_dir(dir.path());
    refuse(bad, 42, &["training.lr is 0"]);
    let show = command(&["model", "show", "9", "--server", &address]);
    refuse(show, 43, &["no version 9"]);
}
