//! Counts the requests of others to each disk, in the kernel: the reads, writes and syncs of
//! processes that are neither followed nor this one, and the time that these took.
//!
//! A program at the tracepoint `block_bio_queue` sees each request in the task that makes it. Two
//! more, at `block_rq_complete` and `block_bio_complete`, add its time to its disk's counters. No
//! request is an event: a reader takes the counters as often as it likes.
//!
//! | requests of | counted |
//! |---|---|
//! | a followed process | bytes that it reads, by process and disk |
//! | this process | no |
//! | a kernel thread: flushers, journals | no: the task they work for is not known |
//! | a kernel worker | apart, if somebody waits for it: reads except read-ahead, and syncs |
//! | anyone else | as others': requests, bytes and time, by disk |
//!
//! Partitions count as their disk. A loop device, a device mapper's or a RAID's counts as itself.
//! The kernel's workers make the requests to the device below a loop device or an encrypted one,
//! whoever caused them. Requests to a linear mapping or a RAID of stripes count once more on the
//! devices below.
//!
//! # Limits
//!
//! - Another pagekeeper's requests count as others'.
//! - A request that a throttle (`io.max`, `blkio.throttle`) has delayed comes from a worker, although
//!   a followed process may have made it past the page cache, and its time in the throttle is not
//!   seen.
//! - A sync that waits only for the journal makes no request of its own; the writes before it did.
//!
//! Invariants: this module only observes. A request begins once and ends at most once. All tables
//! are bounded, and requests without room are counted ([`DiskWindow::lost`]). Everything is removed
//! when [`DiskUse`] is dropped, and when its process ends, even by `kill -9`. Fails if the kernel
//! has no BTF, is older than Linux 5.12, or refuses the programs.

mod programs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem::offset_of;
use std::time::Duration;

use rustix::fs::makedev;
use rustix::io::Errno;

use crate::TraceError;
use crate::page_events::PageEvents;
use crate::page_events::layout::described_by_this_kernel;
use crate::page_events::{failed, refused};
use crate::sys::{BpfMap, BpfProgram, MapKind, ProgramAttachment, ProgramKind};
use programs::{
    BioOffsets, DiskCounters, DiskTableFds, DiskTracepoint, KindCounters, RequestEntry, RequestKind, program,
};

/// Maximum number of requests of others in flight at a time; more are counted as lost.
const REQUESTS_IN_FLIGHT_MAX: u32 = 16 << 10;
/// Maximum number of disks that are counted.
const DISKS_MAX: u32 = 1 << 10;
/// Maximum number of pairs of a followed process and a disk that it reads from.
const READER_DISK_PAIRS_MAX: u32 = 4 << 10;
/// The number of entries that are read with one call.
const DISKS_PER_LOOKUP: usize = 256;

/// Requests of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests that began in the window.
    pub begun: u64,
    /// Requests that ended in it.
    pub done: u64,
    /// Bytes of those that ended.
    pub bytes: u64,
    /// The total time that these took, from when their process made them.
    pub waited: Duration,
    /// Requests in flight at the window's end.
    pub in_flight: u64,
}

/// The requests of others to one disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskRequests {
    /// Reads.
    pub reads: RequestCounts,
    /// Writes that nobody waits for.
    pub writes: RequestCounts,
    /// Writes that somebody waits for: direct ones, those of a sync, and flushes.
    pub syncs: RequestCounts,
    /// Reads and syncs of kernel workers: for a file system's journal, or for a process that uses a
    /// disk above. That process may be followed, or be the counting process itself.
    pub workers: RequestCounts,
}

/// The counts since the last look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskWindow {
    /// The requests of others, by the number of the disk (`st_rdev`). A disk is included once
    /// anybody requested anything of it.
    pub others: BTreeMap<u64, DiskRequests>,
    /// Bytes that followed processes read, by process and disk.
    pub reads: BTreeMap<(u32, u64), u64>,
    /// Requests that were not counted for lack of room.
    pub lost: u64,
}

/// Counters of other processes' requests to disks, from its creation until it is dropped.
pub struct DiskUse {
    // The attachments are dropped first: no program runs while the rest is taken apart.
    _attachments: Vec<ProgramAttachment>,
    disks: BpfMap,
    readers: BpfMap,
    lost: BpfMap,
    last_disks: HashMap<Vec<u8>, Vec<u8>>,
    last_reads: HashMap<Vec<u8>, u64>,
    last_lost: u64,
}

impl fmt::Debug for DiskUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskUse").field("lost", &self.last_lost).finish_non_exhaustive()
    }
}

impl DiskUse {
    /// Starts to count. Processes that `events` follows do not count as others. Needs `CAP_BPF` and
    /// `CAP_PERFMON`.
    ///
    /// # Errors
    ///
    /// If the kernel or the caller's permissions do not allow that.
    ///
    /// ```no_run
    /// use pagekeeper_trace::disk_use::DiskUse;
    /// use pagekeeper_trace::page_events::{FollowedNames, PageEvents};
    ///
    /// let events = PageEvents::open(&FollowedNames::default())?;
    /// let mut disks = DiskUse::open(&events)?;
    /// std::thread::sleep(std::time::Duration::from_millis(50));
    /// for (disk, asked) in disks.take()?.others {
    ///     println!("{disk:#x}: {} syncs took {:?} together", asked.syncs.done, asked.syncs.waited);
    /// }
    /// # Ok::<(), pagekeeper_trace::TraceError>(())
    /// ```
    pub fn open(events: &PageEvents) -> Result<Self, TraceError> {
        let offsets = described_by_this_kernel(BioOffsets::of)?;
        let table = |kind, name, (key, value), entries| {
            BpfMap::create(kind, name, key, value, entries)
                .map_err(|errno| failed("bpf(MAP_CREATE)", name, errno))
        };
        let requests =
            table(MapKind::Hash, "pk_requests", (8, size_of::<RequestEntry>()), REQUESTS_IN_FLIGHT_MAX)?;
        let disks = table(MapKind::Hash, "pk_disks", (4, size_of::<DiskCounters>()), DISKS_MAX)?;
        let readers = table(MapKind::Hash, "pk_readers", (8, 8), READER_DISK_PAIRS_MAX)?;
        let lost = table(MapKind::Array, "pk_lost", (4, 8), 1)?;
        let tables = DiskTableFds {
            followed: events.followed().raw_fd(),
            requests: requests.raw_fd(),
            disks: disks.raw_fd(),
            readers: readers.raw_fd(),
            lost: lost.raw_fd(),
        };
        // Ends are watched before beginnings, so that no request stays in the table.
        let points = [DiskTracepoint::EndedTogether, DiskTracepoint::Ended, DiskTracepoint::Begun];
        let attach = |point| attached(point, tables, &offsets);
        let attachments = points.into_iter().map(attach).collect::<Result<_, _>>()?;
        Ok(Self {
            _attachments: attachments,
            disks,
            readers,
            lost,
            last_disks: HashMap::new(),
            last_reads: HashMap::new(),
            last_lost: 0,
        })
    }

    /// Returns the counts since the last call.
    pub fn take(&mut self) -> Result<DiskWindow, TraceError> {
        let mut window = DiskWindow::default();
        let read = |map: &BpfMap, name| entries(map).map_err(|e| failed("bpf(MAP_LOOKUP_BATCH)", name, e));
        for (key, now) in read(&self.disks, "pk_disks")? {
            let then = self.last_disks.insert(key.clone(), now.clone());
            let requests = DiskRequests::between(then.as_deref().unwrap_or_default(), &now);
            window.others.insert(device(word(&key, 0)), requests);
        }
        for (key, now) in read(&self.readers, "pk_readers")? {
            let (process, disk, bytes) = (word(&key, 0), device(word(&key, 4)), long(&now, 0));
            let then = self.last_reads.insert(key.clone(), bytes).unwrap_or_default();
            if bytes == then {
                // The process has ended, or its next read makes a new entry.
                let _ = self.readers.delete(&key);
                self.last_reads.remove(&key);
            } else {
                window.reads.insert((process, disk), bytes.saturating_sub(then));
            }
        }
        let mut lost = [0; 8];
        let looked_up = self.lost.lookup(&[0; 4], &mut lost);
        looked_up.map_err(|errno| failed("bpf(MAP_LOOKUP)", "pk_lost", errno))?;
        let lost = u64::from_ne_bytes(lost);
        window.lost = lost.saturating_sub(std::mem::replace(&mut self.last_lost, lost));
        Ok(window)
    }
}

impl DiskRequests {
    fn between(then: &[u8], now: &[u8]) -> Self {
        let of = |kind: RequestKind| {
            let at = kind as usize * size_of::<KindCounters>();
            let difference = |field: usize| long(now, at + field).saturating_sub(long(then, at + field));
            let [begun, done] = [offset_of!(KindCounters, begun), offset_of!(KindCounters, done)];
            RequestCounts {
                begun: difference(begun),
                done: difference(done),
                bytes: difference(offset_of!(KindCounters, bytes)),
                waited: Duration::from_nanos(difference(offset_of!(KindCounters, waited_ns))),
                in_flight: long(now, at + begun).saturating_sub(long(now, at + done)),
            }
        };
        let [reads, writes] = [of(RequestKind::Read), of(RequestKind::Write)];
        Self { reads, writes, syncs: of(RequestKind::Sync), workers: of(RequestKind::Worker) }
    }

    /// Returns the counts of requests that somebody waits for.
    pub fn waited_for(&self) -> RequestCounts {
        self.of_processes().plus(&self.workers)
    }

    /// Returns the counts of those that processes make themselves.
    pub fn of_processes(&self) -> RequestCounts {
        self.reads.plus(&self.syncs)
    }
}

impl RequestCounts {
    fn plus(&self, other: &Self) -> Self {
        Self {
            begun: self.begun + other.begun,
            done: self.done + other.done,
            bytes: self.bytes + other.bytes,
            waited: self.waited + other.waited,
            in_flight: self.in_flight + other.in_flight,
        }
    }
}

fn attached(
    point: DiskTracepoint,
    tables: DiskTableFds,
    offsets: &BioOffsets,
) -> Result<ProgramAttachment, TraceError> {
    let (tracepoint, name) = point.names();
    let code = program(point, tables, offsets).map_err(|error| TraceError::Call {
        call: "assemble",
        what: name.to_owned(),
        source: std::io::Error::other(error),
    })?;
    let program =
        BpfProgram::load(ProgramKind::RawTracepoint, name, &code).map_err(|error| refused(name, error))?;
    program.attach_raw(Some(tracepoint)).map_err(|error| failed(error.call, name, error.errno))
}

/// A key and its value.
type TableEntry = (Vec<u8>, Vec<u8>);

/// Returns all entries of a table. An entry that comes or goes meanwhile may be missing.
fn entries(map: &BpfMap) -> Result<Vec<TableEntry>, Errno> {
    let (key_size, value_size) = map.sizes();
    let (mut keys, mut values) =
        (vec![0; DISKS_PER_LOOKUP * key_size], vec![0; DISKS_PER_LOOKUP * value_size]);
    let (mut cursor, mut all) = (None, Vec::new());
    loop {
        let (count, is_last) = map.lookup_batch(&mut cursor, &mut keys, &mut values)?;
        let of_batch = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size)).take(count);
        all.extend(of_batch.map(|(key, value)| (key.to_vec(), value.to_vec())));
        if is_last {
            return Ok(all);
        }
    }
}

/// Converts a device number from the kernel's own form: twelve bits, then twenty.
fn device(number: u32) -> u64 {
    makedev(number >> 20, number & 0xf_ffff)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().unwrap_or_default()))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
}
