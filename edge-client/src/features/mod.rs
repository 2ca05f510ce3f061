//! From pictures to features: each picture once, on a bounded number of threads, with a cache on disk.
//!
//! Invariants: rows come in the order of the samples, whatever the number of threads; a broken picture costs its own
//! row and nothing else; what was extracted before a cancellation is in the cache.

mod cache;
mod file;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ndarray::{Array2, ArrayView1};

use crate::backbone::{Backbone, BackboneError};
use crate::pictures::{self, Dataset, InputSize, PictureError, PictureSource, SkipReason, Skipped};
use cache::Cache;
pub use file::{FeatureFileError, MAX_FEATURE_FILE_BYTES};

/// Pictures that a thread takes at a time.
const BATCH: usize = 16;

/// What to extract, and with which means.
#[derive(Clone, Copy, Debug)]
pub struct Extraction<'a> {
    /// Where the pictures are.
    pub source: &'a PictureSource,
    /// The job's class names; labels are their indices.
    pub classes: &'a [String],
    /// Size to which pictures are brought.
    pub size: InputSize,
    /// Folder of the feature cache; `None` extracts everything anew.
    pub cache_dir: Option<&'a Path>,
    /// Threads that run the backbone; 0 counts as 1.
    pub threads: usize,
}

/// The features of a source's pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureSet {
    /// Shape `[n, d]`, not standardised.
    pub features: Array2<f32>,
    /// Index of each example's class, length n.
    pub labels: Vec<u8>,
    /// Name of each example's picture, length n.
    pub names: Vec<String>,
    /// The class names that the labels index.
    pub classes: Vec<String>,
    /// Digest of the backbone that made the features.
    pub backbone: [u8; 32],
    /// Size of the pictures that the backbone saw.
    pub size: InputSize,
    /// Pictures that were left out, by name.
    pub skipped: Vec<Skipped>,
    /// How many examples went through the backbone.
    pub extracted: usize,
    /// How many examples came from the cache.
    pub cached: usize,
}

/// Why there are no features.
#[derive(Debug, thiserror::Error)]
pub enum FeatureError {
    /// The source cannot be used.
    #[error(transparent)]
    Pictures(#[from] PictureError),
    /// The backbone refused a batch; a mistake of ours.
    #[error(transparent)]
    Backbone(#[from] BackboneError),
    /// The caller asked to stop.
    #[error("extraction cancelled")]
    Cancelled,
}

/// Loads a source and gives each of its usable pictures its features.
///
/// - `progress`: called with the pictures done and in total, first for what the cache had, then after each batch, from
///   the threads that work.
/// - `cancel`: looked at before each batch; extracted features stay in the cache.
///
/// # Errors
/// [`FeatureError`]; broken pictures are no error but listed in [`FeatureSet::skipped`].
pub fn extract_dataset(
    backbone: &Backbone,
    extraction: &Extraction<'_>,
    progress: &(dyn Fn(usize, usize) + Sync),
    cancel: &AtomicBool,
) -> Result<FeatureSet, FeatureError> {
    let Extraction {
        source,
        classes,
        size,
        cache_dir,
        threads,
    } = *extraction;
    pictures::check_size(size)?;
    let dataset = pictures::load(source, classes)?;
    let total = dataset.samples().len();
    let cache = cache_dir
        .and_then(|folder| Cache::open(folder, backbone.digest(), size, backbone.features()));
    let mut rows: Vec<Row> = dataset
        .samples()
        .iter()
        .map(|sample| {
            let cache = cache.as_ref()?;
            cache.get(&cache.key(&sample.digest)).map(Ok)
        })
        .collect();
    let missing: Vec<usize> = (0..total).filter(|&index| rows[index].is_none()).collect();
    let cached = total - missing.len();
    progress(cached, total);

    let work = Work {
        backbone,
        dataset: &dataset,
        cache: cache.as_ref(),
        size,
        progress,
        cancel,
        missing: &missing,
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(cached),
        outcome: Mutex::new(Ok(&mut rows)),
    };
    let threads = threads.clamp(1, missing.len().div_ceil(BATCH).max(1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work.run());
        }
    });
    let outcome = work.outcome.into_inner();
    outcome.unwrap_or_else(PoisonError::into_inner)?;
    if cancel.load(Ordering::Relaxed) && rows.iter().any(Option::is_none) {
        return Err(FeatureError::Cancelled);
    }
    Ok(assemble(backbone, extraction, &dataset, rows, cached))
}

/// What is known of one sample: nothing yet, its features, or why it has none.
type Row = Option<Result<Vec<f32>, SkipReason>>;

/// What the extracting threads share.
struct Work<'a> {
    backbone: &'a Backbone,
    dataset: &'a Dataset,
    cache: Option<&'a Cache>,
    size: InputSize,
    progress: &'a (dyn Fn(usize, usize) + Sync),
    cancel: &'a AtomicBool,
    /// Samples without features.
    missing: &'a [usize],
    /// The next batch that nobody has taken.
    next: AtomicUsize,
    /// Samples that are finished.
    done: AtomicUsize,
    /// The rows of all samples, or the first error.
    outcome: Mutex<Result<&'a mut Vec<Row>, BackboneError>>,
}

impl Work<'_> {
    /// Takes batches until none is left, the caller cancels, or a thread fails.
    fn run(&self) {
        loop {
            let batch = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(batch) = self.missing.chunks(BATCH).nth(batch) else {
                return;
            };
            if self.cancel.load(Ordering::Relaxed) {
                return;
            }
            let rows = self.extract(batch);
            let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match (rows, &mut *outcome) {
                (Ok(rows), Ok(all)) => {
                    for (&index, row) in batch.iter().zip(rows) {
                        all[index] = Some(row);
                    }
                }
                (Err(error), Ok(_)) => {
                    *outcome = Err(error);
                    return;
                }
                (_, Err(_)) => return,
            }
            drop(outcome);
            let done = self.done.fetch_add(batch.len(), Ordering::Relaxed) + batch.len();
            (self.progress)(done, self.dataset.samples().len());
        }
    }

    fn extract(&self, batch: &[usize]) -> Result<Vec<Result<Vec<f32>, SkipReason>>, BackboneError> {
        let mut good = Vec::new();
        let mut pictures = Vec::new();
        let mut rows = vec![Err(SkipReason::Damaged); batch.len()];
        for (place, &index) in batch.iter().enumerate() {
            match self.dataset.decode(index, self.size) {
                Ok(picture) => {
                    pictures.push(picture);
                    good.push(place);
                }
                Err(reason) => rows[place] = Err(reason),
            }
        }
        let features = self.backbone.extract(&pictures)?;
        for (&place, vector) in good.iter().zip(features.rows()) {
            rows[place] = Ok(vector.to_vec());
        }
        if let Some(cache) = self.cache {
            let samples = self.dataset.samples();
            cache.append(batch.iter().zip(&rows).filter_map(|(&index, row)| {
                let values = row.as_ref().ok()?;
                Some((cache.key(&samples[index].digest), values.as_slice()))
            }));
        }
        Ok(rows)
    }
}

fn assemble(
    backbone: &Backbone,
    extraction: &Extraction<'_>,
    dataset: &Dataset,
    rows: Vec<Row>,
    cached: usize,
) -> FeatureSet {
    let mut set = FeatureSet {
        features: Array2::zeros((0, backbone.features())),
        labels: Vec::new(),
        names: Vec::new(),
        classes: extraction.classes.to_vec(),
        backbone: backbone.digest(),
        size: extraction.size,
        skipped: dataset.skipped().to_vec(),
        extracted: 0,
        cached,
    };
    for (sample, row) in dataset.samples().iter().zip(rows) {
        match row.unwrap_or(Err(SkipReason::Damaged)) {
            Ok(vector) => {
                set.features
                    .push_row(ArrayView1::from(&vector))
                    .expect("every row has the backbone's length");
                set.labels.push(sample.label);
                set.names.push(sample.name.clone());
            }
            Err(reason) => set.skipped.push(Skipped {
                name: sample.name.clone(),
                reason,
            }),
        }
    }
    set.skipped.sort();
    set.extracted = set.labels.len() - cached;
    set
}

/// Lower-case hex digits of some bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
