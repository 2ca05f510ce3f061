//! A set of features as one file: safetensors, such as the cloud's held-back set, or CSV for other programs.
//!
//! Tensors `features` (F32 `[n, d]`) and `labels` (U8 `[n]`); metadata `backbone` (64 hex digits), `classes` (names by
//! comma), `input_size` (`128x64`) and `names` (a JSON list).

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ndarray::Array2;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::FeatureSet;
use crate::pictures::InputSize;

/// A field of CSV, quoted where it must be.
fn field(text: &str) -> Cow<'_, str> {
    if text.contains(['"', ',', '\n', '\r']) {
        return Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")));
    }
    Cow::Borrowed(text)
}

/// Largest file of features that is read, in bytes.
pub const MAX_FEATURE_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Why a file of features could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FeatureFileError {
    /// The disk refused; a retry may help.
    #[error("cannot access {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// More bytes than any set of features that we write.
    #[error("file of features exceeds the limit of {limit} bytes")]
    TooLarge {
        /// Most bytes that are read.
        limit: u64,
    },
    /// The container is damaged.
    #[error("damaged safetensors file: {0}")]
    Container(#[from] safetensors::SafeTensorError),
    /// A tensor of another type or shape.
    #[error("tensor {name} is {got}, expected {expected}")]
    Tensor {
        /// Its name.
        name: &'static str,
        /// What the file has.
        got: String,
        /// What is needed.
        expected: &'static str,
    },
    /// A metadata entry is missing or cannot be read.
    #[error("metadata {key:?} is missing or damaged")]
    Metadata {
        /// The entry.
        key: &'static str,
    },
    /// A label without a class.
    #[error("label {got} of example {example}, expected less than {classes}")]
    Label {
        /// The example's index.
        example: usize,
        /// Its label.
        got: u8,
        /// How many classes there are.
        classes: usize,
    },
    /// NaN or infinity.
    #[error("feature {feature} of example {example} is not finite")]
    NotFinite {
        /// The example's index.
        example: usize,
        /// The feature's index.
        feature: usize,
    },
    /// Class names are separated by commas, so that none may have one.
    #[error("class name {got:?} has a comma")]
    ClassName {
        /// The name.
        got: String,
    },
}

impl FeatureSet {
    /// Writes the set; what was at `path` stays until the new file is complete and on disk.
    ///
    /// # Errors
    /// [`FeatureFileError::Io`], or [`FeatureFileError::ClassName`] if a class name has a comma.
    pub fn write_safetensors(&self, path: &Path) -> Result<(), FeatureFileError> {
        if let Some(name) = self.classes.iter().find(|name| name.contains(',')) {
            return Err(FeatureFileError::ClassName { got: name.clone() });
        }
        let values: Vec<u8> = self
            .features
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let names = serde_json::to_string(&self.names)
            .map_err(|_| FeatureFileError::Metadata { key: "names" })?;
        let metadata = HashMap::from([
            ("backbone".to_owned(), super::hex(&self.backbone)),
            ("classes".to_owned(), self.classes.join(",")),
            ("input_size".to_owned(), self.size.to_string()),
            ("names".to_owned(), names),
        ]);
        let shape = self.features.shape().to_vec();
        let bytes = safetensors::serialize(
            [
                ("features", TensorView::new(Dtype::F32, shape, &values)?),
                (
                    "labels",
                    TensorView::new(Dtype::U8, vec![self.labels.len()], &self.labels)?,
                ),
            ],
            Some(metadata),
        )?;
        write_atomically(path, &bytes).map_err(|source| FeatureFileError::Io {
            path: path.to_owned(),
            source,
        })
    }

    /// Writes the set as CSV: a header `name,class,f0,f1,...`, then a row an example. Features are written with the
    /// fewest digits that read back to the same f32; names and classes are quoted where CSV (RFC 4180) needs it.
    ///
    /// # Errors
    /// [`FeatureFileError::Io`].
    pub fn write_csv(&self, path: &Path) -> Result<(), FeatureFileError> {
        let mut text = String::from("name,class");
        for feature in 0..self.features.ncols() {
            let _ = write!(text, ",f{feature}");
        }
        text.push('\n');
        let examples = self.features.rows().into_iter().zip(&self.names);
        for ((values, name), label) in examples.zip(&self.labels) {
            let class = self.classes.get(usize::from(*label));
            text.push_str(&field(name));
            text.push(',');
            text.push_str(&field(class.map_or("", String::as_str)));
            for value in values {
                let _ = write!(text, ",{value}");
            }
            text.push('\n');
        }
        write_atomically(path, text.as_bytes()).map_err(|source| FeatureFileError::Io {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads a set; nothing in it counts as skipped, extracted or cached.
    ///
    /// # Errors
    /// [`FeatureFileError`] names what is missing, out of range or not finite.
    pub fn read_safetensors(path: &Path) -> Result<Self, FeatureFileError> {
        let io = |source| FeatureFileError::Io {
            path: path.to_owned(),
            source,
        };
        let mut bytes = Vec::new();
        File::open(path)
            .map_err(io)?
            .take(MAX_FEATURE_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(io)?;
        if bytes.len() as u64 > MAX_FEATURE_FILE_BYTES {
            return Err(FeatureFileError::TooLarge {
                limit: MAX_FEATURE_FILE_BYTES,
            });
        }
        Self::from_safetensors(&bytes)
    }

    fn from_safetensors(bytes: &[u8]) -> Result<Self, FeatureFileError> {
        let file = SafeTensors::deserialize(bytes)?;
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let entry = |key: &'static str| {
            let value = metadata.get(key).map(String::as_str);
            value.ok_or(FeatureFileError::Metadata { key })
        };
        let damaged = |key| FeatureFileError::Metadata { key };
        let classes: Vec<String> = entry("classes")?.split(',').map(String::from).collect();
        let backbone = from_hex(entry("backbone")?).ok_or_else(|| damaged("backbone"))?;
        let size = parse_size(entry("input_size")?).ok_or_else(|| damaged("input_size"))?;

        let (shape, values) = tensor(&file, "features", Dtype::F32, "F32 [n, d]")?;
        let &[n, d] = &shape[..] else {
            return Err(FeatureFileError::Tensor {
                name: "features",
                got: format!("F32 {shape:?}"),
                expected: "F32 [n, d]",
            });
        };
        let (shape, labels) = tensor(&file, "labels", Dtype::U8, "U8 [n]")?;
        if shape != [n] {
            return Err(FeatureFileError::Tensor {
                name: "labels",
                got: format!("U8 {shape:?}"),
                expected: "U8 [n], one label an example",
            });
        }
        let values: Vec<f32> = values
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(FeatureFileError::NotFinite {
                example: at / d.max(1),
                feature: at % d.max(1),
            });
        }
        let out_of_range = |label: &u8| usize::from(*label) >= classes.len();
        if let Some(example) = labels.iter().position(out_of_range) {
            return Err(FeatureFileError::Label {
                example,
                got: labels[example],
                classes: classes.len(),
            });
        }
        let names: Vec<String> =
            serde_json::from_str(entry("names")?).map_err(|_| damaged("names"))?;
        if names.len() != n {
            return Err(damaged("names"));
        }
        let features = Array2::from_shape_vec((n, d), values).map_err(|_| damaged("features"))?;
        Ok(Self {
            features,
            labels: labels.to_vec(),
            names,
            classes,
            backbone,
            size,
            skipped: Vec::new(),
            extracted: 0,
            cached: 0,
        })
    }
}

fn tensor<'a>(
    file: &SafeTensors<'a>,
    name: &'static str,
    dtype: Dtype,
    expected: &'static str,
) -> Result<(Vec<usize>, &'a [u8]), FeatureFileError> {
    let wrong = |got| FeatureFileError::Tensor {
        name,
        got,
        expected,
    };
    let view = file.tensor(name).map_err(|_| wrong("missing".to_owned()))?;
    if view.dtype() != dtype {
        return Err(wrong(format!("{:?} {:?}", view.dtype(), view.shape())));
    }
    Ok((view.shape().to_vec(), view.data()))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

fn parse_size(text: &str) -> Option<InputSize> {
    let (height, width) = text.split_once('x')?;
    Some(InputSize {
        height: height.parse().ok()?,
        width: width.parse().ok()?,
    })
}

/// Writes beside the target, flushes to disk, then renames over it.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(partial, path)
}

#[cfg(test)]
mod tests {
    use ndarray::array;
    use proptest::prelude::*;

    use super::*;

    fn set() -> FeatureSet {
        FeatureSet {
            features: array![[1.0, -2.5], [0.0, 1e-20], [3.0, 4.0]],
            labels: vec![0, 1, 0],
            names: ["red/a, \"b\".png", "green/c.png", "red/d.png"]
                .map(String::from)
                .to_vec(),
            classes: ["red", "green"].map(String::from).to_vec(),
            backbone: [0xAB; 32],
            size: InputSize::default(),
            skipped: Vec::new(),
            extracted: 0,
            cached: 0,
        }
    }

    fn written(set: &FeatureSet) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("held-back.safetensors");
        set.write_safetensors(&path).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        std::fs::read(path).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("held-back.safetensors");
        std::fs::write(&path, b"older").unwrap();
        set().write_safetensors(&path).unwrap();
        assert_eq!(FeatureSet::read_safetensors(&path).unwrap(), set());
    }

    #[test]
    fn csv_has_a_row_an_example() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set.csv");
        set().write_csv(&path).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "name,class,f0,f1\n\"red/a, \"\"b\"\".png\",red,1,-2.5\ngreen/c.png,green,0,0.00000000000000000001\n\
             red/d.png,red,3,4\n"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |set: &FeatureSet, expected: &str| {
            let error = FeatureSet::from_safetensors(&written(set)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        let mut bad = set();
        bad.labels[1] = 2;
        check(&bad, "label 2 of example 1, expected less than 2");
        let mut bad = set();
        bad.features[[2, 1]] = f32::NAN;
        check(&bad, "feature 1 of example 2 is not finite");
        let mut bad = set();
        bad.labels.pop();
        check(
            &bad,
            "tensor labels is U8 [2], expected U8 [n], one label an example",
        );
        let mut bad = set();
        bad.names.pop();
        check(&bad, "metadata \"names\" is missing or damaged");
        let mut bad = set();
        bad.classes[0] = "red, dark".into();
        let error = bad.write_safetensors(Path::new("unused")).unwrap_err();
        assert_eq!(error.to_string(), "class name \"red, dark\" has a comma");
    }

    proptest! {
        #[test]
        fn any_damage_is_an_error_or_other_numbers(at in 0_usize..500, byte in any::<u8>(), keep in 0_usize..600) {
            let mut bytes = written(&set());
            if let Some(target) = bytes.get_mut(at) {
                *target = byte;
            }
            bytes.truncate(keep);
            let _ = FeatureSet::from_safetensors(&bytes);
        }
    }
}
