//! Configuration: one TOML file a binary, then the environment, then `-c key=value`; later ones win.
//!
//! A mistake is refused before anything is opened, and told in one line: what, where, and what to do about it. Struct
//! keys and enum values may be written with `-` instead of `_`; the keys of maps are taken as they stand.
//! `#[serde(flatten)]` hides a struct's keys from these checks and must not be used in configuration structs.
//! Ranges are checked by the tiers, which answer with [`ConfigError::out_of_range`].

mod tree;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::Exit;
use crate::files;
use tree::{Fault, Node, Origin, What};

/// What the names of environment variables that set a key begin with.
pub const ENV_PREFIX: &str = "WAYSIDE__";

/// The largest configuration file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why a configuration was refused. Each displays as one line that holds what, where and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is absent or cannot be read.
    #[error("{}: {reason}: {remedy}", path.display())]
    Unreadable {
        /// The file that was asked for.
        path: PathBuf,
        /// What the system said.
        reason: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The file is not TOML.
    #[error("{place}: not valid TOML, {message}: correct the line")]
    Syntax {
        /// File and line.
        place: String,
        /// What the parser met.
        message: String,
    },
    /// A key that no setting has.
    #[error("{place}: unknown key `{key}`, {hint}")]
    UnknownKey {
        /// File and line, variable, or option.
        place: String,
        /// The whole key, dotted.
        key: String,
        /// The nearest known key, and what to do.
        hint: String,
    },
    /// A value of another type than the key takes, or a section where a value belongs.
    #[error("{place}: `{key}` {message}: change the value's type")]
    WrongType {
        /// File and line, variable, or option.
        place: String,
        /// The whole key, dotted.
        key: String,
        /// Got and expected.
        message: String,
    },
    /// One key given twice in one place.
    #[error("{place}: `{key}` is given twice, with `-` and with `_`: remove one")]
    Twice {
        /// File and line, variable, or option.
        place: String,
        /// The whole key, dotted.
        key: String,
    },
    /// A key without a default was not given.
    #[error("{place}: missing key `{key}`: {remedy}")]
    MissingKey {
        /// The file, or where one would have been.
        place: String,
        /// The whole key, dotted.
        key: String,
        /// Where it can be given.
        remedy: String,
    },
    /// A value of the right type that is not allowed.
    #[error("{place}: `{key}` {message}: choose an allowed value")]
    OutOfRange {
        /// File and line, variable, or option.
        place: String,
        /// The whole key, dotted.
        key: String,
        /// Got and expected.
        message: String,
    },
    /// A `-c` option or variable that is not `key=value`.
    #[error("{place}: no key to set: write key=value with a dotted key")]
    BadOverride {
        /// The option or variable.
        place: String,
    },
}

impl ConfigError {
    /// The refusal of a value that a tier's own check found wrong, for example
    /// `out_of_range("round.quorum", "is 7, expected at most the target 5")`.
    pub fn out_of_range(key: &str, message: &str) -> Self {
        Self::OutOfRange {
            place: "configuration".to_owned(),
            key: key.to_owned(),
            message: one_line(message),
        }
    }

    /// The code the process ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::Unreadable { .. } => Exit::ConfigUnreadable,
            Self::Syntax { .. }
            | Self::UnknownKey { .. }
            | Self::WrongType { .. }
            | Self::Twice { .. }
            | Self::MissingKey { .. } => Exit::ConfigInvalid,
            Self::OutOfRange { .. } => Exit::ConfigOutOfRange,
            Self::BadOverride { .. } => Exit::Usage,
        }
    }
}

/// Reads a configuration.
///
/// - `path`: the TOML file; `None` for none, so that defaults and overrides stand alone.
/// - `overrides`: `key=value` with a dotted key. The value is TOML; what is not TOML is a string, so quotes are needed
///   only to force one. A table replaces the whole section.
/// - `env`: the process environment ([`process_env`]); only names with [`ENV_PREFIX`] count, `WAYSIDE__ROUND__TARGET`
///   sets `round.target`, values as in `overrides`.
pub fn load<T: DeserializeOwned>(
    path: Option<&Path>,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    let mut root = path.map_or_else(|| Ok(Node::empty()), read_file)?;
    let mut variables: Vec<_> = env
        .filter(|(name, _)| name.starts_with(ENV_PREFIX))
        .collect();
    variables.sort();
    for (name, value) in variables {
        let key = name[ENV_PREFIX.len()..].to_lowercase();
        let segments: Vec<&str> = key.split("__").collect();
        set(
            &mut root,
            &segments,
            &value,
            Origin::Env(name.clone()),
            path,
        )?;
    }
    for text in overrides {
        let (key, value) = text.split_once('=').unwrap_or(("", ""));
        let named = if key.is_empty() { text } else { key };
        let segments: Vec<&str> = key.trim().split('.').map(str::trim).collect();
        set(
            &mut root,
            &segments,
            value,
            Origin::Override(named.to_owned()),
            path,
        )?;
    }
    T::deserialize(root).map_err(|fault| explain(fault, path))
}

/// Reads a document that is at hand as text, such as one that came over a wire, with the checks of [`load`]. `name`
/// stands for the file in messages.
pub fn parse<T: DeserializeOwned>(name: &Path, text: &str) -> Result<T, ConfigError> {
    T::deserialize(parse_text(name, text)?).map_err(|fault| explain(fault, Some(name)))
}

/// The process environment as [`load`] takes it. Names and values that are not UTF-8 are left out.
pub fn process_env() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Twelve hexadecimal digits that name a configuration as it took effect, defaults included; for the first log line.
pub fn digest<T: Serialize>(config: &T) -> String {
    // A configuration that JSON cannot hold (a map with odd keys) has no name; the log line says so.
    serde_json::to_vec(config).map_or_else(
        |_| "unknown".to_owned(),
        |bytes| blake3::hash(&bytes).to_hex()[..12].to_owned(),
    )
}

fn read_file(path: &Path) -> Result<Node, ConfigError> {
    let bytes =
        files::read_bounded(path, MAX_FILE_BYTES).map_err(|error| ConfigError::Unreadable {
            path: path.to_owned(),
            reason: one_line(&error.reason()),
            remedy: if error.kind() == io::ErrorKind::NotFound {
                "create the file, or name another with --config"
            } else {
                "make it a readable file of at most 1 MiB"
            },
        })?;
    let place = |line: usize| format!("{} line {line}", path.display());
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = 1 + line_ends(&error.as_bytes()[..good]);
        ConfigError::Syntax {
            place: place(line),
            message: "not UTF-8 text".to_owned(),
        }
    })?;
    parse_text(path, &text)
}

fn parse_text(name: &Path, text: &str) -> Result<Node, ConfigError> {
    Node::parse(text).map_err(|(line, message)| ConfigError::Syntax {
        place: format!("{} line {line}", name.display()),
        message: one_line(&message),
    })
}

/// Line ends in `bytes`.
fn line_ends(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |lines, &byte| lines + usize::from(byte == b'\n'))
}

fn set(
    root: &mut Node,
    segments: &[&str],
    value: &str,
    origin: Origin,
    path: Option<&Path>,
) -> Result<(), ConfigError> {
    if segments.iter().any(|segment| segment.is_empty()) {
        return Err(ConfigError::BadOverride {
            place: place(&origin, path),
        });
    }
    root.set(segments, Node::from_text(value, origin))
        .map_err(|fault| explain(fault, path))
}

/// Where a value came from, as a person would look for it.
fn place(origin: &Origin, path: Option<&Path>) -> String {
    let file = path.map_or_else(
        || "configuration".to_owned(),
        |path| path.display().to_string(),
    );
    one_line(&match origin {
        Origin::Top => file,
        Origin::File { line } => format!("{file} line {line}"),
        Origin::Env(name) => format!("environment variable {name}"),
        Origin::Override(key) => format!("option -c {key}"),
    })
}

fn explain(fault: Fault, path: Option<&Path>) -> ConfigError {
    let place = place(&fault.origin.unwrap_or(Origin::Top), path);
    let key = one_line(&tree::dotted(&fault.path));
    match fault.what {
        What::UnknownKey { known } => {
            let section = &fault.path[..fault.path.len().saturating_sub(1)];
            let last = fault.path.last().map_or("", String::as_str);
            let hint = nearest(last, &known).map_or_else(
                || "the section takes no keys: remove it".to_owned(),
                |name| {
                    let full: Vec<String> =
                        section.iter().cloned().chain([name.to_owned()]).collect();
                    format!(
                        "the nearest known key is `{}`: rename or remove it",
                        one_line(&tree::dotted(&full))
                    )
                },
            );
            ConfigError::UnknownKey { place, key, hint }
        }
        What::MissingKey => {
            // Elements of an array have no variable of their own.
            let in_array = fault.path.iter().any(|segment| segment.starts_with('['));
            let variable = format!("{ENV_PREFIX}{}", fault.path.join("__").to_uppercase());
            let remedy = if in_array {
                "add it".to_owned()
            } else {
                format!("add it, or set {}", one_line(&variable))
            };
            ConfigError::MissingKey { place, key, remedy }
        }
        What::WrongType(message) => ConfigError::WrongType {
            place,
            key,
            message: one_line(&message),
        },
        What::Twice => ConfigError::Twice { place, key },
        What::OutOfRange(message) => ConfigError::OutOfRange {
            place,
            key,
            message: one_line(&message),
        },
    }
}

/// The known key that differs least from `word`; the first of equals.
fn nearest<'a>(word: &str, known: &'a [String]) -> Option<&'a str> {
    let word = tree::snake(word);
    known
        .iter()
        .min_by_key(|name| edit_distance(&word, name))
        .map(String::as_str)
}

/// Characters to insert, delete or replace to turn `a` into `b` (Levenshtein), capped by looking at 64 characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// `text` without line ends and other control characters, shortened to what a terminal line bears.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 400;
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, Default, Deserialize, Serialize, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    struct Sample {
        name: String,
        mode: Mode,
        round: Round,
        peers: BTreeMap<String, u16>,
        links: Vec<Link>,
        seed: Option<u64>,
        address: Option<std::net::SocketAddr>,
        folder: Option<PathBuf>,
    }

    #[derive(Debug, Default, Deserialize, Serialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        #[default]
        Quiet,
        VeryLoud,
        Custom {
            level: u8,
        },
    }

    #[derive(Debug, Deserialize, Serialize, PartialEq)]
    #[serde(default)]
    struct Round {
        target: u32,
        timeout_ms: u64,
        rate: f64,
    }

    impl Default for Round {
        fn default() -> Self {
            Self {
                target: 5,
                timeout_ms: 30_000,
                rate: 0.5,
            }
        }
    }

    #[derive(Debug, Deserialize, Serialize, PartialEq)]
    struct Link {
        host: String,
        port: u16,
    }

    fn read(text: &str, overrides: &[&str], env: &[(&str, &str)]) -> Result<Sample, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.toml");
        std::fs::write(&path, text).unwrap();
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let env = env
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        load(Some(&path), &overrides, env)
    }

    /// The error of a configuration, less the folder.
    fn refuse(text: &str, overrides: &[&str], env: &[(&str, &str)], exit: Exit, line: &str) {
        let error = read(text, overrides, env).unwrap_err();
        let shown = error.to_string();
        assert!(!shown.contains('\n'), "{shown}");
        assert_eq!(
            shown
                .rsplit_once("w.toml")
                .map_or(shown.clone(), |(_, rest)| format!("w.toml{rest}")),
            line
        );
        assert_eq!(error.exit_code(), exit, "{line}");
    }

    #[test]
    fn later_sources_win() {
        let text = "name = 'a'\n[round]\ntarget = 1\nrate = 1\n";
        let env = [
            ("WAYSIDE__ROUND__TARGET", "2"),
            ("WAYSIDE__NAME", "b"),
            ("WAYSIDE_LOG", "x"),
            ("PATH", "y"),
        ];
        let sample = read(text, &["round.target=3", "seed=18446744073709551615"], &env).unwrap();
        assert_eq!(sample.name, "b");
        assert_eq!(
            sample.round,
            Round {
                target: 3,
                rate: 1.0,
                ..Round::default()
            }
        );
        assert_eq!(sample.seed, Some(u64::MAX));
    }

    #[test]
    fn no_file_means_defaults() {
        let sample: Sample = load(None, &[], std::iter::empty()).unwrap();
        assert_eq!(sample, Sample::default());
    }

    #[test]
    fn kebab_case_is_snake_case_for_keys_and_variants_but_not_in_maps() {
        let text = "mode = 'very-loud'\n[round]\ntimeout-ms = 1\n[peers]\ncar-1 = 2\ncar_2 = 3\n";
        let sample = read(text, &["round.timeout_ms=7"], &[]).unwrap();
        assert_eq!(sample.mode, Mode::VeryLoud);
        assert_eq!(sample.round.timeout_ms, 7);
        assert_eq!(sample.peers.keys().collect::<Vec<_>>(), ["car-1", "car_2"]);
    }

    #[test]
    fn bare_words_and_toml_values() {
        let overrides = [
            "name=17",
            "address=127.0.0.1:1883",
            "folder=/var/lib/wayside",
            "links=[{host='h', port=1}]",
            "mode={custom={level=3}}",
        ];
        let sample = read("", &overrides, &[]).unwrap();
        assert_eq!(sample.name, "17");
        assert_eq!(sample.address, Some("127.0.0.1:1883".parse().unwrap()));
        assert_eq!(sample.folder, Some(PathBuf::from("/var/lib/wayside")));
        assert_eq!(
            sample.links,
            [Link {
                host: "h".into(),
                port: 1
            }]
        );
        assert_eq!(sample.mode, Mode::Custom { level: 3 });
        assert_eq!(
            read("", &["name=\"quoted = word\""], &[]).unwrap().name,
            "quoted = word"
        );
        assert_eq!(read("name = 'x'", &["name="], &[]).unwrap().name, "");
    }

    #[test]
    fn mistakes_in_keys() {
        use Exit::ConfigInvalid as Invalid;
        refuse(
            "[round]\n\ntargte = 3\n",
            &[],
            &[],
            Invalid,
            "w.toml line 3: unknown key `round.targte`, the nearest known key is `round.target`: rename or remove it",
        );
        refuse(
            "",
            &["rnd.target=3"],
            &[],
            Invalid,
            "option -c rnd.target: unknown key `rnd`, the nearest known key is `round`: rename or remove it",
        );
        refuse(
            "",
            &[],
            &[("WAYSIDE__ROUND__RAT", "1")],
            Invalid,
            "environment variable WAYSIDE__ROUND__RAT: unknown key `round.rat`, the nearest known key is \
             `round.rate`: rename or remove it",
        );
        refuse(
            "[[links]]\nhost = 'a'\nport = 1\n[[links]]\nhost = 'b'\nprot = 1\n",
            &[],
            &[],
            Invalid,
            "w.toml line 6: unknown key `links[1].prot`, the nearest known key is `links[1].port`: rename or remove it",
        );
        refuse(
            "[round]\ntimeout-ms = 1\ntimeout_ms = 1\n",
            &[],
            &[],
            Invalid,
            "w.toml line 3: `round.timeout_ms` is given twice, with `-` and with `_`: remove one",
        );
        refuse(
            "[[links]]\nhost = 'a'\n",
            &[],
            &[],
            Invalid,
            "w.toml line 1: missing key `links[0].port`: add it",
        );
    }

    #[test]
    fn mistakes_in_values() {
        use Exit::{ConfigInvalid as Invalid, ConfigOutOfRange as Range};
        refuse(
            "[round]\ntarget = 'many'\n",
            &[],
            &[],
            Invalid,
            "w.toml line 2: `round.target` is a string, expected u32: change the value's type",
        );
        refuse(
            "round = 3\n",
            &[],
            &[],
            Invalid,
            "w.toml line 1: `round` is an integer, expected a section: change the value's type",
        );
        refuse(
            "round = 3\n",
            &["round.target=1"],
            &[],
            Invalid,
            "option -c round.target: `round` is a value, expected a section: change the value's type",
        );
        refuse(
            "[round]\ntarget = -1\n",
            &[],
            &[],
            Range,
            "w.toml line 2: `round.target` is integer `-1`, expected u32: choose an allowed value",
        );
        refuse(
            "mode = 'loud'\n",
            &[],
            &[],
            Range,
            "w.toml line 1: `mode` is `loud`, expected one of quiet, very_loud, custom: choose an allowed value",
        );
        refuse(
            "",
            &["address=here"],
            &[],
            Range,
            "option -c address: `address` invalid socket address syntax: choose an allowed value",
        );
        refuse(
            "a = = 1\n",
            &[],
            &[],
            Invalid,
            "w.toml line 1: not valid TOML, extra `=`, expected nothing: correct the line",
        );
        refuse(
            "",
            &["target"],
            &[],
            Exit::Usage,
            "option -c target: no key to set: write key=value with a dotted key",
        );
        refuse(
            "",
            &["a..b=1"],
            &[],
            Exit::Usage,
            "option -c a..b: no key to set: write key=value with a dotted key",
        );
    }

    #[test]
    fn unreadable_files() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent.toml");
        for (path, part) in [
            (absent.as_path(), "create the file"),
            (folder.path(), "make it a readable file"),
        ] {
            let error = load::<Sample>(Some(path), &[], std::iter::empty()).unwrap_err();
            let shown = error.to_string();
            assert!(
                shown.starts_with(&path.display().to_string()) && shown.contains(part),
                "{shown}"
            );
            assert_eq!(error.exit_code(), Exit::ConfigUnreadable);
        }
        let binary = folder.path().join("binary.toml");
        std::fs::write(&binary, b"name = 'a'\n\xff").unwrap();
        let error = load::<Sample>(Some(&binary), &[], std::iter::empty()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("line 2: not valid TOML, not UTF-8 text"),
            "{error}"
        );
    }

    #[test]
    fn a_tiers_own_check_is_one_line_too() {
        let error = ConfigError::out_of_range("round.quorum", "is 7,\nexpected at most 5");
        assert_eq!(
            error.to_string(),
            "configuration: `round.quorum` is 7, expected at most 5: choose an allowed value"
        );
    }

    #[test]
    fn the_digest_follows_what_took_effect() {
        let plain = digest(&Sample::default());
        assert_eq!(plain.len(), 12);
        assert_eq!(
            digest(&read("[round]\ntarget = 5\n", &[], &[]).unwrap()),
            plain
        );
        assert_ne!(
            digest(&read("[round]\ntarget = 6\n", &[], &[]).unwrap()),
            plain
        );
    }
}
