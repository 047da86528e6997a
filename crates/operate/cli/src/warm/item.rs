//! The files to warm, the range of each, and their order.

use std::cmp::Reverse;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pagekeeper_kernel::Inode;
use pagekeeper_observe::saved_pages::{SavedFile, SavedPages};
use pagekeeper_text::escaped;

/// Files up to this many bytes are read by one thread, beside others.
const SMALL_BYTES_MAX: u64 = 16 << 20;

/// A file to warm.
#[derive(Debug)]
pub(super) struct WarmItem {
    pub(super) path: PathBuf,
    /// Estimate of the bytes to read.
    pub(super) bytes: u64,
    pub(super) wanted: WantedPages,
}

/// The wanted part of it.
#[derive(Debug)]
pub(super) enum WantedPages {
    /// A range of the same file that was listed.
    Range { range: Range<u64>, inode: Inode },
    /// The extents in a snapshot, in pages of this size.
    Saved { file: SavedFile, page_size: u64 },
}

impl WarmItem {
    pub(super) fn is_small(&self) -> bool {
        self.bytes <= SMALL_BYTES_MAX
    }
}

/// Reads a snapshot file; returns what to warm, most recently used files first.
pub(super) fn saved(path: &Path) -> anyhow::Result<Vec<WarmItem>> {
    let snapshot = SavedPages::read(path).with_context(|| format!("can't restore from {}", escaped(path)))?;
    Ok(in_order(snapshot))
}

fn in_order(snapshot: SavedPages) -> Vec<WarmItem> {
    let SavedPages { page_size, mut files, .. } = snapshot;
    files.sort_by(|a, b| Reverse(a.last_used).cmp(&Reverse(b.last_used)).then_with(|| a.path.cmp(&b.path)));
    let item = |file: SavedFile| WarmItem {
        path: file.path.clone(),
        bytes: file.resident_pages() * page_size,
        wanted: WantedPages::Saved { file, page_size },
    };
    files.into_iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_observe::saved_pages::SavedTime;

    fn file(path: &str, seconds: i64) -> SavedFile {
        let time = SavedTime { seconds, nanos: 0 };
        SavedFile {
            path: path.into(),
            inode: Inode { dev: 1, ino: 2 },
            size: 1 << 20,
            changed: time,
            last_used: time,
            extents: vec![0..2, 5..6],
        }
    }

    #[test]
    fn most_recently_used_files_come_first() {
        let files = vec![file("/old", 10), file("/b", 30), file("/a", 30), file("/mid", 20)];
        let created = SavedTime { seconds: 40, nanos: 0 };
        let items = in_order(SavedPages { created, page_size: 65_536, files });
        let paths: Vec<_> = items.iter().map(|item| item.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/a", "/b", "/mid", "/old"]);
        assert_eq!(items[0].bytes, 3 << 16);
    }
}
