//! The descriptors of processes that are not watched databases: `mysqlbinlog`, `cp`, a helper of a
//! database.
//!
//! A listing covers all processes. Those with very many descriptors are read for longer than it
//! lasts, and keep no other waiting.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::process::{FdRounds, OpenFile, ProcRoot, thread_cpu_time};
use pagekeeper_policy::cpu_budget::ListingTime;
use pagekeeper_policy::full_listing::FullListing;
use pagekeeper_policy::shares::shares_by_party;

use super::changes::DescriptorCounts;
use super::lister::{ListedProcess, Lister, descriptor, mark_moved, name_of_removed};
use super::poll::poll;
use super::schedule::{Extent, Schedule};
use crate::budget::FOREIGN_DESCRIPTORS_MAX;
use crate::descriptor::{Descriptor, POLLED_PER_TICK};
use crate::known_names::KnownNames;

/// The descriptors of watched files in processes that are not watched databases, kept up to date.
#[derive(Debug)]
pub(crate) struct ForeignDescriptors {
    known: BTreeMap<u32, ForeignProcess>,
    pub(crate) schedule: Schedule,
    rounds: FdRounds<ListedProcess>,
    time: ListingTime,
    cost: Duration,
    /// Processes with more descriptors of watched files than are remembered, since the last
    /// [`ForeignDescriptors::left_out`].
    left_out: Vec<u32>,
    full_listing: FullListing,
    changes: DescriptorCounts,
}

/// The state of one of these processes.
#[derive(Debug)]
struct ForeignProcess {
    descriptors: Vec<Descriptor>,
    party: Party,
    turn: usize,
}

impl ForeignDescriptors {
    pub(crate) fn new(now: Instant) -> Self {
        let (known, cost, left_out) = (BTreeMap::new(), Duration::ZERO, Vec::new());
        let (schedule, rounds, time) = (Schedule::new(now), FdRounds::default(), ListingTime::new(now));
        let (full_listing, changes) = (FullListing::default(), DescriptorCounts::default());
        Self { known, schedule, rounds, time, cost, left_out, full_listing, changes }
    }

    /// Makes the listing come soon.
    pub(crate) fn hurry(&mut self) {
        self.time.hurry();
    }

    /// Returns all known descriptors.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Descriptor> {
        self.by_process().flatten()
    }

    /// Returns all known descriptors, by process.
    pub(crate) fn by_process(&self) -> impl Iterator<Item = &[Descriptor]> {
        self.known.values().map(|known| &*known.descriptors)
    }

    /// Returns whether a listing of all processes is in progress, not counting those with very many
    /// descriptors.
    pub(crate) fn is_listing(&self) -> bool {
        self.schedule.is_running()
    }

    /// Returns the time since which all inspectable processes have been read.
    pub(crate) fn all_read_since(&self) -> Option<Instant> {
        self.full_listing.since
    }

    /// Returns the processes that were found to have more relevant descriptors than are remembered.
    pub(crate) fn left_out(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.left_out)
    }

    /// Reads positions again, as [`Descriptors::poll`](super::Descriptors::poll) does.
    pub(crate) fn poll(&mut self, proc: &ProcRoot) {
        let shares = self.shares(POLLED_PER_TICK);
        for ((pid, known), share) in self.known.iter_mut().zip(shares) {
            let polled = poll(&mut known.descriptors, &mut known.turn, proc, share);
            if !polled.lost.is_empty() {
                self.changes.lost(*pid, Instant::now());
                self.schedule.ask(Extent::Changes);
            }
        }
        self.known.retain(|_, known| !known.descriptors.is_empty());
    }

    /// Returns the share of each process in `all` descriptors.
    fn shares(&self, all: usize) -> Vec<usize> {
        let wanted: Vec<_> =
            self.known.values().map(|known| (known.party, known.descriptors.len())).collect();
        shares_by_party(all, &wanted)
    }

    /// Lists the descriptors of these processes if that is due, or continues a listing. `was_log`
    /// says whether a removed file of this name was a log, in a process that has it open. Returns
    /// the processes that were listed.
    pub(crate) fn list(
        &mut self,
        proc: &ProcRoot,
        pids: impl Iterator<Item = u32>,
        names: &KnownNames,
        was_log: &dyn Fn(u32, &Path) -> bool,
        now: Instant,
    ) -> Vec<ListedProcess> {
        if let Some(extent) = self.schedule.begin(now) {
            self.begin(extent, proc, pids.collect(), now);
        }
        if self.rounds.is_empty() && !self.schedule.is_running() {
            return Vec::new();
        }
        let Some(slice) = self.time.slice(self.schedule.slice(), now) else { return Vec::new() };
        let before = thread_cpu_time();
        let wanted = |pid: u32, path: &Path| {
            names.has(path) || name_of_removed(path).is_some_and(|name| was_log(pid, name))
        };
        let kept = |file: &OpenFile| {
            file.deleted || file.path.file_name().is_some_and(|name| names.find(name, file.inode).is_some())
        };
        let mut lister =
            Lister { proc, wanted: &wanted, kept: &kept, unnamed: &|_, _| false, done: Vec::new() };
        self.rounds.advance(proc, &mut lister, slice);
        let processes = lister.done;
        // Processes that may not be inspected were reported at the start.
        for done in &processes {
            self.cost += done.cost;
            self.full_listing.read(done.pid, done.began);
            self.changes.read(done.pid, done.count);
            let mut descriptors: Vec<Descriptor> =
                done.open.iter().filter_map(|file| descriptor(done.pid, file, names)).collect();
            if done.left_out {
                self.left_out.push(done.pid);
            }
            let before = self.known.remove(&done.pid);
            if !descriptors.is_empty() {
                mark_moved(&mut descriptors, before.as_ref().map_or(&[], |known| &known.descriptors));
                let party = Party::of(proc, done.pid);
                self.known.insert(done.pid, ForeignProcess { descriptors, party, turn: 0 });
            }
        }
        let shares = self.shares(FOREIGN_DESCRIPTORS_MAX);
        for ((pid, known), share) in self.known.iter_mut().zip(shares) {
            if known.descriptors.len() > share {
                known.descriptors.truncate(share);
                self.left_out.push(*pid);
            }
        }
        self.time.spend(thread_cpu_time().saturating_sub(before));
        if self.schedule.is_running() && self.rounds.waiting() == 0 {
            let began = self.schedule.began_all();
            self.schedule.end(std::mem::take(&mut self.cost));
            if let Some(began) = began {
                self.full_listing.listed(began, self.rounds.begun().collect());
                self.changes.all_read(began);
            }
        }
        processes
    }

    /// Begins a listing of these processes, or of those that may have changed.
    fn begin(&mut self, extent: Extent, proc: &ProcRoot, mut pids: Vec<u32>, now: Instant) {
        let before = thread_cpu_time();
        let has_time = self.time.slice(Duration::MAX, now).is_some();
        if extent == Extent::Changes && has_time && DescriptorCounts::are_seen(proc, pids.len()) {
            let (known, changes) = (&self.known, &self.changes);
            pids.retain(|pid| known.contains_key(pid) || changes.may_have(*pid, proc));
        } else {
            self.schedule.go_on_with_all();
            self.full_listing.keep(|pid| proc.start_time(pid).is_ok());
            self.changes.keep(&pids);
        }
        // Processes with very many descriptors are still being read.
        let begun: Vec<u32> = self.rounds.begun().collect();
        pids.into_iter().filter(|pid| !begun.contains(pid)).for_each(|pid| self.rounds.push(pid));
        let spent = thread_cpu_time().saturating_sub(before);
        self.cost += spent;
        self.time.spend(spent);
    }
}
