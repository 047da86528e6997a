//! The directory trees of all databases, kept from one snapshot to the next, and the time that scanning them may take.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::Inode;

use crate::ObserverOptions;
use crate::subjects::Subject;
use crate::tree::{DirectoryTree, Key, ScanContext};
use crate::visibility::VisibilityGaps;

/// Known files may be sampled again for this share of the time between two snapshots: 2 %.
const SHARE: u32 = 50;
/// But never for less than this.
const MIN_TIME: Duration = Duration::from_millis(50);

/// The directory trees of all databases.
#[derive(Debug, Default)]
pub(crate) struct DirectoryTrees {
    trees: HashMap<Key, (u64, DirectoryTree)>,
    number: u64,
    began: Option<Instant>,
    time: Duration,
    /// Of one tree.
    max_files: usize,
    /// Files that a process had open at the snapshot before.
    busy: HashSet<Inode>,
}

impl DirectoryTrees {
    /// Begins a snapshot of `directories` trees; trees that the last snapshot did not scan are forgotten.
    /// Together they keep `max_files`.
    pub(crate) fn begin(&mut self, directories: usize, max_files: usize) {
        let now = Instant::now();
        let last = self.number;
        self.trees.retain(|_, (scanned_in, _)| *scanned_in == last);
        self.number += 1;
        self.max_files = max_files / directories.max(1);
        let between = self.began.replace(now).map_or(Duration::ZERO, |began| now.duration_since(began));
        self.time = (between / SHARE).max(MIN_TIME) / u32::try_from(directories.max(1)).unwrap_or(u32::MAX);
    }

    /// Removes the time limit for this snapshot: every file is sampled.
    pub(crate) fn remove_time_limit(&mut self) {
        self.time = Duration::MAX;
    }

    pub(crate) fn scan(
        &mut self,
        key: Key,
        options: &ObserverOptions,
        subject: &Subject,
        excluded: &HashSet<&Path>,
        gaps: &mut VisibilityGaps,
    ) -> &DirectoryTree {
        let context = ScanContext {
            proc: &options.roots.proc,
            profile: &subject.profile,
            excluded,
            selects: &|directory| options.selects.selects(subject.pid, directory),
            busy: &self.busy,
            number: self.number,
            time: self.time,
            max_files: self.max_files,
            pin: subject.pin(&key.1),
        };
        let (scanned_in, tree) =
            self.trees.entry(key.clone()).or_insert_with(|| (0, DirectoryTree::new(key)));
        *scanned_in = self.number;
        tree.scan(&context, gaps);
        tree
    }

    /// Ends a snapshot; `busy` are the files that a process has open.
    pub(crate) fn end(&mut self, busy: impl Iterator<Item = Inode>) {
        self.busy = busy.collect();
    }
}
