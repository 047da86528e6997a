//! The directory trees of all databases, kept from one snapshot to the next. Kept files, names to
//! read and time for sampling known files are limited by [`FairShares`], so that a user with very
//! many directories takes nothing from another.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagekeeper_kernel::Inode;

use crate::ObserverOptions;
use crate::discovery::subjects::ObservedDatabase;
use crate::trees::directory_owners::DirectoryOwners;
use crate::trees::fair_shares::{FairShares, PartyDemand};
use crate::trees::tree::{DirectoryTree, ScanContext, TreeKey};
use crate::visibility::VisibilityGaps;

/// Known files may be sampled again for 1/`RESAMPLE_TIME_DIVISOR` of the time between two
/// snapshots: 2 %.
const RESAMPLE_TIME_DIVISOR: u32 = 50;
/// The shortest time for that.
const RESAMPLE_TIME_MIN: Duration = Duration::from_millis(50);

/// The directory trees of all databases.
#[derive(Debug, Default)]
pub(crate) struct DirectoryTrees {
    trees: HashMap<TreeKey, (u64, DirectoryTree)>,
    number: u64,
    began: Option<Instant>,
    /// The time in microseconds for each directory of a database.
    time: FairShares,
    /// The kept files for each directory of a database, and for its other open files.
    files: FairShares,
    /// The names that are read in each directory of a database and below.
    names: FairShares,
    /// Files that a process had open at the snapshot before.
    busy: HashSet<Inode>,
}

/// A directory of a database: the index of the database, and of the directory in it.
pub(crate) type DirectoryPosition = (usize, usize);

impl DirectoryTrees {
    /// Begins a snapshot. Forgets trees that the last snapshot did not scan. All trees together
    /// keep the files that the options allow.
    pub(crate) fn begin(
        &mut self,
        subjects: &[ObservedDatabase],
        owners: &DirectoryOwners,
        options: &ObserverOptions,
    ) {
        let now = Instant::now();
        let last = self.number;
        self.trees.retain(|_, (scanned_in, _)| *scanned_in == last);
        self.number += 1;
        let of_directory = |(index, path)| {
            let known = self.trees.get(&(owners.through(index), path));
            known.map_or(options.max_files, |(_, tree)| tree.wanted())
        };
        let files: Vec<PartyDemand> = subjects
            .iter()
            .enumerate()
            .map(|(index, subject)| {
                let directories = subject.directories.iter().map(|path| of_directory((index, path.clone())));
                (subject.party, directories.chain([subject.held.len()]).collect())
            })
            .collect();
        self.files = FairShares::new(options.max_files, &files);
        let names: Vec<PartyDemand> = subjects
            .iter()
            .enumerate()
            .map(|(index, subject)| {
                let through = owners.through(index);
                let wanted = |path: &PathBuf| {
                    let known = self.trees.get(&(through, path.clone()));
                    known.map_or(usize::MAX, |(_, tree)| tree.wanted_names())
                };
                (subject.party, subject.directories.iter().map(wanted).collect())
            })
            .collect();
        self.names = FairShares::new(options.max_files, &names);
        let between = self.began.replace(now).map_or(Duration::ZERO, |began| now.duration_since(began));
        let time = (between / RESAMPLE_TIME_DIVISOR).max(RESAMPLE_TIME_MIN).as_micros();
        let time = usize::try_from(time).unwrap_or(usize::MAX);
        let wanted: Vec<PartyDemand> =
            subjects.iter().map(|subject| (subject.party, vec![time; subject.directories.len()])).collect();
        self.time = FairShares::new(time, &wanted);
    }

    /// Returns the order in which databases are scanned: those that kept most before come last, and
    /// may use what others leave over.
    pub(crate) fn order(&self, subjects: &[ObservedDatabase], owners: &DirectoryOwners) -> Vec<usize> {
        let kept = |index: usize| {
            let trees = subjects[index].directories.iter().filter_map(|path| {
                let (_, tree) = self.trees.get(&(owners.through(index), path.clone()))?;
                Some(tree.kept())
            });
            trees.sum::<usize>()
        };
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        order.sort_by_cached_key(|index| kept(*index));
        order
    }

    fn is_scanned(&self, key: &TreeKey) -> bool {
        self.trees.get(key).is_some_and(|(number, tree)| *number == self.number && tree.kept() > 0)
    }

    /// Scans one directory of a database.
    pub(crate) fn scan(
        &mut self,
        (index, at): DirectoryPosition,
        subject: &ObservedDatabase,
        owners: &DirectoryOwners,
        options: &ObserverOptions,
        gaps: &mut VisibilityGaps,
    ) -> &DirectoryTree {
        let key = (owners.through(index), subject.directories[at].clone());
        // Two databases of one kind may share it.
        if self.is_scanned(&key) {
            return &self.trees[&key].1;
        }
        let context = ScanContext {
            proc: &options.roots.proc,
            profile: &subject.profile,
            party: subject.party,
            is_anothers: &|directory| owners.is_anothers(index, directory),
            selects: &|directory| options.selects.selects(subject.pid, directory),
            busy: &self.busy,
            number: self.number,
            time: Duration::from_micros(self.time.limit(index, at) as u64),
            max_files: self.files.limit(index, at),
            max_names: self.names.limit(index, at),
            pin: subject.pin(&key.1),
        };
        let (scanned_in, tree) =
            self.trees.entry(key.clone()).or_insert_with(|| (0, DirectoryTree::new(key)));
        *scanned_in = self.number;
        let spent = tree.scan(&context, gaps);
        self.time.take(index, at, usize::try_from(spent.time.as_micros()).unwrap_or(usize::MAX));
        self.files.take(index, at, tree.kept());
        self.names.take(index, at, spent.names);
        tree
    }

    /// Returns how many of a database's open files outside its directories may be kept.
    pub(crate) fn opened_limit(&self, index: usize, subject: &ObservedDatabase) -> usize {
        self.files.limit(index, subject.directories.len())
    }

    /// Records how many of them are kept.
    pub(crate) fn take_held(&mut self, index: usize, subject: &ObservedDatabase, taken: usize) {
        self.files.take(index, subject.directories.len(), taken);
    }

    /// Ends a snapshot; `busy` are the files that a process has open.
    pub(crate) fn end(&mut self, busy: impl Iterator<Item = Inode>) {
        self.busy = busy.collect();
    }
}
