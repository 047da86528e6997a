//! Records which pages commits change while the store is copied. If the copy's snapshot ends, these
//! pages are copied again.
//!
//! Invariant: a page of a visible commit is recorded if the commit was appended after recording
//! began. Nothing fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use pagekeeper_kernel::mutex::lock;

use crate::core::Core;
use crate::{PageNo, Seq};
use pagekeeper_wal::Lsn;

/// Changed pages, each with the last commit that changed it.
type ChangedPages = HashMap<PageNo, Seq>;

/// Records changed pages while a copy is in progress.
#[derive(Debug, Default)]
pub(crate) struct ChangeRecorder {
    is_noting: AtomicBool,
    noted: Mutex<ChangedPages>,
    /// Held by the copy in progress.
    copying: Mutex<()>,
}

impl ChangeRecorder {
    /// Records that a commit changes these pages. Called under the tail's lock, before the commit
    /// is visible.
    pub(crate) fn note(&self, seq: Seq, pages: impl Iterator<Item = PageNo>) {
        if self.is_noting.load(Ordering::Acquire) {
            lock(&self.noted).extend(pages.map(|page| (page, seq)));
        }
    }
}

/// Records changed pages until it is dropped.
pub(crate) struct ChangeRecording<'a> {
    changes: &'a ChangeRecorder,
    _alone: MutexGuard<'a, ()>,
}

impl<'a> ChangeRecording<'a> {
    /// Waits until no other copy is in progress, then records from the next commit on. Returns the
    /// LSN behind the last commit that is not recorded.
    pub(crate) fn begin(core: &'a Core) -> (Self, Lsn) {
        let noting = Self { changes: &core.changes, _alone: lock(&core.changes.copying) };
        let tail = lock(&core.tail);
        core.changes.is_noting.store(true, Ordering::Release);
        (noting, tail.lsn)
    }

    /// Returns the pages that were changed so far, sorted. Pages that commits after `seq` changed
    /// stay recorded.
    pub(crate) fn upto(&self, seq: Seq) -> Vec<PageNo> {
        let mut noted = lock(&self.changes.noted);
        let mut pages: Vec<_> = noted.keys().copied().collect();
        noted.retain(|_, by| *by > seq);
        pages.sort_unstable();
        pages
    }
}

impl Drop for ChangeRecording<'_> {
    fn drop(&mut self) {
        self.changes.is_noting.store(false, Ordering::Release);
        // A commit that has just seen the flag may still record pages. They are useless, and go
        // when the next copy ends.
        *lock(&self.changes.noted) = ChangedPages::new();
    }
}
