//! A transaction's handle on the store: a reference, or a shared owner that keeps the store open.
//!
//! Invariant: the store is open as long as a handle exists. Dropping the last shared owner closes
//! the store, and so waits until all commits are durable.

use std::ops::Deref;
use std::sync::Arc;

use crate::core::Core;
use crate::writer::BeginWrite;
use crate::{Error, Store};

/// A handle on the store.
#[derive(Clone)]
pub(crate) enum StoreHandle<'a> {
    /// The store outlives the handle.
    Borrowed(&'a Core),
    /// The handle is one of the owners of the store.
    Shared(Arc<Store>),
}

impl Deref for StoreHandle<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        match self {
            Self::Borrowed(core) => core,
            Self::Shared(store) => store.core(),
        }
    }
}

/// The held lock of the write transaction: at most one exists.
pub(crate) struct WriterGuard<'a>(StoreHandle<'a>);

impl<'a> WriterGuard<'a> {
    /// Waits until no other transaction of this store holds it. Fails as [`WriterLock::acquire`]
    /// does.
    ///
    /// [`WriterLock::acquire`]: crate::writer::WriterLock::acquire
    pub(crate) fn lock(core: StoreHandle<'a>, begin: BeginWrite) -> Result<Self, Error> {
        core.writer.acquire(begin)?;
        Ok(Self(core))
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        if self.0.process.is_current() {
            self.0.writer.release();
        }
    }
}
