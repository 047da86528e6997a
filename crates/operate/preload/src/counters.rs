//! Counts of what the rules did: one record for each process, in its own memory or in a file that
//! all processes of a tree map.
//!
//! Invariants: counting is an atomic addition; a record is claimed once and never given back; a
//! process that finds no free record counts in its own memory alone. The counts of a killed process
//! stay.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::files::paths::join;
use crate::files::tracked_place::{PLACES, TrackedPlace};
use crate::sys;

/// The magic number of a report file, with the version of its layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pkreport") ^ 4;
/// Records in a report. Further processes are counted in [`ReportHeader::claimed`] alone.
pub const RECORDS: usize = 4096;

/// The quantities that are counted, in bytes unless the description says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    /// Bytes read by streams.
    StreamRead,
    /// Bytes written by streams.
    StreamWritten,
    /// Bytes released that streams read or wrote.
    StreamReleased,
    /// Bytes that streams read, that were resident before, and that stayed resident.
    StreamWasResident,
    /// Bytes of temporary files that were never released and went with their file.
    StreamKept,
    /// Bytes that streams read by uncached reads, past the cache.
    StreamUncached,
    /// Bytes of streams' files whose pages could be neither observed nor released.
    StreamUnobserved,
    /// Bytes written in bulk.
    BulkWritten,
    /// Bytes released of bulk output.
    BulkReleased,
    /// Bytes written to logs.
    LogWritten,
    /// Bytes released of logs.
    LogReleased,
    /// Number of logs that were kept because parts of their pages are overwritten.
    LogsKept,
    /// Bytes released of files in direct I/O.
    MixedReleased,
    /// Number of files opened for direct I/O whose resident pages were kept because the program may
    /// read them.
    MixedKeptOpens,
    /// Number of times that a file in direct I/O was written through the cache.
    MixedWriters,
    /// Number of times that a writer waited for its own writeback.
    Pauses,
    /// Nanoseconds that writers waited for their own writeback.
    ThrottledNs,
    /// Nanoseconds spent in the rules in all, including waits.
    InsideNs,
    /// Number of files that a rule applied to and that were not followed: there were too many, or
    /// the descriptor was too high.
    NotFollowed,
    /// Number of pagekeeper's own calls that failed.
    Failures,
    /// Number of files whose end is not checked because there was no free place to track them.
    NotTracked,
    /// 1 in a process that is followed by kernel events. Its pages are not counted here.
    Followed,
    /// 1 in a process that was started without the rules because neither the library nor kernel
    /// events reach it.
    NotReached,
    /// 1 in a process whose rules are disabled because a seccomp filter would kill it for the
    /// rules' system calls.
    Filtered,
}

/// The number of counts.
pub const COUNTS: usize = Count::Filtered as usize + 1;

/// The counts of one process.
#[repr(C, align(64))]
pub struct Record {
    /// The process id; 0 while the record is free.
    pub pid: AtomicU32,
    _pad: u32,
    /// The process's name.
    pub comm: [AtomicU64; 2],
    counts: [AtomicU64; COUNTS],
}

impl Record {
    /// A free record.
    // SAFETY: numbers.
    pub const EMPTY: Self = unsafe { core::mem::zeroed() };

    /// Adds to a count.
    #[inline]
    pub fn add(&self, count: Count, much: u64) {
        self.counts[count as usize].fetch_add(much, Ordering::Relaxed);
    }

    /// Returns the process's name.
    pub fn name(&self) -> [u8; 16] {
        let [first, second] = self.comm.each_ref().map(|half| half.load(Ordering::Relaxed));
        (u128::from(first) | u128::from(second) << 64).to_le_bytes()
    }

    /// Returns a count.
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }
}

/// The start of a report's file.
#[repr(C, align(64))]
pub struct ReportHeader {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// The number of processes that asked for a record.
    pub claimed: AtomicU64,
}

/// The whole file, as it is mapped.
#[repr(C)]
pub struct MappedReport {
    /// The file's header.
    pub header: ReportHeader,
    /// One record for each process.
    pub records: [Record; RECORDS],
    /// The files that are tracked.
    pub places: [TrackedPlace; PLACES],
}

impl MappedReport {
    /// Returns the records that were claimed, in the order of the claims.
    pub fn claimed(&self) -> &[Record] {
        let count = self.header.claimed.load(Ordering::Acquire).min(RECORDS as u64) as usize;
        self.records.get(..count).unwrap_or_default()
    }

    /// Claims a record for this process; `None` if all are taken or the file is not a report.
    pub fn claim(&self, pid: u32, comm: &[u8]) -> Option<&Record> {
        if self.header.magic.load(Ordering::Acquire) != MAGIC {
            return None;
        }
        let index = self.header.claimed.fetch_add(1, Ordering::Relaxed);
        let record = self.records.get(usize::try_from(index).ok()?)?;
        let mut name = [0; 16];
        let length = comm.len().min(15);
        name[..length].copy_from_slice(&comm[..length]);
        for (half, bytes) in record.comm.iter().zip(name.chunks_exact(8)) {
            half.store(u64::from_le_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        record.pid.store(pid, Ordering::Release);
        Some(record)
    }
}

/// Makes an empty file a report. Allocates its blocks now: a process that touched a page without
/// space on the file system would end by a signal (SIGBUS).
#[cfg(not(feature = "interpose"))]
pub fn begin_report(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::{fd::AsRawFd as _, unix::fs::FileExt as _};

    sys::take_room(file.as_raw_fd(), size_of::<MappedReport>() as u64)
        .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
    file.write_all_at(&MAGIC.to_le_bytes(), 0)
}

/// Copies a report without a mapping: its file may be truncated meanwhile, which is an error here
/// and would be a signal there (SIGBUS).
#[cfg(not(feature = "interpose"))]
pub fn read_report(file: &std::fs::File) -> std::io::Result<Box<MappedReport>> {
    use std::os::unix::fs::FileExt as _;

    let mut report = Box::<MappedReport>::new_uninit();
    let (at, size) = (report.as_mut_ptr().cast::<u8>(), size_of::<MappedReport>());
    // SAFETY: memory of that size, which is initialised first; all bits are valid in it.
    unsafe {
        at.write_bytes(0, size);
        file.read_exact_at(core::slice::from_raw_parts_mut(at, size), 0)?;
        Ok(report.assume_init())
    }
}

/// The longest path of a report, in bytes, including the terminating null. The path is copied to
/// the stack, which may be a signal handler's.
const REPORT_PATH_MAX: usize = 1024;

/// Maps the report at that path.
pub fn open_report(path: &[u8]) -> Option<&'static MappedReport> {
    map_file(path, size_of::<MappedReport>()).map(mapped_at)
}

/// Maps a report's file for the lifetime of the process.
pub fn map_report(fd: libc::c_int) -> Result<&'static MappedReport, sys::Errno> {
    map(fd, size_of::<MappedReport>()).map(mapped_at)
}

fn mapped_at(at: usize) -> &'static MappedReport {
    // SAFETY: a mapping that is long enough, and never unmapped; all bits are valid, and all of it
    // is atomic, so that other processes may change it.
    unsafe { &*core::ptr::with_exposed_provenance::<MappedReport>(at) }
}

/// Maps the file at that path for the lifetime of the process and returns the address. Fails if the
/// file is smaller than `size`.
pub(crate) fn map_file(path: &[u8], size: usize) -> Option<usize> {
    let mut name = [0_u8; REPORT_PATH_MAX];
    let fd = sys::open(join(&mut name, &[path])?, libc::O_RDWR).ok()?;
    let mapped = map(fd, size).ok();
    sys::close(fd);
    mapped
}

fn map(fd: libc::c_int, size: usize) -> Result<usize, sys::Errno> {
    let stat = sys::fstat(fd)?;
    // Without allocated blocks, touching a page on a full file system would end the process
    // (SIGBUS).
    if stat.st_size < size as i64 || stat.st_blocks * 512 < size as i64 {
        return Err(sys::Errno(libc::EINVAL));
    }
    sys::map(0, size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_counts_of_each_process() {
        let file = tempfile::tempfile().unwrap();
        begin_report(&file).unwrap();
        assert!(read_report(&file).unwrap().claimed().is_empty());

        let mapped = map_report(std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
        let record = mapped.claim(77, b"a-name-that-is-too-long").unwrap();
        record.add(Count::StreamRead, 5);
        record.add(Count::Failures, 1);
        mapped.claim(78, b"tar").unwrap().add(Count::StreamRead, 7);
        let report = read_report(&file).unwrap();
        let seen = report.claimed();
        assert_eq!((seen[0].pid.load(Ordering::Relaxed), &seen[0].name()), (77, b"a-name-that-is-\0"));
        assert_eq!((seen[0].get(Count::StreamRead), seen[0].get(Count::Failures)), (5, 1));
        assert_eq!((&seen[1].name()[..4], seen[1].get(Count::StreamRead)), (&b"tar\0"[..], 7));
        while mapped.claim(79, b"many").is_some() {}
        let report = read_report(&file).unwrap();
        assert_eq!(report.claimed().len(), RECORDS);
        assert_eq!(report.header.claimed.load(Ordering::Relaxed), RECORDS as u64 + 1);
    }
}
