//! A reader that nobody knows of: it opens the log, reads it from its beginning and closes it, again and again, as fast as it likes,
//! beside a writer that goes on. What it reads is never known but by the pages that come.

use std::collections::{BTreeMap, BTreeSet};

use pagekeeper_policy::{
    Act, DatabaseId, Facts, FileClass, FileFacts, FileId, FollowerFacts, FollowerId, LogId, Position,
    READ_BACK_EVIDENCE, Rewrite, Rule, StepState, WINDOW, Warning, step,
};
use proptest::prelude::*;

use crate::model::{CELL, Cell, MIB, Pages, config, releases};

/// Bytes of a file of the log.
const FILE: u64 = 16 * MIB;
/// Retries in which a reader that was seen may pause: fewer than it takes to try again whether it comes back.
const PAUSE: u64 = 20;

#[derive(Debug, Clone)]
enum Op {
    Write(u64),
    Sync,
    Read(u64),
    Reopen,
    Purge,
    Restart,
    Step,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..6 * MIB).prop_map(Op::Write),
        2 => Just(Op::Sync),
        8 => (1..24 * MIB).prop_map(Op::Read),
        2 => Just(Op::Reopen),
        1 => Just(Op::Purge),
        1 => Just(Op::Restart),
        12 => Just(Op::Step),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::ReleaseOnRotation),
        (0..5 * MIB).prop_map(|slack| Rule::ReleaseBehindWriter { slack }),
        (0..4_u64, 0..5 * MIB)
            .prop_map(|(near_files, slack)| Rule::ReleaseBehindFollowers { near_files, slack }),
        (0..20 * MIB).prop_map(|bytes| Rule::Budget { bytes, total: u64::MAX }),
    ]
}

/// A file of the log, and how often it was written.
#[derive(Debug)]
struct LogFile {
    pages: Pages,
    changed: i128,
}

/// A log, its writer, its reader and the guard.
#[derive(Debug)]
struct World {
    rule: Rule,
    rewrite: Rewrite,
    /// Whether the writer's place is shown.
    shown: bool,
    /// Whether the reader's is.
    known: bool,
    files: BTreeMap<u64, LogFile>,
    current: u64,
    end: u64,
    /// Where the reader goes on.
    reader: (u64, u64),
    retry: u64,
    state: StepState,
    /// Cells that the guard released, and that did not come back.
    gone: BTreeSet<(u64, usize)>,
    /// How often the reader had each cell read from the device since the guard's start.
    reads: BTreeMap<(u64, usize), u64>,
    warnings: usize,
}

impl World {
    fn new(rule: Rule, rewrite: Rewrite, shown: bool, known: bool) -> Self {
        let mut world = Self {
            rule,
            rewrite,
            shown,
            known,
            files: BTreeMap::new(),
            current: 0,
            end: FILE,
            reader: (1, 0),
            retry: 0,
            state: StepState::default(),
            gone: BTreeSet::new(),
            reads: BTreeMap::new(),
            warnings: 0,
        };
        world.write(1);
        world
    }

    fn write(&mut self, mut bytes: u64) {
        while bytes > 0 {
            if self.end == FILE {
                self.current += 1;
                self.end = 0;
                // One that is written over is there at its full length.
                let size = if self.rewrite == Rewrite::Never { 0 } else { FILE };
                self.files.insert(self.current, LogFile { pages: Pages::new(size), changed: 0 });
            }
            let part = bytes.min(FILE - self.end);
            let file = self.files.get_mut(&self.current).unwrap();
            file.pages.write(self.end..self.end + part);
            file.changed += 1;
            self.end += part;
            bytes -= part;
        }
    }

    /// Reads on up to the writer; at the end it begins anew.
    fn read(&mut self, mut bytes: u64) {
        while bytes > 0 {
            let (sequence, offset) = self.reader;
            let Some(file) = self.files.get_mut(&sequence).filter(|_| sequence <= self.current) else {
                self.reader = (*self.files.keys().next().unwrap(), 0);
                return;
            };
            let end = if sequence == self.current { self.end } else { FILE };
            if offset >= end {
                self.reader = (sequence + 1, 0);
                if sequence == self.current {
                    return;
                }
                continue;
            }
            let part = bytes.min(end - offset);
            for cell in offset / CELL..(offset + part).div_ceil(CELL) {
                let cell = usize::try_from(cell).unwrap();
                if file.pages.cells[cell] == Cell::Absent && self.gone.remove(&(sequence, cell)) {
                    *self.reads.entry((sequence, cell)).or_default() += 1;
                }
            }
            file.pages.read(&(offset..offset + part));
            self.reader = (sequence, offset + part);
            bytes -= part;
        }
    }

    fn apply(&mut self, op: &Op) -> Vec<Act> {
        match *op {
            Op::Write(bytes) => self.write(bytes),
            Op::Sync => self.files.values_mut().for_each(|file| file.pages.write_back(&(0..u64::MAX), 0)),
            Op::Read(bytes) => self.read(bytes),
            Op::Reopen => self.reader = (*self.files.keys().next().unwrap(), 0),
            Op::Purge => {
                let oldest = *self.files.keys().next().unwrap();
                if oldest < self.current {
                    self.files.remove(&oldest);
                }
            }
            Op::Restart => {
                self.state = StepState::default();
                // What the guard before it released is read once more.
                self.gone.clear();
                self.reads.clear();
            }
            Op::Step => return self.step(),
        }
        Vec::new()
    }

    fn facts(&self) -> Facts {
        let writer = if self.shown { Position::At(self.end) } else { Position::Unknown };
        let file = |(&sequence, file): (&u64, &LogFile)| FileFacts {
            id: FileId(sequence),
            database: DatabaseId(1),
            log: LogId(1),
            sequence,
            class: FileClass::Wal,
            rule: self.rule,
            rewrite: self.rewrite,
            size: file.pages.size,
            changed: file.changed,
            writer: (sequence == self.current).then_some(writer),
            windows: file.pages.windows().into(),
        };
        let follower = FollowerFacts {
            id: FollowerId(1),
            log: LogId(1),
            sequence: self.reader.0.min(self.current),
            position: Position::At(self.reader.1),
        };
        Facts {
            files: self.files.iter().map(file).collect(),
            followers: if self.known { vec![follower] } else { Vec::new() },
            retry: self.retry,
            ..Facts::default()
        }
    }

    fn step(&mut self) -> Vec<Act> {
        let facts = self.facts();
        let acts = step(&mut self.state, &facts);
        for act in &acts {
            let (Act::StartWriteback { file, .. } | Act::Release { file, .. } | Act::Warn { file, .. }) = act;
            self.files.get_mut(&file.0).unwrap().pages.execute(act, 0);
            let is_warning = matches!(act, Act::Warn { warning: Warning::ReadBack, .. });
            self.warnings += usize::from(is_warning);
        }
        for (file, range) in releases(&acts) {
            let pages = &self.files[&file.0].pages;
            let cells = range.start / CELL..range.end.div_ceil(CELL);
            let cells =
                cells.map(|cell| usize::try_from(cell).unwrap()).filter(|cell| *cell < pages.cells.len());
            self.gone
                .extend(cells.filter(|cell| pages.cells[*cell] == Cell::Absent).map(|cell| (file.0, cell)));
            let mut left = pages.windows();
            left.retain(|window| range.contains(&window.start));
            let facts = facts.files.iter().find(|facts| facts.id == file).unwrap();
            self.state.released(facts, range, &left);
        }
        acts
    }

    /// Bytes that were read from the device more than `times` since the guard's start.
    fn read_more_than(&self, times: u64) -> u64 {
        self.reads.values().map(|reads| reads.saturating_sub(times) * CELL).sum()
    }

    fn released_and_gone(&self) -> u64 {
        self.gone.len() as u64 * CELL
    }
}

proptest! {
    #![proptest_config(config(8))]

    /// Each byte that was released is read from the device once, and no more than the evidence twice, however the reader goes, for
    /// each life of the guard. (What a reader reads between a sample and the release that follows comes on top: a step is one here.)
    #[test]
    fn a_reader_that_nobody_knows_reads_little_twice(
        rule in rule(),
        rewrite in prop_oneof![Just(Rewrite::Never), Just(Rewrite::WholePages)],
        shown in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(rule, rewrite, shown, false);
        for op in &ops {
            world.apply(op);
            let twice = world.read_more_than(1);
            prop_assert!(twice <= READ_BACK_EVIDENCE + CELL, "{twice} bytes were read twice");
        }
    }

    /// From the step on in which the evidence is there nothing is released, and the operator is told once of each file.
    #[test]
    fn a_log_that_was_read_back_is_kept(
        rule in prop_oneof![8 => rule(), 1 => Just(Rule::Direct)],
        ops in prop::collection::vec(op(), 1..80),
        more in prop::collection::vec(op(), 1..40),
    ) {
        let mut world = World::new(rule, Rewrite::Never, true, false);
        for op in &ops {
            world.apply(op);
        }
        world.write(40 * MIB);
        for _ in 0..3 {
            world.step();
        }
        let gone = world.released_and_gone();
        world.apply(&Op::Reopen);
        world.read(u64::MAX >> 1);
        let before = world.retry;
        let is_kept = |acts: Vec<Act>| releases(&acts).next().is_none();
        prop_assert!(gone < READ_BACK_EVIDENCE || is_kept(world.step()));
        for op in more.iter().filter(|op| gone >= READ_BACK_EVIDENCE && !matches!(op, Op::Restart)) {
            world.retry = (world.retry + 1).min(before + PAUSE);
            prop_assert!(is_kept(world.apply(op)), "released while it is kept");
            prop_assert_eq!(world.state.kept_logs(), 1);
        }
    }

    /// By a rule that waits for followers a far one that is known reads each byte once from the disk, as it would without memory: that
    /// keeps nothing. One that comes back to what it has read does.
    #[test]
    fn a_known_follower_counts_where_it_comes_back(
        speed in MIB..24 * MIB,
        rounds in 1..4_u64,
    ) {
        let rule = Rule::ReleaseBehindFollowers { near_files: 1, slack: 0 };
        let mut world = World::new(rule, Rewrite::Never, true, true);
        world.reader = (1, 0);
        world.write(10 * FILE);
        world.known = false;
        for _ in 0..3 {
            world.step();
        }
        world.known = true;
        let gone = world.released_and_gone();
        for _ in 0..rounds {
            world.apply(&Op::Reopen);
            while world.reader.0 < world.current {
                world.read(speed);
                world.step();
            }
        }
        prop_assert!(gone > 8 * FILE);
        prop_assert_eq!(world.state.kept_logs() > 0, rounds > 1);
        prop_assert!(world.read_more_than(2) <= READ_BACK_EVIDENCE + CELL);
    }

    /// Without a reader nothing is taken for one's, whatever the writer does.
    #[test]
    fn a_writer_alone_is_no_reader(
        rule in rule(),
        rewrite in prop_oneof![Just(Rewrite::Never), Just(Rewrite::WholePages)],
        shown in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(rule, rewrite, shown, false);
        for op in ops.iter().filter(|op| !matches!(op, Op::Read(_))) {
            world.apply(op);
            prop_assert_eq!(world.state.read_back(), &[]);
        }
        prop_assert_eq!(world.warnings, 0);
    }
}

/// A backup reads the log once: nothing is released while it is at it, nor for some minutes after. Then a part is tried, and then all
/// goes as before.
#[test]
fn a_log_that_was_read_once_is_released_again() {
    let mut world = World::new(Rule::ReleaseBehindWriter { slack: 0 }, Rewrite::Never, true, false);
    world.write(20 * FILE);
    world.step();
    world.step();
    let all = world.released_and_gone();
    assert!(all > 19 * FILE);
    for _ in 0..40 {
        world.read(8 * MIB);
        assert!(releases(&world.step()).next().is_none());
    }
    assert_eq!((world.read_more_than(0), world.read_more_than(1)), (all, 0));
    let mut left = Vec::new();
    for _ in 0..100 {
        world.retry += 1;
        world.step();
        let pages: u64 = world.files.values().map(|file| file.pages.resident()).sum();
        if left.last() != Some(&pages) {
            left.push(pages);
        }
    }
    assert_eq!(left.len(), 3, "kept, tried, free: {left:?}");
    assert!(left[0] - left[1] < left[0] / 15 && left[2] <= 2 * WINDOW, "{left:?}");
    assert_eq!(world.state.kept_logs(), 0);
    // After a long time in which nobody comes back there is nothing left to remember.
    for _ in 0..1000 {
        world.retry += 1;
        world.step();
    }
    world.files.clear();
    step(&mut world.state, &Facts::default());
    world.state.retain_files(|_| false);
    assert_eq!(world.state, StepState::default());
}

/// A reader that scans the whole log every few minutes, and finds it in memory, leaves no trace: a sixteenth is released to see whether
/// it is there still, ever more seldom.
#[test]
fn a_reader_that_goes_on_costs_a_part_of_the_log_now_and_then() {
    let mut world = World::new(Rule::ReleaseBehindWriter { slack: 0 }, Rewrite::Never, true, false);
    world.write(20 * FILE);
    world.step();
    world.step();
    let mut scans = 0;
    for retry in 0..4000 {
        world.retry = retry;
        if retry % 12 == 0 {
            world.apply(&Op::Reopen);
            world.read(u64::MAX >> 1);
            scans += 1;
        }
        world.step();
    }
    let (once, all) = (20 * FILE, world.read_more_than(0));
    assert!(scans > 300 && all >= once - 2 * WINDOW);
    // The log once, and of the other scans, which would have read it from the device each time, little more.
    assert!(all - once < once, "{all} bytes of {once}");
}
