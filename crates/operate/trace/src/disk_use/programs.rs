//! The programs that count requests to block devices.
//!
//! Invariants: each program reads fields of one request and of the current task, and changes only the tables.
//! A request's entry is made when it begins and deleted when it is done. The verifier has the last word.

use crate::asm::{AsmError, Assembler, Helper, If, Label, Op, Reg, Width};
use crate::page_events::btf::{Btf, BtfError};
use crate::sys::Instruction;
use Reg::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

/// The descriptors of the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables {
    /// Followed processes, by number.
    pub(super) followed: i32,
    /// Requests in flight, by address: [`in_flight`].
    pub(super) requests: i32,
    /// The [`counters`] of each disk.
    pub(super) disks: i32,
    /// Bytes read, by followed process and disk.
    pub(super) readers: i32,
    /// The number of requests without room.
    pub(super) lost: i32,
}

/// A tracepoint and its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    /// A request is made, or comes out of a throttle: the first argument.
    Begun,
    /// Ends of requests of a driver with a queue: merged requests, those of the first argument, end together.
    EndedTogether,
    /// The end of a request of a driver without a queue: the second argument.
    Ended,
}

impl Point {
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

/// The entry of a request in flight: offsets in bytes.
pub(super) mod in_flight {
    /// The time when it began, in nanoseconds.
    pub(super) const BEGUN: i16 = 0;
    pub(super) const LENGTH: i16 = 8;
    /// The disk.
    pub(super) const DISK: i16 = 16;
    pub(super) const OP: i16 = 20;
    pub(in crate::disk_use) const SIZE: u8 = 24;
}

/// The counters of a disk: offsets in bytes. There are four for each kind of request.
pub(super) mod counters {
    pub(in crate::disk_use) const READ: usize = 0;
    pub(in crate::disk_use) const WRITE: usize = 1;
    pub(in crate::disk_use) const SYNC: usize = 2;
    pub(in crate::disk_use) const OP_BYTES: usize = 32;
    /// The kinds, and an unused one, so that two bits of a number are always a kind.
    pub(in crate::disk_use) const BYTES: usize = 4 * OP_BYTES;
    pub(in crate::disk_use) const BEGUN: usize = 0;
    pub(in crate::disk_use) const DONE: usize = 8;
    pub(in crate::disk_use) const LENGTH: usize = 16;
    pub(in crate::disk_use) const WAITED: usize = 24;
}

/// The bits of a request's flags that hold the operation.
const OP_MASK: i32 = 0xff;
const REQ_OP_WRITE: i32 = 1;
/// A kernel thread, and one that works for others (`PF_KTHREAD` and `PF_WQ_WORKER` of
/// `include/linux/sched.h`).
const KERNEL_THREAD: i32 = 0x0020_0000;
const KERNEL_WORKER: i32 = 0x20;
/// The most merged requests that count as done together. Further ones count as done once their memory is
/// reused for another request.
const MERGED_MAX: usize = 8;

/// The stack: the entry of a request, its address, a number, a process and disk, and empty counters.
const ENTRY: i16 = -24;
const ADDRESS: i16 = ENTRY - 8;
const NUMBER: i16 = ADDRESS - 8;
const READER: i16 = NUMBER - 8;
const EMPTY: i16 = READER - 128;

/// Returns the program of a point.
pub(super) fn program(
    point: Point,
    tables: Tables,
    offsets: &BioOffsets,
) -> Result<Vec<Instruction>, AsmError> {
    let mut writer = Writer::new(tables, offsets);
    match point {
        Point::Begun => writer.begun(),
        Point::EndedTogether => writer.ended_together(),
        Point::Ended => {
            writer.asm.load(Width::B8, R6, R1, 8);
            writer.ended();
        }
    }
    writer.finish()
}

struct Writer<'a> {
    asm: Assembler,
    tables: Tables,
    at: &'a BioOffsets,
    /// The end of the program.
    out: Label,
}

impl<'a> Writer<'a> {
    fn new(tables: Tables, at: &'a BioOffsets) -> Self {
        let mut asm = Assembler::new();
        let out = asm.label();
        Self { asm, tables, at, out }
    }

    fn finish(mut self) -> Result<Vec<Instruction>, AsmError> {
        self.asm.bind(self.out);
        self.asm.constant(R0, 0);
        self.asm.exit();
        self.asm.finish()
    }

    /// Copies `size` bytes of the kernel's memory at `base + offset` to the stack. Loses `R0` to `R5`.
    fn read(&mut self, to: i16, size: i32, base: Reg, offset: u32) {
        self.asm.set(R3, base);
        self.asm.alu_constant(Op::Add, R3, offset.cast_signed());
        self.place(R1, to);
        self.asm.constant(R2, size);
        self.asm.call(Helper::ReadKernel);
    }

    /// `dst` = the number of `size` bytes, the lowest first, of the kernel's memory at `base + offset`.
    fn read_number(&mut self, dst: Reg, size: i32, base: Reg, offset: u32) {
        self.asm.store_constant(Width::B8, R10, NUMBER, 0);
        self.read(NUMBER, size, base, offset);
        self.asm.load(Width::B8, dst, R10, NUMBER);
    }

    /// `dst` = the address of a place on the stack.
    fn place(&mut self, dst: Reg, at: i16) {
        self.asm.set(dst, R10);
        self.asm.alu_constant(Op::Add, dst, i32::from(at));
    }

    /// `R0` = address of the value of the key on the stack, or null.
    fn look_up(&mut self, map: i32, key: i16) {
        self.asm.map(R1, map);
        self.place(R2, key);
        self.asm.call(Helper::MapLookup);
    }

    /// Sets the value of a key, both on the stack. `R0` is 0 if there was room.
    fn update(&mut self, map: i32, key: i16, value: i16) {
        self.asm.map(R1, map);
        self.place(R2, key);
        self.place(R3, value);
        self.asm.constant(R4, 0);
        self.asm.call(Helper::MapUpdate);
    }

    /// `R0` = address of the value of the key, which is created with zeros if there is none. Jumps to `out`
    /// if there is no room.
    fn look_up_or_make(&mut self, map: i32, key: i16, value_bytes: i16) {
        let is_there = self.asm.label();
        self.look_up(map, key);
        self.asm.jump_if_constant(If::NotEqual, R0, 0, is_there);
        for at in (0..value_bytes).step_by(8) {
            self.asm.store_constant(Width::B8, R10, EMPTY + at, 0);
        }
        self.update(map, key, EMPTY);
        self.look_up(map, key);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.asm.bind(is_there);
    }

    /// Handles a request that is made, or comes out of a throttle: the first argument.
    fn begun(&mut self) {
        let at = *self.at;
        let (is_kernels, is_others) = (self.asm.label(), self.asm.label());
        self.asm.load(Width::B8, R6, R1, 0);
        self.read_number(R8, 4, R6, at.length);
        self.asm.call(Helper::ProcessAndThread);
        self.asm.alu_constant(Op::ShiftRight, R0, 32);
        self.asm.jump_if_constant(If::Equal, R0, std::process::id().cast_signed(), self.out);
        self.asm.store(Width::B4, R10, READER, R0);
        self.operation();
        self.disk();
        self.asm.call(Helper::Task);
        self.asm.set(R9, R0);
        self.read_number(R9, 4, R9, at.task_flags);
        self.asm.set(R1, R9);
        self.asm.alu_constant(Op::And, R1, KERNEL_THREAD);
        self.asm.jump_if_constant(If::NotEqual, R1, 0, is_kernels);
        self.look_up(self.tables.followed, READER);
        self.asm.jump_if_constant(If::Equal, R0, 0, is_others);
        self.read_by_followed();
        self.asm.jump(self.out);

        self.asm.bind(is_kernels);
        self.asm.alu_constant(Op::And, R9, KERNEL_WORKER);
        self.asm.jump_if_constant(If::Equal, R9, 0, self.out);
        self.asm.jump_if_constant(If::Equal, R7, kind_number(counters::WRITE), self.out);
        self.read_number(R1, 4, R6, at.operation);
        self.asm.alu_constant(Op::And, R1, at.read_ahead.cast_signed());
        self.asm.jump_if_constant(If::NotEqual, R1, 0, self.out);

        self.asm.bind(is_others);
        self.begun_by_others();
    }

    /// `R7` = the kind of the request at `R6`. Jumps to `out` if it neither moves nor flushes data.
    fn operation(&mut self) {
        let is_known = self.asm.label();
        self.read_number(R1, 4, R6, self.at.operation);
        self.asm.set(R2, R1);
        self.asm.alu_constant(Op::And, R2, OP_MASK);
        self.asm.constant(R7, kind_number(counters::READ));
        self.asm.jump_if_constant(If::Equal, R2, 0, is_known);
        self.asm.jump_if_constant(If::NotEqual, R2, REQ_OP_WRITE, self.out);
        self.asm.constant(R7, kind_number(counters::WRITE));
        self.asm.alu_constant(Op::And, R1, self.at.sync.cast_signed());
        self.asm.jump_if_constant(If::Equal, R1, 0, is_known);
        self.asm.constant(R7, kind_number(counters::SYNC));
        self.asm.bind(is_known);
    }

    /// Stores the number of the disk of the request at `R6` in the entry, and after the process.
    fn disk(&mut self) {
        let at = *self.at;
        self.read_number(R9, 8, R6, at.device);
        self.asm.set(R1, R9);
        self.read_number(R9, 8, R1, at.device_disk);
        self.asm.set(R1, R9);
        self.read_number(R1, 4, R1, at.disk_major);
        self.asm.alu_constant(Op::ShiftLeft, R1, 20);
        self.asm.store(Width::B8, R10, ADDRESS, R1);
        self.read_number(R1, 4, R9, at.disk_minor);
        self.asm.load(Width::B8, R2, R10, ADDRESS);
        self.asm.alu(Op::Add, R1, R2);
        self.asm.store(Width::B4, R10, ENTRY + in_flight::DISK, R1);
        self.asm.store(Width::B4, R10, READER + 4, R1);
    }

    /// Adds the bytes of a followed process's read, in `R8`.
    fn read_by_followed(&mut self) {
        self.asm.jump_if_constant(If::NotEqual, R7, kind_number(counters::READ), self.out);
        self.look_up_or_make(self.tables.readers, READER, 8);
        self.asm.atomic_add(R0, 0, R8);
    }

    /// Counts the beginning of the request at `R6`, of kind `R7` and `R8` bytes, made by others.
    fn begun_by_others(&mut self) {
        let has_room = self.asm.label();
        self.asm.store(Width::B8, R10, ADDRESS, R6);
        self.asm.store(Width::B4, R10, ENTRY + in_flight::OP, R7);
        self.asm.store(Width::B8, R10, ENTRY + in_flight::LENGTH, R8);
        self.asm.call(Helper::Nanoseconds);
        self.asm.store(Width::B8, R10, ENTRY + in_flight::BEGUN, R0);
        // An existing entry belongs to a request whose end was not seen.
        self.look_up(self.tables.requests, ADDRESS);
        self.asm.set(R9, R0);
        self.update(self.tables.requests, ADDRESS, ENTRY);
        self.asm.jump_if_constant(If::Equal, R0, 0, has_room);
        self.count_lost();
        self.asm.jump(self.out);
        self.asm.bind(has_room);
        self.asm.jump_if_constant(If::NotEqual, R9, 0, self.out);
        self.look_up_or_make(self.tables.disks, ENTRY + in_flight::DISK, 128);
        self.counters_of_kind();
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, offset_of(counters::BEGUN), R1);
    }

    /// `R0` = address of the counters of kind `R7`, among those of the disk at `R0`.
    fn counters_of_kind(&mut self) {
        self.asm.alu_constant(Op::And, R7, 3);
        self.asm.alu_constant(Op::ShiftLeft, R7, 5);
        self.asm.alu(Op::Add, R0, R7);
    }

    fn count_lost(&mut self) {
        self.asm.store_constant(Width::B4, R10, NUMBER, 0);
        self.look_up(self.tables.lost, NUMBER);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, 0, R1);
    }

    /// Handles the end of merged requests: those of the first argument.
    fn ended_together(&mut self) {
        self.asm.load(Width::B8, R6, R1, 0);
        self.read_number(R6, 8, R6, self.at.merged);
        for _ in 0..MERGED_MAX {
            self.asm.jump_if_constant(If::Equal, R6, 0, self.out);
            self.ended();
            self.read_number(R6, 8, R6, self.at.next);
        }
    }

    /// Counts the end of the request at `R6`.
    fn ended(&mut self) {
        let goes_on = self.asm.label();
        self.asm.store(Width::B8, R10, ADDRESS, R6);
        self.look_up(self.tables.requests, ADDRESS);
        self.asm.jump_if_constant(If::Equal, R0, 0, goes_on);
        self.asm.load(Width::B8, R9, R0, in_flight::BEGUN);
        self.asm.load(Width::B8, R8, R0, in_flight::LENGTH);
        self.asm.load(Width::B4, R7, R0, in_flight::OP);
        self.asm.load(Width::B4, R1, R0, in_flight::DISK);
        self.asm.store(Width::B4, R10, READER, R1);
        self.asm.map(R1, self.tables.requests);
        self.place(R2, ADDRESS);
        self.asm.call(Helper::MapDelete);
        self.asm.call(Helper::Nanoseconds);
        self.asm.alu(Op::Sub, R0, R9);
        self.asm.set(R9, R0);
        self.look_up(self.tables.disks, READER);
        self.asm.jump_if_constant(If::Equal, R0, 0, goes_on);
        self.counters_of_kind();
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, offset_of(counters::DONE), R1);
        self.asm.atomic_add(R0, offset_of(counters::LENGTH), R8);
        self.asm.atomic_add(R0, offset_of(counters::WAITED), R9);
        self.asm.bind(goes_on);
    }
}

/// Converts a small constant for instructions.
fn kind_number(kind: usize) -> i32 {
    i32::try_from(kind).unwrap_or_default()
}

fn offset_of(counter: usize) -> i16 {
    i16::try_from(counter).unwrap_or_default()
}
