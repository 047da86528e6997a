//! Events of a sample of pages, for the miss-ratio curve of a page cache: pages that come, are
//! used, written and leave, by some processes or below some directories, and the number of accesses
//! to all pages.
//!
//! Processes are followed with their children, as for [`PageEvents`]. A file belongs to a directory
//! by the name by which the kernel knows it: a second hard link may not be found, and what is
//! mounted below the directory is not. Not covered: accesses through pages that a process has
//! mapped already (their faults are events), block devices, and files of tmpfs.
//!
//! Invariants: this module only observes. All tables are bounded, and events without room are
//! counted ([`PageSamples::lost`]). Fails if the kernel has no BTF, lacks the tracepoints (Linux
//! 6.12), or refuses the programs.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pagekeeper_policy::miss_curve::{CacheEvent, CachedFile};
use pagekeeper_policy::page_sample::PageSample;
use rustix::io::Errno;

use super::layout::{PageRecord, StructOffsets, described_by_this_kernel, record_kind};
use super::programs::sampling::{
    ACCESS_COUNTERS, AccessCounters, DirectoryKey, FileVerdict, SampleOffsets, SampleParts, SamplePoint,
    ScopeFds, sample_program,
};
use super::{EventFile, PENDING_READS_MAX, PageEvents, RecordBytes, assembled, failed, table};
use crate::TraceError;
use crate::asm::offset;
use crate::sys::{BpfMap, MapKind, ProgramKind};

/// The most directories that can be named.
pub const DIRECTORIES_MAX: u32 = 1 << 10;
/// The most files whose directory is remembered; that of others is looked for again.
const REMEMBERED_FILES_MAX: u32 = 64 << 10;

/// A directory as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledDirectory {
    /// The device of its file system, as the mount has it: on btrfs not that of the subvolume.
    pub dev: u64,
    /// Its inode number.
    pub ino: u64,
}

/// The accesses that are sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampleScope {
    /// Those of followed processes.
    Processes,
    /// Those to files below these directories, by anybody.
    Directories(Vec<SampledDirectory>),
}

/// All accesses since the start, in the sample or not, estimated: of short ones a random part is
/// counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessCounts {
    /// Pages that were read or faulted in. A long read counts for at most
    /// [`COUNTED_PAGES_MAX`](pagekeeper_policy::page_sample::COUNTED_PAGES_MAX) pages at a time.
    pub used: u64,
    /// Faults that mapped pages of the page cache.
    pub mapped: u64,
}

/// An event of a file's pages, at least one of which is in the sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageSampleEvent {
    /// The file.
    pub file: CachedFile,
    /// Its pages, by number.
    pub pages: RangeInclusive<u64>,
    /// The event.
    pub event: CacheEvent,
}

/// Events of a sample, from its creation until it is dropped.
#[derive(Debug)]
pub struct PageSamples {
    events: PageEvents,
    counters: BpfMap,
    threads: Threads,
}

/// The last event of threads whose next one may belong to it.
#[derive(Debug, Default)]
struct Threads {
    /// The file and the last page of reads.
    reads: HashMap<u32, (CachedFile, RangeInclusive<u64>)>,
    /// Faults, which are reported before the page comes that they wait for.
    faults: HashMap<u32, PageSampleEvent>,
}

impl PageSamples {
    /// Loads and attaches the programs. Needs `CAP_BPF` and `CAP_PERFMON`.
    ///
    /// # Errors
    ///
    /// If the kernel or the caller's permissions do not allow that. [`TraceError::NoEvent`] if it
    /// lacks a tracepoint.
    pub fn open(sample: PageSample, scope: &SampleScope) -> Result<Self, TraceError> {
        let mut events = PageEvents::without_programs()?;
        let offsets = StructOffsets::of_this_kernel()?;
        let counters = table(MapKind::Array, "pk_accesses", 4, size_of::<AccessCounters>(), ACCESS_COUNTERS)?;
        let (at, type_ids) = described_by_this_kernel(|btf| {
            Ok((SampleOffsets::of(btf)?, SamplePoint::ALL.map(|point| btf.typedef(&point.type_name()))))
        })?;
        // Programs keep the tables that they use.
        let tables = scope.directories().map(scope_tables).transpose()?;
        let parts = SampleParts {
            sample,
            scope: tables.as_ref().map_or(ScopeFds::Processes, |(directories, files)| {
                ScopeFds::Directories { directories: directories.raw_fd(), files: files.raw_fd() }
            }),
            counters: counters.raw_fd(),
            at,
        };
        events.attach_lives(&offsets)?;
        let fds = events.tables(-1);
        for (point, type_id) in SamplePoint::ALL.into_iter().zip(type_ids) {
            let kind = ProgramKind::TypedTracepoint(type_id.ok_or_else(|| no_tracepoint(point))?);
            let (_, name) = point.names();
            let code = assembled(name, sample_program(point, fds, &offsets, &parts))?;
            events.load_and_attach(kind, None, name, &code)?;
        }
        Ok(Self { events, counters, threads: Threads::default() })
    }

    /// Follows a process and the children that it starts from now on.
    pub fn follow(&self, process: u32) -> Result<(), TraceError> {
        self.events.follow(process)
    }

    /// Stops following a process, if it is followed.
    pub fn unfollow(&self, process: u32) -> Result<(), TraceError> {
        self.events.unfollow(process)
    }

    /// Returns whether a followed process is running.
    pub fn has_processes(&self) -> Result<bool, TraceError> {
        let has = self.events.followed.has_entries();
        has.map_err(|errno| failed("bpf(MAP_NEXT_KEY)", "pk_followed", errno))
    }

    /// Takes the events that have come, oldest first, at most one buffer's worth.
    pub fn drain(&mut self, take: &mut dyn FnMut(PageSampleEvent)) {
        let threads = &mut self.threads;
        self.events.ring.drain(|bytes| threads.take(&RecordBytes(bytes), take));
        self.threads.faults.drain().for_each(|(_, fault)| take(fault));
    }

    /// Returns the number of accesses since the start.
    pub fn counts(&self) -> Result<AccessCounts, TraceError> {
        let mut sum = AccessCounts::default();
        for index in 0..ACCESS_COUNTERS {
            let mut value = [0; size_of::<AccessCounters>()];
            let looked_up = self.counters.lookup(&index.to_ne_bytes(), &mut value);
            looked_up.map_err(|errno: Errno| failed("bpf(MAP_LOOKUP)", "pk_accesses", errno))?;
            let value = RecordBytes(&value);
            sum.used += value.long(offset!(AccessCounters, used));
            sum.mapped += value.long(offset!(AccessCounters, mapped));
        }
        Ok(sum)
    }

    /// Returns the number of events without room since the start.
    pub fn lost(&self) -> Result<u64, TraceError> {
        let lost = self.events.lost()?;
        Ok(lost.pages + lost.others)
    }
}

impl SampleScope {
    fn directories(&self) -> Option<&[SampledDirectory]> {
        match self {
            Self::Processes => None,
            Self::Directories(all) => Some(all),
        }
    }
}

/// Makes the tables of directories and of files.
fn scope_tables(all: &[SampledDirectory]) -> Result<(BpfMap, BpfMap), TraceError> {
    let directories = table(MapKind::Hash, "pk_directories", size_of::<DirectoryKey>(), 8, DIRECTORIES_MAX)?;
    for directory in all {
        let (major, minor) = (rustix::fs::major(directory.dev), rustix::fs::minor(directory.dev));
        let mut key = [0; size_of::<DirectoryKey>()];
        key[..8].copy_from_slice(&directory.ino.to_ne_bytes());
        key[8..12].copy_from_slice(&(major << 20 | minor & 0xf_ffff).to_ne_bytes());
        let added = directories.update(&key, &0_u64.to_ne_bytes());
        added.map_err(|errno| failed("bpf(MAP_UPDATE)", "pk_directories", errno))?;
    }
    let files = table(MapKind::RecentHash, "pk_files", 8, size_of::<FileVerdict>(), REMEMBERED_FILES_MAX)?;
    Ok((directories, files))
}

/// Returns the error of a kernel that lacks a point's tracepoint.
fn no_tracepoint(point: SamplePoint) -> TraceError {
    let tracepoint = pagekeeper_text::unescaped_bytes(point.names().0.to_bytes());
    TraceError::NoEvent {
        event: format!("filemap:{tracepoint}"),
        path: format!("/sys/kernel/tracing/events/filemap/{tracepoint}").into(),
    }
}

impl Threads {
    /// Passes on the event of a record, after the fault that was waiting for it.
    fn take(&mut self, record: &RecordBytes<'_>, take: &mut dyn FnMut(PageSampleEvent)) {
        let file = record.file();
        let kind = record.word(offset!(PageRecord, kind)).cast_signed();
        if !(record_kind::SAMPLE_ADDED..=record_kind::SAMPLE_FAULTED).contains(&kind) || file.is_block_device
        {
            return;
        }
        let flag = record.word(offset!(PageRecord, flag));
        let EventFile { dev, ino, .. } = file;
        let (file, pages) = (CachedFile { dev, ino }, record.pages());
        let event = match kind {
            record_kind::SAMPLE_ADDED => CacheEvent::Added,
            record_kind::SAMPLE_REMOVED => CacheEvent::Removed { is_reclaim: flag != 0 },
            record_kind::SAMPLE_DIRTIED => CacheEvent::Written,
            record_kind::SAMPLE_READ => {
                CacheEvent::Used { is_continued: self.is_continued(flag, file, &pages) }
            }
            record_kind::SAMPLE_FAULTED => CacheEvent::Used { is_continued: false },
            _ => CacheEvent::Mapped,
        };
        let event = PageSampleEvent { file, pages, event };
        if kind == record_kind::SAMPLE_REMOVED {
            return take(event);
        }
        let fault = self.faults.remove(&flag);
        if kind == record_kind::SAMPLE_FAULTED {
            fault.into_iter().for_each(&mut *take);
            self.faults.insert(flag, event);
        } else if event.event == CacheEvent::Added {
            [Some(event), fault].into_iter().flatten().for_each(take);
        } else {
            [fault, Some(event)].into_iter().flatten().for_each(take);
        }
    }

    /// Returns whether a read continues with the last one of its thread, to the same end.
    fn is_continued(&mut self, thread: u32, file: CachedFile, pages: &RangeInclusive<u64>) -> bool {
        if self.reads.len() >= PENDING_READS_MAX {
            self.reads.clear();
        }
        let before = self.reads.insert(thread, (file, pages.clone()));
        before.is_some_and(|(last_file, last)| {
            last_file == file && last.end() == pages.end() && last.start() < pages.start()
        })
    }
}

#[cfg(test)]
mod tests;
