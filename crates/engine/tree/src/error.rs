//! The error type of a tree.

use pagekeeper_store::PageNo;

use crate::format::NodeFault;

/// An error of a [`Tree`](crate::Tree). After an error of a change, the transaction has a part of
/// that change: drop it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] pagekeeper_store::Error),
    /// A page is intact, but is not the tree page that should be there: something else has written
    /// it, or this is not the tree's root.
    #[error("page {page} is not what the tree should have there: {reason}")]
    NotATree {
        /// The page.
        page: PageNo,
        /// The fault, in words.
        reason: String,
    },
    /// A key that is too long. Nothing was changed.
    #[error("a key of {given} bytes: at most {max} fit")]
    KeyTooLong {
        /// The given length, in bytes.
        given: usize,
        /// The maximum, in bytes.
        max: usize,
    },
    /// A key of a bulk load that is not above the one before it.
    #[error("keys are not in order: entry {at} is not above the one before it")]
    NotInOrder {
        /// The number of its entry, from 0.
        at: u64,
    },
    /// A value that is too long. Nothing was changed.
    #[error("a value of {given} bytes: at most {max} fit")]
    ValueTooLong {
        /// The given length, in bytes.
        given: usize,
        /// The maximum, in bytes.
        max: usize,
    },
}

/// Turns a fault of a page into an error.
pub(crate) fn at(page: PageNo) -> impl Fn(NodeFault) -> TreeError {
    move |fault| TreeError::NotATree { page, reason: fault.to_string() }
}
