//! Plain buffered files: the simplest way for an engine to write a log.
//!
//! [`PLAIN_FILES`] appends to files of a segment's size, one after the other; [`PLAIN_RING`]
//! overwrites files that were written before, in turn. Both write each record with a call of its
//! own and sync with fdatasync(2) under the lock. Records have no frames, so nothing protects them
//! against a crash. Fails with the system's error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use super::{LogKind, MeasuredLog};

/// Appends to new files.
pub(super) const PLAIN_FILES: LogKind = LogKind {
    name: "plain files, write and fdatasync",
    make: |dir, _| Ok(Box::new(PlainLog::files(dir)?)),
    check: None,
};

/// Overwrites files in a ring.
pub(super) const PLAIN_RING: LogKind = LogKind {
    name: "plain ring, write and fdatasync",
    make: |dir, _| Ok(Box::new(PlainLog::ring(dir)?)),
    check: None,
};

#[derive(Debug)]
struct PlainLog {
    place: Mutex<PlainWriter>,
}

#[derive(Debug)]
struct PlainWriter {
    dir: PathBuf,
    files: Vec<File>,
    ring: bool,
    current: usize,
    offset: u64,
    dirty: bool,
}

impl PlainLog {
    fn files(dir: &Path) -> Result<Self> {
        let first = create(dir, 0)?;
        Ok(Self::new(dir, vec![first], false))
    }

    fn ring(dir: &Path) -> Result<Self> {
        let mebibyte = vec![0; 1 << 20];
        let mut files = Vec::new();
        for number in 0..super::ours::RING_FILES {
            let file = create(dir, number)?;
            for at in (0..super::ours::RING_FILE_BYTES).step_by(mebibyte.len()) {
                file.write_all_at(&mebibyte, at)?;
            }
            file.sync_all()?;
            files.push(file);
        }
        Ok(Self::new(dir, files, true))
    }

    fn new(dir: &Path, files: Vec<File>, ring: bool) -> Self {
        let dir = dir.to_path_buf();
        Self { place: Mutex::new(PlainWriter { dir, files, ring, current: 0, offset: 0, dirty: false }) }
    }
}

fn create(dir: &Path, number: impl std::fmt::Display) -> Result<File> {
    let path = dir.join(format!("plain.{number}"));
    File::create_new(&path).with_context(|| format!("can't make {}", path.display()))
}

impl PlainWriter {
    fn append(&mut self, body: &[u8]) -> Result<()> {
        let limit = if self.ring { super::ours::RING_FILE_BYTES } else { super::ours::SEGMENT_BYTES };
        if self.offset + body.len() as u64 > limit {
            self.sync()?;
            self.current += 1;
            self.offset = 0;
            if self.ring {
                self.current %= self.files.len();
            } else {
                self.files.push(create(&self.dir, self.current)?);
            }
        }
        self.files[self.current].write_all_at(body, self.offset)?;
        self.offset += body.len() as u64;
        self.dirty = true;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if std::mem::take(&mut self.dirty) {
            self.files[self.current].sync_data()?;
        }
        Ok(())
    }
}

impl MeasuredLog for PlainLog {
    fn append(&self, body: &[u8], sync: bool) -> Result<()> {
        let mut writer = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        writer.append(body)?;
        if sync { writer.sync() } else { Ok(()) }
    }
}
