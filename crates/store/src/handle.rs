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
