//! The files to warm, the range of each, and their order.

use std::cmp::Reverse;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pagekeeper_kernel::{Inode, Links};
use pagekeeper_observe::saved_pages::{SavedFile, SavedPages};
use pagekeeper_text::escaped;

use crate::part::FilePart;

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
    Saved {
        file: SavedFile,
        page_size: u64,
        /// The links in its path that are followed.
        links: Links,
    },
}

impl WarmItem {
    pub(super) fn is_small(&self) -> bool {
        self.bytes <= SMALL_BYTES_MAX
    }
}

/// Reads a snapshot file; returns what to warm of this part of each file, most recently used files
/// first.
pub(super) fn saved(path: &Path, part: FilePart) -> anyhow::Result<Vec<WarmItem>> {
    let snapshot = SavedPages::read(path).with_context(|| format!("can't restore from {}", escaped(path)))?;
    Ok(in_order(snapshot, part))
}

fn in_order(mut snapshot: SavedPages, part: FilePart) -> Vec<WarmItem> {
    let by_use = |a: &SavedFile, b: &SavedFile| Reverse(a.last_used).cmp(&Reverse(b.last_used));
    snapshot.files.sort_by(|a, b| by_use(a, b).then_with(|| a.path.cmp(&b.path)));
    items_of(snapshot, part, Links::Refuse)
}

/// Returns what to warm of this part of each file, in the recording's own order. No links are
/// followed: the kernel named these files, and since then others may have put links there.
pub(super) fn recorded(recording: SavedPages, part: FilePart) -> Vec<WarmItem> {
    items_of(recording, part, Links::RefuseAll)
}

fn items_of(saved: SavedPages, part: FilePart, links: Links) -> Vec<WarmItem> {
    let SavedPages { page_size, files, .. } = saved;
    let in_part = |file: SavedFile| {
        let bytes = part.of(file.size);
        file.within(&(bytes.start / page_size..bytes.end.div_ceil(page_size)))
    };
    let item = |file: SavedFile| WarmItem {
        path: file.path.clone(),
        bytes: file.resident_pages() * page_size,
        wanted: WantedPages::Saved { file, page_size, links },
    };
    files.into_iter().map(in_part).filter(|file| !file.extents.is_empty()).map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::parse_part;
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
        let snapshot = SavedPages { created, page_size: 65_536, files };
        let items = in_order(snapshot.clone(), parse_part("..").unwrap());
        let paths: Vec<_> = items.iter().map(|item| item.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/a", "/b", "/mid", "/old"]);
        assert_eq!(items[0].bytes, 3 << 16);
        let items = recorded(snapshot, parse_part("70000..330000").unwrap());
        let paths: Vec<_> = items.iter().map(|item| item.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/old", "/b", "/a", "/mid"]);
        assert_eq!(items[0].bytes, 2 << 16, "pages 1 and 5, the last in part");
    }
}
