//! Special writes: uncached ones, whose pages the kernel drops by itself (`RWF_DONTCACHE`), and
//! atomic ones, which are complete or absent after a crash (`RWF_ATOMIC`). An accepted flag proves
//! nothing, so resident pages are counted.

use std::time::Duration;

use pagekeeper_io::{AtomicWrites, IoFile, WriteMode};
use pagekeeper_policy::UncachedProfile;
use serde::Serialize;

use crate::Result;
use crate::file::{TestFile, drop_pages, random_piece, stamp};
use crate::run::ProbeContext;

/// Bytes written uncached.
const UNCACHED_BYTES: usize = 2 << 20;
/// Size of one such write in bytes.
const UNCACHED_WRITE_BYTES: usize = 64 << 10;
/// The kernel drops the pages shortly after they are written back.
const DROP_DELAY: Duration = Duration::from_millis(1);

/// Uncached writes of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UncachedUse {
    /// The error with which they were refused; `None` if accepted.
    pub refused: Option<String>,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes of them that stayed resident; `None` if unknown.
    pub resident_bytes: Option<u64>,
}

impl UncachedUse {
    /// Whether they are accepted and leave hardly anything resident.
    pub fn is_real(&self) -> bool {
        self.refused.is_none() && self.resident_bytes.is_some_and(|left| left <= self.written_bytes / 8)
    }
}

/// Uncached writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UncachedReport {
    /// Appends.
    pub append: UncachedUse,
    /// Writes into allocated space that was never written.
    pub unwritten: UncachedUse,
    /// Overwrites.
    pub overwrite: UncachedUse,
}

impl UncachedReport {
    /// Returns the short form for a disk profile.
    pub fn profile(&self) -> UncachedProfile {
        UncachedProfile { append: self.append.is_real(), overwrite: self.overwrite.is_real() }
    }
}

/// Tests all three kinds.
pub(crate) fn uncached(work: &ProbeContext<'_>) -> Result<UncachedReport> {
    let new = || TestFile::new(&work.directory, &*work.io);
    let file = new()?;
    let append = try_write(work, &*file.buffered)?;
    drop(file);
    let file = new()?;
    // If space cannot be allocated, this is another append.
    let _ = file.buffered.allocate(0..UNCACHED_BYTES as u64);
    let unwritten = try_write(work, &*file.buffered)?;
    write(work, &*file.buffered, 0, WriteMode::Plain)?;
    drop_pages(&*file.buffered)?;
    let overwrite = try_write(work, &*file.buffered)?;
    Ok(UncachedReport { append, unwritten, overwrite })
}

/// Writes the sample from `start` on, and syncs.
fn write(work: &ProbeContext<'_>, file: &dyn IoFile, start: u64, mode: WriteMode) -> Result<()> {
    let mut piece = random_piece(UNCACHED_WRITE_BYTES);
    for offset in (start..UNCACHED_BYTES as u64).step_by(UNCACHED_WRITE_BYTES) {
        work.check()?;
        stamp(&mut piece, offset);
        file.write_at(offset, &piece, mode)?;
    }
    file.sync_data()?;
    Ok(())
}

fn try_write(work: &ProbeContext<'_>, file: &dyn IoFile) -> Result<UncachedUse> {
    let written_bytes = UNCACHED_BYTES as u64;
    // The first write shows whether it is supported at all.
    if let Err(error) = file.write_at(0, &random_piece(UNCACHED_WRITE_BYTES), WriteMode::Uncached) {
        let errno = error.errno().map(std::io::Error::from_raw_os_error);
        let refused = Some(errno.map_or_else(|| error.to_string(), |errno| errno.to_string()));
        return Ok(UncachedUse { refused, written_bytes, resident_bytes: None });
    }
    write(work, file, UNCACHED_WRITE_BYTES as u64, WriteMode::Uncached)?;
    let mut resident_bytes = None;
    for _ in 0..50 {
        resident_bytes = file.residency(0..written_bytes)?.map(|found| found.resident);
        if resident_bytes.is_none_or(|left| left == 0) {
            break;
        }
        std::thread::sleep(DROP_DELAY);
    }
    Ok(UncachedUse { refused: None, written_bytes, resident_bytes })
}

/// Atomic writes of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AtomicSize {
    /// Size in bytes.
    pub bytes: u64,
    /// Whether such a write succeeded.
    pub works: bool,
    /// Whether the device does them by itself. Otherwise the file system writes to new blocks and
    /// remaps the file, which takes space and can fail.
    pub in_place: bool,
}

/// Atomic writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AtomicReport {
    /// The smallest and largest size that statx(2) reports, in bytes; `None` if it reports none.
    pub reported: Option<(u64, u64)>,
    /// Each power of two between them.
    pub sizes: Vec<AtomicSize>,
}

impl AtomicReport {
    /// Returns the largest size that works.
    pub fn bytes_max(&self) -> Option<u64> {
        self.sizes.iter().filter(|size| size.works).map(|size| size.bytes).max()
    }

    /// Returns the largest size that the device supports by itself.
    pub fn in_place_bytes_max(&self) -> Option<u64> {
        self.sizes.iter().filter(|size| size.in_place).map(|size| size.bytes).max()
    }
}

/// Tests each size that is reported.
pub(crate) fn atomic(work: &ProbeContext<'_>, file: &TestFile) -> Result<AtomicReport> {
    let direct = file.direct.as_ref().ok();
    let reported =
        direct.and_then(|direct| direct.atomic_write_bytes()).map(std::ops::RangeInclusive::into_inner);
    let (Some(direct), Some((min, max))) = (direct, reported) else {
        return Ok(AtomicReport { reported: None, sizes: Vec::new() });
    };
    let mut sizes = Vec::new();
    let mut bytes = min.max(512).next_power_of_two();
    while bytes <= max {
        work.check()?;
        let found = AtomicWrites::probe(&**direct, bytes);
        let works = found != AtomicWrites::Refused;
        sizes.push(AtomicSize { bytes, works, in_place: found == AtomicWrites::InPlace });
        bytes *= 2;
    }
    Ok(AtomicReport { reported, sizes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn uncached_writes_are_judged_by_remaining_pages() {
        let of = |refused: Option<&str>, resident_bytes| {
            UncachedUse { refused: refused.map(str::to_owned), written_bytes: 1 << 20, resident_bytes }
                .is_real()
        };
        assert!(of(None, Some(0)) && of(None, Some(4096)));
        assert!(!of(None, Some(1 << 20)) && !of(None, None) && !of(Some("no"), Some(0)));
    }

    #[test]
    fn all_uses_are_tried_and_nothing_is_left() {
        let dir = disk_dir();
        let work = ProbeContext::for_test(dir.path());
        let report = uncached(&work).unwrap();
        for used in [&report.append, &report.unwritten, &report.overwrite] {
            assert_eq!(used.written_bytes, UNCACHED_BYTES as u64);
            assert!(used.refused.is_none() || used.resident_bytes.is_none(), "{report:?}");
        }
        let mut file = TestFile::new(&work.directory, &*work.io).unwrap();
        file.fill(1 << 20, Duration::MAX, &work).unwrap();
        let report = atomic(&work, &file).unwrap();
        assert_eq!(report.reported.is_none(), report.sizes.is_empty());
        assert!(report.in_place_bytes_max() <= report.bytes_max());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
