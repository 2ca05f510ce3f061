//! The int8 engine as one candle operation.

use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, Tensor};
use wayside_extractor::engine::{EngineError, Model, Session, Stage};
use wayside_extractor::kernels::Isa;
use wayside_extractor::quantized::QuantNetwork;

/// `[n, height, width, 3]` bytes to `[n, features]` f32.
///
/// Each call takes a session and puts it back, so a thread that extracts picture after picture allocates its arena
/// once, and any number of threads may call.
#[derive(Debug)]
pub(super) struct Int8 {
    model: Model,
    /// Sessions that nobody is using.
    idle: Mutex<Vec<Session>>,
}

impl Int8 {
    pub(super) fn new(network: QuantNetwork, isa: Isa) -> std::result::Result<Self, EngineError> {
        Ok(Self {
            model: Model::new(network, isa)?,
            idle: Mutex::new(Vec::new()),
        })
    }

    pub(super) fn features(&self) -> usize {
        self.model.features()
    }

    pub(super) fn isa(&self) -> Isa {
        self.model.isa()
    }

    /// Bytes that one thread works in with pictures of this size.
    pub(super) fn arena_bytes(&self, height: usize, width: usize) -> usize {
        let session = self.take(height, width);
        let bytes = session.arena_bytes();
        self.put_back(session);
        bytes
    }

    /// One picture's way through the network; see [`Session::run_watched`].
    pub(super) fn watch(
        &self,
        rgb: &[u8],
        (height, width): (usize, usize),
        mut watch: impl FnMut(Stage),
    ) {
        let mut session = self.take(height, width);
        let mut features = vec![0.0; self.model.features()];
        session.run_watched(rgb, &mut features, &mut watch);
        self.put_back(session);
    }

    pub(super) fn forward(&self, pictures: &Tensor) -> Result<Tensor> {
        pictures.apply_op1_no_bwd(self)
    }

    fn take(&self, height: usize, width: usize) -> Session {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = idle.iter().position(|one| one.size() == (height, width));
        let taken = fits.map(|index| idle.swap_remove(index));
        if taken.is_none() {
            // Pictures have another size now: the arenas of the old one are of no more use.
            idle.clear();
        }
        drop(idle);
        taken.unwrap_or_else(|| self.model.session(height, width))
    }

    fn put_back(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(session);
    }
}

impl CustomOp1 for Int8 {
    fn name(&self) -> &'static str {
        "int8 features"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, height, width, colours) = layout.shape().dims4()?;
        let CpuStorage::U8(bytes) = storage else {
            return Err(Error::Msg("pictures must be bytes".into()));
        };
        let bytes = match layout.contiguous_offsets() {
            Some((start, end)) if colours == 3 => &bytes[start..end],
            _ => {
                let message = "pictures must be contiguous, [n, height, width, 3]";
                return Err(Error::Msg(message.into()));
            }
        };
        if height == 0 || width == 0 {
            return Err(Error::Msg("pictures must have pixels".into()));
        }
        let length = self.model.features();
        let mut features = vec![0.0; n * length];
        let mut session = self.take(height, width);
        let pictures = bytes.chunks_exact(height * width * 3);
        for (picture, features) in pictures.zip(features.chunks_exact_mut(length)) {
            session.run(picture, features);
        }
        self.put_back(session);
        Ok((CpuStorage::F32(features), Shape::from((n, length))))
    }
}
