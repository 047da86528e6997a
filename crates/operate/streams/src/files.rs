//! The files of which followed processes brought in pages, and the times at which each is examined
//! next.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_policy::stream_pages::{DueRange, StreamPages, StreamTotals, UnwrittenPages};
use pagekeeper_trace::page_events::EventFile;

use crate::limits::{
    CLEAN_RELEASE_MAX, DUE_BYTES_MIN, FILE_IDLE_AFTER, FILES_MAX, FILES_PER_USER, GIVEN_UP_DIVISOR,
    HUNG_AFTER, HURRY_FOURTHS, LOOK_COST_DIVISOR, RANGES_PER_JOB, STEP_INTERVAL, USERS_PER_FILE, WINDOWS_MAX,
    WINDOWS_PER_USER, WRITE_AFTER, WRITTEN_RELEASE_MAX,
};
use crate::processes::ProcessId;
use crate::requests::{Beneficiaries, Origin};
use crate::{FileReport, StayReason, Verdict};

/// A file with pages that followed processes brought in.
pub(crate) struct File {
    pub(crate) pages: StreamPages,
    pub(crate) unwritten: UnwrittenPages,
    output: Output,
    /// Followed processes that are running and use it.
    pub(crate) users: Vec<ProcessId>,
    /// The process whose sums it counts in, and the part of its totals that counted for earlier
    /// ones.
    pub(crate) owner: ProcessId,
    pub(crate) counted: StreamTotals,
    /// The user of the process that first brought it in.
    pub(crate) user: u32,
    /// The users on whose behalf its pages are released.
    pub(crate) beneficiaries: Beneficiaries,
    /// Whether the verdict of the job in progress was given before a beneficiary was added.
    pub(crate) is_verdict_stale: bool,
    pub(crate) path: Option<PathBuf>,
    pub(crate) verdict: Option<Verdict>,
    /// The reason why pages of it stayed at the last attempt.
    pub(crate) why: Option<StayReason>,
    /// Whether a user maps pages of it, which only paging out releases.
    pub(crate) is_mapped: bool,
    pub(crate) search: PageSearch,
    /// Whether others used pages of it since its job began.
    pub(crate) used_by_others: Arc<AtomicBool>,
    pub(crate) last_event: Duration,
    /// The time when pages of it were last released.
    pub(crate) released_at: Duration,
    /// The time since which no followed process uses it.
    pub(crate) ended: Option<Duration>,
    /// Whether its remaining pages are due at once, to make room.
    is_hurried: bool,
    /// The time since which a job of it is in progress.
    pub(crate) job_since: Option<Duration>,
    look_at: Option<Duration>,
    /// Not examined before this time, because the last examination was expensive.
    not_before: Duration,
    /// Windows of its pages at the last examination.
    windows: usize,
    /// Ranges that were reported instead of released, in order.
    reported: Vec<Range<u64>>,
}

/// The search for pages of a file whose additions were lost. If nobody else has had any of its
/// pages since the streams' first, all that are resident are the streams'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageSearch {
    Impossible,
    Possible,
    /// Additions to it may be among lost events.
    Wanted,
}

/// The way in which dirty pages of a file reach its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    /// Written in its turn.
    Paced,
    /// Written in its turn, and queued for that.
    Waiting,
    /// Could not be opened at the last attempt: its dirty pages do not count.
    Unpaced,
}

/// The next step for a file.
pub(crate) enum FileStep {
    /// Nothing for now.
    Wait,
    /// Release these ranges, and write the unwritten pages if `is_written`.
    Work { ranges: Vec<DueRange>, is_written: bool },
    /// Forget it: nothing is left of it.
    Done,
    /// Give it up: its remaining pages stay.
    GiveUp,
}

impl File {
    pub(crate) fn new(owner: ProcessId, user: u32, now: Duration) -> Self {
        Self {
            pages: StreamPages::default(),
            unwritten: UnwrittenPages::default(),
            output: Output::Paced,
            users: Vec::new(),
            owner,
            counted: StreamTotals::default(),
            user,
            beneficiaries: Beneficiaries::default(),
            is_verdict_stale: false,
            path: None,
            verdict: None,
            why: None,
            is_mapped: false,
            search: PageSearch::Impossible,
            used_by_others: Arc::default(),
            last_event: now,
            released_at: now,
            ended: None,
            is_hurried: false,
            job_since: None,
            look_at: None,
            not_before: Duration::ZERO,
            windows: 0,
            reported: Vec::new(),
        }
    }

    /// Records that a running process uses it. Returns whether that is new.
    pub(crate) fn add_user(&mut self, process: ProcessId, now: Duration) -> bool {
        self.last_event = now;
        self.ended = None;
        self.is_hurried = false;
        let is_new = !self.users.contains(&process) && self.users.len() < USERS_PER_FILE;
        if is_new {
            self.users.push(process);
        }
        is_new
    }

    /// Adds a beneficiary, on whose behalf its pages are released. Earlier verdicts are given
    /// again.
    pub(crate) fn add_beneficiary(&mut self, origin: &Origin) {
        if self.beneficiaries.add(origin) && self.verdict != Some(Verdict::Leave) {
            self.verdict = None;
            self.is_verdict_stale = self.job_since.is_some();
        }
    }

    /// Returns the part of its totals that its present owner is to count.
    pub(crate) fn uncounted(&self) -> StreamTotals {
        let (all, counted) = (self.pages.totals(), self.counted);
        StreamTotals {
            added: all.added - counted.added,
            released: all.released - counted.released,
            handed_on: all.handed_on - counted.handed_on,
            gone: all.gone - counted.gone,
            resident: all.resident,
        }
    }

    /// Makes another process its owner, which counts the resident pages. Returns the rest, for the
    /// previous owner.
    pub(crate) fn pass_on(&mut self, owner: ProcessId) -> StreamTotals {
        let mut part = self.uncounted();
        part.added -= part.resident;
        part.resident = 0;
        crate::report::add(&mut self.counted, part);
        self.owner = owner;
        part
    }

    /// Records that a process wrote to it. Returns how many more bytes are unwritten.
    pub(crate) fn dirtied(&mut self, bytes: Range<u64>, now: Duration) -> u64 {
        let is_paced =
            self.output != Output::Unpaced && matches!(self.verdict, None | Some(Verdict::Release));
        if is_paced { self.unwritten.dirtied(bytes, now) } else { 0 }
    }

    /// Stops counting its dirty pages. Returns how many bytes were unwritten.
    pub(crate) fn stop_pacing(&mut self) -> u64 {
        self.output = Output::Unpaced;
        self.unwritten.clear()
    }

    /// Counts dirty pages from now on: it could be opened again.
    pub(crate) fn resume_pacing(&mut self) {
        if self.output == Output::Unpaced {
            self.output = Output::Paced;
        }
    }

    /// Queues it for writing. Returns whether that is new.
    pub(crate) fn begin_to_wait(&mut self) -> bool {
        let has_output = self.job_since.is_none() && self.unwritten.oldest().is_some();
        let is_new = self.output == Output::Paced && has_output;
        if is_new {
            self.output = Output::Waiting;
        }
        is_new
    }

    /// Removes it from the queue, since it is about to be examined.
    pub(crate) fn end_to_wait(&mut self) {
        if self.output == Output::Waiting {
            self.output = Output::Paced;
        }
    }

    /// Returns the next step. `is_pressed` says that its device's output is to be written at once.
    fn next_step(&self, now: Duration, sees_use: bool, is_pressed: bool) -> FileStep {
        match self.next_release(now, sees_use, is_pressed) {
            FileStep::Wait | FileStep::Done
                if self.search == PageSearch::Wanted && self.job_since.is_none() =>
            {
                FileStep::Work { ranges: Vec::new(), is_written: false }
            }
            step => step,
        }
    }

    fn next_release(&self, now: Duration, sees_use: bool, is_pressed: bool) -> FileStep {
        let is_idle = now.saturating_sub(self.last_event) >= FILE_IDLE_AFTER;
        let is_over = self.ended.is_some() || self.is_hurried || (is_pressed && is_idle);
        let is_old = |since: Duration| is_pressed || is_over || now.saturating_sub(since) >= WRITE_AFTER;
        let is_written = self.job_since.is_none() && self.unwritten.oldest().is_some_and(is_old);
        if self.pages.is_done() {
            if is_written {
                return FileStep::Work { ranges: Vec::new(), is_written };
            }
            let is_unused = self.job_since.is_none() && (is_over || is_idle) && self.unwritten.bytes() == 0;
            return if is_unused { FileStep::Done } else { FileStep::Wait };
        }
        let over_for = self.ended.map(|ended| now.saturating_sub(ended)).unwrap_or_default();
        let in_vain_for = now.saturating_sub(self.released_at).min(over_for);
        if self.verdict == Some(Verdict::Leave) && self.job_since.is_none() {
            return FileStep::GiveUp;
        }
        if let Some(since) = self.job_since {
            let is_hung = self.is_hung(now, since);
            let is_late = over_for >= WRITTEN_RELEASE_MAX || (over_for >= HUNG_AFTER && is_hung);
            return if is_late { FileStep::GiveUp } else { FileStep::Wait };
        }
        let is_on_its_way = self.why == Some(StayReason::Unwritten) && over_for < WRITTEN_RELEASE_MAX;
        let mut due = self.pages.due(now, sees_use, is_over);
        due.retain(|range| !self.is_reported(&range.bytes));
        due.truncate(RANGES_PER_JOB);
        if !is_on_its_way && in_vain_for >= CLEAN_RELEASE_MAX {
            // Pages that were added during a long job were not attempted yet.
            due.retain(|range| range.attempts == 0);
            let is_late = due.is_empty() || over_for >= WRITTEN_RELEASE_MAX;
            return if is_late { FileStep::GiveUp } else { FileStep::Work { ranges: due, is_written } };
        }
        let bytes: u64 = due.iter().map(|range| range.bytes.end - range.bytes.start).sum();
        if bytes > 0 && (bytes >= DUE_BYTES_MIN || is_over || is_idle) {
            FileStep::Work { ranges: due, is_written }
        } else if is_written {
            FileStep::Work { ranges: Vec::new(), is_written }
        } else {
            FileStep::Wait
        }
    }

    /// Returns whether the job in progress since then has not even begun.
    fn is_hung(&self, now: Duration, since: Duration) -> bool {
        self.why != Some(StayReason::Unwritten) && now.saturating_sub(since) >= HUNG_AFTER
    }

    /// Returns when the next step may be another one, if no event comes before.
    fn next_look(&self, now: Duration, sees_use: bool) -> Duration {
        if self.pages.is_done() || self.job_since.is_some() {
            return now + FILE_IDLE_AFTER;
        }
        let is_over = self.ended.is_some() || self.is_hurried;
        let due = self.pages.next_due(now, sees_use, is_over).unwrap_or(now + FILE_IDLE_AFTER);
        let idle = self.last_event + FILE_IDLE_AFTER;
        let due = if due <= now && idle > now { idle } else { due };
        let due = self.unwritten.oldest().map_or(due, |since| due.min(since + WRITE_AFTER));
        // A file whose streams have ended is given up eventually.
        if self.ended.is_some() { due.min(now + CLEAN_RELEASE_MAX) } else { due }
    }

    fn is_reported(&self, bytes: &Range<u64>) -> bool {
        let at = self.reported.partition_point(|range| range.end < bytes.end);
        self.reported.get(at).is_some_and(|range| range.start <= bytes.start)
    }

    /// Records that a range was reported.
    pub(crate) fn report_range(&mut self, bytes: &Range<u64>) {
        let at = self.reported.partition_point(|range| range.end < bytes.start);
        let mut merged = bytes.clone();
        let overlapping = self.reported[at..].iter().take_while(|range| range.start <= bytes.end).count();
        for range in self.reported.drain(at..at + overlapping) {
            merged = merged.start.min(range.start)..merged.end.max(range.end);
        }
        self.reported.insert(at, merged);
    }

    /// Returns its report; with `now` it can tell that a device does not answer.
    pub(crate) fn report(&self, name: &EventFile, now: Duration) -> FileReport {
        let is_hung = self.job_since.is_some_and(|since| self.is_hung(now, since));
        FileReport {
            path: path_or_number(self.path.as_deref(), name),
            totals: self.pages.totals(),
            why: if is_hung { Some(StayReason::Hung) } else { self.why },
        }
    }
}

/// All files that are kept.
#[derive(Default)]
pub(crate) struct Files {
    all: HashMap<EventFile, File>,
    /// The time at which each is to be examined.
    looks: BTreeSet<(Duration, EventFile)>,
    by_user: HashMap<u32, usize>,
    /// Windows of pages that are kept per user, and in all.
    windows: HashMap<u32, usize>,
    all_windows: usize,
    hurried_at: Duration,
}

impl Files {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get_mut(&mut self, name: &EventFile) -> Option<&mut File> {
        self.all.get_mut(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&EventFile, &File)> {
        self.all.iter()
    }

    /// Returns when the next file is to be examined.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        self.looks.first().map(|(at, _)| *at)
    }

    pub(crate) fn insert(&mut self, name: EventFile, file: File) {
        *self.by_user.entry(file.user).or_default() += 1;
        self.all.insert(name, file);
    }

    pub(crate) fn remove(&mut self, name: &EventFile) -> Option<File> {
        let file = self.all.remove(name)?;
        self.count_windows(file.user, file.windows, 0);
        if let Some(at) = file.look_at {
            self.looks.remove(&(at, *name));
        }
        if let Some(count) = self.by_user.get_mut(&file.user) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&file.user);
            }
        }
        Some(file)
    }

    /// Gives up all pages, which stay.
    pub(crate) fn give_up_pages(&mut self) {
        for file in self.all.values_mut() {
            file.pages.give_up();
            file.used_by_others.store(true, Ordering::Relaxed);
            file.why = Some(StayReason::Other);
        }
    }

    /// Has the resident pages of each file looked for that nobody but streams has had in the page
    /// cache.
    pub(crate) fn search(&mut self, now: Duration) {
        let is_streams = |file: &File| {
            file.search == PageSearch::Possible && matches!(file.verdict, None | Some(Verdict::Release))
        };
        let names: Vec<EventFile> =
            self.all.iter().filter(|(_, file)| is_streams(file)).map(|(name, _)| *name).collect();
        for name in names {
            if let Some(file) = self.all.get_mut(&name) {
                file.search = PageSearch::Wanted;
            }
            self.look_by(&name, now);
        }
    }

    /// Updates the count of windows of a file. Returns whether its user, or all users together,
    /// have too many.
    fn count_windows(&mut self, user: u32, before: usize, now: usize) -> bool {
        let of_user = self.windows.entry(user).or_default();
        *of_user = (*of_user + now).saturating_sub(before);
        self.all_windows = (self.all_windows + now).saturating_sub(before);
        let is_over = *of_user > WINDOWS_PER_USER || self.all_windows > WINDOWS_MAX;
        if *of_user == 0 {
            self.windows.remove(&user);
        }
        is_over && now > before
    }

    /// Schedules the examination of a file for this time, unless it is due earlier.
    pub(crate) fn look_by(&mut self, name: &EventFile, at: Duration) {
        let Some(file) = self.all.get_mut(name) else { return };
        let at = at.max(file.not_before);
        if file.look_at.is_some_and(|before| before <= at) {
            return;
        }
        if let Some(before) = file.look_at.replace(at) {
            self.looks.remove(&(before, *name));
        }
        self.looks.insert((at, *name));
    }

    /// Returns the steps for the files that are due.
    pub(crate) fn steps(
        &mut self,
        now: Duration,
        sees_use: bool,
        is_pressed: impl Fn(u64) -> bool,
    ) -> Vec<(EventFile, FileStep)> {
        let mut steps = Vec::new();
        let mut again = Vec::new();
        while let Some((at, name)) = self.looks.first().copied().filter(|(at, _)| *at <= now) {
            self.looks.remove(&(at, name));
            let Some(file) = self.all.get_mut(&name) else { continue };
            file.look_at = None;
            let began = Instant::now();
            let is_pressed = is_pressed(name.dev);
            let step = file.next_step(now, sees_use, is_pressed);
            let next = file.next_look(now, sees_use);
            // A disk that waits for output gets it at the next step.
            let rest = if is_pressed { Duration::ZERO } else { STEP_INTERVAL };
            file.not_before = now + (began.elapsed() * LOOK_COST_DIVISOR).max(rest);
            again.push((name, next));
            let (user, counted) = (file.user, file.windows);
            file.windows = file.pages.windows();
            let windows = file.windows;
            let has_too_many = self.count_windows(user, counted, windows);
            steps.push((name, if has_too_many { FileStep::GiveUp } else { step }));
        }
        for (name, at) in again {
            self.look_by(&name, at);
        }
        steps
    }

    /// Makes room for one more file of a user. Returns the files that are no longer kept: those
    /// without an event for the longest time.
    pub(crate) fn make_room(&mut self, user: u32, now: Duration) -> Vec<EventFile> {
        let count = self.by_user.get(&user).copied().unwrap_or_default();
        // Root may have all: it could stop this process as well.
        let most = if user == 0 { FILES_MAX } else { FILES_PER_USER };
        let is_full = count >= most || self.all.len() >= FILES_MAX;
        let is_nearly_full = count >= most / 4 * HURRY_FOURTHS && now >= self.hurried_at + STEP_INTERVAL * 10;
        if !is_full && !is_nearly_full {
            return Vec::new();
        }
        // If all users together have too many, the one with most gives up some.
        let user = if count >= most {
            user
        } else {
            self.by_user.iter().max_by_key(|(_, count)| **count).map_or(user, |(user, _)| *user)
        };
        let mut oldest: Vec<(Duration, EventFile)> = self
            .all
            .iter()
            .filter(|(_, file)| file.user == user)
            .map(|(name, file)| (file.last_event, *name))
            .collect();
        oldest.sort_unstable();
        let share = if is_full { GIVEN_UP_DIVISOR } else { 4 };
        oldest.truncate(oldest.len().div_ceil(share));
        let oldest = oldest.into_iter().map(|(_, name)| name);
        if is_full {
            return oldest.collect();
        }
        self.hurried_at = now;
        for name in oldest.collect::<Vec<_>>() {
            if let Some(file) = self.all.get_mut(&name) {
                file.is_hurried = true;
            }
            self.look_by(&name, now);
        }
        Vec::new()
    }
}

/// Formats a device's number as the kernel does.
pub(crate) fn device_text(dev: u64) -> String {
    format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// Returns a file's path, or its number if the path is not known.
pub(crate) fn path_or_number(path: Option<&Path>, name: &EventFile) -> PathBuf {
    path.map_or_else(
        || format!("inode {} of device {}", name.ino, device_text(name.dev)).into(),
        Path::to_path_buf,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_could_not_be_opened_once_is_paced_again() {
        let (mut processes, now) = (crate::processes::Processes::default(), Duration::ZERO);
        let owner = processes.of(1, 0, None, Origin::Configured, now);
        let mut file = File::new(owner, 0, now);
        assert_eq!(file.dirtied(0..4096, now), 4096);
        assert_eq!(file.stop_pacing(), 4096);
        assert_eq!(file.dirtied(4096..8192, now), 0);
        file.resume_pacing();
        assert_eq!(file.dirtied(8192..12288, now), 4096);
    }
}
