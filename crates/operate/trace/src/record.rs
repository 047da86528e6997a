//! The layout of the programs' tables, which [`programs`](super::programs) writes and [`bpf`](super::bpf)
//! reads.
//!
//! Invariants: numbers have 8 bytes in the machine's order unless noted otherwise, and offsets are multiples
//! of 8. Counts and sums only grow while an entry lives, so the difference of two readings is the count of
//! the period in between.
//!
//! The longest duration of a period can't be a difference. So each entry has two places for it, marked with
//! the number of the period (the epoch) they belong to. A program writes the place of the current epoch; the
//! reader begins a new epoch, then reads the place of the one before.

use std::time::Duration;

use super::durations::{CLASSES, Durations};
use super::gathered::{LevelSums, Pauses, Requests, Stalls};
use super::{BlockOp, PageFlow, PageTotals, ReclaimKind, Task};
use pagekeeper_kernel::{Inode, page_size};
use pagekeeper_text::unescaped_bytes;

/// Key of the table of pages: inode number, device (4 bytes, in the kernel's form), thread (4 bytes).
pub(super) mod page_key {
    pub(crate) const INO: i16 = 0;
    pub(crate) const DEV: i16 = 8;
    pub(crate) const THREAD: i16 = 12;
    pub(crate) const SIZE: i16 = 16;
}

/// Value of the table of pages.
pub(super) mod page {
    pub(crate) const ADDED_FOLIOS: i16 = 0;
    pub(crate) const ADDED_PAGES: i16 = 8;
    pub(crate) const REMOVED_FOLIOS: i16 = 16;
    pub(crate) const REMOVED_PAGES: i16 = 24;
    pub(crate) const PROCESS: i16 = 32;
    pub(crate) const NAME: i16 = 40;
    pub(crate) const SIZE: i16 = 56;
}

/// Key of the table of pauses: thread (4 bytes), 4 of padding, name of the device.
pub(super) mod pause_key {
    pub(crate) const THREAD: i16 = 0;
    pub(crate) const DEVICE: i16 = 8;
    pub(crate) const SIZE: i16 = 40;
}

/// Key of the table of stalls: thread and kind, of 4 bytes each.
pub(super) mod stall_key {
    pub(crate) const THREAD: i16 = 0;
    pub(crate) const KIND: i16 = 4;
    pub(crate) const SIZE: i16 = 8;
}

/// Key of the table of requests: device (4 bytes, in the kernel's form), first letters (2) and processor (2).
/// Because of the processor no two of them count in the same cache line.
pub(super) mod request_key {
    pub(crate) const DEV: i16 = 0;
    pub(crate) const LETTERS: i16 = 4;
    pub(crate) const PROCESSOR: i16 = 6;
    pub(crate) const SIZE: i16 = 8;
}

/// Key of the table of requests in flight: sector, device (4 bytes), 4 of padding.
pub(super) mod flight_key {
    pub(crate) const SECTOR: i16 = 0;
    pub(crate) const DEV: i16 = 8;
    pub(crate) const SIZE: i16 = 16;
}

/// Value of the table of requests in flight: nanoseconds, sectors (4 bytes), letters (2), 2 of padding.
pub(super) mod flight {
    pub(crate) const BEGUN: i16 = 0;
    pub(crate) const SECTORS: i16 = 8;
    pub(crate) const LETTERS: i16 = 12;
    pub(crate) const SIZE: i16 = 16;
}

/// Value of the tables of pauses, stalls and requests.
pub(super) mod timed {
    use super::CLASSES;

    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a few bytes")]
    const CLASSES_SIZE: i16 = 8 * CLASSES as i16;

    pub(crate) const COUNT: i16 = 0;
    /// In nanoseconds.
    pub(crate) const TOTAL: i16 = 8;
    /// Two places of an epoch and nanoseconds.
    pub(crate) const LONGEST: i16 = 16;
    /// Two more, for whole waits, of which one can have several pauses.
    pub(crate) const LONGEST_WAIT: i16 = 48;
    pub(crate) const CLASS: i16 = 80;
    pub(crate) const PROCESS: i16 = CLASS + CLASSES_SIZE;
    pub(crate) const NAME: i16 = PROCESS + 8;
    const MORE: i16 = NAME + 16;
    pub(crate) const WAITS: i16 = MORE;
    pub(crate) const DIRTY: i16 = MORE + 8;
    pub(crate) const SETPOINT: i16 = MORE + 16;
    pub(crate) const LIMIT: i16 = MORE + 24;
    pub(crate) const DEVICE_DIRTY: i16 = MORE + 32;
    pub(crate) const DEVICE_SETPOINT: i16 = MORE + 40;
    /// The beginning of the current stall, in nanoseconds; 0 if there is none.
    pub(crate) const BEGUN: i16 = MORE;
    pub(crate) const RECLAIMED: i16 = MORE + 8;
    pub(crate) const SECTORS: i16 = MORE;
    pub(crate) const SIZE: i16 = MORE + 48;
}

/// The counters of lost events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    Pages = 0,
    Pauses = 1,
    Stalls = 2,
    Requests = 3,
}

impl Lost {
    pub(super) const ALL: [Self; 4] = [Self::Pages, Self::Pauses, Self::Stalls, Self::Requests];
}

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
pub(super) fn device_of(dev: u32) -> u64 {
    rustix::fs::makedev(dev >> 20, dev & 0xf_ffff)
}

/// Returns a device number in the kernel's form, from that of a stat result.
pub(super) fn kernel_device(dev: u64) -> u64 {
    u64::from(rustix::fs::major(dev)) << 20 | u64::from(rustix::fs::minor(dev))
}

/// Returns whether the value of an entry of stalls has a stall in progress.
pub(super) fn stalled(value: &[u8]) -> bool {
    number(value, timed::BEGUN) != 0
}

/// Returns when a request in flight began, in nanoseconds of the monotonic clock.
pub(super) fn begun(value: &[u8]) -> u64 {
    number(value, flight::BEGUN)
}

/// Two readings of one entry; the earlier one is all zeros if there was none.
#[derive(Clone, Copy)]
pub(super) struct Readings<'a> {
    pub(super) key: &'a [u8],
    pub(super) now: &'a [u8],
    pub(super) then: &'a [u8],
    /// The epoch that ended with the reading.
    pub(super) epoch: u64,
}

impl Readings<'_> {
    fn grown(&self, at: i16) -> u64 {
        number(self.now, at).saturating_sub(number(self.then, at))
    }

    fn task(&self, thread_at: i16, process_at: i16, name_at: i16) -> Task {
        let thread = half(self.key, thread_at);
        let process = u32::try_from(number(self.now, process_at)).unwrap_or(thread);
        Task { process, thread, name: text(self.now, name_at, 16) }
    }

    fn longest(&self, at: i16) -> Duration {
        let place = at + if self.epoch.is_multiple_of(2) { 0 } else { 16 };
        let of_epoch = number(self.now, place) == self.epoch;
        Duration::from_nanos(if of_epoch { number(self.now, place + 8) } else { 0 })
    }

    fn durations(&self) -> Durations {
        let mut classes = [0; CLASSES];
        for (class, count) in (0_i16..).zip(&mut classes) {
            *count = self.grown(timed::CLASS + 8 * class);
        }
        Durations {
            count: self.grown(timed::COUNT),
            total: Duration::from_nanos(self.grown(timed::TOTAL)),
            longest: self.longest(timed::LONGEST),
            classes,
        }
    }

    pub(super) fn pages(&self) -> (Inode, Task, PageFlow) {
        let totals = |folios, pages| PageTotals {
            folios: self.grown(folios),
            bytes: self.grown(pages).saturating_mul(page_size()),
        };
        let flow = PageFlow {
            added: totals(page::ADDED_FOLIOS, page::ADDED_PAGES),
            removed: totals(page::REMOVED_FOLIOS, page::REMOVED_PAGES),
        };
        let file =
            Inode { dev: device_of(half(self.key, page_key::DEV)), ino: number(self.key, page_key::INO) };
        (file, self.task(page_key::THREAD, page::PROCESS, page::NAME), flow)
    }

    pub(super) fn pauses(&self) -> (Task, String, Pauses) {
        let pauses = Pauses {
            lengths: self.durations(),
            waits: self.grown(timed::WAITS),
            longest_wait: self.longest(timed::LONGEST_WAIT),
            levels: LevelSums {
                dirty: self.grown(timed::DIRTY),
                setpoint: self.grown(timed::SETPOINT),
                limit: self.grown(timed::LIMIT),
                device_dirty: self.grown(timed::DEVICE_DIRTY),
                device_setpoint: self.grown(timed::DEVICE_SETPOINT),
            },
        };
        let task = self.task(pause_key::THREAD, timed::PROCESS, timed::NAME);
        (task, text(self.key, pause_key::DEVICE, 32), pauses)
    }

    pub(super) fn stalls(&self) -> (Task, ReclaimKind, Stalls) {
        let kind =
            if half(self.key, stall_key::KIND) == 0 { ReclaimKind::Machine } else { ReclaimKind::Group };
        let reclaimed = self.grown(timed::RECLAIMED).saturating_mul(page_size());
        let task = self.task(stall_key::THREAD, timed::PROCESS, timed::NAME);
        (task, kind, Stalls { lengths: self.durations(), reclaimed })
    }

    pub(super) fn requests(&self) -> (u64, BlockOp, Requests) {
        let letters = self.key.get(request_key::LETTERS.unsigned_abs() as usize..).unwrap_or_default();
        let op = match letters {
            [first, second, ..] => BlockOp::of_letters(*first, *second),
            _ => BlockOp::Other,
        };
        let bytes = self.grown(timed::SECTORS).saturating_mul(512);
        let dev = device_of(half(self.key, request_key::DEV));
        (dev, op, Requests { latency: self.durations(), bytes })
    }
}
