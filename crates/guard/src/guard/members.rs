//! Which memory cgroups the databases' processes are in, as far as that was seen: a part of them is looked at in each pass, in turns.
//!
//! Invariants:
//! 1. What was seen of a process stays until it is looked at again, or has ended: who shares a group is not forgotten between its turns.
//! 2. Each party has its share of a pass, and one process at least: whoever starts very many makes its own turns rare, and nobody else's.
//! 3. A process that is not to be acted on ([`Stand`]), and was not looked at yet, may be in any group.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::shares;

/// So many processes in groups that the rule names are looked at in one pass …
const AT_ONCE: usize = 64;
/// … and for each of them so many in all: in which group one is costs little to see, and the group's figures more.
const LOOKS: usize = 4;

/// What may be done for a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stand {
    /// What is decided.
    Acts,
    /// Nothing: it is reported only, or what it is can't be seen.
    Reported,
    /// Nothing, by the list of those that are never to be touched.
    Never,
}

/// A database's process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) started: u64,
    pub(super) party: Party,
    pub(super) stand: Stand,
}

/// Where a process was seen to be.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The path of its own group, where that can be seen.
    pub(super) path: Option<PathBuf>,
    /// The group that its memory is charged to, if the rule names that.
    pub(super) group: Option<u64>,
}

struct Member {
    started: u64,
    stand: Stand,
    place: Place,
}

/// The processes that were looked at.
#[derive(Default)]
pub(super) struct Members {
    known: BTreeMap<u32, Member>,
    /// Behind which process of each party the next pass begins.
    after: BTreeMap<Party, u32>,
    /// Whether one was not looked at yet that is not to be acted on.
    unseen: bool,
    /// Whether all were looked at.
    complete: bool,
}

impl Members {
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// What was to be done for a process when that was seen last.
    pub(super) fn stand(&self, pid: u32, started: u64) -> Option<Stand> {
        self.known.get(&pid).filter(|member| member.started == started).map(|member| member.stand)
    }

    /// Looks at those whose turn it is. After how many passes all have had theirs.
    pub(super) fn take_turns(
        &mut self,
        owners: &BTreeMap<u32, Owner>,
        mut look: impl FnMut(u32, Party) -> Place,
    ) -> usize {
        self.known.retain(|pid, member| owners.get(pid).is_some_and(|owner| owner.started == member.started));
        for (pid, member) in &mut self.known {
            member.stand = owners[pid].stand;
        }
        let mut parties: BTreeMap<Party, BTreeSet<u32>> = BTreeMap::new();
        for (pid, owner) in owners {
            parties.entry(owner.party).or_default().insert(*pid);
        }
        self.after.retain(|party, _| parties.contains_key(party));
        let wanted: Vec<usize> = parties.values().map(BTreeSet::len).collect();
        let mut passes = 0;
        for ((party, pids), share) in parties.iter().zip(shares(AT_ONCE, &wanted)) {
            let share = share.max(1);
            // Half of the turns may go to new ones.
            passes = passes.max((2 * pids.len()).div_ceil(share));
            self.take_turn(*party, pids, owners, share, &mut look);
        }
        let is_new = |pid: &u32| !self.known.contains_key(pid);
        self.unseen = owners.iter().any(|(pid, owner)| owner.stand != Stand::Acts && is_new(pid));
        self.complete = !owners.keys().any(is_new);
        passes
    }

    fn take_turn(
        &mut self,
        party: Party,
        pids: &BTreeSet<u32>,
        owners: &BTreeMap<u32, Owner>,
        share: usize,
        look: &mut impl FnMut(u32, Party) -> Place,
    ) {
        let after = self.after.get(&party).copied().unwrap_or_default();
        let (new, old): (Vec<u32>, Vec<u32>) = pids
            .range((Bound::Excluded(after), Bound::Unbounded))
            .chain(pids.range(..=after))
            .partition(|pid| !self.known.contains_key(pid));
        let (mut new, mut old) = (new.into_iter(), old.into_iter());
        let mut named = 0;
        for turn in 0..share * LOOKS {
            let from_old = |old: &mut std::vec::IntoIter<u32>| old.next().map(|pid| (pid, true));
            let from_new = |new: &mut std::vec::IntoIter<u32>| new.next().map(|pid| (pid, false));
            let next = if turn % 2 == 0 {
                from_new(&mut new).or_else(|| from_old(&mut old))
            } else {
                from_old(&mut old).or_else(|| from_new(&mut new))
            };
            let Some((pid, is_old)) = next.filter(|_| named < share) else { break };
            if is_old {
                self.after.insert(party, pid);
            }
            let place = look(pid, party);
            named += usize::from(place.group.is_some());
            let Owner { started, stand, .. } = owners[&pid];
            self.known.insert(pid, Member { started, stand, place });
        }
    }

    /// What may be done to a group: the least of what may be for those in it and below it. `None` until that is known.
    pub(super) fn stand_in(&self, group: &Path) -> Option<Stand> {
        let is_in = |member: &&Member| {
            let path = member.place.path.as_ref();
            path.is_some_and(|path| path.starts_with(group))
        };
        let least = self.known.values().filter(is_in).map(|member| member.stand).max();
        least.filter(|stand| *stand != Stand::Acts || !self.unseen)
    }

    /// Whether all were looked at, and there are some.
    pub(super) fn is_complete(&self) -> bool {
        self.complete && !self.known.is_empty()
    }

    /// The processes whose memory is charged to one of these groups.
    pub(super) fn in_groups(&self, groups: &BTreeSet<u64>) -> BTreeSet<u32> {
        let is_in = |member: &Member| member.place.group.is_some_and(|group| groups.contains(&group));
        self.known.iter().filter(|(_, member)| is_in(member)).map(|(pid, _)| *pid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(of: impl IntoIterator<Item = (u32, u32, Stand)>) -> BTreeMap<u32, Owner> {
        let owner = |(pid, user, stand)| (pid, Owner { started: 1, party: Party::User(user), stand });
        of.into_iter().map(owner).collect()
    }

    fn place(path: &str, group: u64) -> Place {
        Place { path: Some(path.into()), group: Some(group) }
    }

    #[test]
    fn each_of_many_has_its_turn_and_a_user_with_very_many_takes_none_of_anothers() {
        let fakes = (100..1100).map(|pid| (pid, 1, Stand::Acts));
        let all = owners(fakes.chain([(7, 2, Stand::Acts)]));
        let (mut members, mut looked) = (Members::default(), BTreeMap::<u32, usize>::new());
        let passes = members.take_turns(&all, |pid, _| place("/x", u64::from(pid)));
        for _ in 0..passes {
            let mut at_once = 0;
            members.take_turns(&all, |pid, _| {
                at_once += 1;
                *looked.entry(pid).or_default() += 1;
                place("/x", u64::from(pid))
            });
            assert!(at_once <= AT_ONCE, "{at_once}");
        }
        assert_eq!(looked[&7], passes, "in each");
        assert!(members.is_complete());
        assert_eq!(looked.len(), all.len());
        // Those that the rule does not name cost the others of their user little.
        let mut members = Members::default();
        let mut count = 0;
        members.take_turns(&all, |_, _| {
            count += 1;
            Place::default()
        });
        assert_eq!(count, 1 + 63 * LOOKS);
    }

    #[test]
    fn who_shares_a_group_is_known_between_the_turns() {
        let others = (100..300).map(|pid| (pid, 1, Stand::Acts));
        // The second of them is none of the canary's.
        let mut all = owners(others.chain([(400, 1, Stand::Reported)]));
        let mut members = Members::default();
        let look = |pid: u32, _| match pid {
            100 | 400 => place("/db", 1),
            pid => place("/other", u64::from(pid)),
        };
        let passes = members.take_turns(&all, look);
        assert_eq!(members.stand_in(Path::new("/db")), None, "the other one may be in it");
        for _ in 0..passes {
            members.take_turns(&all, look);
        }
        for _ in 0..passes {
            members.take_turns(&all, look);
            assert_eq!(members.stand_in(Path::new("/db")), Some(Stand::Reported));
            assert_eq!(members.stand_in(Path::new("/other")), Some(Stand::Acts));
            assert_eq!(members.in_groups(&[1].into()), [100, 400].into(), "both, in each pass");
        }
        all.remove(&400);
        members.take_turns(&all, look);
        assert_eq!(members.stand_in(Path::new("/db")), Some(Stand::Acts), "it has ended");
        // Another process of that number is another one.
        all.insert(400, Owner { started: 2, party: Party::User(9), stand: Stand::Reported });
        assert_eq!(members.stand(400, 2), None);
    }

    #[test]
    fn what_is_never_to_be_touched_keeps_the_groups_above_from_it_too() {
        let all = owners([(1, 1, Stand::Acts), (2, 2, Stand::Never), (3, 3, Stand::Acts)]);
        let mut members = Members::default();
        members.take_turns(&all, |pid, _| match pid {
            1 => place("/pod", 1),
            2 => Place { path: Some("/pod/inner".into()), group: None },
            _ => place("/podx", 3),
        });
        assert_eq!(members.stand_in(Path::new("/pod")), Some(Stand::Never));
        assert_eq!(members.stand_in(Path::new("/podx")), Some(Stand::Acts));
        assert_eq!(members.stand_in(Path::new("/none")), None);
    }
}
