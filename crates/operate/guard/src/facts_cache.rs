//! A cache of what the policy was given for a directory, valid while nothing of the directory changes. At
//! most ticks nothing changes in most of thousands of directories.
//!
//! Invariants: the cache equals what a new look would show. The directory [forgets](FactsCache::forget) it
//! when a file of it changes, or what is known of one. It is not used if a descriptor, the strangers among
//! the writers, or the tightness of the rules has changed. Builds with assertions compare it at each tick
//! with what is seen.

use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::RawFd;

use pagekeeper_kernel::process::Access;
use pagekeeper_policy::{Facts, FileFacts, FileId, FollowerFacts};

use crate::descriptor::Descriptor;
use crate::ids::{DirectoryId, IdMap, IdSet};

/// The descriptors of watched files, grouped by directory.
pub(crate) struct ByDirectory<'a> {
    /// The descriptors of one directory are adjacent, in the order in which they came.
    all: Vec<&'a Descriptor>,
    places: IdMap<DirectoryId, Range<usize>>,
}

impl<'a> ByDirectory<'a> {
    pub(crate) fn new(descriptors: impl Iterator<Item = &'a Descriptor>) -> Self {
        let mut all: Vec<_> = descriptors.collect();
        all.sort_by_key(|descriptor| descriptor.directory);
        let (mut places, mut end) = (IdMap::default(), 0);
        for of_one in all.chunk_by(|one, next| one.directory == next.directory) {
            places.insert(of_one[0].directory, end..end + of_one.len());
            end += of_one.len();
        }
        Self { all, places }
    }

    pub(crate) fn of(&self, directory: DirectoryId) -> &[&'a Descriptor] {
        self.places.get(&directory).map_or(&[], |place| &self.all[place.clone()])
    }
}

/// The cached facts of one directory. See the module.
#[derive(Debug, Default)]
pub(crate) struct FactsCache {
    of: Option<(bool, Vec<DescriptorState>)>,
    files: Vec<FileFacts>,
    followers: Vec<FollowerFacts>,
}

/// The part of a descriptor that matters to the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DescriptorState {
    pid: u32,
    fd: RawFd,
    file: FileId,
    access: Access,
    position: u64,
    /// Whether its process neither is a database nor was started by one.
    is_strangers: bool,
}

fn state(descriptor: &Descriptor, strangers: &HashSet<u32>) -> DescriptorState {
    let &Descriptor { pid, fd, file, access, position, .. } = descriptor;
    DescriptorState { pid, fd, file, access, position, is_strangers: strangers.contains(&pid) }
}

impl FactsCache {
    /// Invalidates the cache.
    pub(crate) fn forget(&mut self) {
        self.of = None;
    }

    /// Returns whether any of these files is in the cache.
    pub(crate) fn has_any(&self, files: &IdSet<FileId>) -> bool {
        self.files.iter().any(|file| files.contains(&file.id))
    }

    /// Returns whether the cache was made from these descriptors, with these `strangers` among their
    /// processes, and with rules as tight as now.
    pub(crate) fn is_of(&self, tight: bool, descriptors: &[&Descriptor], strangers: &HashSet<u32>) -> bool {
        self.of.as_ref().is_some_and(|(was_tight, states)| {
            *was_tight == tight
                && states.len() == descriptors.len()
                && states.iter().zip(descriptors).all(|(before, now)| *before == state(now, strangers))
        })
    }

    /// Stores the facts that were made from these descriptors.
    pub(crate) fn take(
        &mut self,
        tight: bool,
        descriptors: &[&Descriptor],
        strangers: &HashSet<u32>,
        seen: Facts,
    ) {
        debug_assert!(
            !self.is_of(tight, descriptors, strangers)
                || self.files == seen.files && self.followers == seen.followers,
            "{self:?} is remembered, and seen is {seen:?}"
        );
        self.of = Some((tight, descriptors.iter().map(|one| state(one, strangers)).collect()));
        (self.files, self.followers) = (seen.files, seen.followers);
    }

    /// Adds the cached facts to `facts`.
    pub(crate) fn add_to(&self, facts: &mut Facts) {
        facts.files.extend_from_slice(&self.files);
        facts.followers.extend_from_slice(&self.followers);
    }
}
