//! Sums of figures: of files, of waits, and of releases.

use std::time::Duration;

use pagekeeper_guard::Done;
use pagekeeper_observe::File;
use pagekeeper_policy::FileClass;
use serde::{Serialize, Serializer};

/// The class of files whose profile states none.
pub(crate) const OTHER_CLASS: &str = "other";

/// Returns the label of a file class.
pub(crate) fn class_label(class: Option<FileClass>) -> &'static str {
    class.map_or(OTHER_CLASS, FileClass::as_str)
}

/// Figures of files of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct FileTotals {
    #[serde(rename = "files")]
    pub(crate) count: u64,
    pub(crate) size: u64,
    /// The number of unreadable files, which the following figures exclude.
    pub(crate) unreadable: u64,
    pub(crate) resident: u64,
    /// `None` if it is unknown for one of them.
    pub(crate) dirty: Option<u64>,
    #[serde(skip)]
    pub(crate) writeback: Option<u64>,
}

impl FileTotals {
    /// Returns the figures of one file.
    pub(crate) fn of(file: &File) -> Self {
        let one = Self { count: 1, size: file.size, ..Self::default() };
        match file.residency {
            None => Self { unreadable: 1, ..one },
            Some(residency) => Self {
                resident: residency.resident,
                dirty: residency.dirty,
                writeback: residency.writeback,
                ..one
            },
        }
    }

    /// Whether any of the files could be read.
    pub(crate) fn is_seen(&self) -> bool {
        self.count > self.unreadable
    }

    /// Adds the figures of further files.
    pub(crate) fn add(&mut self, more: &Self) {
        if !self.is_seen() {
            (self.dirty, self.writeback) = (more.dirty, more.writeback);
        } else if more.is_seen() {
            self.dirty = self.dirty.zip(more.dirty).map(|(a, b)| a + b);
            self.writeback = self.writeback.zip(more.writeback).map(|(a, b)| a + b);
        }
        self.count += more.count;
        self.size += more.size;
        self.unreadable += more.unreadable;
        self.resident += more.resident;
    }
}

/// Waits of tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TaskWaits {
    /// Pauses because of dirty pages.
    pub(crate) pauses: u64,
    #[serde(serialize_with = "as_seconds")]
    pub(crate) throttled: Duration,
    /// Direct reclaim.
    pub(crate) stalls: u64,
    #[serde(serialize_with = "as_seconds")]
    pub(crate) stalled: Duration,
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl TaskWaits {
    /// Adds further waits.
    pub(crate) fn add(&mut self, more: &Self) {
        self.pauses += more.pauses;
        self.throttled = self.throttled.saturating_add(more.throttled);
        self.stalls += more.stalls;
        self.stalled = self.stalled.saturating_add(more.stalled);
    }
}

/// The guard's actions on files. Sizes are in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReleaseTotals {
    /// Releases, and starts of writeback.
    pub(crate) acts: u64,
    pub(crate) released: u64,
    /// Bytes that resisted.
    pub(crate) kept: u64,
    /// Bytes that were released, and read back since.
    pub(crate) read_back: u64,
}

impl ReleaseTotals {
    /// Returns the effect of one tick.
    pub(crate) fn of(done: &Done) -> Self {
        Self {
            acts: done.acts,
            released: done.released_bytes,
            kept: done.kept_bytes,
            read_back: done.read_back_bytes,
        }
    }

    /// Adds further actions.
    pub(crate) fn add(&mut self, more: &Self) {
        self.acts += more.acts;
        self.released += more.released;
        self.kept += more.kept;
        self.read_back += more.read_back;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_of_one_file_makes_its_class_unknown() {
        let file = |dirty| FileTotals {
            count: 1,
            size: 10_000,
            resident: 8192,
            dirty,
            writeback: Some(0),
            ..FileTotals::default()
        };
        let unreadable = FileTotals { count: 1, size: 10_000, unreadable: 1, ..FileTotals::default() };
        let mut files = FileTotals::default();
        for more in [unreadable, file(Some(4096)), unreadable, file(Some(4096))] {
            files.add(&more);
        }
        let expected = FileTotals {
            count: 4,
            size: 40_000,
            unreadable: 2,
            resident: 16_384,
            dirty: Some(8192),
            writeback: Some(0),
        };
        assert_eq!(files, expected);
        files.add(&file(None));
        assert_eq!((files.dirty, files.writeback), (None, Some(0)));
    }
}
