//! Snapshots of which pages of files are resident, kept in a file across a restart.
//!
//! Invariants: a snapshot file is complete or missing; damaged contents are never used. A file that
//! was replaced since is recognised by its inode; devices are not compared, since their numbers may
//! change when the host restarts.

mod ahead;
mod file;
mod format;
mod recordings;
mod renewal;

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagekeeper_kernel::{Error, InspectedFile, Result, page_size, resident_extents};
use serde::Serialize;

pub use ahead::{
    LoadedAhead, THREADS_BESIDE_MAX, THREADS_MAX, UsedAhead, WORTH_BYTES, bytes_of, exact_options,
    load_ahead, width_of,
};
pub use file::{SavedPagesError, SnapshotTarget};
pub use format::{SNAPSHOT_MAGIC, SavedFile, SavedPages, SavedTime, SnapshotFormatError, decode, encode};
pub use recordings::{RECORDING_DIRECTORY, RecordingName, Recordings};
pub use renewal::{joined, kept_of, renewed};

/// The change of a file since its snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SinceSnapshot {
    /// The same size, and not written since.
    Same,
    /// Written since.
    Modified,
    /// Larger: its new end is not in the snapshot.
    Grew,
    /// Smaller: extents past its end do not exist.
    Shrank,
    /// Another file of that name.
    Replaced,
    /// No file of that name.
    Missing,
}

impl SavedPages {
    /// Returns a snapshot without files, taken now.
    pub fn begin() -> Self {
        // A clock set before 1970 is not worth an error: the time of creation is only shown.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let created = SavedTime { seconds, nanos: since.subsec_nanos() };
        Self { created, page_size: page_size(), files: Vec::new() }
    }

    /// Returns the bytes of a file's pages that were resident.
    pub fn resident(&self, file: &SavedFile) -> u64 {
        file.resident_pages() * self.page_size
    }
}

impl SavedFile {
    /// Returns the entry of a file; `None` if nothing of it is resident.
    ///
    /// # Errors
    ///
    /// If its pages can't be seen.
    pub fn of(file: &InspectedFile) -> Result<Option<Self>> {
        let page = page_size();
        let extents = resident_extents(file, 0..u64::MAX)?
            .map(|extent| extent.map(|extent| extent.start / page..extent.end / page))
            .collect::<Result<Vec<_>>>()?;
        if extents.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { extents, ..Self::without_pages(file)? }))
    }

    /// Returns the entry of a file without any pages.
    ///
    /// # Errors
    ///
    /// If its metadata can't be read.
    pub fn without_pages(file: &InspectedFile) -> Result<Self> {
        let metadata = file.file().metadata().map_err(|e| Error::call("fstat", file.path(), e))?;
        let changed = SavedTime::from_parts(metadata.mtime(), metadata.mtime_nsec());
        let accessed = SavedTime::from_parts(metadata.atime(), metadata.atime_nsec());
        Ok(Self {
            path: lasting_path(file.path()).map_err(|e| Error::call("realpath", file.path(), e))?,
            inode: file.inode(),
            size: metadata.len(),
            changed,
            last_used: changed.max(accessed),
            extents: Vec::new(),
        })
    }

    /// Returns the number of pages in all extents together.
    pub fn resident_pages(&self) -> u64 {
        self.extents.iter().map(|extent| extent.end - extent.start).sum()
    }

    /// Returns the entry with its pages in this range alone.
    #[must_use]
    pub fn within(self, pages: &Range<u64>) -> Self {
        let clip = |extent: &Range<u64>| extent.start.max(pages.start)..extent.end.min(pages.end);
        let extents = self.extents.iter().map(clip).filter(|extent| extent.start < extent.end);
        Self { extents: extents.collect(), ..self }
    }

    /// Returns the extents in bytes, for a snapshot with pages of this size.
    pub fn ranges(&self, page_size: u64) -> Vec<Range<u64>> {
        self.extents.iter().map(|extent| extent.start * page_size..extent.end * page_size).collect()
    }

    /// Returns how the file of this name has changed since.
    ///
    /// # Errors
    ///
    /// If its metadata can't be read.
    pub fn change_to(&self, file: &InspectedFile) -> Result<SinceSnapshot> {
        let metadata = file.file().metadata().map_err(|e| Error::call("fstat", file.path(), e))?;
        Ok(if metadata.ino() != self.inode.ino {
            SinceSnapshot::Replaced
        } else if metadata.len() > self.size {
            SinceSnapshot::Grew
        } else if metadata.len() < self.size {
            SinceSnapshot::Shrank
        } else if SavedTime::from_parts(metadata.mtime(), metadata.mtime_nsec()) != self.changed {
            SinceSnapshot::Modified
        } else {
            SinceSnapshot::Same
        })
    }
}

/// Returns the path from the root. For a symbolic link (which the user named or asked to follow) it
/// is the path of the file itself, so that restoring follows no links.
fn lasting_path(path: &Path) -> std::io::Result<PathBuf> {
    if std::fs::symlink_metadata(path)?.is_symlink() {
        std::fs::canonicalize(path)
    } else {
        std::path::absolute(path)
    }
}

impl SavedTime {
    /// Converts from `stat`'s seconds and nanoseconds. A damaged or hostile file system may return
    /// invalid nanoseconds, which is no reason to stop. They are brought into range, here and when
    /// they are compared later, so the same file has the same time.
    fn from_parts(seconds: i64, nanos: i64) -> Self {
        Self { seconds, nanos: u32::try_from(nanos).unwrap_or(0).min(999_999_999) }
    }
}

impl From<SavedTime> for SystemTime {
    fn from(time: SavedTime) -> Self {
        let since = Duration::new(u64::try_from(time.seconds).unwrap_or(0), time.nanos);
        UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Links;
    use std::fs::{File, OpenOptions};
    use std::io::Write;

    #[test]
    fn changes_of_a_saved_file_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let open = || InspectedFile::open(&path, Links::Refuse).unwrap();
        let metadata = open().file().metadata().unwrap();
        let changed = SavedTime::from_parts(metadata.mtime(), metadata.mtime_nsec());
        let saved = SavedFile {
            path: path.clone(),
            inode: open().inode(),
            size: 10,
            changed,
            last_used: changed,
            extents: vec![0..2, 5..6],
        };
        assert_eq!(saved.ranges(65_536), [0..2 << 16, 5 << 16..6 << 16]);
        let state = || saved.change_to(&open()).unwrap();
        assert_eq!(state(), SinceSnapshot::Same);
        let later = SystemTime::now() + Duration::from_secs(5);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(state(), SinceSnapshot::Modified);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap();
        assert_eq!(state(), SinceSnapshot::Grew);
        File::options().write(true).open(&path).unwrap().set_len(5).unwrap();
        assert_eq!(state(), SinceSnapshot::Shrank);
        std::fs::write(dir.path().join("other"), b"0123456789").unwrap();
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        assert_eq!(state(), SinceSnapshot::Replaced);
    }
}
