//! What a transaction has of the store: a reference, or a share of it that keeps it open.
//!
//! Invariant: as long as it lives the store is open. Who drops the last share closes the store, and so waits until all commits are
//! durable.

use std::ops::Deref;
use std::sync::Arc;

use crate::Store;
use crate::core::Core;

/// It.
#[derive(Clone)]
pub(crate) enum Handle<'a> {
    /// The store outlives it.
    Borrowed(&'a Core),
    /// It is one of those that keep the store.
    Shared(Arc<Store>),
}

impl Deref for Handle<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        match self {
            Self::Borrowed(core) => core,
            Self::Shared(store) => store.core(),
        }
    }
}

/// The lock of the write transaction while it is held: at most one lives.
pub(crate) struct WriterGuard<'a>(Handle<'a>);

impl<'a> WriterGuard<'a> {
    /// Waits until nobody has that store's.
    pub(crate) fn lock(core: Handle<'a>) -> Self {
        core.writer.acquire();
        Self(core)
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        if self.0.process.is_current() {
            self.0.writer.release();
        }
    }
}
