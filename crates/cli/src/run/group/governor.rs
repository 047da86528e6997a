//! The process beside the command that keeps the file pages of its [`Group`] few, and removes the group when nobody is left in it.
//!
//! It looks at the group's figures every few milliseconds while they grow, seldom while they rest, and opens no file of the command's.
//! Dirty pages can't be reclaimed; the kernel's reclaim wakes up its flushers for them, and finds them clean the next time: so writing
//! begins early, and is done by the time that the command ends.
//! When the command has ended, what is left of its pages is reclaimed too.
//!
//! Invariants: it is no child of the command, holds none of its descriptors, and ends after the last process of the group. If it is
//! killed, the process that started it starts another. Never fails: what can't be reclaimed stays, and is counted.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Figures, Group};
use crate::run::sys;

/// File pages that a group may keep, in bytes: the windows of read-ahead of some readers, and what waits to be written. With 32 MiB
/// programs that read by `io_uring`, 128 requests deep, took three times as long; 256 MiB gained nothing.
pub(crate) const KEPT: u64 = 64 << 20;
/// What it may keep where the library releases most of it anyway: a program may ask for so much ahead (`POSIX_FADV_WILLNEED`), and
/// would have to read it again.
pub(crate) const KEPT_BESIDE_LIBRARY: u64 = 4 * KEPT;
/// The part of these that may wait for the disk before writing is begun. That reclaims written ones, too: where the library is loaded, these
/// may be of temporary files, which it keeps.
const UNWRITTEN_PART: u64 = 2;
/// How often it is: the flushers have some work from then on.
const WRITING_BEGUN_EVERY: Duration = Duration::from_millis(100);
/// The least that one reclaim takes, so that a few pages do not cost one each.
const STEP: u64 = KEPT / 2;
/// A disk that reads 3 GB/s brings in 15 MB meanwhile.
const INTERVAL_MIN: Duration = Duration::from_millis(5);
/// Where nothing comes in.
const INTERVAL_MAX: Duration = Duration::from_millis(50);
/// Bytes that nobody waits for: they go with the group.
const NEGLIGIBLE: u64 = 1 << 20;
/// Whoever waits for the report waits so long for what is still being written.
const REPORTED_AFTER: Duration = Duration::from_secs(2);
/// Longer than that, some process of the command goes on.
const ANSWERED_AFTER: Duration = Duration::from_secs(4);
/// The kernel writes what is dirty after 30 seconds (`dirty_expire_centisecs`), looking every 5; reclaim has it write sooner.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(40);
/// How often a governor that was killed is replaced.
const STARTS_MAX: usize = 16;

/// What a governor did, in bytes of file pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Reclaimed.
    pub(crate) released: u64,
    /// The most that was charged to the group when it was looked at.
    pub(crate) peak: u64,
    /// What is still charged: dirty, being written, mapped or in use.
    pub(crate) left: u64,
}

const TOTALS_BYTES: usize = 3 * size_of::<u64>();

impl Totals {
    fn encode(self) -> [u8; TOTALS_BYTES] {
        let mut bytes = [0; TOTALS_BYTES];
        for (to, number) in
            bytes.chunks_exact_mut(size_of::<u64>()).zip([self.released, self.peak, self.left])
        {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; TOTALS_BYTES]) -> Self {
        let mut numbers = bytes.chunks_exact(size_of::<u64>()).map(|chunk| {
            let mut number = [0; size_of::<u64>()];
            number.copy_from_slice(chunk);
            u64::from_ne_bytes(number)
        });
        let mut next = || numbers.next().unwrap_or_default();
        Self { released: next(), peak: next(), left: next() }
    }
}

/// A governor that waits for the command to be started.
pub(crate) struct Governor {
    /// Closed by dropping it, or by becoming the command.
    _started: PipeWriter,
    totals: PipeReader,
}

impl Governor {
    /// Starts the process. It leaves the group alone until this process has become the command, or, if it `stays` in the group, has
    /// started it.
    ///
    /// # Errors
    ///
    /// Where no process can be started.
    pub(crate) fn start(group: &Group, stays: bool) -> io::Result<Self> {
        let (begin, started) = io::pipe()?;
        let (totals, report) = io::pipe()?;
        let parent = stays.then(std::process::id);
        sys::apart(&[begin.as_fd(), report.as_fd()], || supervise(group, parent, &begin, &report))?;
        Ok(Self { _started: started, totals })
    }

    /// The command was started, and this process is its parent.
    pub(crate) fn begin(self) -> Governed {
        Governed { totals: self.totals }
    }
}

/// What became of a group when its command had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupEnd {
    /// Nobody is left in it.
    Totals(Totals),
    /// Some process of the command goes on, or nobody governs it any more.
    GoesOn,
}

/// A governor at work.
pub(crate) struct Governed {
    totals: PipeReader,
}

impl Governed {
    /// What it did, once the command and all that it started have ended.
    pub(crate) fn end(mut self) -> GroupEnd {
        self.totals().map_or(GroupEnd::GoesOn, GroupEnd::Totals)
    }

    fn totals(&mut self) -> Option<Totals> {
        let patience = Timespec { tv_sec: ANSWERED_AFTER.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.totals, PollFlags::IN)], Some(&patience));
        if ready.is_ok_and(|ready| ready == 0) {
            return None;
        }
        let mut bytes = [0; TOTALS_BYTES];
        self.totals.read_exact(&mut bytes).ok()?;
        Some(Totals::decode(bytes))
    }
}

/// Has a process govern, and another where that one is killed.
fn supervise(group: &Group, parent: Option<u32>, begin: &PipeReader, report: &PipeWriter) {
    for _ in 0..STARTS_MAX {
        match sys::in_child(|| govern(group, parent, begin, report)) {
            Ok(true) => break,
            Ok(false) => {}
            // No process can be had: this one does it.
            Err(_) => {
                govern(group, parent, begin, report);
                break;
            }
        }
    }
    group.leave();
}

fn govern(group: &Group, parent: Option<u32>, mut begin: &PipeReader, report: &PipeWriter) {
    let kept = group.kept;
    let _ = begin.read(&mut [0]);
    let mut totals = Totals::default();
    let (mut interval, mut last) = (INTERVAL_MIN, 0);
    let mut flushed: Option<Instant> = None;
    while !group.is_unused(parent) {
        // What can't be read any more is about to end.
        let Figures { pages, unwritten } = group.figures().unwrap_or_default();
        totals.peak = totals.peak.max(pages);
        let written = pages.saturating_sub(unwritten);
        if written > kept {
            group.reclaim(written - kept + STEP);
        } else if unwritten > kept / UNWRITTEN_PART
            && flushed.is_none_or(|at| at.elapsed() > WRITING_BEGUN_EVERY)
        {
            flushed = Some(Instant::now());
            group.reclaim(STEP);
        }
        totals.released += pages.saturating_sub(group.file_bytes());
        interval = if pages > last + KEPT / 64 { INTERVAL_MIN } else { (interval * 2).min(INTERVAL_MAX) };
        last = pages;
        std::thread::sleep(interval);
    }
    drain(group, totals, report);
    // The one that waited for the report is in it, too, and what it uses can't go before it.
    let ended = Instant::now();
    while !group.is_unused(None) && ended.elapsed() < GIVEN_UP_AFTER {
        std::thread::sleep(INTERVAL_MIN);
    }
    // No more than that: where nothing of files is left, reclaim takes what the kernel knows of them, and with it write errors that nobody was
    // given yet.
    group.reclaim(group.file_bytes());
    while !group.remove() && ended.elapsed() < GIVEN_UP_AFTER {
        std::thread::sleep(INTERVAL_MAX);
    }
}

/// Reclaims what is left behind by a command that has ended, and says so to who waits for it.
fn drain(group: &Group, mut totals: Totals, mut report: &PipeWriter) {
    let ended = Instant::now();
    let mut is_reported = false;
    let mut interval = INTERVAL_MIN;
    let mut left = group.file_bytes();
    totals.peak = totals.peak.max(left);
    loop {
        if left > NEGLIGIBLE {
            group.reclaim(left - NEGLIGIBLE / 2);
        }
        let Figures { pages, unwritten, .. } = group.figures().unwrap_or_default();
        totals.released += left.saturating_sub(pages);
        // What is mapped and in use by others stays with them.
        let is_over = pages <= NEGLIGIBLE || (unwritten == 0 && pages >= left);
        left = pages;
        let ended = ended.elapsed();
        if !is_reported && (is_over || ended > REPORTED_AFTER) {
            // Nobody reads it where this process's parent became the command.
            let _ = report.write_all(&Totals { left, ..totals }.encode());
            is_reported = true;
        }
        if is_over || ended > GIVEN_UP_AFTER {
            return;
        }
        std::thread::sleep(interval);
        interval = (interval * 2).min(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_as_they_were_written() {
        let totals = Totals { released: u64::MAX, peak: 1, left: 4096 };
        assert_eq!(Totals::decode(totals.encode()), totals);
    }
}
