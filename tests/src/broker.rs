//! mosquitto, the external broker.

use crate::process::{Process, free_port, wait_for};
use anyhow::Context;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A mosquitto of this test's own.
#[derive(Debug)]
pub struct Mosquitto {
    /// Where it listens.
    pub address: String,
    config: std::path::PathBuf,
    process: Process,
}

impl Mosquitto {
    /// Starts one in `folder` and waits until it takes connections.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let config = folder.join("mosquitto.conf");
        std::fs::write(
            &config,
            format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_packet_size 1048576\n"),
        )?;
        let process = Self::spawn(&config)?;
        let broker = Self {
            address: format!("127.0.0.1:{port}"),
            config,
            process,
        };
        broker.ready()?;
        Ok(broker)
    }

    fn spawn(config: &Path) -> anyhow::Result<Process> {
        // Debian keeps it in /usr/sbin, which is not in every user's PATH.
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("mosquitto");
        command
            .arg("-c")
            .arg(config)
            .env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
        Process::start("mosquitto", command, &config.with_extension("log")).context(
            "mosquitto is needed: apt-get install mosquitto, or run scripts/test.sh, which does it",
        )
    }

    fn ready(&self) -> anyhow::Result<()> {
        wait_for("mosquitto to listen", Duration::from_secs(10), || {
            TcpStream::connect(&self.address).ok()
        })?;
        Ok(())
    }

    /// Kills it and starts it again on the same port; what it held in memory is gone.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process = Self::spawn(&self.config)?;
        self.ready()
    }
}
