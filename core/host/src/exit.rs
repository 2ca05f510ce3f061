//! Exit codes, and how a failed command says why: one line for people, one JSON object for scripts.
//!
//! This is the only place that writes results to standard output; logs go to standard error.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::str::FromStr;

/// How a process ended. The numbers are an interface: they are never reused for another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Exit {
    /// 0: done.
    Ok = 0,
    /// 1: the command ran and its answer is no, or something failed that has no code of its own.
    Failed = 1,
    /// 2: the command line is wrong.
    Usage = 2,
    /// 10: a configuration file is missing or cannot be read.
    ConfigUnreadable = 10,
    /// 11: a configuration holds an unknown key, a missing key, a value of the wrong type, or is not TOML.
    ConfigInvalid = 11,
    /// 12: a configured value is not allowed.
    ConfigOutOfRange = 12,
    /// 20: the address to listen on is in use or cannot be bound.
    AddressInUse = 20,
    /// 21: the peer cannot be reached.
    Unreachable = 21,
    /// 22: the peer answered and refused.
    Refused = 22,
    /// 30: the state folder cannot be made or written.
    StateNotWritable = 30,
    /// 31: the state folder belongs to something else or to another version.
    StateForeign = 31,
    /// 32: another process holds the state folder.
    StateLocked = 32,
    /// 33: the state is damaged and cannot be refilled.
    StateDamaged = 33,
    /// 40: pretrained weights are missing or do not fit.
    Weights = 40,
    /// 41: pictures are missing or cannot be decoded.
    Pictures = 41,
    /// 42: the job is unknown or not valid.
    Job = 42,
    /// 43: the model version is unknown or does not fit.
    ModelVersion = 43,
    /// 44: a quantized network is too far from the one it was made of.
    Accuracy = 44,
}

impl Exit {
    /// Every code, in order, as the documentation lists them.
    pub const ALL: [Self; 18] = [
        Self::Ok,
        Self::Failed,
        Self::Usage,
        Self::ConfigUnreadable,
        Self::ConfigInvalid,
        Self::ConfigOutOfRange,
        Self::AddressInUse,
        Self::Unreachable,
        Self::Refused,
        Self::StateNotWritable,
        Self::StateForeign,
        Self::StateLocked,
        Self::StateDamaged,
        Self::Weights,
        Self::Pictures,
        Self::Job,
        Self::ModelVersion,
        Self::Accuracy,
    ];

    /// The number the process ends with.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// What the code means, in a few words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done",
            Self::Failed => "failed",
            Self::Usage => "wrong command line",
            Self::ConfigUnreadable => "configuration file missing or unreadable",
            Self::ConfigInvalid => {
                "configuration key unknown or missing, or value of the wrong type"
            }
            Self::ConfigOutOfRange => "configured value not allowed",
            Self::AddressInUse => "address to listen on in use",
            Self::Unreachable => "peer cannot be reached",
            Self::Refused => "refused by the peer",
            Self::StateNotWritable => "state folder cannot be written",
            Self::StateForeign => "state folder belongs to something else or another version",
            Self::StateLocked => "state folder locked by another process",
            Self::StateDamaged => "state damaged",
            Self::Weights => "weights missing or unfit",
            Self::Pictures => "pictures missing or undecodable",
            Self::Job => "job unknown or not valid",
            Self::ModelVersion => "model version unknown or unfit",
            Self::Accuracy => "quantized network too far from the original",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// How a command prints its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object, and nothing else, on standard output.
    Json,
}

/// A `--format` that is neither `text` nor `json`.
#[derive(Debug, thiserror::Error)]
#[error("unknown format `{0}`, expected text or json")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Self, UnknownFormat> {
        match word {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// An error that knows its exit code; what a tier's `run` returns to its `main`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The code to end with.
    pub exit: Exit,
    /// What, where, and what to do about it, in one line.
    pub message: String,
}

impl Failure {
    /// A failure with a code and a line.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self {
            exit,
            message: message.to_string(),
        }
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

impl From<crate::state_dir::StateDirError> for Failure {
    fn from(error: crate::state_dir::StateDirError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

impl From<crate::telemetry::TelemetryError> for Failure {
    fn from(error: crate::telemetry::TelemetryError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

/// Tells why the command failed, on standard error as text or on standard output as JSON, and gives the code to return
/// from `main`.
pub fn fail(format: Format, exit: Exit, message: impl fmt::Display) -> ExitCode {
    let line = failure_line(format, exit, &message.to_string());
    // Nobody is left to tell when the stream itself is closed; the code still says it.
    let _ = match format {
        Format::Text => writeln!(io::stderr().lock(), "{line}"),
        Format::Json => writeln!(io::stdout().lock(), "{line}"),
    };
    exit.into()
}

/// [`fail`] for a [`Failure`].
pub fn fail_with(format: Format, failure: &Failure) -> ExitCode {
    fail(format, failure.exit, failure)
}

/// Writes one line to standard output. A reader that went away (`| head`) is not an error.
pub fn print_line(line: impl fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn failure_line(format: Format, exit: Exit, message: &str) -> String {
    let message = message
        .split(['\n', '\r'])
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    match format {
        Format::Text => format!("error: {message}"),
        Format::Json => {
            serde_json::json!({ "success": false, "error": { "code": exit.code(), "message": message } }).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_their_ranges() {
        assert!(
            Exit::ALL
                .windows(2)
                .all(|pair| pair[0].code() < pair[1].code())
        );
        assert_eq!(
            Exit::ALL.map(Exit::code),
            [
                0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 33, 40, 41, 42, 43, 44
            ]
        );
        assert!(Exit::ALL.iter().all(|exit| !exit.meaning().is_empty()));
    }

    #[test]
    fn a_failure_is_one_line_in_both_formats() {
        let message = "w.toml line 3: \"x\"\n  remedy\n";
        assert_eq!(
            failure_line(Format::Text, Exit::ConfigInvalid, message),
            "error: w.toml line 3: \"x\"; remedy"
        );
        let json: serde_json::Value =
            serde_json::from_str(&failure_line(Format::Json, Exit::ConfigInvalid, message))
                .unwrap();
        assert_eq!(json["success"], false);
        assert_eq!(json["error"]["code"], 11);
        assert_eq!(json["error"]["message"], "w.toml line 3: \"x\"; remedy");
    }

    #[test]
    fn formats_read_back() {
        for format in [Format::Text, Format::Json] {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
        }
        assert_eq!(
            "yaml".parse::<Format>().unwrap_err().to_string(),
            "unknown format `yaml`, expected text or json"
        );
    }
}
