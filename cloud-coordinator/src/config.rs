//! What the host of the coordinator decides: addresses, folders, limits. Everything about training is in the job.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wayside_host::config::{self, ConfigError};
use wayside_host::telemetry::LogConfig;

/// Configuration of one `cloud-coordinator`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where roadside units and operators connect.
    pub server: ServerConfig,
    /// Where jobs, rounds and the registry are kept.
    pub state: StateConfig,
    /// Where model versions are kept.
    pub storage: StorageConfig,
    /// Bounds on what others may send and on what is kept.
    pub limits: LimitsConfig,
    /// Log lines on standard error.
    pub log: LogConfig,
}

/// `[server]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address and port for gRPC, both services; port 0 lets the system choose. Default `127.0.0.1:7443`.
    pub listen: SocketAddr,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7443)),
        }
    }
}

/// `[state]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StateConfig {
    /// Folder of this process alone; made if absent. Default `cloud-state`.
    pub dir: PathBuf,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("cloud-state"),
        }
    }
}

/// `[storage]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageConfig {
    /// Folder for model versions; made if absent. Default: `versions` in the state folder.
    pub path: Option<PathBuf>,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Most bytes of one gRPC message, 65536 to 16777216. Default 4194304 (4 MiB).
    pub max_message_bytes: usize,
    /// Most bytes of one piece of a model, 1024 to 262144. Default 262144 (256 KiB).
    pub piece_bytes: usize,
    /// Most bytes of one partial aggregate with its lines, 65536 to 1073741824. Default 33554432 (32 MiB).
    pub max_partial_bytes: usize,
    /// Partial aggregates that are received at the same time, 1 to 1024; more wait. Default 8.
    pub max_submits: usize,
    /// Most jobs, 1 to 1024; each job's specification is part of every plan. Default 64.
    pub max_jobs: usize,
    /// Most roadside units that may ever register, 1 to 1000000. Default 10000.
    pub max_roadsides: usize,
    /// Merge rounds whose partial aggregates are kept for `round explain`, 64 to 1000000. Default 1000.
    pub keep_rounds: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_message_bytes: 4 << 20,
            piece_bytes: 256 << 10,
            max_partial_bytes: 32 << 20,
            max_submits: 8,
            max_jobs: 64,
            max_roadsides: 10_000,
            keep_rounds: 1_000,
        }
    }
}

impl Config {
    /// Reads a file, then the environment, then `-c key=value`, and checks the whole.
    ///
    /// # Errors
    /// One line that names place, key and remedy.
    pub fn load(path: Option<&Path>, overrides: &[String]) -> Result<Self, ConfigError> {
        let config: Self = config::load(path, overrides, config::process_env())?;
        config.validate()?;
        Ok(config)
    }

    /// Checks what the types cannot say; nothing is opened.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] names the first key that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let ranges = [
            (
                "limits.max_message_bytes",
                limits.max_message_bytes as u64,
                65_536,
                16 << 20, // no plan is larger: wayside_proto::convert::Plan::MAX_BYTES
            ),
            (
                "limits.piece_bytes",
                limits.piece_bytes as u64,
                1_024,
                256 << 10,
            ),
            (
                "limits.max_partial_bytes",
                limits.max_partial_bytes as u64,
                65_536,
                1 << 30,
            ),
            ("limits.max_submits", limits.max_submits as u64, 1, 1_024),
            ("limits.max_jobs", limits.max_jobs as u64, 1, 1_024),
            (
                "limits.max_roadsides",
                limits.max_roadsides as u64,
                1,
                1_000_000,
            ),
            ("limits.keep_rounds", limits.keep_rounds, 64, 1_000_000),
        ];
        for (key, got, least, most) in ranges {
            if !(least..=most).contains(&got) {
                let message = format!("is {got}, expected {least} to {most}");
                return Err(ConfigError::out_of_range(key, &message));
            }
        }
        if self.state.dir.as_os_str().is_empty() {
            return Err(ConfigError::out_of_range(
                "state.dir",
                "is empty, expected a folder",
            ));
        }
        if self
            .storage
            .path
            .as_ref()
            .is_some_and(|path| path.as_os_str().is_empty())
        {
            return Err(ConfigError::out_of_range(
                "storage.path",
                "is empty, expected a folder",
            ));
        }
        Ok(())
    }

    /// The folder for model versions.
    pub fn versions_dir(&self) -> PathBuf {
        let default = || self.state.dir.join("versions");
        self.storage.path.clone().unwrap_or_else(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_holds_the_defaults() {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("cloud-coordinator.toml");
        let config: Config = config::load(Some(&sample), &[], std::iter::empty()).unwrap();
        assert_eq!(config, Config::default());
        config.validate().unwrap();
    }

    #[test]
    fn ranges_are_checked() {
        let check = |change: &str, expected: &str| {
            let config: Config =
                config::load(None, &[change.to_owned()], std::iter::empty()).unwrap();
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(
            "limits.piece_bytes=262145",
            "`limits.piece_bytes` is 262145, expected 1024 to 262144",
        );
        check("limits.keep_rounds=63", "`limits.keep_rounds` is 63");
        check(
            "limits.max_message_bytes=1",
            "`limits.max_message_bytes` is 1",
        );
        check("state.dir=''", "`state.dir` is empty");
        check("storage.path=''", "`storage.path` is empty");
    }
}
