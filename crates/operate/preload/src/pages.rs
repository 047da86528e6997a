//! Pages of files, found and written back by system calls alone.

pub(crate) mod disks;
pub mod page_probe;
pub mod residency;
pub(crate) mod writeback;
