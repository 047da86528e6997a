//! The world of the read-back detector: a log, its writer, a reader and the guard.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pagekeeper_policy::{
    DatabaseId, FileClass, FileFacts, FileId, FilePosition, FollowerFacts, FollowerId, LogId, LogWarning,
    RewriteKind, Rule, StepAction, StepFacts, StepState, step,
};

use crate::model::{CELL, Cell, Pages, releases};

/// What happens.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Write(u64),
    Sync,
    Read(u64),
    Reopen,
    Purge,
    Restart,
    Step,
}

/// A file of the log, and how often it was written.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) pages: Pages,
    changed: i128,
}

/// A log, its writer, its reader and the guard.
#[derive(Debug)]
pub(crate) struct World {
    rule: Rule,
    rewrite: RewriteKind,
    /// Whether the writer's place is shown.
    shown: bool,
    /// Whether the reader's is.
    pub(crate) known: bool,
    pub(crate) files: BTreeMap<u64, LogFile>,
    pub(crate) current: u64,
    end: u64,
    file_bytes: u64,
    /// Whether the writer begins its file again at its end.
    pub(crate) is_ring: bool,
    /// The reader's position.
    pub(crate) reader: (u64, u64),
    pub(crate) retry: u64,
    pub(crate) state: StepState,
    /// Cells that the guard released, and that did not come back.
    gone: BTreeSet<(u64, usize)>,
    /// Reads of each cell from the device by the reader since the guard's start.
    reads: BTreeMap<(u64, usize), u64>,
    pub(crate) warnings: usize,
}

impl World {
    /// Makes a world with files of `file_bytes`, in which the positions of writer and reader are
    /// visible or not.
    pub(crate) fn new(
        file_bytes: u64,
        rule: Rule,
        rewrite: RewriteKind,
        (shown, known): (bool, bool),
    ) -> Self {
        let mut world = Self {
            rule,
            rewrite,
            shown,
            known,
            files: BTreeMap::new(),
            current: 0,
            file_bytes,
            end: file_bytes,
            is_ring: false,
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

    pub(crate) fn write(&mut self, mut bytes: u64) {
        while bytes > 0 {
            if self.end == self.file_bytes {
                self.end = 0;
                if !self.is_ring || self.current == 0 {
                    self.current += 1;
                    // One that is written over is there at its full length.
                    let size = if self.rewrite == RewriteKind::Never { 0 } else { self.file_bytes };
                    self.files.insert(self.current, LogFile { pages: Pages::new(size), changed: 0 });
                }
            }
            let part = bytes.min(self.file_bytes - self.end);
            let file = self.files.get_mut(&self.current).unwrap();
            file.pages.write(self.end..self.end + part);
            file.changed += 1;
            for cell in cells(self.end..self.end + part) {
                self.gone.remove(&(self.current, cell));
                self.reads.remove(&(self.current, cell));
            }
            self.end += part;
            bytes -= part;
        }
    }

    /// Reads on up to the writer; at the end it starts again.
    pub(crate) fn read(&mut self, mut bytes: u64) {
        while bytes > 0 {
            let (sequence, offset) = self.reader;
            let Some(file) = self.files.get_mut(&sequence).filter(|_| sequence <= self.current) else {
                self.reader = (*self.files.keys().next().unwrap(), 0);
                return;
            };
            let end = if sequence == self.current && !self.is_ring { self.end } else { self.file_bytes };
            if offset >= end {
                self.reader = (sequence + 1, 0);
                if sequence == self.current {
                    return;
                }
                continue;
            }
            let part = bytes.min(end - offset);
            for cell in cells(offset..offset + part) {
                if file.pages.cells[cell] == Cell::Absent && self.gone.remove(&(sequence, cell)) {
                    *self.reads.entry((sequence, cell)).or_default() += 1;
                }
            }
            file.pages.read(&(offset..offset + part));
            self.reader = (sequence, offset + part);
            bytes -= part;
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Vec<StepAction> {
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
                // Pages that the guard before it released are read once more.
                self.gone.clear();
                self.reads.clear();
            }
            Op::Step => return self.step(),
        }
        Vec::new()
    }

    fn facts(&self) -> StepFacts {
        let writer = if self.shown { FilePosition::At(self.end) } else { FilePosition::Unknown };
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
            position: FilePosition::At(self.reader.1),
            near_files: 0,
        };
        StepFacts {
            files: self.files.iter().map(file).collect(),
            followers: if self.known { vec![follower] } else { Vec::new() },
            retry: self.retry,
            ..StepFacts::default()
        }
    }

    pub(crate) fn step(&mut self) -> Vec<StepAction> {
        let facts = self.facts();
        let acts = step(&mut self.state, &facts);
        for act in &acts {
            let (StepAction::StartWriteback { file, .. }
            | StepAction::Release { file, .. }
            | StepAction::Warn { file, .. }) = act;
            self.files.get_mut(&file.0).unwrap().pages.execute(act, 0);
            let is_warning = matches!(act, StepAction::Warn { warning: LogWarning::ReadBack, .. });
            self.warnings += usize::from(is_warning);
        }
        for (file, range) in releases(&acts) {
            let pages = &self.files[&file.0].pages;
            let absent = cells(range.clone()).filter(|cell| pages.cells.get(*cell) == Some(&Cell::Absent));
            self.gone.extend(absent.map(|cell| (file.0, cell)));
            let mut left = pages.windows();
            left.retain(|window| range.contains(&window.start));
            let facts = facts.files.iter().find(|facts| facts.id == file).unwrap();
            self.state.released(facts, range, &left);
        }
        acts
    }

    /// Returns bytes that were read from the device more than `times` since the guard's start.
    pub(crate) fn read_more_than(&self, times: u64) -> u64 {
        self.reads.values().map(|reads| reads.saturating_sub(times) * CELL).sum()
    }

    pub(crate) fn released_and_gone(&self) -> u64 {
        self.gone.len() as u64 * CELL
    }
}

/// Returns the cells of a range.
fn cells(range: Range<u64>) -> impl Iterator<Item = usize> {
    (range.start / CELL..range.end.div_ceil(CELL)).map(|cell| usize::try_from(cell).unwrap())
}
