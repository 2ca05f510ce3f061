//! Model versions as folders of files in an object store; today a local folder.
//!
//! `{job}/v{n}/` holds the frame, the model and the state as safetensors, and last `metadata.json`, so that a version
//! with metadata is complete. Every write is durable when it returns (files and folders are flushed). What is read is
//! held against the digest in the version's record, and a version whose state is damaged is gone on from by its frame.

mod metadata;
mod tensors;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use metadata::{Metadata, name};

use crate::federation::{Gate, Model, NewVersion};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use tensors::Tensor;
use wayside_domain::ids::{Digest, JobId, ModelVersion};
use wayside_domain::job::JobSpec;
use wayside_domain::schema::{MAX_PARAMETERS, Schema};
use wayside_proto::codec;

/// Most bytes of a file that is read back: a state of [`MAX_PARAMETERS`] three times, as an adaptive server optimizer
/// leaves it (master, first and second moment, in F64), and its header.
const MAX_FILE_BYTES: u64 = 3 * 8 * MAX_PARAMETERS as u64 + (1 << 20);

/// Why a version could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum VersionsError {
    /// The folder cannot be made or opened.
    #[error("storage folder {}: {reason}: fix its owner and permissions, or name another folder in storage.path", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The object store refused; a retry may help.
    #[error("object store: {0}")]
    Store(#[from] object_store::Error),
    /// The content is not what was written.
    #[error("{uri}: damaged, {reason}")]
    Damaged {
        /// Which file.
        uri: String,
        /// What was noticed.
        reason: &'static str,
    },
}

/// All versions of all jobs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Versions {
    store: Arc<LocalFileSystem>,
    root: PathBuf,
}

impl Versions {
    /// Opens the folder, making it if it is absent. Blocks.
    ///
    /// # Errors
    /// [`VersionsError::Folder`] with a remedy.
    pub fn open(root: &Path) -> Result<Self, VersionsError> {
        let failed = |reason: String| VersionsError::Folder {
            path: root.to_owned(),
            reason,
        };
        std::fs::create_dir_all(root).map_err(|error| failed(error.to_string()))?;
        let probe = root.join(".probe.wayside-tmp");
        std::fs::write(&probe, b"probe")
            .and_then(|()| std::fs::remove_file(&probe))
            .map_err(|error| failed(error.to_string()))?;
        let path = std::fs::canonicalize(root).map_err(|error| failed(error.to_string()))?;
        let store = LocalFileSystem::new_with_prefix(&path)
            .map_err(|error| failed(error.to_string()))?
            .with_fsync(true);
        Ok(Self {
            store: Arc::new(store),
            root: path,
        })
    }

    /// Writes a version: its files, then its metadata. Writing it again replaces it.
    ///
    /// # Errors
    /// [`VersionsError::Store`]; the version is then not complete and not to be shown.
    pub async fn write(
        &self,
        spec: &JobSpec,
        schema: &Schema,
        version: &NewVersion,
        parent: Option<&Metadata>,
    ) -> Result<Metadata, VersionsError> {
        let job = &spec.job;
        let files = [
            (name::FRAME, version.frame.clone()),
            (name::MODEL, model_file(spec, schema, version)),
            (name::STATE, state_file(version)),
        ];
        let digests: BTreeMap<_, _> = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), codec::digest(bytes).to_hex()))
            .collect();
        let parent_commit = parent.map_or(String::new(), |parent| parent.last_commit.clone());
        let uris = files.iter().map(|(name, _)| *name).chain([name::METADATA]);
        let uris = uris.map(|name| (name.to_owned(), self.uri(job, version.version, name)));
        let evaluation = version.evaluation.as_ref();
        let metadata = Metadata {
            job: job.to_string(),
            version: version.version.0,
            parent: version.parent.0,
            last_commit: commit(job, version.version, &digests, &parent_commit).to_hex(),
            parent_commit,
            completed_rounds: version.merge_round.0,
            created_ms: version.created.0,
            released: version.gate == Gate::Released,
            gate: match &version.gate {
                Gate::Released => String::new(),
                Gate::KeptBack { reason } => reason.clone(),
            },
            num_examples: version.num_examples,
            contributors: version.contributors,
            exact: version.exact,
            val_accuracy: evaluation.map(|e| e.accuracy),
            macro_recall: evaluation.map(|e| e.macro_recall),
            loss: evaluation.map(|e| e.loss).filter(|loss| loss.is_finite()),
            frame_bytes: version.frame.len() as u64,
            uris: uris.collect(),
            digests,
        };
        for (name, bytes) in files {
            self.store
                .put(&location(job, version.version, name), bytes.into())
                .await?;
        }
        let text = serde_json::to_vec_pretty(&metadata).map_err(|_| VersionsError::Damaged {
            uri: self.uri(job, version.version, name::METADATA),
            reason: "cannot be written as JSON",
        })?;
        self.store
            .put(&location(job, version.version, name::METADATA), text.into())
            .await?;
        Ok(metadata)
    }

    /// The bytes of one of a version's files, as they were written.
    ///
    /// # Errors
    /// [`VersionsError::Damaged`] if they differ from the record's digest.
    pub async fn read(
        &self,
        metadata: &Metadata,
        job: &JobId,
        name: &str,
    ) -> Result<Vec<u8>, VersionsError> {
        let version = ModelVersion(metadata.version);
        let bytes = self.fetch(&location(job, version, name)).await?;
        if metadata.digest(name) != Some(codec::digest(&bytes)) {
            return Err(VersionsError::Damaged {
                uri: self.uri(job, version, name),
                reason: "its digest differs from the version's record",
            });
        }
        Ok(bytes)
    }

    /// What the next version starts from. Where the state is damaged, the rounded values of the frame stand in for it.
    ///
    /// # Errors
    /// [`VersionsError`] if neither state nor frame can be used.
    pub async fn model(
        &self,
        metadata: &Metadata,
        job: &JobId,
        schema: &Schema,
    ) -> Result<Model, VersionsError> {
        let version = ModelVersion(metadata.version);
        let frame = self.read(metadata, job, name::FRAME).await;
        let state = self.read(metadata, job, name::STATE).await;
        let state = state.and_then(|bytes| {
            read_state(&bytes, schema.num_parameters()).ok_or_else(|| VersionsError::Damaged {
                uri: self.uri(job, version, name::STATE),
                reason: "not the tensors of a state",
            })
        });
        let (master, optimizer) = match state {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(%job, %version, %error, "state of version damaged, going on from its frame");
                let parameters = codec::decode_model(frame.as_deref().unwrap_or_default(), schema);
                let parameters = parameters.map_err(|_| error)?;
                (parameters.into_iter().map(f64::from).collect(), Vec::new())
            }
        };
        frame?;
        let frame_digest = metadata
            .digest(name::FRAME)
            .ok_or_else(|| VersionsError::Damaged {
                uri: self.uri(job, version, name::METADATA),
                reason: "no digest of the frame",
            })?;
        Ok(Model {
            version,
            master,
            optimizer,
            accuracy: metadata.val_accuracy,
            frame_digest,
            frame_bytes: metadata.frame_bytes,
        })
    }

    /// The complete versions of a job as their own metadata describe them: what a lost store is refilled from.
    ///
    /// # Errors
    /// [`VersionsError::Store`]; damaged metadata are passed over with a WARN.
    pub async fn scan(
        &self,
        job: &JobId,
    ) -> Result<BTreeMap<ModelVersion, Metadata>, VersionsError> {
        let listed = self
            .store
            .list_with_delimiter(Some(&Location::from(job.as_str())))
            .await?;
        let mut versions = BTreeMap::new();
        for folder in listed.common_prefixes {
            let location = folder.join(name::METADATA);
            let Ok(bytes) = self.fetch(&location).await else {
                continue;
            };
            match serde_json::from_slice::<Metadata>(&bytes) {
                Ok(metadata) if metadata.job == job.as_str() => {
                    versions.insert(ModelVersion(metadata.version), metadata);
                }
                _ => {
                    tracing::warn!(%job, file = %location, "metadata damaged, version passed over");
                }
            }
        }
        Ok(versions)
    }

    async fn fetch(&self, location: &Location) -> Result<Vec<u8>, VersionsError> {
        let found = self.store.get(location).await?;
        if found.meta.size > MAX_FILE_BYTES {
            return Err(VersionsError::Damaged {
                uri: location.to_string(),
                reason: "larger than any version's file",
            });
        }
        Ok(found.bytes().await?.to_vec())
    }

    fn uri(&self, job: &JobId, version: ModelVersion, name: &str) -> String {
        let path = self.root.join(location(job, version, name).as_ref());
        let mut uri = "file://".to_owned();
        for byte in path.as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
                uri.push(char::from(*byte));
            } else {
                let _ = write!(uri, "%{byte:02X}");
            }
        }
        uri
    }
}

fn location(job: &JobId, version: ModelVersion, name: &str) -> Location {
    Location::from(format!("{job}/{version}/{name}"))
}

/// The version's place in the chain of versions: a change to any file or any ancestor changes it.
fn commit(
    job: &JobId,
    version: ModelVersion,
    digests: &BTreeMap<String, String>,
    parent: &str,
) -> Digest {
    let mut text = format!("wayside-version-1\n{job}\n{}\n", version.0);
    for (name, digest) in digests {
        let _ = writeln!(text, "{name} {digest}");
    }
    let _ = writeln!(text, "parent {parent}");
    codec::digest(text.as_bytes())
}

fn model_file(spec: &JobSpec, schema: &Schema, version: &NewVersion) -> Vec<u8> {
    let tensors: Vec<_> = schema
        .tensors()
        .iter()
        .zip(schema.ranges())
        .map(|(tensor, range)| Tensor {
            name: &tensor.name,
            dtype: "F32",
            shape: tensor.shape.clone(),
            data: tensors::f32_bytes(&version.parameters[range]),
        })
        .collect();
    let metadata = BTreeMap::from([
        ("job", spec.job.to_string()),
        ("version", version.version.0.to_string()),
        ("classes", spec.model.classes.join(",")),
        (
            "backbone",
            spec.model.backbone.map_or(String::new(), Digest::to_hex),
        ),
        (
            "input_size",
            format!("{}x{}", spec.model.input_height, spec.model.input_width),
        ),
    ]);
    tensors::write(&tensors, &metadata)
}

fn state_file(version: &NewVersion) -> Vec<u8> {
    let tensor = |name, values: &[f64]| Tensor {
        name,
        dtype: "F64",
        shape: vec![values.len()],
        data: tensors::f64_bytes(values),
    };
    let tensors = [
        tensor("master", &version.master),
        tensor("optimizer", &version.optimizer),
    ];
    let metadata = BTreeMap::from([("version", version.version.0.to_string())]);
    tensors::write(&tensors, &metadata)
}

fn read_state(bytes: &[u8], parameters: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let file = safetensors::SafeTensors::deserialize(bytes).ok()?;
    let master = tensors::read_f64(&file, "master")?;
    let optimizer = tensors::read_f64(&file, "optimizer")?;
    let finite = master
        .iter()
        .chain(&optimizer)
        .all(|value| value.is_finite());
    (master.len() == parameters && finite).then_some((master, optimizer))
}

#[cfg(test)]
mod tests;
