//! Files without a name that measurements use, each opened both buffered and direct.
//!
//! Invariants: each block of [`BLOCK_LEN`] bytes begins with its own offset, so that every read can
//! be checked. Other files of the directory are not touched. The file is freed with its last
//! descriptor, even after `kill -9`.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::{
    Access, AlignedBuf, BatchRead, Create, Error as IoError, FileLock, Io, IoFile, OwnedRead, OwnedWrite,
    WriteMode,
};
use pagekeeper_policy::stream_pace::TaskPacer;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::directory::{TestDirectory, unnamed};
use crate::figures::RandomNumbers;
use crate::run::ProbeContext;
use crate::{Error, Result};

/// Size of one random read or write in bytes.
pub(crate) const BLOCK_LEN: usize = 4096;
/// [`BLOCK_LEN`] for offsets.
pub(crate) const BLOCK_BYTES: u64 = BLOCK_LEN as u64;
/// Bytes written at a time while a file is filled.
const FILL_WRITE_BYTES: usize = 1 << 20;
/// Minimum size of a filled file in bytes, however slow the disk is.
pub(crate) const FILLED_BYTES_MIN: u64 = 64 << 20;

/// A test file.
pub(crate) struct TestFile {
    pub(crate) buffered: Arc<dyn IoFile>,
    /// The same file opened for direct I/O, or the error with which that was refused.
    pub(crate) direct: std::result::Result<Arc<dyn IoFile>, IoError>,
    /// Bytes that were written.
    pub(crate) len: u64,
}

impl TestFile {
    /// Creates an empty file.
    pub(crate) fn new(directory: &TestDirectory, io: &dyn Io) -> Result<Self> {
        let file = directory.unnamed()?;
        let direct = match direct(&file, &directory.directory) {
            Ok(direct) => Ok(io.adopt(direct, Access::Direct)?),
            Err(error) if error.errno() == Some(Errno::INVAL.raw_os_error()) => Err(error),
            Err(error) => return Err(error.into()),
        };
        let buffered = io.adopt(file, Access::Buffered)?;
        Ok(Self { buffered, direct, len: 0 })
    }

    /// Returns the most direct access to the device: direct I/O if available.
    pub(crate) fn nearest(&self) -> &Arc<dyn IoFile> {
        self.direct.as_ref().unwrap_or(&self.buffered)
    }

    /// Allocates `len` bytes and writes them, or as many as the disk takes in `time`, but at least
    /// [`FILLED_BYTES_MIN`]. None of them is resident afterwards.
    pub(crate) fn fill(&mut self, len: u64, time: Duration, work: &ProbeContext<'_>) -> Result<()> {
        let len = len / FILL_WRITE_BYTES as u64 * FILL_WRITE_BYTES as u64;
        match self.buffered.allocate(0..len) {
            // Only a hint: not every file system supports it.
            Err(error) if error.errno() == Some(Errno::OPNOTSUPP.raw_os_error()) => {}
            allocated => allocated?,
        }
        let mut piece = random_piece(FILL_WRITE_BYTES);
        let (began, file) = (Instant::now(), Arc::clone(self.nearest()));
        let mut pacer = TaskPacer::new(work.measure.pace);
        let is_whole = |len: u64| len.is_multiple_of(FILL_WRITE_BYTES as u64);
        while self.len < len && (self.len < FILLED_BYTES_MIN || began.elapsed() < time || !is_whole(self.len))
        {
            work.check()?;
            let step =
                usize::try_from(pacer.piece()).map_or(FILL_WRITE_BYTES, |bytes| bytes.min(FILL_WRITE_BYTES));
            let end = (self.len + (1 << step.ilog2())).min(len);
            let bytes = &mut piece[..usize::try_from(end - self.len).unwrap_or(FILL_WRITE_BYTES)];
            stamp(bytes, self.len);
            let write_start = began.elapsed();
            file.write_at(self.len, bytes, WriteMode::Plain)?;
            if self.direct.is_err() {
                self.buffered.wait_writeback(self.len..end)?;
            }
            std::thread::sleep(pacer.done_alone(end - self.len, write_start, began.elapsed()));
            self.len = end;
        }
        self.buffered.set_len(self.len)?;
        self.buffered.sync_all()?;
        self.drop_pages()
    }

    /// Drops all pages of the file, as far as possible.
    pub(crate) fn drop_pages(&self) -> Result<()> {
        drop_pages(&*self.buffered)
    }

    /// Returns the resident bytes of a range; `None` if unknown.
    pub(crate) fn resident(&self, range: std::ops::Range<u64>) -> Result<Option<u64>> {
        Ok(self.buffered.residency(range)?.map(|found| found.resident))
    }
}

/// Writes dirty pages back and drops all pages.
pub(crate) fn drop_pages(file: &dyn IoFile) -> Result<()> {
    file.wait_writeback(0..u64::MAX)?;
    for _ in 0..5 {
        file.release(0..u64::MAX)?;
        if file.residency(0..u64::MAX)?.is_none_or(|found| found.resident == 0) {
            break;
        }
        // Pages that are just being read ahead resist.
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Opens the same open file again, for direct I/O.
fn direct(file: &File, directory: &Path) -> std::result::Result<File, IoError> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    let opened: std::result::Result<OwnedFd, Errno> = rustix::fs::open(link, flags, Mode::empty());
    opened.map(File::from).map_err(|errno| IoError::Call {
        call: "open with O_DIRECT a file in",
        path: directory.to_path_buf(),
        errno: errno.raw_os_error(),
    })
}

/// Returns random bytes, which a device can neither compress nor deduplicate.
pub(crate) fn random_piece(len: usize) -> AlignedBuf {
    let mut piece = AlignedBuf::new(len);
    let mut random = RandomNumbers::new(std::process::id().into());
    for word in piece.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    piece
}

/// Makes each block of a piece begin with its offset in the file.
pub(crate) fn stamp(piece: &mut [u8], offset: u64) {
    for (number, block) in (0_u64..).zip(piece.chunks_mut(BLOCK_LEN)) {
        block[..8].copy_from_slice(&(offset + number * BLOCK_BYTES).to_le_bytes());
    }
}

/// Fails unless the bytes begin like the block at that offset.
pub(crate) fn check(block: &[u8], file: &dyn IoFile, offset: u64) -> Result<()> {
    if block.get(..8) == Some(&offset.to_le_bytes()) {
        return Ok(());
    }
    Err(Error::Wrong { path: file.path().to_path_buf(), offset })
}

/// A back-end whose new files have no name, so that bulk output leaves nothing behind, however its
/// writer ends.
pub(crate) struct UnnamedFiles {
    io: Arc<dyn Io>,
}

impl UnnamedFiles {
    pub(crate) fn shared(io: Arc<dyn Io>) -> Arc<dyn Io> {
        Arc::new(Self { io })
    }
}

impl Io for UnnamedFiles {
    fn open(&self, path: &Path, access: Access) -> std::result::Result<Arc<dyn IoFile>, IoError> {
        self.io.open(path, access)
    }

    fn adopt(&self, file: File, access: Access) -> std::result::Result<Arc<dyn IoFile>, IoError> {
        self.io.adopt(file, access)
    }

    fn read_batch(
        &self,
        reads: &mut [BatchRead<'_>],
        completed: &mut dyn FnMut(usize, std::result::Result<usize, IoError>),
    ) {
        self.io.read_batch(reads, completed);
    }

    fn submit(&self, reads: Vec<OwnedRead>) {
        self.io.submit(reads);
    }

    fn name(&self) -> &'static str {
        self.io.name()
    }

    fn open_writable(
        &self,
        path: &Path,
        access: Access,
        _create: Create,
    ) -> std::result::Result<Arc<dyn IoFile>, IoError> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let failed = |error: Error| IoError::Call {
            call: "make a file in",
            path: directory.to_path_buf(),
            errno: match error {
                Error::Denied { .. } => Errno::ACCESS.raw_os_error(),
                Error::ReadOnly { .. } => Errno::ROFS.raw_os_error(),
                Error::Call { source, .. } => source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
                _ => Errno::IO.raw_os_error(),
            },
        };
        let file = unnamed(directory).map_err(failed)?;
        if access == Access::Buffered {
            return self.io.adopt(file, access);
        }
        match direct(&file, directory) {
            Ok(direct) => self.io.adopt(direct, access),
            Err(error) if error.errno() == Some(Errno::INVAL.raw_os_error()) => {
                Err(IoError::NoDirect { path: directory.to_path_buf(), errno: Errno::INVAL.raw_os_error() })
            }
            Err(error) => Err(error),
        }
    }

    /// Does nothing: there is no name to remove.
    fn remove(&self, _path: &Path) -> std::result::Result<(), IoError> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> std::result::Result<Vec<OsString>, IoError> {
        self.io.list(dir)
    }

    /// Does nothing: there is no name to make durable.
    fn sync_dir(&self, _dir: &Path) -> std::result::Result<(), IoError> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> std::result::Result<FileLock, IoError> {
        self.io.lock(path)
    }

    fn submit_writes(&self, writes: Vec<OwnedWrite>) {
        self.io.submit_writes(writes);
    }
}

/// Returns a path for bulk output, which does not use its name.
pub(crate) fn bulk_path(directory: &TestDirectory) -> PathBuf {
    directory.directory.join("bulk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn blocks_tell_their_place() {
        let mut piece = random_piece(3 * BLOCK_LEN);
        stamp(&mut piece, 8192);
        let dir = disk_dir();
        let file = TestFile::new(&TestDirectory::open(dir.path()).unwrap(), &*pagekeeper_io::best()).unwrap();
        check(&piece[BLOCK_LEN..], &*file.buffered, 12_288).unwrap();
        assert!(matches!(check(&piece, &*file.buffered, 0), Err(Error::Wrong { offset: 0, .. })));
        assert!(matches!(check(&[], &*file.buffered, 0), Err(Error::Wrong { .. })));
    }

    #[test]
    fn a_filled_file_is_written_and_not_resident() {
        let dir = disk_dir();
        let work = ProbeContext::for_test(dir.path());
        let mut file = TestFile::new(&work.directory, &*work.io).unwrap();
        file.fill(3 << 20, Duration::ZERO, &work).unwrap();
        assert_eq!(file.len, 3 << 20);
        assert_eq!(file.resident(0..u64::MAX).unwrap().unwrap_or(0), 0);
        let mut block = AlignedBuf::new(BLOCK_LEN);
        for offset in [0, 1 << 20, (3 << 20) - BLOCK_BYTES] {
            file.nearest().read_at(offset, &mut block).unwrap();
            check(&block, &*file.buffered, offset).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn bulk_output_has_no_name() {
        let dir = disk_dir();
        let io = UnnamedFiles::shared(pagekeeper_io::best());
        for mode in [pagekeeper_bulk::BulkMode::Auto, pagekeeper_bulk::BulkMode::Buffered] {
            let options = pagekeeper_bulk::BulkWriter::options().mode(mode).io(Arc::clone(&io));
            let mut output = options.create(dir.path().join("bulk")).unwrap();
            output.write_all(&random_piece(3 << 20)).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
            assert_eq!(output.finish().unwrap().bytes, 3 << 20);
        }
    }
}
