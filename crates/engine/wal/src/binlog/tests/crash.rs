//! Crash safety on a simulated disk: power cuts, kills, and failing or full disks, at any operation
//! and several times in a row, also while a log is being opened.
//!
//! Each opening must show, whatever happened before:
//!
//! 1. The log holds a contiguous part of what was appended: whole groups, in order, without a gap,
//!    nothing else.
//! 2. It begins within the limits of the purges, and has everything that was known to be durable.
//! 3. A position keeps its meaning: the same groups follow it, or it is past the end.
//! 4. A group whose append failed for lack of space is not there.

use std::path::Path;

use pagekeeper_io::Error as IoError;
use pagekeeper_simdisk::{Persistence, RandomFaults, RandomWriteFaults, SimDisk};

use super::support::{DIR, append, group, options};
use crate::binlog::injected_fault::BinLogFault;
use crate::{BinLog, BinLogOptions, Error, LogMode, Position, PurgeMode};
use pagekeeper_testing::{Rng, Seed};

/// A step of a script.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Appends this many records, the first of this many bytes.
    Append(usize, usize),
    Sync,
    Rotate,
    /// Purges all but this many segments.
    Purge(u64),
    /// Opens the log again, with or without a close.
    Reopen {
        close: bool,
    },
}

/// One appended group.
#[derive(Debug, Clone)]
struct Group {
    which: u64,
    shape: (usize, usize),
    /// The position past it; known once the append returned.
    position: Option<Position>,
}

impl Group {
    fn records(&self) -> Records {
        group(self.which, self.shape.0, self.shape.1)
    }
}

/// The history of a log, which determines what may and must be found.
#[derive(Debug, Default)]
struct World {
    next: u64,
    groups: Vec<Group>,
    /// The number of groups, from the first on, that are known to be durable or purged.
    durable: usize,
    /// The log may begin at this group, or at an earlier one down to `begins`.
    may_begin: usize,
    begins: usize,
    /// A sync of a directory failed.
    names_unsure: bool,
}

type Checked<T> = Result<T, String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    /// Runs a script until the disk or the log fails. Returns an error if a condition is violated.
    fn run(&mut self, open: &dyn Fn() -> Result<BinLog, Error>, script: &[Step]) -> Checked<()> {
        let Some(mut log) = self.opened(open())? else { return Ok(()) };
        for step in script {
            let result = match *step {
                Step::Append(number, len) => self.append(&log, number, len),
                Step::Sync => log.sync().map(drop),
                Step::Rotate => log.rotate().map(drop),
                Step::Purge(keep) => self.purge(&log, keep),
                Step::Reopen { close } => {
                    let mut closed = Ok(());
                    if close {
                        closed = log.close();
                        self.durable = if closed.is_ok() { self.groups.len() } else { self.durable };
                    } else {
                        drop(log);
                    }
                    let Some(again) = self.opened(open())? else { return Ok(()) };
                    log = again;
                    closed
                }
            };
            self.note_durable(&log);
            match result {
                // Nothing more is accepted.
                Err(Error::Poisoned { cause }) => {
                    self.note_names(&cause);
                    return Ok(());
                }
                Err(Error::Io(_)) | Ok(()) => {}
                Err(error) => return Err(format!("{step:?}: {error}")),
            }
        }
        Ok(())
    }

    /// Checks a log that was just opened. Returns `None` if the disk has failed.
    fn opened(&mut self, opened: Result<BinLog, Error>) -> Checked<Option<BinLog>> {
        let log = match opened {
            Ok(log) => log,
            Err(error) => {
                self.note_names(&error);
                return Ok(None);
            }
        };
        match log.follow(log.first()).and_then(|mut follower| follower.try_next()) {
            // The opening ends with the room for the next index, and succeeds if a power cut there
            // prevents that. Nothing else makes reads fail here.
            Err(Error::Io(error)) if error.errno() == Some(libc::EIO) => Ok(None),
            _ => self.check(log).map(Some),
        }
    }

    fn note_names(&mut self, error: &Error) {
        let directory = |path: &Path| path == Path::new(DIR) || path == Path::new("/");
        if let Error::Io(IoError::Sync { path, .. }) = error {
            self.names_unsure |= directory(path);
        }
    }

    fn append(&mut self, log: &BinLog, number: usize, len: usize) -> Result<(), Error> {
        let group = Group { which: self.next, shape: (number, len), position: None };
        self.next += 1;
        let appended = append(log, &group.records());
        // A group that failed alone must never be seen.
        if !matches!(appended, Err(Error::Io(_))) {
            self.groups.push(Group { position: appended.as_ref().ok().copied(), ..group });
        }
        appended.map(drop)
    }

    fn purge(&mut self, log: &BinLog, keep: u64) -> Result<(), Error> {
        let segment = log.end().segment.saturating_sub(keep);
        let before = |group: &&Group| group.position.is_some_and(|position| position.segment < segment);
        let purged = self.groups.iter().take_while(before).count();
        self.may_begin = self.may_begin.max(purged);
        log.purge_to(Position { segment, offset: 0 }, PurgeMode::UnlessFollowed)?;
        self.begins = self.begins.max(purged);
        Ok(())
    }

    fn note_durable(&mut self, log: &BinLog) {
        let end = log.durable_end();
        let durable = |group: &&Group| group.position.is_some_and(|position| position <= end);
        self.durable = self.durable.max(self.groups.iter().take_while(durable).count());
    }

    /// Checks a log that was just opened. The groups it finds are the expected state from now on.
    fn check(&mut self, log: BinLog) -> Checked<BinLog> {
        let (found, ends) = read(&log, log.first()).map_err(|error| error.to_string())?;
        let begin = match found.first() {
            None => self.may_begin,
            Some(first) => {
                let is_first = |group: &Group| group.records() == *first;
                self.groups.iter().position(is_first).ok_or("records that were never appended")?
            }
        };
        let end = begin + found.len();
        ensure((self.begins..=self.may_begin).contains(&begin) || found.is_empty(), || {
            format!("begins with {begin}, not {}..={}", self.begins, self.may_begin)
        })?;
        ensure(end >= self.durable, || format!("{begin}..{end} found, {} were durable", self.durable))?;
        ensure(end <= self.groups.len(), || "more than was appended".to_owned())?;
        for (group, found) in self.groups[begin..end].iter().zip(&found) {
            ensure(group.records() == *found, || format!("group {} is not what was appended", group.which))?;
        }
        self.check_positions(&log, begin, end)?;
        for (group, position) in self.groups[begin..end].iter_mut().zip(ends) {
            let same = group.position.is_none_or(|was| was == position);
            ensure(same, || format!("{:?} became {position}", group.position))?;
            group.position = Some(position);
        }
        self.groups = self.groups[begin..end].to_vec();
        (self.durable, self.begins, self.may_begin) = (self.groups.len(), 0, 0);
        Ok(log)
    }

    fn check_positions(&self, log: &BinLog, begin: usize, end: usize) -> Checked<()> {
        // Checks the last groups that are there, and all that are not.
        for at in end.saturating_sub(2).max(begin)..self.groups.len() {
            let Some(position) = self.groups[at].position else { continue };
            match read(log, position) {
                Ok((found, _)) => {
                    ensure(at < end && found.len() == end - at - 1, || {
                        format!("{position} of group {at} of {begin}..{end} leads to {} groups", found.len())
                    })?;
                }
                Err(Error::PastEnd { .. }) if at >= end => {}
                Err(error) => return Err(format!("{position}: {error}")),
            }
        }
        Ok(())
    }
}

type Records = Vec<Vec<u8>>;

/// Reads the groups from a position on, and their ends.
fn read(log: &BinLog, from: Position) -> Result<(Vec<Records>, Vec<Position>), Error> {
    let (mut groups, mut ends, mut group) = (Vec::new(), Vec::new(), Vec::new());
    let mut follower = log.follow(from)?;
    while let Some(event) = follower.try_next()? {
        group.push(event.bytes);
        if event.ends_group {
            groups.push(std::mem::take(&mut group));
            ends.push(event.next);
        }
    }
    Ok((groups, ends))
}

/// A short script with every kind of step.
const SCRIPT: [Step; 16] = [
    Step::Append(1, 100),
    Step::Append(3, 2000),
    Step::Append(2, 5000),
    Step::Append(1, 3000),
    Step::Sync,
    Step::Append(1, 9000),
    Step::Append(4, 300),
    Step::Reopen { close: false },
    Step::Append(2, 700),
    Step::Rotate,
    Step::Append(3, 6000),
    Step::Purge(1),
    Step::Append(1, 8000),
    Step::Reopen { close: true },
    Step::Append(1, 12000),
    Step::Append(2, 40),
];

fn settings() -> Vec<BinLogOptions> {
    let options = options(&SimDisk::new());
    let mode = |mode: LogMode, every| options.clone().mode(mode).sync_every(every);
    vec![
        mode(LogMode::Buffered, 1),
        mode(LogMode::Buffered, 0),
        mode(LogMode::Buffered, 3),
        mode(LogMode::Direct, 1),
        mode(LogMode::Direct, 0),
        mode(LogMode::Uncached, 2),
    ]
}

fn opener(options: &BinLogOptions, disk: &SimDisk) -> impl Fn() -> Result<BinLog, Error> + use<> {
    let options = options.clone().io(std::sync::Arc::new(disk.clone()));
    move || options.clone().open(DIR)
}

#[test]
fn power_cuts_at_every_operation() {
    let seed = Seed::new();
    let mut crashes = 0;
    for (which, options) in (0..).zip(settings()) {
        let disk = SimDisk::new();
        World::default().run(&opener(&options, &disk), &SCRIPT).unwrap();
        let operations = disk.ops();
        assert!(operations > 80, "{operations}");
        for at in 0..operations {
            for (round, persistence) in (0..).zip(Persistence::ALL) {
                let mut rng = seed.rng(which << 32 | at << 8 | round);
                let (disk, mut world) = (SimDisk::new(), World::default());
                disk.cut_power_at(at);
                let mut run = || -> Checked<()> {
                    world.run(&opener(&options, &disk), &SCRIPT)?;
                    // Cuts the power again during the next opening, or soon after.
                    let disk = disk.after_power_cut(persistence, rng.number());
                    disk.cut_power_at(rng.of(0..24));
                    world.run(&opener(&options, &disk), &SCRIPT[..4])?;
                    let disk = disk.after_power_cut(persistence, rng.number());
                    world.run(&opener(&options, &disk), &SCRIPT[..2])?;
                    ensure(world.next > 0, || "it can't be opened any more".to_owned())
                };
                if let Err(error) = run() {
                    panic!("cut at {at} with {persistence:?}: {error}\n{world:#?}");
                }
                crashes += 2;
            }
        }
    }
    println!("{crashes} crashes");
}

/// The random events in the life of a log.
struct RandomRun {
    rng: Rng,
    options: BinLogOptions,
}

impl RandomRun {
    fn new(seed: &Seed, which: u64, injected_fault: Option<BinLogFault>) -> Self {
        let mut rng = seed.rng(which);
        let all = settings();
        let mut options = all[rng.index(all.len())].clone();
        options.injected_fault = injected_fault;
        Self { rng, options }
    }

    fn script(&mut self) -> Vec<Step> {
        let steps = self.rng.of(1..20);
        let rng = &mut self.rng;
        let mut step = || match rng.of(0..20) {
            0 => Step::Sync,
            1 => Step::Rotate,
            2 => Step::Purge(rng.of(0..3)),
            3 => Step::Reopen { close: rng.one_in(2) },
            _ => {
                let max = [50, 800, 3000][rng.index(3)];
                Step::Append(1 + rng.index(4), rng.index(max))
            }
        };
        (0..steps).map(|_| step()).collect()
    }

    fn faults(&mut self, disk: &SimDisk) {
        let faults = match self.rng.of(0..4) {
            0 => RandomWriteFaults {
                short_per_mille: 300,
                interrupted_per_mille: 50,
                no_space_per_mille: 150,
                ..RandomWriteFaults::default()
            },
            1 => RandomWriteFaults {
                failing_per_mille: 20,
                failing_sync_per_mille: 60,
                ..RandomWriteFaults::default()
            },
            _ => RandomWriteFaults::default(),
        };
        disk.set_random_faults(RandomFaults::default(), faults);
    }

    /// Runs a life of a log: up to four scripts, each ended by a crash. Returns the number of
    /// crashes.
    fn live(&mut self) -> Checked<u64> {
        let mut disk = SimDisk::builder().seed(self.rng.number()).build();
        let mut world = World::default();
        let crashes = self.rng.of(1..5);
        for _ in 0..crashes {
            let script = self.script();
            self.faults(&disk);
            if !self.rng.one_in(4) {
                disk.cut_power_at(disk.ops() + self.rng.of(0..80));
            }
            world.run(&opener(&self.options, &disk), &script)?;
            disk = match self.rng.of(0..4) {
                // After a failed sync of a directory the file system has to be mounted again: until
                // then it shows names that the device never got.
                0 if !world.names_unsure => disk.after_kill(),
                _ => {
                    let persistence = Persistence::ALL[self.rng.index(Persistence::ALL.len())];
                    world.names_unsure = false;
                    disk.after_power_cut(persistence, self.rng.number())
                }
            };
        }
        disk.set_random_faults(RandomFaults::default(), RandomWriteFaults::default());
        let before = world.next;
        world.run(&opener(&self.options, &disk), &[Step::Append(1, 10)])?;
        ensure(world.next > before, || {
            let error = opener(&self.options, &disk)().err();
            format!("it can't be opened any more: {error:?}")
        })?;
        Ok(crashes)
    }
}

#[test]
fn random_crashes() {
    let seed = Seed::new();
    let mut crashes = 0;
    for which in 0..crate::testing::lives(1000) {
        match RandomRun::new(&seed, which, None).live() {
            Ok(more) => crashes += more,
            Err(error) => panic!("life {which}: {error}"),
        }
    }
    println!("{crashes} crashes");
}

/// Each injected fault must be found within this many lives.
const MAX_LIVES: u64 = 20_000;

#[test]
fn injected_faults_are_found() {
    let seed = Seed::new();
    for injected_fault in [
        BinLogFault::NoSync,
        BinLogFault::SyncErrorIgnored,
        BinLogFault::NoSyncAtRotation,
        BinLogFault::RaggedEnd,
        BinLogFault::NoHeaderSync,
        BinLogFault::NoNameSync,
        BinLogFault::IndexFirst,
        BinLogFault::NoIndexSync,
        BinLogFault::NoRenameSync,
        BinLogFault::PurgeFilesFirst,
        BinLogFault::NoSyncAtOpen,
        BinLogFault::ReadThroughCache,
        BinLogFault::AppendAfterTorn,
        BinLogFault::TornGroups,
    ] {
        let is_found = |which: &u64| RandomRun::new(&seed, *which, Some(injected_fault)).live().is_err();
        let found = (0..MAX_LIVES).find(is_found);
        println!("{injected_fault:?}: {found:?}");
        assert!(found.is_some(), "{injected_fault:?} was not found in {MAX_LIVES} lives");
    }
}
