//! One streaming process: which large files it has open, and which of them it has just opened.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_catalog::workers_of;
use pagekeeper_kernel::process::{Access, InodeSet, IoCounters, OpenFilesScan, ProcRoot, Selection};
use pagekeeper_kernel::{Inode, InspectedFile, Result};
use pagekeeper_policy::READ_AHEAD;
use pagekeeper_policy::external_stream::{Acts, Explained, all_fetched};
use rustix::fs::{AtFlags, StatxFlags};

use super::context::StreamContext;
use super::file::{Ahead, FileSample, MAX_AHEAD, ReleaseTotals, Shown, StreamFile, resident_of};
use crate::decision::Action;
use crate::event::Event;
use crate::targets::ProcessTraits;

/// Smaller files are left out, in bytes.
const SMALLEST: u64 = 4 << 20;
/// Files of one process that are followed at a time, the largest first.
const MAX_FILES: usize = 64;
/// What a process did before it was found says nothing of what is resident now if it has run for longer than that.
const YOUNG: Duration = Duration::from_secs(10);
/// How often what is resident of new files is compared with what was fetched, while that goes on.
const SAMPLES: usize = 5;
/// Between two of these samples.
const MOMENT: Duration = Duration::from_micros(300);
/// What may be fetched while a sample is taken, in bytes.
const AT_ONCE: u64 = 1 << 20;
/// A file system's clock may be behind by so much.
const CLOCK: Duration = Duration::from_millis(20);

/// A streaming process.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) parent: u32,
    started: u64,
    began: Instant,
    pub(super) files: Vec<StreamFile>,
    /// What it had read and written at the last sample; none before the first.
    io: Option<IoCounters>,
    /// What it brought in at the last sample that was not seen in its files yet, in bytes.
    carried: u64,
    /// Whether more came into its files than that.
    doubted: bool,
    followed: u64,
    pub(super) released: u64,
    kept: u64,
    /// Whether it was reported.
    reported: bool,
    pub(super) ended: bool,
    /// What selects it.
    pub(super) traits: ProcessTraits,
}

impl Program {
    /// The process, unless it has ended already.
    pub(super) fn new(proc: &ProcRoot, pid: u32, name: String) -> Option<Self> {
        let stat = proc.stat(pid).ok().filter(|stat| !stat.kernel_thread)?;
        Some(Self {
            pid,
            name,
            parent: stat.parent,
            started: stat.start_time,
            began: Instant::now(),
            files: Vec::new(),
            io: None,
            carried: 0,
            doubted: false,
            followed: 0,
            released: 0,
            kept: 0,
            reported: false,
            ended: false,
            traits: ProcessTraits::default(),
        })
    }

    /// Samples its files, and acts; gives back the files that it has closed, each with what it may have brought into it since the
    /// last sample, in bytes.
    pub(super) fn follow(
        &mut self,
        context: &mut StreamContext<'_>,
    ) -> (ReleaseTotals, Vec<(StreamFile, u64)>) {
        if self.ended {
            return (ReleaseTotals::default(), Vec::new());
        }
        let same = context.setting.proc.start_time(self.pid).is_ok_and(|started| started == self.started);
        let open = if same { context.setting.proc.open_files(self.pid) } else { Ok(Vec::new()) };
        self.ended = !same;
        if same {
            self.traits = context.setting.targets.traits_of(&context.setting.proc, self.pid);
        }
        let mut shown: BTreeMap<Inode, Shown> = BTreeMap::new();
        match open {
            Ok(open) => {
                for file in open {
                    let streams = !file.direct && file.access != Access::Neither && file.size >= SMALLEST;
                    if streams && !context.leaves_alone(&self.traits, &file.path) {
                        match shown.get_mut(&file.inode) {
                            Some(known) => known.add(&file),
                            None => drop(shown.insert(file.inode, Shown::of(file))),
                        }
                    }
                }
            }
            Err(error) => context.problem(context.setting.proc.root(self.pid), &error),
        }
        let (files, closed): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.files).into_iter().partition(|file| shown.contains_key(&file.inode));
        self.files = files;
        let last = self.io;
        let io = context.setting.proc.io_counters(self.pid).ok().or(last).unwrap_or_default();
        self.meet(context, &shown, io);
        // What a process that was met late has ever brought in may be long gone.
        let late = last.is_none() && !is_young(self.started);
        let last = last.unwrap_or(if late { io } else { IoCounters::default() });
        self.io = Some(io);
        let done = self.sample_and_act(context, &shown, &last);
        self.released += done.released;
        self.kept += done.kept;
        let since = brought(&io, &last);
        (done, closed.into_iter().map(|file| (file, since)).collect())
    }

    /// Samples all files, then acts: only all of them together show whether what came into files without a position is its
    /// own.
    fn sample_and_act(
        &mut self,
        context: &mut StreamContext<'_>,
        shown: &BTreeMap<Inode, Shown>,
        last: &IoCounters,
    ) -> ReleaseTotals {
        let databases = OnceCell::new();
        let mut files = std::mem::take(&mut self.files);
        let mut samples: Vec<Option<(InspectedFile, FileSample)>> = Vec::new();
        for file in &mut files {
            samples.push(self.sample_file(context, file, shown, last, &databases).unwrap_or_else(|error| {
                context.problem(file.path.clone(), &error);
                None
            }));
        }
        // Once more: the first time was before what it has read meanwhile.
        let io = context.setting.proc.io_counters(self.pid).ok().or(self.io).unwrap_or_default();
        self.io = Some(io);
        let now = brought(&io, last);
        let moved = files.iter().map(|file| file.moved).fold(0, u64::saturating_add);
        let max_brought = (now + self.carried).saturating_sub(moved);
        let both = files.iter().zip(&samples);
        let grown: u64 = both
            .filter_map(|(file, sampled)| sampled.as_ref().map(|(_, found)| file.grown(found, max_brought)))
            .fold(0, u64::saturating_add);
        let explained = if grown <= max_brought {
            Explained::Yes
        } else if now > 0 && !self.doubted {
            Explained::NotYet
        } else {
            Explained::No
        };
        self.doubted = explained == Explained::NotYet;
        self.carried = if self.doubted { max_brought } else { max_brought.saturating_sub(grown).min(now) };
        let mut totals = ReleaseTotals::default();
        for (file, sampled) in files.iter_mut().zip(samples) {
            let Some((opened, found)) = sampled else { continue };
            let acts = file.step(found, max_brought, explained);
            if !context.acts_on(&self.traits, &file.path) {
                context.events.extend(would(file, &acts));
                continue;
            }
            context.place.at(&file.path, Some(file.inode.dev));
            match file.act(&opened, acts) {
                Ok(done) => {
                    totals.released += done.released;
                    totals.kept += done.kept;
                }
                Err(error) => context.problem(file.path.clone(), &error),
            }
        }
        self.files = files;
        totals
    }

    /// Takes up the files that it has opened since the last sample.
    fn meet(&mut self, context: &mut StreamContext<'_>, shown: &BTreeMap<Inode, Shown>, io: IoCounters) {
        let mut new: Vec<(&Shown, InspectedFile)> = Vec::new();
        for shown in shown.values() {
            if self.files.iter().any(|file| file.inode == shown.file.inode) {
                continue;
            }
            context.place.at(&shown.file.path, Some(shown.file.inode.dev));
            match shown.open(&context.setting.proc, self.pid) {
                Ok(Some(file)) => new.push((shown, file)),
                Ok(None) => {}
                Err(error) => context.problem(shown.file.path.clone(), &error),
            }
        }
        new.sort_by_key(|(shown, _)| std::cmp::Reverse(shown.file.size));
        new.truncate(MAX_FILES.saturating_sub(self.files.len()));
        let known = self.io.is_some() || is_young(self.started);
        let reads = new.iter().any(|(shown, _)| !shown.writes);
        let own = if known && reads { self.all_own(&context.setting.proc, &new, io) } else { None };
        let mut own = own.map(Vec::into_iter);
        let mut met = Vec::new();
        for (shown, file) in &new {
            let (range, ahead) = if shown.writes {
                let is_made = known && made_since(file, self.started);
                (is_made.then_some(0..shown.file.size), Ahead::default())
            } else if let Some(ahead) = own.as_mut().and_then(Iterator::next) {
                let end = if shown.file.position > 0 {
                    shown.furthest + ahead.run(shown.furthest)
                } else {
                    file.size()
                };
                (Some(0..end), ahead)
            } else {
                (None, Ahead::default())
            };
            met.push(StreamFile::met(shown, range.as_ref(), ahead));
        }
        self.followed += met.len() as u64;
        self.files.extend(met);
        if !self.reported && !self.files.is_empty() {
            self.reported = true;
            context.events.push(Event::Stream { pid: self.pid, program: self.name.clone() });
        }
    }

    /// What is ahead of each of the files that the process has just opened to read, if nobody had in the page cache what is
    /// resident of them: by what it was given until it was sampled (`io`), and what came from disks for it by now.
    fn all_own(
        &self,
        proc: &ProcRoot,
        new: &[(&Shown, InspectedFile)],
        io: IoCounters,
    ) -> Option<Vec<Ahead>> {
        let readers: Vec<_> = new.iter().filter(|(shown, _)| !shown.writes).collect();
        let last = self.io.unwrap_or_default();
        let read = io.read_by_calls.saturating_sub(last.read_by_calls);
        let before: u64 = self.files.iter().map(|file| file.ahead).sum();
        let fetched = || {
            let now = proc.io_counters(self.pid).unwrap_or(io).read_from_storage;
            now.saturating_sub(last.read_from_storage) + before
        };
        let positions: u64 = readers.iter().map(|(shown, _)| shown.file.position).sum();
        for _ in 0..SAMPLES {
            let sure = fetched();
            let mut ahead = Vec::new();
            let mut resident = 0_u64;
            for (shown, file) in &readers {
                // Of one that is at its beginning all is sampled, and all is its own.
                let (there, found) = if positions == 0 {
                    (resident_of(file).ok()??, Ahead::default())
                } else {
                    let found = Ahead::of(file, shown.furthest, MAX_AHEAD).ok()?;
                    (found.run(shown.furthest), found)
                };
                resident = resident.saturating_add(there);
                ahead.push(found);
            }
            let now = fetched();
            // `copy_file_range` shows how much it read when it ends, a mapping never.
            let is_own = |fetched: u64| match positions {
                0 => all_fetched(resident, fetched.saturating_sub(read), 0),
                _ => positions <= read && all_fetched(read, fetched, resident),
            };
            if is_own(sure) || (now.saturating_sub(sure) <= AT_ONCE && is_own(now)) {
                return Some(ahead);
            }
            if !is_own(now + 2 * READ_AHEAD) {
                return None;
            }
            // Pages are in the page cache a moment before they count as fetched.
            std::thread::sleep(MOMENT);
        }
        None
    }

    fn sample_file(
        &self,
        context: &StreamContext<'_>,
        file: &mut StreamFile,
        all: &BTreeMap<Inode, Shown>,
        last: &IoCounters,
        databases: &OnceCell<HashSet<Inode>>,
    ) -> Result<Option<(InspectedFile, FileSample)>> {
        let Some(shown) = all.get(&file.inode) else { return Ok(None) };
        context.place.at(&shown.file.path, Some(shown.file.inode.dev));
        let Some(opened) = shown.open(&context.setting.proc, self.pid)? else { return Ok(None) };
        if opened.file_system()?.release_refusal().is_some() {
            return Ok(None);
        }
        let shared =
            || databases.get_or_init(|| shared_with_databases(context, all)).contains(&shown.file.inode);
        let since = || context.setting.proc.io_counters(self.pid).map_or(0, |now| brought(&now, last));
        let found = file.sample(&opened, shown, context.setting.tick, since, shared)?;
        Ok(Some((opened, found)))
    }

    /// What is reported of it at its end; nothing of one that had no large file.
    pub(super) fn end(&self) -> Option<Event> {
        self.reported.then(|| Event::StreamEnded {
            pid: self.pid,
            program: self.name.clone(),
            seconds: self.began.elapsed().as_secs_f64(),
            files: self.followed,
            released_bytes: self.released,
            kept_bytes: self.kept,
        })
    }
}

fn would(file: &StreamFile, acts: &Acts) -> Option<Event> {
    let (first, last) = (acts.release.first()?, acts.release.last()?);
    Some(Event::Would { path: file.path.clone(), action: Action::Release, start: first.start, end: last.end })
}

/// Which of a program's files the databases have open: by what they are, since in a container each goes by another name. Of all
/// other files nothing but a stat is made: a server may have ten thousands.
fn shared_with_databases(context: &StreamContext<'_>, files: &BTreeMap<Inode, Shown>) -> HashSet<Inode> {
    let mut wanted = InodeSet::default();
    for inode in files.keys() {
        wanted.insert(*inode, *inode);
    }
    let selection = Selection { inodes: Some(&wanted), ..Selection::default() };
    let pids = context.setting.databases.iter().flat_map(|(database, profile)| {
        let workers = workers_of(&context.setting.proc, *database, profile).unwrap_or_default();
        workers.into_iter().chain([*database])
    });
    let found = OpenFilesScan::of(&context.setting.proc, pids, selection).finish();
    found.processes.iter().flat_map(|process| &process.open).map(|file| file.inode).collect()
}

/// What a process has brought into the page cache between two samples, in bytes; that of a child is added as it is waited for.
fn brought(now: &IoCounters, last: &IoCounters) -> u64 {
    let read = now.read_from_storage.saturating_sub(last.read_from_storage);
    read + now.written_to_storage.saturating_sub(last.written_to_storage)
}

/// Whether a file was made since a process started (in clock ticks since boot), as far as its file system shows.
fn made_since(file: &InspectedFile, started: u64) -> bool {
    let Ok(stat) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME) else { return false };
    if stat.stx_mask & StatxFlags::BTIME.bits() == 0 {
        return false;
    }
    // Of a clock before 1970 nothing follows.
    let Ok(seconds) = u64::try_from(stat.stx_btime.tv_sec) else { return false };
    let made = SystemTime::UNIX_EPOCH + Duration::new(seconds, stat.stx_btime.tv_nsec);
    let ran = age(started);
    SystemTime::now().duration_since(made).is_ok_and(|age| age <= ran + CLOCK)
}

/// How long a process has run that started so many clock ticks after boot.
fn age(started: u64) -> Duration {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(boot.tv_sec).expect("the time since boot is not negative");
    let up = Duration::new(seconds, u32::try_from(boot.tv_nsec).expect("less than a second"));
    up.saturating_sub(Duration::from_millis(started.saturating_mul(10)))
}

fn is_young(started: u64) -> bool {
    age(started) <= YOUNG
}
