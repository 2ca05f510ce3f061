//! The real binary: bad configurations, a kill -9 in the middle of a round, an orderly end.

#![allow(clippy::unwrap_used, reason = "in a test a failure is a panic")]

mod support;

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{Cloud, Vehicle, plan};
use wayside_domain::update::Verdict;

const BINARY: &str = env!("CARGO_BIN_EXE_roadside-aggregator");

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs to its end, which must come soon.
fn ends(args: &[&str]) -> Output {
    let begun = Instant::now();
    let output = command(args).output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{args:?}");
    output
}

#[track_caller]
fn refused(args: &[&str], code: i32, parts: &[&str]) {
    let output = ends(args);
    let text = String::from_utf8(output.stderr).unwrap();
    // Log lines come before; the refusal is the last one.
    let last = text.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert!(
        parts.iter().all(|part| last.contains(part)),
        "{args:?}: {text}"
    );
    assert!(!text.contains("panicked"), "{text}");
}

fn set(folder: &Path) -> [String; 3] {
    [
        format!("state.dir={}", folder.join("state").display()),
        "broker.listen=127.0.0.1:0".to_owned(),
        "cloud.address=http://127.0.0.1:9".to_owned(),
    ]
}

#[test]
fn bad_configurations_are_one_line_and_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let unknown = file("unknown.toml", "[broker]\nlisten_on = \"x\"\n");
    let typed = file("typed.toml", "[broker]\nkeepalive_s = \"x\"\n");
    let missing = folder.path().join("none.toml");
    refused(
        &["check-config", "--config", &unknown],
        11,
        &["broker.listen_on", "line 2", "listen"],
    );
    refused(&["run", "--config", &typed], 11, &["broker.keepalive_s"]);
    refused(
        &["run", "--config", missing.to_str().unwrap()],
        10,
        &["none.toml", "create"],
    );
    refused(&["run", "-c", "roadside.id=a/b"], 12, &["roadside.id"]);
    refused(
        &["run", "-c", "limits.chunk_bytes=1"],
        12,
        &["limits.chunk_bytes", "256"],
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("broker.listen={}", taken.local_addr().unwrap());
    let [state, any, cloud] = set(folder.path());
    refused(
        &["run", "-c", &state, "-c", &listen, "-c", &cloud],
        20,
        &["broker.listen", "in use"],
    );
    let blocked = format!("state.dir={unknown}/state");
    refused(
        &["run", "-c", &blocked, "-c", &any, "-c", &cloud],
        30,
        &["unknown.toml/state"],
    );
    let foreign = format!("state.dir={}", folder.path().display());
    refused(
        &["run", "-c", &foreign, "-c", &any, "-c", &cloud],
        31,
        &["holds other files"],
    );
}

#[test]
fn help_and_checks() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("roadside-aggregator.toml");
    let good = ends(&[
        "check-config",
        "--config",
        sample.to_str().unwrap(),
        "--format",
        "json",
    ]);
    assert!(good.status.success());
    let json: serde_json::Value = serde_json::from_slice(&good.stdout).unwrap();
    assert_eq!(json["success"], true);
    assert!(
        String::from_utf8(ends(&["--help"]).stdout)
            .unwrap()
            .contains("check-config")
    );
    assert!(
        String::from_utf8(ends(&["run", "--help"]).stdout)
            .unwrap()
            .contains("--config")
    );
    assert_eq!(ends(&["fly"]).status.code(), Some(2));
}

struct Running(Child);

impl Running {
    fn start(folder: &Path, broker: SocketAddr, cloud: SocketAddr) -> Self {
        let settings = [
            format!("state.dir={}", folder.join("state").display()),
            format!("broker.listen={broker}"),
            format!("cloud.address=http://{cloud}"),
            "roadside.id=r1".to_owned(),
            "limits.settle_ms=1000".to_owned(),
        ];
        let mut args = vec!["run"];
        for setting in &settings {
            args.extend(["-c", setting]);
        }
        let begun = Instant::now();
        let running = Self(command(&args).spawn().unwrap());
        while std::net::TcpStream::connect(broker).is_err() {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "it does not listen"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        running
    }

    fn signal(&self, name: &str) {
        let id = self.0.id();
        let status = Command::new("sh")
            .args(["-c", &format!("kill -{name} {id}")])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for the end and gives code and log.
    fn end(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(5), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut log = String::new();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        (self.0.wait().unwrap().code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_with_five_of_ten_it_goes_on_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let broker = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let cloud = Cloud::start(plan(1, 10)).await;
    let unit = Running::start(folder.path(), broker, cloud.address);
    let mut vehicles = Vec::new();
    for n in 0..10 {
        vehicles.push(Vehicle::join(&format!("v{n}"), broker).await);
    }
    let before = vehicles[0].round().await;
    assert_eq!(before.cohort.len(), 10);
    let mut updates = Vec::new();
    for (n, vehicle) in (0..).zip(&mut vehicles) {
        let update = vehicle.update(&before, n);
        if n < 5 {
            vehicle.send(&update, &[]).await;
            assert_eq!(vehicle.receipt().await.verdict, Verdict::Accepted);
        }
        updates.push(update);
    }
    unit.signal("KILL");
    unit.end();

    let unit = Running::start(folder.path(), broker, cloud.address);
    vehicles.clear();
    for n in 0..10 {
        vehicles.push(Vehicle::join(&format!("v{n}"), broker).await);
    }
    let after = vehicles[9].round().await;
    assert_eq!(after, before, "round, cohort and deadline");
    for (vehicle, update) in vehicles.iter_mut().zip(&updates) {
        vehicle.send(update, &[]).await;
        assert_eq!(vehicle.receipt().await.verdict, Verdict::Accepted);
    }
    let partial = cloud.partial(0).await;
    assert_eq!(
        (partial.num_examples, partial.contributions.len()),
        (100, 10)
    );
    unit.signal("TERM");
    let (code, log) = unit.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}
