//! Features on disk, so that each picture goes through the backbone once in its life.
//!
//! One append-only file for each backbone and input size:
//! ```text
//! header  "WAYFEAT\0"  version u32  features u32                   16 bytes
//! record  key [32]     features f32 x d     checksum [8]           40 + 4 d bytes, repeated
//! ```
//! Numbers are little-endian; the key is BLAKE3 over picture digest, backbone digest and input size; the checksum is
//! the first 8 bytes of BLAKE3 over key and features. Records have one length, so a damaged one costs only itself, and
//! a torn tail is cut off. A file with a foreign header is moved aside. Nothing that happens to a cache fails an
//! extraction: at worst everything is extracted again.
//!
//! A file has one writer at a time (a lock says who); others read along. It grows with the pictures ever seen.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tracing::{debug, warn};

use crate::pictures::InputSize;

const MAGIC: &[u8; 8] = b"WAYFEAT\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;

/// Name of one picture's features.
pub(super) type Key = [u8; 32];

/// An open cache file.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
    features: usize,
    backbone: [u8; 32],
    size: InputSize,
    /// Offset of each record, in bytes.
    index: BTreeMap<Key, u64>,
    file: Mutex<File>,
    /// Whether this process holds the lock and nothing has gone wrong yet.
    writable: Mutex<bool>,
}

impl Cache {
    /// Opens or creates the file for one backbone and input size; `None` (and a warning) if that is impossible.
    pub(super) fn open(
        folder: &Path,
        backbone: [u8; 32],
        size: InputSize,
        features: usize,
    ) -> Option<Self> {
        let name = format!("{}-{size}.features", &super::hex(&backbone)[..16]);
        let path = folder.join(name);
        match Self::try_open(folder, &path, backbone, size, features) {
            Ok(cache) => Some(cache),
            Err(error) => {
                warn!(path = %path.display(), %error, "feature cache unusable, extracting without");
                None
            }
        }
    }

    fn try_open(
        folder: &Path,
        path: &Path,
        backbone: [u8; 32],
        size: InputSize,
        features: usize,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let (mut file, mut writable) = open_locked(path)?;
        let header = header(features);
        if file.metadata()?.len() > 0 && !starts_with(&mut file, &header)? {
            if !writable {
                return Err(io::Error::other(
                    "foreign header, and another process writes",
                ));
            }
            let aside = path.with_extension("damaged");
            warn!(path = %path.display(), aside = %aside.display(), "feature cache damaged, moved aside");
            std::fs::rename(path, aside)?;
            (file, writable) = open_locked(path)?;
        }
        if file.metadata()?.len() == 0 && writable {
            file.write_all(&header)?;
        }
        let mut cache = Self {
            path: path.to_owned(),
            features,
            backbone,
            size,
            index: BTreeMap::new(),
            file: Mutex::new(file),
            writable: Mutex::new(writable),
        };
        cache.scan(writable)?;
        Ok(cache)
    }

    /// Indexes the good records and cuts off a torn tail.
    fn scan(&mut self, writable: bool) -> io::Result<()> {
        let length = self.record_bytes();
        let file = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(HEADER_BYTES as u64))?;
        let body = file.metadata()?.len().saturating_sub(HEADER_BYTES as u64);
        let records = body / length as u64;
        let mut reader = BufReader::new(&mut *file);
        let mut record = vec![0; length];
        let mut damaged = 0_u64;
        for number in 0..records {
            reader.read_exact(&mut record)?;
            match key_of(&record) {
                Some(key) => {
                    let at = HEADER_BYTES as u64 + number * length as u64;
                    self.index.insert(key, at);
                }
                None => damaged += 1,
            }
        }
        if writable && body % length as u64 != 0 {
            file.set_len(HEADER_BYTES as u64 + records * length as u64)?;
        }
        if damaged > 0 {
            warn!(path = %self.path.display(), damaged, "feature cache has damaged records");
        }
        debug!(path = %self.path.display(), records, "feature cache open");
        Ok(())
    }

    /// The key of a picture by its digest.
    pub(super) fn key(&self, picture: &[u8; 32]) -> Key {
        let mut hasher = blake3::Hasher::new();
        hasher.update(picture);
        hasher.update(&self.backbone);
        hasher.update(self.size.to_string().as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// The stored features of a picture, length d.
    pub(super) fn get(&self, key: &Key) -> Option<Vec<f32>> {
        let at = *self.index.get(key)?;
        let mut record = vec![0; self.record_bytes()];
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(at)).ok()?;
            file.read_exact(&mut record).ok()?;
        }
        if key_of(&record)? != *key {
            return None;
        }
        let values = &record[32..32 + 4 * self.features];
        let (values, _) = values.as_chunks::<4>();
        Some(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// Appends features in one write; gives up on writing for good if that fails.
    pub(super) fn append<'a>(&self, entries: impl Iterator<Item = (Key, &'a [f32])>) {
        let mut writable = self.writable.lock().unwrap_or_else(PoisonError::into_inner);
        if !*writable {
            return;
        }
        let mut bytes = Vec::new();
        for (key, values) in entries {
            let start = bytes.len();
            bytes.extend(key);
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let sum = checksum(&bytes[start..]);
            bytes.extend(sum);
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file
            .seek(SeekFrom::End(0))
            .and_then(|_| file.write_all(&bytes));
        if let Err(error) = written {
            *writable = false;
            warn!(path = %self.path.display(), %error, "feature cache no longer written");
        }
    }

    fn record_bytes(&self) -> usize {
        32 + 4 * self.features + CHECKSUM_BYTES
    }
}

/// Opens for reading and writing; the flag says whether the lock was to be had.
fn open_locked(path: &Path) -> io::Result<(File, bool)> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => Ok((file, true)),
        Err(TryLockError::WouldBlock) => Ok((file, false)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn header(features: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let features = u32::try_from(features).unwrap_or(u32::MAX);
    header[12..].copy_from_slice(&features.to_le_bytes());
    header
}

fn starts_with(file: &mut File, header: &[u8; HEADER_BYTES]) -> io::Result<bool> {
    let mut start = Vec::new();
    file.take(HEADER_BYTES as u64).read_to_end(&mut start)?;
    Ok(start == header)
}

/// The key of an undamaged record.
fn key_of(record: &[u8]) -> Option<Key> {
    let (content, sum) = record.split_at(record.len() - CHECKSUM_BYTES);
    (checksum(content) == sum).then(|| content[..32].try_into().ok())?
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&blake3::hash(content).as_bytes()[..CHECKSUM_BYTES]);
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: InputSize = InputSize {
        height: 8,
        width: 4,
    };

    fn open(folder: &Path) -> Cache {
        Cache::open(folder, [7; 32], SIZE, 3).unwrap()
    }

    fn fill(folder: &Path) -> Vec<(Key, Vec<f32>)> {
        let cache = open(folder);
        let entries: Vec<_> = (0..5_u8)
            .map(|i| (cache.key(&[i; 32]), vec![f32::from(i), -0.0, 1e-30]))
            .collect();
        cache.append(entries.iter().map(|(key, values)| (*key, &values[..])));
        entries
    }

    fn file(folder: &Path) -> PathBuf {
        folder.join("0707070707070707-8x4.features")
    }

    #[test]
    fn what_was_appended_is_found_after_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let entries = fill(folder.path());
        let cache = open(folder.path());
        for (key, values) in &entries {
            assert_eq!(cache.get(key).as_ref(), Some(values));
        }
        assert_eq!(cache.get(&[0; 32]), None);
    }

    #[test]
    fn another_size_or_backbone_has_other_keys() {
        let folder = tempfile::tempdir().unwrap();
        let key = |backbone, width| {
            let size = InputSize { height: 8, width };
            let cache = Cache::open(folder.path(), backbone, size, 3).unwrap();
            cache.key(&[1; 32])
        };
        assert_ne!(key([7; 32], 4), key([7; 32], 5));
        assert_ne!(key([7; 32], 4), key([8; 32], 4));
    }

    #[test]
    fn a_torn_tail_is_cut_off_and_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let entries = fill(folder.path());
        let length = std::fs::metadata(file(folder.path())).unwrap().len();
        let handle = OpenOptions::new().write(true).open(file(folder.path()));
        handle.unwrap().set_len(length - 5).unwrap();
        let cache = open(folder.path());
        let (last, before) = entries.split_last().unwrap();
        assert_eq!(cache.get(&last.0), None);
        assert!(before.iter().all(|(key, _)| cache.get(key).is_some()));
        cache.append(std::iter::once((last.0, &last.1[..])));
        drop(cache);
        assert!(open(folder.path()).get(&last.0).is_some());
    }

    #[test]
    fn a_foreign_file_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(file(folder.path()), b"WAYFEAT\0 of another time").unwrap();
        fill(folder.path());
        let aside = file(folder.path()).with_extension("damaged");
        assert_eq!(std::fs::read(aside).unwrap(), b"WAYFEAT\0 of another time");
        assert_eq!(open(folder.path()).index.len(), 5);
    }

    #[test]
    fn a_second_process_reads_along() {
        let folder = tempfile::tempdir().unwrap();
        let entries = fill(folder.path());
        let first = open(folder.path());
        let second = open(folder.path());
        assert!(second.get(&entries[0].0).is_some());
        second.append(std::iter::once(([1; 32], &[0.0; 3][..])));
        drop((first, second));
        assert_eq!(open(folder.path()).index.len(), 5);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_cache() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, b"").unwrap();
        assert!(Cache::open(&blocked.join("below"), [7; 32], SIZE, 3).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// One damaged byte costs one record, or the whole file if it hits the header; never a wrong value.
        #[test]
        fn damage_never_gives_wrong_features(at in 0_usize..276, flip in 1_u8..) {
            let folder = tempfile::tempdir().unwrap();
            let entries = fill(folder.path());
            let mut bytes = std::fs::read(file(folder.path())).unwrap();
            prop_assert_eq!(bytes.len(), 276);
            bytes[at] ^= flip;
            std::fs::write(file(folder.path()), bytes).unwrap();
            let cache = open(folder.path());
            let found: Vec<_> = entries.iter().filter_map(|(key, values)| {
                cache.get(key).map(|got| (got, values.clone()))
            }).collect();
            prop_assert_eq!(found.len(), if at < 16 { 0 } else { 4 });
            for (got, expected) in found {
                prop_assert_eq!(got, expected);
            }
        }
    }
}
