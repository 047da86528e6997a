//! Records which ranges of which files a command reads while it starts, in order.
//!
//! A read is an addition of pages by a process of the command, or its first use of pages that this
//! process loaded ahead of it (Linux 6.12). Ranges are kept in windows of [`ORDER_WINDOW_BYTES`]:
//! their order is that of the reads, and within a window each file's ranges are in file order.
//!
//! Invariants: each page of a file is recorded once. A file is opened once, for a moment, when it
//! is first read, so that its name is known even if it is removed soon after. Files without a name,
//! block devices, metadata and files with a lease are left out. All tables are bounded: together
//! they take at most 150 MB. A read that finds no room is not recorded, and the recording is not
//! exact.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use pagekeeper_kernel::InspectedFile;
use pagekeeper_policy::ranges::append;
use pagekeeper_trace::page_events::{EventFile, FollowedNames, PageEvent, PageEvents};

use crate::open::{Metadata, Opener};
use crate::source::EventSource;
use crate::{IsMember, Unavailable};

/// The grain of the order: small beside what a disk reads in the time that a server notices.
const ORDER_WINDOW_BYTES: u64 = 8 << 20;
/// Fewer bytes than this are no sign of a start that continues: a running server always reads some.
const ACTIVE_BYTES: u64 = 256 << 10;
/// The most files, at some 500 bytes each: a database of this many tables opens all of them.
const READ_FILES_MAX: usize = 64 << 10;
/// The most steps, at some 300 bytes each: the description of a file, its path and a list.
const READ_STEPS_MAX: usize = 128 << 10;
/// The most ranges, at some 50 bytes each: one in a step, and one among those of its file.
const READ_RANGES_MAX: usize = 1 << 20;

/// A step of a start: a file, and ascending ranges of it in bytes.
pub type ReadStep<F> = (F, Vec<Range<u64>>);

/// Describes a file when it is first read; `None` leaves it out.
type DescribeFile<F> = Box<dyn FnMut(&InspectedFile) -> Option<F>>;

/// The reads of a command's start, from its creation until [`Self::end`].
pub struct StartReads<F> {
    events: Box<dyn EventSource>,
    /// This process, which loads pages ahead of the command.
    own: u32,
    running: HashSet<u32>,
    /// The test for processes of the command; `None` if they are named by [`Self::follow`].
    members: Option<IsMember>,
    opener: Opener,
    metadata: Metadata,
    describe: DescribeFile<F>,
    files: HashMap<(u64, u64, u32), ReadFile<F>>,
    window: Vec<(u64, u64, u32)>,
    window_bytes: u64,
    steps: Vec<ReadStep<F>>,
    ranges: usize,
    /// Whether there was no room for a read.
    is_cut: bool,
    added_bytes: u64,
    /// Bytes of pages loaded ahead that the command has used since the last look, by file.
    used: HashMap<(u64, u64, u32), u64>,
    began: Instant,
    /// The time when the first process of the command began.
    first: Option<Instant>,
    /// The time when the last process ended, if none runs.
    gone: Option<Instant>,
    active: Instant,
    since_active: u64,
}

/// A file that the command reads.
struct ReadFile<F> {
    /// `None` for a file that is left out.
    described: Option<F>,
    /// All ranges so far: their ends by their starts.
    seen: BTreeMap<u64, u64>,
    /// The new ranges in the current window.
    fresh: Vec<Range<u64>>,
}

/// The recorded reads.
#[derive(Debug)]
pub struct RecordedReads<F> {
    /// The reads in order.
    pub steps: Vec<ReadStep<F>>,
    /// Whether every read of pages that were loaded ahead was seen and recorded.
    pub is_exact: bool,
    /// Bytes that the command's processes read from disks themselves and that were not added to the
    /// page cache: by direct I/O.
    pub direct_bytes: u64,
}

impl<F: Clone> StartReads<F> {
    /// Starts to record the reads of processes to come: of those that pass the test when they
    /// become a program, if there is one, and of those that [`Self::follow`] names.
    ///
    /// # Errors
    ///
    /// If the kernel or the caller's permissions do not allow that.
    pub fn start(
        members: Option<IsMember>,
        describe: impl FnMut(&InspectedFile) -> Option<F> + 'static,
    ) -> Result<Self, Unavailable> {
        let streams = members.iter().map(|_| "*".to_owned()).collect();
        let events = PageEvents::open(&FollowedNames { streams, never: Vec::new() });
        let events = events.map_err(|error| Unavailable(error.to_string()))?;
        Ok(Self { members, ..Self::with_events(Box::new(events), Box::new(describe)) })
    }

    fn with_events(events: Box<dyn EventSource>, describe: DescribeFile<F>) -> Self {
        let now = Instant::now();
        Self {
            events,
            own: std::process::id(),
            running: HashSet::new(),
            members: None,
            opener: Opener::new(),
            metadata: Metadata::default(),
            describe,
            files: HashMap::new(),
            window: Vec::new(),
            window_bytes: 0,
            steps: Vec::new(),
            ranges: 0,
            is_cut: false,
            added_bytes: 0,
            used: HashMap::new(),
            began: now,
            first: None,
            gone: None,
            active: now,
            since_active: 0,
        }
    }

    /// Records the reads of this process, and of the children that it starts from now on.
    ///
    /// # Errors
    ///
    /// If the kernel does not follow it.
    pub fn follow(&mut self, pid: u32) -> Result<(), Unavailable> {
        self.events.follow(pid).map_err(|error| Unavailable(error.to_string()))?;
        self.begin(pid);
        Ok(())
    }

    fn begin(&mut self, pid: u32) {
        if self.running.is_empty() {
            let now = Instant::now();
            (self.active, self.gone) = (now, None);
            self.first.get_or_insert(now);
        }
        self.running.insert(pid);
    }

    fn end_of(&mut self, pid: u32) {
        if self.running.remove(&pid) && self.running.is_empty() {
            self.gone = Some(Instant::now());
        }
    }

    /// Has the uses of pages seen that this process adds from now on.
    ///
    /// # Errors
    ///
    /// If the kernel does not follow it.
    pub fn expect_own_additions(&self) -> Result<(), Unavailable> {
        self.events.follow(self.own).map_err(|error| Unavailable(error.to_string()))
    }

    /// Takes the events that have come. To be called every 10 ms or so.
    pub fn step(&mut self) {
        let mut came = Vec::new();
        self.events.drain(&mut |event| came.push(event));
        for event in came {
            self.take(event);
        }
        self.opener.rest();
    }

    /// Returns whether the kernel shows uses of pages that were loaded ahead.
    pub fn sees_use(&self) -> bool {
        self.events.sees_use()
    }

    /// Takes the bytes of pages loaded ahead that the command has used since the last call, by file.
    pub fn take_used(&mut self, mut take: impl FnMut(&F, u64)) {
        for (key, bytes) in self.used.drain() {
            let described = self.files.get(&key).and_then(|read| read.described.as_ref());
            if let Some(file) = described {
                take(file, bytes);
            }
        }
    }

    /// Returns whether a process of the command runs.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Returns the time since the first process of the command began; `None` before that.
    pub fn begun_for(&self) -> Option<Duration> {
        self.first.map(|first| first.elapsed())
    }

    /// Returns for how long no process of the command has run; `None` while one runs, and before
    /// the first one.
    pub fn gone_for(&self) -> Option<Duration> {
        self.gone.map(|gone| gone.elapsed())
    }

    /// Returns for how long the command has read nothing worth mentioning; zero while it does not
    /// run. Once there is no room for more reads, that is forever.
    pub fn quiet_for(&self) -> Duration {
        match self.is_running() {
            true if self.is_full() => Duration::MAX,
            true => self.active.elapsed(),
            false => Duration::ZERO,
        }
    }

    fn is_full(&self) -> bool {
        self.steps.len() >= READ_STEPS_MAX || self.ranges >= READ_RANGES_MAX
    }

    /// Returns the recorded reads.
    pub fn end(mut self) -> RecordedReads<F> {
        self.step();
        self.flush();
        let lost = self.events.lost();
        let is_complete = !self.is_cut && lost.pages == 0 && lost.uses == 0 && lost.others == 0;
        let read_bytes: u64 = self.running.iter().filter_map(|pid| disk_bytes_read(*pid)).sum();
        RecordedReads {
            steps: self.steps,
            is_exact: self.events.sees_use() && is_complete,
            direct_bytes: read_bytes.saturating_sub(self.added_bytes),
        }
    }

    fn take(&mut self, event: PageEvent) {
        match event {
            PageEvent::Added { process, file, bytes, .. } if self.running.contains(&process) => {
                self.added_bytes += bytes.end - bytes.start;
                self.note(process, &file, bytes);
            }
            PageEvent::Used { process, file, bytes, .. } if self.running.contains(&process) => {
                // What the command brought in itself is recorded already.
                let new_bytes = self.note(process, &file, bytes);
                if new_bytes > 0 {
                    *self.used.entry((file.dev, file.ino, file.generation)).or_default() += new_bytes;
                }
            }
            PageEvent::Began { process, parent, .. } if process != self.own => {
                let is_known = self.running.contains(&process) || self.running.contains(&parent);
                match &self.members {
                    Some(is_member) if !is_known && !is_member(process) => self.events.unfollow(process),
                    _ => self.begin(process),
                }
            }
            PageEvent::Left { process } | PageEvent::Ended { process } => self.end_of(process),
            _ => {}
        }
    }

    /// Records the new parts of a range; returns their bytes.
    fn note(&mut self, process: u32, file: &EventFile, bytes: Range<u64>) -> u64 {
        let key = (file.dev, file.ino, file.generation);
        let is_new = !self.files.contains_key(&key);
        if self.is_full() || (is_new && self.files.len() >= READ_FILES_MAX) {
            self.is_cut = true;
            return 0;
        }
        if is_new {
            let described = self.describe(process, file);
            self.files.insert(key, ReadFile { described, seen: BTreeMap::new(), fresh: Vec::new() });
        }
        let Some(read) = self.files.get_mut(&key).filter(|read| read.described.is_some()) else { return 0 };
        let new = add_range(&mut read.seen, bytes);
        let new_bytes = new.iter().map(|range| range.end - range.start).sum::<u64>();
        if new_bytes == 0 {
            return 0;
        }
        if read.fresh.is_empty() {
            self.window.push(key);
        }
        read.fresh.extend(new);
        self.window_bytes += new_bytes;
        self.note_activity(new_bytes);
        if self.window_bytes >= ORDER_WINDOW_BYTES {
            self.flush();
        }
        new_bytes
    }

    fn note_activity(&mut self, bytes: u64) {
        self.since_active += bytes;
        if self.since_active >= ACTIVE_BYTES {
            (self.active, self.since_active) = (Instant::now(), 0);
        }
    }

    /// Opens a file that a process of the command reads, and describes it.
    fn describe(&mut self, process: u32, file: &EventFile) -> Option<F> {
        if file.is_block_device || self.metadata.includes(file, self.began.elapsed()) {
            return None;
        }
        let opened = self.opener.open(file, &[process], None).ok()?;
        (self.describe)(&opened)
    }

    /// Ends the current window.
    fn flush(&mut self) {
        self.window_bytes = 0;
        for key in std::mem::take(&mut self.window) {
            let Some(read) = self.files.get_mut(&key) else { continue };
            let mut fresh = std::mem::take(&mut read.fresh);
            fresh.sort_unstable_by_key(|range| range.start);
            let mut ranges = Vec::new();
            for range in fresh {
                append(&mut ranges, range, 0);
            }
            self.ranges += ranges.len();
            self.steps.extend(read.described.clone().map(|file| (file, ranges)));
        }
    }
}

/// Adds a range to disjoint ranges; returns its parts that were in none of them.
fn add_range(seen: &mut BTreeMap<u64, u64>, range: Range<u64>) -> Vec<Range<u64>> {
    let mut new = Vec::new();
    let (mut start, mut at, mut end) = (range.start, range.start, range.end);
    let before = seen.range(..range.start).next_back().map(|(start, end)| (*start, *end));
    if let Some((first, last)) = before.filter(|(_, last)| *last >= range.start) {
        (start, at, end) = (first, last, end.max(last));
    }
    let met: Vec<(u64, u64)> = seen.range(start..=range.end).map(|(start, end)| (*start, *end)).collect();
    for (first, last) in met {
        if first > at {
            new.push(at..first);
        }
        (at, end) = (at.max(last), end.max(last));
        seen.remove(&first);
    }
    if at < range.end {
        new.push(at..range.end);
    }
    if start < end {
        seen.insert(start, end);
    }
    new
}

/// Returns the bytes that a process has had read from disks, directly or into the page cache;
/// `None` if that can't be read.
fn disk_bytes_read(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

#[cfg(test)]
mod tests;
