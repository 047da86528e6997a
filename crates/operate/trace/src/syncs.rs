//! Syncs of files: each call of fsync(2), fdatasync(2), syncfs(2) and of a waiting
//! `sync_file_range(2)` by any process, with its beginning, its end and its descriptor.
//!
//! Programs at the tracepoints of these system calls store the time when a thread began one, and
//! write a record when it ends. No other system call runs a program. Not covered: syncs by
//! `io_uring`, msync(2), and writes with `O_DSYNC`, which use other calls.
//!
//! Invariants: this module only observes. All tables are bounded, and syncs without room are
//! counted ([`SyncEvents::lost`]). Everything is removed when [`SyncEvents`] is dropped, and when
//! its process ends, even by `kill -9`. Fails if the kernel has no events of single system calls
//! (`CONFIG_FTRACE_SYSCALLS`), or refuses the programs.

use std::mem::offset_of;
use std::path::PathBuf;
use std::time::Duration;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::{unescaped, unescaped_bytes};
use rustix::io::Errno;

use crate::TraceError;
use crate::asm::{
    AluOp, Assembler, AssemblyError, Condition, KernelHelper, Label, Register, Width, offset, size, stack,
};
use crate::error::PermissionKind;
use crate::page_events::{is_first_pid_namespace, ring::RingBuffer};
use crate::sys::{BpfMap, BpfProgram, Instruction, LoadError, MapKind, ProgramAttachment, ProgramKind};
use crate::tracefs::Tracefs;
use crate::tracefs::format::RecordFormat;
use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R10};

/// Bytes of the ring buffer: 74,000 syncs.
const SYNC_RING_BYTES: u32 = 4 << 20;
/// Maximum number of threads in a sync at a time.
const SYNCING_THREADS_MAX: u32 = 16 << 10;
/// The number of threads that are read with one call.
const THREADS_PER_LOOKUP: usize = 512;
/// The flags of `sync_file_range(2)` with which it waits (`SYNC_FILE_RANGE_WAIT_BEFORE`, `_AFTER`).
const SYNC_RANGE_WAIT_FLAGS: i32 = 1 | 4;

/// The system call of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SyncCall {
    /// fsync(2).
    Fsync,
    /// fdatasync(2).
    Fdatasync,
    /// `sync_file_range(2)` with a flag that waits.
    SyncFileRange,
    /// syncfs(2), for a whole file system.
    Syncfs,
}

/// All calls.
const SYNC_CALLS: [SyncCall; 4] =
    [SyncCall::Fsync, SyncCall::Fdatasync, SyncCall::SyncFileRange, SyncCall::Syncfs];

impl SyncCall {
    /// Returns the kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Fdatasync => "fdatasync",
            Self::SyncFileRange => "sync_file_range",
            Self::Syncfs => "syncfs",
        }
    }

    fn number(self) -> libc::c_long {
        match self {
            Self::Fsync => libc::SYS_fsync,
            Self::Fdatasync => libc::SYS_fdatasync,
            Self::SyncFileRange => libc::SYS_sync_file_range,
            Self::Syncfs => libc::SYS_syncfs,
        }
    }

    /// Returns its number in the programs' records.
    fn index(self) -> i32 {
        self as i32
    }

    fn of_index(index: u32) -> Option<Self> {
        SYNC_CALLS.into_iter().find(|call| u32::try_from(call.index()) == Ok(index))
    }
}

/// A sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncEvent {
    /// The process (thread group), in the first pid namespace.
    pub process: u32,
    /// Its thread.
    pub thread: u32,
    /// The thread's name (`comm`), at most 15 bytes; empty if it is not known.
    pub name: String,
    /// The descriptor that it was called with.
    pub fd: i32,
    /// The system call.
    pub call: SyncCall,
    /// The time when it began, on the clock of [`SyncEvents::now`].
    pub began: Duration,
    /// The time when it ended; `None` if it has not ended yet.
    pub ended: Option<Duration>,
}

/// The events of syncs, from its creation until it is dropped.
#[derive(Debug)]
pub struct SyncEvents {
    // The attachments are dropped first: no program runs while the rest is taken apart.
    attachments: Vec<ProgramAttachment>,
    ring: RingBuffer,
    records: BpfMap,
    waiting: BpfMap,
    lost: BpfMap,
}

impl SyncEvents {
    /// Loads and attaches the programs. Needs `CAP_BPF` and `CAP_PERFMON`.
    ///
    /// # Errors
    ///
    /// If the kernel or the caller's permissions do not allow that.
    pub fn open() -> Result<Self, TraceError> {
        if !is_first_pid_namespace() {
            return Err(TraceError::OtherNamespace);
        }
        let tracefs = Tracefs::find(&ProcRoot::default())?;
        let table = |kind, name, key, value, entries| {
            BpfMap::create(kind, name, key, value, entries)
                .map_err(|errno| failed("bpf(MAP_CREATE)", name, errno))
        };
        let records = table(MapKind::Ring, "pk_syncs", 0, 0, SYNC_RING_BYTES)?;
        let ring =
            RingBuffer::new(&records, SYNC_RING_BYTES).map_err(|errno| failed("mmap", "pk_syncs", errno))?;
        let mut events = Self {
            attachments: Vec::new(),
            ring,
            records,
            waiting: table(MapKind::Hash, "pk_syncing", 8, size_of::<SyncStart>(), SYNCING_THREADS_MAX)?,
            lost: table(MapKind::Array, "pk_lost", 4, 8, 1)?,
        };
        for call in SYNC_CALLS {
            match events.watch(&tracefs, call) {
                // Not every kernel has the two less important ones.
                Err(TraceError::NoEvent { .. })
                    if matches!(call, SyncCall::SyncFileRange | SyncCall::Syncfs) => {}
                other => other?,
            }
        }
        Ok(events)
    }

    /// Attaches the two programs at a call's beginning and end.
    fn watch(&mut self, tracefs: &Tracefs, call: SyncCall) -> Result<(), TraceError> {
        for edge in [CallEdge::Exit, CallEdge::Entry] {
            let name = format!("{}_{}", edge.prefix(), call.name());
            let format = tracefs.format("syscalls", &name)?;
            let code = self.program(&format, &name, call, edge)?;
            let program = BpfProgram::load(ProgramKind::Tracepoint, &format!("pk_{}", call.name()), &code)
                .map_err(|error| refused(&name, error))?;
            let attached = program.attach(format.id, online_cpu());
            self.attachments.push(attached.map_err(|error| failed(error.call, &name, error.errno))?);
        }
        Ok(())
    }

    fn program(
        &self,
        format: &RecordFormat,
        name: &str,
        call: SyncCall,
        edge: CallEdge,
    ) -> Result<Vec<Instruction>, TraceError> {
        let field = |field: &'static str| {
            let known = format.field(field).filter(|known| known.size == 8);
            known
                .and_then(|known| i16::try_from(known.offset).ok())
                .ok_or_else(|| TraceError::NoField { event: format!("syscalls:{name}"), field })
        };
        let writer = SyncProgramWriter::new(self);
        let code = match edge {
            CallEdge::Exit => writer.write_exit_program(),
            CallEdge::Entry => {
                let flags = (call == SyncCall::SyncFileRange).then(|| field("flags")).transpose()?;
                writer.write_entry_program(call, field("fd")?, flags)
            }
        };
        code.map_err(|error| TraceError::Call {
            call: "assemble",
            what: name.to_owned(),
            source: std::io::Error::other(error),
        })
    }

    /// Includes the threads of a process that are already in a sync, as if it began now.
    pub fn adopt(&self, process: u32) {
        let tasks = ProcRoot::default().path().join(format!("{process}/task"));
        for entry in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            let Ok(thread) = unescaped(&entry.file_name()).parse::<u32>() else { continue };
            let Ok(Some((call, fd))) = current_sync(process, thread) else { continue };
            let key = ((u64::from(process) << 32) | u64::from(thread)).to_ne_bytes();
            // If it has begun another one since, or there is no room, nothing is lost.
            let _ = self.waiting.update(&key, &SyncStart::bytes(Self::now(), fd, call));
        }
    }

    /// Takes the syncs that have ended, oldest first, at most one buffer's worth.
    pub fn drain(&mut self, take: &mut dyn FnMut(SyncEvent)) {
        self.ring.drain(|bytes| {
            if let Some(event) = SyncRecord::parse(bytes) {
                take(event);
            }
        });
    }

    /// Returns the syncs that have not ended yet.
    pub fn waiting(&self) -> Result<Vec<SyncEvent>, TraceError> {
        let mut all = Vec::new();
        let (mut keys, mut values) =
            (vec![0; THREADS_PER_LOOKUP * 8], vec![0; THREADS_PER_LOOKUP * size_of::<SyncStart>()]);
        let mut cursor = None;
        loop {
            let read = self.waiting.lookup_batch(&mut cursor, &mut keys, &mut values);
            let (count, end) = read.map_err(|errno| failed("bpf(MAP_LOOKUP)", "pk_syncing", errno))?;
            let entries = keys.chunks(8).zip(values.chunks(size_of::<SyncStart>())).take(count);
            all.extend(entries.filter_map(|(key, value)| SyncStart::parse(key, value)));
            if end {
                return Ok(all);
            }
        }
    }

    /// Returns the number of syncs without room since the start.
    pub fn lost(&self) -> Result<u64, TraceError> {
        let mut value = [0; 8];
        let looked_up = self.lost.lookup(&0_u32.to_ne_bytes(), &mut value);
        looked_up.map_err(|errno| failed("bpf(MAP_LOOKUP)", "pk_lost", errno))?;
        Ok(u64::from_ne_bytes(value))
    }

    /// Returns the present time on the clock of events, the monotonic one.
    pub fn now() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::try_from(now).unwrap_or_default()
    }
}

fn failed(call: &'static str, what: &str, errno: Errno) -> TraceError {
    TraceError::of(PermissionKind::Programs, call, what, errno)
}

fn refused(name: &str, LoadError { errno, log }: LoadError) -> TraceError {
    if log.is_empty() {
        return failed("bpf(PROG_LOAD)", name, errno);
    }
    TraceError::Rejected { program: name.to_owned(), log, source: errno.into() }
}

/// Returns a processor that is online; programs run on all.
fn online_cpu() -> u32 {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
    online.ok().and_then(|text| text.split(['-', ',', '\n']).next()?.parse().ok()).unwrap_or(0)
}

/// Returns the sync that a thread is in at this moment; `None` if it is in none. Fails if that
/// can't be seen.
fn current_sync(process: u32, thread: u32) -> std::io::Result<Option<(SyncCall, i32)>> {
    let path: PathBuf = ProcRoot::default().path().join(format!("{process}/task/{thread}/syscall"));
    std::fs::read_to_string(path).map(|text| parse_syscall(&text))
}

/// Parses `75 0x7 0x0 …`, or `running`.
fn parse_syscall(text: &str) -> Option<(SyncCall, i32)> {
    let mut words = text.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let call = SYNC_CALLS.into_iter().find(|call| call.number() == number)?;
    let argument = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let fd = i32::try_from(argument(words.next()?)? & 0xffff_ffff).ok()?;
    if call == SyncCall::SyncFileRange {
        let flags = argument(words.nth(2)?)?;
        return (flags & u64::from(SYNC_RANGE_WAIT_FLAGS.unsigned_abs()) != 0).then_some((call, fd));
    }
    Some((call, fd))
}

/// The end of a call at which a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallEdge {
    Entry,
    Exit,
}

impl CallEdge {
    fn prefix(self) -> &'static str {
        match self {
            Self::Entry => "sys_enter",
            Self::Exit => "sys_exit",
        }
    }
}

/// Value of the table of threads in a sync.
#[repr(C)]
struct SyncStart {
    /// In nanoseconds.
    began: u64,
    fd: i32,
    call: u32,
}

impl SyncStart {
    /// Returns the value of a sync that a thread is in since `began`.
    fn bytes(began: Duration, fd: i32, call: SyncCall) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        bytes[..8].copy_from_slice(&u64::try_from(began.as_nanos()).unwrap_or(u64::MAX).to_ne_bytes());
        bytes[8..12].copy_from_slice(&fd.to_ne_bytes());
        bytes[12..].copy_from_slice(&call.index().to_ne_bytes());
        bytes
    }

    /// Returns a sync that has not ended; `None` if its thread has left it meanwhile, or has ended.
    fn parse(key: &[u8], value: &[u8]) -> Option<SyncEvent> {
        let ids = long(key, 0)?;
        let (process, thread) = (u32::try_from(ids >> 32).ok()?, u32::try_from(ids & 0xffff_ffff).ok()?);
        let name = ProcRoot::default().name(thread).ok()?;
        if matches!(current_sync(process, thread), Ok(None)) {
            return None;
        }
        Some(SyncEvent {
            process,
            thread,
            name: unescaped(&name).into_owned(),
            fd: word(value, offset_of!(Self, fd))?.cast_signed(),
            call: SyncCall::of_index(word(value, offset_of!(Self, call))?)?,
            began: Duration::from_nanos(long(value, offset_of!(Self, began))?),
            ended: None,
        })
    }
}

/// A record of the ring buffer.
#[repr(C)]
struct SyncRecord {
    /// Process and thread as the kernel packs them.
    task: u64,
    /// In nanoseconds.
    began: u64,
    /// In nanoseconds.
    ended: u64,
    fd: i32,
    call: u32,
    name: [u8; 16],
}

impl SyncRecord {
    fn parse(bytes: &[u8]) -> Option<SyncEvent> {
        let task = long(bytes, offset_of!(Self, task))?;
        let name = bytes.get(offset_of!(Self, name)..size_of::<Self>())?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Some(SyncEvent {
            process: u32::try_from(task >> 32).ok()?,
            thread: u32::try_from(task & 0xffff_ffff).ok()?,
            name: unescaped_bytes(&name[..end]).into_owned(),
            fd: word(bytes, offset_of!(Self, fd))?.cast_signed(),
            call: SyncCall::of_index(word(bytes, offset_of!(Self, call))?)?,
            began: Duration::from_nanos(long(bytes, offset_of!(Self, began))?),
            ended: Some(Duration::from_nanos(long(bytes, offset_of!(Self, ended))?)),
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The stack of a program.
#[repr(C)]
struct SyncStack {
    /// An index into an array.
    index: u64,
    start: SyncStart,
    /// The thread: the key of its sync.
    key: u64,
    record: SyncRecord,
}

/// Writes the programs of one call.
struct SyncProgramWriter {
    asm: Assembler,
    waiting: i32,
    ring: i32,
    lost: i32,
    out: Label,
}

impl SyncProgramWriter {
    fn new(events: &SyncEvents) -> Self {
        let mut asm = Assembler::new();
        let out = asm.label();
        // The record of the tracepoint stays at R6.
        asm.set(R6, R1);
        Self {
            asm,
            waiting: events.waiting.raw_fd(),
            ring: events.records.raw_fd(),
            lost: events.lost.raw_fd(),
            out,
        }
    }

    /// Writes the program that stores when the thread began, and with which descriptor. Skips a
    /// call whose flags do not wait.
    fn write_entry_program(
        mut self,
        call: SyncCall,
        fd: i16,
        flags: Option<i16>,
    ) -> Result<Vec<Instruction>, AssemblyError> {
        if let Some(flags) = flags {
            self.asm.load(Width::B8, R1, R6, flags);
            self.asm.alu_constant(AluOp::And, R1, SYNC_RANGE_WAIT_FLAGS);
            self.asm.jump_if_constant(Condition::Equal, R1, 0, self.out);
        }
        self.store_thread();
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.store(Width::B8, R10, stack!(SyncStack, start.began), R0);
        self.asm.load(Width::B8, R1, R6, fd);
        self.asm.store(Width::B4, R10, stack!(SyncStack, start.fd), R1);
        self.asm.store_constant(Width::B4, R10, stack!(SyncStack, start.call), call.index());
        self.asm.pass_map_and_key(self.waiting, stack!(SyncStack, key));
        self.asm.set(R3, R10);
        self.asm.alu_constant(AluOp::Add, R3, i32::from(stack!(SyncStack, start)));
        self.asm.constant(R4, 0);
        self.asm.call(KernelHelper::MapUpdate);
        self.count_lost_unless_done();
        self.asm.finish_at(self.out)
    }

    /// Writes the program that writes a record of the sync that the thread began. Skips one whose
    /// beginning was not seen.
    fn write_exit_program(mut self) -> Result<Vec<Instruction>, AssemblyError> {
        self.store_thread();
        self.asm.pass_map_and_key(self.waiting, stack!(SyncStack, key));
        self.asm.call(KernelHelper::MapLookup);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.load(Width::B8, R7, R0, offset!(SyncStart, began));
        // The descriptor and the call.
        self.asm.load(Width::B8, R8, R0, offset!(SyncStart, fd));
        self.asm.store(Width::B8, R10, stack!(SyncStack, record.began), R7);
        self.asm.store(Width::B8, R10, stack!(SyncStack, record.fd), R8);
        self.asm.load(Width::B8, R1, R10, stack!(SyncStack, key));
        self.asm.store(Width::B8, R10, stack!(SyncStack, record.task), R1);
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.store(Width::B8, R10, stack!(SyncStack, record.ended), R0);
        self.asm.set(R1, R10);
        self.asm.alu_constant(AluOp::Add, R1, i32::from(stack!(SyncStack, record.name)));
        self.asm.constant(R2, 16);
        self.asm.call(KernelHelper::TaskName);
        self.asm.pass_map_and_key(self.waiting, stack!(SyncStack, key));
        self.asm.call(KernelHelper::MapDelete);
        self.asm.pass_map_and_key(self.ring, stack!(SyncStack, record));
        self.asm.constant(R3, i32::from(size!(SyncRecord)));
        self.asm.constant(R4, 0);
        self.asm.call(KernelHelper::RingOutput);
        self.count_lost_unless_done();
        self.asm.finish_at(self.out)
    }

    /// Stores the calling thread as the key.
    fn store_thread(&mut self) {
        self.asm.call(KernelHelper::ProcessAndThread);
        self.asm.store(Width::B8, R10, stack!(SyncStack, key), R0);
    }

    /// Counts one lost sync unless `R0` shows that the last call succeeded.
    fn count_lost_unless_done(&mut self) {
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.store_constant(Width::B4, R10, stack!(SyncStack, index), 0);
        self.asm.pass_map_and_key(self.lost, stack!(SyncStack, index));
        self.asm.call(KernelHelper::MapLookup);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, 0, R1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    /// Returns `None`, with a message, if the kernel refuses.
    fn events() -> Option<SyncEvents> {
        match SyncEvents::open() {
            Err(TraceError::Refused { .. }) => {
                crate::testing::skip("syncs are seen by root");
                None
            }
            other => Some(other.unwrap()),
        }
    }

    fn own(events: &mut SyncEvents, fd: i32) -> Vec<SyncEvent> {
        let mut all = Vec::new();
        events.drain(&mut |event| all.push(event));
        all.retain(|event| event.process == std::process::id() && event.fd == fd);
        all
    }

    #[test]
    fn each_call_that_waits_is_seen_with_its_descriptor_and_times() {
        let Some(mut events) = events() else { return };
        let dir = pagekeeper_testing::disk_dir();
        let file = std::fs::File::create(dir.path().join("log")).unwrap();
        rustix::io::write(&file, &[1; 4096]).unwrap();
        let before = SyncEvents::now();
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        rustix::fs::syncfs(&file).unwrap();
        let after = SyncEvents::now();
        let seen = own(&mut events, file.as_raw_fd());
        let calls: Vec<SyncCall> = seen.iter().map(|event| event.call).collect();
        assert_eq!(calls, [SyncCall::Fdatasync, SyncCall::Fsync, SyncCall::Syncfs], "{seen:?}");
        let mut then = before;
        for event in seen {
            assert!(event.began >= then && event.ended >= Some(event.began), "{event:?}");
            then = event.ended.unwrap();
        }
        assert!(then <= after);
        assert_eq!(events.lost().unwrap(), 0);
    }

    #[test]
    fn the_current_call_of_a_thread_is_parsed() {
        let number = SyncCall::Fdatasync.number();
        let line = format!("{number} 0x7 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f00\n");
        assert_eq!(parse_syscall(&line), Some((SyncCall::Fdatasync, 7)));
        let range = SyncCall::SyncFileRange.number();
        assert_eq!(parse_syscall(&format!("{range} 0x7 0x0 0x0 0x2 0x0 0x0 0x7ffe 0x7f00")), None);
        let waits = format!("{range} 0x7 0x0 0x0 0x7 0x0 0x0 0x7ffe 0x7f00");
        assert_eq!(parse_syscall(&waits), Some((SyncCall::SyncFileRange, 7)));
        for other in ["running", "-1 0x7ffe 0x7f00", "", "0 0x7"] {
            assert_eq!(parse_syscall(other), None, "{other}");
        }
    }

    #[test]
    fn a_waiting_call_has_its_descriptor() {
        let value = SyncStart::bytes(Duration::from_nanos(5), 9, SyncCall::Fsync);
        let key = ((u64::from(std::process::id()) << 32) | u64::from(std::process::id())).to_ne_bytes();
        // This thread is in no sync.
        assert_eq!(SyncStart::parse(&key, &value), None);
        let Some(events) = events() else { return };
        assert!(events.waiting().unwrap().iter().all(|event| event.process != std::process::id()));
    }
}
