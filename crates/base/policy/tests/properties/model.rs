//! The model under all properties: files whose pages come, get dirty, are written and go, and an
//! executor of acts.
//!
//! Pages are modelled as cells of 256 KiB, eight to a window.

use std::collections::BTreeMap;
use std::ops::Range;

use pagekeeper_policy::{FileId, StepAction, StepFacts, StepState, WINDOW, WindowFacts, step};
use proptest::prelude::*;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const CELL: u64 = WINDOW / 8;

/// Bytes ahead of an unseen writer that stay for it.
const READ_AHEAD_BYTES: u64 = 4 * WINDOW;

/// The effect of a release on a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseResistance {
    /// All goes.
    None,
    /// One cell stays, as a mapped page does.
    Part,
    /// All stays.
    Whole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Absent,
    Clean,
    Dirty,
    /// Under writeback for this many more steps.
    Writing(u8),
}

/// A file and its pages.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    pub(crate) size: u64,
    pub(crate) cells: Vec<Cell>,
    /// By window.
    pub(crate) grips: BTreeMap<u64, ReleaseResistance>,
}

impl Pages {
    pub(crate) fn new(size: u64) -> Self {
        let mut pages = Self { size: 0, cells: Vec::new(), grips: BTreeMap::new() };
        pages.grow(size);
        pages
    }

    pub(crate) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
        let cells = usize::try_from(self.size.div_ceil(CELL)).unwrap();
        self.cells.resize(cells, Cell::Absent);
    }

    fn cells_of(&self, range: &Range<u64>) -> Range<usize> {
        let end = usize::try_from(range.end.div_ceil(CELL)).unwrap().min(self.cells.len());
        usize::try_from(range.start / CELL).unwrap().min(end)..end
    }

    pub(crate) fn write(&mut self, range: Range<u64>) {
        self.grow(range.end);
        let cells = self.cells_of(&range);
        self.cells[cells].fill(Cell::Dirty);
    }

    pub(crate) fn read(&mut self, range: &Range<u64>) {
        let cells = self.cells_of(range);
        for cell in &mut self.cells[cells] {
            if *cell == Cell::Absent {
                *cell = Cell::Clean;
            }
        }
    }

    /// Writes the dirty pages of the range, now or within `steps`.
    pub(crate) fn write_back(&mut self, range: &Range<u64>, steps: u8) {
        let cells = self.cells_of(range);
        for cell in &mut self.cells[cells] {
            match *cell {
                Cell::Dirty | Cell::Writing(_) if steps == 0 => *cell = Cell::Clean,
                Cell::Dirty => *cell = Cell::Writing(steps),
                Cell::Absent | Cell::Clean | Cell::Writing(_) => {}
            }
        }
    }

    /// Drops the clean pages of the range, as the kernel's reclaim does.
    pub(crate) fn reclaim(&mut self, range: &Range<u64>) {
        let cells = self.cells_of(range);
        for cell in &mut self.cells[cells] {
            if *cell == Cell::Clean {
                *cell = Cell::Absent;
            }
        }
    }

    /// Advances all writeback by one step.
    pub(crate) fn tick(&mut self) {
        for cell in &mut self.cells {
            *cell = match *cell {
                Cell::Writing(0) => Cell::Clean,
                Cell::Writing(steps) => Cell::Writing(steps - 1),
                other => other,
            };
        }
    }

    fn release(&mut self, range: &Range<u64>) {
        self.write_back(range, 0);
        for number in range.start / WINDOW..range.end.div_ceil(WINDOW) {
            let window = number * WINDOW..self.size.min((number + 1) * WINDOW);
            match self.grips.get(&number).copied().unwrap_or(ReleaseResistance::None) {
                ReleaseResistance::None => self.reclaim(&window),
                ReleaseResistance::Part => {
                    self.reclaim(&(window.start + CELL..window.end.max(window.start + CELL)));
                }
                ReleaseResistance::Whole => {}
            }
        }
    }

    /// Carries out an action on this file. Started writeback takes `slow` steps.
    pub(crate) fn execute(&mut self, act: &StepAction, slow: u8) {
        match act {
            StepAction::StartWriteback { range, .. } => self.write_back(range, slow),
            StepAction::Release { range, .. } => self.release(range),
            StepAction::Warn { .. } => {}
        }
    }

    pub(crate) fn windows(&self) -> Vec<WindowFacts> {
        let mut windows = Vec::new();
        for start in (0..self.size).step_by(usize::try_from(WINDOW).unwrap()) {
            let mut window =
                WindowFacts { start, end: self.size.min(start + WINDOW), resident: 0, unwritten: 0 };
            for at in self.cells_of(&(window.start..window.end)) {
                let from = at as u64 * CELL;
                let bytes = self.size.min(from + CELL) - from;
                match self.cells[at] {
                    Cell::Absent => {}
                    Cell::Clean => window.resident += bytes,
                    Cell::Dirty | Cell::Writing(_) => {
                        window.resident += bytes;
                        window.unwritten += bytes;
                    }
                }
            }
            if window.resident > 0 {
                windows.push(window);
            }
        }
        windows
    }

    pub(crate) fn resident(&self) -> u64 {
        self.windows().iter().map(|window| window.resident).sum()
    }
}

/// Returns a configuration for `PROPTEST_CASES` times `factor` cases. The seed of a failure is
/// printed, not written into the tree.
pub(crate) fn config(factor: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: factor * default.cases, failure_persistence: None, ..default }
}

/// Returns the releases among the acts.
pub(crate) fn releases(acts: &[StepAction]) -> impl Iterator<Item = (FileId, &Range<u64>)> {
    acts.iter().filter_map(|act| match act {
        StepAction::Release { file, range } => Some((*file, range)),
        StepAction::StartWriteback { .. } | StepAction::Warn { .. } => None,
    })
}

/// Returns the writebacks started among the acts.
pub(crate) fn writebacks(acts: &[StepAction]) -> impl Iterator<Item = (FileId, &Range<u64>)> {
    acts.iter().filter_map(|act| match act {
        StepAction::StartWriteback { file, range } => Some((*file, range)),
        StepAction::Release { .. } | StepAction::Warn { .. } => None,
    })
}

/// Tells whether one of these ranges of `file` holds all of `window`.
pub(crate) fn covers<'a>(
    mut ranges: impl Iterator<Item = (FileId, &'a Range<u64>)>,
    file: FileId,
    window: &WindowFacts,
) -> bool {
    ranges.any(|(id, range)| id == file && range.start <= window.start && window.end <= range.end)
}

/// Checks that ranges are inside the file, aligned, ascending and disjoint, and that files come in
/// the order of the log.
pub(crate) fn check_ranges(facts: &StepFacts, acts: &[StepAction]) -> Result<(), TestCaseError> {
    let mut last: Option<(u64, FileId, u64)> = None;
    for act in acts {
        let (StepAction::StartWriteback { file, range } | StepAction::Release { file, range }) = act else {
            continue;
        };
        let facts = facts.files.iter().find(|facts| facts.id == *file).unwrap();
        prop_assert!(range.start < range.end && range.end <= facts.size, "{act:?} of {}", facts.size);
        prop_assert_eq!(range.start % WINDOW, 0, "{:?}", act);
        prop_assert!(range.end % WINDOW == 0 || range.end == facts.size, "{act:?} of {}", facts.size);
        if let Some((sequence, id, end)) = last {
            let ordered = facts.sequence > sequence || (id == *file && range.start >= end);
            prop_assert!(ordered, "{act:?} in {acts:?}");
        }
        last = Some((facts.sequence, *file, range.end));
    }
    Ok(())
}

/// Repeats the same facts: the second step releases flushed ranges and those that a follower was
/// about to read, the third nothing.
pub(crate) fn check_repeats(
    state: &StepState,
    facts: &StepFacts,
    acts: &[StepAction],
    follower_moved: bool,
) -> Result<(), TestCaseError> {
    let mut state = state.clone();
    let second = step(&mut state, facts);
    if writebacks(acts).next().is_none() && !follower_moved {
        prop_assert_eq!(&second, &[], "a second step on the same facts");
    }
    if !follower_moved {
        for (file, range) in releases(&second) {
            let flushed = writebacks(acts)
                .any(|(id, flushed)| id == file && flushed.start < range.end && range.start < flushed.end);
            prop_assert!(flushed, "{range:?} released in the second step after {acts:?}");
        }
        // Windows that resisted may be the writer's, and so may those ahead of them.
        let resisted = |range: &Range<u64>| {
            releases(acts)
                .any(|(_, other)| other.end <= range.start && range.start < other.end + READ_AHEAD_BYTES)
        };
        let again = writebacks(&second).filter(|(_, range)| !resisted(range)).count();
        prop_assert_eq!(again, 0, "flushed again: {:?}", second);
    }
    if follower_moved {
        step(&mut state, facts);
    }
    prop_assert_eq!(step(&mut state, facts), [], "a later step on the same facts");
    Ok(())
}
