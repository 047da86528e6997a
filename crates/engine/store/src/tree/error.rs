//! What can go wrong with a tree.

use super::format::Fault;
use crate::PageNo;

/// What went wrong with a [`Tree`](super::Tree). After an error of a change the transaction holds some of that change: drop it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] crate::Error),
    /// A page is whole, but not what the tree should have there: it was written by something else, or this is not the tree's root.
    #[error("page {page} is not what the tree should have there: {reason}")]
    NotATree {
        /// The page.
        page: PageNo,
        /// What is wrong with it.
        reason: String,
    },
    /// A key that is too long. Nothing was changed.
    #[error("a key of {given} bytes: at most {max} fit")]
    KeyTooLong {
        /// As it was given, in bytes.
        given: usize,
        /// The maximum, in bytes.
        max: usize,
    },
    /// A value that is too long. Nothing was changed.
    #[error("a value of {given} bytes: at most {max} fit")]
    ValueTooLong {
        /// As it was given, in bytes.
        given: usize,
        /// The maximum, in bytes.
        max: usize,
    },
}

/// What is wrong with a page, as an error.
pub(super) fn at(page: PageNo) -> impl Fn(Fault) -> TreeError {
    move |fault| TreeError::NotATree { page, reason: fault.to_string() }
}
