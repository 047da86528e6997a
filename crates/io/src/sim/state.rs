//! The disk itself: names, inodes, requests in flight. All under one lock, all on virtual time.
//!
//! Invariants: a request is in flight from [`State::start`] to [`State::finish`]; data are as of the finish; an inode lives
//! as long as it has a name or is open. Nothing here blocks or calls out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use libc::iovec;

use super::content::Content;
use super::faults::{Fault, Faults, meet};
use super::request::Submitted;
use super::schedule::{Schedule, Time};
use super::{SimDiskBuilder, SimStats};
use crate::scatter;

#[derive(Debug)]
pub(super) struct State {
    names: BTreeMap<PathBuf, u64>,
    inodes: BTreeMap<u64, Inode>,
    last_inode: u64,
    schedule: Schedule,
    pub(super) faults: Faults,
    in_flight: BTreeMap<u64, InFlight>,
    /// What reads are held in, by the number of the hold.
    holds: BTreeMap<u64, (u64, Range<u64>)>,
    /// The last number given to a request, hold or change.
    last: u64,
    latency: Time,
    jitter: Time,
    alignment: usize,
    stats: SimStats,
    /// What no caller waits for.
    pub(super) submitted: Submitted,
}

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) content: Content,
    named: bool,
    open: usize,
    /// The number of the last change of its content. Changes of the disk are counted, so that no two look the same.
    pub(super) modified: u64,
    /// The number of its last change, names included.
    pub(super) changed: u64,
}

#[derive(Debug)]
struct InFlight {
    inode: u64,
    range: Range<u64>,
}

/// A request in flight. They are served in the order of this: by time, then as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    end: Time,
    number: u64,
}

impl State {
    pub(super) fn new(of: &SimDiskBuilder) -> Self {
        let nanoseconds = |time: std::time::Duration| Time::try_from(time.as_nanos()).unwrap_or(Time::MAX);
        Self {
            names: BTreeMap::new(),
            inodes: BTreeMap::new(),
            last_inode: 0,
            schedule: Schedule::new(of.width),
            faults: Faults::new(of.random, of.seed),
            in_flight: BTreeMap::new(),
            holds: BTreeMap::new(),
            last: 0,
            latency: nanoseconds(of.latency).max(1),
            jitter: nanoseconds(of.jitter),
            alignment: of.alignment,
            stats: SimStats::default(),
            submitted: Submitted::default(),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Gives a name to new content; what had the name loses it.
    pub(super) fn link(&mut self, path: &Path, content: Content) {
        self.unlink(path);
        self.last_inode += 1;
        let changed = self.next_number();
        let inode = Inode { content, named: true, open: 0, modified: changed, changed };
        self.inodes.insert(self.last_inode, inode);
        self.names.insert(path.to_path_buf(), self.last_inode);
    }

    /// Takes a name away; false if there is none.
    pub(super) fn unlink(&mut self, path: &Path) -> bool {
        let Some(number) = self.names.remove(path) else { return false };
        let changed = self.next_number();
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.named = false;
            inode.changed = changed;
        }
        self.forget_unused(number);
        true
    }

    pub(super) fn find(&self, path: &Path) -> Option<u64> {
        self.names.get(path).copied()
    }

    pub(super) fn inode(&self, number: u64) -> Option<&Inode> {
        self.inodes.get(&number)
    }

    pub(super) fn set_len(&mut self, number: u64, len: u64) {
        let changed = self.next_number();
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.content.set_len(len);
            (inode.modified, inode.changed) = (changed, changed);
        }
    }

    pub(super) fn opened(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.open += 1;
        }
    }

    pub(super) fn closed(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.open -= 1;
        }
        self.forget_unused(number);
    }

    fn forget_unused(&mut self, number: u64) {
        if self.inodes.get(&number).is_some_and(|inode| !inode.named && inode.open == 0) {
            self.inodes.remove(&number);
            self.faults.heal(number);
        }
    }

    pub(super) fn now(&self) -> Time {
        self.schedule.now()
    }

    pub(super) fn stats(&self) -> SimStats {
        SimStats { peak_width: self.schedule.peak(), in_flight: self.in_flight.len(), ..self.stats }
    }

    /// Counts a read, which may take several requests.
    pub(super) fn count_read(&mut self) {
        self.stats.reads += 1;
    }

    /// A request comes.
    pub(super) fn start(&mut self, inode: u64, range: Range<u64>) -> Ticket {
        let jitter = match self.jitter {
            0 => 0,
            jitter => self.faults.chance(inode, range.start) % (jitter + 1),
        };
        let end = self.schedule.admit(self.latency.saturating_add(jitter));
        let number = self.next_number();
        self.in_flight.insert(number, InFlight { inode, range });
        self.stats.requests += 1;
        Ticket { end, number }
    }

    /// Takes back a request that no one waits for any more.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        self.in_flight.remove(&ticket.number);
    }

    /// Ends a request into its memory: gives a count of bytes, or an error number.
    ///
    /// # Safety
    ///
    /// The pieces must be valid for writes and no one else's.
    #[expect(unsafe_code, reason = "memory by address, as a device fills it")]
    pub(super) unsafe fn finish(
        &mut self,
        ticket: Ticket,
        pieces: &[iovec],
        direct: bool,
    ) -> Result<usize, i32> {
        let Some(InFlight { inode, range }) = self.in_flight.remove(&ticket.number) else {
            return Err(libc::ENXIO);
        };
        self.schedule.served(ticket.end);
        let align = self.alignment;
        if direct && !(range.start.is_multiple_of(align as u64) && scatter::are_aligned(pieces, align)) {
            return Err(libc::EINVAL);
        }
        let fault = self.faults.strike(inode, &range);
        self.stats.faults += u64::from(fault.is_some());
        let mut most = usize::MAX;
        match fault {
            Some(Fault::Error(errno)) => return Err(errno),
            Some(Fault::Short(count)) => most = count.max(1),
            Some(Fault::Cut(len)) if self.inodes.get(&inode).is_some_and(|i| i.content.len() > len) => {
                self.set_len(inode, len);
            }
            Some(Fault::Cut(_)) | None => {}
        }
        let content = &self.inodes.get(&inode).ok_or(libc::ESTALE)?.content;
        let mut left = usize::try_from(content.len().saturating_sub(range.start)).unwrap_or(most).min(most);
        let mut at = range.start;
        for piece in pieces {
            let count = piece.iov_len.min(left);
            if count == 0 {
                continue;
            }
            // SAFETY: valid for writes and no one else's (the caller's word), and written before it is looked at.
            let memory = unsafe {
                std::ptr::write_bytes(piece.iov_base.cast::<u8>(), 0, count);
                std::slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), count)
            };
            content.copy(at, memory);
            at += count as u64;
            left -= count;
        }
        let count = at - range.start;
        self.stats.bytes += count;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    pub(super) fn hold(&mut self, inode: u64, range: Range<u64>) -> u64 {
        let number = self.next_number();
        self.holds.insert(number, (inode, range));
        number
    }

    pub(super) fn release(&mut self, hold: u64) {
        self.holds.remove(&hold);
    }

    /// How many requests in flight a hold stops.
    pub(super) fn held_by(&self, hold: u64) -> usize {
        let Some((inode, range)) = self.holds.get(&hold) else { return 0 };
        self.in_flight
            .values()
            .filter(|request| request.inode == *inode && meet(&request.range, range))
            .count()
    }

    /// Whether a request is stopped by a hold.
    pub(super) fn is_held(&self, ticket: Ticket) -> bool {
        let Some(request) = self.in_flight.get(&ticket.number) else { return false };
        self.holds.values().any(|(inode, range)| request.inode == *inode && meet(&request.range, range))
    }
}
