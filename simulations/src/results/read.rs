//! Records of earlier runs, read back.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::record::{FORMAT, RunRecord};

/// Name of the file that holds a record.
pub const RECORD_FILE: &str = "record.json";

/// The largest record that is written and read, in bytes.
pub const MAX_RECORD_BYTES: u64 = 256 << 20;

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A folder without any record.
    #[error("no {RECORD_FILE} in {} or in its folders seed-*", .path.display())]
    NoRecord {
        /// The folder.
        path: PathBuf,
    },
    /// A folder of several runs, where one was wanted.
    #[error("{} holds {got} runs, expected one; name one of its folders seed-*", .path.display())]
    Several {
        /// The folder.
        path: PathBuf,
        /// Runs in it.
        got: usize,
    },
    /// A file that is too large.
    #[error("{} has more than {MAX_RECORD_BYTES} bytes, which no record has", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file that is not a record.
    #[error("{} is not the record of a run", .path.display())]
    NotARecord {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A record of another version of this program.
    #[error("{} has format {got}, this build reads {FORMAT}", .path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// What it says.
        got: u32,
    },
    /// A file or folder could not be read.
    #[error("cannot read {}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Reads the record of one run: from a file, or from a folder that [`write`](super::write::write) made of one run.
///
/// # Errors
/// [`ReadError`]; a folder of several runs is one, too.
pub fn read(path: &Path) -> Result<RunRecord, ReadError> {
    let files = record_files(path)?;
    match files.as_slice() {
        [file] => read_file(file),
        files => Err(ReadError::Several {
            path: path.to_owned(),
            got: files.len(),
        }),
    }
}

/// Reads all runs of a folder that [`write`](super::write::write) made, in the order of their seeds; a file is one run.
///
/// # Errors
/// [`ReadError`] of the first that cannot be read.
pub fn read_all(path: &Path) -> Result<Vec<RunRecord>, ReadError> {
    let files = record_files(path)?;
    let mut runs = files
        .iter()
        .map(|file| read_file(file))
        .collect::<Result<Vec<_>, _>>()?;
    runs.sort_by_key(|run| run.seed);
    Ok(runs)
}

/// The files of records that `path` stands for; never none.
fn record_files(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let file = path.join(RECORD_FILE);
    if file.is_file() {
        return Ok(vec![file]);
    }
    let io = |source| ReadError::Io {
        path: path.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let file = entry.path().join(RECORD_FILE);
        if entry.file_name().to_string_lossy().starts_with("seed-") && file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(ReadError::NoRecord {
            path: path.to_owned(),
        });
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> Result<RunRecord, ReadError> {
    /// What stands in records of every format.
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }

    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|source| ReadError::Io {
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        return Err(ReadError::TooLarge {
            path: path.to_owned(),
        });
    }
    let not_a_record = |source| ReadError::NotARecord {
        path: path.to_owned(),
        source,
    };
    let head: Head = serde_json::from_slice(&bytes).map_err(not_a_record)?;
    if head.format != FORMAT {
        return Err(ReadError::UnknownFormat {
            path: path.to_owned(),
            got: head.format,
        });
    }
    serde_json::from_slice(&bytes).map_err(not_a_record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_file_and_reason() {
        let folder = tempfile::tempdir().unwrap();
        let check = |text: &str, part: &str| {
            let file = folder.path().join(RECORD_FILE);
            fs::write(&file, text).unwrap();
            let error = read(folder.path()).unwrap_err().to_string();
            assert!(error.contains(part), "{part} is not in: {error}");
            assert!(error.contains(RECORD_FILE), "{error}");
        };
        check("{", "is not the record of a run");
        check("{\"format\": 1}", "is not the record of a run");
        check(
            "{\"format\": 2, \"new\": []}",
            "has format 2, this build reads 1",
        );
        fs::remove_file(folder.path().join(RECORD_FILE)).unwrap();
        let missing = read(folder.path());
        assert!(matches!(missing, Err(ReadError::NoRecord { .. })));
        let missing = read(&folder.path().join("nothing"));
        assert!(matches!(missing, Err(ReadError::Io { .. })));
        let file = File::create(folder.path().join(RECORD_FILE)).unwrap();
        file.set_len(MAX_RECORD_BYTES + 1).unwrap(); // a hole, which takes no space
        assert!(matches!(
            read(folder.path()),
            Err(ReadError::TooLarge { .. })
        ));
    }
}
