//! Pictures and labels in one safetensors file, read a row at a time.
//!
//! The header is bounded and checked against the file's length before anything is allocated from it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{
    Dataset, InputSize, MAX_SIDE, Picture, PictureError, Sample, SkipReason, Skipped, Store,
    read_error,
};

/// Largest header that is read, in bytes.
const MAX_HEADER_BYTES: u64 = 1024 * 1024;

/// The pictures of an open file.
#[derive(Debug)]
pub(super) struct Rows {
    file: Mutex<File>,
    /// Where the first row begins, in bytes from the start of the file.
    start: u64,
    size: InputSize,
    prefix: String,
}

/// Reads the header, the labels, and each row once for its digest.
pub(super) fn list(path: &Path, prefix: &str, classes: &[String]) -> Result<Dataset, PictureError> {
    let mut file = File::open(path).map_err(read_error(path))?;
    let (header, data_start) = read_header(path, &mut file)?;
    let (count, height, width, images_start) = {
        let name = format!("{prefix}images");
        let (shape, start) = tensor(&header, &name, "U8 [n, height, width, 3]")?;
        match shape[..] {
            [n, height, width, 3]
                if (1..=MAX_SIDE).contains(&height) && (1..=MAX_SIDE).contains(&width) =>
            {
                (n, height, width, data_start + start)
            }
            _ => {
                return Err(PictureError::Tensor {
                    name,
                    got: format!("U8 {shape:?}"),
                    expected: "U8 [n, height, width, 3]",
                });
            }
        }
    };
    let labels_start = {
        let name = format!("{prefix}labels");
        let (shape, start) = tensor(&header, &name, "U8 [n], one label a picture")?;
        if *shape != [count] {
            return Err(PictureError::Tensor {
                name,
                got: format!("U8 {shape:?}"),
                expected: "U8 [n], one label a picture",
            });
        }
        data_start + start
    };
    // The header's extents lie within the file, so `count` is bounded by its length.
    let mut labels = vec![0; count];
    read_at(&mut file, labels_start, &mut labels).map_err(read_error(path))?;
    let known = label_map(&header, classes);
    let rows = Rows {
        file: Mutex::new(file),
        start: images_start,
        size: InputSize { height, width },
        prefix: prefix.to_owned(),
    };
    let mut samples = Vec::with_capacity(count);
    let mut skipped = Vec::new();
    for (row, &label) in labels.iter().enumerate() {
        let name = rows.name(row);
        match known.get(usize::from(label)).copied().flatten() {
            Some(label) => {
                let bytes = rows.read(row).map_err(read_error(path))?;
                let digest = rows.digest(&bytes);
                samples.push(Sample {
                    name,
                    label,
                    digest,
                });
            }
            None => skipped.push(Skipped {
                name,
                reason: SkipReason::UnknownClass,
            }),
        }
    }
    Ok(Dataset {
        samples,
        skipped,
        store: Store::Safetensors(rows),
    })
}

impl Rows {
    /// The pixels of a sample, provided that they still are what was listed.
    pub(super) fn decode(&self, sample: &Sample) -> Result<Picture, SkipReason> {
        let row = sample
            .name
            .strip_prefix(self.prefix.as_str())
            .and_then(|name| name.strip_prefix("images[")?.strip_suffix(']'))
            .and_then(|row| row.parse().ok())
            .ok_or(SkipReason::Unreadable)?;
        let bytes = self.read(row).map_err(|_| SkipReason::Unreadable)?;
        if self.digest(&bytes) != sample.digest {
            return Err(SkipReason::Changed);
        }
        Picture::new(self.size, bytes).ok_or(SkipReason::Damaged)
    }

    fn name(&self, row: usize) -> String {
        format!("{}images[{row}]", self.prefix)
    }

    fn read(&self, row: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.size.height * self.size.width * 3];
        let at = self.start + row as u64 * bytes.len() as u64;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        read_at(&mut file, at, &mut bytes)?;
        Ok(bytes)
    }

    fn digest(&self, bytes: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.size.to_string().as_bytes());
        hasher.update(b"\0");
        hasher.update(bytes);
        *hasher.finalize().as_bytes()
    }
}

/// Which of the job's classes each label of the file is.
fn label_map(header: &Metadata, classes: &[String]) -> Vec<Option<u8>> {
    let position = |name: &str| {
        let index = classes.iter().position(|class| class == name)?;
        u8::try_from(index).ok()
    };
    let metadata = header.metadata().as_ref();
    match metadata.and_then(|metadata| metadata.get("classes")) {
        Some(names) => names.split(',').map(|name| position(name.trim())).collect(),
        None => classes.iter().map(|name| position(name)).collect(),
    }
}

fn tensor<'a>(
    header: &'a Metadata,
    name: &str,
    expected: &'static str,
) -> Result<(&'a Vec<usize>, u64), PictureError> {
    let wrong = |got: String| PictureError::Tensor {
        name: name.to_owned(),
        got,
        expected,
    };
    let info = header.info(name).ok_or_else(|| wrong("missing".into()))?;
    if info.dtype != Dtype::U8 {
        return Err(wrong(format!("{:?} {:?}", info.dtype, info.shape)));
    }
    Ok((&info.shape, info.data_offsets.0 as u64))
}

/// Reads and checks the header; returns it with the place where the data begins.
fn read_header(path: &Path, file: &mut File) -> Result<(Metadata, u64), PictureError> {
    let damaged = |detail: String| PictureError::Container {
        path: path.to_owned(),
        detail,
    };
    let length = file.metadata().map_err(read_error(path))?.len();
    if length < 8 {
        return Err(damaged(format!("{length} bytes hold no header")));
    }
    let mut size = [0; 8];
    read_at(file, 0, &mut size).map_err(read_error(path))?;
    let size = u64::from_le_bytes(size);
    let limit = MAX_HEADER_BYTES.min(length - 8);
    if size > limit {
        return Err(damaged(format!(
            "header of {size} bytes exceeds the limit of {limit}"
        )));
    }
    let mut json = Vec::new();
    file.take(size)
        .read_to_end(&mut json)
        .map_err(read_error(path))?;
    let header: Metadata =
        serde_json::from_slice(&json).map_err(|error| damaged(error.to_string()))?;
    let data = length - 8 - size;
    if header.data_len() as u64 != data {
        let expected = header.data_len();
        return Err(damaged(format!(
            "{data} bytes of data, expected {expected}"
        )));
    }
    Ok((header, 8 + size))
}

fn read_at(file: &mut File, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use safetensors::tensor::TensorView;

    use super::super::{PictureSource, load};
    use super::*;

    /// Three pictures, 4 high and 2 wide, with labels 0, 1 and 7.
    fn bytes(classes: Option<&str>) -> Vec<u8> {
        let images: Vec<u8> = (0..3 * 24).collect();
        let labels = [0, 1, 7];
        let metadata = classes.map(|c| HashMap::from([("classes".to_owned(), c.to_owned())]));
        safetensors::serialize(
            [
                (
                    "train_images",
                    TensorView::new(Dtype::U8, vec![3, 4, 2, 3], &images).unwrap(),
                ),
                (
                    "train_labels",
                    TensorView::new(Dtype::U8, vec![3], &labels).unwrap(),
                ),
            ],
            metadata,
        )
        .unwrap()
    }

    fn open(bytes: &[u8], prefix: &str) -> Result<Dataset, PictureError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pictures.safetensors");
        std::fs::write(&path, bytes).unwrap();
        let prefix = prefix.to_owned();
        let classes = ["red", "green"].map(String::from);
        load(&PictureSource::Safetensors { path, prefix }, &classes)
    }

    #[test]
    fn rows_become_samples() {
        let dataset = open(&bytes(None), "train_").unwrap();
        let labels: Vec<u8> = dataset.samples().iter().map(|s| s.label).collect();
        assert_eq!(labels, [0, 1]);
        assert_eq!(
            dataset.skipped(),
            [Skipped {
                name: "train_images[2]".into(),
                reason: SkipReason::UnknownClass
            }]
        );
        let own = InputSize {
            height: 4,
            width: 2,
        };
        let picture = dataset.decode(1, own).unwrap();
        assert_eq!(picture.rgb(), (24..48).collect::<Vec<u8>>());
    }

    #[test]
    fn the_files_own_class_names_decide() {
        let dataset = open(&bytes(Some("green, blue")), "train_").unwrap();
        let labels: Vec<u8> = dataset.samples().iter().map(|s| s.label).collect();
        assert_eq!(labels, [1]);
        assert_eq!(dataset.skipped().len(), 2);
    }

    #[test]
    fn what_is_missing_or_damaged_is_named() {
        let check = |bytes: &[u8], prefix: &str, expected: &str| {
            let error = open(bytes, prefix).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let good = bytes(None);
        check(&good, "test_", "tensor test_images is missing");
        check(b"", "train_", "0 bytes hold no header");
        check(&good[..good.len() - 1], "train_", "bytes of data, expected");
        let mut long = good.clone();
        long[..8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
        check(&long, "train_", "header of 9223372036854775807 bytes");
        let past_the_end = br#"{"images":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}"#;
        let mut file = (past_the_end.len() as u64).to_le_bytes().to_vec();
        file.extend(past_the_end);
        check(&file, "", "0 bytes of data, expected 9");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_damage_is_an_error_or_other_pictures(
            at in 0_usize..200,
            byte in any::<u8>(),
            keep in 0_usize..400,
        ) {
            let mut bytes = bytes(None);
            if let Some(target) = bytes.get_mut(at) {
                *target = byte;
            }
            bytes.truncate(keep);
            let _ = open(&bytes, "train_");
        }
    }
}
