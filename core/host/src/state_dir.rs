//! The folder in which one process of one tier keeps its state.
//!
//! A folder is ours when it holds [`MAGIC_FILE`] with the tier and the format version. Anything else that is not empty
//! is refused before a byte is written, so that a mistyped path does no harm. A lock keeps a second process out; the
//! system lets go of it however the first one ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use crate::exit::Exit;
use crate::files;

/// Says whose folder it is.
pub const MAGIC_FILE: &str = "wayside-state";
/// Held while a process uses the folder; holds its process id as a hint for people.
pub const LOCK_FILE: &str = "wayside-lock";
/// Version of the layout of a state folder, which this build makes and the only one it opens.
pub const FORMAT_VERSION: u32 = 1;

/// A state folder that this process holds; dropping it lets go.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

/// Why a state folder could not be opened. Each displays as one line with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// It cannot be made, listed or written.
    #[error("state folder {}: cannot be written, {source}: fix its owner and permissions, or name another folder", path.display())]
    NotWritable {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It holds files and was not made by Wayside.
    #[error("state folder {}: holds other files, such as {example}: name an empty or new folder", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// One of the files.
        example: String,
    },
    /// It belongs to another tier.
    #[error("state folder {}: belongs to tier {got}, not {expected}: name a folder of its own for each process", path.display())]
    OtherTier {
        /// The folder.
        path: PathBuf,
        /// The tier that made it.
        got: String,
        /// The tier that asked.
        expected: String,
    },
    /// It was made by another version of the software.
    #[error("state folder {}: format version {got}, this build uses {FORMAT_VERSION}: run the build that made it, or name a new folder", path.display())]
    OtherVersion {
        /// The folder.
        path: PathBuf,
        /// The version found.
        got: u32,
    },
    /// Another process uses it.
    #[error("state folder {}: locked by another process{holder}: stop that one, or name another folder", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// ` (pid N)` if known.
        holder: String,
    },
    /// Its magic file is damaged, so nobody knows whose it is.
    #[error("state folder {}: damaged, {MAGIC_FILE} does not name a tier: restore it or move the folder aside", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
    },
}

impl StateDirError {
    /// The code the process ends with.
    pub fn exit_code(&self) -> Exit {
        match self {
            Self::NotWritable { .. } => Exit::StateNotWritable,
            Self::Foreign { .. } | Self::OtherTier { .. } | Self::OtherVersion { .. } => {
                Exit::StateForeign
            }
            Self::Locked { .. } => Exit::StateLocked,
            Self::Damaged { .. } => Exit::StateDamaged,
        }
    }
}

impl StateDir {
    /// Opens the state folder of `tier` (one word, such as `edge-client`), making it if it is absent or empty.
    ///
    /// Checks in this order: whose folder it is, without writing; that no other process holds it; that it can be
    /// written. Then removes what a crash left of half-written files at its top.
    pub fn open(path: &Path, tier: &str) -> Result<Self, StateDirError> {
        let failed = |source| StateDirError::NotWritable {
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(failed)?;
        let known = check_owner(path, tier)?;
        let lock = lock(path)?;
        // Asked again under the lock: another process may have made the folder its own in between.
        if !known && !check_owner(path, tier)? {
            write(
                path,
                MAGIC_FILE,
                magic_line(tier, FORMAT_VERSION).as_bytes(),
            )?;
        }
        files::remove_leftovers(path).map_err(|error| failed(into_io(error)))?;
        probe(path)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn magic_line(tier: &str, version: u32) -> String {
    format!("wayside-state version={version} tier={tier}\n")
}

/// Whether the folder is already `tier`'s (`false`: empty, or nothing but what a crash at the first start left).
fn check_owner(path: &Path, tier: &str) -> Result<bool, StateDirError> {
    let failed = |source| StateDirError::NotWritable {
        path: path.to_owned(),
        source,
    };
    let damaged = || StateDirError::Damaged {
        path: path.to_owned(),
    };
    let text = match files::read_bounded(&path.join(MAGIC_FILE), 1_024) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| damaged())?,
        Err(files::FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            for entry in fs::read_dir(path).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name();
                // `lost+found` stands at the top of every fresh disk.
                if name != "lost+found" && name != LOCK_FILE && !files::is_temporary(&name) {
                    let example = name.to_string_lossy().escape_debug().to_string();
                    return Err(StateDirError::Foreign {
                        path: path.to_owned(),
                        example,
                    });
                }
            }
            return Ok(false);
        }
        Err(files::FileError::Io { source, .. }) => return Err(failed(source)),
        Err(_) => return Err(damaged()),
    };
    let fields = text
        .strip_prefix("wayside-state version=")
        .and_then(|rest| rest.trim_end().split_once(" tier="));
    let (version, got) = fields.ok_or_else(damaged)?;
    let version: u32 = version.parse().map_err(|_| damaged())?;
    if version != FORMAT_VERSION {
        return Err(StateDirError::OtherVersion {
            path: path.to_owned(),
            got: version,
        });
    }
    if got != tier {
        let got = got.escape_debug().to_string();
        return Err(StateDirError::OtherTier {
            path: path.to_owned(),
            got,
            expected: tier.to_owned(),
        });
    }
    Ok(true)
}

fn lock(path: &Path) -> Result<File, StateDirError> {
    let failed = |source| StateDirError::NotWritable {
        path: path.to_owned(),
        source,
    };
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .to_owned();
    let mut file = options.open(path.join(LOCK_FILE)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = (&mut file).take(32).read_to_string(&mut text);
            let holder = text
                .trim()
                .parse::<u32>()
                .map_or_else(|_| String::new(), |pid| format!(" (pid {pid})"));
            return Err(StateDirError::Locked {
                path: path.to_owned(),
                holder,
            });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}

/// Writes and removes a file: permissions alone do not tell of a full or read-only disk.
fn probe(path: &Path) -> Result<(), StateDirError> {
    let name = format!("probe{}", files::TEMPORARY);
    write(path, &name, b"probe")?;
    fs::remove_file(path.join(name)).map_err(|source| StateDirError::NotWritable {
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, name: &str, bytes: &[u8]) -> Result<(), StateDirError> {
    files::write_atomic(&path.join(name), bytes).map_err(|error| StateDirError::NotWritable {
        path: path.to_owned(),
        source: into_io(error),
    })
}

fn into_io(error: files::FileError) -> io::Error {
    match error {
        files::FileError::Io { source, .. } => source,
        other => io::Error::new(other.kind(), other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIER: &str = "edge-client";

    fn refuse(path: &Path, exit: Exit, part: &str) {
        let error = StateDir::open(path, TIER).unwrap_err();
        let line = error.to_string();
        assert!(
            line.contains(part) && line.contains(&path.display().to_string()),
            "{line}"
        );
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(error.exit_code(), exit, "{line}");
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn is_made_and_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/state");
        assert_eq!(StateDir::open(&path, TIER).unwrap().path(), path);
        fs::write(path.join("data"), "x").unwrap();
        fs::write(path.join(".data.1-0.wayside-tmp"), "half").unwrap();
        let _held = StateDir::open(&path, TIER).unwrap();
        assert_eq!(names(&path), ["data", LOCK_FILE, MAGIC_FILE]);
        assert_eq!(
            fs::read_to_string(path.join(MAGIC_FILE)).unwrap(),
            "wayside-state version=1 tier=edge-client\n"
        );
    }

    #[test]
    fn a_crash_at_the_first_start_leaves_a_usable_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(LOCK_FILE), "99999\n").unwrap();
        fs::write(folder.path().join(".wayside-state.9-0.wayside-tmp"), "").unwrap();
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        StateDir::open(folder.path(), TIER).unwrap();
        assert_eq!(names(folder.path()), ["lost+found", LOCK_FILE, MAGIC_FILE]);
    }

    #[test]
    fn a_folder_of_something_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "x").unwrap();
        refuse(folder.path(), Exit::StateForeign, "such as thesis.tex");
        assert_eq!(names(folder.path()), ["thesis.tex"]);
    }

    #[test]
    fn another_tier_or_version_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let magic = folder.path().join(MAGIC_FILE);
        for (content, exit, part) in [
            (
                magic_line("cloud-coordinator", 1),
                Exit::StateForeign,
                "belongs to tier cloud-coordinator, not edge-client",
            ),
            (
                magic_line(TIER, 2),
                Exit::StateForeign,
                "format version 2, this build uses 1",
            ),
            (String::new(), Exit::StateDamaged, "damaged"),
            ("\0".repeat(40), Exit::StateDamaged, "damaged"),
            (
                "wayside-state version=x tier=edge-client\n".to_owned(),
                Exit::StateDamaged,
                "damaged",
            ),
        ] {
            fs::write(&magic, &content).unwrap();
            refuse(folder.path(), exit, part);
            assert_eq!(names(folder.path()), [MAGIC_FILE]);
            assert_eq!(fs::read_to_string(&magic).unwrap(), content);
        }
    }

    #[test]
    fn a_second_holder_is_refused_until_the_first_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let held = StateDir::open(folder.path(), TIER).unwrap();
        let pid = format!("locked by another process (pid {})", std::process::id());
        refuse(folder.path(), Exit::StateLocked, &pid);
        drop(held);
        StateDir::open(folder.path(), TIER).unwrap();
    }

    #[test]
    fn a_path_that_cannot_be_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        refuse(&file, Exit::StateNotWritable, "cannot be written");
        refuse(
            &file.join("below"),
            Exit::StateNotWritable,
            "cannot be written",
        );
        refuse(
            Path::new("/proc/wayside"),
            Exit::StateNotWritable,
            "cannot be written",
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    }
}
