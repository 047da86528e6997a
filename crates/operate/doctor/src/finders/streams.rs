//! Streams that push a database's hot set out of the page cache: backups, archivers, dumps, copies.
//!
//! A stream is a process other than a database that brings in many pages, or drops a database's
//! pages, while pages of the database's data files leave the page cache. A database's own workers
//! that send a backup or a copy count as streams, too. There is no finding if nothing was pushed
//! out, or if memory was not short: a stream in plenty of memory does no harm. Reclaim of idle
//! pages regardless of free memory is reported separately ([`idle`]). All this requires tracing:
//! without it nobody is blamed.

mod finding;
mod fixes;
mod idle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::MemoryCgroup;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_observe::{Database, File};
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{PageCounts, TaskIdentity, TraceCounts};

use super::EarlierFindings;
use crate::observed::attribution::database_of;
use crate::phrases::per_second;
use crate::{Finding, Observation, Streamer, StreamerFile};
use idle::IdleReclaimers;

/// Minimum bytes that a stream brings in.
const STREAM_BYTES_MIN: u64 = 32 << 20;
/// Minimum rate of a stream, in bytes per second.
const STREAM_RATE_MIN: u64 = 1 << 20;
/// Minimum bytes of a database's pages that have to leave.
const PUSHED_OUT_BYTES_MIN: u64 = 16 << 20;

/// Returns the databases whose hot set is pushed out by streams.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    let Some(trace) = observation.trace() else { return Vec::new() };
    let Some(pages) = &trace.pages else { return Vec::new() };
    let found = observation.databases().map(|(index, database)| {
        let data = data_files(observation, index);
        let takers = IdleReclaimers::of(observation, trace, pages, &data);
        let streams = streams(observation, trace, pages, index, &data, &takers);
        let loss = CacheLoss::of(observation, pages, index, database, &data, &streams, &takers);
        let streams: Vec<StreamingProcess<'_>> =
            streams.into_iter().filter(|stream| stream.is_to_blame(observation, database, &loss)).collect();
        let pushed = (loss.is_one() && !streams.is_empty())
            .then(|| finding::finding(observation, index, &loss, &streams));
        [pushed, takers.finding(observation, index, &loss)]
    });
    found.flatten().flatten().collect()
}

/// Returns the files whose pages a database wants to keep: those that existed all the time and are
/// not logs.
fn data_files<'a>(observation: &Observation<'a>, index: usize) -> HashMap<Inode, &'a File> {
    let before: HashMap<Inode, &File> =
        observation.before.files.iter().map(|file| (file.inode, file)).collect();
    observation
        .files_of(index)
        .filter(|file| !file.class.is_some_and(FileClass::is_log))
        // Pages lost at the end of a file were truncated, not pushed out; and the number of a
        // removed file may be reused.
        .filter(|file| {
            before.get(&file.inode).is_some_and(|then| then.path == file.path && then.size <= file.size)
        })
        .map(|file| (file.inode, file))
        .collect()
}

/// A process that moves many pages.
struct StreamingProcess<'a> {
    pid: u32,
    name: &'a str,
    /// Its inspected data; `None` if it had ended.
    streamer: Option<&'a Streamer>,
    /// Whether it is one of the database's own workers.
    worker: bool,
    /// Bytes that it brought in.
    added: u64,
    /// The part of these in the database's data.
    added_own: u64,
    /// Bytes of the database's data that it removed.
    removed_own: u64,
    /// Bytes that it reclaimed for itself, whoever owned them.
    reclaimed: u64,
    /// The files of which it brought in most: bytes, and the inode.
    files: Vec<(u64, Inode)>,
}

/// Returns the processes that move as many pages as a stream.
fn streams<'a>(
    observation: &'a Observation<'_>,
    trace: &TraceCounts,
    pages: &'a [PageCounts],
    index: usize,
    data: &HashMap<Inode, &File>,
    takers: &IdleReclaimers<'_>,
) -> Vec<StreamingProcess<'a>> {
    let mut all: BTreeMap<u32, StreamingProcess<'a>> = BTreeMap::new();
    for (task, counts) in pages.iter().filter_map(|counts| Some((counts.task.as_ref()?, counts))) {
        // A process that reclaims for others drops nothing of its own accord.
        if takers.has(task) || idle::is_background(observation, task) {
            continue;
        }
        let streamer = observation.streamers.iter().find(|streamer| streamer.pid == task.process);
        let worker = match database_of(observation, task) {
            None => false,
            Some(owner) if owner == index && streamer.is_some_and(|streamer| copies(&streamer.title)) => true,
            Some(_) => continue,
        };
        let stream = all.entry(task.process).or_insert_with(|| StreamingProcess {
            pid: task.process,
            name: name_of(pages, task.process),
            streamer,
            worker,
            added: 0,
            added_own: 0,
            removed_own: 0,
            reclaimed: reclaimed_by(trace, task.process),
            files: Vec::new(),
        });
        let (added, removed) = (counts.flow.added.bytes, counts.flow.removed.bytes);
        stream.added += added;
        if added > 0 {
            stream.files.push((added, counts.file));
        }
        if data.contains_key(&counts.file) {
            stream.added_own += added;
            stream.removed_own += removed;
        }
    }
    let mut streams: Vec<StreamingProcess<'a>> =
        all.into_values().filter(|stream| stream.is_one(observation)).collect();
    for stream in &mut streams {
        stream.files.sort_by(|a, b| b.cmp(a));
    }
    streams.sort_by_key(|stream| (std::cmp::Reverse(stream.added + stream.dropped()), stream.pid));
    streams
}

/// Returns the name of a process's thread that moved most.
pub(super) fn name_of(pages: &[PageCounts], pid: u32) -> &str {
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    for (task, counts) in pages.iter().filter_map(|counts| Some((counts.task.as_ref()?, counts))) {
        if task.process == pid {
            *names.entry(&task.name).or_default() += counts.flow.added.bytes + counts.flow.removed.bytes;
        }
    }
    names.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(name, _)| name).unwrap_or_default()
}

fn reclaimed_by(trace: &TraceCounts, pid: u32) -> u64 {
    let reclaim = trace.reclaim.iter().flatten();
    reclaim.filter(|reclaim| reclaim.task.process == pid).map(|reclaim| reclaim.reclaimed).sum()
}

/// Whether a worker with this title reads for a copy: a PostgreSQL process that sends a backup, or
/// serves `COPY`.
fn copies(title: &str) -> bool {
    title.contains("sending backup") || title.contains("walsender") || title.ends_with(" COPY")
}

impl StreamingProcess<'_> {
    /// Whether it moved enough.
    fn is_one(&self, observation: &Observation<'_>) -> bool {
        let fast =
            |bytes: u64| per_second(bytes, observation.period()).is_some_and(|rate| rate >= STREAM_RATE_MIN);
        let moved = self.added.max(self.dropped());
        moved >= STREAM_BYTES_MIN && fast(moved)
    }

    /// Returns the bytes of the database's data that it dropped itself (`POSIX_FADV_DONTNEED`):
    /// removed, but not reclaimed for lack of memory.
    fn dropped(&self) -> u64 {
        self.removed_own.saturating_sub(self.reclaimed)
    }

    /// Whether it can be the cause of pushing the database's pages out: it drops them, or takes
    /// memory that both share.
    fn is_to_blame(&self, observation: &Observation<'_>, database: &Database, loss: &CacheLoss) -> bool {
        if self.dropped() >= PUSHED_OUT_BYTES_MIN {
            return true;
        }
        // A database larger than its memory pushes itself out; a small stream beside that does not
        // count.
        if self.added < loss.came_back / 4 {
            return false;
        }
        let group = database.cgroup.as_ref();
        if let Some(streamer) = self.streamer.filter(|streamer| !streamer.title.is_empty()) {
            return share_memory(observation, streamer.cgroup.as_ref(), group);
        }
        // The stream has ended. Its reclaim of the database's pages shows whose memory it took.
        let unlimited = group.is_none_or(|group| group.effective_limit.is_none());
        self.removed_own >= PUSHED_OUT_BYTES_MIN || (unlimited && has_reclaimed(observation))
    }

    /// Returns a verb for its use of the file of which it brought in most.
    fn verb(&self) -> &'static str {
        let access = self.files.first().and_then(|(_, inode)| self.open(*inode)).map(|file| file.access);
        match access {
            Some(AccessMode::ReadOnly) => "reads",
            Some(AccessMode::WriteOnly) => "writes",
            _ => "brings in",
        }
    }

    fn open(&self, inode: Inode) -> Option<&StreamerFile> {
        self.streamer?.open(inode)
    }

    /// Returns the path of the file of which it brought in most, among those with known paths.
    fn path<'b>(&'b self, data: &HashMap<Inode, &'b File>) -> Option<&'b Path> {
        self.files.iter().find_map(|(_, inode)| {
            let open = self.open(*inode).map(|file| file.path.as_path());
            open.or_else(|| data.get(inode).map(|file| file.path.as_path()))
        })
    }
}

/// Whether pages brought in by one can push out the other's: both are under one limit, or only
/// under the machine's.
pub(super) fn share_memory(
    observation: &Observation<'_>,
    stream: Option<&MemoryCgroup>,
    database: Option<&MemoryCgroup>,
) -> bool {
    match (stream, database) {
        (Some(a), Some(b)) => {
            let unlimited = a.effective_limit.is_none();
            let above = a.directory.starts_with(&b.directory) || b.directory.starts_with(&a.directory);
            let inherited = |group: &MemoryCgroup| group.limit != group.effective_limit;
            let beside = a.directory.parent() == b.directory.parent() && inherited(a) && inherited(b);
            a.effective_limit == b.effective_limit
                && if unlimited { has_reclaimed(observation) } else { above || beside }
        }
        // One of the two is not visible: its only limit is the machine's.
        (Some(group), None) | (None, Some(group)) if group.effective_limit.is_some() => is_short(observation),
        _ => has_reclaimed(observation),
    }
}

/// Whether the machine reclaimed for lack of memory during the watch, as far as that is counted.
fn has_reclaimed(observation: &Observation<'_>) -> bool {
    observation.reclaimed_by_host().is_none_or(|bytes| bytes >= PUSHED_OUT_BYTES_MIN)
}

/// Whether tasks had to reclaim the machine's memory themselves during the watch.
fn is_short(observation: &Observation<'_>) -> bool {
    let stalls = observation.change().and_then(|change| change.machine.allocation_stalls);
    stalls.is_some_and(|stalls| stalls > 0)
}

/// The pages that a database lost meanwhile, in bytes.
struct CacheLoss {
    /// Data that left the page cache, excluding pages reclaimed as idle.
    pushed: u64,
    /// Data that its own processes brought in again, excluding growth and streams.
    came_back: u64,
    /// Data that streams dropped themselves; the kernel does not remember such pages.
    dropped: u64,
    /// Increase of the evicted pages that the kernel remembers; `None` if unknown.
    evicted: Option<u64>,
    /// The kernel's count of rereads after eviction, and its scope.
    refaulted: Option<(u64, &'static str)>,
}

impl CacheLoss {
    /// Whether enough left, and not by the database's own doing alone: the kernel knows of pages
    /// that it took.
    fn is_one(&self) -> bool {
        let taken = self.evicted.is_none_or(|bytes| bytes > 0)
            || self.refaulted.is_none_or(|(bytes, _)| bytes > 0)
            || self.dropped > 0;
        self.pushed >= PUSHED_OUT_BYTES_MIN && taken
    }

    /// Returns an upper bound of what it had to read from storage again: not more than the kernel
    /// knows to have come back.
    fn missed(&self) -> u64 {
        match self.refaulted {
            Some((bytes, _)) => self.came_back.min(bytes.saturating_add(self.dropped)),
            None => self.came_back,
        }
    }

    fn of(
        observation: &Observation<'_>,
        pages: &[PageCounts],
        index: usize,
        database: &Database,
        data: &HashMap<Inode, &File>,
        streams: &[StreamingProcess<'_>],
        takers: &IdleReclaimers<'_>,
    ) -> Self {
        let is_stream = |task: &TaskIdentity| streams.iter().any(|stream| stream.pid == task.process);
        let mut files: HashMap<Inode, [u64; 3]> = HashMap::new();
        for counts in pages.iter().filter(|counts| data.contains_key(&counts.file)) {
            let [removed, streamed, own] = files.entry(counts.file).or_default();
            if !counts.task.as_ref().is_some_and(|task| takers.has(task)) {
                *removed += counts.flow.removed.bytes;
            }
            match &counts.task {
                Some(task) if is_stream(task) => *streamed += counts.flow.added.bytes,
                Some(task) if database_of(observation, task) == Some(index) => {
                    *own += counts.flow.added.bytes;
                }
                _ => {}
            }
        }
        let grown = |inode: Inode| {
            let before = observation.before(inode).map_or(0, |file| file.size);
            data.get(&inode).map_or(0, |file| file.size.saturating_sub(before))
        };
        Self {
            // Pages that a stream itself read from the files and lost again were not the
            // database's.
            pushed: files.values().map(|[removed, streamed, _]| removed.saturating_sub(*streamed)).sum(),
            came_back: files.iter().map(|(inode, [_, _, own])| own.saturating_sub(grown(*inode))).sum(),
            dropped: streams
                .iter()
                .map(StreamingProcess::dropped)
                .filter(|bytes| *bytes >= PUSHED_OUT_BYTES_MIN)
                .sum(),
            evicted: evicted(observation, data),
            refaulted: refaulted(observation, database),
        }
    }
}

fn evicted(observation: &Observation<'_>, data: &HashMap<Inode, &File>) -> Option<u64> {
    let mut known = None;
    for file in data.values() {
        let before = observation.before(file.inode).and_then(|file| file.residency);
        let both = file.residency.and_then(|now| now.evicted).zip(before.and_then(|then| then.evicted));
        if let Some((now, then)) = both {
            *known.get_or_insert(0) += now.saturating_sub(then);
        }
    }
    known
}

/// Returns the rereads in the database's memory cgroup, or else on the machine.
fn refaulted(observation: &Observation<'_>, database: &Database) -> Option<(u64, &'static str)> {
    match observation.refaulted_in_group(database) {
        Some(bytes) => Some((bytes, "in its memory cgroup")),
        None => Some((observation.change()?.machine.refaulted?, "on the whole host")),
    }
}
