//! bpf(2) and `perf_event_open(2)`: maps of the kernel, programs for tracepoints, and the
//! attachments between the two.
//!
//! Invariants: everything that is made here depends on descriptors (close-on-exec): when they
//! close, however the process ends, the kernel detaches the program and frees the maps. Nothing is
//! pinned. A map's keys and values have the size it was made with, and none is of a per-CPU kind,
//! so the kernel reads and writes exactly that many bytes. Fails with the kernel's own error
//! number.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::bpf::locked::without_limit;
use pagekeeper_text::unescaped_bytes;
use rustix::io::Errno;

/// One instruction of eight bytes (`struct bpf_insn`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// Destination and source, four bits each, in the order of the machine's bit fields.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

/// The kind of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapKind {
    /// A hash table whose entries are all allocated when it is made.
    Hash = 1,
    /// An array of values, all zero at first, that are never deleted.
    Array = 2,
    /// A hash table that forgets what was used least recently.
    RecentHash = 9,
    /// Values by the longest prefix of a key: its length in bits (4 bytes), then its bytes.
    LongestPrefix = 11,
    /// A ring buffer of `entries` bytes (Linux 5.8), without keys and values.
    Ring = 27,
}

impl MapKind {
    fn flags(self) -> u32 {
        match self {
            Self::Hash | Self::Array | Self::RecentHash | Self::Ring => 0,
            // The kernel makes such tables only in this way.
            Self::LongestPrefix => BPF_F_NO_PREALLOC,
        }
    }
}

/// The kind of event at which a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// A tracepoint, with its record.
    Tracepoint,
    /// A tracepoint, with the arguments of the kernel's own call.
    RawTracepoint,
    /// The same with the types of the arguments, so that the program reads the kernel's structs by
    /// plain loads (Linux 5.5). The number is that of the tracepoint's type.
    TypedTracepoint(u32),
}

impl ProgramKind {
    /// Returns the number of the kind, what it is attached to, and the number of its type.
    fn numbers(self) -> (u32, u32, u32) {
        match self {
            Self::Tracepoint => (5, 0, 0),
            Self::RawTracepoint => (17, 0, 0),
            Self::TypedTracepoint(type_id) => (26, BPF_TRACE_RAW_TP, type_id),
        }
    }
}

const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_TRACE_RAW_TP: u32 = 23;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_ENABLE: u32 = 0x2400;
const PERF_EVENT_IOC_SET_BPF: u32 = 0x4004_2408;

const OBJECT_NAME_BYTES: usize = 16;

#[derive(Clone, Copy)]
enum BpfCommand {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    #[cfg(test)]
    ProgFdById = 13,
    ObjectInfo = 15,
    RawTracepointOpen = 17,
    MapTake = 21,
    MapLookupBatch = 24,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; OBJECT_NAME_BYTES],
}

#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct MapBatch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; OBJECT_NAME_BYTES],
    device: u32,
    attach_kind: u32,
    /// Debug information, of which there is none.
    others: [u32; 9],
    attach_type_id: u32,
}

#[repr(C)]
struct ObjectInfo {
    fd: u32,
    len: u32,
    info: u64,
}

/// The first fields of `struct bpf_prog_info`, up to the last one of interest.
#[repr(C)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    others: [u64; 25],
    /// The number of times that it was not run because another program was running on that
    /// processor (Linux 5.12; 6.7 for tracepoints).
    recursion_misses: u64,
}

/// The part of `struct perf_event_attr` that every kernel knows (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct PerfAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    breakpoint: u64,
}

/// bpf(2). The result is a descriptor for the commands that make one, else 0.
///
/// # Safety
/// `attributes` is the part of `union bpf_attr` that `command` reads; each address in it is of live
/// memory of this process of the size that the command reads or, where it writes, may write.
unsafe fn bpf<T>(command: BpfCommand, attributes: &mut T) -> Result<i32, Errno> {
    // SAFETY: the kernel reads (and for some commands writes back) `size_of::<T>()` bytes of a
    // live, exclusively borrowed, `repr(C)` value; what it points to is the caller's promise.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_int, std::ptr::from_mut(attributes), size_of::<T>())
    };
    i32::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(last_errno)
}

/// Takes ownership of a descriptor that a call has just returned.
fn take_ownership(fd: i32) -> OwnedFd {
    // SAFETY: only called with the fresh result of a call that gives its caller a new descriptor;
    // nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn raw_fd(fd: impl AsFd) -> u32 {
    // An open descriptor is never negative.
    fd.as_fd().as_raw_fd().cast_unsigned()
}

fn address<T>(memory: &[T]) -> u64 {
    memory.as_ptr() as u64
}

fn address_mut<T>(memory: &mut [T]) -> u64 {
    memory.as_mut_ptr() as u64
}

/// Returns the name as `bpftool` shows it: at most 15 bytes, letters, digits and underscores.
fn object_name(name: &str) -> [u8; OBJECT_NAME_BYTES] {
    let mut bytes = [0; OBJECT_NAME_BYTES];
    for (to, from) in bytes[..OBJECT_NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() { from } else { b'_' };
    }
    bytes
}

/// Converts a length for the kernel.
fn kernel_length(len: usize) -> Result<u32, Errno> {
    u32::try_from(len).map_err(|_| Errno::TOOBIG)
}

/// A map in the kernel, freed when dropped and no program uses it.
#[derive(Debug)]
pub(crate) struct BpfMap {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

impl BpfMap {
    /// Makes a map of at most `entries` entries.
    pub(crate) fn create(
        kind: MapKind,
        name: &str,
        key_size: usize,
        value_size: usize,
        entries: u32,
    ) -> Result<Self, Errno> {
        let mut attributes = MapCreate {
            kind: kind as u32,
            key_size: kernel_length(key_size)?,
            value_size: kernel_length(value_size)?,
            max_entries: entries,
            flags: kind.flags(),
            inner_map_fd: 0,
            numa_node: 0,
            name: object_name(name),
        };
        let fd = without_limit(|| {
            // SAFETY: the attributes are those of the command and hold no address.
            unsafe { bpf(BpfCommand::MapCreate, &mut attributes) }
        })?;
        Ok(Self { fd: take_ownership(fd), key_size, value_size })
    }

    /// Returns the descriptor's number, as instructions name it.
    pub(crate) fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Returns the descriptor, for waiting and for mapping.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the sizes of a key and of a value, in bytes.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.key_size, self.value_size)
    }

    /// Runs one of the commands on a single entry. `value` has the size that the command reads or
    /// writes.
    fn element(&self, command: BpfCommand, key: &[u8], value: u64) -> Result<(), Errno> {
        assert_eq!(key.len(), self.key_size, "a key of the map's size");
        let mut attributes =
            MapElement { map_fd: raw_fd(&self.fd), padding: 0, key: address(key), value, flags: 0 };
        // SAFETY: the attributes are those of the four commands this is called with; the key has
        // the size the kernel reads, as asserted; `value` is the address of a live buffer of the
        // value's size, exclusively borrowed where the command writes it, as each of the callers
        // below asserts (a deletion uses no value).
        unsafe { bpf(command, &mut attributes).map(drop) }
    }

    /// Copies an entry's value out. Returns false if there is none.
    pub(crate) fn lookup(&self, key: &[u8], value: &mut [u8]) -> Result<bool, Errno> {
        assert_eq!(value.len(), self.value_size, "a value of the map's size");
        as_found(self.element(BpfCommand::MapLookup, key, address_mut(value)))
    }

    /// Copies an entry's value out and deletes it, atomically (Linux 5.14 for hash tables). Returns
    /// false if there is none.
    pub(crate) fn take(&self, key: &[u8], value: &mut [u8]) -> Result<bool, Errno> {
        assert_eq!(value.len(), self.value_size, "a value of the map's size");
        as_found(self.element(BpfCommand::MapTake, key, address_mut(value)))
    }

    /// Sets an entry's value.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        assert_eq!(value.len(), self.value_size, "a value of the map's size");
        self.element(BpfCommand::MapUpdate, key, address(value))
    }

    /// Deletes an entry. Returns false if there is none.
    pub(crate) fn delete(&self, key: &[u8]) -> Result<bool, Errno> {
        as_found(self.element(BpfCommand::MapDelete, key, 0))
    }

    /// Returns whether there is an entry.
    pub(crate) fn has_entries(&self) -> Result<bool, Errno> {
        let mut first = [0_u8; 64];
        assert!(self.key_size <= first.len(), "there is room for a key");
        let value = address_mut(&mut first);
        let mut attributes = MapElement { map_fd: raw_fd(&self.fd), padding: 0, key: 0, value, flags: 0 };
        // SAFETY: the attributes are those of the command. Without a key the kernel writes the
        // first one, for which there is room, as asserted.
        as_found(unsafe { bpf(BpfCommand::MapNextKey, &mut attributes).map(drop) })
    }

    /// Copies out as many entries as `keys` and `values` have room for (Linux 5.6). Returns their
    /// number, and whether these were the last. `cursor` holds the place to continue; it is `None`
    /// at first.
    pub(crate) fn lookup_batch(
        &self,
        cursor: &mut Option<[u8; 64]>,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> Result<(usize, bool), Errno> {
        let room = (keys.len() / self.key_size).min(values.len() / self.value_size);
        let mut next = [0_u8; 64];
        assert!(self.key_size <= next.len(), "a cursor holds a key");
        let mut attributes = MapBatch {
            in_batch: cursor.as_ref().map_or(0, |cursor| address(cursor)),
            out_batch: address_mut(&mut next),
            keys: address_mut(keys),
            values: address_mut(values),
            count: kernel_length(room)?,
            map_fd: raw_fd(&self.fd),
            element_flags: 0,
            flags: 0,
        };
        // SAFETY: the attributes are those of the command. The kernel reads and writes a cursor of
        // four bytes (a hash table) or of a key's size (an array), and 64 bytes are there, no less
        // than a key as asserted; it writes at most `count` keys and values of the map's sizes, and
        // both buffers have room for `room` of them.
        let result = unsafe { bpf(BpfCommand::MapLookupBatch, &mut attributes) };
        let copied = (attributes.count as usize).min(room);
        match result {
            Ok(_) => {
                *cursor = Some(next);
                Ok((copied, false))
            }
            Err(Errno::NOENT) => Ok((copied, true)),
            Err(errno) => Err(errno),
        }
    }
}

fn as_found(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// A program in the kernel that has passed the verifier.
#[derive(Debug)]
pub(crate) struct BpfProgram {
    fd: OwnedFd,
}

/// A program that was not loaded: the error, and the verifier's log, if it came to that.
#[derive(Debug)]
pub(crate) struct LoadError {
    pub(crate) errno: Errno,
    pub(crate) log: String,
}

impl BpfProgram {
    /// Loads a program.
    pub(crate) fn load(kind: ProgramKind, name: &str, code: &[Instruction]) -> Result<Self, LoadError> {
        // The verifier's log is requested only after a failure: writing it makes loading slower.
        let errno = match Self::load_logging(kind, name, code, &mut []) {
            Ok(program) => return Ok(program),
            Err(errno) => errno,
        };
        let mut log = vec![0_u8; 256 * 1024];
        if let Ok(program) = Self::load_logging(kind, name, code, &mut log) {
            return Ok(program);
        }
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        Err(LoadError { errno, log: unescaped_bytes(&log[..end]).trim_end().to_owned() })
    }

    fn load_logging(
        kind: ProgramKind,
        name: &str,
        code: &[Instruction],
        log: &mut [u8],
    ) -> Result<Self, Errno> {
        let (kind, attach_kind, attach_type_id) = kind.numbers();
        let mut attributes = ProgLoad {
            kind,
            instructions: kernel_length(code.len())?,
            code: address(code),
            // Some helpers require a program with a licence that the kernel counts as
            // GPL-compatible.
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: kernel_length(log.len())?,
            log: if log.is_empty() { 0 } else { address_mut(log) },
            kernel_version: 0,
            flags: 0,
            name: object_name(name),
            device: 0,
            attach_kind,
            others: [0; 9],
            attach_type_id,
        };
        let fd = without_limit(|| {
            // SAFETY: the attributes are those of the command: `instructions` instructions of eight
            // bytes and a string with its end are read, at most `log_size` bytes of the log are
            // written; all live through the call.
            unsafe { bpf(BpfCommand::ProgLoad, &mut attributes) }
        })?;
        Ok(Self { fd: take_ownership(fd) })
    }

    fn info(&self) -> Result<ProgramInfo, Errno> {
        let mut info = [ProgramInfo { kind: 0, id: 0, others: [0; 25], recursion_misses: 0 }];
        let mut attributes = ObjectInfo {
            fd: raw_fd(&self.fd),
            len: kernel_length(size_of::<ProgramInfo>())?,
            info: address_mut(&mut info),
        };
        // SAFETY: the attributes are those of the command. The kernel writes at most `len` bytes
        // into the live `info`; it also reads it, as counts of and addresses for arrays to fill,
        // and all of those are zero: none.
        unsafe { bpf(BpfCommand::ObjectInfo, &mut attributes)? };
        let [info] = info;
        Ok(info)
    }

    /// Returns how often the kernel did not run it because another program was running on the same
    /// processor; 0 if the kernel does not count that.
    pub(crate) fn skipped(&self) -> Result<u64, Errno> {
        Ok(self.info()?.recursion_misses)
    }

    /// Returns the number by which others find it.
    #[cfg(test)]
    pub(crate) fn id(&self) -> Result<u32, Errno> {
        Ok(self.info()?.id)
    }

    /// Returns whether a program of this number is in the kernel.
    #[cfg(test)]
    pub(crate) fn exists(id: u32) -> Result<bool, Errno> {
        let mut attributes = [id, 0, 0];
        // SAFETY: the attributes are those of the command (a number, a next number, flags) and hold
        // no address.
        let result = unsafe { bpf(BpfCommand::ProgFdById, &mut attributes) };
        as_found(result.map(|fd| drop(take_ownership(fd))))
    }

    /// Runs the program at each event of a tracepoint, on all processors, until the result is
    /// dropped.
    ///
    /// A tracepoint's programs run wherever the event happens; `cpu` can be any that is online, and
    /// only does the accounting.
    pub(crate) fn attach(&self, tracepoint: u64, cpu: u32) -> Result<ProgramAttachment, AttachError> {
        let attributes = PerfAttributes {
            kind: PERF_TYPE_TRACEPOINT,
            size: 64,
            config: tracepoint,
            sample_period: 1,
            ..PerfAttributes::default()
        };
        let (all_tasks, no_group) = (-1, -1);
        // SAFETY: the kernel reads `size` bytes of the live `attributes`, which has that size; the
        // rest are integers.
        let result = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(&attributes),
                all_tasks,
                cpu,
                no_group,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let fd = i32::try_from(result)
            .ok()
            .filter(|result| *result >= 0)
            .ok_or_else(|| AttachError { call: "perf_event_open", errno: last_errno() })?;
        let event = take_ownership(fd);
        ioctl(&event, PERF_EVENT_IOC_SET_BPF, self.fd.as_raw_fd())
            .map_err(|errno| AttachError { call: "ioctl(PERF_EVENT_IOC_SET_BPF)", errno })?;
        ioctl(&event, PERF_EVENT_IOC_ENABLE, 0)
            .map_err(|errno| AttachError { call: "ioctl(PERF_EVENT_IOC_ENABLE)", errno })?;
        Ok(ProgramAttachment { _event: event })
    }
}

/// The attributes for attaching a program to a raw tracepoint.
#[repr(C)]
struct RawTracepoint {
    name: u64,
    program_fd: u32,
    padding: u32,
}

impl BpfProgram {
    /// Runs a program at each event of a tracepoint, until the result is dropped. A program of
    /// [`ProgramKind::TypedTracepoint`] has its tracepoint already: `None`.
    pub(crate) fn attach_raw(&self, tracepoint: Option<&CStr>) -> Result<ProgramAttachment, AttachError> {
        let name = tracepoint.map_or(0, |name| name.as_ptr() as u64);
        let mut attributes = RawTracepoint { name, program_fd: raw_fd(&self.fd), padding: 0 };
        // SAFETY: the attributes are those of the command: the name is absent or a string with its
        // end, which lives through the call.
        let fd = unsafe { bpf(BpfCommand::RawTracepointOpen, &mut attributes) }
            .map_err(|errno| AttachError { call: "bpf(RAW_TRACEPOINT_OPEN)", errno })?;
        Ok(ProgramAttachment { _event: take_ownership(fd) })
    }
}

/// A failed attachment, with the call that failed.
#[derive(Debug)]
pub(crate) struct AttachError {
    pub(crate) call: &'static str,
    pub(crate) errno: Errno,
}

/// Makes one of the two requests on perf events that take an integer.
fn ioctl(event: &OwnedFd, request: u32, argument: i32) -> Result<(), Errno> {
    #[allow(
        clippy::cast_lossless,
        clippy::cast_possible_wrap,
        reason = "the same 32 bits, in the type that each C library has for them"
    )]
    let request = request as libc::Ioctl;
    // SAFETY: both requests take an integer by value and touch no memory of this process.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request, argument) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// A program at a tracepoint; detached when dropped.
#[derive(Debug)]
pub(crate) struct ProgramAttachment {
    _event: OwnedFd,
}

/// Returns the calling thread's `errno`.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
