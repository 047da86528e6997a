//! The state of the disk: names, inodes, requests in flight. All under one lock, all on virtual
//! time.
//!
//! Invariants: a request is in flight from [`DiskState::start`] to its finish, and takes effect at
//! the finish. An inode lives as long as it has a name, could have one after a crash, or is open.
//! After the power cut nothing changes and every call fails with `EIO`; an operation during the cut
//! may have been done in part, and fails. Nothing here blocks or calls out.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use libc::iovec;
use pagekeeper_io::backend::{TransferKind, scatter};
use pagekeeper_io::{Access, WriteMode};

use crate::builder::{SimDiskBuilder, SimStats};
use crate::content::FileContent;
use crate::crash::{CrashOutcome, Persistence};
use crate::damage::Damage;
use crate::faults::{Fault, FaultAction, FaultPlan, WriteFault, meet};
use crate::inode::Inode;
use crate::names::{NameTable, NamedNode, ROOT_NUMBER};
use crate::request::SubmittedRequests;
use crate::schedule::{RequestSchedule, VirtualTime};

/// The range of a request without bytes of its own: it touches everything.
pub(crate) const WHOLE_FILE: Range<u64> = 0..u64::MAX;

#[derive(Debug)]
pub(crate) struct DiskState {
    pub(crate) names: NameTable,
    inodes: BTreeMap<u64, Inode>,
    last_inode: u64,
    schedule: RequestSchedule,
    pub(crate) faults: FaultPlan,
    in_flight: BTreeMap<u64, InFlight>,
    /// The inodes and ranges in which requests are held, by the number of the hold.
    holds: BTreeMap<u64, (u64, Range<u64>)>,
    /// The last number given to a request, hold or change.
    last: u64,
    latency: VirtualTime,
    jitter: VirtualTime,
    alignment: usize,
    /// The smallest and largest atomic write.
    pub(crate) atomic: Option<RangeInclusive<u64>>,
    stats: SimStats,
    /// Requests that no caller waits for.
    pub(crate) submitted: SubmittedRequests,
    /// Locked files with the number of shared locks; 0 for an exclusive lock.
    locks: BTreeMap<u64, u32>,
    /// Number of operations so far that change or sync something.
    ops: u64,
    /// The operation during which the power is cut.
    cut_at: Option<u64>,
    off: bool,
    /// Operations that fail, with their error numbers.
    failing: BTreeMap<u64, i32>,
    /// The operation from which on the disk is full.
    full_from: Option<u64>,
}

#[derive(Debug)]
struct InFlight {
    inode: u64,
    range: Range<u64>,
}

/// A request in flight. Requests are served in this order: by time, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestTicket {
    end: VirtualTime,
    number: u64,
}

impl DiskState {
    pub(crate) fn new(of: &SimDiskBuilder) -> Self {
        let nanoseconds =
            |time: std::time::Duration| VirtualTime::try_from(time.as_nanos()).unwrap_or(VirtualTime::MAX);
        Self {
            names: NameTable::default(),
            inodes: BTreeMap::new(),
            last_inode: ROOT_NUMBER,
            schedule: RequestSchedule::new(of.width),
            faults: FaultPlan::new(of.random, of.random_write, of.seed),
            in_flight: BTreeMap::new(),
            holds: BTreeMap::new(),
            last: 0,
            latency: nanoseconds(of.latency).max(1),
            jitter: nanoseconds(of.jitter),
            alignment: of.alignment,
            atomic: of.atomic(),
            stats: SimStats::default(),
            submitted: SubmittedRequests::default(),
            locks: BTreeMap::new(),
            ops: 0,
            cut_at: None,
            off: false,
            failing: BTreeMap::new(),
            full_from: None,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Fails if the power is off.
    pub(crate) fn power(&self) -> Result<(), i32> {
        if self.off { Err(libc::EIO) } else { Ok(()) }
    }

    /// Begins an operation that changes or syncs something. It may cut the power: [`Self::power`]
    /// says so afterwards.
    pub(crate) fn operation(&mut self) -> Result<u64, i32> {
        self.power()?;
        self.off = self.cut_at == Some(self.ops);
        self.ops += 1;
        match self.failing.remove(&(self.ops - 1)) {
            Some(errno) if !self.off => {
                self.stats.faults += 1;
                Err(errno)
            }
            _ => Ok(self.next_number()),
        }
    }

    /// As [`Self::operation`], for one that needs additional space on the disk.
    pub(crate) fn operation_with_room(&mut self) -> Result<u64, i32> {
        let number = self.operation()?;
        if self.full_from.is_some_and(|from| from < self.ops) {
            self.stats.faults += 1;
            return Err(libc::ENOSPC);
        }
        Ok(number)
    }

    /// Checks whether there is space for something new now.
    pub(crate) fn has_room(&mut self) -> Result<(), i32> {
        self.power()?;
        if self.full_from.is_some_and(|from| from <= self.ops) {
            self.stats.faults += 1;
            return Err(libc::ENOSPC);
        }
        Ok(())
    }

    pub(crate) fn fail_operation(&mut self, operation: u64, errno: i32) {
        self.failing.insert(operation, errno);
    }

    /// Makes the disk full from this operation on, or not any more.
    pub(crate) fn set_full_from(&mut self, operation: Option<u64>) {
        self.full_from = operation;
    }

    /// Damages a file on the medium.
    pub(crate) fn damage(&mut self, file: u64, damage: &Damage) {
        if let Some(inode) = self.inodes.get_mut(&file) {
            inode.damage(damage);
        }
    }

    pub(crate) fn operations(&self) -> u64 {
        self.ops
    }

    pub(crate) fn cut_power_at(&mut self, operation: u64) {
        self.cut_at = Some(operation);
        self.off |= operation < self.ops;
    }

    /// Creates a file, without a name, and returns its number.
    pub(crate) fn new_file(&mut self, content: FileContent) -> u64 {
        self.last_inode += 1;
        let number = self.next_number();
        self.inodes.insert(self.last_inode, Inode::new(content, number));
        self.last_inode
    }

    /// Returns the number of a new directory.
    pub(crate) fn new_directory(&mut self) -> u64 {
        self.last_inode += 1;
        self.last_inode
    }

    /// Creates a file as if it had always been there: durable, in directories that are created if
    /// needed. It replaces the previous owner of the name.
    pub(crate) fn put(&mut self, path: &Path, content: FileContent) {
        for dir in self.names.missing_above(path) {
            let (number, directory) = (self.next_number(), self.new_directory());
            self.names.link(number, &dir, NamedNode::Directory(directory));
            self.names.sync(dir.parent().unwrap_or(&dir));
        }
        let old = self.names.find(path);
        let (file, number) = (self.new_file(content), self.next_number());
        self.names.link(number, path, NamedNode::File(file));
        self.names.sync(path.parent().unwrap_or(path));
        self.lost_name(old, number);
    }

    /// Removes a name durably. Returns false if there is none.
    pub(crate) fn take_away(&mut self, path: &Path) -> bool {
        let Some(node) = self.names.find(path) else { return false };
        let number = self.next_number();
        self.names.unlink(number, path);
        self.names.sync(path.parent().unwrap_or(path));
        self.lost_name(Some(node), number);
        true
    }

    /// Updates a file that has lost its name.
    pub(crate) fn lost_name(&mut self, node: Option<NamedNode>, number: u64) {
        let Some(NamedNode::File(file)) = node else { return };
        if let Some(inode) = self.inodes.get_mut(&file) {
            inode.named = false;
            inode.changed = number;
        }
        self.forget_unused(file);
    }

    /// Returns the file of this name.
    pub(crate) fn find(&self, path: &Path) -> Option<u64> {
        match self.names.find(path)? {
            NamedNode::File(number) => Some(number),
            NamedNode::Directory(_) => None,
        }
    }

    pub(crate) fn inode(&self, number: u64) -> Option<&Inode> {
        self.inodes.get(&number)
    }

    pub(crate) fn inode_mut(&mut self, number: u64) -> Result<&mut Inode, i32> {
        self.inodes.get_mut(&number).ok_or(libc::ESTALE)
    }

    /// Sets the length durably.
    pub(crate) fn put_len(&mut self, file: u64, len: u64) {
        let number = self.next_number();
        if let Some(inode) = self.inodes.get_mut(&file) {
            inode.set_len(number, len);
            inode.sync();
        }
    }

    pub(crate) fn opened(&mut self, number: u64, writable: bool) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.open += 1;
            inode.writable += usize::from(writable);
        }
    }

    pub(crate) fn closed(&mut self, number: u64, writable: bool) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.open -= 1;
            inode.writable -= usize::from(writable);
        }
        self.forget_unused(number);
    }

    /// Takes the lock of a file. Returns false if it is taken.
    pub(crate) fn take_lock(&mut self, file: u64, shared: bool) -> bool {
        let taken = match (self.locks.get(&file), shared) {
            (None, shared) => u32::from(shared),
            (Some(others @ 1..), true) => others + 1,
            (Some(_), _) => return false,
        };
        self.locks.insert(file, taken);
        self.opened(file, false);
        true
    }

    pub(crate) fn let_lock_go(&mut self, file: u64) {
        match self.locks.get_mut(&file) {
            Some(others @ 2..) => *others -= 1,
            _ => drop(self.locks.remove(&file)),
        }
        self.closed(file, false);
    }

    fn forget_unused(&mut self, number: u64) {
        let unused = self.inodes.get(&number).is_some_and(|inode| !inode.named && inode.open == 0);
        if unused && !self.names.refer_to(number) {
            self.inodes.remove(&number);
            self.faults.heal(Some(number));
        }
    }

    pub(crate) fn now(&self) -> VirtualTime {
        self.schedule.now()
    }

    pub(crate) fn stats(&self) -> SimStats {
        SimStats { peak_width: self.schedule.peak(), in_flight: self.in_flight.len(), ..self.stats }
    }

    /// Counts a read or write, which may take several raw requests.
    pub(crate) fn count(&mut self, kind: TransferKind) {
        match kind {
            TransferKind::Read => self.stats.reads += 1,
            TransferKind::Write(_) => self.stats.writes += 1,
        }
    }

    /// Starts a request.
    pub(crate) fn start(&mut self, inode: u64, range: Range<u64>) -> RequestTicket {
        let jitter = match self.jitter {
            0 => 0,
            jitter => self.faults.draw(inode, range.start) % (jitter + 1),
        };
        let end = self.schedule.admit(self.latency.saturating_add(jitter));
        let number = self.next_number();
        self.in_flight.insert(number, InFlight { inode, range });
        self.stats.requests += 1;
        RequestTicket { end, number }
    }

    /// Drops a request that nobody waits for.
    pub(crate) fn forget(&mut self, ticket: RequestTicket) {
        self.in_flight.remove(&ticket.number);
    }

    /// Completes a request. Returns its file and range.
    pub(crate) fn served(&mut self, ticket: RequestTicket) -> Result<(u64, Range<u64>), i32> {
        let InFlight { inode, range } = self.in_flight.remove(&ticket.number).ok_or(libc::ENXIO)?;
        self.schedule.served(ticket.end);
        self.power()?;
        Ok((inode, range))
    }

    /// Ends a read and fills its memory. Returns a byte count or an error number.
    ///
    /// # Safety
    ///
    /// The pieces must be valid for writes and used by nobody else.
    #[expect(unsafe_code, reason = "memory by address, as a device fills it")]
    pub(crate) unsafe fn read(
        &mut self,
        ticket: RequestTicket,
        pieces: &[iovec],
        access: Access,
    ) -> Result<usize, i32> {
        let (file, range) = self.served(ticket)?;
        if access == Access::Direct && !self.is_aligned(range.start, pieces) {
            return Err(libc::EINVAL);
        }
        let fault = self.faults.strike(file, &range);
        self.stats.faults += u64::from(fault.is_some());
        let mut most = usize::MAX;
        match fault {
            Some(Fault::Error(errno)) => return Err(errno),
            Some(Fault::Short(count)) => most = count.max(1),
            Some(Fault::Cut(len)) if self.inodes.get(&file).is_some_and(|inode| inode.len() > len) => {
                self.put_len(file, len);
            }
            Some(Fault::Cut(_)) | None => {}
        }
        let inode = self.inodes.get_mut(&file).ok_or(libc::ESTALE)?;
        if inode.is_unreadable(&(range.start..range.end.min(inode.len()))) {
            self.stats.faults += 1;
            return Err(libc::EIO);
        }
        let mut left = usize::try_from(inode.len().saturating_sub(range.start)).unwrap_or(most).min(most);
        let mut at = range.start;
        for piece in pieces {
            let count = piece.iov_len.min(left);
            if count == 0 {
                continue;
            }
            // SAFETY: the caller guarantees that it is valid for writes and used by nobody else; it
            // is written before it is read.
            let memory = unsafe {
                std::ptr::write_bytes(piece.iov_base.cast::<u8>(), 0, count);
                std::slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), count)
            };
            inode.read(access, at, memory);
            at += count as u64;
            left -= count;
        }
        let count = at - range.start;
        self.stats.bytes += count;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Ends a write. Returns a byte count or an error number.
    pub(crate) fn write(
        &mut self,
        ticket: RequestTicket,
        bytes: &[u8],
        access: Access,
        mode: WriteMode,
    ) -> Result<usize, i32> {
        let (file, range) = self.served(ticket)?;
        let piece = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        if self.inode_mut(file)?.writable == 0 {
            return Err(libc::EBADF);
        }
        if mode == WriteMode::Atomic {
            self.may_write_atomically(&range, access)?;
        }
        if access == Access::Direct && !self.is_aligned(range.start, &[piece]) {
            return Err(libc::EINVAL);
        }
        let has_room = self.inode_mut(file)?.has_room(range.end);
        let number = if has_room { self.operation()? } else { self.operation_with_room()? };
        let fault = self.strike(file, &range, FaultAction::Write);
        let count = match fault {
            Some(WriteFault::Short(count)) if mode != WriteMode::Atomic => {
                let lowest = (range.start | bytes.len() as u64).trailing_zeros().min(12);
                let unit = if access == Access::Direct { 1 << lowest } else { 1 };
                count.max(1).next_multiple_of(unit).min(bytes.len())
            }
            Some(WriteFault::Error(errno)) => return Err(errno),
            Some(
                WriteFault::Short(_)
                | WriteFault::Lost
                | WriteFault::Misdirected { .. }
                | WriteFault::Sync(_)
                | WriteFault::SyncDrop(_)
                | WriteFault::SyncLie
                | WriteFault::Allocate(_),
            )
            | None => bytes.len(),
        };
        let inode = self.inode_mut(file)?;
        inode.write(number, access, range.start, &bytes[..count], mode);
        let landed = match fault {
            Some(WriteFault::Lost) => Some(None),
            Some(WriteFault::Misdirected { to }) => Some(Some((to, bytes))),
            _ => None,
        };
        if let Some(landed) = landed {
            inode.lose(number, landed);
        }
        self.power()?;
        if landed.is_some() {
            self.stats.written += count as u64;
            return Ok(count);
        }
        if mode == WriteMode::Durable {
            let written = range.start..range.start + count as u64;
            self.sync_with(file, &written, |inode| inode.sync_range(access, &written))?;
        }
        self.stats.written += count as u64;
        Ok(count)
    }

    /// Checks in the same order as the kernel (XFS, Linux 6.18).
    fn may_write_atomically(&self, range: &Range<u64>, access: Access) -> Result<(), i32> {
        let taken = self.atomic.as_ref().ok_or(libc::EOPNOTSUPP)?;
        let len = range.end - range.start;
        if !taken.contains(&len) || !len.is_power_of_two() || !range.start.is_multiple_of(len) {
            return Err(libc::EINVAL);
        }
        if access == Access::Buffered { Err(libc::EOPNOTSUPP) } else { Ok(()) }
    }

    fn is_aligned(&self, offset: u64, pieces: &[iovec]) -> bool {
        offset.is_multiple_of(self.alignment as u64) && scatter::are_aligned(pieces, self.alignment)
    }

    fn strike(&mut self, file: u64, range: &Range<u64>, action: FaultAction) -> Option<WriteFault> {
        let fault = self.faults.strike_write(file, range, action);
        self.stats.faults += u64::from(fault.is_some());
        fault
    }

    /// Syncs a file, or fails to.
    pub(crate) fn sync(&mut self, file: u64) -> Result<(), i32> {
        if let Err(errno) = self.operation() {
            if self.power().is_ok() {
                self.inode_mut(file)?.fail_sync();
            }
            return Err(errno);
        }
        self.power()?;
        self.stats.syncs += 1;
        self.sync_with(file, &WHOLE_FILE, Inode::sync)
    }

    /// Waits for writeback, which reports the same errors as a sync.
    pub(crate) fn write_back(&mut self, file: u64, range: &Range<u64>) -> Result<(), i32> {
        self.power()?;
        self.sync_with(file, range, |inode| inode.write_back(range))
    }

    fn sync_with(&mut self, file: u64, range: &Range<u64>, sync: impl FnOnce(&mut Inode)) -> Result<(), i32> {
        let fault = self.strike(file, range, FaultAction::Sync);
        let inode = self.inode_mut(file)?;
        match fault {
            Some(WriteFault::Sync(errno)) => {
                inode.fail_sync();
                Err(errno)
            }
            Some(WriteFault::SyncDrop(errno)) => {
                inode.fail_sync_and_drop();
                Err(errno)
            }
            Some(WriteFault::SyncLie) => Ok(()),
            _ => {
                sync(inode);
                Ok(())
            }
        }
    }

    /// Syncs a directory, or fails to.
    pub(crate) fn sync_directory(&mut self, dir: &Path) -> Result<(), i32> {
        let directory = self.names.directory(dir)?;
        if let Err(errno) = self.operation() {
            if self.power().is_ok() {
                self.names.fail_sync(dir);
            }
            return Err(errno);
        }
        self.power()?;
        self.stats.syncs += 1;
        match self.strike(directory, &WHOLE_FILE, FaultAction::Sync) {
            Some(WriteFault::Sync(errno) | WriteFault::SyncDrop(errno)) => {
                self.names.fail_sync(dir);
                return Err(errno);
            }
            Some(WriteFault::SyncLie) => return Ok(()),
            _ => {}
        }
        self.names.sync(dir);
        let closed = self.inodes.iter().filter(|(_, inode)| !inode.named && inode.open == 0);
        for number in closed.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.forget_unused(number);
        }
        Ok(())
    }

    /// Truncates or extends a file.
    pub(crate) fn set_len(&mut self, file: u64, len: u64) -> Result<(), i32> {
        let number = self.operation()?;
        self.inode_mut(file)?.set_len(number, len);
        self.power()
    }

    /// Allocates space up to the end of the range.
    pub(crate) fn allocate(&mut self, file: u64, range: &Range<u64>) -> Result<(), i32> {
        let has_room = self.inode_mut(file)?.has_room(range.end);
        let number = if has_room { self.operation()? } else { self.operation_with_room()? };
        if let Some(WriteFault::Allocate(errno)) = self.strike(file, range, FaultAction::Allocate) {
            return Err(errno);
        }
        let inode = self.inode_mut(file)?;
        if inode.len() < range.end {
            inode.set_len(number, range.end);
        }
        inode.make_room(range.end);
        self.power()
    }

    /// Zeroes a range, up to the end of the file.
    pub(crate) fn punch(&mut self, file: u64, range: &Range<u64>) -> Result<(), i32> {
        let number = self.operation()?;
        if let Some(WriteFault::Allocate(errno)) = self.strike(file, range, FaultAction::Allocate) {
            return Err(errno);
        }
        self.inode_mut(file)?.punch(number, range);
        self.power()
    }

    pub(crate) fn hold(&mut self, inode: u64, range: Range<u64>) -> u64 {
        let number = self.next_number();
        self.holds.insert(number, (inode, range));
        number
    }

    pub(crate) fn release(&mut self, hold: u64) {
        self.holds.remove(&hold);
    }

    /// Returns how many requests in flight a hold stops.
    pub(crate) fn held_by(&self, hold: u64) -> usize {
        let Some((inode, range)) = self.holds.get(&hold) else { return 0 };
        self.in_flight
            .values()
            .filter(|request| request.inode == *inode && meet(&request.range, range))
            .count()
    }

    /// Whether a hold stops a request.
    pub(crate) fn is_held(&self, ticket: RequestTicket) -> bool {
        if self.holds.is_empty() {
            return false;
        }
        let Some(request) = self.in_flight.get(&ticket.number) else { return false };
        self.holds.values().any(|(inode, range)| request.inode == *inode && meet(&request.range, range))
    }

    /// Turns `new`, the state of an empty disk, into this disk as found after a power cut.
    pub(crate) fn after_power_cut(&self, new: Self, persistence: Persistence, seed: u64) -> Self {
        let pending = self.names.pending().chain(self.inodes.values().flat_map(Inode::pending)).collect();
        let fate = CrashOutcome::new(persistence, seed, pending);
        let names = self.names.after_power_cut(&fate);
        let file = |number| Some((number, self.inodes.get(&number)?.after_power_cut(&fate)));
        let inodes = names.files().filter_map(file).collect();
        self.restarted(new, names, inodes, seed)
    }

    /// Turns `new` into this disk as found after all programs were killed.
    pub(crate) fn after_kill(&self, new: Self) -> Self {
        let named = self.inodes.iter().filter(|(number, inode)| inode.named || self.names.refer_to(**number));
        let inodes = named.map(|(number, inode)| (*number, inode.after_kill())).collect();
        self.restarted(new, self.names.clone(), inodes, self.last)
    }

    fn restarted(&self, new: Self, names: NameTable, inodes: BTreeMap<u64, Inode>, seed: u64) -> Self {
        let faults = self.faults.again(seed);
        Self { names, inodes, faults, last_inode: self.last_inode, last: self.last, ..new }
    }
}
