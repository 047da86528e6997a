//! The priority of a file's pages beside those of other files.

use crate::entry::{FREQUENCY_MAX, QueueKind};

/// How long a file's pages stay in the cache beside those of other files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FilePriority {
    /// They are evicted in the order in which they came, however often they are read: for a file
    /// that is read through, such as the input of a compaction.
    Low,
    /// They stay the longer the more often they are read.
    #[default]
    Normal,
    /// They begin as pages that are read often: for indexes and filters. Pages that nobody reads go
    /// in the end.
    High,
}

impl FilePriority {
    /// Returns the queue of a loaded page, where that does not depend on its past.
    pub(crate) fn queue(self) -> Option<QueueKind> {
        match self {
            Self::Low => Some(QueueKind::Small),
            Self::Normal => None,
            Self::High => Some(QueueKind::Main),
        }
    }

    /// Returns the frequency of a page that was just loaded.
    pub(crate) fn first_frequency(self) -> u32 {
        if self == Self::High { FREQUENCY_MAX } else { 0 }
    }

    /// Returns the frequency by which it is decided whether a page stays.
    pub(crate) fn counted(self, frequency: u32) -> u32 {
        if self == Self::Low { 0 } else { frequency }
    }
}
