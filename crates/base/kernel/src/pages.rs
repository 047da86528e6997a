//! Pages of files in the page cache: which are resident, and the acts on them.

pub(crate) mod advice;
pub(crate) mod extents;
pub(crate) mod overwrite;
pub(crate) mod release;
pub(crate) mod release_pieces;
pub(crate) mod residency;
pub(crate) mod warm;
pub(crate) mod windows;
pub(crate) mod writeback;
