//! Old versions of pages, for snapshots that read them long after.
//!
//! When such versions exceed their share of memory, the oldest move to a file, up to a limit in
//! bytes. A failure there ends the oldest snapshot, and nothing else. If commits lack space, the
//! file is given up.

use std::sync::Arc;

use pagekeeper_kernel::mutex::lock;

use crate::Error;
use crate::core::Core;
use crate::version::VersionContent;
use crate::version_file::VersionFile;

impl Core {
    /// Frees this many bytes of memory that old versions take, or fewer. Returns false if none can
    /// be freed. Called by the holder of `checkpoints.under_way`.
    pub(crate) fn move_old_versions(&self, bytes: u64) -> Result<bool, Error> {
        if self.index.leave_to_file() {
            return Ok(true);
        }
        let max = self.config.options.snapshot_bytes / self.config.page_size as u64;
        let (due, pages): (Vec<_>, Vec<_>) = self.index.old_versions(bytes).into_iter().unzip();
        if due.is_empty() || max == 0 {
            return Ok(false);
        }
        let known = lock(&self.version_file).clone();
        let config = &self.config;
        let create = || VersionFile::create(&*config.io, &config.directory, config.page_size);
        let file = known.map_or_else(create, Ok)?;
        *lock(&self.version_file) = Some(Arc::clone(&file));
        let moved = file.write(&pages, max)?;
        let is_any = !moved.is_empty();
        for ((page, seq), moved) in due.into_iter().zip(moved) {
            self.index.settle(page, seq, VersionContent::OnDisk(Arc::new(moved)));
        }
        Ok(is_any)
    }

    /// Ends snapshots until no version is in the file, so that commits have its space. Returns
    /// false if there is none to be had.
    pub(crate) fn give_up_version_file(&self) -> bool {
        let had = self.version_file_bytes() > 0;
        while self.version_file_bytes() > 0 && self.snapshots.end_oldest() {
            self.index.prune_all(&self.snapshots.needed());
        }
        self.drop_unused_version_file();
        had && self.version_file_bytes() == 0
    }

    /// Gives the file up if no version is in it.
    pub(crate) fn drop_unused_version_file(&self) {
        let mut file = lock(&self.version_file);
        if file.as_ref().is_some_and(|file| Arc::strong_count(file) == 1) {
            *file = None;
        }
    }

    /// Returns the bytes of old versions on disk.
    pub(crate) fn version_file_bytes(&self) -> u64 {
        lock(&self.version_file).as_ref().map_or(0, |file| file.bytes())
    }
}
