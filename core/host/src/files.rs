//! Files that survive a crash: replaced as a whole or not at all, and checked when they are read.
//!
//! After a power loss a file can have length 0 or be full of NUL although the program wrote it. Two things together
//! answer that: [`write_atomic`] makes the bytes durable before the name points at them, and a sealed file
//! ([`write_sealed`]) carries a digest, so that a damaged one is noticed, moved aside ([`move_aside`]) and refilled.
//! These functions block; call them off the async threads.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Ends the name of a file that was being written; what is left of one after a crash is rubbish.
pub(crate) const TEMPORARY: &str = ".wayside-tmp";

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds more than the caller bears.
    #[error("{}: larger than the limit of {limit_bytes} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The caller's limit.
        limit_bytes: u64,
    },
    /// A folder, pipe or device stands where a file was expected.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

impl FileError {
    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    /// The kind of the system's error; [`io::ErrorKind::NotFound`] says that there is no such file.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Io { source, .. } => source.kind(),
            Self::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            Self::NotAFile { .. } => io::ErrorKind::InvalidInput,
        }
    }

    /// The error without the path, for a message that names the path itself.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "no such file".to_owned()
            }
            Self::Io { source, .. } => source.to_string(),
            Self::TooLarge { limit_bytes, .. } => {
                format!("larger than the limit of {limit_bytes} bytes")
            }
            Self::NotAFile { .. } => "not a regular file".to_owned(),
        }
    }
}

/// Puts `bytes` under `path` such that a reader, also after a crash, finds all of the old content or all of the new.
///
/// On return the content is durable: the file and its folder were flushed to the disk. The folder must exist.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_parts(path, &[bytes])
}

/// Reads a whole file of at most `limit_bytes`. Folders, pipes and devices are refused.
pub fn read_bounded(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let in_file = |source| FileError::io(path, source);
    // Asked before opening: opening a pipe would block.
    if !fs::metadata(path).map_err(in_file)?.is_file() {
        return Err(FileError::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(in_file)?;
    let length = file.metadata().map_err(in_file)?.len();
    let too_large = || FileError::TooLarge {
        path: path.to_owned(),
        limit_bytes,
    };
    if length > limit_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(limit_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(in_file)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit_bytes {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Renames a damaged file or folder to `NAME.damaged-N` with the first free N from 1, for a person to look at, and
/// returns the new path.
pub fn move_aside(path: &Path) -> Result<PathBuf, FileError> {
    let mut aside = path.to_owned();
    for number in 1_u32.. {
        let mut name = path.file_name().map(OsString::from).unwrap_or_default();
        name.push(format!(".damaged-{number}"));
        aside.set_file_name(name);
        if fs::symlink_metadata(&aside).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            break;
        }
    }
    fs::rename(path, &aside).map_err(|source| FileError::io(path, source))?;
    flush_folder(parent(path))?;
    Ok(aside)
}

/// Removes what a crash left of half-written files in `folder`, not in folders below it, and says how many there were.
/// Only the process that owns the folder may call this.
pub fn remove_leftovers(folder: &Path) -> Result<usize, FileError> {
    let in_folder = |source| FileError::io(folder, source);
    let mut removed = 0;
    for entry in fs::read_dir(folder).map_err(in_folder)? {
        let entry = entry.map_err(in_folder)?;
        if is_temporary(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            fs::remove_file(entry.path()).map_err(|source| FileError::io(&entry.path(), source))?;
            removed += 1;
        }
    }
    Ok(removed)
}

pub(crate) fn is_temporary(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().ends_with(TEMPORARY.as_bytes())
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn flush_folder(folder: &Path) -> Result<(), FileError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| FileError::io(folder, source))
}

fn write_parts(path: &Path, parts: &[&[u8]]) -> Result<(), FileError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(FileError::NotAFile {
            path: path.to_owned(),
        });
    };
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(
        ".{}-{}{TEMPORARY}",
        std::process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed)
    ));
    let temporary = parent(path).join(temporary);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)?;
        for part in parts {
            file.write_all(part)?;
        }
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| {
        // Whatever stands there is ours and unfinished; if it cannot be removed, the next start does.
        let _ = fs::remove_file(&temporary);
        FileError::io(path, source)
    })?;
    flush_folder(parent(path))
}

/// What a sealed file is: its kind and the version of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Names the kind of file, for example `*b"wsmodel\0"`; no two kinds share one.
    pub magic: [u8; 8],
    /// Version of the payload, which this build writes and the only one it reads.
    pub version: u32,
}

/// Bytes before the payload: magic 8, version 4, payload length 8, BLAKE3 32; numbers little-endian. The digest is over
/// the fields before it and the payload. This layout is the same for every version.
const HEADER_BYTES: usize = 52;
const DIGEST_AT: usize = 20;

/// Why a sealed file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// The file could not be read at all, or is absent ([`FileError::kind`] tells).
    #[error(transparent)]
    File(#[from] FileError),
    /// The content is not what was written: move it aside and refill.
    #[error("{}: damaged, {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was noticed.
        reason: &'static str,
    },
    /// An intact file of another version of this software; it must not be thrown away.
    #[error("{}: version {got}, this build reads version {expected}", path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Version found.
        got: u32,
        /// Version of this build.
        expected: u32,
    },
}

/// Writes `payload` under a seal, as [`write_atomic`] does.
pub fn write_sealed(path: &Path, seal: Seal, payload: &[u8]) -> Result<(), FileError> {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&seal.magic);
    header[8..12].copy_from_slice(&seal.version.to_le_bytes());
    header[12..DIGEST_AT].copy_from_slice(
        &u64::try_from(payload.len())
            .unwrap_or(u64::MAX)
            .to_le_bytes(),
    );
    let digest = digest(&header[..DIGEST_AT], payload);
    header[DIGEST_AT..].copy_from_slice(digest.as_bytes());
    write_parts(path, &[&header, payload])
}

/// Reads the payload of a sealed file of at most `limit_bytes` payload and checks it.
///
/// A file that is empty, cut short, full of NUL, of another kind or changed in any bit is [`SealedError::Damaged`].
pub fn read_sealed(path: &Path, seal: Seal, limit_bytes: u64) -> Result<Vec<u8>, SealedError> {
    let mut bytes = read_bounded(path, limit_bytes.saturating_add(HEADER_BYTES as u64))?;
    let damaged = |reason| {
        Err(SealedError::Damaged {
            path: path.to_owned(),
            reason,
        })
    };
    if bytes.is_empty() {
        return damaged("empty");
    }
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return damaged("cut short within its header");
    };
    if bytes.iter().all(|&byte| byte == 0) {
        return damaged("full of NUL");
    }
    if header[..8] != seal.magic {
        return damaged("its first bytes are not this kind of file's");
    }
    if header[DIGEST_AT..] != *digest(&header[..DIGEST_AT], payload).as_bytes() {
        return damaged("its digest does not match");
    }
    let mut version = [0; 4];
    version.copy_from_slice(&header[8..12]);
    let got = u32::from_le_bytes(version);
    if got != seal.version {
        return Err(SealedError::OtherVersion {
            path: path.to_owned(),
            got,
            expected: seal.version,
        });
    }
    bytes.drain(..HEADER_BYTES);
    Ok(bytes)
}

/// Reads some bytes of the payload of a sealed file into `to`, which is emptied first. Nothing is checked but that they
/// are there: for payloads that were read whole once and can tell damage themselves.
///
/// # Errors
/// What the system says; [`io::ErrorKind::UnexpectedEof`] where the file is shorter.
pub fn read_sealed_part(path: &Path, bytes: Range<usize>, to: &mut Vec<u8>) -> io::Result<()> {
    let mut file = fs::File::open(path)?;
    file.seek(io::SeekFrom::Start((HEADER_BYTES + bytes.start) as u64))?;
    to.clear();
    to.resize(bytes.len(), 0);
    file.read_exact(to)
}

fn digest(fields: &[u8], payload: &[u8]) -> blake3::Hash {
    blake3::Hasher::new()
        .update(fields)
        .update(payload)
        .finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAL: Seal = Seal {
        magic: *b"wstest\0\0",
        version: 3,
    };

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_write_replaces_the_whole_file_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_atomic(&path, b"a longer first content").unwrap();
        write_atomic(&path, b"second").unwrap();
        assert_eq!(read_bounded(&path, 6).unwrap(), b"second");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_refused_write_keeps_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::create_dir(&path).unwrap();
        write_atomic(&path, b"x").unwrap_err();
        assert_eq!(names(folder.path()), ["a"]);
        let error = write_atomic(&folder.path().join("none/a"), b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        write_atomic(Path::new("/"), b"x").unwrap_err();
    }

    #[test]
    fn writers_of_one_file_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::thread::scope(|scope| {
            for letter in b'a'..b'e' {
                let path = &path;
                scope.spawn(move || {
                    (0..20).for_each(|_| write_atomic(path, &[letter; 4_096]).unwrap());
                });
            }
        });
        let bytes = read_bounded(&path, 4_096).unwrap();
        assert!(bytes.len() == 4_096 && bytes.iter().all(|&byte| byte == bytes[0]));
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn reads_are_bounded_and_of_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, [1; 10]).unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap().len(), 10);
        assert_eq!(
            read_bounded(&path, 9).unwrap_err().to_string(),
            format!("{}: larger than the limit of 9 bytes", path.display())
        );
        assert!(matches!(
            read_bounded(folder.path(), 9).unwrap_err(),
            FileError::NotAFile { .. }
        ));
        assert!(matches!(
            read_bounded(Path::new("/dev/zero"), 9).unwrap_err(),
            FileError::NotAFile { .. }
        ));
        assert_eq!(
            read_bounded(&folder.path().join("b"), 9)
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn damaged_things_are_kept_under_the_next_number() {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=2 {
            let store = folder.path().join("store");
            fs::create_dir(&store).unwrap();
            fs::write(store.join("x"), [number]).unwrap();
            let aside = move_aside(&store).unwrap();
            assert_eq!(aside, folder.path().join(format!("store.damaged-{number}")));
            assert_eq!(fs::read(aside.join("x")).unwrap(), [number]);
        }
        assert_eq!(
            move_aside(&folder.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn leftovers_of_a_crash_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".a.17-0.wayside-tmp"), "half").unwrap();
        fs::write(folder.path().join("a"), "whole").unwrap();
        assert_eq!(remove_leftovers(folder.path()).unwrap(), 1);
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_sealed_file_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for payload in [b"".as_slice(), b"x", &vec![7; 100_000]] {
            write_sealed(&path, SEAL, payload).unwrap();
            assert_eq!(read_sealed(&path, SEAL, 100_000).unwrap(), payload);
        }
        let error = read_sealed(&path, SEAL, 99_999).unwrap_err();
        assert!(
            matches!(error, SealedError::File(FileError::TooLarge { .. })),
            "{error}"
        );
        let error = read_sealed(&path, Seal { version: 4, ..SEAL }, 100_000).unwrap_err();
        assert!(
            matches!(
                error,
                SealedError::OtherVersion {
                    got: 3,
                    expected: 4,
                    ..
                }
            ),
            "{error}"
        );
        let error = read_sealed(&folder.path().join("none"), SEAL, 9).unwrap_err();
        assert!(
            matches!(&error, SealedError::File(e) if e.kind() == io::ErrorKind::NotFound),
            "{error}"
        );
    }

    #[test]
    fn every_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_sealed(&path, SEAL, b"payload").unwrap();
        let good = fs::read(&path).unwrap();
        let check = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            let result = read_sealed(&path, SEAL, 1_000);
            assert!(
                matches!(result, Err(SealedError::Damaged { .. })),
                "{what}: {result:?}"
            );
        };
        for length in 0..good.len() {
            check(&good[..length], "cut short");
        }
        for bit in 0..good.len() * 8 {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            check(&flipped, "one bit flipped");
        }
        check(&vec![0; good.len()], "full of NUL");
        check(&[good.as_slice(), b"\0"].concat(), "longer");
        let mut other = good;
        other[..8].copy_from_slice(b"wsother\0");
        check(&other, "another kind");
    }

    const WRITE_TO: &str = "WAYSIDE_TEST_WRITE_TO";

    /// The process that the test below kills: this test binary again, writing without end.
    #[test]
    fn child_process() {
        let Some(path) = std::env::var_os(WRITE_TO).map(PathBuf::from) else {
            return;
        };
        for fill in (0..=u8::MAX).cycle() {
            write_sealed(&path, SEAL, &vec![fill; 200_000]).unwrap();
        }
    }

    #[test]
    fn a_kill_at_any_moment_leaves_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_sealed(&path, SEAL, &vec![0; 200_000]).unwrap();
        for pause_ms in 0..20 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "files::tests::child_process"])
                .env(WRITE_TO, &path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            // Not a wait for a condition: the moment of the kill is what varies.
            std::thread::sleep(std::time::Duration::from_millis(5 + 3 * pause_ms));
            child.kill().unwrap();
            child.wait().unwrap();
            let payload = read_sealed(&path, SEAL, 200_000).unwrap();
            assert!(payload.len() == 200_000 && payload.iter().all(|&byte| byte == payload[0]));
            remove_leftovers(folder.path()).unwrap();
            assert_eq!(names(folder.path()), ["a"]);
        }
    }
}
