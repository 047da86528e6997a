//! A cache of what the policy was given for a directory, valid while nothing of the directory
//! changes. At most ticks nothing changes in most of thousands of directories.
//!
//! Invariants: the cache equals what a new look would show. The directory
//! [forgets](FactsCache::forget) it when a file of it changes, or what is known of one. It is not
//! used if a descriptor, the strangers among the writers, or the tightness of the rules has
//! changed. Builds with assertions compare it at each tick with what is seen.

use std::collections::HashSet;

use pagekeeper_policy::{FileFacts, FileId, FollowerFacts, StepFacts};

use crate::descriptor::Descriptor;
use crate::ids::hash_of;

/// The cached facts of one directory. See the module.
#[derive(Debug, Default)]
pub(crate) struct FactsCache {
    /// A hash of what they were made from.
    made_of: Option<u64>,
    files: Vec<FileFacts>,
    followers: Vec<FollowerFacts>,
}

/// Returns a hash of what matters to the policy: how tight the rules are, and descriptors, with the
/// `strangers` among their processes.
pub(crate) fn state_of(tight: bool, descriptors: &[&Descriptor], strangers: &HashSet<u32>) -> u64 {
    let state = |descriptor: &&Descriptor| {
        let &Descriptor { pid, fd, file, access, position, .. } = *descriptor;
        (pid, fd, file, access, position, strangers.contains(&pid))
    };
    hash_of(&(tight, descriptors.iter().map(state).collect::<Vec<_>>()))
}

impl FactsCache {
    /// Invalidates the cache.
    pub(crate) fn forget(&mut self) {
        self.made_of = None;
    }

    /// Returns whether any of these files is in the cache.
    pub(crate) fn has_any(&self, files: &HashSet<FileId>) -> bool {
        self.files.iter().any(|file| files.contains(&file.id))
    }

    /// Returns whether the cache was made from this [state](state_of).
    pub(crate) fn is_of(&self, state: u64) -> bool {
        self.made_of == Some(state)
    }

    /// Stores the facts that were made from this state.
    pub(crate) fn take(&mut self, state: u64, seen: StepFacts) {
        debug_assert!(
            !self.is_of(state) || self.files == seen.files && self.followers == seen.followers,
            "{self:?} is remembered, and seen is {seen:?}"
        );
        self.made_of = Some(state);
        (self.files, self.followers) = (seen.files, seen.followers);
    }

    /// Adds the cached facts to `facts`.
    pub(crate) fn add_to(&self, facts: &mut StepFacts) {
        facts.files.extend_from_slice(&self.files);
        facts.followers.extend_from_slice(&self.followers);
    }
}
