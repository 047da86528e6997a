//! Restoring from a snapshot: what to read from which file, in which order, and how each file has changed since.

use std::cmp::Reverse;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pagekeeper_kernel::{Error, InspectedFile};
use serde::Serialize;

use super::item::{Item, Wanted};
use crate::snapshot::{self, FileEntry, Snapshot, Time};

/// A snapshot's record of a file.
#[derive(Debug)]
pub(super) struct Remembered {
    /// In bytes.
    pub(super) extents: Vec<Range<u64>>,
    ino: u64,
    size: u64,
    changed: Time,
}

/// The change of a file since its snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SinceSnapshot {
    /// The same size, and not written since.
    Same,
    /// Written since.
    Modified,
    /// Larger: its new end is not in the snapshot.
    Grew,
    /// Smaller: extents past its end are left out.
    Shrank,
    /// Another file of that name.
    Replaced,
    /// No file of that name.
    Missing,
}

impl Remembered {
    /// The device is not compared: its number may change when the host restarts.
    pub(super) fn since_snapshot(&self, file: &InspectedFile) -> Result<SinceSnapshot, Error> {
        let metadata = file.file().metadata().map_err(|e| Error::call("fstat", file.path(), e))?;
        Ok(if metadata.ino() != self.ino {
            SinceSnapshot::Replaced
        } else if metadata.len() > self.size {
            SinceSnapshot::Grew
        } else if metadata.len() < self.size {
            SinceSnapshot::Shrank
        } else if Time::from_parts(metadata.mtime(), metadata.mtime_nsec()) != self.changed {
            SinceSnapshot::Modified
        } else {
            SinceSnapshot::Same
        })
    }
}

/// Reads the snapshot file; returns what to warm, most recently used files first.
pub(super) fn items(snapshot: &Path) -> anyhow::Result<Vec<Item>> {
    Ok(in_order(snapshot::open(snapshot)?))
}

fn in_order(snapshot: Snapshot) -> Vec<Item> {
    let Snapshot { page_size, mut files, .. } = snapshot;
    files.sort_by(|a, b| Reverse(a.last_used).cmp(&Reverse(b.last_used)).then_with(|| a.path.cmp(&b.path)));
    files.into_iter().map(|entry| item(entry, page_size)).collect()
}

/// Converts extents to bytes, so a snapshot with another page size (also a power of two) fits too.
fn item(entry: FileEntry, page_size: u64) -> Item {
    let bytes = entry.resident_pages() * page_size;
    let extents =
        entry.extents.into_iter().map(|extent| extent.start * page_size..extent.end * page_size).collect();
    Item {
        path: entry.path,
        bytes,
        wanted: Wanted::Remembered(Remembered {
            extents,
            ino: entry.ino,
            size: entry.size,
            changed: entry.changed,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Links;
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::time::{Duration, SystemTime};

    fn entry(path: &str, seconds: i64) -> FileEntry {
        let time = Time { seconds, nanos: 0 };
        FileEntry {
            path: path.into(),
            dev: 1,
            ino: 2,
            size: 1 << 20,
            changed: time,
            last_used: time,
            extents: vec![0..2, 5..6],
        }
    }

    #[test]
    fn most_recently_used_files_come_first() {
        let files = vec![entry("/old", 10), entry("/b", 30), entry("/a", 30), entry("/mid", 20)];
        let created = Time { seconds: 40, nanos: 0 };
        let items = in_order(Snapshot { created, page_size: 4096, files });
        let paths: Vec<_> = items.iter().map(|item| item.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/a", "/b", "/mid", "/old"]);
    }

    #[test]
    fn extents_are_bytes_whatever_the_page_size() {
        for page_size in [4096, 65536] {
            let item = item(entry("/a", 1), page_size);
            assert_eq!(item.bytes, 3 * page_size);
            let Wanted::Remembered(remembered) = item.wanted else { panic!("not of a snapshot") };
            assert_eq!(remembered.extents, [0..2 * page_size, 5 * page_size..6 * page_size]);
        }
    }

    #[test]
    fn what_became_of_a_file_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let open = || InspectedFile::open(&path, Links::Refuse).unwrap();
        let metadata = open().file().metadata().unwrap();
        let remembered = Remembered {
            extents: Vec::new(),
            ino: metadata.ino(),
            size: 10,
            changed: Time::from_parts(metadata.mtime(), metadata.mtime_nsec()),
        };
        let state = || remembered.since_snapshot(&open()).unwrap();
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
