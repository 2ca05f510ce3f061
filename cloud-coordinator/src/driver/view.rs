//! What others see of a job: a snapshot that its driver replaces once a change is durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::federation::{Federation, JobState, Progress};
use crate::job::Definition;
use crate::versions::Metadata;
use wayside_domain::ids::{Digest, JobId, ModelVersion};
use wayside_proto::convert::JobPlan;

/// A job at one point in time.
#[derive(Clone, Debug)]
pub(crate) struct JobView {
    pub(crate) definition: Arc<Definition>,
    pub(crate) state: JobState,
    pub(crate) progress: Progress,
    pub(crate) accuracy: Option<f64>,
    pub(crate) plan: JobPlan,
    pub(crate) versions: Arc<BTreeMap<ModelVersion, Metadata>>,
}

impl JobView {
    pub(crate) fn of(
        definition: &Arc<Definition>,
        machine: &Federation,
        versions: &Arc<BTreeMap<ModelVersion, Metadata>>,
    ) -> Self {
        let progress = machine.progress().clone();
        let model = machine.model();
        let state = machine.state();
        let plan = machine.plan(&definition.spec);
        Self {
            definition: Arc::clone(definition),
            state,
            accuracy: model.accuracy,
            progress,
            plan,
            versions: Arc::clone(versions),
        }
    }

    pub(crate) fn job(&self) -> &JobId {
        &self.definition.spec.job
    }

    /// The version whose frame has this digest; the newest, if several have the same.
    pub(crate) fn by_frame(&self, digest: Digest) -> Option<&Metadata> {
        let name = crate::versions::name::FRAME;
        self.versions
            .values()
            .rev()
            .find(|version| version.digest(name) == Some(digest))
    }
}
