//! The programs of a sample of pages: they count accesses, and write a record for each event of a
//! page that is in the sample.
//!
//! A read of a resident page takes the kernel about a microsecond, so most programs end at once:
//! they load fields by their types, without a call, and first ask whether the page is in the sample.
//! Only one in [`COUNTED_ACCESSES`] short accesses is counted, for that many.
//!
//! Invariants: accesses and additions count if their process is followed, or their file is below
//! one of the directories. Removals and writes are recorded whoever causes them. Only regular files
//! count, without those of tmpfs, whose pages need swap instead of a disk. The hash is that of
//! [`PageSample`].

use pagekeeper_kernel::page_size;
use pagekeeper_policy::page_sample::{COUNTED_PAGES_MAX, PageSample, SAMPLE_FACTORS};
use pagekeeper_text::unescaped_bytes;

use super::{EventProgramWriter, EventStack, EventTableFds, PageTracepoint, R0, R1, R2, R3, R4, R6, R7};
use super::{R8, R9, R10, S_IFMT, S_IFREG, signed};
use crate::asm::{AluOp, AssemblyError, Condition, KernelHelper, Register, Width, offset, stack};
use crate::page_events::btf::{Btf, BtfError};
use crate::page_events::layout::{LOST_PAGES, StructOffsets, record_kind};
use crate::sys::Instruction;

/// One in this many short accesses is counted, in the sample or not; a power of two.
const COUNTED_ACCESSES: i32 = 16;
/// Each access to at least this many pages is counted.
const LONG_ACCESS_PAGES: i32 = 16;
/// The number of counters, a power of two: processors have one each, up to that number.
pub(in crate::page_events) const ACCESS_COUNTERS: u32 = 64;
/// The most directories between a file and one that was named.
const DIRECTORY_LEVELS_MAX: usize = 16;
/// The flag of a task that reclaims memory (`PF_MEMALLOC` of `include/linux/sched.h`).
const RECLAIM_FLAG: i32 = 0x800;
/// The magic number of tmpfs and of shared memory (`include/uapi/linux/magic.h`).
const TMPFS_MAGIC: i32 = 0x0102_1994;

/// Counters of accesses, as long as a cache line.
#[repr(C)]
pub(in crate::page_events) struct AccessCounters {
    /// Pages that were read, or faulted in one by one; an estimate.
    pub(in crate::page_events) used: u64,
    /// Faults that mapped pages of the page cache; an estimate.
    pub(in crate::page_events) mapped: u64,
    _padding: [u64; 6],
}

/// Key of the table of directories.
#[repr(C)]
pub(in crate::page_events) struct DirectoryKey {
    pub(in crate::page_events) ino: u64,
    /// In the kernel's own form.
    pub(in crate::page_events) dev: u32,
    _padding: u32,
}

/// Value of the table of files, by the address of their mapping.
#[repr(C)]
pub(in crate::page_events) struct FileVerdict {
    ino: u64,
    is_inside: u64,
}

/// A tracepoint and its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::page_events) enum SamplePoint {
    Added,
    Removed,
    Dirtied,
    Read,
    Mapped,
    Faulted,
}

impl SamplePoint {
    /// All of them, in the order in which they are attached: what ends comes first.
    pub(in crate::page_events) const ALL: [Self; 6] =
        [Self::Removed, Self::Dirtied, Self::Read, Self::Mapped, Self::Faulted, Self::Added];

    /// Returns the tracepoint, and the program's name.
    pub(in crate::page_events) fn names(self) -> (&'static std::ffi::CStr, &'static str) {
        match self {
            Self::Added => PageTracepoint::Added.names(),
            Self::Removed => (c"mm_filemap_delete_from_page_cache", "pk_removed"),
            Self::Dirtied => PageTracepoint::Dirtied.names(),
            Self::Read => PageTracepoint::Read.names(),
            Self::Mapped => PageTracepoint::Mapped.names(),
            Self::Faulted => PageTracepoint::Faulted.names(),
        }
    }

    /// Returns the name of the type of its arguments.
    pub(in crate::page_events) fn type_name(self) -> String {
        format!("btf_trace_{}", unescaped_bytes(self.names().0.to_bytes()))
    }

    fn kind(self) -> i32 {
        match self {
            Self::Added => record_kind::SAMPLE_ADDED,
            Self::Removed => record_kind::SAMPLE_REMOVED,
            Self::Dirtied => record_kind::SAMPLE_DIRTIED,
            Self::Read => record_kind::SAMPLE_READ,
            Self::Mapped => record_kind::SAMPLE_MAPPED,
            Self::Faulted => record_kind::SAMPLE_FAULTED,
        }
    }
}

/// The scope of a sample, by descriptors of tables.
#[derive(Debug, Clone, Copy)]
pub(in crate::page_events) enum ScopeFds {
    /// Followed processes.
    Processes,
    /// Files below directories, by [`DirectoryKey`], with the [`FileVerdict`] of each file.
    Directories { directories: i32, files: i32 },
}

/// The parts of a sample.
#[derive(Debug, Clone, Copy)]
pub(in crate::page_events) struct SampleParts {
    pub(in crate::page_events) sample: PageSample,
    pub(in crate::page_events) scope: ScopeFds,
    /// The array of [`AccessCounters`].
    pub(in crate::page_events) counters: i32,
    pub(in crate::page_events) at: SampleOffsets,
}

/// Offsets of fields that only samples need, in bytes.
#[derive(Debug, Clone, Copy)]
pub(in crate::page_events) struct SampleOffsets {
    inode_names: u32,
    dentry_name: u32,
    dentry_parent: u32,
    dentry_inode: u32,
    inode_size: u32,
    task_flags: u32,
}

impl SampleOffsets {
    pub(in crate::page_events) fn of(btf: &Btf<'_>) -> Result<Self, BtfError> {
        let name = btf.offset("dentry", &["d_u", "d_alias"]);
        Ok(Self {
            inode_names: btf.offset("inode", &["i_dentry"])?,
            dentry_name: name.or_else(|_| btf.offset("dentry", &["d_alias"]))?,
            dentry_parent: btf.offset("dentry", &["d_parent"])?,
            dentry_inode: btf.offset("dentry", &["d_inode"])?,
            inode_size: btf.offset("inode", &["i_size"])?,
            task_flags: btf.offset("task_struct", &["flags"])?,
        })
    }
}

/// Returns the program of a tracepoint.
pub(in crate::page_events) fn sample_program(
    point: SamplePoint,
    tables: EventTableFds,
    offsets: &StructOffsets,
    parts: &SampleParts,
) -> Result<Vec<Instruction>, AssemblyError> {
    let mut writer = EventProgramWriter::new(tables, offsets);
    writer.is_typed = true;
    match point {
        SamplePoint::Read | SamplePoint::Mapped => writer.sample_access(point, 16, parts),
        SamplePoint::Faulted => writer.sample_access(point, 8, parts),
        SamplePoint::Added | SamplePoint::Removed | SamplePoint::Dirtied => {
            writer.sample_folio(point, parts);
        }
    }
    writer.asm.finish_at(writer.out)
}

impl EventProgramWriter<'_> {
    /// Handles an access. The arguments are the mapping, the first page and, at offset `last`, the
    /// last one.
    fn sample_access(&mut self, point: SamplePoint, last: i16, parts: &SampleParts) {
        self.asm.load(Width::B8, R7, R1, 0);
        self.asm.load(Width::B8, R6, R1, last);
        self.asm.load(Width::B8, R2, R1, 8);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.first_page), R2);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.pages), R6);
        self.store_inode();
        self.skip_most_accesses(point, parts.sample);
        self.skip_other_processes(parts);
        self.read_pointer(R8, R7, self.at.mapping_host);
        self.end_at_size(&parts.at);
        self.skip_other_directories(parts);
        self.count_access(point, parts);
        self.skip_unless_sampled(parts.sample);
        self.report(point, parts);
    }

    /// Handles a folio that is added, removed or written to, the first argument.
    fn sample_folio(&mut self, point: SamplePoint, parts: &SampleParts) {
        self.asm.load(Width::B8, R6, R1, 0);
        self.read_pointer(R7, R6, self.at.folio_mapping);
        self.store_inode();
        self.read_kernel(stack!(EventStack, record.first_page), 8, R6, self.at.folio_index);
        self.count_folio_pages();
        self.asm.load(Width::B8, R6, R10, stack!(EventStack, record.first_page));
        self.asm.alu(AluOp::Add, R6, R9);
        self.asm.alu_constant(AluOp::Sub, R6, 1);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.pages), R6);
        self.skip_unless_sampled(parts.sample);
        if point == SamplePoint::Added {
            self.skip_other_processes(parts);
            self.read_pointer(R8, R7, self.at.mapping_host);
            self.skip_other_directories(parts);
        }
        self.report(point, parts);
    }

    /// Stores the number of the inode of the mapping at `R7`; `R8` = its address. Jumps to `out`
    /// unless it is a regular file that is not in memory only. Uses `R9`.
    fn store_inode(&mut self) {
        self.asm.store(Width::B8, R10, stack!(EventStack, record.mapping), R7);
        self.read_pointer(R8, R7, self.at.mapping_host);
        self.read_kernel(stack!(EventStack, record.ino), 8, R8, self.at.inode_ino);
        self.read_kernel(stack!(EventStack, record.mode), 2, R8, self.at.inode_mode);
        self.asm.load(Width::B4, R1, R10, stack!(EventStack, record.mode));
        self.asm.alu_constant(AluOp::And, R1, S_IFMT);
        self.asm.jump_if_constant(Condition::NotEqual, R1, S_IFREG, self.out);
        self.read_pointer(R9, R8, self.at.inode_super);
        self.read_pointer(R1, R9, self.at.super_magic);
        self.asm.jump_if_constant(Condition::Equal, R1, TMPFS_MAGIC, self.out);
    }

    /// Decides how many accesses this one, up to page `R6`, is counted for. Jumps to `out` if none
    /// and it is not in the sample. Uses `R8` and `R9`.
    fn skip_most_accesses(&mut self, point: SamplePoint, sample: PageSample) {
        let goes_on = self.asm.label();
        if point != SamplePoint::Mapped {
            self.count_for(1);
            self.asm.set(R1, R6);
            self.asm.load(Width::B8, R2, R10, stack!(EventStack, record.first_page));
            self.asm.alu(AluOp::Sub, R1, R2);
            self.asm.jump_if_constant(Condition::AtLeast, R1, LONG_ACCESS_PAGES - 1, goes_on);
        }
        self.count_for(COUNTED_ACCESSES);
        self.asm.call(KernelHelper::Random);
        self.asm.alu_constant(AluOp::And, R0, COUNTED_ACCESSES - 1);
        self.asm.jump_if_constant(Condition::Equal, R0, 0, goes_on);
        self.count_for(0);
        self.skip_unless_sampled(sample);
        self.asm.bind(goes_on);
    }

    fn count_for(&mut self, accesses: i32) {
        self.asm.store_constant(Width::B8, R10, stack!(EventStack, counts_for), accesses);
    }

    /// Makes the last page, `R6`, at most that of the end of the inode at `R8`: a read asks for as
    /// much as its buffer holds. Jumps to `out` if all pages are beyond the end.
    fn end_at_size(&mut self, at: &SampleOffsets) {
        let is_inside = self.asm.label();
        self.read_pointer(R1, R8, at.inode_size);
        self.asm.jump_if_constant(Condition::Equal, R1, 0, is_inside);
        self.asm.alu_constant(AluOp::Sub, R1, 1);
        self.asm.alu_constant(AluOp::ShiftRight, R1, signed(page_size().ilog2()));
        self.asm.jump_if(Condition::AtLeast, R1, R6, is_inside);
        self.asm.load(Width::B8, R2, R10, stack!(EventStack, record.first_page));
        self.asm.jump_if(Condition::Below, R1, R2, self.out);
        self.asm.set(R6, R1);
        self.asm.store(Width::B8, R10, stack!(EventStack, record.pages), R6);
        self.asm.bind(is_inside);
    }

    /// Jumps to `out` if processes are followed, and the calling one is not.
    fn skip_other_processes(&mut self, parts: &SampleParts) {
        if matches!(parts.scope, ScopeFds::Processes) {
            self.store_process();
            self.look_up(self.tables.followed, stack!(EventStack, record.process));
            self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        }
    }

    /// Jumps to `out` if the inode at `R8` is not below a directory that was named. Uses `R9`.
    fn skip_other_directories(&mut self, parts: &SampleParts) {
        let ScopeFds::Directories { directories, files } = parts.scope else { return };
        let (unknown, decided) = (self.asm.label(), self.asm.label());
        self.look_up(files, stack!(EventStack, record.mapping));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, unknown);
        self.asm.load(Width::B8, R1, R0, offset!(FileVerdict, ino));
        self.asm.load(Width::B8, R2, R10, stack!(EventStack, record.ino));
        self.asm.jump_if(Condition::NotEqual, R1, R2, unknown);
        self.asm.load(Width::B8, R9, R0, offset!(FileVerdict, is_inside));
        self.asm.jump(decided);

        self.asm.bind(unknown);
        self.look_for_directory(directories, &parts.at);
        self.asm.pass_map_and_key(files, stack!(EventStack, record.mapping));
        self.asm.load_address(R3, stack!(EventStack, verdict));
        self.asm.constant(R4, 0);
        self.asm.call(KernelHelper::MapUpdate);
        self.asm.load(Width::B8, R9, R10, stack!(EventStack, verdict.is_inside));
        self.asm.bind(decided);
        self.asm.jump_if_constant(Condition::Equal, R9, 0, self.out);
    }

    /// Stores the verdict on the inode at `R8`: goes from its name up to the root. Uses `R9`.
    fn look_for_directory(&mut self, directories: i32, at: &SampleOffsets) {
        let (inside, done) = (self.asm.label(), self.asm.label());
        self.asm.load(Width::B8, R1, R10, stack!(EventStack, record.ino));
        self.asm.store(Width::B8, R10, stack!(EventStack, verdict.ino), R1);
        self.asm.store_constant(Width::B8, R10, stack!(EventStack, verdict.is_inside), 0);
        self.asm.store_constant(Width::B8, R10, stack!(EventStack, directory.dev), 0);
        self.read_pointer(R9, R8, self.at.inode_super);
        self.read_kernel(stack!(EventStack, directory.dev), 4, R9, self.at.super_dev);
        // From here on addresses are computed, which have no type.
        self.probe_pointer(R9, R8, signed(at.inode_names));
        self.asm.jump_if_constant(Condition::Equal, R9, 0, done);
        self.asm.alu_constant(AluOp::Sub, R9, signed(at.dentry_name));
        for _ in 0..DIRECTORY_LEVELS_MAX {
            self.probe_pointer(R1, R9, signed(at.dentry_parent));
            self.asm.jump_if(Condition::Equal, R1, R9, done);
            self.asm.set(R9, R1);
            self.probe_pointer(R1, R9, signed(at.dentry_inode));
            self.probe_kernel(stack!(EventStack, directory.ino), 8, R1, signed(self.at.inode_ino));
            self.look_up(directories, stack!(EventStack, directory));
            self.asm.jump_if_constant(Condition::NotEqual, R0, 0, inside);
        }
        self.asm.jump(done);
        self.asm.bind(inside);
        self.asm.store_constant(Width::B8, R10, stack!(EventStack, verdict.is_inside), 1);
        self.asm.bind(done);
    }

    /// Counts an access up to page `R6`, in the counters of this processor, for as many as it
    /// stands for. Uses `R9`.
    fn count_access(&mut self, point: SamplePoint, parts: &SampleParts) {
        let (is_few, done) = (self.asm.label(), self.asm.label());
        self.asm.load(Width::B8, R9, R10, stack!(EventStack, counts_for));
        self.asm.jump_if_constant(Condition::Equal, R9, 0, done);
        self.asm.call(KernelHelper::Processor);
        self.asm.alu_constant(AluOp::And, R0, signed(ACCESS_COUNTERS - 1));
        self.asm.store(Width::B4, R10, stack!(EventStack, index), R0);
        self.look_up(parts.counters, stack!(EventStack, index));
        self.asm.jump_if_constant(Condition::Equal, R0, 0, self.out);
        if point == SamplePoint::Mapped {
            self.asm.atomic_add(R0, offset!(AccessCounters, mapped), R9);
            return self.asm.bind(done);
        }
        self.asm.set(R1, R6);
        self.asm.alu_constant(AluOp::Add, R1, 1);
        self.asm.load(Width::B8, R2, R10, stack!(EventStack, record.first_page));
        self.asm.alu(AluOp::Sub, R1, R2);
        let most = i32::try_from(COUNTED_PAGES_MAX).unwrap_or(i32::MAX);
        self.asm.jump_if_constant(Condition::Below, R1, most, is_few);
        self.asm.constant(R1, most);
        self.asm.bind(is_few);
        self.asm.alu(AluOp::Mul, R1, R9);
        self.asm.atomic_add(R0, offset!(AccessCounters, used), R1);
        self.asm.bind(done);
    }

    /// Writes the record of the pages of the mapping at `R7`.
    fn report(&mut self, point: SamplePoint, parts: &SampleParts) {
        self.store_file();
        if point == SamplePoint::Removed {
            self.asm.call(KernelHelper::Task);
            self.asm.set(R8, R0);
            self.probe_kernel(stack!(EventStack, record.flag), 4, R8, signed(parts.at.task_flags));
            self.asm.load(Width::B4, R0, R10, stack!(EventStack, record.flag));
            self.asm.alu_constant(AluOp::And, R0, RECLAIM_FLAG);
        } else {
            self.asm.call(KernelHelper::ProcessAndThread);
        }
        self.asm.store(Width::B4, R10, stack!(EventStack, record.flag), R0);
        self.asm.constant(R9, 1);
        self.write_or_count_lost(point.kind(), LOST_PAGES);
    }

    /// Jumps to `out` if no page up to `R6` is in the sample. A range that has a whole group has
    /// one. Uses `R8` and `R9`.
    fn skip_unless_sampled(&mut self, sample: PageSample) {
        let is_sampled = self.asm.label();
        let log2 = signed(sample.weight_log2());
        if log2 == 0 {
            return;
        }
        self.asm.load(Width::B8, R9, R10, stack!(EventStack, record.first_page));
        self.asm.alu_constant(AluOp::ShiftRight, R9, log2);
        self.asm.set(R8, R6);
        self.asm.alu_constant(AluOp::ShiftRight, R8, log2);
        self.asm.set(R1, R8);
        self.asm.alu(AluOp::Sub, R1, R9);
        self.asm.jump_if_constant(Condition::AtLeast, R1, 2, is_sampled);
        for group in [R9, R8] {
            let next = self.asm.label();
            self.load_page_of_group(group, log2);
            self.asm.load(Width::B8, R2, R10, stack!(EventStack, record.first_page));
            self.asm.jump_if(Condition::Below, R1, R2, next);
            self.asm.jump_if(Condition::AtLeast, R6, R1, is_sampled);
            self.asm.bind(next);
        }
        self.asm.jump(self.out);
        self.asm.bind(is_sampled);
    }

    /// `R1` = the page of a group that is in the sample ([`PageSample::page_of_group`]).
    fn load_page_of_group(&mut self, group: Register, log2: i32) {
        self.asm.load(Width::B8, R1, R10, stack!(EventStack, record.ino));
        self.asm.wide_constant(R2, SAMPLE_FACTORS[0]);
        self.asm.alu(AluOp::Mul, R1, R2);
        self.asm.alu(AluOp::Add, R1, group);
        self.asm.wide_constant(R2, SAMPLE_FACTORS[1]);
        self.asm.alu(AluOp::Mul, R1, R2);
        self.asm.set(R2, R1);
        self.asm.alu_constant(AluOp::ShiftRight, R2, 32);
        self.asm.alu(AluOp::Xor, R1, R2);
        self.asm.wide_constant(R2, SAMPLE_FACTORS[2]);
        self.asm.alu(AluOp::Mul, R1, R2);
        self.asm.alu_constant(AluOp::ShiftRight, R1, 64 - log2);
        self.asm.set(R2, group);
        self.asm.alu_constant(AluOp::ShiftLeft, R2, log2);
        self.asm.alu(AluOp::Add, R1, R2);
    }
}
