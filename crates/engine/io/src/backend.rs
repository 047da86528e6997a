//! The parts that all back-ends share: requests, the loop that retries raw reads and writes, and
//! lists of memory.
//!
//! They are for the back-end of `pagekeeper-simdisk`, and may change with any release.
#![doc(hidden)]

pub use crate::transfers::job::{BatchPart, IoRequest, TransferJob};
pub use crate::transfers::transfer::{Transfer, TransferKind};

/// Lists of pieces of memory.
pub mod scatter {
    pub use crate::transfers::scatter::{are_aligned, rest, total};
}
