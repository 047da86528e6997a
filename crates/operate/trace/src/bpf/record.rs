//! The layout of the programs' tables, which [`programs`](crate::bpf::programs) writes and
//! [`bpf`](crate::bpf) reads.
//!
//! Each layout is a struct that nothing constructs: the programs and this module use its offsets.
//!
//! Invariants: numbers are in the machine's order. Counts and sums only grow while an entry lives,
//! so the difference of two readings is the count of the period in between.
//!
//! The longest duration of a period can't be a difference. So each entry has two places for it,
//! marked with the number of the period (the epoch) they belong to. A program writes the place of
//! the current epoch; the reader begins a new epoch, then reads the place of the one before.

use std::time::Duration;

use crate::asm::{offset, size};
use crate::durations::{DURATION_CLASSES, DurationStats};
use crate::period_sums::{LevelSums, PauseSums, RequestSums, StallSums};
use crate::{BlockOp, PageFlow, PageTotals, ReclaimKind, TaskIdentity};
use pagekeeper_kernel::{Inode, page_size};
use pagekeeper_text::unescaped_bytes;

/// Key of the table of pages.
#[repr(C)]
pub(crate) struct PageKey {
    pub(crate) ino: u64,
    /// In the kernel's form.
    pub(crate) dev: u32,
    pub(crate) thread: u32,
}

/// Value of the table of pages.
#[repr(C)]
pub(crate) struct PageValue {
    pub(crate) added: FolioCounts,
    pub(crate) removed: FolioCounts,
    pub(crate) process: u64,
    pub(crate) name: [u8; 16],
}

/// Folios that were added or removed.
#[repr(C)]
pub(crate) struct FolioCounts {
    pub(crate) folios: u64,
    pub(crate) pages: u64,
}

/// Key of the table of pauses.
#[repr(C)]
pub(crate) struct PauseKey {
    pub(crate) thread: u32,
    _padding: u32,
    pub(crate) device: [u8; 32],
}

/// Key of the table of stalls.
#[repr(C)]
pub(crate) struct StallKey {
    pub(crate) thread: u32,
    pub(crate) kind: u32,
}

/// Key of the table of requests. Because of the processor no two of them count in the same cache
/// line.
#[repr(C)]
pub(crate) struct RequestKey {
    /// In the kernel's form.
    pub(crate) dev: u32,
    /// The first letters of the kernel's `rwbs`.
    pub(crate) letters: [u8; 2],
    pub(crate) processor: u16,
}

/// Key of the table of requests in flight.
#[repr(C)]
pub(crate) struct InFlightKey {
    pub(crate) sector: u64,
    /// In the kernel's form.
    pub(crate) dev: u32,
    _padding: u32,
}

/// Value of the table of requests in flight.
#[repr(C)]
pub(crate) struct InFlightValue {
    /// The time when it began, in nanoseconds.
    pub(crate) began: u64,
    pub(crate) sectors: u32,
    pub(crate) letters: [u8; 2],
    _padding: u16,
}

/// The longest duration of an epoch.
#[repr(C)]
pub(crate) struct EpochLongest {
    epoch: u64,
    pub(crate) nanoseconds: u64,
}

/// The beginning of the values of the tables of pauses, stalls and requests.
#[repr(C)]
pub(crate) struct TimedValue {
    pub(crate) count: u64,
    pub(crate) total_ns: u64,
    pub(crate) longest: [EpochLongest; 2],
    /// The longest whole waits, which can have several pauses each.
    pub(crate) longest_wait: [EpochLongest; 2],
    pub(crate) classes: [u64; DURATION_CLASSES],
    pub(crate) process: u64,
    pub(crate) name: [u8; 16],
}

/// Value of the table of pauses.
#[repr(C)]
pub(crate) struct PauseValue {
    _timed: TimedValue,
    pub(crate) waits: u64,
    pub(crate) dirty: u64,
    pub(crate) setpoint: u64,
    pub(crate) limit: u64,
    pub(crate) device_dirty: u64,
    pub(crate) device_setpoint: u64,
}

/// Value of the table of stalls.
#[repr(C)]
pub(crate) struct StallValue {
    _timed: TimedValue,
    /// The beginning of the current stall, in nanoseconds; 0 if there is none.
    pub(crate) began: u64,
    pub(crate) reclaimed_pages: u64,
}

/// Value of the table of requests.
#[repr(C)]
pub(crate) struct RequestValue {
    _timed: TimedValue,
    pub(crate) sectors: u64,
}

/// The counters of lost events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossCounter {
    Pages = 0,
    Pauses = 1,
    Stalls = 2,
    Requests = 3,
}

/// The number of [`LossCounter`]s.
pub(crate) const LOSS_COUNTERS: u32 = 4;

/// Returns a number of 8 bytes in a key or value.
fn number(bytes: &[u8], at: i16) -> u64 {
    let at = at.unsigned_abs() as usize;
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Returns a number of 4 bytes.
fn half(bytes: &[u8], at: i16) -> u32 {
    let at = at.unsigned_abs() as usize;
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// Returns text that ends at the first zero, or at the end of its place.
fn text(bytes: &[u8], at: i16, size: usize) -> String {
    let at = at.unsigned_abs() as usize;
    let bytes = bytes.get(at..at + size).unwrap_or_default();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    unescaped_bytes(&bytes[..end]).into_owned()
}

/// Returns a device number from the kernel's form: 12 bits of major, 20 of minor.
pub(crate) fn device_of(dev: u32) -> u64 {
    rustix::fs::makedev(dev >> 20, dev & 0xf_ffff)
}

/// Returns a device number in the kernel's form, from that of a stat result.
pub(crate) fn kernel_device(dev: u64) -> u64 {
    u64::from(rustix::fs::major(dev)) << 20 | u64::from(rustix::fs::minor(dev))
}

/// Returns whether the value of an entry of stalls has a stall in progress.
pub(crate) fn stalled(value: &[u8]) -> bool {
    number(value, offset!(StallValue, began)) != 0
}

/// Returns when a request in flight began, in nanoseconds of the monotonic clock.
pub(crate) fn begun(value: &[u8]) -> u64 {
    number(value, offset!(InFlightValue, began))
}

/// Two readings of one entry; the earlier one is all zeros if there was none.
#[derive(Clone, Copy)]
pub(crate) struct ReadingPair<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) now: &'a [u8],
    pub(crate) then: &'a [u8],
    /// The epoch that ended with the reading.
    pub(crate) epoch: u64,
}

impl ReadingPair<'_> {
    fn grown(&self, at: i16) -> u64 {
        number(self.now, at).saturating_sub(number(self.then, at))
    }

    fn task(&self, thread_at: i16, process_at: i16, name_at: i16) -> TaskIdentity {
        let thread = half(self.key, thread_at);
        let process = u32::try_from(number(self.now, process_at)).unwrap_or(thread);
        TaskIdentity { process, thread, name: text(self.now, name_at, 16) }
    }

    fn longest(&self, at: i16) -> Duration {
        let place = at + if self.epoch.is_multiple_of(2) { 0 } else { size!(EpochLongest) };
        let of_epoch = number(self.now, place + offset!(EpochLongest, epoch)) == self.epoch;
        let length = number(self.now, place + offset!(EpochLongest, nanoseconds));
        Duration::from_nanos(if of_epoch { length } else { 0 })
    }

    fn durations(&self) -> DurationStats {
        let mut classes = [0; DURATION_CLASSES];
        for (class, count) in (0_i16..).zip(&mut classes) {
            *count = self.grown(offset!(TimedValue, classes) + 8 * class);
        }
        DurationStats {
            count: self.grown(offset!(TimedValue, count)),
            total: Duration::from_nanos(self.grown(offset!(TimedValue, total_ns))),
            longest: self.longest(offset!(TimedValue, longest)),
            classes,
        }
    }

    pub(crate) fn pages(&self) -> (Inode, TaskIdentity, PageFlow) {
        let totals = |at| PageTotals {
            folios: self.grown(at + offset!(FolioCounts, folios)),
            bytes: self.grown(at + offset!(FolioCounts, pages)).saturating_mul(page_size()),
        };
        let flow = PageFlow {
            added: totals(offset!(PageValue, added)),
            removed: totals(offset!(PageValue, removed)),
        };
        let file = Inode {
            dev: device_of(half(self.key, offset!(PageKey, dev))),
            ino: number(self.key, offset!(PageKey, ino)),
        };
        (
            file,
            self.task(offset!(PageKey, thread), offset!(PageValue, process), offset!(PageValue, name)),
            flow,
        )
    }

    pub(crate) fn pauses(&self) -> (TaskIdentity, String, PauseSums) {
        let pauses = PauseSums {
            lengths: self.durations(),
            waits: self.grown(offset!(PauseValue, waits)),
            longest_wait: self.longest(offset!(TimedValue, longest_wait)),
            levels: LevelSums {
                dirty: self.grown(offset!(PauseValue, dirty)),
                setpoint: self.grown(offset!(PauseValue, setpoint)),
                limit: self.grown(offset!(PauseValue, limit)),
                device_dirty: self.grown(offset!(PauseValue, device_dirty)),
                device_setpoint: self.grown(offset!(PauseValue, device_setpoint)),
            },
        };
        let task =
            self.task(offset!(PauseKey, thread), offset!(TimedValue, process), offset!(TimedValue, name));
        (task, text(self.key, offset!(PauseKey, device), 32), pauses)
    }

    pub(crate) fn stalls(&self) -> (TaskIdentity, ReclaimKind, StallSums) {
        let kind = if half(self.key, offset!(StallKey, kind)) == 0 {
            ReclaimKind::Machine
        } else {
            ReclaimKind::Group
        };
        let reclaimed = self.grown(offset!(StallValue, reclaimed_pages)).saturating_mul(page_size());
        let task =
            self.task(offset!(StallKey, thread), offset!(TimedValue, process), offset!(TimedValue, name));
        (task, kind, StallSums { lengths: self.durations(), reclaimed })
    }

    pub(crate) fn requests(&self) -> (u64, BlockOp, RequestSums) {
        let letters =
            self.key.get(offset!(RequestKey, letters).unsigned_abs() as usize..).unwrap_or_default();
        let op = match letters {
            [first, second, ..] => BlockOp::of_letters(*first, *second),
            _ => BlockOp::Other,
        };
        let bytes = self.grown(offset!(RequestValue, sectors)).saturating_mul(512);
        let dev = device_of(half(self.key, offset!(RequestKey, dev)));
        (dev, op, RequestSums { latency: self.durations(), bytes })
    }
}
