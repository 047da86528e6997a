//! The programs that count requests to block devices.
//!
//! Invariants: each program reads fields of one request and of the current task, and changes only
//! the tables. A request's entry is made when it begins and deleted when it is done. The verifier
//! has the last word.

use crate::asm::{
    AluOp, Assembler, AssemblyError, Condition, KernelHelper, Label, Register, Width, offset, size, stack,
};
use crate::page_events::btf::{Btf, BtfError};
use crate::sys::Instruction;
use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

/// The descriptors of the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskTableFds {
    /// Followed processes, by number.
    pub(super) followed: i32,
    /// Requests in flight, by address: [`RequestEntry`].
    pub(super) requests: i32,
    /// The [`DiskCounters`] of each disk.
    pub(super) disks: i32,
    /// Bytes read, by followed process and disk.
    pub(super) readers: i32,
    /// The number of requests that found no room in the tables.
    pub(super) lost: i32,
}

/// A tracepoint and its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskTracepoint {
    /// A request is made, or comes out of a throttle: the first argument.
    Begun,
    /// Ends of requests of a driver with a queue: merged requests, those of the first argument, end
    /// together.
    EndedTogether,
    /// The end of a request of a driver without a queue: the second argument.
    Ended,
}

impl DiskTracepoint {
    /// Returns the tracepoint, and the program's name.
    pub(super) fn names(self) -> (&'static std::ffi::CStr, &'static str) {
        match self {
            Self::Begun => (c"block_bio_queue", "pk_begun"),
            Self::EndedTogether => (c"block_rq_complete", "pk_ended_rq"),
            Self::Ended => (c"block_bio_complete", "pk_ended"),
        }
    }
}

/// Offsets of fields in bytes, and flags of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BioOffsets {
    device: u32,
    operation: u32,
    length: u32,
    next: u32,
    /// From merged requests to the first of them.
    merged: u32,
    device_disk: u32,
    disk_major: u32,
    disk_minor: u32,
    task_flags: u32,
    /// Flags of a write that somebody waits for.
    sync: u32,
    /// The flag of a read that nobody waits for.
    read_ahead: u32,
}

impl BioOffsets {
    pub(super) fn of(btf: &Btf<'_>) -> Result<Self, BtfError> {
        let bit = |name| btf.constant(name).map(|bit| 1_u32.checked_shl(bit).unwrap_or_default());
        Ok(Self {
            device: btf.offset("bio", &["bi_bdev"])?,
            operation: btf.offset("bio", &["bi_opf"])?,
            length: btf.offset("bio", &["bi_iter", "bi_size"])?,
            next: btf.offset("bio", &["bi_next"])?,
            merged: btf.offset("request", &["bio"])?,
            device_disk: btf.offset("block_device", &["bd_disk"])?,
            disk_major: btf.offset("gendisk", &["major"])?,
            disk_minor: btf.offset("gendisk", &["first_minor"])?,
            task_flags: btf.offset("task_struct", &["flags"])?,
            sync: bit("__REQ_SYNC")? | bit("__REQ_PREFLUSH")? | bit("__REQ_FUA")?,
            read_ahead: bit("__REQ_RAHEAD")?,
        })
    }
}

/// The entry of a request in flight.
#[repr(C)]
pub(super) struct RequestEntry {
    /// The time when it began, in nanoseconds.
    began: u64,
    bytes: u64,
    disk: u32,
    kind: u32,
}

/// The kinds of requests that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Read = 0,
    Write = 1,
    /// A write that somebody waits for.
    Sync = 2,
    /// A request of a kernel worker that somebody waits for.
    Worker = 3,
}

/// The counters of a disk, by kind. Each number of two bits is a valid kind.
pub(super) type DiskCounters = [KindCounters; 4];

/// The counters of one kind of request.
#[repr(C)]
pub(super) struct KindCounters {
    pub(super) begun: u64,
    pub(super) done: u64,
    pub(super) bytes: u64,
    pub(super) waited_ns: u64,
}

/// The bits of a request's flags that hold the operation.
const OP_MASK: i32 = 0xff;
const REQ_OP_WRITE: i32 = 1;
/// A kernel thread, and one that works for others (`PF_KTHREAD` and `PF_WQ_WORKER` of
/// `include/linux/sched.h`).
const KERNEL_THREAD_FLAG: i32 = 0x0020_0000;
const KERNEL_WORKER_FLAG: i32 = 0x20;
/// Maximum number of merged requests that count as done together. Further ones count as done once
/// their memory is reused for another request.
const MERGED_REQUESTS_MAX: usize = 8;

/// The stack of a program.
#[repr(C)]
struct DiskStack {
    /// A new value, all zero.
    zeros: DiskCounters,
    reader: ReaderKey,
    number: u64,
    /// The request's address.
    address: u64,
    entry: RequestEntry,
}

/// Key of the table of bytes read.
#[repr(C)]
struct ReaderKey {
    process: u32,
    disk: u32,
}

/// Returns the program of a point.
pub(super) fn program(
    point: DiskTracepoint,
    tables: DiskTableFds,
    offsets: &BioOffsets,
) -> Result<Vec<Instruction>, AssemblyError> {
    let mut writer = DiskProgramWriter::new(tables, offsets);
    match point {
        DiskTracepoint::Begun => writer.handle_beginning(),
        DiskTracepoint::EndedTogether => writer.handle_merged_ends(),
        DiskTracepoint::Ended => {
            writer.asm.load(Width::B8, R6, R1, 8);
            writer.count_end();
        }
    }
    writer.asm.finish_at(writer.out)
}

struct DiskProgramWriter<'a> {
    asm: Assembler,
    tables: DiskTableFds,
    at: &'a BioOffsets,
    /// The end of the program.
    out: Label,
}

impl<'a> DiskProgramWriter<'a> {
    fn new(tables: DiskTableFds, at: &'a BioOffsets) -> Self {
        let mut asm = Assembler::new();
        let out = asm.label();
        Self { asm, tables, at, out }
    }

    /// Copies `size` bytes of the kernel's memory at `base + offset` to the stack. Loses `R0` to
    /// `R5`.
    fn read_kernel(&mut self, to: i16, size: i32, base: Register, offset: u32) {
        self.asm.set(R3, base);
        self.asm.alu_constant(AluOp::Add, R3, offset.cast_signed());
        self.asm.load_address(R1, to);
        self.asm.constant(R2, size);
        self.asm.call(KernelHelper::ReadKernel);
    }

    /// `dst` = the number of `size` bytes, the lowest first, of the kernel's memory at
    /// `base + offset`.
    fn read_number(&mut self, dst: Register, size: i32, base: Register, offset: u32) {
        self.asm.store_constant(Width::B8, R10, stack!(DiskStack, number), 0);
        self.read_kernel(stack!(DiskStack, number), size, base, offset);
        self.asm.load(Width::B8, dst, R10, stack!(DiskStack, number));
    }

    /// `R0` = address of the value of the key on the stack, or null.
    fn look_up(&mut self, map: i32, key: i16) {
        self.asm.pass_map_and_key(map, key);
        self.asm.call(KernelHelper::MapLookup);
    }

    /// Sets the value of a key, both on the stack. `R0` is 0 if there was room.
    fn update(&mut self, map: i32, key: i16, value: i16) {
        self.asm.pass_map_and_key(map, key);
        self.asm.load_address(R3, value);
        self.asm.constant(R4, 0);
        self.asm.call(KernelHelper::MapUpdate);
    }

    /// `R0` = address of the value of the key, which is created with zeros if there is none. Jumps
    /// to `out` if there is no room.
    fn look_up_or_make(&mut self, map: i32, key: i16, value_bytes: i16) {
        let is_there = self.asm.label();
        self.look_up(map, key);
        self.asm.jump_if_constant(Condition::NotEqual, R0, 0, is_there);
        for at in (0..value_bytes).step_by(8) {
            self.asm.store_constant(Width::B8, R10, stack!(DiskStack, zeros) + at, 0);
        }
        self.update(map, key, stack!(DiskStack, zeros));
        self.look_up(map, key);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.bind(is_there);
    }

    /// Handles a request that is made, or comes out of a throttle: the first argument.
    fn handle_beginning(&mut self) {
        let at = *self.at;
        let (is_kernels, is_others) = (self.asm.label(), self.asm.label());
        self.asm.load(Width::B8, R6, R1, 0);
        self.read_number(R8, 4, R6, at.length);
        self.asm.call(KernelHelper::ProcessAndThread);
        self.asm.alu_constant(AluOp::ShiftRight, R0, 32);
        self.asm.jump_if_constant(Condition::Equal, R0, std::process::id().cast_signed(), self.out);
        self.asm.store(Width::B4, R10, stack!(DiskStack, reader.process), R0);
        self.load_kind();
        self.store_disk();
        self.asm.call(KernelHelper::Task);
        self.asm.set(R9, R0);
        self.read_number(R9, 4, R9, at.task_flags);
        self.asm.set(R1, R9);
        self.asm.alu_constant(AluOp::And, R1, KERNEL_THREAD_FLAG);
        self.asm.jump_if_constant(Condition::NotEqual, R1, 0, is_kernels);
        self.look_up(self.tables.followed, stack!(DiskStack, reader.process));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, is_others);
        self.count_followed_read();
        self.asm.jump(self.out);

        self.asm.bind(is_kernels);
        self.asm.alu_constant(AluOp::And, R9, KERNEL_WORKER_FLAG);
        self.asm.jump_if_constant(Condition::Equal, R9, 0, self.out);
        self.asm.jump_if_constant(Condition::Equal, R7, RequestKind::Write as i32, self.out);
        self.read_number(R1, 4, R6, at.operation);
        self.asm.alu_constant(AluOp::And, R1, at.read_ahead.cast_signed());
        self.asm.jump_if_constant(Condition::NotEqual, R1, 0, self.out);
        self.asm.constant(R7, RequestKind::Worker as i32);

        self.asm.bind(is_others);
        self.count_beginning();
    }

    /// `R7` = the kind of the request at `R6`. Jumps to `out` if it neither moves nor flushes data.
    fn load_kind(&mut self) {
        let is_known = self.asm.label();
        self.read_number(R1, 4, R6, self.at.operation);
        self.asm.set(R2, R1);
        self.asm.alu_constant(AluOp::And, R2, OP_MASK);
        self.asm.constant(R7, RequestKind::Read as i32);
        self.asm.jump_if_constant(Condition::Equal, R2, 0, is_known);
        self.asm.jump_if_constant(Condition::NotEqual, R2, REQ_OP_WRITE, self.out);
        self.asm.constant(R7, RequestKind::Write as i32);
        self.asm.alu_constant(AluOp::And, R1, self.at.sync.cast_signed());
        self.asm.jump_if_constant(Condition::Equal, R1, 0, is_known);
        self.asm.constant(R7, RequestKind::Sync as i32);
        self.asm.bind(is_known);
    }

    /// Stores the number of the disk of the request at `R6` in the entry, and after the process.
    fn store_disk(&mut self) {
        let at = *self.at;
        self.read_number(R9, 8, R6, at.device);
        self.asm.set(R1, R9);
        self.read_number(R9, 8, R1, at.device_disk);
        self.asm.set(R1, R9);
        self.read_number(R1, 4, R1, at.disk_major);
        self.asm.alu_constant(AluOp::ShiftLeft, R1, 20);
        self.asm.store(Width::B8, R10, stack!(DiskStack, address), R1);
        self.read_number(R1, 4, R9, at.disk_minor);
        self.asm.load(Width::B8, R2, R10, stack!(DiskStack, address));
        self.asm.alu(AluOp::Add, R1, R2);
        self.asm.store(Width::B4, R10, stack!(DiskStack, entry.disk), R1);
        self.asm.store(Width::B4, R10, stack!(DiskStack, reader.disk), R1);
    }

    /// Adds the bytes of a followed process's read, in `R8`.
    fn count_followed_read(&mut self) {
        self.asm.jump_if_constant(Condition::NotEqual, R7, RequestKind::Read as i32, self.out);
        self.look_up_or_make(self.tables.readers, stack!(DiskStack, reader), 8);
        self.asm.atomic_add(R0, 0, R8);
    }

    /// Counts the beginning of the request at `R6`, of kind `R7` and `R8` bytes, made by others.
    fn count_beginning(&mut self) {
        let has_room = self.asm.label();
        self.asm.store(Width::B8, R10, stack!(DiskStack, address), R6);
        self.asm.store(Width::B4, R10, stack!(DiskStack, entry.kind), R7);
        self.asm.store(Width::B8, R10, stack!(DiskStack, entry.bytes), R8);
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.store(Width::B8, R10, stack!(DiskStack, entry.began), R0);
        // An existing entry belongs to a request whose end was not seen.
        self.look_up(self.tables.requests, stack!(DiskStack, address));
        self.asm.set(R9, R0);
        self.update(self.tables.requests, stack!(DiskStack, address), stack!(DiskStack, entry));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, has_room);
        self.count_lost();
        self.asm.jump(self.out);
        self.asm.bind(has_room);
        self.asm.jump_if_constant(Condition::NotEqual, R9, 0, self.out);
        self.look_up_or_make(self.tables.disks, stack!(DiskStack, entry.disk), size!(DiskCounters));
        self.address_kind_counters();
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, offset!(KindCounters, begun), R1);
    }

    /// `R0` = address of the counters of kind `R7`, among those of the disk at `R0`.
    fn address_kind_counters(&mut self) {
        self.asm.alu_constant(AluOp::And, R7, 3);
        const { assert!(size_of::<KindCounters>() == 1 << 5) };
        self.asm.alu_constant(AluOp::ShiftLeft, R7, 5);
        self.asm.alu(AluOp::Add, R0, R7);
    }

    fn count_lost(&mut self) {
        self.asm.store_constant(Width::B4, R10, stack!(DiskStack, number), 0);
        self.look_up(self.tables.lost, stack!(DiskStack, number));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, 0, R1);
    }

    /// Handles the end of merged requests: those of the first argument.
    fn handle_merged_ends(&mut self) {
        self.asm.load(Width::B8, R6, R1, 0);
        self.read_number(R6, 8, R6, self.at.merged);
        for _ in 0..MERGED_REQUESTS_MAX {
            self.asm.jump_if_constant(Condition::Equal, R6, 0, self.out);
            self.count_end();
            self.read_number(R6, 8, R6, self.at.next);
        }
    }

    /// Counts the end of the request at `R6`.
    fn count_end(&mut self) {
        let goes_on = self.asm.label();
        self.asm.store(Width::B8, R10, stack!(DiskStack, address), R6);
        self.look_up(self.tables.requests, stack!(DiskStack, address));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, goes_on);
        self.asm.load(Width::B8, R9, R0, offset!(RequestEntry, began));
        self.asm.load(Width::B8, R8, R0, offset!(RequestEntry, bytes));
        self.asm.load(Width::B4, R7, R0, offset!(RequestEntry, kind));
        self.asm.load(Width::B4, R1, R0, offset!(RequestEntry, disk));
        self.asm.store(Width::B4, R10, stack!(DiskStack, reader), R1);
        self.asm.map(R1, self.tables.requests);
        self.asm.load_address(R2, stack!(DiskStack, address));
        self.asm.call(KernelHelper::MapDelete);
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.alu(AluOp::Sub, R0, R9);
        self.asm.set(R9, R0);
        self.look_up(self.tables.disks, stack!(DiskStack, reader));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, goes_on);
        self.address_kind_counters();
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, offset!(KindCounters, done), R1);
        self.asm.atomic_add(R0, offset!(KindCounters, bytes), R8);
        self.asm.atomic_add(R0, offset!(KindCounters, waited_ns), R9);
        self.asm.bind(goes_on);
    }
}
