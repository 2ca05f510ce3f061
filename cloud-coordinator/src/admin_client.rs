//! An operator's calls, for the command line and for whoever embeds a coordinator.

use std::path::Path;
use std::time::Duration;

use crate::service::{EXIT_HEADER, MAX_ADMIN_BYTES};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use wayside_host::exit::{Exit, Failure};
use wayside_host::files;
use wayside_proto::wire;
use wayside_proto::wire::services::admin_client::AdminClient as Generated;

/// Time to reach the coordinator.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Time for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest exported model, in bytes.
const MAX_MODEL_BYTES: usize = 1 << 30;

/// A connection to a coordinator. Each call's error is a [`Failure`]: one line and an exit code.
#[derive(Clone, Debug)]
pub struct AdminClient {
    inner: Generated<Channel>,
}

/// Which version is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The released one.
    Latest,
    /// The one with this number.
    Version(u64),
}

impl std::str::FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix('v').unwrap_or(text) {
            "latest" => Ok(Self::Latest),
            number => number
                .parse()
                .map(Self::Version)
                .map_err(|_| "expected a version's number or `latest`".to_owned()),
        }
    }
}

impl AdminClient {
    /// Connects to `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`Exit::Unreachable`] with the address, [`Exit::Usage`] if it is not one.
    pub async fn connect(server: &str) -> Result<Self, Failure> {
        let endpoint = Endpoint::from_shared(server.to_owned())
            .ok()
            .filter(|endpoint| endpoint.uri().host().is_some())
            .ok_or_else(|| {
                Failure::new(
                    Exit::Usage,
                    format!("server {server}: not an address: write http://HOST:PORT"),
                )
            })?;
        if endpoint.uri().scheme_str() != Some("http") {
            return Err(Failure::new(
                Exit::Usage,
                format!("server {server}: write http://HOST:PORT"),
            ));
        }
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL_TIMEOUT);
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await;
        let channel = connecting.ok().and_then(Result::ok).ok_or_else(|| {
            let message = format!(
                "coordinator at {server} cannot be reached: start it, or name it with --server"
            );
            Failure::new(Exit::Unreachable, message)
        })?;
        let inner = Generated::new(channel).max_decoding_message_size(MAX_ADMIN_BYTES);
        Ok(Self { inner })
    }

    /// Creates a job from the text of a `job.toml`; `base_dir`, an absolute path on the coordinator's machine, is where
    /// its relative paths start.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn create_job(
        &mut self,
        toml: String,
        base_dir: &Path,
    ) -> Result<wire::JobInfo, Failure> {
        let base_dir = base_dir.to_string_lossy().into_owned();
        let request = wire::CreateJobRequest { toml, base_dir };
        Ok(self
            .inner
            .create_job(request)
            .await
            .map_err(failure)?
            .into_inner())
    }

    /// All jobs.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn list_jobs(&mut self) -> Result<Vec<wire::JobInfo>, Failure> {
        let reply = self.inner.list_jobs(wire::ListJobsRequest {}).await;
        Ok(reply.map_err(failure)?.into_inner().jobs)
    }

    /// One job; an empty name means the only one, here and below.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn show_job(&mut self, job: &str) -> Result<wire::JobInfo, Failure> {
        let request = wire::JobRequest {
            job: job.to_owned(),
        };
        Ok(self
            .inner
            .show_job(request)
            .await
            .map_err(failure)?
            .into_inner())
    }

    /// Pauses or resumes a job.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn set_job_paused(
        &mut self,
        job: &str,
        paused: bool,
    ) -> Result<wire::JobInfo, Failure> {
        let request = wire::SetJobPausedRequest {
            job: job.to_owned(),
            paused,
        };
        Ok(self
            .inner
            .set_job_paused(request)
            .await
            .map_err(failure)?
            .into_inner())
    }

    /// All versions of a job.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn list_models(&mut self, job: &str) -> Result<Vec<wire::ModelInfo>, Failure> {
        let request = wire::JobRequest {
            job: job.to_owned(),
        };
        Ok(self
            .inner
            .list_models(request)
            .await
            .map_err(failure)?
            .into_inner()
            .models)
    }

    /// One version.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn show_model(
        &mut self,
        job: &str,
        which: Which,
    ) -> Result<wire::ModelInfo, Failure> {
        let reply = self.inner.show_model(model_request(job, which)).await;
        Ok(reply.map_err(failure)?.into_inner())
    }

    /// Makes a version the released one.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn rollback(&mut self, job: &str, version: u64) -> Result<wire::ModelInfo, Failure> {
        let reply = self
            .inner
            .rollback(model_request(job, Which::Version(version)))
            .await;
        Ok(reply.map_err(failure)?.into_inner())
    }

    /// The `model.safetensors` of a version.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn export_model(&mut self, job: &str, which: Which) -> Result<Vec<u8>, Failure> {
        let reply = self.inner.export_model(model_request(job, which)).await;
        let mut pieces = reply.map_err(failure)?.into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.message().await.map_err(failure)? {
            if piece.offset != bytes.len() as u64
                || bytes.len() + piece.data.len() > MAX_MODEL_BYTES
            {
                return Err(Failure::new(
                    Exit::Refused,
                    "the coordinator sent pieces that do not fit together",
                ));
            }
            bytes.extend_from_slice(&piece.data);
        }
        Ok(bytes)
    }

    /// Writes the `model.safetensors` of a version to a file, as a whole or not at all; gives its size in bytes.
    ///
    /// # Errors
    /// The coordinator's refusal, or the file's.
    pub async fn export_model_to(
        &mut self,
        job: &str,
        which: Which,
        out: &Path,
    ) -> Result<u64, Failure> {
        let bytes = self.export_model(job, which).await?;
        let length = bytes.len() as u64;
        let path = out.to_owned();
        let written = tokio::task::spawn_blocking(move || files::write_atomic(&path, &bytes)).await;
        let written = written.map_err(|error| Failure::new(Exit::Failed, error))?;
        written.map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("{error}: name a file in a writable folder"),
            )
        })?;
        Ok(length)
    }

    /// All merge rounds of a job.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn list_rounds(&mut self, job: &str) -> Result<Vec<wire::RoundInfo>, Failure> {
        let request = wire::JobRequest {
            job: job.to_owned(),
        };
        Ok(self
            .inner
            .list_rounds(request)
            .await
            .map_err(failure)?
            .into_inner()
            .rounds)
    }

    /// Who took part in a merge round, with what verdict.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn explain_round(
        &mut self,
        job: &str,
        merge_round: u64,
    ) -> Result<wire::RoundExplanation, Failure> {
        let request = wire::RoundRequest {
            job: job.to_owned(),
            merge_round,
        };
        Ok(self
            .inner
            .explain_round(request)
            .await
            .map_err(failure)?
            .into_inner())
    }
}

fn model_request(job: &str, which: Which) -> wire::ModelRequest {
    let (version, latest) = match which {
        Which::Latest => (0, true),
        Which::Version(version) => (version, false),
    };
    wire::ModelRequest {
        job: job.to_owned(),
        version,
        latest,
    }
}

fn failure(status: Status) -> Failure {
    let told = status
        .metadata()
        .get(EXIT_HEADER)
        .and_then(|value| value.to_str().ok()?.parse::<u8>().ok());
    let named = Exit::ALL.into_iter().find(|exit| Some(exit.code()) == told);
    let exit = named.unwrap_or(match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Exit::Unreachable,
        _ => Exit::Refused,
    });
    let message = if status.message().is_empty() {
        status.code().description()
    } else {
        status.message()
    };
    Failure::new(exit, message)
}
