//! Tests the ways of writing that leave no pages in the cache: direct, uncached, or with a release.
//!
//! Neither the kernel's version nor a flag is trusted: an unnamed file in the directory itself is
//! written.
//!
//! Invariants: a probe leaves nothing behind; each file system is probed once in a process. Fails
//! if no file can be created or written in the directory.

use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use pagekeeper_kernel::{FileSystem, InspectedFile, residency};
use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::files::syscall::call;
use crate::{Access, AlignedBuf, Error, Io, PerProcess};

/// `RWF_DONTCACHE` of pwritev2(2), Linux 6.14.
const RWF_DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// Bytes of a probe's write.
const SAMPLE_BYTES: usize = 256 << 10;

/// Whether this back-end's files are real files of this machine.
pub fn has_real_files(io: &dyn Io) -> bool {
    let taken = File::open("/proc/self/exe").map(|file| io.adopt(file, Access::Buffered));
    !matches!(taken, Ok(Err(Error::Foreign { .. })))
}

/// The test result of a way of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeResult {
    /// No page stays.
    NoPages,
    /// The call fails with this error number.
    Refused(i32),
    /// No page stays, but the file system does not confirm it: statx(2) reports no
    /// `STATX_DIOALIGN`. On btrfs (Linux 6.18) such writes are copied through the page cache, at
    /// half the rate of buffered ones.
    Unconfirmed,
    /// It works, but its pages stay.
    PagesStay,
    /// It works, but residency can't be observed here.
    PagesUnseen,
}

impl ProbeResult {
    /// Returns a text to put behind the name of the way of writing; `None` if no page stays.
    pub fn why_not(self) -> Option<String> {
        match self {
            Self::NoPages => None,
            Self::Refused(errno) => {
                Some(format!("is refused here ({})", std::io::Error::from_raw_os_error(errno)))
            }
            Self::Unconfirmed => {
                Some("is not vouched for by the file system here, which may copy".to_owned())
            }
            Self::PagesStay => Some("leaves its pages in the page cache here".to_owned()),
            Self::PagesUnseen => {
                Some("works here, but what it leaves in the page cache can't be seen".to_owned())
            }
        }
    }
}

/// The test results of a file system.
///
/// ```
/// use pagekeeper_io::{ProbeResult, WriteSupport};
/// let found = WriteSupport::probe("/dev/shm")?;
/// assert_eq!(found.direct, ProbeResult::PagesStay);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSupport {
    /// Direct writes.
    pub direct: ProbeResult,
    /// Uncached writes past the end.
    pub uncached_append: ProbeResult,
    /// Uncached writes over written extents: on ext4 the pages stay (Linux 6.18).
    pub uncached_overwrite: ProbeResult,
    /// Dropping clean pages: in memory file systems they stay.
    pub release: ProbeResult,
}

impl WriteSupport {
    /// Tests a directory's file system, once in a process.
    pub fn probe(directory: impl AsRef<Path>) -> Result<Self, Error> {
        static KNOWN_SUPPORT: PerProcess<HashMap<u64, WriteSupport>> = PerProcess::new();
        let directory = directory.as_ref();
        let device = rustix::fs::stat(directory).map_err(|errno| call("stat", directory, errno))?.st_dev;
        if let Some(found) = KNOWN_SUPPORT.lock().get(&device) {
            return Ok(*found);
        }
        let found = ProbeFile::new(directory)?.run()?;
        KNOWN_SUPPORT.lock().insert(device, found);
        Ok(found)
    }
}

/// The file that a probe writes to.
struct ProbeFile<'a> {
    file: File,
    inspected: InspectedFile,
    directory: &'a Path,
    bytes: AlignedBuf,
}

impl<'a> ProbeFile<'a> {
    fn new(directory: &'a Path) -> Result<Self, Error> {
        let file = tempfile::tempfile_in(directory).map_err(|error| {
            call("create a file in", directory, Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let same = rustix::io::dup(&file).map_err(|errno| call("dup", directory, errno))?;
        let inspected = InspectedFile::from_fd(same, directory.to_path_buf()).map_err(|error| {
            call("stat", directory, Errno::from_raw_os_error(error.errno().unwrap_or(libc::EIO)))
        })?;
        let mut bytes = AlignedBuf::new(SAMPLE_BYTES);
        bytes.fill(1);
        Ok(Self { file, inspected, directory, bytes })
    }

    fn run(&self) -> Result<WriteSupport, Error> {
        let refuses = |file_system: FileSystem| file_system.release_refusal().is_some();
        if FileSystem::of(&self.file, self.directory).is_ok_and(refuses) {
            // The page cache is the file itself.
            let all = ProbeResult::PagesStay;
            return Ok(WriteSupport {
                direct: all,
                uncached_append: all,
                uncached_overwrite: all,
                release: all,
            });
        }
        let uncached_append = self.try_write(&self.file, RWF_DONTCACHE)?;
        self.write(&self.file, ReadWriteFlags::empty()).map_err(|errno| self.failed(errno))?;
        self.drop_pages()?;
        let release = self.offer();
        let uncached_overwrite = self.try_write(&self.file, RWF_DONTCACHE)?;
        self.drop_pages()?;
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        let direct = match rustix::fs::openat(CWD, link, flags, Mode::empty()) {
            Ok(direct) => match self.try_write(&direct.into(), ReadWriteFlags::empty())? {
                ProbeResult::NoPages if !self.is_reported() => ProbeResult::Unconfirmed,
                offer => offer,
            },
            Err(errno) => ProbeResult::Refused(errno.raw_os_error()),
        };
        Ok(WriteSupport { direct, uncached_append, uncached_overwrite, release })
    }

    /// Writes the sample at the start, syncs, and checks whether pages stay resident.
    fn try_write(&self, file: &File, flags: ReadWriteFlags) -> Result<ProbeResult, Error> {
        match self.write(file, flags) {
            Ok(()) => {}
            Err(errno @ (Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)) => {
                return Ok(ProbeResult::Refused(errno.raw_os_error()));
            }
            Err(errno) => return Err(self.failed(errno)),
        }
        rustix::fs::fdatasync(file).map_err(|errno| self.failed(errno))?;
        Ok(self.offer())
    }

    fn write(&self, file: &File, flags: ReadWriteFlags) -> Result<(), Errno> {
        let mut done = 0;
        while done < SAMPLE_BYTES {
            // The first block is written alone, because a log's writes are that small.
            let end = if done < AlignedBuf::ALIGN { AlignedBuf::ALIGN } else { SAMPLE_BYTES };
            let rest = [IoSlice::new(&self.bytes[done..end])];
            match rustix::io::pwritev2(file, &rest, done as u64, flags) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Whether the file system reports its direct I/O alignment (statx(2), Linux 6.1).
    fn is_reported(&self) -> bool {
        let stat = rustix::fs::statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        stat.is_ok_and(|stat| {
            StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN)
                && stat.stx_dio_offset_align > 0
        })
    }

    fn drop_pages(&self) -> Result<(), Error> {
        rustix::fs::fdatasync(&self.file)
            .and_then(|()| rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed))
            .map_err(|errno| self.failed(errno))
    }

    /// Tests whether pages stay. The kernel drops uncached pages a moment after they are written.
    fn offer(&self) -> ProbeResult {
        for _ in 0..20 {
            match residency(&self.inspected, 0..SAMPLE_BYTES as u64) {
                Ok(found) if found.resident <= SAMPLE_BYTES as u64 / 8 => return ProbeResult::NoPages,
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return ProbeResult::PagesUnseen,
            }
        }
        ProbeResult::PagesStay
    }

    fn failed(&self, errno: Errno) -> Error {
        call("probe a file in", self.directory, errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_sentences() {
        assert_eq!(ProbeResult::NoPages.why_not(), None);
        for result in [
            ProbeResult::Refused(libc::EINVAL),
            ProbeResult::Unconfirmed,
            ProbeResult::PagesStay,
            ProbeResult::PagesUnseen,
        ] {
            assert!(result.why_not().unwrap().contains("here"));
        }
    }
}
