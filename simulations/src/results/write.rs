//! The files of a run, each written whole or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::read::{MAX_RECORD_BYTES, RECORD_FILE};
use super::record::RunRecord;
use super::{compare, csv, page, summary, tensorboard};

/// Name of the page.
pub const PAGE_FILE: &str = "report.html";

/// Why results could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is nothing to write.
    #[error("no runs to write")]
    Nothing,
    /// Each seed has a folder of its own.
    #[error(
        "seed {seed} occurs twice, but each seed has one folder; write the runs to different folders"
    )]
    SameSeed {
        /// The seed.
        seed: u64,
    },
    /// A record that would not be read back.
    #[error("the record of {name}, seed {seed}, would not be read back; is a figure not finite?")]
    Unreadable {
        /// Of which run.
        name: String,
        /// Of which seed.
        seed: u64,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A record that is too large.
    #[error(
        "the record of {name}, seed {seed}, has {got} bytes, the limit is {MAX_RECORD_BYTES}; record fewer rounds"
    )]
    TooLarge {
        /// Of which run.
        name: String,
        /// Of which seed.
        seed: u64,
        /// Its bytes.
        got: u64,
    },
    /// A file or folder could not be made.
    #[error("cannot write {}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Writes all files of the runs of one scenario into `folder`, which is made if need be, and returns their paths.
///
/// One run: record, tables, event file, summary and page lie in `folder`. Several: each has a folder `seed-N` in it,
/// and `folder` holds a page and a table of all of them. Files that are there already are replaced, each at one stroke.
///
/// # Errors
/// [`WriteError`]; files that were finished before stay.
pub fn write(folder: &Path, runs: &[RunRecord]) -> Result<Vec<PathBuf>, WriteError> {
    if runs.is_empty() {
        return Err(WriteError::Nothing);
    }
    let mut seeds = BTreeSet::new();
    if let Some(twice) = runs.iter().find(|run| !seeds.insert(run.seed)) {
        return Err(WriteError::SameSeed { seed: twice.seed });
    }
    let mut paths = Vec::new();
    if let [run] = runs {
        write_run(folder, run, &mut paths)?;
    } else {
        for run in runs {
            write_run(&folder.join(format!("seed-{}", run.seed)), run, &mut paths)?;
        }
        for (name, text) in [
            ("compare.txt", compare::table(runs)),
            ("compare.json", compare::json(runs)),
            (PAGE_FILE, page::html(runs)),
        ] {
            paths.push(replace(folder, name, text.as_bytes())?);
        }
    }
    Ok(paths)
}

fn write_run(folder: &Path, run: &RunRecord, paths: &mut Vec<PathBuf>) -> Result<(), WriteError> {
    fs::create_dir_all(folder).map_err(|source| WriteError::Io {
        path: folder.to_owned(),
        source,
    })?;
    for (name, bytes) in [
        (RECORD_FILE, record_bytes(run)?),
        ("curve.csv", csv::curve(run).into_bytes()),
        ("rounds.csv", csv::rounds(run).into_bytes()),
        ("summary.txt", summary::text(run).into_bytes()),
        (tensorboard::FILE_NAME, tensorboard::events(run)),
        (
            PAGE_FILE,
            page::html(std::slice::from_ref(run)).into_bytes(),
        ),
    ] {
        paths.push(replace(folder, name, &bytes)?);
    }
    Ok(())
}

/// A record as JSON, once it is sure that it can be read back.
fn record_bytes(run: &RunRecord) -> Result<Vec<u8>, WriteError> {
    let unreadable = |source| WriteError::Unreadable {
        name: run.name.clone(),
        seed: run.seed,
        source,
    };
    let bytes = serde_json::to_vec(run).map_err(unreadable)?;
    let got = bytes.len() as u64;
    if got > MAX_RECORD_BYTES {
        return Err(WriteError::TooLarge {
            name: run.name.clone(),
            seed: run.seed,
            got,
        });
    }
    // A figure that is not finite becomes `null`, which only reading shows.
    serde_json::from_slice::<RunRecord>(&bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Writes under another name first: whoever reads sees the file before or the file after.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, WriteError> {
    let path = folder.join(name);
    let temporary = folder.join(format!(".{name}.new"));
    fs::write(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, &path))
        .map_err(|source| WriteError::Io {
            path: path.clone(),
            source,
        })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::super::read::{ReadError, read, read_all};
    use super::super::sample::record;
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn one_run_lies_in_the_folder_itself() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new").join("run");
        let paths = write(&folder, &[record(3)]).unwrap();
        assert_eq!(
            names(&folder),
            [
                "curve.csv",
                tensorboard::FILE_NAME,
                "record.json",
                "report.html",
                "rounds.csv",
                "summary.txt"
            ]
        );
        assert_eq!(paths.len(), 6);
        assert_eq!(read(&folder).unwrap(), record(3));
        assert_eq!(read(&folder.join(RECORD_FILE)).unwrap(), record(3));
        let before: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        write(&folder, &[record(3)]).unwrap();
        let after: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(before == after, "equal records give equal files");
    }

    #[test]
    fn several_seeds_have_a_folder_each() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, &[record(10), record(2)]).unwrap();
        assert_eq!(
            names(folder),
            [
                "compare.json",
                "compare.txt",
                "report.html",
                "seed-10",
                "seed-2"
            ]
        );
        assert_eq!(read_all(folder).unwrap(), [record(2), record(10)]);
        assert_eq!(read(&folder.join("seed-2")).unwrap(), record(2));
        assert!(matches!(
            read(folder),
            Err(ReadError::Several { got: 2, .. })
        ));
        let twice = write(folder, &[record(2), record(2)]);
        assert!(matches!(twice, Err(WriteError::SameSeed { seed: 2 })));
        assert!(matches!(write(folder, &[]), Err(WriteError::Nothing)));
    }

    #[test]
    fn what_cannot_be_read_back_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = record(1);
        run.summary.energy_j = f64::NAN;
        let error = write(folder.path(), &[run]).unwrap_err();
        assert!(matches!(error, WriteError::Unreadable { .. }), "{error}");
        assert_eq!(names(folder.path()), [""; 0]);
    }
}
