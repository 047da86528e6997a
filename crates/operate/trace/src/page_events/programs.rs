//! The programs that run in the kernel. They write records of what followed processes do to the
//! page cache.
//!
//! Invariants: each program reads the arguments of its tracepoint and fields of the kernel's
//! structs, writes at most one record, and maintains the tables of processes and files. A field
//! that can't be read is zero. A record without room is counted as lost. Anything but regular files
//! and block devices is skipped. The verifier has the last word.

pub(super) mod sampling;

use super::layout::{
    COMM_BYTES, LOST_OTHERS, LOST_PAGES, LOST_USES, LOST_WRITES, NAME_FOLLOWED, NAME_NEVER_FOLLOWED,
    PageRecord, ProcessRecord, StructOffsets, record_kind,
};
use crate::asm::{
    AluOp, Assembler, AssemblyError, Condition, KernelHelper, Label, Register, Width, layout_bytes, offset,
    size, stack,
};
use crate::sys::Instruction;
use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

/// The descriptors of the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventTableFds {
    /// Followed processes, by number.
    pub(super) followed: i32,
    /// The meaning of process names.
    pub(super) names: i32,
    /// Processes that may be followed by their names; `None` means all.
    pub(super) heeded: Option<i32>,
    /// Files whose uses are watched, by the address of their mapping; `None` if uses are not seen.
    pub(super) watched: Option<i32>,
    /// The ring buffer.
    pub(super) ring: i32,
    /// Counters of lost events.
    pub(super) lost: i32,
}

/// A tracepoint and its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageTracepoint {
    Added,
    /// Pages that were read: first and last.
    Read,
    /// Pages that were mapped around a fault: first and last.
    Mapped,
    /// A page that was faulted in.
    Faulted,
    /// A clean folio that is written to: the first argument.
    Dirtied,
    Forked,
    Executed,
    Exited,
}

impl PageTracepoint {
    /// Returns the tracepoint, and the program's name.
    pub(super) fn names(self) -> (&'static std::ffi::CStr, &'static str) {
        match self {
            Self::Added => (c"mm_filemap_add_to_page_cache", "pk_added"),
            Self::Read => (c"mm_filemap_get_pages", "pk_read"),
            Self::Mapped => (c"mm_filemap_map_pages", "pk_mapped"),
            Self::Faulted => (c"mm_filemap_fault", "pk_faulted"),
            Self::Dirtied => (c"writeback_dirty_folio", "pk_dirtied"),
            Self::Forked => (c"sched_process_fork", "pk_forked"),
            Self::Executed => (c"sched_process_exec", "pk_executed"),
            Self::Exited => (c"sched_process_exit", "pk_exited"),
        }
    }
}

const S_IFMT: i32 = 0o170_000;
const S_IFREG: i32 = 0o100_000;
const S_IFBLK: i32 = 0o060_000;
/// The magic number of btrfs' superblocks.
const BTRFS_MAGIC: i32 = 0x9123_683e_u32.cast_signed();

/// The stack of a program.
#[repr(C)]
struct EventStack {
    /// An index into an array.
    index: u64,
    name_key: NameKey,
    /// Of a sample: the directory that a file may be in, and whether it is in one.
    directory: sampling::DirectoryKey,
    verdict: sampling::FileVerdict,
    /// Of a sample: the accesses that this one counts for.
    counts_for: u64,
    number: u64,
    record: PageRecord,
}

/// Key of the table of names.
#[repr(C)]
struct NameKey {
    /// The number of bits of the name that count.
    bits: u32,
    name: [u8; COMM_BYTES],
    _padding: u32,
}

/// The place of the record on the stack, which can be a [`ProcessRecord`] as well.
const RECORD_AT: i16 = stack!(EventStack, record);

/// Returns the program of a tracepoint.
pub(super) fn program(
    point: PageTracepoint,
    tables: EventTableFds,
    offsets: &StructOffsets,
) -> Result<Vec<Instruction>, AssemblyError> {
    let mut writer = EventProgramWriter::new(tables, offsets);
    match point {
        PageTracepoint::Added => writer.handle_addition(),
        PageTracepoint::Read | PageTracepoint::Mapped => writer.handle_use(16),
        PageTracepoint::Faulted => writer.handle_use(8),
        PageTracepoint::Dirtied => writer.handle_dirtying(),
        PageTracepoint::Forked => writer.handle_fork(),
        PageTracepoint::Executed => writer.handle_exec(),
        PageTracepoint::Exited => writer.handle_exit(),
    }
    writer.asm.finish_at(writer.out)
}

struct EventProgramWriter<'a> {
    asm: Assembler,
    tables: EventTableFds,
    at: &'a StructOffsets,
    /// Whether the kernel knows the types of the arguments, so that fields of its structs are
    /// loaded without a call.
    is_typed: bool,
    /// The end of the program.
    out: Label,
}

impl<'a> EventProgramWriter<'a> {
    fn new(tables: EventTableFds, at: &'a StructOffsets) -> Self {
        let mut asm = Assembler::new();
        let out = asm.label();
        for place in (stack!(EventStack, number)..0).step_by(8) {
            asm.store_constant(Width::B8, R10, place, 0);
        }
        Self { asm, tables, at, is_typed: false, out }
    }

    /// Copies a field of `size` bytes at `base + offset` to the stack. Loses `R0` to `R5`.
    fn read_kernel(&mut self, to: i16, size: u16, base: Register, offset: u32) {
        match Width::of(size).zip(i16::try_from(offset).ok()).filter(|_| self.is_typed) {
            Some((width, offset)) => {
                self.asm.load(width, R3, base, offset);
                self.asm.store(width, R10, to, R3);
            }
            None => self.probe_kernel(to, i32::from(size), base, signed(offset)),
        }
    }

    /// Copies `size` bytes of the kernel's memory at `base + offset`, of any type, to the stack.
    /// Loses `R0` to `R5`.
    fn probe_kernel(&mut self, to: i16, size: i32, base: Register, offset: i32) {
        self.asm.set(R3, base);
        self.asm.alu_constant(AluOp::Add, R3, offset);
        self.asm.set(R1, R10);
        self.asm.alu_constant(AluOp::Add, R1, i32::from(to));
        self.asm.constant(R2, size);
        self.asm.call(KernelHelper::ReadKernel);
    }

    /// `dst` = the field of eight bytes at `base + offset`.
    fn read_pointer(&mut self, dst: Register, base: Register, offset: u32) {
        match i16::try_from(offset).ok().filter(|_| self.is_typed) {
            Some(offset) => self.asm.load(Width::B8, dst, base, offset),
            None => self.probe_pointer(dst, base, signed(offset)),
        }
    }

    /// `dst` = the eight bytes of the kernel's memory at `base + offset`, of any type.
    fn probe_pointer(&mut self, dst: Register, base: Register, offset: i32) {
        self.probe_kernel(stack!(EventStack, number), 8, base, offset);
        self.asm.load(Width::B8, dst, R10, stack!(EventStack, number));
    }

    /// Stores the calling process's number in the record.
    fn store_process(&mut self) {
        self.asm.call(KernelHelper::ProcessAndThread);
        self.asm.alu_constant(AluOp::ShiftRight, R0, 32);
        self.asm.store(Width::B4, R10, stack!(EventStack, record.process), R0);
    }

    /// `R0` = address of the value of the key on the stack, or null.
    fn look_up(&mut self, map: i32, key: i16) {
        self.asm.pass_map_and_key(map, key);
        self.asm.call(KernelHelper::MapLookup);
    }

    /// Sets the value of the key on the stack, to what is at `number`. `R0` is 0 if there was room.
    fn update(&mut self, map: i32, key: i16) {
        self.asm.pass_map_and_key(map, key);
        self.asm.set(R3, R10);
        self.asm.alu_constant(AluOp::Add, R3, i32::from(stack!(EventStack, number)));
        self.asm.constant(R4, 0);
        self.asm.call(KernelHelper::MapUpdate);
    }

    /// Writes the record. Counts `R9` as lost if there is no room.
    fn write_or_count_lost(&mut self, kind: i32, counter: i32) {
        self.write_record(kind);
        self.count_lost(counter);
    }

    /// Writes the record and jumps to `out`; falls through if there is no room.
    fn write_record(&mut self, kind: i32) {
        self.asm.store_constant(Width::B4, R10, stack!(EventStack, record.kind), kind);
        self.asm.pass_map_and_key(self.tables.ring, stack!(EventStack, record));
        self.asm.constant(R3, i32::from(size!(PageRecord)));
        // The kernel wakes up a waiting reader if it has read everything before.
        self.asm.constant(R4, 0);
        self.asm.call(KernelHelper::RingOutput);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
    }

    fn count_lost(&mut self, counter: i32) {
        self.asm.store_constant(Width::B4, R10, stack!(EventStack, index), counter);
        self.look_up(self.tables.lost, stack!(EventStack, index));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.atomic_add(R0, 0, R9);
    }

    /// Stores the owner of the mapping at `R7` in the record. Uses `R8` and `R9`; jumps to `out` if
    /// it is not a file.
    fn store_file(&mut self) {
        let at = *self.at;
        let (goes_on, is_file) = (self.asm.label(), self.asm.label());
        self.asm.store(Width::B8, R10, stack!(EventStack, record.mapping), R7);
        self.read_pointer(R8, R7, at.mapping_host);
        self.read_kernel(stack!(EventStack, record.ino), 8, R8, at.inode_ino);
        self.read_kernel(stack!(EventStack, record.generation), 4, R8, at.inode_generation);
        self.read_kernel(stack!(EventStack, record.mode), 2, R8, at.inode_mode);
        self.read_pointer(R9, R8, at.inode_super);
        self.read_kernel(stack!(EventStack, record.dev), 4, R9, at.super_dev);
        self.asm.load(Width::B4, R1, R10, stack!(EventStack, record.mode));
        self.asm.alu_constant(AluOp::And, R1, S_IFMT);
        self.asm.jump_if_constant(Condition::Equal, R1, S_IFREG, is_file);
        self.asm.jump_if_constant(Condition::NotEqual, R1, S_IFBLK, self.out);
        self.read_kernel(stack!(EventStack, record.dev), 4, R8, at.inode_device);
        self.asm.jump(goes_on);

        self.asm.bind(is_file);
        if let Some(subvolume) = at.subvolume {
            self.read_pointer(R1, R9, at.super_magic);
            self.asm.alu_constant(AluOp::ShiftLeft, R1, 32);
            self.asm.alu_constant(AluOp::ShiftRightSigned, R1, 32);
            self.asm.jump_if_constant(Condition::NotEqual, R1, BTRFS_MAGIC, goes_on);
            // Around the inode, not in it.
            self.probe_pointer(R9, R8, subvolume.root);
            self.probe_kernel(stack!(EventStack, record.subvolume), 8, R9, signed(subvolume.number));
        }
        self.asm.bind(goes_on);
    }

    /// Handles an added folio, the first argument. If the process is not followed, the addition is
    /// a use of a watched file.
    fn handle_addition(&mut self) {
        let (is_followed, has_room) = (self.asm.label(), self.asm.label());
        self.asm.load(Width::B8, R6, R1, 0);
        self.store_process();
        self.look_up(self.tables.followed, stack!(EventStack, record.process));
        self.asm.jump_if_constant(Condition::NotEqual, R0, 0, is_followed);
        self.report_use_by_others();
        self.asm.jump(self.out);

        self.asm.bind(is_followed);
        self.store_folio();
        self.store_is_alone();
        // Whether this addition began the watch.
        self.asm.constant(R8, 0);
        if let Some(watched) = self.tables.watched {
            self.look_up(watched, stack!(EventStack, record.mapping));
            self.asm.jump_if_constant(Condition::NotEqual, R0, 0, has_room);
            self.update(watched, stack!(EventStack, record.mapping));
            self.asm.constant(R8, 1);
            self.asm.jump_if_constant(Condition::Equal, R0, 0, has_room);
            // Others' uses would be missed, so nothing of it may be released.
            self.count_lost(LOST_PAGES);
            self.asm.jump(self.out);
        }
        self.asm.bind(has_room);
        self.write_record(record_kind::PAGES_ADDED);
        if let Some(watched) = self.tables.watched {
            let was_watched = self.asm.label();
            self.asm.jump_if_constant(Condition::Equal, R8, 0, was_watched);
            // No reader learns of the file, so none would end its watch.
            self.asm.pass_map_and_key(watched, stack!(EventStack, record.mapping));
            self.asm.call(KernelHelper::MapDelete);
            self.asm.bind(was_watched);
        }
        self.count_lost(LOST_PAGES);
    }

    /// Stores in the record whether the added pages, `R9`, are all that the mapping at `R7` has.
    fn store_is_alone(&mut self) {
        let has_others = self.asm.label();
        self.read_pointer(R1, R7, self.at.mapping_pages);
        self.asm.jump_if(Condition::NotEqual, R1, R9, has_others);
        self.asm.store_constant(Width::B4, R10, stack!(EventStack, record.flag), 1);
        self.asm.bind(has_others);
    }

    /// Records that a process that is not followed uses the folio at `R6`, if its file is watched.
    fn report_use_by_others(&mut self) {
        let Some(watched) = self.tables.watched else { return };
        self.read_pointer(R7, R6, self.at.folio_mapping);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.mapping), R7);
        self.look_up(watched, stack!(EventStack, record.mapping));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.store_file();
        self.read_kernel(stack!(EventStack, record.first_page), 8, R6, self.at.folio_index);
        self.count_folio_pages();
        // A use has the last page.
        self.asm.load(Width::B8, R1, R10, stack!(EventStack, record.first_page));
        self.asm.alu(AluOp::Add, R9, R1);
        self.asm.alu_constant(AluOp::Sub, R9, 1);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.pages), R9);
        self.asm.constant(R9, 1);
        self.write_or_count_lost(record_kind::PAGES_USED, LOST_USES);
    }

    /// Handles a write to a clean folio, the first argument.
    fn handle_dirtying(&mut self) {
        let is_followed = self.asm.label();
        self.asm.load(Width::B8, R6, R1, 0);
        self.store_process();
        self.look_up(self.tables.followed, stack!(EventStack, record.process));
        self.asm.jump_if_constant(Condition::NotEqual, R0, 0, is_followed);
        self.report_use_by_others();
        self.asm.jump(self.out);

        self.asm.bind(is_followed);
        self.store_folio();
        self.asm.constant(R9, 1);
        self.write_or_count_lost(record_kind::PAGES_DIRTIED, LOST_WRITES);
    }

    /// Stores the folio at `R6` and its file in the record; `R9` = its pages.
    fn store_folio(&mut self) {
        self.read_pointer(R7, R6, self.at.folio_mapping);
        self.store_file();
        self.read_kernel(stack!(EventStack, record.first_page), 8, R6, self.at.folio_index);
        self.count_folio_pages();
        self.asm.store(Width::B8, R10, stack!(EventStack, record.pages), R9);
    }

    /// `R9` = the number of pages of the folio at `R6`.
    fn count_folio_pages(&mut self) {
        let is_single = self.asm.label();
        self.asm.constant(R9, 1);
        if let Some(order) = self.at.folio_order {
            self.read_pointer(R1, R6, self.at.folio_flags);
            self.asm.alu_constant(AluOp::ShiftRight, R1, signed(order.head_bit));
            self.asm.alu_constant(AluOp::And, R1, 1);
            self.asm.jump_if_constant(Condition::Equal, R1, 0, is_single);
            self.read_kernel(stack!(EventStack, number), 1, R6, order.order);
            self.asm.load(Width::B1, R2, R10, stack!(EventStack, number));
            self.asm.alu_constant(AluOp::And, R2, 31);
            self.asm.constant(R9, 1);
            self.asm.alu(AluOp::ShiftLeft, R9, R2);
        }
        self.asm.bind(is_single);
    }

    /// Handles a use of watched files. The arguments are the mapping, the first page and, at offset
    /// `last`, the last one.
    fn handle_use(&mut self, last: i16) {
        let Some(watched) = self.tables.watched else { return };
        let is_followed = self.asm.label();
        self.asm.load(Width::B8, R7, R1, 0);
        self.asm.load(Width::B8, R6, R1, last);
        self.asm.load(Width::B8, R2, R1, 8);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.mapping), R7);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.first_page), R2);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.pages), R6);
        self.look_up(watched, stack!(EventStack, record.mapping));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.store_file();
        self.store_process();
        self.look_up(self.tables.followed, stack!(EventStack, record.process));
        self.asm.constant(R9, 1);
        self.asm.jump_if_constant(Condition::NotEqual, R0, 0, is_followed);
        self.write_or_count_lost(record_kind::PAGES_USED, LOST_USES);
        self.asm.jump(self.out);
        self.asm.bind(is_followed);
        self.asm.store_constant(Width::B4, R10, stack!(EventStack, record.flag), 1);
        self.write_or_count_lost(record_kind::PAGES_USED, LOST_OTHERS);
    }

    /// Handles a fork, with the child as second argument. A followed process's child is followed,
    /// and the names of children count where the parent's does.
    fn handle_fork(&mut self) {
        let at = *self.at;
        self.asm.load(Width::B8, R6, R1, 8);
        self.read_kernel(stack!(EventStack, number), 4, R6, at.task_process);
        self.asm.load(Width::B4, R7, R10, stack!(EventStack, number));
        self.read_kernel(stack!(EventStack, number), 4, R6, at.task_thread);
        self.asm.load(Width::B4, R8, R10, stack!(EventStack, number));
        // A thread.
        self.asm.jump_if(Condition::NotEqual, R7, R8, self.out);
        self.store_process();
        self.inherit_heed();
        self.look_up(self.tables.followed, stack!(EventStack, record.process));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.load(Width::B4, R1, R10, stack!(EventStack, record.process));
        self.asm.store(Width::B4, R10, RECORD_AT + offset!(ProcessRecord, parent), R1);
        self.asm.store(Width::B4, R10, stack!(EventStack, record.process), R7);
        self.copy_task_name(RECORD_AT + offset!(ProcessRecord, name));
        self.begin_following();
    }

    /// Makes the name of the child `R7` count if that of the record's process does. Uses `R9`.
    fn inherit_heed(&mut self) {
        let Some(heeded) = self.tables.heeded else { return };
        let goes_on = self.asm.label();
        self.look_up(heeded, stack!(EventStack, record.process));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, goes_on);
        self.asm.store(Width::B4, R10, stack!(EventStack, index), R7);
        self.update(heeded, stack!(EventStack, index));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, goes_on);
        self.asm.constant(R9, 1);
        self.count_lost(LOST_OTHERS);
        self.asm.bind(goes_on);
    }

    /// Follows the process of the record, and reports that.
    fn begin_following(&mut self) {
        let has_room = self.asm.label();
        self.asm.constant(R9, 1);
        self.update(self.tables.followed, stack!(EventStack, record.process));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, has_room);
        self.count_lost(LOST_OTHERS);
        self.asm.jump(self.out);
        self.asm.bind(has_room);
        self.write_or_count_lost(record_kind::PROCESS_BEGAN, LOST_OTHERS);
    }

    /// Copies the name of the calling process to the stack.
    fn copy_task_name(&mut self, to: i16) {
        self.asm.set(R1, R10);
        self.asm.alu_constant(AluOp::Add, R1, i32::from(to));
        self.asm.constant(R2, i32::from(layout_bytes(COMM_BYTES)));
        self.asm.call(KernelHelper::TaskName);
    }

    /// Handles an exec. The new name decides whether the process is followed; if it is not in the
    /// table, nothing changes.
    fn handle_exec(&mut self) {
        let (is_followed, never) = (self.asm.label(), self.asm.label());
        self.store_process();
        for place in (stack!(EventStack, name_key)..stack!(EventStack, number)).step_by(8) {
            self.asm.store_constant(Width::B8, R10, place, 0);
        }
        self.asm.store_constant(
            Width::B4,
            R10,
            stack!(EventStack, name_key.bits),
            8 * i32::from(layout_bytes(COMM_BYTES)),
        );
        self.copy_task_name(stack!(EventStack, name_key.name));
        self.copy_task_name(RECORD_AT + offset!(ProcessRecord, name));
        self.look_up(self.tables.followed, stack!(EventStack, record.process));
        self.asm.set(R8, R0);
        self.look_up(self.tables.names, stack!(EventStack, name_key));
        self.asm.constant(R7, 0);
        let unnamed = self.asm.label();
        self.asm.jump_if_constant(Condition::Equal, R0, 0, unnamed);
        self.asm.load(Width::B4, R7, R0, 0);
        self.asm.bind(unnamed);
        self.asm.jump_if_constant(Condition::Equal, R7, signed(NAME_NEVER_FOLLOWED), never);
        self.asm.jump_if_constant(Condition::NotEqual, R8, 0, is_followed);
        self.asm.jump_if_constant(Condition::NotEqual, R7, signed(NAME_FOLLOWED), self.out);
        if let Some(heeded) = self.tables.heeded {
            self.look_up(heeded, stack!(EventStack, record.process));
            self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        }
        self.asm.bind(is_followed);
        self.begin_following();
        self.asm.jump(self.out);

        self.asm.bind(never);
        self.asm.jump_if_constant(Condition::Equal, R8, 0, self.out);
        self.end_following(record_kind::PROCESS_LEFT);
    }

    /// Stops following the process of the record.
    fn end_following(&mut self, kind: i32) {
        self.asm.pass_map_and_key(self.tables.followed, stack!(EventStack, record.process));
        self.asm.call(KernelHelper::MapDelete);
        self.asm.constant(R9, 1);
        self.write_or_count_lost(kind, LOST_OTHERS);
    }

    /// Handles the end of a thread, the first argument. After its last thread the process has
    /// ended.
    fn handle_exit(&mut self) {
        let at = *self.at;
        self.asm.load(Width::B8, R6, R1, 0);
        self.store_process();
        self.read_pointer(R7, R6, at.task_signal);
        self.read_kernel(stack!(EventStack, number), 4, R7, at.signal_live);
        self.asm.load(Width::B4, R1, R10, stack!(EventStack, number));
        self.asm.jump_if_constant(Condition::NotEqual, R1, 0, self.out);
        if let Some(heeded) = self.tables.heeded {
            self.asm.pass_map_and_key(heeded, stack!(EventStack, record.process));
            self.asm.call(KernelHelper::MapDelete);
        }
        self.look_up(self.tables.followed, stack!(EventStack, record.process));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.end_following(record_kind::PROCESS_ENDED);
    }
}

/// Converts an offset or a small constant for instructions.
fn signed(number: u32) -> i32 {
    number.cast_signed()
}
