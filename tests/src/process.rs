//! A child process whose log is watched and which does not outlive the test.

use anyhow::{Context, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `condition` gives a value; an error that says what was waited for once `patience` is over.
pub fn wait_for<T>(
    what: &str,
    patience: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if Instant::now() > end {
            bail!("waited {patience:?} in vain for {what}");
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The path of one of the workspace's programs, built beside this test.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test
        .parent()
        .and_then(Path::parent)
        .context("the test binary lies in target/PROFILE/deps")?;
    let path = folder.join(name);
    if !path.exists() {
        bail!(
            "{} is not built: run `cargo test --release --workspace`, which builds it",
            path.display()
        );
    }
    Ok(path)
}

/// A running program with its log in a file.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; standard error goes to the end of `log`, standard output nowhere.
    pub fn start(name: &str, mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            child,
            name: name.to_owned(),
            log: log.to_owned(),
        })
    }

    /// Everything logged so far, by this and by earlier processes with the same log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log holds `text` at least `times` times.
    pub fn wait_for_log(
        &mut self,
        text: &str,
        times: usize,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let name = self.name.clone();
        let found = wait_for(
            &format!("{times} x {text:?} in the log of {name}"),
            patience,
            || (self.log().matches(text).count() >= times).then_some(()),
        );
        found.with_context(|| format!("log of {name} ends with:\n{}", tail(&self.log(), 30)))
    }

    /// Ends it at once, as a power cut would.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends a signal, by its name.
    pub fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", signal, &id]).status()?;
        if !status.success() {
            bail!("kill -s {signal} {id} failed");
        }
        Ok(())
    }

    /// Waits for its end.
    pub fn wait(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let name = self.name.clone();
        wait_for(&format!("the end of {name}"), patience, || {
            self.child.try_wait().ok().flatten()
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "---- end of the log of {}\n{}",
                self.name,
                tail(&self.log(), 40)
            );
        }
    }
}

/// The last lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A loopback port that was free a moment ago.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

/// Runs a command to its end; its standard output, or an error with its standard error.
pub fn output(mut command: Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
