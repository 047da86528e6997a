//! The programs that run in the kernel at each tracepoint.
//!
//! Invariants: each program only reads its record, counts in tables, and returns 0 (no record is
//! kept for perf). An entry is made at its first event; without room for it the event is counted as
//! lost. Entries of tasks are written only by that task, so an atomic addition is enough for their
//! numbers, and the longest duration needs not even that. Fails if the tracepoint lacks a field;
//! the verifier has the last word.

use crate::TraceError;
use crate::asm::{AluOp, Assembler, Condition, KernelHelper, Label, Register, Width, offset, size, stack};
use crate::bpf::record::{
    EpochLongest, FolioCounts, InFlightKey, InFlightValue, LossCounter, PageKey, PageValue, PauseKey,
    PauseValue, RequestKey, RequestValue, StallKey, StallValue, TimedValue,
};
use crate::durations::DURATION_CLASSES;
use crate::event::TracepointKind;
use crate::sys::Instruction;
use crate::tracefs::Tracepoint;
use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use pagekeeper_kernel::Inode;

/// The descriptors of the tables a program counts in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountTableFds {
    /// The entries of the event's kind.
    pub(crate) entries: i32,
    /// Requests in flight; for the other kinds the same as `entries`.
    pub(crate) flights: i32,
    /// The counters of lost events.
    pub(crate) lost: i32,
    /// The number of the epoch.
    pub(crate) epoch: i32,
}

/// The files of which pages are counted; devices in the kernel's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KernelFilter {
    Everything,
    Devices(Vec<u64>),
    Files(Vec<Inode>),
}

/// The stack of a program, with places for the largest key and value of an entry.
#[repr(C)]
struct CountStack {
    /// An index into an array.
    index: u64,
    key: PauseKey,
    value: PauseValue,
}

/// The place on the stack of an entry's key.
const KEY_AT: i16 = stack!(CountStack, key);
/// The place on the stack of a new entry's value.
const VALUE_AT: i16 = stack!(CountStack, value);

/// Returns the program of a tracepoint.
pub(crate) fn program(
    point: &Tracepoint,
    tables: CountTableFds,
    filter: &KernelFilter,
) -> Result<Vec<Instruction>, TraceError> {
    let mut writer = CountProgramWriter::new(point, tables);
    // The record. R6 keeps its address; R9 will be the entry's.
    writer.asm.set(R6, R1);
    match point.event {
        TracepointKind::Add => writer.count_pages(filter, offset!(PageValue, added))?,
        TracepointKind::Delete => writer.count_pages(filter, offset!(PageValue, removed))?,
        TracepointKind::Pause => writer.count_pause()?,
        TracepointKind::ReclaimBegin => writer.begin_stall(0),
        TracepointKind::GroupReclaimBegin => writer.begin_stall(1),
        TracepointKind::ReclaimEnd => writer.end_stall(0)?,
        TracepointKind::GroupReclaimEnd => writer.end_stall(1)?,
        TracepointKind::Issue => writer.begin_request()?,
        TracepointKind::Complete => writer.end_request()?,
    }
    writer.asm.finish_at(writer.out).map_err(|error| TraceError::Call {
        call: "assemble",
        what: point.event.to_string(),
        source: std::io::Error::other(error),
    })
}

/// The offsets of the task in a new entry.
#[derive(Clone, Copy)]
struct TaskOffsets {
    process: i16,
    name: i16,
}

const PAGE_TASK: TaskOffsets =
    TaskOffsets { process: offset!(PageValue, process), name: offset!(PageValue, name) };
const TIMED_TASK: TaskOffsets =
    TaskOffsets { process: offset!(TimedValue, process), name: offset!(TimedValue, name) };

/// Writes the program of one tracepoint.
struct CountProgramWriter<'a> {
    asm: Assembler,
    point: &'a Tracepoint,
    tables: CountTableFds,
    /// The end of the program.
    out: Label,
}

impl<'a> CountProgramWriter<'a> {
    fn new(point: &'a Tracepoint, tables: CountTableFds) -> Self {
        let mut asm = Assembler::new();
        let out = asm.label();
        Self { asm, point, tables, out }
    }

    /// `dst` = a number of the record, sign-extended.
    fn load_field(&mut self, dst: Register, names: &[&'static str]) -> Result<(), TraceError> {
        let field = self.point.field(names)?;
        let width = Width::of(field.size).ok_or_else(|| self.point.lacks(names[0]))?;
        let offset = i16::try_from(field.offset).map_err(|_| self.point.lacks(names[0]))?;
        self.asm.load(width, dst, R6, offset);
        if field.signed && field.size < 8 {
            let unused = i32::from(64 - 8 * field.size);
            self.asm.alu_constant(AluOp::ShiftLeft, dst, unused);
            self.asm.alu_constant(AluOp::ShiftRightSigned, dst, unused);
        }
        Ok(())
    }

    /// Copies `len` bytes of a field that is an array of characters to the stack at `to`, and fills
    /// the rest with zeros.
    fn copy_text(&mut self, name: &'static str, to: i16, len: u16) -> Result<(), TraceError> {
        let field = self.point.field(&[name])?;
        let (from, have) = (field.offset, field.size.min(len));
        let mut done = 0;
        while done < len {
            // A load has to be aligned, and within the field.
            let fits = |width: u16| (from + done) % width == 0 && done % width == 0 && done + width <= have;
            let at = to + i16::try_from(done).map_err(|_| self.point.lacks(name))?;
            if done >= have {
                self.asm.store_constant(Width::B1, R10, at, 0);
                done += 1;
                continue;
            }
            let bytes = [8, 4, 2, 1].into_iter().find(|bytes| fits(*bytes)).unwrap_or(1);
            let width = Width::of(bytes).unwrap_or(Width::B1);
            let offset = i16::try_from(from + done).map_err(|_| self.point.lacks(name))?;
            self.asm.load(width, R1, R6, offset);
            self.asm.store(width, R10, at, R1);
            done += bytes;
        }
        Ok(())
    }

    /// `R0` = address of the element of an array, or null.
    fn look_up_element(&mut self, array: i32, index: i32) {
        self.asm.store_constant(Width::B4, R10, stack!(CountStack, index), index);
        self.asm.pass_map_and_key(array, stack!(CountStack, index));
        self.asm.call(KernelHelper::MapLookup);
    }

    /// Counts one lost event.
    fn count_lost(&mut self, lost: LossCounter) {
        self.look_up_element(self.tables.lost, lost as i32);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, 0, R1);
    }

    /// Stores zeros on the stack, `size` bytes from `at`.
    fn store_zeros(&mut self, at: i16, size: i16) {
        for offset in (0..size).step_by(8) {
            self.asm.store_constant(Width::B8, R10, at + offset, 0);
        }
    }

    /// `R9` = address of the entry whose key is at `KEY_AT`, which is made if there is none.
    /// Without room, counts one lost event and jumps to `out`.
    fn find_or_make_entry(&mut self, size: i16, task: Option<TaskOffsets>, lost: LossCounter) {
        let found = self.asm.label();
        self.asm.pass_map_and_key(self.tables.entries, KEY_AT);
        self.asm.call(KernelHelper::MapLookup);
        self.asm.jump_if_constant(Condition::NotEqual, R0, 0, found);

        self.store_zeros(VALUE_AT, size);
        if let Some(task) = task {
            self.asm.call(KernelHelper::ProcessAndThread);
            self.asm.alu_constant(AluOp::ShiftRight, R0, 32);
            self.asm.store(Width::B8, R10, VALUE_AT + task.process, R0);
            self.asm.set(R1, R10);
            self.asm.alu_constant(AluOp::Add, R1, i32::from(VALUE_AT + task.name));
            self.asm.constant(R2, 16);
            self.asm.call(KernelHelper::TaskName);
        }
        self.asm.pass_map_and_key(self.tables.entries, KEY_AT);
        self.asm.set(R3, R10);
        self.asm.alu_constant(AluOp::Add, R3, i32::from(VALUE_AT));
        // Only if there is none (BPF_NOEXIST): another processor may have been faster.
        self.asm.constant(R4, 1);
        self.asm.call(KernelHelper::MapUpdate);
        self.asm.pass_map_and_key(self.tables.entries, KEY_AT);
        self.asm.call(KernelHelper::MapLookup);
        self.asm.jump_if_constant(Condition::NotEqual, R0, 0, found);
        self.count_lost(lost);
        self.asm.jump(self.out);

        self.asm.bind(found);
        self.asm.set(R9, R0);
    }

    /// Stores the thread's number on the stack, 4 bytes.
    fn store_thread(&mut self, to: i16) {
        self.asm.call(KernelHelper::ProcessAndThread);
        self.asm.store(Width::B4, R10, to, R0);
    }

    /// `[R9 + at] += constant`.
    fn add_constant(&mut self, at: i16, constant: i32) {
        self.asm.constant(R1, constant);
        self.asm.atomic_add(R9, at, R1);
    }

    /// `[R9 + at] +=` a number of the record.
    fn add_field(&mut self, at: i16, names: &[&'static str]) -> Result<(), TraceError> {
        self.load_field(R1, names)?;
        self.asm.atomic_add(R9, at, R1);
        Ok(())
    }

    /// Jumps to `out` unless the pages' file (`R7` device, `R8` inode number) is chosen.
    fn skip_unchosen(&mut self, filter: &KernelFilter) {
        let chosen = self.asm.label();
        match filter {
            KernelFilter::Everything => return,
            KernelFilter::Devices(devices) => {
                for device in devices {
                    self.asm.wide_constant(R1, *device);
                    self.asm.jump_if(Condition::Equal, R7, R1, chosen);
                }
            }
            KernelFilter::Files(files) => {
                for file in files {
                    let other = self.asm.label();
                    self.asm.wide_constant(R1, file.ino);
                    self.asm.jump_if(Condition::NotEqual, R8, R1, other);
                    self.asm.wide_constant(R1, file.dev);
                    self.asm.jump_if(Condition::Equal, R7, R1, chosen);
                    self.asm.bind(other);
                }
            }
        }
        self.asm.jump(self.out);
        self.asm.bind(chosen);
    }

    /// Counts a folio in the counts at `counts` of the entry.
    fn count_pages(&mut self, filter: &KernelFilter, counts: i16) -> Result<(), TraceError> {
        self.load_field(R7, &["s_dev"])?;
        self.load_field(R8, &["i_ino"])?;
        self.skip_unchosen(filter);
        self.asm.store(Width::B8, R10, KEY_AT + offset!(PageKey, ino), R8);
        self.asm.store(Width::B4, R10, KEY_AT + offset!(PageKey, dev), R7);
        self.store_thread(KEY_AT + offset!(PageKey, thread));
        self.asm.constant(R7, 1);
        // Older kernels have no order, but an event for each page.
        if self.point.format.field("order").is_some() {
            self.load_field(R2, &["order"])?;
            self.asm.alu_constant(AluOp::And, R2, 31);
            self.asm.alu(AluOp::ShiftLeft, R7, R2);
        }
        self.find_or_make_entry(size!(PageValue), Some(PAGE_TASK), LossCounter::Pages);
        self.add_constant(counts + offset!(FolioCounts, folios), 1);
        self.asm.atomic_add(R9, counts + offset!(FolioCounts, pages), R7);
        Ok(())
    }

    /// Counts a duration of `R7` nanoseconds in the entry at `R9`. Loses `R0` to `R5`.
    fn count_duration(&mut self) {
        self.add_constant(offset!(TimedValue, count), 1);
        self.asm.atomic_add(R9, offset!(TimedValue, total_ns), R7);
        self.count_class();
        self.keep_longest(offset!(TimedValue, longest), R7);
    }

    /// Computes the class of a duration, which is the logarithm of its microseconds, by halving.
    fn count_class(&mut self) {
        let (last, done) = (self.asm.label(), self.asm.label());
        self.asm.set(R1, R7);
        self.asm.alu_constant(AluOp::Div, R1, 1000);
        self.asm.constant(R2, 0);
        let classes = i32::try_from(DURATION_CLASSES).expect("a few classes");
        self.asm.jump_if_constant(Condition::AtLeast, R1, 1 << (classes - 1), last);
        for bits in [16, 8, 4, 2, 1] {
            let below = self.asm.label();
            self.asm.jump_if_constant(Condition::Below, R1, 1 << bits, below);
            self.asm.alu_constant(AluOp::ShiftRight, R1, bits);
            self.asm.alu_constant(AluOp::Add, R2, bits);
            self.asm.bind(below);
        }
        // The verifier can't see that it is below the last class.
        self.asm.jump_if_constant(Condition::Below, R2, classes, done);
        self.asm.bind(last);
        self.asm.constant(R2, classes - 1);
        self.asm.bind(done);
        self.asm.alu_constant(AluOp::Mul, R2, 8);
        self.asm.set(R3, R9);
        self.asm.alu(AluOp::Add, R3, R2);
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R3, offset!(TimedValue, classes), R1);
    }

    /// Stores `length` at the epoch's place if it is the longest of the epoch.
    fn keep_longest(&mut self, places: i16, length: Register) {
        let (same, done) = (self.asm.label(), self.asm.label());
        self.look_up_element(self.tables.epoch, 0);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.load(Width::B8, R1, R0, 0);
        self.asm.set(R2, R1);
        self.asm.alu_constant(AluOp::And, R2, 1);
        const { assert!(size_of::<EpochLongest>() == 1 << 4) };
        self.asm.alu_constant(AluOp::ShiftLeft, R2, 4);
        self.asm.set(R3, R9);
        self.asm.alu(AluOp::Add, R3, R2);
        self.asm.load(Width::B8, R4, R3, places);
        self.asm.jump_if(Condition::Equal, R4, R1, same);
        self.asm.store(Width::B8, R3, places, R1);
        self.asm.store(Width::B8, R3, places + offset!(EpochLongest, nanoseconds), length);
        self.asm.jump(done);
        self.asm.bind(same);
        self.asm.load(Width::B8, R5, R3, places + offset!(EpochLongest, nanoseconds));
        self.asm.jump_if(Condition::AtLeast, R5, length, done);
        self.asm.store(Width::B8, R3, places + offset!(EpochLongest, nanoseconds), length);
        self.asm.bind(done);
    }

    fn count_pause(&mut self) -> Result<(), TraceError> {
        // In milliseconds; 0 or less if the task may continue at once.
        self.load_field(R7, &["pause"])?;
        self.asm.jump_if_constant(Condition::AtMostSigned, R7, 0, self.out);
        self.load_field(R8, &["paused"])?;
        self.asm.store_constant(Width::B8, R10, KEY_AT + offset!(PauseKey, thread), 0);
        self.copy_text("bdi", KEY_AT + offset!(PauseKey, device), 32)?;
        self.store_thread(KEY_AT + offset!(PauseKey, thread));
        self.find_or_make_entry(size!(PauseValue), Some(TIMED_TASK), LossCounter::Pauses);
        let goes_on = self.asm.label();
        self.asm.jump_if_constant(Condition::NotEqual, R8, 0, goes_on);
        self.add_constant(offset!(PauseValue, waits), 1);
        self.asm.bind(goes_on);
        self.asm.alu(AluOp::Add, R8, R7);
        self.asm.alu_constant(AluOp::Mul, R8, 1_000_000);
        self.asm.alu_constant(AluOp::Mul, R7, 1_000_000);
        self.count_duration();
        self.keep_longest(offset!(TimedValue, longest_wait), R8);
        self.add_field(offset!(PauseValue, dirty), &["dirty"])?;
        self.add_field(offset!(PauseValue, setpoint), &["setpoint"])?;
        self.add_field(offset!(PauseValue, limit), &["limit"])?;
        // Older kernels have other names for these two.
        self.add_field(offset!(PauseValue, device_dirty), &["wb_dirty", "bdi_dirty"])?;
        self.add_field(offset!(PauseValue, device_setpoint), &["wb_setpoint", "bdi_setpoint"])
    }

    fn store_stall_key(&mut self, kind: i32) {
        self.asm.store_constant(Width::B4, R10, KEY_AT + offset!(StallKey, kind), kind);
        self.store_thread(KEY_AT + offset!(StallKey, thread));
    }

    fn begin_stall(&mut self, kind: i32) {
        self.store_stall_key(kind);
        self.find_or_make_entry(size!(StallValue), Some(TIMED_TASK), LossCounter::Stalls);
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.store(Width::B8, R9, offset!(StallValue, began), R0);
    }

    fn end_stall(&mut self, kind: i32) -> Result<(), TraceError> {
        self.store_stall_key(kind);
        self.asm.pass_map_and_key(self.tables.entries, KEY_AT);
        self.asm.call(KernelHelper::MapLookup);
        // The stall began before tracing did.
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.asm.set(R9, R0);
        self.asm.load(Width::B8, R8, R9, offset!(StallValue, began));
        self.asm.jump_if_constant(Condition::Equal, R8, 0, self.out);
        self.asm.store_constant(Width::B8, R9, offset!(StallValue, began), 0);
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.set(R7, R0);
        self.asm.alu(AluOp::Sub, R7, R8);
        self.count_duration();
        self.add_field(offset!(StallValue, reclaimed_pages), &["nr_reclaimed"])
    }

    fn store_in_flight_key(&mut self) -> Result<(), TraceError> {
        self.store_zeros(KEY_AT, size!(InFlightKey));
        self.load_field(R7, &["dev"])?;
        self.asm.store(Width::B4, R10, KEY_AT + offset!(InFlightKey, dev), R7);
        self.load_field(R1, &["sector"])?;
        self.asm.store(Width::B8, R10, KEY_AT + offset!(InFlightKey, sector), R1);
        Ok(())
    }

    fn begin_request(&mut self) -> Result<(), TraceError> {
        self.store_in_flight_key()?;
        self.store_zeros(VALUE_AT, size!(InFlightValue));
        self.load_field(R1, &["nr_sector"])?;
        self.asm.store(Width::B4, R10, VALUE_AT + offset!(InFlightValue, sectors), R1);
        self.copy_text("rwbs", VALUE_AT + offset!(InFlightValue, letters), 2)?;
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.store(Width::B8, R10, VALUE_AT + offset!(InFlightValue, began), R0);
        self.asm.pass_map_and_key(self.tables.flights, KEY_AT);
        self.asm.set(R3, R10);
        self.asm.alu_constant(AluOp::Add, R3, i32::from(VALUE_AT));
        self.asm.constant(R4, 0);
        self.asm.call(KernelHelper::MapUpdate);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        self.count_lost(LossCounter::Requests);
        Ok(())
    }

    fn end_request(&mut self) -> Result<(), TraceError> {
        self.store_in_flight_key()?;
        self.asm.pass_map_and_key(self.tables.flights, KEY_AT);
        self.asm.call(KernelHelper::MapLookup);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        // R6 is no longer the record: everything that is needed of it was read.
        self.asm.load(Width::B8, R8, R0, offset!(InFlightValue, began));
        self.asm.load(Width::B4, R6, R0, offset!(InFlightValue, sectors));
        self.asm.load(Width::B2, R9, R0, offset!(InFlightValue, letters));
        self.asm.pass_map_and_key(self.tables.flights, KEY_AT);
        self.asm.call(KernelHelper::MapDelete);
        self.store_zeros(KEY_AT, size!(RequestKey));
        self.asm.store(Width::B4, R10, KEY_AT + offset!(RequestKey, dev), R7);
        self.asm.store(Width::B2, R10, KEY_AT + offset!(RequestKey, letters), R9);
        self.asm.call(KernelHelper::Processor);
        self.asm.store(Width::B2, R10, KEY_AT + offset!(RequestKey, processor), R0);
        self.asm.call(KernelHelper::Nanoseconds);
        self.asm.set(R7, R0);
        self.asm.alu(AluOp::Sub, R7, R8);
        self.find_or_make_entry(size!(RequestValue), None, LossCounter::Requests);
        self.count_duration();
        self.asm.atomic_add(R9, offset!(RequestValue, sectors), R6);
        Ok(())
    }
}
