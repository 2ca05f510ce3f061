//! A look at the pictures from outside: how many there are, and whether any file changed since the last look.
//!
//! Nothing is decoded: names, sizes and times of change are enough. Which pictures are usable shows when they are read.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::pictures::PictureSource;

/// Largest header of a safetensors file that is read, in bytes.
const MAX_HEADER_BYTES: u64 = 1024 * 1024;

/// What a look shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Pictures by their names, whatever their class; for a file, its labels.
    pub(crate) pictures: u64,
    /// Differs once a file was added, removed or changed.
    pub(crate) fingerprint: [u8; 32],
}

/// Looks at a source.
pub(crate) fn survey(source: &PictureSource) -> io::Result<Survey> {
    let mut hasher = blake3::Hasher::new();
    let pictures = match source {
        PictureSource::Folder(root) => {
            let mut files = Vec::new();
            for folder in fs::read_dir(root)? {
                let folder = folder?;
                if !folder.path().is_dir() {
                    continue;
                }
                for file in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                    files.push(file.path());
                }
            }
            files.sort();
            let mut pictures = 0;
            for path in files {
                let end = path.extension().unwrap_or_default().to_ascii_lowercase();
                pictures += u64::from(["jpg", "jpeg", "png"].iter().any(|known| end == *known));
                note(&mut hasher, &path, fs::metadata(&path).ok());
            }
            pictures
        }
        PictureSource::Safetensors { path, prefix } => {
            let mut file = File::open(path)?;
            note(&mut hasher, path, file.metadata().ok());
            labels(&mut file, prefix)?
        }
    };
    Ok(Survey {
        pictures,
        fingerprint: *hasher.finalize().as_bytes(),
    })
}

fn note(hasher: &mut blake3::Hasher, path: &Path, metadata: Option<Metadata>) {
    let changed = metadata.as_ref().and_then(|m| m.modified().ok());
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    hasher.update(path.as_os_str().as_encoded_bytes());
    hasher.update(b"\0");
    hasher.update(&metadata.map_or(0, |m| m.len()).to_le_bytes());
    hasher.update(&changed.map_or(0, |time| time.as_nanos()).to_le_bytes());
}

/// Labels that the header of a safetensors file promises.
fn labels(file: &mut File, prefix: &str) -> io::Result<u64> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut length = [0; 8];
    file.read_exact(&mut length)
        .map_err(|_| damaged("no safetensors header"))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(damaged("no safetensors header"));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header)?;
    let header: serde_json::Value =
        serde_json::from_slice(&header).map_err(|_| damaged("damaged safetensors header"))?;
    let name = format!("{prefix}labels");
    header[&name]["shape"][0]
        .as_u64()
        .ok_or_else(|| damaged(&format!("no tensor {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_counted_and_its_changes_show() {
        let folder = tempfile::tempdir().unwrap();
        let source = PictureSource::Folder(folder.path().to_owned());
        fs::create_dir(folder.path().join("red")).unwrap();
        fs::write(folder.path().join("note.txt"), "x").unwrap();
        fs::write(folder.path().join("red/a.JPG"), "x").unwrap();
        fs::write(folder.path().join("red/b.txt"), "x").unwrap();
        let first = survey(&source).unwrap();
        assert_eq!(first.pictures, 1);
        assert_eq!(survey(&source).unwrap(), first);
        fs::write(folder.path().join("red/c.png"), "xy").unwrap();
        let second = survey(&source).unwrap();
        assert_eq!(second.pictures, 2);
        assert_ne!(second.fingerprint, first.fingerprint);
        fs::write(folder.path().join("red/c.png"), "xyz").unwrap();
        assert_ne!(survey(&source).unwrap().fingerprint, second.fingerprint);
    }

    #[test]
    fn a_file_is_counted_by_its_labels() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.safetensors");
        let header = br#"{"train_labels":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([0, 1, 2]);
        fs::write(&path, &bytes).unwrap();
        let source = |prefix: &str| PictureSource::Safetensors {
            path: path.clone(),
            prefix: prefix.to_owned(),
        };
        assert_eq!(survey(&source("train_")).unwrap().pictures, 3);
        let error = survey(&source("test_")).unwrap_err().to_string();
        assert_eq!(error, "no tensor test_labels");
        for end in 0..bytes.len() - 3 {
            fs::write(&path, &bytes[..end]).unwrap();
            assert!(survey(&source("train_")).is_err(), "cut at {end}");
        }
        fs::write(&path, [0xff; 64]).unwrap();
        assert!(survey(&source("train_")).is_err());
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(survey(&PictureSource::Folder("nowhere-at-all".into())).is_err());
    }
}
