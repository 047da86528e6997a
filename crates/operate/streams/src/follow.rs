//! The loop that takes events and results, and hands out jobs.
//!
//! Invariants: pages that no followed process added are never in a job. A file has one job at a
//! time. All tables are bounded ([`limits`]).
//!
//! [`limits`]: crate::limits

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagekeeper_kernel::page_size;
use pagekeeper_policy::stream_pages::DueRange;
use pagekeeper_trace::TraceError;
use pagekeeper_trace::page_events::{EventFile, PageEvent, PageEvents};

use crate::disks::backlog::Backlogs;
use crate::disks::device::{Devices, Job, JobResult};
use crate::disks::hold::{HoldTarget, HoldWish, Holds, READER_WISH_AGE_MAX};
use crate::disks::turns::{DiskShares, DiskTurns};
use crate::files::{File, FileStep, Files, PageSearch, path_or_number};
use crate::limits::{
    DRAINED_STEP_INTERVAL, FILES_MAX, FILES_PER_USER, JOB_PART, LATE_EVENTS_TIME, STEP_INTERVAL, WRITE_AFTER,
};
use crate::open::Metadata;
use crate::processes::{ProcessId, Processes, is_called, running_wanted};
use crate::report::{Sums, add};
use crate::requests::{Origin, RequestId, RequestReport, Requester, Requests};
use crate::source::EventSource;
use crate::{Decide, IsMember, StayReason, StreamEvent, StreamPace, StreamReport, Verdict};

/// Time between two checks for processes whose end may be among lost events.
const ENDS_EVERY: Duration = Duration::from_secs(1);
/// After an event, more are expected for this long.
const BUSY_AFTER_EVENT: Duration = Duration::from_millis(200);

/// The followed processes and their files.
pub(crate) struct Follower {
    source: Box<dyn EventSource>,
    started: Instant,
    processes: Processes,
    files: Files,
    devices: Devices,
    backlogs: Backlogs,
    holds: Holds,
    /// Names of processes that are never held.
    never: Vec<String>,
    metadata: Metadata,
    sums: Sums,
    requests: Requests,
    /// Names of processes to follow, among all that become another program. With `members` all such
    /// programs have events.
    names: Vec<String>,
    members: Option<IsMember>,
    /// Processes that are no longer followed, since when: their actions count as uses by others.
    unfollowed: HashMap<u32, Duration>,
    events: Vec<StreamEvent>,
    last_event: Option<Duration>,
    last_step: Duration,
    /// Lost additions and uses by others, as of the last look.
    lost_pages: u64,
    lost_uses: u64,
    /// Bytes of lost additions that were found.
    found: u64,
    /// Lost events of processes as of the last check for processes whose end may be among them, and
    /// the time of that check.
    lost_others: u64,
    looked_for_ends: Option<Duration>,
    /// The file at each mapping's address in the kernel; another file may have had the address
    /// before.
    mappings: HashMap<u64, EventFile>,
    is_full_said: bool,
    is_refusal_said: bool,
    /// `None` if streams are not paced, or requests of others can't be counted.
    turns: Option<DiskTurns>,
}

impl Follower {
    pub(crate) fn new(
        source: Box<dyn EventSource>,
        decide: Decide,
        never: Vec<String>,
        pace: StreamPace,
    ) -> Self {
        Self {
            source,
            started: Instant::now(),
            processes: Processes::default(),
            files: Files::default(),
            devices: Devices::new(decide, pace),
            backlogs: Backlogs::new(pace),
            holds: Holds::default(),
            never,
            metadata: Metadata::default(),
            sums: Sums::default(),
            requests: Requests::default(),
            names: Vec::new(),
            members: None,
            unfollowed: HashMap::new(),
            events: Vec::new(),
            last_event: None,
            last_step: Duration::ZERO,
            lost_pages: 0,
            lost_uses: 0,
            found: 0,
            lost_others: 0,
            looked_for_ends: None,
            mappings: HashMap::new(),
            is_full_said: false,
            is_refusal_said: false,
            turns: None,
        }
    }

    /// Follows by these events. Leaves others their share of each disk unless the pace is off.
    pub(crate) fn paced(events: PageEvents, decide: Decide, never: Vec<String>, pace: StreamPace) -> Self {
        let shares = DiskShares::default();
        let turns =
            if pace == StreamPace::Off { None } else { DiskTurns::new(&events, shares.clone(), pace) };
        let mut follower = Self::new(Box::new(events), decide, never, pace);
        follower.set_disk_shares(shares, turns);
        follower
    }

    /// Sets the shares of each disk that are left to others, from the first job on.
    fn set_disk_shares(&mut self, shares: DiskShares, turns: Option<DiskTurns>) {
        self.devices.set_shares(shares);
        self.turns = turns;
    }

    /// Follows the processes that have one of these names or are members, including those that
    /// already run, and their descendants.
    pub(crate) fn follow_chosen(&mut self, names: Vec<String>, members: Option<IsMember>) {
        (self.names, self.members) = (names, members);
        // A second pass, for processes that were started before their parent was followed.
        for _ in 0..2 {
            for pid in running_wanted(|pid, name| self.is_chosen(pid, Some(name)), &self.never) {
                // A process that has just ended is not a stream.
                let _ = self.follow(pid);
            }
        }
    }

    pub(crate) fn follow(&mut self, pid: u32) -> Result<(), TraceError> {
        self.follow_as(pid, Origin::Configured).map(drop)
    }

    /// Follows a process for a user, and keeps its totals until [`Self::forget_request`].
    pub(crate) fn follow_for(&mut self, pid: u32, user: Requester) -> Result<RequestId, TraceError> {
        let id = self.requests.next_id();
        if let Some(root) = self.follow_as(pid, Origin::Asked(id, Arc::new(user)))? {
            self.requests.insert(id, root);
        }
        Ok(id)
    }

    /// Returns `None` if the process has ended.
    fn follow_as(&mut self, pid: u32, origin: Origin) -> Result<Option<ProcessId>, TraceError> {
        self.source.follow(pid)?;
        // There will be no event for a process that had already ended, and a later one may get its
        // number.
        if self.processes.has_ended(pid) {
            self.source.unfollow(pid);
            return Ok(None);
        }
        self.unfollowed.remove(&pid);
        let id = self.processes.of(pid, 0, None, origin.clone(), self.started.elapsed());
        // A process that is followed already counts for the last requester.
        if let Some(process) = self.processes.get_mut(id) {
            process.origin = origin;
        }
        Ok(Some(id))
    }

    pub(crate) fn request_report(&self, id: RequestId) -> Option<RequestReport> {
        let request = self.requests.get(id)?;
        let is_of = |process| {
            let process = self.processes.get(process)?;
            matches!(process.origin, Origin::Asked(other, _) if other == id).then_some(process)
        };
        let mut report = RequestReport { totals: request.totals, ..RequestReport::default() };
        for (other, process) in self.processes.iter().filter(|(other, _)| is_of(*other).is_some()) {
            add(&mut report.totals, process.totals);
            report.running += usize::from(process.is_running() && other != request.root);
        }
        for (_, file) in self.files.iter().filter(|(_, file)| is_of(file.owner).is_some()) {
            add(&mut report.totals, file.uncounted());
            report.files += usize::from(!file.pages.is_done());
        }
        Some(report)
    }

    pub(crate) fn forget_request(&mut self, id: RequestId) {
        self.requests.forget(id);
    }

    /// Stops following a request's processes, and forgets it.
    pub(crate) fn withdraw_request(&mut self, id: RequestId) {
        let now = self.started.elapsed();
        for pid in self.processes.running_for(id) {
            self.end(pid, now);
            self.unfollow(pid, now);
        }
        self.requests.forget(id);
    }

    pub(crate) fn heed_names_below(&mut self, pid: u32) -> Result<(), TraceError> {
        self.source.heed_names_below(pid)
    }

    pub(crate) fn heeds_names(&self) -> bool {
        self.source.heeds_names()
    }

    pub(crate) fn step(&mut self) -> Vec<StreamEvent> {
        let now = self.started.elapsed();
        self.last_step = now;
        let mut resident = Vec::new();
        for mut result in self.devices.results() {
            resident.push((result.file, std::mem::take(&mut result.resident)));
            self.take_in(result, now);
        }
        let mut came = Vec::new();
        self.source.drain(&mut |event| came.push(event));
        if !came.is_empty() {
            self.last_event = Some(now);
        }
        self.unfollowed.retain(|_, since| now.saturating_sub(*since) < LATE_EVENTS_TIME);
        for event in came {
            self.event(event, now);
        }
        // After the events of the same time: what these name is not found.
        for (name, ranges) in resident {
            self.take_found(&name, ranges, now);
        }
        self.heed_losses(now);
        self.hold(now);
        for name in self.backlogs.pressed_files(|dev| self.devices.bound(dev)) {
            if let Some(file) = self.files.get_mut(&name) {
                file.end_to_wait();
                self.files.look_by(&name, now);
            }
        }
        let is_pressed = |dev| self.backlogs.is_pressed(dev, self.devices.bound(dev));
        for (name, step) in self.files.steps(now, self.source.sees_use(), is_pressed) {
            match step {
                FileStep::Wait => self.wait_to_be_written(name),
                FileStep::Work { ranges, is_written } => self.begin_job(name, ranges, is_written, now),
                FileStep::Done | FileStep::GiveUp => self.retire(&name, now),
            }
        }
        self.devices.send();
        std::mem::take(&mut self.events)
    }

    /// Returns the followed processes that are to be held now because others wait for a disk that
    /// they read from.
    fn readers_to_hold(&mut self, now: Duration) -> Vec<HoldTarget> {
        let is_busy = self.processes.running() > 0 || self.devices.queued() > 0;
        let Some(turns) = self.turns.as_mut().filter(|_| is_busy) else { return Vec::new() };
        let target = |pid: &u32| {
            let is_followed = self.processes.is_running(*pid);
            is_followed.then(|| self.processes.hold_target(*pid, &self.never)).flatten()
        };
        turns.look(now).iter().filter_map(target).collect()
    }

    /// Holds writers that outrun their disk and readers whose turn it is not, and no others.
    fn hold(&mut self, now: Duration) {
        let mut wishes = self.backlogs.decide(|dev| self.devices.bound(dev), now);
        let readers = self.readers_to_hold(now).into_iter();
        wishes.extend(readers.map(|target| HoldWish {
            target,
            after: Duration::ZERO,
            lasts: READER_WISH_AGE_MAX,
        }));
        // A process may be a writer of several devices, and a reader: its earliest wish counts.
        wishes.sort_unstable();
        wishes.dedup_by_key(|wish| wish.target);
        self.holds.wish(wishes);
        for (target, error) in self.holds.refused() {
            if !std::mem::replace(&mut self.is_refusal_said, true) {
                self.events.push(StreamEvent::Problem {
                    path: format!("process {}", target.pid).into(),
                    sentence: format!(
                        "it runs on while its output waits for the disk, since it can't be held (it may be traced): {error}"
                    ),
                });
            }
        }
    }

    fn wait_to_be_written(&mut self, name: EventFile) {
        if self.files.get_mut(&name).is_some_and(File::begin_to_wait) {
            self.backlogs.wait(name);
        }
    }

    pub(crate) fn wait(&self, at_most: Duration) {
        let others: Vec<BorrowedFd<'_>> = self.devices.drained.fd().into_iter().collect();
        self.source.wait_or_readable(self.pause(at_most), &others);
    }

    pub(crate) fn wait_or_readable(&self, at_most: Duration, other: BorrowedFd<'_>) {
        let others: Vec<BorrowedFd<'_>> = self.devices.drained.fd().into_iter().chain([other]).collect();
        self.source.wait_or_readable(self.pause(at_most), &others);
    }

    /// Sleeps until the next step is allowed, or a disk is idle. Returns how long there is nothing to
    /// do after that, unless an event comes.
    fn pause(&self, at_most: Duration) -> Duration {
        let now = self.started.elapsed();
        // At most a hundred steps a second, unless a writer is about to outrun its disk.
        let step = self
            .backlogs
            .again_at
            .map_or(STEP_INTERVAL, |at| at.saturating_sub(self.last_step).min(STEP_INTERVAL));
        let at_most =
            self.backlogs.again_at.map_or(at_most, |at| at_most.min(at.saturating_sub(now).max(step)));
        let rest = (self.last_step + step).saturating_sub(now).min(at_most);
        let least = (self.last_step + DRAINED_STEP_INTERVAL).saturating_sub(now).min(rest);
        std::thread::sleep(least);
        if self.devices.drained.sleep(rest.saturating_sub(least)) {
            return Duration::ZERO;
        }
        let turns = self.turns.as_ref().filter(|_| self.processes.running() > 0);
        let looks = [self.files.next_look(), turns.map(DiskTurns::next_look)];
        let look = looks.into_iter().flatten().min();
        let look = look.map_or(at_most, |look| look.saturating_sub(now + rest));
        let left = at_most.saturating_sub(rest).min(look);
        if self.devices.queued() > 0 { left.min(STEP_INTERVAL) } else { left }
    }

    pub(crate) fn is_busy(&self) -> bool {
        let came_lately = |last| self.started.elapsed().saturating_sub(last) < BUSY_AFTER_EVENT;
        self.files.len() > 0 || self.last_event.is_some_and(came_lately)
    }

    pub(crate) fn running(&self) -> usize {
        self.processes.running()
    }

    pub(crate) fn report(&self) -> StreamReport {
        let now = self.started.elapsed();
        let kept = self.files.iter().map(|(name, file)| file.report(name, now));
        let report =
            self.sums.report(kept, (self.source.lost().pages * page_size()).saturating_sub(self.found));
        StreamReport { running: self.running(), held: self.holds.held(), ..report }
    }

    /// Returns whether a process is to be followed by its name, or as a member.
    fn is_chosen(&self, pid: u32, name: Option<&str>) -> bool {
        let read = name.is_none().then(|| self.processes.name_of(pid)).flatten();
        let name = name.or(read.as_deref()).unwrap_or_default();
        is_called(name, &self.names) || self.members.as_ref().is_some_and(|is_member| is_member(pid))
    }

    /// Returns the process of an event, unless it is no longer followed, or was only to be checked.
    fn followed(&mut self, pid: u32, parent: u32, name: Option<String>, now: Duration) -> Option<ProcessId> {
        let is_known = self.processes.is_running(pid) || self.processes.is_running(parent);
        if is_known || (name.is_some() && parent == 0) {
            self.unfollowed.remove(&pid);
        }
        let is_left = self.unfollowed.contains_key(&pid) || self.unfollowed.contains_key(&parent);
        let asks = self.members.is_some() || self.requests.were_made();
        let is_chosen = !is_known && !is_left && asks && self.is_chosen(pid, name.as_deref());
        if !is_known && (is_left || (self.members.is_some() && !is_chosen)) {
            self.unfollow(pid, now);
            return None;
        }
        // The event of its descent from a user's process may be lost.
        let is_unknown = self.requests.were_made() && !is_chosen;
        let origin = if is_unknown { Origin::Unknown } else { Origin::Configured };
        let id = self.processes.of(pid, parent, name, origin, now);
        if self.processes.is_beyond_limit(id) {
            self.end(pid, now);
            self.unfollow(pid, now);
            return None;
        }
        Some(id)
    }

    fn unfollow(&mut self, pid: u32, now: Duration) {
        if self.unfollowed.insert(pid, now).is_none() {
            self.source.unfollow(pid);
        }
    }

    /// Records that a process that is not followed uses a file.
    fn used_by_others(&mut self, file: &EventFile, bytes: Range<u64>) {
        let Some(kept) = self.files.get_mut(file) else { return };
        kept.pages.used_by_others(bytes);
        kept.search = PageSearch::Impossible;
        // A job may be about to drop these very pages.
        kept.used_by_others.store(true, Ordering::Relaxed);
    }

    /// Records the disks that processes read from.
    fn note_reads(&mut self, event: &PageEvent) {
        let Some(turns) = &mut self.turns else { return };
        if let PageEvent::Added { process, file, bytes, .. } = event {
            turns.added(*process, file.dev, bytes.end.saturating_sub(bytes.start));
        } else if let PageEvent::Dirtied { process, file, bytes } = event {
            turns.dirtied(*process, file.dev, bytes.end.saturating_sub(bytes.start));
        }
    }

    fn event(&mut self, event: PageEvent, now: Duration) {
        self.note_reads(&event);
        match event {
            PageEvent::Added { process, file, bytes, is_alone } => {
                let Some(id) = self.followed(process, 0, None, now) else {
                    if self.files.get_mut(&file).is_none() {
                        self.source.forget(&file);
                    }
                    return self.used_by_others(&file, bytes);
                };
                if self.metadata.includes(&file, now) {
                    self.source.forget(&file);
                    return;
                }
                self.keep(file, id, now);
                self.events.extend(self.processes.brought_in(id, bytes.end.saturating_sub(bytes.start)));
                if let Some(kept) = self.files.get_mut(&file) {
                    if is_alone && !file.is_block_device && kept.search == PageSearch::Impossible {
                        kept.search = PageSearch::Possible;
                    }
                    kept.pages.added(bytes, now);
                }
                self.files.look_by(&file, now);
            }
            PageEvent::Dirtied { process, file, bytes } => self.dirtied(process, file, bytes, now),
            PageEvent::Used { process, is_followed: true, file, bytes } => {
                if self.files.get_mut(&file).is_none() {
                    return;
                }
                let Some(id) = self.followed(process, 0, None, now) else {
                    return self.used_by_others(&file, bytes);
                };
                self.keep(file, id, now);
                if let Some(kept) = self.files.get_mut(&file) {
                    kept.pages.used(bytes, now);
                }
                self.files.look_by(&file, now);
            }
            PageEvent::Used { is_followed: false, file, bytes, .. } => self.used_by_others(&file, bytes),
            PageEvent::Began { process, parent, name } => {
                if let Some(id) = self.followed(process, parent, Some(name.clone()), now) {
                    self.processes.rename(id, name);
                }
                self.backlogs.forget(process);
            }
            PageEvent::Left { process } | PageEvent::Ended { process } => self.end(process, now),
        }
    }

    fn dirtied(&mut self, process: u32, name: EventFile, bytes: Range<u64>, now: Duration) {
        if self.metadata.includes(&name, now) {
            self.source.forget(&name);
            return;
        }
        let Some(id) = self.followed(process, 0, None, now) else {
            return self.used_by_others(&name, bytes);
        };
        self.keep(name, id, now);
        let more = self.files.get_mut(&name).map_or(0, |file| file.dirtied(bytes, now));
        if more > 0 {
            let target = || self.processes.hold_target(process, &self.never);
            self.backlogs.dirtied(name.dev, process, more, now, target);
            self.wait_to_be_written(name);
            self.files.look_by(&name, now + WRITE_AFTER);
        }
    }

    /// Keeps a file that a process uses.
    fn keep(&mut self, name: EventFile, id: ProcessId, now: Duration) {
        if self.files.get_mut(&name).is_none() {
            let user = self.processes.get(id).map_or(u32::MAX, |process| process.user);
            for oldest in self.files.make_room(user, now) {
                self.say_full(&oldest);
                self.retire(&oldest, now);
            }
            self.files.insert(name, File::new(id, user, now));
            // The file that was there before may have ended its watch just now.
            self.mappings.insert(name.mapping, name);
            self.source.watch(&name);
            if let Some(process) = self.processes.get_mut(id) {
                process.owns += 1;
                process.files += 1;
            }
        }
        let origin = self.processes.get(id).map_or(&Origin::Unknown, |process| &process.origin);
        let is_new = self.files.get_mut(&name).is_some_and(|file| {
            file.add_beneficiary(origin);
            file.add_user(id, now)
        });
        if let Some(process) = self.processes.get_mut(id).filter(|_| is_new) {
            process.uses.insert(name);
        }
    }

    fn say_full(&mut self, oldest: &EventFile) {
        let has_pages = self.files.get_mut(oldest).is_some_and(|file| !file.pages.is_done());
        if !has_pages || self.is_full_said {
            return;
        }
        self.is_full_said = true;
        let path = self.files.get_mut(oldest).and_then(|file| file.path.clone());
        self.events.push(StreamEvent::Problem {
            path: path_or_number(path.as_deref(), oldest),
            sentence: format!(
                "streams have more files in progress than are kept, {FILES_PER_USER} of a user and {FILES_MAX} of all: \
                 the oldest are left as they are"
            ),
        });
    }

    fn end(&mut self, pid: u32, now: Duration) {
        self.backlogs.forget(pid);
        let Some((id, used)) = self.processes.end(pid, now) else { return };
        for name in used {
            let Some(file) = self.files.get_mut(&name) else { continue };
            file.users.retain(|user| *user != id);
            match file.users.first().copied() {
                None => {
                    file.ended = Some(now);
                    self.files.look_by(&name, now);
                }
                Some(other) if file.owner == id => {
                    let part = file.pass_on(other);
                    self.processes.lose(id, part);
                    if let Some(process) = self.processes.get_mut(other) {
                        process.owns += 1;
                        process.files += 1;
                    }
                }
                Some(_) => {}
            }
        }
        self.finish(id);
    }

    /// Forgets a process that has ended and has no files any more.
    fn finish(&mut self, id: ProcessId) {
        if let Some(process) = self.processes.take_finished(id) {
            self.requests.add(&process.origin, process.totals);
            self.events.extend(self.processes.report_end(process));
        }
    }

    /// Has lost additions looked for. Ends processes whose end may be among lost events. Gives up
    /// all pages if uses by others may be among them, since the files concerned are not known.
    fn heed_losses(&mut self, now: Duration) {
        let lost = self.source.lost();
        let more = std::mem::replace(&mut self.lost_pages, lost.pages) != lost.pages;
        if more && self.source.sees_use() {
            self.files.search(now);
        }
        if std::mem::replace(&mut self.lost_uses, lost.uses) != lost.uses {
            self.files.give_up_pages();
        }
        let is_due = self.looked_for_ends.is_none_or(|last| now.saturating_sub(last) >= ENDS_EVERY);
        if lost.others != self.lost_others && is_due {
            (self.lost_others, self.looked_for_ends) = (lost.others, Some(now));
            for pid in self.processes.vanished() {
                self.source.unfollow(pid);
                self.end(pid, now);
            }
        }
    }

    fn begin_job(&mut self, name: EventFile, ranges: Vec<DueRange>, is_written: bool, now: Duration) {
        let Some(file) = self.files.get_mut(&name) else { return };
        for range in &ranges {
            file.unwritten.ask_range(&range.bytes);
        }
        let most = self.devices.bound(name.dev) / JOB_PART;
        let writes = if is_written { file.unwritten.ask(most) } else { Vec::new() };
        let pid = |id: &ProcessId| self.processes.get(*id).map(|process| process.pid);
        let job = Job {
            file: name,
            owner: pid(&file.owner).unwrap_or_default(),
            users: file.users.iter().filter_map(pid).collect(),
            ranges,
            writes,
            verdict: file.verdict,
            beneficiaries: file.beneficiaries.clone(),
            path: file.path.clone(),
            is_used: Arc::clone(&file.used_by_others),
            searches: file.search == PageSearch::Wanted,
            is_mapped: file.is_mapped,
        };
        if file.search == PageSearch::Wanted {
            file.search = PageSearch::Possible;
        }
        file.used_by_others.store(false, Ordering::Relaxed);
        file.job_since = Some(now);
        if let Some(failed) = self.devices.push(job) {
            self.take_in(failed, now);
        }
    }

    fn take_in(&mut self, result: JobResult, now: Duration) {
        let Some(file) = self.files.get_mut(&result.file) else { return };
        let before = file.pages.totals().released;
        if !file.is_verdict_stale {
            file.verdict = result.verdict.or(file.verdict);
        }
        file.path = result.path.or_else(|| file.path.take());
        if result.is_last {
            file.job_since = None;
            file.is_verdict_stale = false;
            file.why = None;
        } else {
            file.why = Some(StayReason::Unwritten);
        }
        let mut written: u64 = result.written.into_iter().map(|range| file.unwritten.written(range)).sum();
        for tried in result.ranges {
            file.why = tried.why.or(file.why);
            file.is_mapped |= tried.was_mapped;
            if file.verdict == Some(Verdict::Report) && tried.outcome.stays > 0 {
                file.report_range(&tried.range.bytes);
                let path = path_or_number(file.path.as_deref(), &result.file);
                let (start, end) = (tried.range.bytes.start, tried.range.bytes.end);
                self.events.push(StreamEvent::Would { path, start, end });
            }
            if tried.why != Some(StayReason::Unwritten) {
                written += file.unwritten.written(tried.range.bytes.clone());
            }
            file.pages.tried(&tried.range, tried.outcome, now);
        }
        if result.is_lost || !matches!(file.verdict, None | Some(Verdict::Release)) {
            written += file.stop_pacing();
        } else if result.is_last {
            file.resume_pacing();
            file.unwritten.ask_again();
        }
        self.backlogs.written(result.file.dev, written, now);
        let released = file.pages.totals().released - before;
        if released > 0 {
            file.released_at = now;
        }
        let program = self.processes.get(file.owner).map(|process| process.program.as_str());
        self.sums.released(file.user, program.unwrap_or("?"), released);
        if let Some(problem) =
            result.problem.filter(|problem| self.sums.is_new_problem(result.file.dev, problem))
        {
            let path = path_or_number(file.path.as_deref(), &result.file);
            self.events.push(StreamEvent::Problem { path, sentence: format!("its pages stay: {problem}") });
        }
        self.wait_to_be_written(result.file);
        self.files.look_by(&result.file, now);
    }

    /// Records resident pages of a file that nobody but streams has used: events of those that are
    /// not listed were lost.
    fn take_found(&mut self, name: &EventFile, ranges: Vec<Range<u64>>, now: Duration) {
        let Some(file) = self.files.get_mut(name).filter(|file| file.search != PageSearch::Impossible) else {
            return;
        };
        let found: u64 = ranges.into_iter().map(|range| file.pages.found(range, now)).sum();
        self.found += found;
        if found > 0 {
            self.files.look_by(name, now);
        }
    }

    /// Stops keeping a file; its remaining pages stay.
    fn retire(&mut self, name: &EventFile, now: Duration) {
        let Some(mut file) = self.files.remove(name) else { return };
        self.backlogs.forget_file(name);
        if self.mappings.get(&name.mapping) == Some(name) {
            self.mappings.remove(&name.mapping);
            self.source.forget(name);
        }
        let report = file.report(name, now);
        self.backlogs.written(name.dev, file.unwritten.clear(), now);
        file.pages.give_up();
        self.sums.retire(report);
        for user in &file.users {
            if let Some(process) = self.processes.get_mut(*user) {
                process.uses.remove(name);
            }
        }
        self.processes.lose(file.owner, file.uncounted());
        self.finish(file.owner);
    }
}
