//! The programs that run in the kernel at each tracepoint.
//!
//! Invariants: each program only reads its record, counts in tables, and returns 0 (no record is kept for
//! perf). An entry is made at its first event; without room for it the event is counted as lost. Entries of
//! tasks are written only by that task, so an atomic addition is enough for their numbers, and the longest
//! duration needs not even that. Fails if the tracepoint lacks a field; the verifier has the last word.

use super::TraceError;
use super::asm::{AsmError, Assembler, Helper, If, Label, Op, Reg, Width};
use super::durations::CLASSES;
use super::event::Event;
use super::record::{Lost, flight, flight_key, page, page_key, pause_key, request_key, stall_key, timed};
use super::tracefs::Tracepoint;
use crate::sys::Instruction;
use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use pagekeeper_kernel::Inode;

/// The descriptors of the tables a program counts in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables {
    /// The entries of the event's kind.
    pub(super) entries: i32,
    /// Requests in flight; for the other kinds the same as `entries`.
    pub(super) flights: i32,
    /// The counters of lost events.
    pub(super) lost: i32,
    /// The number of the epoch.
    pub(super) epoch: i32,
}

/// The files of which pages are counted; devices in the kernel's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    Everything,
    Devices(Vec<u64>),
    Files(Vec<Inode>),
}

/// The place on the stack where a new entry's value is made; its key is below it.
const VALUE: i16 = -timed::SIZE;
const KEY: i16 = VALUE - pause_key::SIZE;
/// An index of 4 bytes into an array.
const INDEX: i16 = KEY - 8;

/// Returns the program of a tracepoint.
pub(super) fn program(
    point: &Tracepoint,
    tables: Tables,
    choice: &Choice,
) -> Result<Vec<Instruction>, TraceError> {
    let mut writer = Writer::new(point, tables);
    // The record. R6 keeps its address; R9 will be the entry's.
    writer.asm.set(R6, R1);
    match point.event {
        Event::Add => writer.pages(choice, page::ADDED_FOLIOS, page::ADDED_PAGES)?,
        Event::Delete => writer.pages(choice, page::REMOVED_FOLIOS, page::REMOVED_PAGES)?,
        Event::Pause => writer.pause()?,
        Event::ReclaimBegin => writer.reclaim_begin(0),
        Event::GroupReclaimBegin => writer.reclaim_begin(1),
        Event::ReclaimEnd => writer.reclaim_end(0)?,
        Event::GroupReclaimEnd => writer.reclaim_end(1)?,
        Event::Issue => writer.issue()?,
        Event::Complete => writer.complete()?,
    }
    writer.finish().map_err(|error| TraceError::Call {
        call: "assemble",
        what: point.event.to_string(),
        source: std::io::Error::other(error),
    })
}

/// The offsets of the task in a new entry.
#[derive(Clone, Copy)]
struct TaskAt {
    process: i16,
    name: i16,
}

struct Writer<'a> {
    asm: Assembler,
    point: &'a Tracepoint,
    tables: Tables,
    /// The end of the program.
    out: Label,
}

impl<'a> Writer<'a> {
    fn new(point: &'a Tracepoint, tables: Tables) -> Self {
        let mut asm = Assembler::new();
        let out = asm.label();
        Self { asm, point, tables, out }
    }

    fn finish(mut self) -> Result<Vec<Instruction>, AsmError> {
        self.asm.bind(self.out);
        self.asm.constant(R0, 0);
        self.asm.exit();
        self.asm.finish()
    }

    /// `dst` = a number of the record, sign-extended.
    fn field(&mut self, dst: Reg, names: &[&'static str]) -> Result<(), TraceError> {
        let field = self.point.field(names)?;
        let width = Width::of(field.size).ok_or_else(|| self.point.lacks(names[0]))?;
        let offset = i16::try_from(field.offset).map_err(|_| self.point.lacks(names[0]))?;
        self.asm.load(width, dst, R6, offset);
        if field.signed && field.size < 8 {
            let unused = i32::from(64 - 8 * field.size);
            self.asm.alu_constant(Op::ShiftLeft, dst, unused);
            self.asm.alu_constant(Op::ShiftRightSigned, dst, unused);
        }
        Ok(())
    }

    /// Copies `len` bytes of a field that is an array of characters to the stack at `to`, and fills the rest
    /// with zeros.
    fn text(&mut self, name: &'static str, to: i16, len: u16) -> Result<(), TraceError> {
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

    /// `dst` = the map; `R2` = a place on the stack.
    fn map_and_key(&mut self, map: i32, key: i16) {
        self.asm.map(R1, map);
        self.asm.set(R2, R10);
        self.asm.alu_constant(Op::Add, R2, i32::from(key));
    }

    /// `R0` = address of the element of an array, or null.
    fn element(&mut self, array: i32, index: i32) {
        self.asm.store_constant(Width::B4, R10, INDEX, index);
        self.map_and_key(array, INDEX);
        self.asm.call(Helper::MapLookup);
    }

    /// Counts one lost event.
    fn count_lost(&mut self, lost: Lost) {
        self.element(self.tables.lost, lost as i32);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R0, 0, R1);
    }

    /// Stores zeros on the stack, `size` bytes from `at`.
    fn zeros(&mut self, at: i16, size: i16) {
        for offset in (0..size).step_by(8) {
            self.asm.store_constant(Width::B8, R10, at + offset, 0);
        }
    }

    /// `R9` = address of the entry whose key is at `KEY`, which is made if there is none. Without room,
    /// counts one lost event and jumps to `out`.
    fn entry(&mut self, size: i16, task: Option<TaskAt>, lost: Lost) {
        let found = self.asm.label();
        self.map_and_key(self.tables.entries, KEY);
        self.asm.call(Helper::MapLookup);
        self.asm.jump_if_constant(If::NotEqual, R0, 0, found);

        self.zeros(VALUE, size);
        if let Some(task) = task {
            self.asm.call(Helper::ProcessAndThread);
            self.asm.alu_constant(Op::ShiftRight, R0, 32);
            self.asm.store(Width::B8, R10, VALUE + task.process, R0);
            self.asm.set(R1, R10);
            self.asm.alu_constant(Op::Add, R1, i32::from(VALUE + task.name));
            self.asm.constant(R2, 16);
            self.asm.call(Helper::TaskName);
        }
        self.map_and_key(self.tables.entries, KEY);
        self.asm.set(R3, R10);
        self.asm.alu_constant(Op::Add, R3, i32::from(VALUE));
        // Only if there is none (BPF_NOEXIST): another processor may have been faster.
        self.asm.constant(R4, 1);
        self.asm.call(Helper::MapUpdate);
        self.map_and_key(self.tables.entries, KEY);
        self.asm.call(Helper::MapLookup);
        self.asm.jump_if_constant(If::NotEqual, R0, 0, found);
        self.count_lost(lost);
        self.asm.jump(self.out);

        self.asm.bind(found);
        self.asm.set(R9, R0);
    }

    /// Stores the thread's number on the stack, 4 bytes.
    fn thread(&mut self, to: i16) {
        self.asm.call(Helper::ProcessAndThread);
        self.asm.store(Width::B4, R10, to, R0);
    }

    /// `[R9 + at] += constant`.
    fn count(&mut self, at: i16, constant: i32) {
        self.asm.constant(R1, constant);
        self.asm.atomic_add(R9, at, R1);
    }

    /// `[R9 + at] +=` a number of the record.
    fn sum(&mut self, at: i16, names: &[&'static str]) -> Result<(), TraceError> {
        self.field(R1, names)?;
        self.asm.atomic_add(R9, at, R1);
        Ok(())
    }

    /// Jumps to `out` unless the pages' file (`R7` device, `R8` inode number) is chosen.
    fn choose(&mut self, choice: &Choice) {
        let chosen = self.asm.label();
        match choice {
            Choice::Everything => return,
            Choice::Devices(devices) => {
                for device in devices {
                    self.asm.wide_constant(R1, *device);
                    self.asm.jump_if(If::Equal, R7, R1, chosen);
                }
            }
            Choice::Files(files) => {
                for file in files {
                    let other = self.asm.label();
                    self.asm.wide_constant(R1, file.ino);
                    self.asm.jump_if(If::NotEqual, R8, R1, other);
                    self.asm.wide_constant(R1, file.dev);
                    self.asm.jump_if(If::Equal, R7, R1, chosen);
                    self.asm.bind(other);
                }
            }
        }
        self.asm.jump(self.out);
        self.asm.bind(chosen);
    }

    fn pages(&mut self, choice: &Choice, folios: i16, pages: i16) -> Result<(), TraceError> {
        self.field(R7, &["s_dev"])?;
        self.field(R8, &["i_ino"])?;
        self.choose(choice);
        self.asm.store(Width::B8, R10, KEY + page_key::INO, R8);
        self.asm.store(Width::B4, R10, KEY + page_key::DEV, R7);
        self.thread(KEY + page_key::THREAD);
        self.asm.constant(R7, 1);
        // Older kernels have no order, but an event for each page.
        if self.point.format.field("order").is_some() {
            self.field(R2, &["order"])?;
            self.asm.alu_constant(Op::And, R2, 31);
            self.asm.alu(Op::ShiftLeft, R7, R2);
        }
        self.entry(page::SIZE, Some(TaskAt { process: page::PROCESS, name: page::NAME }), Lost::Pages);
        self.count(folios, 1);
        self.asm.atomic_add(R9, pages, R7);
        Ok(())
    }

    /// Counts a duration of `R7` nanoseconds in the entry at `R9`. Loses `R0` to `R5`.
    fn length(&mut self) {
        self.count(timed::COUNT, 1);
        self.asm.atomic_add(R9, timed::TOTAL, R7);
        self.class();
        self.longest(timed::LONGEST, R7);
    }

    /// Computes the class of a duration, which is the logarithm of its microseconds, by halving.
    fn class(&mut self) {
        let (last, done) = (self.asm.label(), self.asm.label());
        self.asm.set(R1, R7);
        self.asm.alu_constant(Op::Div, R1, 1000);
        self.asm.constant(R2, 0);
        let classes = i32::try_from(CLASSES).expect("a few classes");
        self.asm.jump_if_constant(If::AtLeast, R1, 1 << (classes - 1), last);
        for bits in [16, 8, 4, 2, 1] {
            let below = self.asm.label();
            self.asm.jump_if_constant(If::Below, R1, 1 << bits, below);
            self.asm.alu_constant(Op::ShiftRight, R1, bits);
            self.asm.alu_constant(Op::Add, R2, bits);
            self.asm.bind(below);
        }
        // The verifier can't see that it is below the last class.
        self.asm.jump_if_constant(If::Below, R2, classes, done);
        self.asm.bind(last);
        self.asm.constant(R2, classes - 1);
        self.asm.bind(done);
        self.asm.alu_constant(Op::Mul, R2, 8);
        self.asm.set(R3, R9);
        self.asm.alu(Op::Add, R3, R2);
        self.asm.constant(R1, 1);
        self.asm.atomic_add(R3, timed::CLASS, R1);
    }

    /// Stores `length` at the epoch's place if it is the longest of the epoch.
    fn longest(&mut self, places: i16, length: Reg) {
        let (same, done) = (self.asm.label(), self.asm.label());
        self.element(self.tables.epoch, 0);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.asm.load(Width::B8, R1, R0, 0);
        self.asm.set(R2, R1);
        self.asm.alu_constant(Op::And, R2, 1);
        self.asm.alu_constant(Op::ShiftLeft, R2, 4);
        self.asm.set(R3, R9);
        self.asm.alu(Op::Add, R3, R2);
        self.asm.load(Width::B8, R4, R3, places);
        self.asm.jump_if(If::Equal, R4, R1, same);
        self.asm.store(Width::B8, R3, places, R1);
        self.asm.store(Width::B8, R3, places + 8, length);
        self.asm.jump(done);
        self.asm.bind(same);
        self.asm.load(Width::B8, R5, R3, places + 8);
        self.asm.jump_if(If::AtLeast, R5, length, done);
        self.asm.store(Width::B8, R3, places + 8, length);
        self.asm.bind(done);
    }

    fn pause(&mut self) -> Result<(), TraceError> {
        // In milliseconds; 0 or less if the task may continue at once.
        self.field(R7, &["pause"])?;
        self.asm.jump_if_constant(If::AtMostSigned, R7, 0, self.out);
        self.field(R8, &["paused"])?;
        self.asm.store_constant(Width::B8, R10, KEY + pause_key::THREAD, 0);
        self.text("bdi", KEY + pause_key::DEVICE, 32)?;
        self.thread(KEY + pause_key::THREAD);
        self.entry(timed::SIZE, Some(TaskAt { process: timed::PROCESS, name: timed::NAME }), Lost::Pauses);
        let goes_on = self.asm.label();
        self.asm.jump_if_constant(If::NotEqual, R8, 0, goes_on);
        self.count(timed::WAITS, 1);
        self.asm.bind(goes_on);
        self.asm.alu(Op::Add, R8, R7);
        self.asm.alu_constant(Op::Mul, R8, 1_000_000);
        self.asm.alu_constant(Op::Mul, R7, 1_000_000);
        self.length();
        self.longest(timed::LONGEST_WAIT, R8);
        self.sum(timed::DIRTY, &["dirty"])?;
        self.sum(timed::SETPOINT, &["setpoint"])?;
        self.sum(timed::LIMIT, &["limit"])?;
        // Older kernels have other names for these two.
        self.sum(timed::DEVICE_DIRTY, &["wb_dirty", "bdi_dirty"])?;
        self.sum(timed::DEVICE_SETPOINT, &["wb_setpoint", "bdi_setpoint"])
    }

    fn stall_key(&mut self, kind: i32) {
        self.asm.store_constant(Width::B4, R10, KEY + stall_key::KIND, kind);
        self.thread(KEY + stall_key::THREAD);
    }

    fn reclaim_begin(&mut self, kind: i32) {
        self.stall_key(kind);
        self.entry(timed::SIZE, Some(TaskAt { process: timed::PROCESS, name: timed::NAME }), Lost::Stalls);
        self.asm.call(Helper::Nanoseconds);
        self.asm.store(Width::B8, R9, timed::BEGUN, R0);
    }

    fn reclaim_end(&mut self, kind: i32) -> Result<(), TraceError> {
        self.stall_key(kind);
        self.map_and_key(self.tables.entries, KEY);
        self.asm.call(Helper::MapLookup);
        // It began before tracing did.
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.asm.set(R9, R0);
        self.asm.load(Width::B8, R8, R9, timed::BEGUN);
        self.asm.jump_if_constant(If::Equal, R8, 0, self.out);
        self.asm.store_constant(Width::B8, R9, timed::BEGUN, 0);
        self.asm.call(Helper::Nanoseconds);
        self.asm.set(R7, R0);
        self.asm.alu(Op::Sub, R7, R8);
        self.length();
        self.sum(timed::RECLAIMED, &["nr_reclaimed"])
    }

    fn flight_key(&mut self) -> Result<(), TraceError> {
        self.zeros(KEY, flight_key::SIZE);
        self.field(R7, &["dev"])?;
        self.asm.store(Width::B4, R10, KEY + flight_key::DEV, R7);
        self.field(R1, &["sector"])?;
        self.asm.store(Width::B8, R10, KEY + flight_key::SECTOR, R1);
        Ok(())
    }

    fn issue(&mut self) -> Result<(), TraceError> {
        self.flight_key()?;
        self.zeros(VALUE, flight::SIZE);
        self.field(R1, &["nr_sector"])?;
        self.asm.store(Width::B4, R10, VALUE + flight::SECTORS, R1);
        self.text("rwbs", VALUE + flight::LETTERS, 2)?;
        self.asm.call(Helper::Nanoseconds);
        self.asm.store(Width::B8, R10, VALUE + flight::BEGUN, R0);
        self.map_and_key(self.tables.flights, KEY);
        self.asm.set(R3, R10);
        self.asm.alu_constant(Op::Add, R3, i32::from(VALUE));
        self.asm.constant(R4, 0);
        self.asm.call(Helper::MapUpdate);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        self.count_lost(Lost::Requests);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), TraceError> {
        self.flight_key()?;
        self.map_and_key(self.tables.flights, KEY);
        self.asm.call(Helper::MapLookup);
        self.asm.jump_if_constant(If::Equal, R0, 0, self.out);
        // R6 is no longer the record: everything that is needed of it was read.
        self.asm.load(Width::B8, R8, R0, flight::BEGUN);
        self.asm.load(Width::B4, R6, R0, flight::SECTORS);
        self.asm.load(Width::B2, R9, R0, flight::LETTERS);
        self.map_and_key(self.tables.flights, KEY);
        self.asm.call(Helper::MapDelete);
        self.zeros(KEY, request_key::SIZE);
        self.asm.store(Width::B4, R10, KEY + request_key::DEV, R7);
        self.asm.store(Width::B2, R10, KEY + request_key::LETTERS, R9);
        self.asm.call(Helper::Processor);
        self.asm.store(Width::B2, R10, KEY + request_key::PROCESSOR, R0);
        self.asm.call(Helper::Nanoseconds);
        self.asm.set(R7, R0);
        self.asm.alu(Op::Sub, R7, R8);
        self.entry(timed::SIZE, None, Lost::Requests);
        self.length();
        self.asm.atomic_add(R9, timed::SECTORS, R6);
        Ok(())
    }
}
