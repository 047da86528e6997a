//! Which pages commits change while somebody copies the store: what has to be copied again once the snapshot was ended that a copy began
//! with.
//!
//! Invariant: a page of a commit that is visible is noted, if the commit was appended since noting began. Nothing fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use pagekeeper_kernel::mutex::lock;

use crate::core::Core;
use crate::{PageNo, Seq};

/// What was changed, by which commit last.
type Changed = HashMap<PageNo, Seq>;

/// Notes pages while there is a copy under way.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    is_noting: AtomicBool,
    noted: Mutex<Changed>,
    /// Held by the copy that is under way.
    copying: Mutex<()>,
}

impl Changes {
    /// A commit changes these pages. Under the tail's lock, before it is visible.
    pub(crate) fn note(&self, seq: Seq, pages: impl Iterator<Item = PageNo>) {
        if self.is_noting.load(Ordering::Acquire) {
            lock(&self.noted).extend(pages.map(|page| (page, seq)));
        }
    }
}

/// Noting goes on until it is dropped.
pub(crate) struct Noting<'a> {
    changes: &'a Changes,
    _alone: MutexGuard<'a, ()>,
}

impl<'a> Noting<'a> {
    /// Begins with the next commit, when no other copy is under way any more. Gives the LSN behind the last one that is not noted.
    pub(crate) fn begin(core: &'a Core) -> (Self, u64) {
        let noting = Self { changes: &core.changes, _alone: lock(&core.changes.copying) };
        let tail = lock(&core.tail);
        core.changes.is_noting.store(true, Ordering::Release);
        (noting, tail.lsn)
    }

    /// The pages that were changed so far, sorted. Those that commits after `seq` changed stay noted.
    pub(crate) fn upto(&self, seq: Seq) -> Vec<PageNo> {
        let mut noted = lock(&self.changes.noted);
        let mut pages: Vec<_> = noted.keys().copied().collect();
        noted.retain(|_, by| *by > seq);
        pages.sort_unstable();
        pages
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        self.changes.is_noting.store(false, Ordering::Release);
        // What a commit notes that has just seen it on is of no use, and goes with the next copy's.
        *lock(&self.changes.noted) = Changed::new();
    }
}
