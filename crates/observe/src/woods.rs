//! All directories of all databases, kept from look to look, and the time that looking at them may take.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::ProcRoot;

use crate::limits::Limits;
use crate::tree::{Key, Tree, Turn};

/// Files that are known already may be looked at again for this share of the time between two looks: 2 %.
const SHARE: u32 = 50;
/// However soon the next look comes, for so long.
const LEAST: Duration = Duration::from_millis(50);

/// All directories of all databases.
#[derive(Debug, Default)]
pub(crate) struct Woods {
    trees: HashMap<Key, (u64, Tree)>,
    number: u64,
    began: Option<Instant>,
    time: Duration,
    /// Files that somebody had open at the look before.
    busy: HashSet<Inode>,
}

impl Woods {
    /// Begins a look at `directories` of them; what the look before did not come to is forgotten.
    pub(crate) fn begin(&mut self, directories: usize) {
        let now = Instant::now();
        let last = self.number;
        self.trees.retain(|_, (looked, _)| *looked == last);
        self.number += 1;
        let between = self.began.replace(now).map_or(Duration::ZERO, |began| now.duration_since(began));
        self.time = (between / SHARE).max(LEAST) / u32::try_from(directories.max(1)).unwrap_or(u32::MAX);
    }

    /// Gives all the time there is to the next look: nothing in it will be older.
    pub(crate) fn take_all_time(&mut self) {
        self.time = Duration::MAX;
    }

    pub(crate) fn look(
        &mut self,
        key: Key,
        proc: &ProcRoot,
        profile: &Profile,
        passed_by: &HashSet<&Path>,
        limits: &mut Limits,
    ) -> &Tree {
        let turn = Turn { proc, profile, passed_by, busy: &self.busy, number: self.number, time: self.time };
        let (looked, tree) = self.trees.entry(key.clone()).or_insert_with(|| (0, Tree::new(key)));
        *looked = self.number;
        tree.look(&turn, limits);
        tree
    }

    /// Ends a look: these files somebody has open.
    pub(crate) fn end(&mut self, busy: impl Iterator<Item = Inode>) {
        self.busy = busy.collect();
    }
}
