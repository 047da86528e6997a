//! Actions that [`crate::step()`] asks for. The caller performs them; none of them can lose a byte.

use std::fmt;
use std::ops::Range;

use crate::FileId;
use crate::disks::disk::Leftovers;

/// One thing to do to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepAction {
    /// Ask the kernel to write the dirty pages of the range, without waiting.
    StartWriteback {
        /// The file.
        file: FileId,
        /// Bytes. Aligned as in [`StepAction::Release`].
        range: Range<u64>,
    },
    /// Wait for writeback of the range, then drop its pages.
    ///
    /// A range that ends at the size of the file may end inside a page. The kernel drops that page
    /// only if the advice reaches the end of the file, so the caller extends such a range to the
    /// end of the page.
    Release {
        /// The file.
        file: FileId,
        /// Bytes. Starts at a multiple of [`crate::WINDOW`]; ends at one, or at the size of the
        /// file.
        range: Range<u64>,
    },
    /// Warn the operator, once per file and warning.
    Warn {
        /// The file.
        file: FileId,
        /// The warning.
        warning: LogWarning,
    },
}

/// Something an operator should know about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogWarning {
    /// The writer overwrites parts of pages in a recycled log. The log is kept, since each released
    /// page would be read again.
    RecycledSubPages,
    /// The file is meant for direct I/O but has resident pages.
    DirectButResident,
    /// A reader with an unknown position read released bytes back. The log is kept for a while.
    ReadBack,
}

impl LogWarning {
    /// Returns the warning as a sentence, with the measurement of its disk; `None` if the
    /// measurement shows that there is nothing to warn of.
    pub fn text(self, leftovers: Leftovers) -> Option<String> {
        match (self, leftovers) {
            (Self::DirectButResident, Leftovers::Free) => None,
            (Self::DirectButResident, Leftovers::Cost(ratio)) => Some(format!(
                "{self}; on this file system such pages leave direct I/O {:.0} % of its rate (measured by pagekeeper probe)",
                ratio * 100.0
            )),
            _ => Some(self.to_string()),
        }
    }
}

impl fmt::Display for LogWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RecycledSubPages => {
                "recycled log written in parts of pages: kept, since a released page would be read again before each write"
            }
            Self::ReadBack => {
                "read back after it was released, by a reader whose place in it is not seen: the log is kept until nobody has read it back for a while"
            }
            Self::DirectButResident => "used with direct I/O, yet pages of it are resident: another opener is buffered or maps it",
        })
    }
}
