//! Reads and writes in progress, and the loops that all back-ends share.

pub(crate) mod job;
pub(crate) mod pread;
pub(crate) mod pwrite;
pub(crate) mod scatter;
pub(crate) mod stream;
pub(crate) mod target;
pub(crate) mod transfer;
