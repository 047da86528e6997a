//! A ring written with `pwrite`: the writer's position is never shown, only what it does to the
//! pages.

use std::collections::VecDeque;
use std::ops::Range;

use pagekeeper_policy::{
    CheckpointFacts, CheckpointPosition, DatabaseId, FileClass, FileFacts, FileId, FilePosition, LogId,
    RewriteKind, Rule, StepFacts, StepState, WINDOW, step,
};
use proptest::prelude::*;

use crate::model::{
    CELL, Cell, MIB, Pages, ReleaseResistance, check_ranges, check_repeats, config, releases,
};

const WINDOWS: u64 = 32;
/// The writer goes at most this far between two steps.
const REACH_BYTES: u64 = 3 * WINDOW;
/// The least space that a writer leaves free in its ring.
const FREE_BYTES: u64 = WINDOWS * WINDOW / 10;
/// A ring's data begins behind its header.
const HEADER: u64 = 12 << 10;

#[derive(Debug, Clone)]
enum Op {
    Write(u64),
    /// The header is written: recovery would then read this many hundredths of the present bytes.
    Checkpoint(u64),
    Sync,
    /// The kernel writes this many of the longest dirty cells.
    WriteBack(usize),
    Reclaim(u64),
    Retry,
    Step,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (1..REACH_BYTES).prop_map(Op::Write),
        5 => (1..20 * 1024_u64).prop_map(Op::Write),
        2 => (0..100_u64).prop_map(Op::Checkpoint),
        6 => Just(Op::Sync),
        2 => (0..16_usize).prop_map(Op::WriteBack),
        1 => (0..WINDOWS).prop_map(Op::Reclaim),
        1 => Just(Op::Retry),
        12 => Just(Op::Step),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        3 => (0..2 * WINDOW).prop_map(|slack| Rule::ReleaseBehindWriter { slack }),
        1 => Just(Rule::ReleaseBehindFollowers { near_files: 2, slack: 0 }),
        1 => (0..8 * MIB).prop_map(|bytes| Rule::Budget { bytes, total: u64::MAX }),
    ]
}

/// Returns the pages of the ring when it is first seen.
fn cells() -> impl Strategy<Value = Vec<Cell>> {
    let cell = prop_oneof![Just(Cell::Absent), Just(Cell::Clean), Just(Cell::Dirty)];
    let stretch = (cell, 1..100_usize).prop_map(|(cell, length)| vec![cell; length]);
    prop::collection::vec(stretch, 0..12).prop_map(|stretches| stretches.concat())
}

#[derive(Debug)]
struct Ring {
    rule: Rule,
    rewrite: RewriteKind,
    slow: u8,
    pages: Pages,
    /// Cells in the order in which they were last dirtied.
    dirtied: VecDeque<u64>,
    /// The last byte written.
    last: u64,
    /// Bytes from the checkpoint to the last byte written.
    age: u64,
    /// Bytes that the writer has written since the last step.
    gone: u64,
    retry: u64,
    /// Number of writes to the file.
    changed: i128,
    state: StepState,
}

impl Ring {
    fn new(rule: Rule, rewrite: RewriteKind, slow: u8, cells: &[Cell], last: u64) -> Self {
        let mut pages = Pages::new(WINDOWS * WINDOW);
        for (at, cell) in pages.cells.iter_mut().zip(cells) {
            *at = *cell;
        }
        let dirtied =
            (0..).zip(&pages.cells).filter(|(_, cell)| **cell == Cell::Dirty).map(|(at, _)| at).collect();
        Self {
            rule,
            rewrite,
            slow,
            pages,
            dirtied,
            last,
            age: 0,
            gone: 0,
            retry: 0,
            changed: 0,
            state: StepState::default(),
        }
    }

    fn dirty(&mut self, offset: u64) {
        self.changed += 1;
        let cell = offset / CELL;
        self.dirtied.retain(|other| *other != cell);
        self.dirtied.push_back(cell);
        self.pages.write(offset..offset + 1);
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Write(bytes) => {
                let bytes = bytes.min(REACH_BYTES - self.gone);
                self.gone += bytes;
                // The writer waits for a checkpoint before it reaches the previous one: InnoDB
                // leaves a tenth.
                self.age = (self.age + bytes).min(self.pages.size - HEADER - FREE_BYTES);
                for _ in 0..bytes.div_ceil(CELL) {
                    self.last += bytes / bytes.div_ceil(CELL);
                    if self.last >= self.pages.size {
                        self.last = HEADER;
                    }
                    self.dirty(self.last);
                }
            }
            Op::Checkpoint(left) => {
                self.age = self.age * left / 100;
                self.dirty(0);
            }
            Op::Sync => {
                self.dirtied.clear();
                self.pages.write_back(&(0..u64::MAX), 0);
            }
            Op::WriteBack(cells) => {
                for cell in self.dirtied.drain(..cells.min(self.dirtied.len())) {
                    self.pages.write_back(&(cell * CELL..(cell + 1) * CELL), 0);
                }
            }
            Op::Reclaim(number) => self.pages.reclaim(&(number * WINDOW..(number + 1) * WINDOW)),
            Op::Retry => self.retry += 1,
            Op::Step => self.step()?,
        }
        Ok(())
    }

    /// Returns the ranges of the file from the checkpoint to the last byte.
    #[allow(clippy::single_range_in_vec_init, reason = "a list of ranges, which may have one")]
    fn needed(&self) -> Vec<Range<u64>> {
        if self.age <= self.last - HEADER {
            return vec![self.last - self.age..self.last + 1];
        }
        let start = self.pages.size - (self.age - (self.last - HEADER));
        vec![start..self.pages.size, HEADER..self.last + 1]
    }

    fn facts(&self) -> StepFacts {
        let file = FileFacts {
            id: FileId(1),
            database: DatabaseId(1),
            log: LogId(1),
            sequence: 0,
            class: FileClass::Redo,
            rule: self.rule,
            rewrite: self.rewrite,
            size: self.pages.size,
            writer: Some(FilePosition::Unknown),
            changed: self.changed,
            windows: self.pages.windows().into(),
        };
        let at = CheckpointPosition::InRing { offset: self.needed()[0].start };
        let checkpoints = vec![CheckpointFacts { log: LogId(1), at }];
        StepFacts { files: vec![file], checkpoints, retry: self.retry, ..StepFacts::default() }
    }

    fn step(&mut self) -> Result<(), TestCaseError> {
        let facts = self.facts();
        let acts = step(&mut self.state, &facts);
        check_ranges(&facts, &acts)?;
        check_repeats(&self.state, &facts, &acts, false)?;
        if matches!(self.rule, Rule::ReleaseBeforeCheckpoint { .. }) {
            for (_, range) in releases(&acts) {
                let needed = self.needed();
                let hit = needed.iter().any(|needed| range.start < needed.end && needed.start < range.end);
                prop_assert!(!hit, "{range:?} released, recovery reads {needed:?}");
            }
        }
        // A writer of whole pages needs no old page: losing sight of it costs nothing.
        let needed = releases(&acts).filter(|_| self.rewrite != RewriteKind::WholePages);
        for (_, range) in needed {
            prop_assert!(!range.contains(&self.last), "{range:?} released, the writer is at {}", self.last);
        }
        prop_assert_eq!(self.state.read_back(), &[], "there is a writer, and no reader");
        self.pages.tick();
        for act in &acts {
            self.pages.execute(act, self.slow);
        }
        for (_, range) in releases(&acts) {
            let mut left = self.pages.windows();
            left.retain(|window| range.contains(&window.start));
            self.state.released(&facts.files[0], range, &left);
        }
        self.gone = 0;
        Ok(())
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn the_window_being_written_in_parts_is_never_released(
        rule in rule(),
        slow in 0..3_u8,
        cells in cells(),
        last in HEADER..WINDOWS * WINDOW,
        held in prop::collection::vec((0..WINDOWS / 2, prop_oneof![Just(ReleaseResistance::Part), Just(ReleaseResistance::Whole)]), 0..4),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut ring = Ring::new(rule, RewriteKind::Never, slow, &cells, last);
        // No two are adjacent: the writer would leave no trace in the second one.
        ring.pages.grips = held.into_iter().map(|(number, grip)| (2 * number, grip)).collect();
        for op in &ops {
            ring.apply(op)?;
        }
        step(&mut ring.state, &StepFacts::default());
        ring.state.retain_files(|_| false);
        prop_assert_eq!(ring.state, StepState::default());
    }

    #[test]
    fn a_continuing_writer_leaves_little_behind(
        slack in 0..3 * WINDOW,
        rewrite in prop_oneof![Just(RewriteKind::Never), Just(RewriteKind::WholePages)],
        slow in 0..2_u8,
        synced in any::<bool>(),
        cells in cells(),
        last in HEADER..WINDOWS * WINDOW,
        ops in prop::collection::vec(op(), 0..100),
        pace in WINDOW / 2..REACH_BYTES,
    ) {
        let mut ring = Ring::new(Rule::ReleaseBehindWriter { slack }, rewrite, slow, &cells, last);
        for op in &ops {
            ring.apply(op)?;
        }
        // A write over dirty pages leaves no trace; in the end the kernel has written all pages.
        ring.apply(&Op::Sync)?;
        for _ in 0..20 {
            if synced {
                ring.apply(&Op::Sync)?;
            }
            ring.apply(&Op::Write(pace))?;
            ring.apply(&Op::Retry)?;
            ring.step()?;
        }
        // These windows may be left: the writes of one step with the slack behind them, here and at
        // the end of the ring; the header; the start after a wraparound; and the writes in
        // progress.
        let slack = slack.div_ceil(WINDOW);
        let paces = pace.div_ceil(WINDOW) + 1;
        let limit = 2 * (slack + paces) + 1 + 4 + if synced { 0 } else { paces };
        let left = ring.pages.windows();
        prop_assert!(left.len() as u64 <= limit, "{left:?} left, expected at most {limit} windows");
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn pages_that_recovery_would_read_are_never_released(
        slack in 0..2 * WINDOW,
        rewrite in prop_oneof![Just(RewriteKind::Never), Just(RewriteKind::WholePages)],
        slow in 0..3_u8,
        last in HEADER..WINDOWS * WINDOW,
        held in prop::collection::vec((0..WINDOWS / 2, prop_oneof![Just(ReleaseResistance::Part), Just(ReleaseResistance::Whole)]), 0..4),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        // Pages that were there before would hide what is written over them and synced between two
        // samples.
        let rule = Rule::ReleaseBeforeCheckpoint { near_files: 0, slack };
        let mut ring = Ring::new(rule, rewrite, slow, &[], last);
        ring.pages.grips = held.into_iter().map(|(number, grip)| (2 * number, grip)).collect();
        for op in &ops {
            ring.apply(op)?;
        }
        step(&mut ring.state, &StepFacts::default());
        ring.state.retain_files(|_| false);
        prop_assert_eq!(ring.state, StepState::default());
    }

    #[test]
    fn pages_before_the_checkpoint_are_released(
        age in 0..10 * WINDOW,
        rewrite in prop_oneof![Just(RewriteKind::Never), Just(RewriteKind::WholePages)],
        last in HEADER..WINDOWS * WINDOW,
        ops in prop::collection::vec(op(), 0..100),
        pace in WINDOW / 2..REACH_BYTES,
    ) {
        let rule = Rule::ReleaseBeforeCheckpoint { near_files: 0, slack: 0 };
        let mut ring = Ring::new(rule, rewrite, 0, &[], last);
        for op in &ops {
            ring.apply(op)?;
        }
        let paces = pace.div_ceil(WINDOW) + 1;
        // The windows that recovery reads, those of one step, those ahead at the end of the file,
        // and the header.
        let limit = age.div_ceil(WINDOW) + 1 + 2 * paces + 4 + 1;
        // The writer goes around twice. If it left no trace at the start of the file, its trace at
        // the end counts as its position for some steps, and everything stays, but not always.
        let mut least = u64::MAX;
        for _ in 0..2 * WINDOWS * WINDOW / pace + 20 {
            ring.apply(&Op::Write(pace))?;
            ring.age = ring.age.min(age);
            ring.apply(&Op::Checkpoint(100))?;
            // Writes over resident pages are seen only while they are unsynced.
            ring.step()?;
            ring.apply(&Op::Sync)?;
            least = least.min(ring.pages.windows().len() as u64);
        }
        prop_assert!(least <= limit, "{least} left, expected at most {limit} windows");
    }
}

/// A writer overwrites pages that were resident before, and syncs before each sample. It is seen
/// once, in a window that it leaves, and then found in a window that it reached without a trace.
#[test]
fn a_writer_over_resident_pages_that_shows_itself_late() {
    let mut cells = vec![Cell::Absent; 178];
    cells.extend([Cell::Clean; 46]);
    let rule = Rule::ReleaseBehindWriter { slack: 0 };
    let mut ring = Ring::new(rule, RewriteKind::Never, 0, &cells, 46_298_946);
    for op in [
        Op::Step,
        Op::Write(1_052_920),
        Op::Write(5_238_520),
        Op::Sync,
        Op::Step,
        Op::Retry,
        Op::Write(13_191),
        Op::Write(5_854_535),
        Op::Sync,
        Op::Step,
    ] {
        ring.apply(&op).unwrap();
    }
}

/// Windows that resisted a release join those that stay for the writer. The file's last window is
/// behind these: its writeback is requested in the next step.
#[test]
fn windows_that_resist_before_the_end_of_the_file() {
    let mut ring =
        Ring::new(Rule::Budget { bytes: WINDOW, total: u64::MAX }, RewriteKind::Never, 1, &[], 45_778_987);
    ring.pages.grips.insert(24, ReleaseResistance::Part);
    for op in [
        Op::Write(4_780_515),
        Op::Step,
        Op::Write(4_823_416),
        Op::Step,
        Op::Write(5_474_931),
        Op::Step,
        Op::Write(5_988_848),
        Op::Step,
        Op::Step,
        Op::Write(2_606_080),
        Op::Retry,
        Op::Step,
    ] {
        ring.apply(&op).unwrap();
    }
}
