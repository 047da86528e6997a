//! The warm set: which pages were resident, noted now and then and at the close, and brought back after an opening.
//!
//! Invariant: it is a hint. A note that is missing, torn or of another store brings nothing back, and nothing fails by it.

use std::ops::Range;
use std::path::Path;

use pagekeeper_io::{Access, Create, Error as IoError, Io, WriteMode};

use crate::core::Core;
use crate::format::warm::{decode, encode};

/// The note.
pub(crate) const NAME: &str = "warm";
/// It while it is written.
pub(crate) const NEW: &str = "warm.new";

/// Bytes of the largest note that is read.
const MAX_BYTES: u64 = 64 << 20;
/// One part in so many of the cache may be brought back.
const SHARE: u64 = 2;
/// Bytes that are begun at once: no cache takes more than a quarter of itself.
const STEP: u64 = 128 << 10;

impl Core {
    /// Notes what is resident.
    pub(crate) fn save_warm_set(&self) {
        let bytes = encode(self.config.store_id, &self.cached.resident());
        // The next note may do better.
        let _ = write(&*self.config.io, &self.config.directory, &bytes);
    }

    /// Begins to load what was resident, as much as has room.
    pub(crate) fn load_warm_set(&self) {
        if !self.config.options.warm {
            return;
        }
        let Some(ranges) = read(&*self.config.io, &self.config.directory)
            .ok()
            .and_then(|bytes| decode(&bytes, self.config.store_id))
        else {
            return;
        };
        let end = self.data.pages();
        let mut left = self.cache.capacity_pages() / SHARE;
        for range in ranges {
            let range = range.start..range.end.min(end).min(range.start.saturating_add(left));
            left -= range.end.saturating_sub(range.start);
            self.load_in_steps(&range);
        }
    }

    fn load_in_steps(&self, pages: &Range<u64>) {
        let page = self.config.page_size as u64;
        let mut from = pages.start * page;
        while from < pages.end * page && !self.checkpoints.stopping.load(std::sync::atomic::Ordering::Relaxed)
        {
            let end = (from + STEP).min(pages.end * page);
            self.cached.prefetch(from..end);
            from = end;
        }
    }
}

fn read(io: &dyn Io, directory: &Path) -> Result<Vec<u8>, IoError> {
    let file = io.open(&directory.join(NAME), Access::Buffered)?;
    let len = file.stat()?.size.min(MAX_BYTES);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_else(|_| unreachable!("at most 64 MiB"))];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    file.release(0..len)?;
    Ok(bytes)
}

fn write(io: &dyn Io, directory: &Path, bytes: &[u8]) -> Result<(), IoError> {
    let new = directory.join(NEW);
    match io.remove(&new) {
        Err(error) if error.errno() == Some(libc::ENOENT) => {}
        removed => removed?,
    }
    let file = io.open_writable(&new, Access::Buffered, Create::New)?;
    file.write_at(0, bytes, WriteMode::Plain)?;
    file.sync_data()?;
    file.release(0..bytes.len() as u64)?;
    io.rename(&new, &directory.join(NAME))
}
