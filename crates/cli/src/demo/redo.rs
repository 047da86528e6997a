//! The demo engine's redo log: fixed files of fixed size used as one ring, as in mysqld.
//!
//! Invariants: LSNs count bytes ever written; `flushed <= written <= appended`, all multiples of [`BLOCK`]. Only whole
//! blocks are written, so a lap never needs a file's old content and a page that is no longer resident costs no read.
//! One thread writes (`log_writer`), one syncs (`log_flusher`); no lock is held over I/O.
//! Fails for good: after a failed write or sync every waiter gets the error, and nothing is tried again.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, bail};

/// Bytes of a block: the unit of every write.
pub(super) const BLOCK: u64 = 8 << 10;

/// The files, and the arithmetic of the ring.
///
/// Of the files only the one that is written is held open, as in mysqld since 8.0.30.
pub(super) struct Ring {
    dir: PathBuf,
    files: u64,
    file_bytes: u64,
    current: Mutex<(u64, Arc<File>)>,
}

impl Ring {
    /// Creates `redo0.log` and on in `dir`, filled with zeros and synced, so that the first lap writes over blocks that
    /// exist, as each later lap does. Their pages are dropped again: the run begins with a cold log.
    pub(super) fn create(dir: &Path, files: u64, file_bytes: u64) -> anyhow::Result<Self> {
        assert!(file_bytes.is_multiple_of(BLOCK), "a redo file is made of whole blocks");
        for number in 0..files {
            let path = file_path(dir, number);
            create_file(&path, file_bytes).with_context(|| format!("can't create {}", path.display()))?;
        }
        let first = open(&file_path(dir, 0)).context("can't open the redo log")?;
        Ok(Self { dir: dir.to_path_buf(), files, file_bytes, current: Mutex::new((0, Arc::new(first))) })
    }

    /// The pieces of an LSN range: file number, offset in it, bytes.
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let mut lsn = range.start;
        std::iter::from_fn(move || {
            let offset = lsn % self.file_bytes;
            let len = (self.file_bytes - offset).min(range.end.checked_sub(lsn).filter(|&rest| rest > 0)?);
            let number = (lsn / self.file_bytes) % self.files;
            lsn += len;
            Some((number, offset, len))
        })
    }

    /// Writes `bytes` at `lsn`, over a file's end and the ring's end where it comes to that.
    fn write(&self, lsn: u64, mut bytes: &[u8]) -> std::io::Result<()> {
        for (number, offset, len) in self.pieces(lsn..lsn + bytes.len() as u64) {
            let (piece, rest) = bytes.split_at(usize::try_from(len).unwrap_or(bytes.len()));
            let file = self.file(number)?;
            file.write_all_at(piece, offset)?;
            *self.current() = (number, file);
            bytes = rest;
        }
        Ok(())
    }

    /// Syncs each file that the range touches.
    fn sync(&self, range: Range<u64>) -> std::io::Result<()> {
        let mut touched = self.pieces(range).take(usize::try_from(self.files).unwrap_or(usize::MAX));
        touched.try_for_each(|(number, _, _)| self.file(number)?.sync_data())
    }

    /// A file of the ring: the current one, or one opened for this once.
    fn file(&self, number: u64) -> std::io::Result<Arc<File>> {
        let (current, file) = self.current().clone();
        if current == number { Ok(file) } else { open(&file_path(&self.dir, number)).map(Arc::new) }
    }

    fn current(&self) -> MutexGuard<'_, (u64, Arc<File>)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("redo{number}.log"))
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn create_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    std::io::copy(&mut std::io::repeat(0).take(bytes), &mut file)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

#[derive(Default)]
struct State {
    buffer: Vec<u8>,
    appended: u64,
    written: u64,
    flushed: u64,
    failed: Option<String>,
}

/// The redo log with its buffer and its two threads.
pub(super) struct Redo {
    ring: Ring,
    state: Mutex<State>,
    changed: Condvar,
}

impl Redo {
    /// Starts the two threads; they live as long as the process.
    pub(super) fn start(ring: Ring) -> anyhow::Result<Arc<Self>> {
        let redo = Arc::new(Self { ring, state: Mutex::default(), changed: Condvar::new() });
        for (name, work) in [("log_writer", Self::write_log as fn(&Self)), ("log_flusher", Self::flush_log)] {
            let redo = Arc::clone(&redo);
            thread::Builder::new()
                .name(name.into())
                .spawn(move || work(&redo))
                .context("can't start a thread")?;
        }
        Ok(redo)
    }

    /// Appends records, padded to a whole block; the LSN to wait for is returned.
    pub(super) fn append<'a>(&self, records: impl Iterator<Item = &'a [u8]>) -> u64 {
        let mut state = self.lock();
        let before = state.buffer.len();
        records.for_each(|record| state.buffer.extend_from_slice(record));
        let padded = state.buffer.len().next_multiple_of(usize::try_from(BLOCK).unwrap_or(1));
        state.buffer.resize(padded, 0);
        state.appended += (padded - before) as u64;
        self.changed.notify_all();
        state.appended
    }

    /// Waits until all before `lsn` is on disk.
    pub(super) fn wait_flushed(&self, lsn: u64) -> anyhow::Result<()> {
        let state = self.wait_while(|state| state.flushed < lsn && state.failed.is_none());
        match &state.failed {
            Some(failed) => bail!("{failed}"),
            None => Ok(()),
        }
    }

    /// All bytes that ever came to disk.
    pub(super) fn flushed(&self) -> u64 {
        self.lock().flushed
    }

    fn write_log(&self) {
        let mut bytes = Vec::new();
        loop {
            let mut state = self.wait_while(|state| state.buffer.is_empty());
            bytes.clear();
            std::mem::swap(&mut bytes, &mut state.buffer);
            let lsn = state.written;
            drop(state);
            let done = self.ring.write(lsn, &bytes);
            if self.publish(done, "written", |state| state.written = lsn + bytes.len() as u64) {
                return;
            }
        }
    }

    fn flush_log(&self) {
        loop {
            let state = self.wait_while(|state| state.flushed == state.written);
            let range = state.flushed..state.written;
            drop(state);
            let done = self.ring.sync(range.clone());
            if self.publish(done, "synced", |state| state.flushed = range.end) {
                return;
            }
        }
    }

    /// Publishes what a thread did, or why it could not: then `true`, and the thread is to end.
    fn publish(&self, done: std::io::Result<()>, what: &str, success: impl FnOnce(&mut State)) -> bool {
        let mut state = self.lock();
        let failed = done.is_err();
        match done {
            Ok(()) => success(&mut state),
            Err(error) => state.failed = Some(format!("the redo log can't be {what}: {error}")),
        }
        self.changed.notify_all();
        failed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), |state| condition(state)).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_goes_on_in_the_next_file_and_then_in_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let ring = Ring::create(dir.path(), 2, 2 * BLOCK).unwrap();
        let block = usize::try_from(BLOCK).unwrap();
        // Blocks 3, 4, 5 of a ring of four: the last of the second file, then the first file.
        let bytes: Vec<u8> = [3, 4, 5].iter().flat_map(|&number| vec![number; block]).collect();
        ring.write(3 * BLOCK, &bytes).unwrap();
        ring.sync(3 * BLOCK..6 * BLOCK).unwrap();
        let first = std::fs::read(dir.path().join("redo0.log")).unwrap();
        let second = std::fs::read(dir.path().join("redo1.log")).unwrap();
        assert_eq!([first[0], first[block], second[0], second[block]], [4, 5, 0, 3]);
        assert_eq!((first.len(), second.len()), (2 * block, 2 * block));
    }

    #[test]
    fn pieces_end_at_the_end_of_the_range() {
        let dir = tempfile::tempdir().unwrap();
        let ring = Ring::create(dir.path(), 2, 2 * BLOCK).unwrap();
        let pieces: Vec<_> = ring.pieces(BLOCK..9 * BLOCK).collect();
        assert_eq!(
            pieces,
            [(0, BLOCK, BLOCK), (1, 0, 2 * BLOCK), (0, 0, 2 * BLOCK), (1, 0, 2 * BLOCK), (0, 0, BLOCK)]
        );
        assert_eq!(ring.pieces(BLOCK..BLOCK).count(), 0);
    }

    #[test]
    fn what_was_waited_for_is_in_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let redo = Redo::start(Ring::create(dir.path(), 2, 4 * BLOCK).unwrap()).unwrap();
        let mut lsn = 0;
        for number in 1..=10_u8 {
            lsn = redo.append(std::iter::once([number; 100].as_slice()));
            redo.wait_flushed(lsn).unwrap();
        }
        assert_eq!((lsn, redo.flushed()), (10 * BLOCK, 10 * BLOCK));
        let first = std::fs::read(dir.path().join("redo0.log")).unwrap();
        assert_eq!((first[99], first[100]), (9, 0), "the ninth record stands where the first did");
    }
}
