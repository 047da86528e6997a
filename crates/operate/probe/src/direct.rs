//! Direct I/O: its alignment, and whether it really bypasses the page cache.
//!
//! A file system may accept `O_DIRECT` and still copy through the page cache (tmpfs; btrfs for
//! files with checksums). Four observations show that: events report pages added meanwhile; pages
//! stay resident; reads work at offsets that no device supports; and repeated reads of one block
//! are as fast as reads from memory.

use std::time::Instant;

use pagekeeper_io::{AlignedBuf, IoFile, WriteMode};
use pagekeeper_kernel::Inode;
use pagekeeper_policy::DirectProfile;
use pagekeeper_trace::BlockOp;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::events::EventCounter;
use crate::figures::{RandomNumbers, median};
use crate::file::{BLOCK_BYTES, BLOCK_LEN, TestFile, check, random_piece, stamp};
use crate::mixed::random_offset;
use crate::run::ProbeContext;
use crate::{Error, Result};

/// The actual behaviour of direct I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectKind {
    /// It goes to the device.
    Real,
    /// Reads go to the device; writes are copied through the page cache.
    WritesCopied,
    /// Data is copied through the page cache.
    Copied,
    /// Reads are answered from the page cache, and the pages stay.
    Cached,
    /// The file system refuses it.
    Refused,
}

/// The results about direct I/O.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DirectReport {
    /// The conclusion.
    pub kind: DirectKind,
    /// The error with which it was refused.
    pub refused: Option<String>,
    /// Alignment of memory and of offsets that the file system reports (statx(2)), in bytes; `None`
    /// if it reports none.
    pub reported: Option<DirectProfile>,
    /// The smallest alignment of memory and of offsets that worked, in bytes; 1 means any.
    pub worked: Option<DirectProfile>,
    /// Bytes that a direct read of cold data left resident: `(read, left)`.
    pub left_by_read: Option<(u64, u64)>,
    /// Pages added to the page cache during [`Self::tried`] direct reads; `None` if page-cache
    /// events are not counted.
    pub added_by_reads: Option<u64>,
    /// Pages added to the page cache during as many direct writes.
    pub added_by_writes: Option<u64>,
    /// Number of those reads, and of those writes.
    pub tried: u64,
    /// Requests that the disk served meanwhile, from any program: during the reads, and during the
    /// writes.
    pub disk_requests: Option<(u64, u64)>,
    /// Time of a direct read of a block that was just read, in microseconds.
    pub again_us: f64,
    /// Time of a read of a block in the page cache, in microseconds.
    pub cached_us: f64,
    /// Whether a direct read of a block that was dirty in the page cache returned the latest data.
    pub dirty_is_seen: bool,
    /// Whether that block was still dirty afterwards; `None` if unknown.
    pub stays_dirty: Option<bool>,
    /// Whether a buffered read after a direct write over resident pages returned the latest data.
    pub write_is_seen: bool,
    /// Resident bytes before and after a direct write to one block of them: `(before, after)`.
    pub left_by_write: Option<(u64, u64)>,
}

impl DirectReport {
    /// Returns the alignment to use, if direct I/O is real.
    pub fn profile(&self) -> Option<DirectProfile> {
        if self.kind == DirectKind::Real { self.reported.or(self.worked) } else { None }
    }

    fn refused(why: String, reported: Option<DirectProfile>) -> Self {
        Self {
            kind: DirectKind::Refused,
            refused: Some(why),
            reported,
            worked: None,
            left_by_read: None,
            added_by_reads: None,
            added_by_writes: None,
            tried: 0,
            disk_requests: None,
            again_us: 0.0,
            cached_us: 0.0,
            dirty_is_seen: true,
            stays_dirty: None,
            write_is_seen: true,
            left_by_write: None,
        }
    }
}

/// Number of reads and of writes in each test.
const DIRECT_OPERATIONS: u64 = 64;

/// Runs all tests of direct I/O.
pub(crate) fn measure(
    work: &ProbeContext<'_>,
    file: &TestFile,
    events: &mut EventCounter,
) -> Result<DirectReport> {
    let reported = reported_alignment(&*file.buffered);
    let direct = match &file.direct {
        Ok(direct) => &**direct,
        Err(error) => return Ok(DirectReport::refused(error.to_string(), reported)),
    };
    if reported.is_some_and(|reported| reported.offset_alignment == 0) {
        let why = "the file system says that it has none for this file (statx)".to_owned();
        return Ok(DirectReport::refused(why, reported));
    }
    let mut random = RandomNumbers::new(work.measure.seed);
    work.check()?;
    file.drop_pages()?;
    let read = 64 << 10;
    let mut piece = AlignedBuf::new(read);
    let whole = 0..file.len - (1 << 20);
    let offset = random_offset(&mut random, &whole);
    direct.read_at(offset, &mut piece)?;
    check(&piece, direct, offset)?;
    let left_by_read = file.resident(0..u64::MAX)?.map(|left| (read as u64, left));
    let worked = worked(direct, &mut random, file.len)?;
    file.drop_pages()?;
    let (added_by_reads, reads) = seen(work, file, events, || each(direct, &mut random, &whole, false))?;
    let (added_by_writes, writes) = seen(work, file, events, || each(direct, &mut random, &whole, true))?;
    let again_us = again(direct)?;
    let cached_us = again(&*file.buffered)?;
    let (dirty_is_seen, stays_dirty) = over_dirty(file, direct, &mut random)?;
    let (write_is_seen, left_by_write) = over_resident(file, direct)?;
    file.drop_pages()?;
    let mut report = DirectReport {
        kind: DirectKind::Real,
        refused: None,
        reported,
        worked,
        left_by_read,
        added_by_reads,
        added_by_writes,
        tried: DIRECT_OPERATIONS,
        disk_requests: reads.zip(writes),
        again_us,
        cached_us,
        dirty_is_seen,
        stays_dirty,
        write_is_seen,
        left_by_write,
    };
    report.kind = kind(&report);
    Ok(report)
}

/// Concludes the kind from the observations.
fn kind(report: &DirectReport) -> DirectKind {
    let takes_anything = report.worked.is_some_and(|worked| worked.offset_alignment < 512);
    match (report.added_by_reads, report.added_by_writes) {
        _ if report.left_by_read.is_some_and(|(_, left)| left > 0) => DirectKind::Cached,
        (Some(0), Some(0)) => DirectKind::Real,
        (Some(0), Some(_)) => DirectKind::WritesCopied,
        (Some(_), _) => DirectKind::Copied,
        // Without events: no device supports such alignments, so something copies.
        (None, _) if takes_anything => DirectKind::Copied,
        (None, _) => DirectKind::Real,
    }
}

/// Returns the alignment that statx(2) reports (`STATX_DIOALIGN`, Linux 6.1): zeros mean "no direct
/// I/O".
fn reported_alignment(file: &dyn IoFile) -> Option<DirectProfile> {
    let stat = rustix::fs::statx(file.fd()?, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_reported = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    is_reported.then_some(DirectProfile {
        memory_alignment: stat.stx_dio_mem_align,
        offset_alignment: stat.stx_dio_offset_align,
    })
}

/// Finds the smallest alignments that work, each with 4096 bytes for the other one.
fn worked(direct: &dyn IoFile, random: &mut RandomNumbers, len: u64) -> Result<Option<DirectProfile>> {
    let fd = direct.fd().ok_or_else(|| Error::call("read", direct.path(), Errno::BADF))?;
    let mut memory = AlignedBuf::new(4 * BLOCK_LEN);
    let base = random_offset(random, &(0..len - (1 << 20)));
    let mut works = |skip: usize, offset: u64, len: usize| -> Result<bool> {
        match rustix::io::pread(fd, &mut memory[skip..skip + len], offset) {
            Ok(_) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(errno) => Err(Error::call("read", direct.path(), errno)),
        }
    };
    let (mut offset_alignment, mut memory_alignment) = (None, None);
    for alignment in [1_u16, 512, 1024, 2048, 4096] {
        // An odd multiple, so that it does not meet a greater alignment by accident.
        let len = usize::from(alignment);
        if offset_alignment.is_none() && works(0, base + u64::from(alignment), len)? {
            offset_alignment = Some(u32::from(alignment));
        }
        if memory_alignment.is_none() && works(len, base, BLOCK_LEN)? {
            memory_alignment = Some(u32::from(alignment));
        }
    }
    Ok(memory_alignment
        .zip(offset_alignment)
        .map(|(memory_alignment, offset_alignment)| DirectProfile { memory_alignment, offset_alignment }))
}

/// Runs `act` while events are counted. Returns the pages of the file that were added to the page
/// cache, and the requests that the disk served.
fn seen(
    work: &ProbeContext<'_>,
    file: &TestFile,
    events: &mut EventCounter,
    act: impl FnOnce() -> Result<()>,
) -> Result<(Option<u64>, Option<u64>)> {
    let inode =
        work.directory.traced.zip(Some(file.buffered.stat()?.inode)).map(|(dev, ino)| Inode { dev, ino });
    events.take();
    act()?;
    let Some(counts) = events.take() else { return Ok((None, None)) };
    let added = inode.and_then(|inode| counts.of_file(inode)).map(|flow| flow.added.bytes / BLOCK_BYTES);
    let is_ours = |op| matches!(op, BlockOp::Read | BlockOp::Write);
    let requests = work.directory.disk.zip(counts.block).map(|(disk, blocks)| {
        let of_disk = blocks.iter().filter(|block| block.dev == disk && is_ours(block.op));
        of_disk.map(|block| block.latency.count()).sum()
    });
    Ok((added, requests))
}

/// Reads or writes random blocks, one at a time.
fn each(
    direct: &dyn IoFile,
    random: &mut RandomNumbers,
    whole: &std::ops::Range<u64>,
    write: bool,
) -> Result<()> {
    let mut block = random_piece(BLOCK_LEN);
    for _ in 0..DIRECT_OPERATIONS {
        let offset = random_offset(random, whole);
        if write {
            stamp(&mut block, offset);
            direct.write_at(offset, &block, WriteMode::Plain)?;
        } else {
            direct.read_at(offset, &mut block)?;
            check(&block, direct, offset)?;
        }
    }
    Ok(())
}

/// Reads one block repeatedly. Returns the median time in microseconds.
fn again(file: &dyn IoFile) -> Result<f64> {
    let mut block = AlignedBuf::new(BLOCK_LEN);
    let mut took = Vec::new();
    for _ in 0..DIRECT_OPERATIONS {
        let began = Instant::now();
        file.read_at(0, &mut block)?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
        check(&block, file, 0)?;
    }
    Ok(median(&took).unwrap_or(0.0))
}

/// Reads a block directly that is dirty in the page cache. Returns whether the read sees the new
/// data, and whether the block stays dirty.
fn over_dirty(
    file: &TestFile,
    direct: &dyn IoFile,
    random: &mut RandomNumbers,
) -> Result<(bool, Option<bool>)> {
    file.drop_pages()?;
    let mut block = random_piece(BLOCK_LEN);
    stamp(&mut block, 0);
    block[8..16].copy_from_slice(&random.next_u64().to_le_bytes());
    file.buffered.write_at(0, &block, WriteMode::Plain)?;
    let mut found = AlignedBuf::new(BLOCK_LEN);
    direct.read_at(0, &mut found)?;
    let state = file.buffered.residency(0..BLOCK_BYTES)?;
    Ok((found[..] == block[..], state.map(|state| state.unwritten > 0)))
}

/// Writes one of several resident blocks directly. Returns whether a read through the page cache
/// sees the new data, and the resident bytes before and after.
fn over_resident(file: &TestFile, direct: &dyn IoFile) -> Result<(bool, Option<(u64, u64)>)> {
    let len = 16 * BLOCK_LEN;
    file.drop_pages()?;
    let mut piece = AlignedBuf::new(len);
    file.buffered.read_at(0, &mut piece)?;
    let range = 0..len as u64;
    let before = file.resident(range.clone())?;
    let mut block = random_piece(BLOCK_LEN);
    stamp(&mut block, BLOCK_BYTES);
    block[8..16].fill(7);
    direct.write_at(BLOCK_BYTES, &block, WriteMode::Plain)?;
    let after = file.resident(range)?;
    file.buffered.read_at(0, &mut piece)?;
    Ok((piece[BLOCK_LEN..2 * BLOCK_LEN] == block[..], before.zip(after)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn the_kind_of_direct_io_is_inferred_from_residency() {
        let of = |added: Option<(u64, u64)>, left, alignment| {
            let report = DirectReport {
                left_by_read: Some((65_536, left)),
                added_by_reads: added.map(|added| added.0),
                added_by_writes: added.map(|added| added.1),
                worked: Some(DirectProfile { memory_alignment: 512, offset_alignment: alignment }),
                ..DirectReport::refused(String::new(), None)
            };
            kind(&report)
        };
        assert_eq!(of(Some((0, 0)), 0, 512), DirectKind::Real);
        assert_eq!(of(Some((0, 0)), 0, 1), DirectKind::Real, "nothing came to the page cache");
        assert_eq!(of(Some((0, 64)), 0, 1), DirectKind::WritesCopied);
        assert_eq!(of(Some((64, 64)), 0, 512), DirectKind::Copied);
        assert_eq!(of(None, 0, 1), DirectKind::Copied);
        assert_eq!(of(None, 0, 512), DirectKind::Real);
        assert_eq!(of(Some((0, 0)), 65_536, 512), DirectKind::Cached);
    }

    #[test]
    fn direct_io_is_coherent_and_distinguished_from_a_copy() {
        let dir = disk_dir();
        let work = ProbeContext::for_test(dir.path());
        let mut file = TestFile::new(&work.directory, &*work.io).unwrap();
        file.fill(8 << 20, Duration::MAX, &work).unwrap();
        let mut events = EventCounter::start(&work.directory);
        let report = measure(&work, &file, &mut events).unwrap();
        assert!(report.dirty_is_seen && report.write_is_seen, "{report:?}");
        assert_eq!(report.refused.is_some(), report.kind == DirectKind::Refused);
        if report.kind == DirectKind::Real {
            let profile = report.profile().unwrap();
            assert!(profile.offset_alignment.is_power_of_two(), "{report:?}");
            assert_eq!(report.left_by_read.map_or(0, |(_, left)| left), 0);
        } else {
            assert_eq!(report.profile(), None);
        }
    }
}
