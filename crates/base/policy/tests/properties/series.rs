//! A log of files whose writer's position is known: appended to, rotated, purged, followed, read
//! and reclaimed at random, under each rule.

use std::collections::BTreeMap;
use std::ops::Range;

use pagekeeper_policy::{
    DatabaseId, FileClass, FileFacts, FileId, FilePosition, FollowerFacts, FollowerId, LogId, READ_AHEAD,
    RewriteKind, Rule, StepAction, StepFacts, StepState, WINDOW, WindowFacts, step,
};
use proptest::prelude::*;

use crate::model::{
    CELL, Cell, MIB, Pages, ReleaseResistance, check_ranges, check_repeats, config, covers, releases,
    writebacks,
};

const FOLLOWERS: usize = 3;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Write(u64),
    Sync,
    Rotate,
    /// A file above the writer's, as recycled segments are, with pages of its former life.
    Spare(u64),
    Purge,
    StopWriter,
    /// The kernel writes or takes some pages.
    WriteBack(usize, u64),
    Reclaim(usize, u64),
    /// Someone else reads, or holds on to pages.
    Read(usize, u64),
    Hold(usize, u64, ReleaseResistance),
    Follow(usize, u64),
    Seek(usize, u64, u64),
    Hide(usize, bool),
    Retry,
    Step,
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let place = (0..8_usize, 0..8_u64);
    prop_oneof![
        8 => (1..5 * MIB).prop_map(Op::Write),
        3 => Just(Op::Sync),
        4 => Just(Op::Rotate),
        1 => (1..6 * MIB).prop_map(Op::Spare),
        1 => Just(Op::Purge),
        1 => Just(Op::StopWriter),
        2 => place.clone().prop_map(|(file, window)| Op::WriteBack(file, window)),
        2 => place.clone().prop_map(|(file, window)| Op::Reclaim(file, window)),
        3 => place.clone().prop_map(|(file, window)| Op::Read(file, window)),
        1 => (place, prop_oneof![Just(ReleaseResistance::None), Just(ReleaseResistance::Part), Just(ReleaseResistance::Whole)])
            .prop_map(|((file, window), grip)| Op::Hold(file, window, grip)),
        6 => (0..FOLLOWERS, 1..6 * MIB).prop_map(|(which, bytes)| Op::Follow(which, bytes)),
        2 => (0..FOLLOWERS, 0..8_u64, 0..12 * MIB).prop_map(|(which, back, at)| Op::Seek(which, back, at)),
        1 => (0..FOLLOWERS, any::<bool>()).prop_map(|(which, hidden)| Op::Hide(which, hidden)),
        1 => Just(Op::Retry),
        12 => Just(Op::Step),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        1 => Just(Rule::Keep),
        1 => Just(Rule::Direct),
        2 => Just(Rule::ReleaseOnRotation),
        4 => (0..5 * MIB).prop_map(|slack| Rule::ReleaseBehindWriter { slack }),
        8 => (0..4_u64, 0..5 * MIB)
            .prop_map(|(near_files, slack)| Rule::ReleaseBehindFollowers { near_files, slack }),
        4 => (0..20 * MIB).prop_map(|bytes| Rule::Budget { bytes, total: u64::MAX }),
    ]
}

fn rewrite() -> impl Strategy<Value = RewriteKind> {
    prop_oneof![4 => Just(RewriteKind::Never), 2 => Just(RewriteKind::WholePages), 1 => Just(RewriteKind::SubPages)]
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Follower {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    hidden: bool,
}

/// The last act on a window: its figures then, the retry, and whether it was a release.
type Done = (u64, u64, u64, bool);

#[derive(Debug)]
pub(crate) struct Log {
    rule: Rule,
    rewrite: RewriteKind,
    slow: u8,
    pub(crate) files: BTreeMap<u64, Pages>,
    pub(crate) current: u64,
    pub(crate) position: u64,
    stopped: bool,
    pub(crate) followers: Vec<Follower>,
    places: Vec<(u64, FilePosition)>,
    held: bool,
    pub(crate) retry: u64,
    state: StepState,
    done: BTreeMap<(u64, u64), Done>,
}

impl Log {
    pub(crate) fn new(rule: Rule, rewrite: RewriteKind, followers: usize, slow: u8) -> Self {
        Self {
            rule,
            rewrite,
            slow,
            files: BTreeMap::from([(1, Pages::new(0))]),
            current: 1,
            position: 0,
            stopped: false,
            followers: vec![Follower { sequence: 1, offset: 0, hidden: false }; followers],
            places: Vec::new(),
            held: false,
            retry: 0,
            state: StepState::default(),
            done: BTreeMap::new(),
        }
    }

    fn pick(&mut self, file: usize) -> &mut Pages {
        let at = file % self.files.len();
        self.files.values_mut().nth(at).unwrap()
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let window = |number: u64| number * WINDOW..(number + 1) * WINDOW;
        match *op {
            Op::Write(bytes) => {
                self.stopped = false;
                let range = self.position..self.position + bytes;
                self.position = range.end;
                self.files.get_mut(&self.current).unwrap().write(range);
            }
            Op::Sync => {
                for pages in self.files.values_mut() {
                    pages.write_back(&(0..u64::MAX), 0);
                }
            }
            Op::Rotate => {
                self.current += 1;
                self.position = 0;
                self.files.entry(self.current).or_insert_with(|| Pages::new(0));
            }
            Op::Spare(size) => {
                let newest = *self.files.keys().next_back().unwrap();
                let mut spare = Pages::new(size);
                spare.read(&(0..size));
                self.files.insert(newest + 1, spare);
            }
            Op::Purge => {
                let oldest = *self.files.keys().next().unwrap();
                if oldest < self.current {
                    self.files.remove(&oldest);
                }
            }
            Op::StopWriter => self.stopped = true,
            Op::WriteBack(file, number) => self.pick(file).write_back(&window(number), 0),
            Op::Reclaim(file, number) => self.pick(file).reclaim(&window(number)),
            Op::Read(file, number) => self.pick(file).read(&window(number)),
            Op::Hold(file, number, grip) => {
                self.held = true;
                self.pick(file).grips.insert(number, grip);
            }
            Op::Follow(which, bytes) => self.follow(which, bytes),
            Op::Seek(which, back, offset) => {
                if let Some(follower) = self.followers.get_mut(which) {
                    follower.sequence = self.current.saturating_sub(back);
                    follower.offset = offset;
                }
            }
            Op::Hide(which, hidden) => {
                if let Some(follower) = self.followers.get_mut(which) {
                    follower.hidden = hidden;
                }
            }
            Op::Retry => self.retry += 1,
            Op::Step => {
                self.step()?;
            }
        }
        Ok(())
    }

    /// Reads on, into the next file at the end of one that the writer has left.
    fn follow(&mut self, which: usize, bytes: u64) {
        let Some(follower) = self.followers.get_mut(which) else {
            return;
        };
        let end = self.files.get(&follower.sequence).map_or(0, |pages| pages.size);
        let end = if follower.sequence == self.current { self.position } else { end };
        let to = end.min(follower.offset + bytes);
        if let Some(pages) = self.files.get_mut(&follower.sequence) {
            pages.read(&(follower.offset.min(to)..to));
        }
        follower.offset = follower.offset.max(to);
        if follower.offset >= end && follower.sequence < self.current {
            follower.sequence += 1;
            follower.offset = 0;
        }
    }

    fn places(&self) -> Vec<(u64, FilePosition)> {
        let position = |follower: &Follower| {
            if follower.hidden { FilePosition::Unknown } else { FilePosition::At(follower.offset) }
        };
        self.followers.iter().map(|follower| (follower.sequence, position(follower))).collect()
    }

    pub(crate) fn facts(&self) -> StepFacts {
        let file = |(&sequence, pages): (&u64, &Pages)| FileFacts {
            id: FileId(1000 - sequence),
            database: DatabaseId(1),
            log: LogId(1),
            sequence,
            class: FileClass::Binlog,
            rule: self.rule,
            rewrite: self.rewrite,
            size: pages.size,
            writer: (sequence == self.current && !self.stopped).then_some(FilePosition::At(self.position)),
            changed: 0,
            windows: pages.windows().into(),
        };
        let follower = |(id, (sequence, position)): (u64, (u64, FilePosition))| FollowerFacts {
            id: FollowerId(id),
            log: LogId(1),
            sequence,
            position,
            near_files: 0,
        };
        StepFacts {
            files: self.files.iter().map(file).collect(),
            followers: (0..).zip(self.places()).map(follower).collect(),
            retry: self.retry,
            ..StepFacts::default()
        }
    }

    /// Runs one step, checks it, and carries out its actions.
    pub(crate) fn step(&mut self) -> Result<Vec<StepAction>, TestCaseError> {
        let facts = self.facts();
        let before = self.state.clone();
        let acts = step(&mut self.state, &facts);

        let mut backwards = facts.clone();
        backwards.files.reverse();
        backwards.followers.reverse();
        prop_assert_eq!(
            &step(&mut before.clone(), &backwards),
            &acts,
            "the order of the facts does not matter"
        );

        check_ranges(&facts, &acts)?;
        check_repeats(&self.state, &facts, &acts, self.moved().any(|moved| moved))?;
        self.check_files(&facts, &acts)?;
        self.places = self.places();
        for pages in self.files.values_mut() {
            pages.tick();
        }
        for act in &acts {
            if let StepAction::StartWriteback { file, .. } | StepAction::Release { file, .. } = act {
                self.files.get_mut(&(1000 - file.0)).unwrap().execute(act, self.slow);
            }
        }
        self.check_budget(&facts, &acts)?;
        Ok(acts)
    }

    fn moved(&self) -> impl Iterator<Item = bool> {
        let past = self.places.clone();
        self.places().into_iter().enumerate().map(move |(at, place)| past.get(at) != Some(&place))
    }

    /// Returns the bytes of the file that the rule keeps, as the documentation of the rules says
    /// it.
    fn kept(&self, file: &FileFacts) -> Vec<Range<u64>> {
        let mut kept = Vec::new();
        let position = match file.writer {
            Some(FilePosition::At(position)) => Some(position),
            _ => None,
        };
        if self.rule == Rule::Keep || (self.rule == Rule::ReleaseOnRotation && file.writer.is_some()) {
            kept.push(0..u64::MAX);
        }
        if let Rule::ReleaseBehindWriter { slack } | Rule::ReleaseBehindFollowers { slack, .. } = self.rule {
            kept.extend(position.map(|at| at.saturating_sub(slack) / WINDOW * WINDOW..u64::MAX));
        }
        if let Rule::ReleaseBehindFollowers { .. } = self.rule {
            kept.extend(self.awaited(file.sequence));
            kept.extend(self.being_read(file.sequence));
        }
        if let Rule::Budget { .. } = self.rule {
            kept.extend(position.map(|at| at / WINDOW * WINDOW..(at / WINDOW + 1) * WINDOW));
        }
        kept
    }

    fn is_near(&self, sequence: u64) -> bool {
        let newest = *self.files.keys().next_back().unwrap();
        let writer = if self.stopped { newest } else { self.current };
        matches!(self.rule, Rule::ReleaseBehindFollowers { near_files, .. }
            if writer.saturating_sub(sequence) <= near_files)
    }

    /// Returns the ranges of the file with this sequence that near followers have yet to read.
    fn awaited(&self, sequence: u64) -> Vec<Range<u64>> {
        let near = self.places().into_iter().filter(|(at, _)| self.is_near(*at) && *at <= sequence);
        near.map(|(at, position)| match position {
            FilePosition::At(offset) if at == sequence => offset / WINDOW * WINDOW..u64::MAX,
            _ => 0..u64::MAX,
        })
        .collect()
    }

    fn being_read(&self, sequence: u64) -> Vec<Range<u64>> {
        let mut kept = Vec::new();
        for ((at, position), moved) in self.places().into_iter().zip(self.moved()) {
            if at != sequence || self.is_near(at) {
                continue;
            }
            match position {
                FilePosition::At(offset) if moved => {
                    kept.push(offset / WINDOW * WINDOW..offset + READ_AHEAD);
                }
                FilePosition::At(_) => {}
                FilePosition::Unknown => kept.push(0..u64::MAX),
            }
        }
        kept
    }

    fn check_files(&mut self, facts: &StepFacts, acts: &[StepAction]) -> Result<(), TestCaseError> {
        let mut newer = 0;
        let mut done = BTreeMap::new();
        for file in facts.files.iter().rev() {
            let kept = self.kept(file);
            for window in file.windows.iter().rev() {
                newer += window.resident;
                let in_budget = matches!(self.rule, Rule::Budget { bytes, .. } if newer <= bytes);
                let overlaps = |kept: &Range<u64>| kept.start < window.end && window.start < kept.end;
                let stays = in_budget || kept.iter().any(overlaps);
                let released = covers(releases(acts), file.id, window);
                let flushed = covers(writebacks(acts), file.id, window);
                let key = (file.sequence, window.start);
                let past = self.done.get(&key).copied();
                if self.rewrite == RewriteKind::SubPages {
                    prop_assert!(!released && !flushed, "recycled in parts of pages: {window:?}");
                } else if stays {
                    prop_assert!(!released, "released, though it is to stay: {window:?} of {file:?}");
                    let awaited = self.awaited(file.sequence).iter().any(overlaps);
                    let passing = self.being_read(file.sequence).iter().any(overlaps);
                    prop_assert!(
                        !flushed || awaited || passing,
                        "flushed without need: {window:?} of {file:?}"
                    );
                    let behind = match file.writer {
                        Some(FilePosition::At(position)) => window.end <= position / WINDOW * WINDOW,
                        _ => true,
                    };
                    if awaited && behind && window.unwritten > 0 && past.is_none() {
                        prop_assert!(flushed, "dirty pages pile up: {window:?} of {file:?}");
                    }
                } else {
                    check_goes(window, past, facts.retry, released, flushed)?;
                }
                let figures = |release| (window.resident, window.unwritten, facts.retry, release);
                let mut past = past;
                if let Some((_, unwritten, _, false)) = &mut past {
                    *unwritten = window.unwritten.min(*unwritten);
                }
                let now = if released { Some(figures(true)) } else { flushed.then(|| figures(false)) };
                done.extend(now.or(past).map(|done| (key, done)));
            }
        }
        self.done = done;
        Ok(())
    }

    /// Checks that at most the budget is left, except for the tail window and the bytes that are
    /// being written.
    fn check_budget(&self, facts: &StepFacts, acts: &[StepAction]) -> Result<(), TestCaseError> {
        let Rule::Budget { bytes, .. } = self.rule else {
            return Ok(());
        };
        if self.held || self.rewrite == RewriteKind::SubPages {
            return Ok(());
        }
        let mut waiting = 0;
        for file in &facts.files {
            for window in file.windows.iter() {
                let refused = self.done.get(&(file.sequence, window.start)).is_some_and(|done| done.3)
                    && !covers(releases(acts), file.id, window);
                if refused || covers(writebacks(acts), file.id, window) {
                    waiting += window.resident;
                }
            }
        }
        let left: u64 = self.files.values().map(Pages::resident).sum();
        prop_assert!(left <= bytes + WINDOW + waiting, "{left} left of a budget of {bytes}");
        Ok(())
    }

    /// Checks that no state is left once all files are gone.
    pub(crate) fn end(mut self) -> Result<(), TestCaseError> {
        prop_assert_eq!(step(&mut self.state, &StepFacts::default()), []);
        prop_assert_eq!(self.state, StepState::default());
        Ok(())
    }
}

/// Checks that a window that a rule releases is released: a clean one at once, a dirty one in the
/// step after its writeback was started. A window that refused with the same figures is left alone.
fn check_goes(
    window: &WindowFacts,
    past: Option<Done>,
    retry: u64,
    released: bool,
    flushed: bool,
) -> Result<(), TestCaseError> {
    let refused = past == Some((window.resident, window.unwritten, retry, true));
    if refused {
        prop_assert!(!released && !flushed, "asked again without a change: {window:?}");
    } else if window.unwritten == 0 {
        prop_assert!(released && !flushed, "clean and ruled, but left: {window:?}");
    } else if past.is_some_and(|(_, unwritten, _, release)| !release && window.unwritten <= unwritten) {
        prop_assert!(released, "flushed before, but not released: {window:?}");
    } else if past.is_none() {
        prop_assert!(flushed && !released, "dirty and ruled, but not flushed first: {window:?}");
    } else {
        prop_assert!(released || flushed, "dirty and ruled, but left: {window:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn every_step_follows_the_rule(
        rule in rule(),
        rewrite in rewrite(),
        slow in 0..3_u8,
        followers in 0..=FOLLOWERS,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut log = Log::new(rule, rewrite, followers, slow);
        for op in &ops {
            log.apply(op)?;
        }
        log.step()?;
        log.end()?;
    }

    #[test]
    fn a_file_purged_alone_leaves_no_residue(ops in prop::collection::vec(op(), 1..40)) {
        let rule = Rule::ReleaseBehindFollowers { near_files: 1, slack: 0 };
        let mut log = Log::new(rule, RewriteKind::Never, 1, 0);
        for op in &ops {
            log.apply(op)?;
        }
        let facts = log.facts();
        let mut rest = facts.clone();
        rest.files.remove(0);
        let mut alone = StepState::default();
        step(&mut log.state, &facts);
        step(&mut log.state, &rest);
        step(&mut log.state, &StepFacts { files: vec![], ..facts.clone() });
        step(&mut alone, &StepFacts { files: vec![], ..facts });
        prop_assert_eq!(log.state, alone);
    }
}

#[test]
fn the_model_counts_cells() {
    let mut pages = Pages::new(3 * MIB);
    pages.write(0..1);
    pages.read(&(2 * MIB..3 * MIB));
    let windows = pages.windows();
    assert_eq!((windows[0].resident, windows[0].unwritten), (CELL, CELL));
    assert_eq!((windows[1].resident, windows[1].unwritten, windows[1].end), (MIB, 0, 3 * MIB));
    assert_eq!(pages.cells[0], Cell::Dirty);
}
