//! Events of the page cache that followed processes cause: pages that they add, uses by anybody of
//! the files that they touched, and the life of the processes themselves.
//!
//! Programs at raw tracepoints write a record for each event into a ring buffer. The offsets of
//! fields in the kernel's structs are read from the kernel's own description (BTF), so one binary
//! fits every kernel that has it. Read-ahead is done by the task that reads, and workers of
//! `io_uring` belong to their process, so both count for the process that caused them.
//!
//! Invariants: a process is followed because [`PageEvents::follow`] named it, its name was given,
//! or its parent was followed. This module only observes. All tables are bounded, and events
//! without room are counted ([`PageEvents::lost`]). Everything is removed when [`PageEvents`] is
//! dropped, and when its process ends, even by `kill -9`. Fails if the kernel has no BTF, lacks the
//! tracepoints (Linux 5.8), or refuses the programs.

pub(crate) mod btf;
pub(crate) mod layout;
mod programs;
pub(crate) mod ring;
pub mod samples;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pagekeeper_kernel::page_size;
use pagekeeper_text::unescaped_bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::TraceError;
use crate::asm::{AssemblyError, offset};
use crate::error::PermissionKind;
use crate::sys::{BpfMap, BpfProgram, Instruction, LoadError, MapKind, ProgramAttachment, ProgramKind};
pub use btf::BtfError;
use layout::{
    COMM_BYTES, LOST_COUNTERS, LOST_OTHERS, LOST_PAGES, LOST_USES, LOST_WRITES, NAME_FOLLOWED,
    NAME_NEVER_FOLLOWED, PageRecord, ProcessRecord, StructOffsets, record_kind,
};
use programs::{EventTableFds, PageTracepoint, program};
use ring::RingBuffer;

/// Bytes of the ring buffer: 58,000 events, a tenth of a second of the fastest streams.
const EVENT_RING_BYTES: u32 = 4 << 20;
/// Maximum number of processes that are followed at a time; children of more are counted as lost.
const FOLLOWED_PROCESSES_MAX: u32 = 16 << 10;
/// Maximum number of files whose uses are watched at a time; additions to more are counted as lost.
const WATCHED_FILES_MAX: u32 = 64 << 10;
/// Maximum number of names of processes.
const FOLLOWED_NAMES_MAX: u32 = 4 << 10;
/// Maximum bytes of a process's name, without its end.
const COMM_BYTES_MAX: usize = COMM_BYTES - 1;
/// Maximum number of pages for which one event of a reader counts at once: the kernel reports the
/// whole request, which is served in pieces.
const USE_EVENT_PAGES_MAX: u64 = 512;
/// Maximum number of readers whose place in a long read is remembered.
const PENDING_READS_MAX: usize = 4 << 10;
/// The number of the first pid namespace (`PROC_PID_INIT_INO` of `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A file as the kernel's events name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventFile {
    /// The device of its file system, as `st_dev` encodes it (on btrfs that of the whole file
    /// system, not of the subvolume). For a block device its own number (`st_rdev`).
    pub dev: u64,
    /// The inode number; for a block device the kernel's own.
    pub ino: u64,
    /// The inode's generation, which distinguishes it from a later inode of the same number.
    pub generation: u32,
    /// The subvolume that the inode belongs to, on btrfs only.
    pub subvolume: Option<u64>,
    /// Whether it is a block device.
    pub is_block_device: bool,
    /// The address of the file's mapping in the kernel, by which [`PageEvents::forget`] finds it.
    /// Never to be shown.
    pub mapping: u64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageEvent {
    /// A followed process brought pages in.
    Added {
        /// The process (thread group), in the first pid namespace.
        process: u32,
        /// The file.
        file: EventFile,
        /// Bytes, in whole pages.
        bytes: Range<u64>,
        /// Whether the file had no other pages in the page cache.
        is_alone: bool,
    },
    /// A followed process wrote to clean pages, by a call or by a mapping (Linux 5.16).
    Dirtied {
        /// The process.
        process: u32,
        /// The file.
        file: EventFile,
        /// Bytes, in whole pages.
        bytes: Range<u64>,
    },
    /// Some process read, mapped, wrote or added pages of a file of which a followed process has
    /// added pages (Linux 6.12). For a followed process only reads and mappings are events of this
    /// kind.
    Used {
        /// The process.
        process: u32,
        /// Whether it is followed.
        is_followed: bool,
        /// The file.
        file: EventFile,
        /// Bytes, in whole pages.
        bytes: Range<u64>,
    },
    /// A process is followed from now on: because of its name when it became another program, or as
    /// the child of a followed one. Sent again when it becomes another program.
    Began {
        /// The process.
        process: u32,
        /// The followed process that it is a child of, or 0.
        parent: u32,
        /// Its name (`comm`) now.
        name: String,
    },
    /// A followed process has become a program that is never followed (a database).
    Left {
        /// The process.
        process: u32,
    },
    /// A followed process has ended, with all its threads.
    Ended {
        /// The process.
        process: u32,
    },
}

/// The names by which processes are followed, or never followed.
#[derive(Debug, Clone, Default)]
pub struct FollowedNames {
    /// Names of processes as the kernel keeps them, at most 15 bytes, which may end in `*`.
    /// Followed from their exec on, with their children.
    pub streams: Vec<String>,
    /// Names that are never followed, even as children: databases.
    pub never: Vec<String>,
}

/// Events without room since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostEvents {
    /// Pages whose additions were missed.
    pub pages: u64,
    /// Uses by processes that are not followed: after that it is no longer known which pages others
    /// use.
    pub uses: u64,
    /// Writes to clean pages by followed processes.
    pub writes: u64,
    /// Other events.
    pub others: u64,
}

/// Events of followed processes, from its creation until it is dropped.
pub struct PageEvents {
    // The attachments are dropped first: no program runs while the rest is taken apart.
    attachments: Vec<ProgramAttachment>,
    ring: RingBuffer,
    records: BpfMap,
    followed: BpfMap,
    /// Processes that may be followed by their names, and whose children may; `None` means all.
    heeded: Option<BpfMap>,
    watched: Option<BpfMap>,
    lost: BpfMap,
    readers: PendingReads,
}

impl fmt::Debug for PageEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageEvents").field("programs", &self.attachments.len()).finish_non_exhaustive()
    }
}

impl PageEvents {
    /// Loads and attaches the programs. Needs `CAP_BPF` and `CAP_PERFMON`.
    ///
    /// # Errors
    ///
    /// If the kernel or the caller's permissions do not allow that, or a name is longer than 15
    /// bytes or has a `*` that is not at its end.
    pub fn open(names: &FollowedNames) -> Result<Self, TraceError> {
        Self::open_with(names, false)
    }

    /// Does the same as [`Self::open`], but follows processes by their names only below those of
    /// [`Self::heed_names_below`].
    pub fn open_below(names: &FollowedNames) -> Result<Self, TraceError> {
        Self::open_with(names, true)
    }

    /// Makes the tables alone, without those of names and of watched files.
    fn without_programs() -> Result<Self, TraceError> {
        if !is_first_pid_namespace() {
            return Err(TraceError::OtherNamespace);
        }
        let records = table(MapKind::Ring, "pk_records", 0, 0, EVENT_RING_BYTES)?;
        let ring = RingBuffer::new(&records, EVENT_RING_BYTES)
            .map_err(|errno| failed("mmap", "pk_records", errno))?;
        Ok(Self {
            attachments: Vec::new(),
            ring,
            records,
            followed: table(MapKind::Hash, "pk_followed", 4, 8, FOLLOWED_PROCESSES_MAX)?,
            heeded: None,
            watched: None,
            lost: table(MapKind::Array, "pk_lost", 4, 8, LOST_COUNTERS)?,
            readers: PendingReads::default(),
        })
    }

    fn open_with(names: &FollowedNames, is_below: bool) -> Result<Self, TraceError> {
        let mut events = Self::without_programs()?;
        let offsets = StructOffsets::of_this_kernel()?;
        events.heeded =
            is_below.then(|| table(MapKind::Hash, "pk_heeded", 4, 8, FOLLOWED_PROCESSES_MAX)).transpose()?;
        events.watched = Some(table(MapKind::Hash, "pk_watched", 8, 8, WATCHED_FILES_MAX)?);
        let by_name = named_table(
            table(MapKind::LongestPrefix, "pk_names", 4 + COMM_BYTES, 4, FOLLOWED_NAMES_MAX)?,
            names,
        )?;
        let uses =
            [PageTracepoint::Read, PageTracepoint::Mapped, PageTracepoint::Faulted, PageTracepoint::Dirtied];
        if !events.attach_if_known(&uses, &by_name, &offsets)? {
            events.watched = None;
            events.attach_if_known(&[PageTracepoint::Dirtied], &by_name, &offsets)?;
        }
        // Ends are watched before beginnings, so that no process stays in the table.
        events.attach(
            &[
                PageTracepoint::Exited,
                PageTracepoint::Executed,
                PageTracepoint::Forked,
                PageTracepoint::Added,
            ],
            &by_name,
            &offsets,
        )?;
        Ok(events)
    }

    /// Attaches all of these, or none if the kernel lacks one.
    fn attach_if_known(
        &mut self,
        points: &[PageTracepoint],
        names: &BpfMap,
        offsets: &StructOffsets,
    ) -> Result<bool, TraceError> {
        match self.attach(points, names, offsets) {
            Ok(()) => Ok(true),
            Err(TraceError::Call { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                self.attachments.clear();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn attach(
        &mut self,
        points: &[PageTracepoint],
        names: &BpfMap,
        offsets: &StructOffsets,
    ) -> Result<(), TraceError> {
        let tables = self.tables(names.raw_fd());
        points
            .iter()
            .try_for_each(|point| self.attach_program(point.names(), program(*point, tables, offsets)))
    }

    /// Attaches the programs by which children of followed processes are followed until they end.
    fn attach_lives(&mut self, offsets: &StructOffsets) -> Result<(), TraceError> {
        let tables = self.tables(-1);
        let mut attach =
            |point: PageTracepoint| self.attach_program(point.names(), program(point, tables, offsets));
        attach(PageTracepoint::Exited)?;
        attach(PageTracepoint::Forked)
    }

    /// Returns the descriptors of the tables.
    fn tables(&self, names: i32) -> EventTableFds {
        EventTableFds {
            followed: self.followed.raw_fd(),
            names,
            heeded: self.heeded.as_ref().map(BpfMap::raw_fd),
            watched: self.watched.as_ref().map(BpfMap::raw_fd),
            ring: self.records.raw_fd(),
            lost: self.lost.raw_fd(),
        }
    }

    /// Attaches a program to a tracepoint; `name` is the program's.
    fn attach_program(
        &mut self,
        (tracepoint, name): (&std::ffi::CStr, &str),
        code: Result<Vec<Instruction>, AssemblyError>,
    ) -> Result<(), TraceError> {
        let code = assembled(name, code)?;
        self.load_and_attach(ProgramKind::RawTracepoint, Some(tracepoint), name, &code)
    }

    /// Loads a program and attaches it: to this tracepoint, or to that of its kind.
    fn load_and_attach(
        &mut self,
        kind: ProgramKind,
        tracepoint: Option<&std::ffi::CStr>,
        name: &str,
        code: &[Instruction],
    ) -> Result<(), TraceError> {
        let program = BpfProgram::load(kind, name, code).map_err(|error| refused(name, error))?;
        let attached = program.attach_raw(tracepoint);
        self.attachments.push(attached.map_err(|error| failed(error.call, name, error.errno))?);
        Ok(())
    }

    /// Follows a process and the children that it starts from now on. The number is that of the
    /// first pid namespace.
    pub fn follow(&self, process: u32) -> Result<(), TraceError> {
        let added = self.followed.update(&process.to_ne_bytes(), &0_u64.to_ne_bytes());
        added.map_err(|errno| failed("bpf(MAP_UPDATE)", "pk_followed", errno))
    }

    /// Follows this process and the children that it starts from now on once they become a program
    /// that is to be followed by its name. Does nothing if names count everywhere.
    pub fn heed_names_below(&self, process: u32) -> Result<(), TraceError> {
        let Some(heeded) = &self.heeded else { return Ok(()) };
        let added = heeded.update(&process.to_ne_bytes(), &0_u64.to_ne_bytes());
        added.map_err(|errno| failed("bpf(MAP_UPDATE)", "pk_heeded", errno))
    }

    /// Returns whether a process is running to which [`Self::heed_names_below`] applies.
    pub fn heeds_names(&self) -> bool {
        // If the table can't be read it counts as empty: otherwise the caller would wait forever.
        self.heeded.as_ref().is_some_and(|heeded| heeded.has_entries().unwrap_or(false))
    }

    /// Stops following a process.
    pub fn unfollow(&self, process: u32) -> Result<(), TraceError> {
        let deleted = self.followed.delete(&process.to_ne_bytes());
        deleted.map(drop).map_err(|errno| failed("bpf(MAP_DELETE)", "pk_followed", errno))
    }

    /// Watches the uses of a file, as an addition to it by a followed process does.
    pub fn watch(&self, file: &EventFile) -> Result<(), TraceError> {
        let Some(watched) = &self.watched else { return Ok(()) };
        let added = watched.update(&file.mapping.to_ne_bytes(), &0_u64.to_ne_bytes());
        added.map_err(|errno| failed("bpf(MAP_UPDATE)", "pk_watched", errno))
    }

    /// Frees a file's entry in the kernel's table; its [`PageEvent::Used`] events end.
    pub fn forget(&self, file: &EventFile) -> Result<(), TraceError> {
        let Some(watched) = &self.watched else { return Ok(()) };
        let deleted = watched.delete(&file.mapping.to_ne_bytes());
        deleted.map(drop).map_err(|errno| failed("bpf(MAP_DELETE)", "pk_watched", errno))
    }

    /// Returns whether there are [`PageEvent::Used`] events.
    pub fn sees_use(&self) -> bool {
        self.watched.is_some()
    }

    /// Takes the events that have come, oldest first, at most one buffer's worth.
    pub fn drain(&mut self, take: &mut dyn FnMut(PageEvent)) {
        let readers = &mut self.readers;
        self.ring.drain(|bytes| {
            if let Some(event) = parsed(bytes, readers) {
                take(event);
            }
        });
    }

    /// Returns the table of followed processes.
    pub(crate) fn followed(&self) -> &BpfMap {
        &self.followed
    }

    /// Waits until an event comes, but at most for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        self.wait_or_readable(timeout, &[]);
    }

    /// Waits until an event comes or one of the others is readable, but at most for `timeout`.
    pub fn wait_or_readable(&self, timeout: Duration, others: &[BorrowedFd<'_>]) {
        let timeout = Timespec::try_from(timeout).ok();
        let all = std::iter::once(self.records.fd()).chain(others.iter().copied());
        let mut all: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // A signal ends it early, which does no harm.
        let _ = poll(&mut all, timeout.as_ref());
    }

    /// Returns the number of events without room since the start.
    pub fn lost(&self) -> Result<LostEvents, TraceError> {
        let count = |index: i32| -> Result<u64, TraceError> {
            let mut value = [0; 8];
            let looked_up = self.lost.lookup(&index.to_ne_bytes(), &mut value);
            looked_up.map_err(|errno| failed("bpf(MAP_LOOKUP)", "pk_lost", errno))?;
            Ok(u64::from_ne_bytes(value))
        };
        Ok(LostEvents {
            pages: count(LOST_PAGES)?,
            uses: count(LOST_USES)?,
            writes: count(LOST_WRITES)?,
            others: count(LOST_OTHERS)?,
        })
    }
}

/// Makes a table.
fn table(
    kind: MapKind,
    name: &'static str,
    key: usize,
    value: usize,
    entries: u32,
) -> Result<BpfMap, TraceError> {
    BpfMap::create(kind, name, key, value, entries).map_err(|errno| failed("bpf(MAP_CREATE)", name, errno))
}

pub(crate) fn failed(call: &'static str, what: &str, errno: Errno) -> TraceError {
    TraceError::of(PermissionKind::Programs, call, what, errno)
}

/// Returns a program's instructions.
fn assembled(
    name: &str,
    code: Result<Vec<Instruction>, AssemblyError>,
) -> Result<Vec<Instruction>, TraceError> {
    code.map_err(|error| TraceError::Call {
        call: "assemble",
        what: name.to_owned(),
        source: std::io::Error::other(error),
    })
}

pub(crate) fn refused(name: &str, LoadError { errno, log }: LoadError) -> TraceError {
    if log.is_empty() {
        return failed("bpf(PROG_LOAD)", name, errno);
    }
    TraceError::Rejected { program: name.to_owned(), log, source: errno.into() }
}

/// Returns whether processes have the same numbers here as in the kernel's events; false if that
/// can't be read.
pub(crate) fn is_first_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == FIRST_PID_NAMESPACE)
}

/// Fills the table with these names.
fn named_table(table: BpfMap, names: &FollowedNames) -> Result<BpfMap, TraceError> {
    let all = names.streams.iter().map(|name| (name, NAME_FOLLOWED));
    // Later ones replace earlier ones of the same name.
    for (name, what) in all.chain(names.never.iter().map(|name| (name, NAME_NEVER_FOLLOWED))) {
        let key = name_key(name).ok_or_else(|| TraceError::Name { name: name.clone() })?;
        table
            .update(&key, &what.to_ne_bytes())
            .map_err(|errno| failed("bpf(MAP_UPDATE)", "pk_names", errno))?;
    }
    Ok(table)
}

/// Returns the key of a name: the number of bits that count, and the name. For an exact name the
/// terminating zero counts too.
fn name_key(name: &str) -> Option<[u8; 4 + COMM_BYTES]> {
    let (text, is_prefix) = name.strip_suffix('*').map_or((name, false), |prefix| (prefix, true));
    if text.len() > COMM_BYTES_MAX || text.contains(['*', '\0']) || name.is_empty() {
        return None;
    }
    let mut key = [0; 4 + COMM_BYTES];
    let bytes = text.len() + usize::from(!is_prefix);
    key[..4].copy_from_slice(&u32::try_from(8 * bytes).ok()?.to_ne_bytes());
    key[4..4 + text.len()].copy_from_slice(text.as_bytes());
    Some(key)
}

/// Pages that readers requested and were not seen to get, by process and mapping.
type PendingReads = HashMap<(u32, u64), Range<u64>>;

/// Access to the numbers of a record.
struct RecordBytes<'a>(&'a [u8]);

impl RecordBytes<'_> {
    fn word(&self, at: i16) -> u32 {
        let at = usize::from(at.unsigned_abs());
        self.0.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn long(&self, at: i16) -> u64 {
        let at = usize::from(at.unsigned_abs());
        self.0.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn name(&self) -> String {
        let at = usize::from(offset!(ProcessRecord, name).unsigned_abs());
        let bytes = self.0.get(at..at + COMM_BYTES_MAX).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        unescaped_bytes(&bytes[..end]).into_owned()
    }

    /// Returns the pages of a record of a sample.
    fn pages(&self) -> RangeInclusive<u64> {
        self.long(offset!(PageRecord, first_page))..=self.long(offset!(PageRecord, pages))
    }

    fn file(&self) -> EventFile {
        // The kernel's own form: twelve bits, then twenty.
        let dev = self.word(offset!(PageRecord, dev));
        let is_block_device = self.word(offset!(PageRecord, mode)) & libc::S_IFMT == libc::S_IFBLK;
        let subvolume = self.long(offset!(PageRecord, subvolume));
        EventFile {
            dev: rustix::fs::makedev(dev >> 20, dev & 0xf_ffff),
            ino: self.long(offset!(PageRecord, ino)),
            generation: self.word(offset!(PageRecord, generation)),
            subvolume: (subvolume != 0).then_some(subvolume),
            is_block_device,
            mapping: self.long(offset!(PageRecord, mapping)),
        }
    }
}

/// Parses the event of a record.
fn parsed(bytes: &[u8], readers: &mut PendingReads) -> Option<PageEvent> {
    let record = RecordBytes(bytes);
    let process = record.word(offset!(PageRecord, process));
    Some(match record.word(offset!(PageRecord, kind)).cast_signed() {
        number @ (record_kind::PAGES_ADDED | record_kind::PAGES_DIRTIED) => {
            let first = record.long(offset!(PageRecord, first_page));
            let bytes = in_bytes(&(first..first.checked_add(record.long(offset!(PageRecord, pages)))?))?;
            let file = record.file();
            match number {
                record_kind::PAGES_ADDED => {
                    let is_alone = record.word(offset!(PageRecord, flag)) != 0;
                    PageEvent::Added { process, file, bytes, is_alone }
                }
                _ => PageEvent::Dirtied { process, file, bytes },
            }
        }
        record_kind::PAGES_USED => {
            let pages = record.long(offset!(PageRecord, first_page))
                ..record.long(offset!(PageRecord, pages)).checked_add(1)?;
            let (file, is_followed) = (record.file(), record.word(offset!(PageRecord, flag)) != 0);
            // Overestimating uses by others is safe.
            let used = if is_followed { used_now(readers, (process, file.mapping), pages) } else { pages };
            PageEvent::Used { process, is_followed, file, bytes: in_bytes(&used)? }
        }
        record_kind::PROCESS_BEGAN => PageEvent::Began {
            process,
            parent: record.word(offset!(ProcessRecord, parent)),
            name: record.name(),
        },
        record_kind::PROCESS_LEFT => PageEvent::Left { process },
        record_kind::PROCESS_ENDED => PageEvent::Ended { process },
        _ => return None,
    })
}

fn in_bytes(pages: &Range<u64>) -> Option<Range<u64>> {
    Some(pages.start.checked_mul(page_size())?..pages.end.checked_mul(page_size())?)
}

/// Returns the pages that a reader has used so far. The kernel reports everything that a call still
/// requests, once for each batch of folios. So the first pages of a long read count at once, and
/// the pages up to the next event count when that comes.
fn used_now(readers: &mut PendingReads, reader: (u32, u64), asked: Range<u64>) -> Range<u64> {
    let before = readers.remove(&reader).filter(|rest| rest.contains(&asked.start));
    let start = before.map_or(asked.start, |rest| rest.start);
    let end = asked.end.min(asked.start.saturating_add(USE_EVENT_PAGES_MAX));
    if end < asked.end {
        if readers.len() >= PENDING_READS_MAX {
            readers.clear();
        }
        readers.insert(reader, end..asked.end);
    }
    start..end
}
