//! How a tier tells whoever embeds it (the demo, tests) what happens, in a type of events of its own.

use std::fmt;
use std::sync::Arc;

/// Is told every event of a tier, in order for each of its parts. It is called from the tier's own tasks and threads and
/// must not block. The default does nothing.
pub struct Observer<E>(Arc<dyn Fn(E) + Send + Sync>);

impl<E> Observer<E> {
    /// Calls `see` for each event.
    pub fn new(see: impl Fn(E) + Send + Sync + 'static) -> Self {
        Self(Arc::new(see))
    }

    /// Tells one event.
    pub fn tell(&self, event: E) {
        (self.0)(event);
    }
}

impl<E> Clone for Observer<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: 'static> Default for Observer<E> {
    fn default() -> Self {
        Self::new(drop)
    }
}

impl<E> fmt::Debug for Observer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
