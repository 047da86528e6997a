//! The sizes of atomic writes that the kernel reports for a file.

use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Statx, StatxFlags};

/// `STATX_WRITE_ATOMIC` (Linux 6.11), which rustix lacks.
const STATX_WRITE_ATOMIC: u32 = 0x1_0000;

/// Returns the atomic-write fields of statx(2), or `None` if the file does not support atomic
/// writes.
pub(crate) fn statx(file: impl AsFd) -> Option<Statx> {
    let asked = StatxFlags::from_bits_retain(STATX_WRITE_ATOMIC);
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked).ok()?;
    let (least, most) = (stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max);
    let is_reported = stat.stx_mask & STATX_WRITE_ATOMIC != 0 && least > 0 && least <= most;
    is_reported.then_some(stat)
}

/// Returns the smallest and largest size that statx(2) reports.
pub(crate) fn reported(file: impl AsFd) -> Option<RangeInclusive<u64>> {
    let stat = statx(file)?;
    Some(stat.stx_atomic_write_unit_min.into()..=stat.stx_atomic_write_unit_max.into())
}
