//! Opens what a vehicle needs before its link: backbone, pictures, state folder, spool.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{info, warn};
use wayside_domain::ids::{Digest, Generation};
use wayside_domain::network::Network;
use wayside_host::clock::Clock;
use wayside_host::state_dir::StateDir;

use super::{Resources, TIER, blocking};
use crate::backbone::Backbone;
use crate::config::Settings;
use crate::error::RunError;
use crate::event::Observer;
use crate::machine::{Fixed, Vehicle};
use crate::pictures::PictureSource;
use crate::spool::Spool;
use crate::survey::survey;
use crate::work::{Held, Workshop};

/// What is open before the link is.
pub(super) struct Opened {
    pub(super) state: StateDir,
    pub(super) spool: Spool,
    pub(super) generation: Generation,
    pub(super) machine: Vehicle,
    pub(super) specs: Vec<(Digest, Vec<u8>)>,
    pub(super) workshop: Arc<Workshop>,
}

/// Opens everything off the async threads; what is missing is found out before the link is up.
pub(super) async fn open(
    settings: Arc<Settings>,
    resources: Resources,
    clock: Clock,
    observer: Observer,
) -> Result<Opened, RunError> {
    let span = tracing::Span::current();
    blocking(move || {
        let _entered = span.entered();
        open_blocking(&settings, resources, clock, observer)
    })
    .await?
}

fn open_blocking(
    settings: &Settings,
    resources: Resources,
    clock: Clock,
    observer: Observer,
) -> Result<Opened, RunError> {
    let held = if let Some(backbone) = resources.backbone {
        Held::Shared(backbone)
    } else {
        let loaded = Backbone::load(&settings.weights);
        let loaded = loaded.map_err(|source| RunError::Weights {
            path: settings.weights.clone(),
            source,
        })?;
        Held::Own(Some(Arc::new(loaded)))
    };
    let (Held::Shared(backbone) | Held::Own(Some(backbone))) = &held else {
        return Err(RunError::TaskEnded("loading the backbone"));
    };
    let (backbone_digest, features) = (Digest(backbone.digest()), backbone.features());
    info!(engine = %backbone.engine(), backbone = %backbone_digest, features, "backbone loaded");
    let found = check_pictures(settings)?;
    let state = StateDir::open(&settings.state_dir, TIER)?;
    let spool = Spool::open(state.path(), &settings.roadside, clock.now());
    let (spool, mut opened) = spool.map_err(|source| RunError::Store {
        path: settings.state_dir.clone(),
        source,
    })?;
    opened.restored.num_examples = found;
    if let Err(error) = clock.check() {
        // Rounds are ordered by their numbers: the vehicle works, and only its time stamps are wrong.
        warn!(%error);
    }
    info!(
        roadside = %settings.roadside, address = %format_args!("{}:{}", settings.host, settings.port),
        generation = %opened.generation, backbone = %backbone_digest, pictures = found,
        outbox = opened.restored.outbox.len(), jobs = opened.specs.len(), "vehicle open"
    );
    let fixed = Fixed {
        roadside: settings.roadside.clone(),
        backbone: backbone_digest,
        features,
        network: Network::LinearHead,
        resend_after: Duration::from_millis(settings.link.resend_after_ms),
    };
    let workshop = Workshop {
        vehicle: settings.vehicle.clone(),
        source: settings.pictures.clone(),
        weights: settings.weights.clone(),
        backbone_digest,
        backbone: Mutex::new(held),
        threads: settings.threads,
        nice: settings.nice,
        compute: resources.compute,
        payloads: spool.payloads().clone(),
        clock,
        observer,
        features: Mutex::default(),
    };
    Ok(Opened {
        state,
        spool,
        generation: opened.generation,
        machine: Vehicle::new(fixed, opened.restored),
        specs: opened.specs,
        workshop: Arc::new(workshop),
    })
}

/// How many pictures there seem to be.
pub(crate) fn check_pictures(settings: &Settings) -> Result<u64, RunError> {
    let path = match &settings.pictures {
        PictureSource::Folder(path) | PictureSource::Safetensors { path, .. } => path.clone(),
    };
    let found = survey(&settings.pictures).map_err(|error| RunError::Pictures {
        path,
        reason: error.to_string(),
    })?;
    Ok(found.pictures)
}
