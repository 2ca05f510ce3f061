//! Ending a process in order: one request, seen by async tasks and by blocking threads alike.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What a process ends with when a second signal cuts its shutdown short (128 + SIGINT, as a shell counts).
const CUT_SHORT: i32 = 130;

/// A request to end, shared by its clones. Once made it stays.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// For threads that poll.
    flag: Arc<AtomicBool>,
    /// For tasks that wait. The sender lives here, so the channel never closes.
    sender: Arc<watch::Sender<bool>>,
}

impl Shutdown {
    /// A request that only [`trigger`](Self::trigger) makes.
    pub fn new() -> Self {
        Self {
            flag: Arc::new(AtomicBool::new(false)),
            sender: Arc::new(watch::Sender::new(false)),
        }
    }

    /// A request that SIGINT or SIGTERM makes; a second signal ends the process at once with code 130, unflushed.
    ///
    /// Must be called within a tokio runtime with signals enabled, once a process. Pid 1 of a container is covered.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let shutdown = Self::new();
        let requested = shutdown.clone();
        tokio::spawn(async move {
            let name = tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
            };
            tracing::info!(signal = name, "shutting down, a second signal ends at once");
            requested.trigger();
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(CUT_SHORT);
        });
        Ok(shutdown)
    }

    /// Asks everyone to end. Asking again changes nothing.
    pub fn trigger(&self) {
        self.flag.store(true, Ordering::SeqCst);
        self.sender.send_replace(true);
    }

    /// Whether the end was asked for.
    pub fn is_triggered(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// Returns once the end was asked for, at once if it already was. Safe to drop and call again in `select!`.
    pub async fn wait(&self) {
        // The sender lives in `self`, so this cannot fail while it is borrowed.
        let _ = self.sender.subscribe().wait_for(|asked| *asked).await;
    }

    /// A flag for blocking code to poll, such as a training loop between two batches. It is only to be read: setting it
    /// does not wake the tasks that wait.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command, Stdio};

    #[tokio::test]
    async fn every_clone_sees_it_early_or_late() {
        let shutdown = Shutdown::new();
        let (early, flag) = (shutdown.clone(), shutdown.flag());
        let waiting = tokio::spawn(async move { early.wait().await });
        tokio::task::yield_now().await;
        assert!(!shutdown.is_triggered() && !waiting.is_finished());
        shutdown.trigger();
        shutdown.trigger();
        waiting.await.unwrap();
        shutdown.clone().wait().await;
        assert!(shutdown.is_triggered() && flag.load(Ordering::SeqCst));
    }

    const ROLE: &str = "WAYSIDE_TEST_SIGNAL_ROLE";

    /// The process that the test below sends signals to: this test binary again, with a role.
    #[test]
    fn child_process() {
        let Ok(role) = std::env::var(ROLE) else {
            return;
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let shutdown = Shutdown::on_signals().unwrap();
            std::io::Write::write_all(&mut io::stderr(), b"ready\n").unwrap();
            shutdown.wait().await;
            std::io::Write::write_all(&mut io::stderr(), b"ending\n").unwrap();
            if role == "stuck" {
                std::future::pending::<()>().await;
            }
        });
        std::process::exit(7);
    }

    struct Signalled(Child, BufReader<std::process::ChildStderr>);

    impl Signalled {
        fn start(role: &str) -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "shutdown::tests::child_process",
                    "--nocapture",
                    "--test-threads=1",
                ])
                .env(ROLE, role)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap());
            Self(child, lines)
        }

        fn expect(&mut self, line: &str) -> &mut Self {
            let mut read = String::new();
            while read.trim() != line {
                read.clear();
                assert_ne!(
                    self.1.read_line(&mut read).unwrap(),
                    0,
                    "ended before {line}"
                );
            }
            self
        }

        fn send(&mut self, signal: &str) -> &mut Self {
            let command = format!("kill -{signal} {}", self.0.id());
            assert!(
                Command::new("sh")
                    .args(["-c", &command])
                    .status()
                    .unwrap()
                    .success()
            );
            self
        }

        fn ends_with(&mut self, code: i32) {
            let status = self.0.wait().unwrap();
            assert_eq!((status.code(), status.signal()), (Some(code), None));
        }
    }

    #[test]
    fn one_signal_ends_in_order_and_a_second_at_once() {
        Signalled::start("tidy")
            .expect("ready")
            .send("TERM")
            .expect("ending")
            .ends_with(7);
        Signalled::start("tidy")
            .expect("ready")
            .send("INT")
            .expect("ending")
            .ends_with(7);
        Signalled::start("stuck")
            .expect("ready")
            .send("TERM")
            .expect("ending")
            .send("INT")
            .ends_with(CUT_SHORT);
    }
}
