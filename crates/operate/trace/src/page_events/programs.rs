//! The programs that run in the kernel. They write records of what followed processes do to the page cache.
//!
//! Invariants: each program reads the arguments of its tracepoint and fields of the kernel's structs, writes
//! at most one record, and maintains the tables of processes and files. A field that can't be read is zero. A
//! record without room is counted as lost. Anything but regular files and block devices is skipped. The
//! verifier has the last word.

use super::layout::{Offsets, kind, lost, named, record};
use crate::asm::{AsmError, Assembler, Helper, If, Label, Op, Reg, Width};
use crate::sys::Instruction;
use Reg::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

/// The descriptors of the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables {
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
pub(super) enum Point {
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

impl Point {
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
const BTRFS: i32 = 0x9123_683e_u32.cast_signed();

/// The stack: the record, eight bytes for a number, and a key of names.
const RECORD: i16 = -record::SIZE;
const NUMBER: i16 = RECORD - 8;
const NAME_KEY: i16 = NUMBER - 24;
/// An index of four bytes into an array.
const INDEX: i16 = NAME_KEY - 8;

/// Returns the program of a tracepoint.
pub(super) fn program(point: Point, tables: Tables, offsets: &Offsets) -> Result<Vec<Instruction>, AsmError> {
    let mut writer = Writer::new(tables, offsets);
    match point {
        Point::Added => writer.added(),
        Point::Read | Point::Mapped => writer.used(16),
        Point::Faulted => writer.used(8),
        Point::Dirtied => writer.dirtied(),
        Point::Forked => writer.forked(),
        Point::Executed => writer.executed(),
        Point::Exited => writer.exited(),
    }
    writer.finish()
}

struct Writer<'a> {
    asm: Assembler,
    tables: Tables,
    at: &'a Offsets,
    /// The end of the program.
    out: Label,
}

impl<'a> Writer<'a> {
    fn new(tables: Tables, at: &'a Offsets) -> Self {
        let mut asm = Assembler::new();
        let out = asm.label();
        for offset in (0..record::SIZE + 8).step_by(8) {
            asm.store_constant(Width::B8, R10, NUMBER + offset, 0);
        }
        Self { asm, tables, at, out }
    }

    fn finish(mut self) -> Result<Vec<Instruction>, AsmError> {
        self.asm.bind(self.out);
        self.asm.constant(R0, 0);
        self.asm.exit();
        self.asm.finish()
    }

    /// Copies `size` bytes of the kernel's memory at `base + offset` to the stack. Loses `R0` to `R5`.
    fn read(&mut self, to: i16, size: i32, base: Reg, offset: i32) {
        self.asm.set(R3, base);
        self.asm.alu_constant(Op::Add, R3, offset);
        self.asm.set(R1, R10);
        self.asm.alu_constant(Op::Add, R1, i32::from(to));
        self.asm.constant(R2, size);
        self.asm.call(Helper::ReadKernel);
    }

    /// `dst` = the eight bytes of the kernel's memory at `base + offset`.
    fn read_pointer(&mut self, dst: Reg, base: Reg, offset: u32) {
        self.read(NUMBER, 8, base, signed(offset));
        self.asm.load(Width::B8, dst, R10, NUMBER);
    }

    /// Stores the calling process's number in the record.
    fn process(&mut self) {
        self.asm.call(Helper::ProcessAndThread);
        self.asm.alu_constant(Op::ShiftRight, R0, 32);
        self.asm.store(Width::B4, R10, RECORD + record::PROCESS, R0);
    }

    /// `R1` = the map, `R2` = a place on the stack.
    fn map_and_key(&mut self, map: i32, key: i16) {
        self.asm.map(R1, map);
        self.asm.set(R2, R10);
        self.asm.alu_constant(Op::Add, R2, i32::from(key));
    }

    /// `R0` = address of the value of the key on the stack, or null.
    fn look_up(&mut self, map: i32, key: i16) {
        self.map_and_key(map, key);
        self.asm.call(Helper::MapLookup);
    }

    /// Sets the value of the key on the stack, to what is at `NUMBER`. `R0` is 0 if there was room.
    fn update(&mut self, map: i32, key: i16) {
        self.map_and_key(map, key);
        self.asm.set(R3, R10);
        self.asm.alu_constant(Op::Add, R3, i32::from(NUMBER));
        self.asm.constant(R4, 0);
        self.asm.call(Helper::MapUpdate);
    }

    /// Writes the record. Counts `R9` as lost if there is no room.
    fn output(&mut self, kind: i32, counter: i32) {
        self.write_record(kind);
        self.count_lost(counter);
    }

    /// Writes the record and jumps to `out`; falls through if there is no room.
    fn write_record(&mut self, kind: i32) {
        self.asm.store_constant(Width::B4, R10, RECORD + record::KIND, kind);
        self.map_and_key(self.tables.ring, RECORD);
        self.asm.constant(R3, i32::from(record::SIZE));
        // The kernel wakes up a waiting reader if it has read everything before.
        self.asm.constant(R4, 0);
        self.asm.call(Helper::RingOutput);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
    }

    fn count_lost(&mut self, counter: i32) {
        self.asm.store_constant(Width::B4, R10, INDEX, counter);
        self.look_up(self.tables.lost, INDEX);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.asm.atomic_add(R0, 0, R9);
    }

    /// Stores the owner of the mapping at `R7` in the record. Uses `R8` and `R9`; jumps to `out` if it is not
    /// a file.
    fn file(&mut self) {
        let at = *self.at;
        let (goes_on, is_file) = (self.asm.label(), self.asm.label());
        self.asm.store(Width::B8, R10, RECORD + record::MAPPING, R7);
        self.read_pointer(R8, R7, at.mapping_host);
        self.read(RECORD + record::INO, 8, R8, signed(at.inode_ino));
        self.read(RECORD + record::GENERATION, 4, R8, signed(at.inode_generation));
        self.read(RECORD + record::MODE, 2, R8, signed(at.inode_mode));
        self.read_pointer(R9, R8, at.inode_super);
        self.read(RECORD + record::DEV, 4, R9, signed(at.super_dev));
        self.asm.load(Width::B4, R1, R10, RECORD + record::MODE);
        self.asm.alu_constant(Op::And, R1, S_IFMT);
        self.asm.jump_if_constant(If::Equal, R1, S_IFREG, is_file);
        self.asm.jump_if_constant(If::NotEqual, R1, S_IFBLK, self.out);
        self.read(RECORD + record::DEV, 4, R8, signed(at.inode_device));
        self.asm.jump(goes_on);

        self.asm.bind(is_file);
        if let Some(subvolume) = at.subvolume {
            self.read_pointer(R1, R9, at.super_magic);
            self.asm.alu_constant(Op::ShiftLeft, R1, 32);
            self.asm.alu_constant(Op::ShiftRightSigned, R1, 32);
            self.asm.jump_if_constant(If::NotEqual, R1, BTRFS, goes_on);
            self.read(NUMBER, 8, R8, subvolume.root);
            self.asm.load(Width::B8, R9, R10, NUMBER);
            self.read(RECORD + record::SUBVOLUME, 8, R9, signed(subvolume.number));
        }
        self.asm.bind(goes_on);
    }

    /// Handles an added folio, the first argument. If the process is not followed, the addition is a use of a
    /// watched file.
    fn added(&mut self) {
        let (is_followed, has_room) = (self.asm.label(), self.asm.label());
        self.asm.load(Width::B8, R6, R1, 0);
        self.process();
        self.look_up(self.tables.followed, RECORD + record::PROCESS);
        self.asm.jump_if_constant(If::NotEqual, R0, 0, is_followed);
        self.used_by_others();
        self.asm.jump(self.out);

        self.asm.bind(is_followed);
        self.folio();
        self.only_pages();
        // Whether this addition began the watch.
        self.asm.constant(R8, 0);
        if let Some(watched) = self.tables.watched {
            self.look_up(watched, RECORD + record::MAPPING);
            self.asm.jump_if_constant(If::NotEqual, R0, 0, has_room);
            self.update(watched, RECORD + record::MAPPING);
            self.asm.constant(R8, 1);
            self.asm.jump_if_constant(If::Equal, R0, 0, has_room);
            // Others' uses would be missed, so nothing of it may be released.
            self.count_lost(lost::PAGES);
            self.asm.jump(self.out);
        }
        self.asm.bind(has_room);
        self.write_record(kind::ADDED);
        if let Some(watched) = self.tables.watched {
            let was_watched = self.asm.label();
            self.asm.jump_if_constant(If::Equal, R8, 0, was_watched);
            // No reader learns of the file, so none would end its watch.
            self.map_and_key(watched, RECORD + record::MAPPING);
            self.asm.call(Helper::MapDelete);
            self.asm.bind(was_watched);
        }
        self.count_lost(lost::PAGES);
    }

    /// Stores in the record whether the added pages, `R9`, are all that the mapping at `R7` has.
    fn only_pages(&mut self) {
        let has_others = self.asm.label();
        self.read_pointer(R1, R7, self.at.mapping_pages);
        self.asm.jump_if(If::NotEqual, R1, R9, has_others);
        self.asm.store_constant(Width::B4, R10, RECORD + record::OTHER, 1);
        self.asm.bind(has_others);
    }

    /// Records that a process that is not followed uses the folio at `R6`, if its file is watched.
    fn used_by_others(&mut self) {
        let Some(watched) = self.tables.watched else { return };
        self.read_pointer(R7, R6, self.at.folio_mapping);
        self.asm.store(Width::B8, R10, RECORD + record::MAPPING, R7);
        self.look_up(watched, RECORD + record::MAPPING);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.file();
        self.read(RECORD + record::FIRST, 8, R6, signed(self.at.folio_index));
        self.pages_of_folio();
        // A use has the last page.
        self.asm.load(Width::B8, R1, R10, RECORD + record::FIRST);
        self.asm.alu(Op::Add, R9, R1);
        self.asm.alu_constant(Op::Sub, R9, 1);
        self.asm.store(Width::B8, R10, RECORD + record::PAGES, R9);
        self.asm.constant(R9, 1);
        self.output(kind::USED, lost::USES);
    }

    /// Handles a write to a clean folio, the first argument.
    fn dirtied(&mut self) {
        let is_followed = self.asm.label();
        self.asm.load(Width::B8, R6, R1, 0);
        self.process();
        self.look_up(self.tables.followed, RECORD + record::PROCESS);
        self.asm.jump_if_constant(If::NotEqual, R0, 0, is_followed);
        self.used_by_others();
        self.asm.jump(self.out);

        self.asm.bind(is_followed);
        self.folio();
        self.asm.constant(R9, 1);
        self.output(kind::DIRTIED, lost::WRITES);
    }

    /// Stores the folio at `R6` and its file in the record; `R9` = its pages.
    fn folio(&mut self) {
        self.read_pointer(R7, R6, self.at.folio_mapping);
        self.file();
        self.read(RECORD + record::FIRST, 8, R6, signed(self.at.folio_index));
        self.pages_of_folio();
        self.asm.store(Width::B8, R10, RECORD + record::PAGES, R9);
    }

    /// `R9` = the number of pages of the folio at `R6`.
    fn pages_of_folio(&mut self) {
        let is_single = self.asm.label();
        self.asm.constant(R9, 1);
        if let Some(order) = self.at.folio_order {
            self.read_pointer(R1, R6, self.at.folio_flags);
            self.asm.alu_constant(Op::ShiftRight, R1, signed(order.head_bit));
            self.asm.alu_constant(Op::And, R1, 1);
            self.asm.jump_if_constant(If::Equal, R1, 0, is_single);
            self.read(NUMBER, 1, R6, signed(order.order));
            self.asm.load(Width::B1, R2, R10, NUMBER);
            self.asm.alu_constant(Op::And, R2, 31);
            self.asm.constant(R9, 1);
            self.asm.alu(Op::ShiftLeft, R9, R2);
        }
        self.asm.bind(is_single);
    }

    /// Handles a use of watched files. The arguments are the mapping, the first page and, at offset `last`,
    /// the last one.
    fn used(&mut self, last: i16) {
        let Some(watched) = self.tables.watched else { return };
        let is_followed = self.asm.label();
        self.asm.load(Width::B8, R7, R1, 0);
        self.asm.load(Width::B8, R6, R1, last);
        self.asm.load(Width::B8, R2, R1, 8);
        self.asm.store(Width::B8, R10, RECORD + record::MAPPING, R7);
        self.asm.store(Width::B8, R10, RECORD + record::FIRST, R2);
        self.asm.store(Width::B8, R10, RECORD + record::PAGES, R6);
        self.look_up(watched, RECORD + record::MAPPING);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.file();
        self.process();
        self.look_up(self.tables.followed, RECORD + record::PROCESS);
        self.asm.constant(R9, 1);
        self.asm.jump_if_constant(If::NotEqual, R0, 0, is_followed);
        self.output(kind::USED, lost::USES);
        self.asm.jump(self.out);
        self.asm.bind(is_followed);
        self.asm.store_constant(Width::B4, R10, RECORD + record::OTHER, 1);
        self.output(kind::USED, lost::OTHERS);
    }

    /// Handles a fork, with the child as second argument. A followed process's child is followed, and the
    /// names of children count where the parent's does.
    fn forked(&mut self) {
        let at = *self.at;
        self.asm.load(Width::B8, R6, R1, 8);
        self.read(NUMBER, 4, R6, signed(at.task_process));
        self.asm.load(Width::B4, R7, R10, NUMBER);
        self.read(NUMBER, 4, R6, signed(at.task_thread));
        self.asm.load(Width::B4, R8, R10, NUMBER);
        // A thread.
        self.asm.jump_if(If::NotEqual, R7, R8, self.out);
        self.process();
        self.inherit_heed();
        self.look_up(self.tables.followed, RECORD + record::PROCESS);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.asm.load(Width::B4, R1, R10, RECORD + record::PROCESS);
        self.asm.store(Width::B4, R10, RECORD + record::OTHER, R1);
        self.asm.store(Width::B4, R10, RECORD + record::PROCESS, R7);
        self.task_name(RECORD + record::NAME);
        self.begin();
    }

    /// Makes the name of the child `R7` count if that of the record's process does. Uses `R9`.
    fn inherit_heed(&mut self) {
        let Some(heeded) = self.tables.heeded else { return };
        let goes_on = self.asm.label();
        self.look_up(heeded, RECORD + record::PROCESS);
        self.asm.jump_if_constant(If::Equal, R0, 0, goes_on);
        self.asm.store(Width::B4, R10, INDEX, R7);
        self.update(heeded, INDEX);
        self.asm.jump_if_constant(If::Equal, R0, 0, goes_on);
        self.asm.constant(R9, 1);
        self.count_lost(lost::OTHERS);
        self.asm.bind(goes_on);
    }

    /// Follows the process of the record, and reports that.
    fn begin(&mut self) {
        let has_room = self.asm.label();
        self.asm.constant(R9, 1);
        self.update(self.tables.followed, RECORD + record::PROCESS);
        self.asm.jump_if_constant(If::Equal, R0, 0, has_room);
        self.count_lost(lost::OTHERS);
        self.asm.jump(self.out);
        self.asm.bind(has_room);
        self.output(kind::BEGAN, lost::OTHERS);
    }

    /// Copies the name of the calling process to the stack.
    fn task_name(&mut self, to: i16) {
        self.asm.set(R1, R10);
        self.asm.alu_constant(Op::Add, R1, i32::from(to));
        self.asm.constant(R2, i32::from(record::NAME_BYTES));
        self.asm.call(Helper::TaskName);
    }

    /// Handles an exec. The new name decides whether the process is followed; if it is not in the table,
    /// nothing changes.
    fn executed(&mut self) {
        let (is_followed, never) = (self.asm.label(), self.asm.label());
        self.process();
        for offset in (0..24).step_by(8) {
            self.asm.store_constant(Width::B8, R10, NAME_KEY + offset, 0);
        }
        self.asm.store_constant(Width::B4, R10, NAME_KEY, 8 * i32::from(record::NAME_BYTES));
        self.task_name(NAME_KEY + 4);
        self.task_name(RECORD + record::NAME);
        self.look_up(self.tables.followed, RECORD + record::PROCESS);
        self.asm.set(R8, R0);
        self.look_up(self.tables.names, NAME_KEY);
        self.asm.constant(R7, 0);
        let unnamed = self.asm.label();
        self.asm.jump_if_constant(If::Equal, R0, 0, unnamed);
        self.asm.load(Width::B4, R7, R0, 0);
        self.asm.bind(unnamed);
        self.asm.jump_if_constant(If::Equal, R7, signed(named::NEVER), never);
        self.asm.jump_if_constant(If::NotEqual, R8, 0, is_followed);
        self.asm.jump_if_constant(If::NotEqual, R7, signed(named::STREAM), self.out);
        if let Some(heeded) = self.tables.heeded {
            self.look_up(heeded, RECORD + record::PROCESS);
            self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        }
        self.asm.bind(is_followed);
        self.begin();
        self.asm.jump(self.out);

        self.asm.bind(never);
        self.asm.jump_if_constant(If::Equal, R8, 0, self.out);
        self.leave(kind::LEFT);
    }

    /// Stops following the process of the record.
    fn leave(&mut self, kind: i32) {
        self.map_and_key(self.tables.followed, RECORD + record::PROCESS);
        self.asm.call(Helper::MapDelete);
        self.asm.constant(R9, 1);
        self.output(kind, lost::OTHERS);
    }

    /// Handles the end of a thread, the first argument. After its last thread the process has ended.
    fn exited(&mut self) {
        let at = *self.at;
        self.asm.load(Width::B8, R6, R1, 0);
        self.process();
        self.read_pointer(R7, R6, at.task_signal);
        self.read(NUMBER, 4, R7, signed(at.signal_live));
        self.asm.load(Width::B4, R1, R10, NUMBER);
        self.asm.jump_if_constant(If::NotEqual, R1, 0, self.out);
        if let Some(heeded) = self.tables.heeded {
            self.map_and_key(heeded, RECORD + record::PROCESS);
            self.asm.call(Helper::MapDelete);
        }
        self.look_up(self.tables.followed, RECORD + record::PROCESS);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.leave(kind::ENDED);
    }
}

/// Converts an offset or a small constant for instructions.
fn signed(number: u32) -> i32 {
    number.cast_signed()
}
