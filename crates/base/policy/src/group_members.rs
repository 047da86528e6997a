//! Tracks which memory cgroups the databases' processes are in. A part of the processes is looked
//! at in each pass, in turns.
//!
//! Invariants:
//! 1. An observation of a process stays until the process is inspected again, or has ended:
//!    processes that share a group are not forgotten between their turns.
//! 2. Each party has its share of a pass, and at least one process. Whoever starts very many
//!    processes makes their own turns rare, and nobody else's.
//! 3. A process that is not to be acted on ([`GroupAccess`]) and was not inspected yet may be in
//!    any group.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};

use crate::quotas::shares::shares;

/// Maximum number of processes in groups named by the rule that are inspected in one pass.
const NAMED_PROCESSES_MAX: usize = 64;
/// Number of processes inspected in all, per process in a named group: reading a process's group
/// costs little, reading the group's figures costs more.
const LOOKS_PER_NAMED: usize = 4;

/// The acts that are allowed for a database, from most to least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupAccess {
    /// Decisions are carried out.
    Acts,
    /// Nothing is done: decisions are only reported, or the database can't be seen well enough.
    Reported,
    /// Nothing is done: the database is listed as never to be touched.
    Never,
}

/// A database's process.
#[derive(Debug, Clone, Copy)]
pub struct OwnerProcess<U> {
    /// Its start time, which differs if the process ID is reused.
    pub started: u64,
    /// The party whose share it counts towards.
    pub party: U,
    /// The acts that are allowed for it.
    pub access: GroupAccess,
}

/// The place where a process was seen.
#[derive(Debug, Default)]
pub struct CgroupPlace {
    /// The path of its own group, where that can be seen.
    pub path: Option<PathBuf>,
    /// The group that its memory is charged to, if the rule names that one.
    pub group: Option<u64>,
}

struct GroupMember {
    started: u64,
    access: GroupAccess,
    place: CgroupPlace,
}

/// The processes that were inspected.
pub struct GroupMembers<U> {
    known: BTreeMap<u32, GroupMember>,
    /// The processes of each party, in the order of their turns.
    queues: BTreeMap<U, VecDeque<u32>>,
    /// Whether a process that is not to be acted on was not inspected yet.
    unseen: bool,
    /// Whether all processes were inspected.
    complete: bool,
}

impl<U> Default for GroupMembers<U> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), queues: BTreeMap::new(), unseen: false, complete: false }
    }
}

impl<U: Ord + Copy> GroupMembers<U> {
    /// Forgets all.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns the acts that were allowed for a process at the last inspection.
    pub fn access(&self, pid: u32, started: u64) -> Option<GroupAccess> {
        self.known.get(&pid).filter(|member| member.started == started).map(|member| member.access)
    }

    /// Inspects the processes whose turn it is. Returns the number of passes after which all have
    /// had a turn.
    pub fn take_turns(
        &mut self,
        owners: &BTreeMap<u32, OwnerProcess<U>>,
        mut look: impl FnMut(u32, U) -> CgroupPlace,
    ) -> usize {
        self.known.retain(|pid, member| owners.get(pid).is_some_and(|owner| owner.started == member.started));
        for (pid, member) in &mut self.known {
            member.access = owners[pid].access;
        }
        self.queue(owners);
        let wanted: Vec<usize> = self.queues.values().map(VecDeque::len).collect();
        let mut passes = 0;
        for ((party, queue), share) in self.queues.iter_mut().zip(shares(NAMED_PROCESSES_MAX, &wanted)) {
            let (share, mut named) = (share.max(1), 0);
            passes = passes.max(queue.len().div_ceil(share));
            for _ in 0..queue.len().min(share * LOOKS_PER_NAMED) {
                if named == share {
                    break;
                }
                let Some(pid) = queue.pop_front() else { break };
                queue.push_back(pid);
                let place = look(pid, *party);
                named += usize::from(place.group.is_some());
                let OwnerProcess { started, access, .. } = owners[&pid];
                self.known.insert(pid, GroupMember { started, access, place });
            }
        }
        let is_new = |pid: &u32| !self.known.contains_key(pid);
        self.unseen = owners.iter().any(|(pid, owner)| owner.access != GroupAccess::Acts && is_new(pid));
        self.complete = !owners.keys().any(is_new);
        passes
    }

    /// Queues new processes, and forgets those that have ended.
    fn queue(&mut self, owners: &BTreeMap<u32, OwnerProcess<U>>) {
        self.queues.retain(|party, queue| {
            queue.retain(|pid| owners.get(pid).is_some_and(|owner| owner.party == *party));
            !queue.is_empty()
        });
        let queued: HashSet<u32> = self.queues.values().flatten().copied().collect();
        for (pid, owner) in owners.iter().filter(|(pid, _)| !queued.contains(pid)) {
            self.queues.entry(owner.party).or_default().push_back(*pid);
        }
    }

    /// Returns the acts that are allowed on a group: the acts allowed for all processes in it and
    /// below it. `None` until that is known.
    pub fn access_in(&self, group: &Path) -> Option<GroupAccess> {
        let is_in = |member: &&GroupMember| {
            let path = member.place.path.as_ref();
            path.is_some_and(|path| path.starts_with(group))
        };
        let least = self.known.values().filter(is_in).map(|member| member.access).max();
        least.filter(|access| *access != GroupAccess::Acts || !self.unseen)
    }

    /// Returns whether all were inspected, and there are any.
    pub fn is_complete(&self) -> bool {
        self.complete && !self.known.is_empty()
    }

    /// Returns the processes whose memory is charged to one of these groups.
    pub fn in_groups(&self, groups: &BTreeSet<u64>) -> BTreeSet<u32> {
        let is_in = |member: &GroupMember| member.place.group.is_some_and(|group| groups.contains(&group));
        self.known.iter().filter(|(_, member)| is_in(member)).map(|(pid, _)| *pid).collect()
    }
}

/// Returns the groups in the order of a pass: first one group of each party, and in each pass
/// another one of it.
pub fn in_turn<U: Ord + Copy, T>(met: BTreeMap<u64, (U, T)>, pass: u64) -> Vec<(u64, (U, T))> {
    let mut by_party: BTreeMap<U, Vec<_>> = BTreeMap::new();
    for (id, (party, group)) in met {
        by_party.entry(party).or_default().push((id, (party, group)));
    }
    let mut ranked = Vec::new();
    for mut own in by_party.into_values() {
        let first = usize::try_from(pass % own.len() as u64).unwrap_or(0);
        own.rotate_left(first);
        ranked.extend(own.into_iter().enumerate());
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, group)| group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(of: impl IntoIterator<Item = (u32, u32, GroupAccess)>) -> BTreeMap<u32, OwnerProcess<u32>> {
        let owner = |(pid, user, access)| (pid, OwnerProcess { started: 1, party: user, access });
        of.into_iter().map(owner).collect()
    }

    fn place(path: &str, group: u64) -> CgroupPlace {
        CgroupPlace { path: Some(path.into()), group: Some(group) }
    }

    #[test]
    fn each_of_many_has_its_turn_and_a_user_with_very_many_takes_none_of_anothers() {
        let fakes = (100..1100).map(|pid| (pid, 1, GroupAccess::Acts));
        let all = owners(fakes.chain([(7, 2, GroupAccess::Acts)]));
        let (mut members, mut looked) = (GroupMembers::default(), BTreeMap::<u32, usize>::new());
        let passes = members.take_turns(&all, |pid, _| place("/x", u64::from(pid)));
        for _ in 0..passes {
            let mut at_once = 0;
            members.take_turns(&all, |pid, _| {
                at_once += 1;
                *looked.entry(pid).or_default() += 1;
                place("/x", u64::from(pid))
            });
            assert!(at_once <= NAMED_PROCESSES_MAX, "{at_once}");
        }
        assert_eq!(looked[&7], passes, "in each");
        assert!(members.is_complete());
        assert_eq!(looked.len(), all.len());
        // Processes that the rule does not name cost the others of their user little.
        let mut members = GroupMembers::default();
        let mut count = 0;
        members.take_turns(&all, |_, _| {
            count += 1;
            CgroupPlace::default()
        });
        assert_eq!(count, 1 + 63 * LOOKS_PER_NAMED);
    }

    #[test]
    fn processes_of_a_group_stay_known_between_turns() {
        let others = (100..300).map(|pid| (pid, 1, GroupAccess::Acts));
        // The second process in the group is outside the canary.
        let mut all = owners(others.chain([(400, 1, GroupAccess::Reported)]));
        let mut members = GroupMembers::default();
        let look = |pid: u32, _| match pid {
            100 | 400 => place("/db", 1),
            pid => place("/other", u64::from(pid)),
        };
        let passes = members.take_turns(&all, look);
        assert_eq!(members.access_in(Path::new("/db")), None, "the other one may be in it");
        for _ in 0..passes {
            members.take_turns(&all, look);
        }
        for _ in 0..passes {
            members.take_turns(&all, look);
            assert_eq!(members.access_in(Path::new("/db")), Some(GroupAccess::Reported));
            assert_eq!(members.access_in(Path::new("/other")), Some(GroupAccess::Acts));
            assert_eq!(members.in_groups(&[1].into()), [100, 400].into(), "both, in each pass");
        }
        all.remove(&400);
        members.take_turns(&all, look);
        assert_eq!(members.access_in(Path::new("/db")), Some(GroupAccess::Acts), "it has ended");
        // A process that reuses the number is another one.
        all.insert(400, OwnerProcess { started: 2, party: 9, access: GroupAccess::Reported });
        assert_eq!(members.access(400, 2), None);
    }

    #[test]
    fn a_group_with_an_excluded_process_below_is_excluded_too() {
        let all = owners([(1, 1, GroupAccess::Acts), (2, 2, GroupAccess::Never), (3, 3, GroupAccess::Acts)]);
        let mut members = GroupMembers::default();
        members.take_turns(&all, |pid, _| match pid {
            1 => place("/pod", 1),
            2 => CgroupPlace { path: Some("/pod/inner".into()), group: None },
            _ => place("/podx", 3),
        });
        assert_eq!(members.access_in(Path::new("/pod")), Some(GroupAccess::Never));
        assert_eq!(members.access_in(Path::new("/podx")), Some(GroupAccess::Acts));
        assert_eq!(members.access_in(Path::new("/none")), None);
    }
}
