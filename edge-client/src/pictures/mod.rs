//! The vehicle's own pictures: where they lie, which of them are usable, and their pixels when asked for.
//!
//! A broken picture never fails a load: it is skipped, named and counted. Samples come sorted by name, so that two runs
//! over one folder see the same order. Only names, labels and digests are kept in memory; pixels are decoded one
//! picture at a time.

mod decode;
mod folder;
mod safetensors;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use decode::{MAX_FILE_BYTES, MAX_PIXELS, MIN_SIDE};

/// Height and width in pixels. Displayed as `128x64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputSize {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels in a row.
    pub width: usize,
}

impl Default for InputSize {
    /// 128 high, 64 wide: upright, as traffic lights are.
    fn default() -> Self {
        Self {
            height: 128,
            width: 64,
        }
    }
}

impl fmt::Display for InputSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

/// One decoded picture: RGB bytes, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    size: InputSize,
    rgb: Vec<u8>,
}

impl Picture {
    /// Wraps pixels; `None` unless `rgb` has `height * width * 3` bytes and there is at least one pixel.
    pub fn new(size: InputSize, rgb: Vec<u8>) -> Option<Self> {
        let bytes = size.height.checked_mul(size.width)?.checked_mul(3)?;
        (bytes > 0 && rgb.len() == bytes).then_some(Self { size, rgb })
    }

    /// Height and width in pixels.
    pub fn size(&self) -> InputSize {
        self.size
    }

    /// Red, green, blue of each pixel, `[height, width, 3]` row-major.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

/// Where pictures come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PictureSource {
    /// A folder with one sub-folder a class, holding JPEG and PNG files.
    Folder(PathBuf),
    /// A safetensors file with `{prefix}images` (U8, `[n, height, width, 3]`) and `{prefix}labels` (U8, `[n]`).
    ///
    /// Labels are numbers of the job's classes, or of the file's own if its metadata lists them (`classes`, by comma).
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Put before both names, such as `train_`; may be empty.
        prefix: String,
    },
}

/// Why no picture at all could be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The folder or file itself cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The job's classes cannot be numbered by a byte, or two have the same name.
    #[error("{got} classes, expected 1 to 256 different names")]
    Classes {
        /// How many there are.
        got: usize,
    },
    /// Pictures of that size cannot be made.
    #[error("input size {got}, expected 1 to {limit} pixels a side", limit = MAX_SIDE)]
    Size {
        /// The size asked for.
        got: InputSize,
    },
    /// The safetensors container is damaged.
    #[error("damaged safetensors file {}: {detail}", path.display())]
    Container {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A tensor is missing or has another type or shape.
    #[error("tensor {name} is {got}, expected {expected}")]
    Tensor {
        /// Its name.
        name: String,
        /// What the file has.
        got: String,
        /// What is needed.
        expected: &'static str,
    },
}

/// Largest side of the network's input, in pixels.
pub const MAX_SIDE: usize = 4096;

/// Why a picture was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// A file of 0 bytes.
    Empty,
    /// The file name does not end in `.jpg`, `.jpeg` or `.png`.
    NotAPicture,
    /// The content is neither JPEG nor PNG, whatever the name says.
    UnknownFormat,
    /// The file ends before the picture does.
    Truncated,
    /// The content cannot be decoded.
    Damaged,
    /// Grey or 16 bits a channel.
    UnsupportedColour,
    /// A side of less than [`MIN_SIDE`] pixels.
    TooSmall,
    /// More than [`MAX_PIXELS`] pixels.
    TooManyPixels,
    /// More than [`MAX_FILE_BYTES`] bytes.
    TooManyBytes,
    /// The file cannot be read.
    Unreadable,
    /// The file changed between listing and decoding.
    Changed,
    /// The folder or label names a class that the job does not know.
    UnknownClass,
    /// A file beside the class folders, or a folder within one.
    OutOfPlace,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty file",
            Self::NotAPicture => "not a picture",
            Self::UnknownFormat => "unknown format",
            Self::Truncated => "truncated",
            Self::Damaged => "damaged",
            Self::UnsupportedColour => "unsupported colour type",
            Self::TooSmall => "too small",
            Self::TooManyPixels => "too many pixels",
            Self::TooManyBytes => "too many bytes",
            Self::Unreadable => "unreadable",
            Self::Changed => "changed while reading",
            Self::UnknownClass => "unknown class",
            Self::OutOfPlace => "out of place",
        })
    }
}

/// One picture that was left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skipped {
    /// Path below the folder, or `{prefix}images[index]`.
    pub name: String,
    /// Why.
    pub reason: SkipReason,
}

/// Counts by reason, displayed as `2 truncated, 1 empty file`, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipCounts(pub BTreeMap<SkipReason, usize>);

impl SkipCounts {
    /// Counts a list of skipped pictures.
    pub fn of(skipped: &[Skipped]) -> Self {
        let mut counts = BTreeMap::new();
        for one in skipped {
            *counts.entry(one.reason).or_insert(0) += 1;
        }
        Self(counts)
    }
}

impl fmt::Display for SkipCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, (reason, count)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {reason}")?;
        }
        Ok(())
    }
}

/// One usable picture, not yet decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Path below the folder with `/` between its parts, or `{prefix}images[index]`.
    pub name: String,
    /// Index into the job's classes.
    pub label: u8,
    /// BLAKE3 of the file's bytes, or of the tensor row's size and bytes.
    pub digest: [u8; 32],
}

/// The usable pictures of a source.
#[derive(Debug)]
pub struct Dataset {
    samples: Vec<Sample>,
    skipped: Vec<Skipped>,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Folder(PathBuf),
    Safetensors(safetensors::Rows),
}

/// Lists a source: which pictures it has, and which of them are plainly unusable.
///
/// Every file is read once for its digest and header; what only a full decode finds out, [`Dataset::decode`] reports.
///
/// - `classes`: the job's class names; a sample's label is the index of its own.
///
/// # Errors
/// [`PictureError`] if the source as a whole cannot be used. An empty source is no error.
pub fn load(source: &PictureSource, classes: &[String]) -> Result<Dataset, PictureError> {
    let mut sorted: Vec<&String> = classes.iter().collect();
    sorted.sort();
    sorted.dedup();
    if classes.is_empty() || classes.len() > 256 || sorted.len() != classes.len() {
        return Err(PictureError::Classes { got: classes.len() });
    }
    let mut dataset = match source {
        PictureSource::Folder(path) => folder::list(path, classes)?,
        PictureSource::Safetensors { path, prefix } => safetensors::list(path, prefix, classes)?,
    };
    dataset.skipped.sort();
    Ok(dataset)
}

impl Dataset {
    /// The usable pictures: a folder's by name, a file's by row.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// What was left out, by name.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Decodes one sample and brings it to the network's input size (bilinear; untouched if it already has that size).
    ///
    /// # Errors
    /// The [`SkipReason`] for which the picture is to be left out.
    ///
    /// # Panics
    /// If there is no sample `index`.
    pub fn decode(&self, index: usize, size: InputSize) -> Result<Picture, SkipReason> {
        let sample = &self.samples[index];
        let picture = match &self.store {
            Store::Folder(path) => folder::decode(&path.join(&sample.name), &sample.digest)?,
            Store::Safetensors(rows) => rows.decode(sample)?,
        };
        decode::resize(picture, size)
    }
}

/// Refuses sizes that no picture is resized to.
pub(crate) fn check_size(size: InputSize) -> Result<(), PictureError> {
    let fits = |side| (1..=MAX_SIDE).contains(&side);
    if fits(size.height) && fits(size.width) {
        return Ok(());
    }
    Err(PictureError::Size { got: size })
}

fn read_error(path: &Path) -> impl FnOnce(std::io::Error) -> PictureError {
    let path = path.to_owned();
    move |source| PictureError::Read { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_have_as_many_bytes_as_pixels() {
        let size = |height, width| InputSize { height, width };
        assert!(Picture::new(size(1, 2), vec![0; 6]).is_some());
        assert!(Picture::new(size(1, 2), vec![0; 5]).is_none());
        assert!(Picture::new(size(0, 2), vec![]).is_none());
        assert!(Picture::new(size(usize::MAX, 2), vec![]).is_none());
    }

    #[test]
    fn counts_read_well_in_a_log_line() {
        let skipped = |reason| Skipped {
            name: "red/1.png".into(),
            reason,
        };
        let counts = SkipCounts::of(&[
            skipped(SkipReason::Truncated),
            skipped(SkipReason::Empty),
            skipped(SkipReason::Truncated),
        ]);
        assert_eq!(counts.to_string(), "1 empty file, 2 truncated");
        assert_eq!(SkipCounts::of(&[]).to_string(), "none");
    }

    #[test]
    fn classes_are_1_to_256_different_names() {
        let check = |classes: Vec<String>| {
            let source = PictureSource::Folder("nowhere".into());
            assert!(matches!(
                load(&source, &classes),
                Err(PictureError::Classes { .. })
            ));
        };
        check(vec![]);
        check(vec!["red".into(), "red".into()]);
        check((0..257).map(|i| i.to_string()).collect());
    }
}
