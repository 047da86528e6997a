//! The warm set: a list of resident pages, written periodically and at the close, and loaded again
//! after an opening.
//!
//! Invariants: it is a hint. A list that is missing, torn or of another store loads nothing, and
//! causes no failure. It is written only if it differs from the existing one. A store that was open
//! only briefly also keeps a list that covers its resident pages, since there was no time to load
//! all that it names.

use std::ops::Range;
use std::path::Path;

use pagekeeper_io::{Access, Create, Error as IoError, Io, WriteMode};

use crate::PageNo;
use crate::core::Core;
use crate::format::warm::{decode, encode};

/// The list's name.
pub(crate) const WARM_NAME: &str = "warm";
/// Its name while it is written.
pub(crate) const WARM_NEW_NAME: &str = "warm.new";

/// Maximum bytes of a list that is read.
const MAX_BYTES: u64 = 64 << 20;
/// At most this part of the cache is loaded.
const CACHE_SHARE: u64 = 2;
/// Bytes of one prefetch: no cache takes more than a quarter of itself.
const PREFETCH_BYTES: u64 = 128 << 10;

impl Core {
    /// Writes the list of resident pages. If the store was open only briefly, writes it only if it
    /// lacks some of them.
    pub(crate) fn save_warm_set(&self, was_brief: bool) {
        let (io, directory, store) = (&*self.config.io, &*self.config.directory, self.config.store_id);
        let resident = self.cached.resident();
        let noted = read(io, directory).ok().and_then(|bytes| decode(&bytes, store)).unwrap_or_default();
        if resident == noted || was_brief && covers(&noted, &resident) {
            return;
        }
        // The next write may succeed.
        let _ = write(io, directory, &encode(store, &resident));
    }

    /// Starts loading the listed pages, as many as there is room for.
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
        let pages = self.data.pages();
        let mut left = self.cache.capacity_pages() / CACHE_SHARE;
        for Range { start, end } in ranges {
            let (start, end) = (start.get(), end.get().min(pages));
            let end = end.min(start.saturating_add(left));
            left -= end.saturating_sub(start);
            self.load_in_steps(start..end);
        }
    }

    fn load_in_steps(&self, pages: Range<u64>) {
        let page = self.config.page_size as u64;
        let mut from = pages.start * page;
        while from < pages.end * page && !self.checkpoints.stopping.load(std::sync::atomic::Ordering::Relaxed)
        {
            let end = (from + PREFETCH_BYTES).min(pages.end * page);
            self.cached.prefetch(from..end);
            from = end;
        }
    }
}

/// Whether each page of `pages` is one of `noted`. Both ascend, and no two ranges touch.
fn covers(noted: &[Range<PageNo>], pages: &[Range<PageNo>]) -> bool {
    pages.iter().all(|pages| {
        let at = noted.partition_point(|range| range.end <= pages.start);
        noted.get(at).is_some_and(|range| range.start <= pages.start && pages.end <= range.end)
    })
}

fn read(io: &dyn Io, directory: &Path) -> Result<Vec<u8>, IoError> {
    let file = io.open(&directory.join(WARM_NAME), Access::Buffered)?;
    let len = file.stat()?.size.min(MAX_BYTES);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_else(|_| unreachable!("at most 64 MiB"))];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    file.release(0..len)?;
    Ok(bytes)
}

fn write(io: &dyn Io, directory: &Path, bytes: &[u8]) -> Result<(), IoError> {
    let new = directory.join(WARM_NEW_NAME);
    match io.remove(&new) {
        Err(error) if error.errno() == Some(libc::ENOENT) => {}
        removed => removed?,
    }
    let file = io.open_writable(&new, Access::Buffered, Create::New)?;
    file.write_at(0, bytes, WriteMode::Plain)?;
    file.sync_data()?;
    file.release(0..bytes.len() as u64)?;
    io.rename(&new, &directory.join(WARM_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_covers_exactly_the_resident_parts() {
        let pages = |numbers: Range<u64>| PageNo::new(numbers.start)..PageNo::new(numbers.end);
        let noted = [2..7, 10..20].map(pages);
        let is_covered = |range| covers(&noted, &[pages(range)]);
        for range in [2..7, 4..6, 6..7, 10..11, 12..13, 19..20] {
            assert!(is_covered(range.clone()), "{range:?}");
        }
        for range in [1..2, 6..8, 7..8, 9..11, 19..21, 2..20, 30..31] {
            assert!(!is_covered(range.clone()), "{range:?}");
        }
        assert!(covers(&noted, &[3..4, 6..7, 10..20].map(pages)));
        assert!(!covers(&noted, &[2..3, 7..8].map(pages)));
        assert!(covers(&[], &[]) && !covers(&[], &noted));
    }
}
