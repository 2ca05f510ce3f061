//! Files of features: the calibration set and the held-back set.
//!
//! Tensors `features` (F32 `[n, d]`) and `labels` (U8 `[n]`); the metadata may say `backbone` (64 hexadecimal digits),
//! `classes` (names by comma) and `input_size` (`128x64`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ndarray::Array2;
use safetensors::{Dtype, SafeTensors};
use wayside_domain::head::{Evaluation, LinearHead};
use wayside_domain::ids::{Digest, ModelVersion};
use wayside_domain::job::{JobSpec, ModelSpec};
use wayside_domain::train::{Learner, TrainError, train};

/// Largest file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// What is wrong with a file of features.
#[derive(Debug, thiserror::Error)]
pub enum FeaturesError {
    /// Not a sound safetensors file.
    #[error("damaged safetensors file ({0}): write it again with `edge-client features`")]
    Container(#[from] safetensors::SafeTensorError),
    /// A tensor is missing, or of another type or shape.
    #[error("tensor `{name}` is {got}, expected {expected}")]
    Tensor {
        /// Its name.
        name: &'static str,
        /// What the file has.
        got: String,
        /// What is needed.
        expected: String,
    },
    /// NaN or infinity.
    #[error("feature {feature} of example {example} is {got}, expected a finite number")]
    NotFinite {
        /// Index of the example.
        example: usize,
        /// Index of the feature.
        feature: usize,
        /// The value.
        got: f32,
    },
    /// A label without a class.
    #[error("label {got} of example {example} has no class, model.classes has {classes}")]
    Label {
        /// Index of the example.
        example: usize,
        /// The label.
        got: u8,
        /// Number of classes.
        classes: usize,
    },
    /// The metadata contradict the job.
    #[error("the file was made for {key} `{got}`, the job says `{expected}`: use a file that fits")]
    Metadata {
        /// Which entry.
        key: &'static str,
        /// What the file says.
        got: String,
        /// What the job says.
        expected: String,
    },
}

/// Features and labels, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Shape `[n, d]`, all finite, n and d at least 1.
    pub values: Array2<f32>,
    /// Length n, all below the number of classes.
    pub labels: Vec<u8>,
    /// Backbone that the file says it was made with.
    pub backbone: Option<Digest>,
}

impl Features {
    /// Reads a file of features for a head with these classes and this input size (height, width).
    ///
    /// # Errors
    /// [`FeaturesError`] names what is missing, out of range, or contradicts the job.
    pub fn read(bytes: &[u8], classes: &[String], size: (u32, u32)) -> Result<Self, FeaturesError> {
        let file = SafeTensors::deserialize(bytes)?;
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let entry = |key: &str| header.metadata().as_ref().and_then(|all| all.get(key));
        let fits = |key: &'static str, expected: String| match entry(key) {
            Some(got) if *got != expected => Err(FeaturesError::Metadata {
                key,
                got: got.chars().take(200).collect(),
                expected,
            }),
            _ => Ok(()),
        };
        fits("classes", classes.join(","))?;
        fits("input_size", format!("{}x{}", size.0, size.1))?;

        let (shape, data) = tensor(&file, "features", Dtype::F32)?;
        let &[n, d] = &shape[..] else {
            return Err(wrong("features", format!("F32 {shape:?}"), "F32 [n, d]"));
        };
        if n == 0 || d == 0 {
            return Err(wrong(
                "features",
                format!("F32 {shape:?}"),
                "at least one example and one feature",
            ));
        }
        let (label_shape, labels) = tensor(&file, "labels", Dtype::U8)?;
        if label_shape != [n] {
            return Err(wrong(
                "labels",
                format!("U8 {label_shape:?}"),
                format!("U8 [{n}]"),
            ));
        }
        let (chunks, _) = data.as_chunks::<4>();
        let values: Vec<f32> = chunks
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(FeaturesError::NotFinite {
                example: at / d,
                feature: at % d,
                got: values[at],
            });
        }
        let unknown = |label: &u8| usize::from(*label) >= classes.len();
        if let Some(example) = labels.iter().position(unknown) {
            return Err(FeaturesError::Label {
                example,
                got: labels[example],
                classes: classes.len(),
            });
        }
        let backbone = match entry("backbone") {
            None => None,
            Some(hex) => Some(
                Digest::from_hex(hex).ok_or_else(|| FeaturesError::Metadata {
                    key: "backbone",
                    got: hex.chars().take(200).collect(),
                    expected: "64 hexadecimal digits".to_owned(),
                })?,
            ),
        };
        let values = Array2::from_shape_vec((n, d), values)
            .map_err(|error| wrong("features", error.to_string(), "F32 [n, d]"))?;
        Ok(Self {
            values,
            labels: labels.to_vec(),
            backbone,
        })
    }
}

fn wrong(name: &'static str, got: String, expected: impl Into<String>) -> FeaturesError {
    FeaturesError::Tensor {
        name,
        got,
        expected: expected.into(),
    }
}

fn tensor<'a>(
    file: &SafeTensors<'a>,
    name: &'static str,
    dtype: Dtype,
) -> Result<(Vec<usize>, &'a [u8]), FeaturesError> {
    let view = file
        .tensor(name)
        .map_err(|_| wrong(name, "missing".to_owned(), format!("{dtype:?}")))?;
    if view.dtype() != dtype {
        return Err(wrong(
            name,
            format!("{:?}", view.dtype()),
            format!("{dtype:?}"),
        ));
    }
    Ok((view.shape().to_vec(), view.data()))
}

/// Labelled features of the cloud's own, standardised as the job says: what FLTrust's root update is trained on.
#[derive(Clone, Debug)]
pub struct RootSet {
    spec: JobSpec,
    values: Array2<f32>,
    labels: Vec<u8>,
}

impl RootSet {
    /// Standardises the features.
    pub fn new(mut features: Features, spec: &JobSpec) -> Self {
        spec.model.standardisation.apply(features.values.view_mut());
        Self {
            spec: spec.clone(),
            values: features.values,
            labels: features.labels,
        }
    }

    /// What a vehicle with these examples would send: trained minus base, in parameter units.
    ///
    /// - `base`: the released parameters; `version` decides the order of the examples.
    ///
    /// # Errors
    /// [`TrainError`] if training goes wrong.
    pub fn update(&self, base: &[f32], version: ModelVersion) -> Result<Vec<f64>, TrainError> {
        let spec = &self.spec;
        let head = LinearHead {
            features: spec.model.features(),
            classes: spec.model.classes.len(),
        };
        let trained = train(
            &head,
            &spec.model.join_head(base, &[]),
            self.values.view(),
            &self.labels,
            &spec.training,
            spec.training.seed ^ version.0,
            &AtomicBool::new(false),
        )?;
        let (shared, _) = spec.model.split_head(trained.parameters);
        let pairs = shared.iter().zip(base);
        Ok(pairs
            .map(|(to, from)| f64::from(*to) - f64::from(*from))
            .collect())
    }
}

/// The held-back set, standardised as the job says: what a version is judged by before it is released.
#[derive(Clone, Debug)]
pub struct HeldBack {
    learner: Arc<dyn Learner>,
    model: ModelSpec,
    values: Array2<f32>,
    labels: Vec<u8>,
}

impl HeldBack {
    /// Standardises the features; the model is a linear head.
    pub fn new(features: Features, model: &ModelSpec) -> Self {
        let head = LinearHead {
            features: features.values.ncols(),
            classes: model.classes.len(),
        };
        Self::with_learner(features, model, Arc::new(head))
    }

    /// Standardises the features for a network that `learner` evaluates.
    pub fn with_learner(
        mut features: Features,
        model: &ModelSpec,
        learner: Arc<dyn Learner>,
    ) -> Self {
        model.standardisation.apply(features.values.view_mut());
        Self {
            learner,
            model: model.clone(),
            values: features.values,
            labels: features.labels,
        }
    }

    /// How a head with these shared parameters does; personal tensors, which only vehicles have, count as 0.
    pub fn evaluate(&self, parameters: &[f32]) -> Evaluation {
        let head = self.model.join_head(parameters, &[]);
        self.learner
            .evaluate(&head, self.values.view(), &self.labels)
    }
}
