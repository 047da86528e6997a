//! Facts about the page cache of files, and operations that change it: everything that Linux
//! offers.
//!
//! The crate decides nothing. Every operation reports its effect; every error names the call and
//! the path. Byte ranges are `Range<u64>`: start inclusive, end exclusive; an end of `u64::MAX`
//! means the end of the file.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod block;
pub mod directory_watch;
mod error;
mod filesystem;
pub mod frozen;
pub mod hang;
#[cfg(test)]
mod model;
pub mod mutex;
mod open;
mod pages;
pub mod pressure;
pub mod process;
mod sync;
mod sys;
#[cfg(test)]
mod testing;
mod walk;
mod work;

pub use block::{FlushCounter, FlushCounts, disk_of, disks_below, is_device_in_use, physical_block_size};
pub use error::{Error, Result};
pub use filesystem::{FileSystem, file_system_id};
pub use open::{
    ExpectedFile, Inode, InodeId, InspectedFile, Links, OpenMount, PathHandle, first_names, open_directory,
    open_directory_in, read_named, stat_in, stat_of_name, status_changed,
};
pub use pages::advice::{Advice, AdviceError, advise};
pub use pages::extents::{ResidentExtents, resident_extents};
pub use pages::overwrite::is_overwritten_in_place;
pub use pages::release::{RELEASE_ALIGN, ReleaseOptions, ReleaseReport, release};
pub use pages::release_pieces::release_pieces;
pub use pages::residency::{
    Residency, ResidencyMap, ResidencySource, has_cachestat, residency, residency_by_mincore, residency_map,
    residency_wide,
};
pub use pages::warm::{
    LockError, PageLock, WarmMethod, WarmOptions, WarmProgress, WarmReport, WarmTurns, lock, warm,
    warm_extents,
};
pub use pages::windows::{
    ResidentWindow, ResidentWindows, WindowSearch, resident_windows, resident_windows_in,
};
pub use pages::writeback::{FlushMode, flush, start_writeback};
pub use walk::{DIRECTORY_NAMES_MAX, NameLimit, WalkFilter, WalkOptions, walk};

/// Returns the kernel's page size in bytes: 4096 on x86-64.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
