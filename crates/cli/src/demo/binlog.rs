//! The demo engine's binlog: files `binlog.000001` and on, an index of their names, rotation and purge, as in mysqld.
//!
//! Invariants: files are written by append only, through one write-only descriptor at a time; each closed file ends
//! with an event without payload and is synced; the index names every file that exists, oldest first, and a purged
//! file leaves the index before it leaves the directory.
//! Fails with the file's name; nothing is tried again.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The name of the index file.
const INDEX: &str = "binlog.index";

/// The name of a binlog file.
pub(super) fn file_name(number: u64) -> String {
    format!("binlog.{number:06}")
}

/// The numbers of the files that the index names, oldest first.
pub(super) fn listed(dir: &Path) -> anyhow::Result<Vec<u64>> {
    let path = dir.join(INDEX);
    let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(text.lines().filter_map(|name| name.rsplit_once('.')?.1.parse().ok()).collect())
}

/// One change, as it stands in the binlog: a header of [`Event::HEADER`] bytes, then the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Counts events over all files, from 1.
    pub(super) sequence: u64,
    /// When it was written: nanoseconds of the monotonic clock.
    pub(super) written_ns: u64,
    /// The row images; empty in the last event of a file.
    pub(super) payload: &'a [u8],
}

impl<'a> Event<'a> {
    /// Length (4 bytes), CRC-32C of all that follows it (4), sequence (8), time (8).
    pub(super) const HEADER: usize = 24;
    /// A longer one is not an event.
    pub(super) const LEN_MAX: usize = 1 << 20;

    /// Appends the event's bytes to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let len = u32::try_from(Self::HEADER + self.payload.len()).expect("an event is shorter than LEN_MAX");
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.written_ns.to_le_bytes());
        out.extend_from_slice(self.payload);
        let crc = crc32c::crc32c(&out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The event at the start of `bytes` and its length; `None` while some of it is still to come.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, String> {
        let Some(header) = bytes.get(..Self::HEADER) else {
            return Ok(None);
        };
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let len = word(0) as usize;
        if !(Self::HEADER..=Self::LEN_MAX).contains(&len) {
            return Err(format!("an event says it is {len} bytes long"));
        }
        let Some(event) = bytes.get(..len) else {
            return Ok(None);
        };
        if crc32c::crc32c(&event[8..]) != word(4) {
            return Err(format!("the checksum of event {} is wrong", long(8)));
        }
        Ok(Some((Self { sequence: long(8), written_ns: long(16), payload: &event[Self::HEADER..] }, len)))
    }
}

/// The writing end.
pub(super) struct Binlog {
    dir: PathBuf,
    files: VecDeque<u64>,
    file: File,
    file_bytes: u64,
    file_bytes_max: u64,
    files_max: usize,
    sequence: u64,
    pending: Vec<u8>,
}

impl Binlog {
    /// Creates the first file and the index. A file is closed once it holds `file_bytes_max` bytes; beyond `files_max`
    /// files the oldest are purged.
    pub(super) fn create(dir: &Path, file_bytes_max: u64, files_max: usize) -> anyhow::Result<Self> {
        let mut binlog = Self {
            dir: dir.to_path_buf(),
            files: VecDeque::from([1]),
            file: append_to(&dir.join(file_name(1)))?,
            file_bytes: 0,
            file_bytes_max,
            files_max,
            sequence: 0,
            pending: Vec::new(),
        };
        binlog.write_index()?;
        Ok(binlog)
    }

    /// Writes one group of payloads with one call and syncs it; then rotates if the file is full.
    pub(super) fn commit<'a>(
        &mut self,
        payloads: impl Iterator<Item = &'a [u8]>,
        now_ns: u64,
    ) -> anyhow::Result<u64> {
        for payload in payloads {
            self.add(payload, now_ns);
        }
        let written = self.write_and_sync()?;
        if self.file_bytes >= self.file_bytes_max {
            self.rotate(now_ns)?;
        }
        Ok(written)
    }

    fn add(&mut self, payload: &[u8], written_ns: u64) {
        self.sequence += 1;
        Event { sequence: self.sequence, written_ns, payload }.encode(&mut self.pending);
    }

    fn write_and_sync(&mut self) -> anyhow::Result<u64> {
        let written = self.pending.len() as u64;
        self.file
            .write_all(&self.pending)
            .and_then(|()| self.file.sync_data())
            .with_context(|| format!("can't write {}", self.current()))?;
        self.pending.clear();
        self.file_bytes += written;
        Ok(written)
    }

    fn rotate(&mut self, now_ns: u64) -> anyhow::Result<()> {
        self.add(&[], now_ns);
        self.write_and_sync()?;
        let next = self.files.back().map_or(1, |last| last + 1);
        self.file = append_to(&self.dir.join(file_name(next)))?;
        self.file_bytes = 0;
        self.files.push_back(next);
        let purged: Vec<u64> = self.files.drain(..self.files.len().saturating_sub(self.files_max)).collect();
        self.write_index()?;
        for number in purged {
            let path = self.dir.join(file_name(number));
            std::fs::remove_file(&path).with_context(|| format!("can't purge {}", path.display()))?;
        }
        Ok(())
    }

    /// Puts a new index in the old one's place.
    fn write_index(&mut self) -> anyhow::Result<()> {
        let path = self.dir.join(INDEX);
        let new = self.dir.join(format!("{INDEX}_new"));
        let names: Vec<String> = self.files.iter().map(|&number| file_name(number)).collect();
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&new)?;
            writeln!(file, "./{}", names.join("\n./"))?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().with_context(|| format!("can't write {}", path.display()))
    }

    fn current(&self) -> String {
        file_name(self.files.back().copied().unwrap_or(1))
    }
}

fn append_to(path: &Path) -> anyhow::Result<File> {
    let open = OpenOptions::new().append(true).create_new(true).open(path);
    open.with_context(|| format!("can't create {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_comes_back_only_whole_and_unharmed() {
        let mut bytes = Vec::new();
        let event = Event { sequence: 7, written_ns: 1 << 40, payload: b"row" };
        event.encode(&mut bytes);
        assert_eq!(Event::decode(&bytes), Ok(Some((event, 27))));
        for len in 0..bytes.len() {
            assert_eq!(Event::decode(&bytes[..len]), Ok(None), "{len} bytes of it");
        }
        bytes[26] ^= 1;
        assert_eq!(Event::decode(&bytes), Err("the checksum of event 7 is wrong".into()));
        assert!(Event::decode(&[0; 24]).is_err());
    }

    #[test]
    fn full_files_rotate_and_the_oldest_are_purged() {
        let dir = tempfile::tempdir().unwrap();
        let mut binlog = Binlog::create(dir.path(), 1000, 3).unwrap();
        for _ in 0..5 {
            binlog.commit([[1; 600].as_slice(), &[2; 600]].into_iter(), 0).unwrap();
        }
        assert_eq!(listed(dir.path()).unwrap(), [4, 5, 6]);
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["binlog.000004", "binlog.000005", "binlog.000006", "binlog.index"]);
        let closed = std::fs::metadata(dir.path().join("binlog.000004")).unwrap().len();
        assert_eq!(closed, 2 * 624 + 24, "two events and the one that ends the file");
    }
}
