//! Log lines on standard error, as text or JSON.
//!
//! The level comes from `WAYSIDE_LOG`, else from the configuration; both take a level (`debug`) or a list of
//! `target=level` (`info,edge_client=trace`). Crates that chatter are held at warn or error unless named there.

use std::io;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::exit::Exit;

/// The environment variable that overrides the configured level.
pub const LEVEL_VARIABLE: &str = "WAYSIDE_LOG";

/// What the crates below us may say, and the level of everything else; what the user names overrides each.
const DEFAULTS: &str = "info,rmqtt=warn,rmqtt_net=warn,rmqtt_codec=warn,rmqtt_retainer=warn,rumqttc=warn,h2=warn,\
                        hyper=warn,tower=warn,tonic=warn,object_store=warn,sled=error";

/// The `[log]` section of each tier.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// A level (error, warn, info, debug, trace), or a list of `target=level`. Default `info`.
    pub level: String,
    /// How lines look. Default `text`.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Text,
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Time, level, target, message, then `name=value`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level is not one.
    #[error(
        "{place}: `{got}` is no log level ({reason}): write error, warn, info, debug, trace or target=level"
    )]
    Level {
        /// `WAYSIDE_LOG` or `log.level`.
        place: &'static str,
        /// What was given.
        got: String,
        /// What the parser said.
        reason: String,
    },
    /// Something in this process logs already.
    #[error("logging was already started in this process")]
    AlreadyStarted,
}

impl TelemetryError {
    /// The code the process ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::Level { .. } => Exit::ConfigOutOfRange,
            Self::AlreadyStarted => Exit::Failed,
        }
    }
}

/// Starts logging and writes the first line: which tier, its version, and the digest of its configuration
/// ([`digest`](crate::config::digest)).
///
/// Call once a process, after the configuration is loaded and before anything is opened.
pub fn start(
    config: &LogConfig,
    tier: &str,
    version: &str,
    config_digest: &str,
) -> Result<(), TelemetryError> {
    let variable = std::env::var(LEVEL_VARIABLE).ok();
    let filter = filter(config, variable.as_deref())?;
    // Nothing may be reported about a log that cannot be written: a closed standard error must not end the process.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .log_internal_errors(false);
    match config.format {
        LogFormat::Text => builder.finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    }
    .map_err(|_| TelemetryError::AlreadyStarted)?;
    tracing::info!(tier, version, config = config_digest, "started");
    Ok(())
}

fn filter(config: &LogConfig, variable: Option<&str>) -> Result<EnvFilter, TelemetryError> {
    let (place, wanted) = match variable.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => (LEVEL_VARIABLE, text),
        None => ("log.level", config.level.trim()),
    };
    let refuse = |reason: String| TelemetryError::Level {
        place,
        got: wanted.escape_debug().to_string(),
        reason,
    };
    // A misspelt level parses as the name of a target, which would silently log everything from nowhere.
    for part in wanted
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let is_level = part.parse::<tracing::level_filters::LevelFilter>().is_ok();
        if !is_level && !part.contains(['=', '[']) {
            return Err(refuse(format!("`{}` names no level", part.escape_debug())));
        }
    }
    EnvFilter::try_new(format!("{DEFAULTS},{wanted}")).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(level: &str, variable: Option<&str>) -> Result<Vec<String>, TelemetryError> {
        let config = LogConfig {
            level: level.to_owned(),
            ..LogConfig::default()
        };
        let filter = filter(&config, variable)?;
        Ok(filter.to_string().split(',').map(str::to_owned).collect())
    }

    #[test]
    fn noisy_crates_are_quiet_unless_named() {
        let plain = check("debug", None).unwrap();
        for part in ["debug", "rmqtt=warn", "sled=error"] {
            assert!(plain.iter().any(|p| p == part), "{part} not in {plain:?}");
        }
        assert!(!plain.iter().any(|p| p == "info"));
        let named = check("info", Some("rmqtt=trace")).unwrap();
        assert!(
            named.iter().any(|p| p == "rmqtt=trace") && named.iter().any(|p| p == "info"),
            "{named:?}"
        );
        assert!(!named.iter().any(|p| p == "rmqtt=warn"));
    }

    #[test]
    fn the_variable_wins_unless_empty() {
        assert!(
            check("warn", Some("trace"))
                .unwrap()
                .iter()
                .any(|p| p == "trace")
        );
        assert!(
            check("warn", Some(" "))
                .unwrap()
                .iter()
                .any(|p| p == "warn")
        );
    }

    #[test]
    fn a_wrong_level_is_named_with_its_place() {
        let error = check("chatty", None).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("log.level: `chatty` is no log level"),
            "{error}"
        );
        let error = check("info", Some("edge_client=loud")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("WAYSIDE_LOG: `edge_client=loud`"),
            "{error}"
        );
        assert!(!error.to_string().contains('\n'));
        assert_eq!(error.exit_code(), Exit::ConfigOutOfRange);
    }

    #[test]
    fn starts_once_a_process() {
        for format in [LogFormat::Json, LogFormat::Text] {
            let config = LogConfig {
                format,
                ..LogConfig::default()
            };
            let result = start(&config, "test", "0.0.0", "abc");
            assert_eq!(result.is_ok(), format == LogFormat::Json);
        }
    }
}
