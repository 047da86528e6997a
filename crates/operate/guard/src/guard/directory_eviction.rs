//! Eviction of watched directories: makes room for one more when their number is at the limit.
//!
//! Whoever comes first could fill the table. When it is full, a new directory evicts one of the
//! user furthest above their fair share. Among a user's own places, it evicts one of the database
//! that has most. Nobody loses a place to somebody who has as many, so two users never take a place
//! from each other in turns. Directories that the operator named are never evicted.

use std::collections::BTreeMap;

use pagekeeper_catalog::Party;

use crate::budget::{DIRECTORIES_MAX, DIRECTORIES_PER_DATABASE, DIRECTORIES_PER_USER};

/// The room for one more directory of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryRoom {
    Free,
    /// If the directory of this index is given up.
    InPlaceOf(usize),
    Full,
}

/// Returns whether there is room for a directory of this process and party, given the process and
/// party of each watched directory.
pub(super) fn room_for(watched: &[(Option<u32>, Party)], pid: u32, party: Party) -> DirectoryRoom {
    let of_process = watched.iter().filter(|(owner, _)| *owner == Some(pid)).count();
    let of_party = watched.iter().filter(|(_, whose)| *whose == party).count();
    if of_process >= DIRECTORIES_PER_DATABASE {
        return DirectoryRoom::Full;
    }
    let is_full = watched.len() >= DIRECTORIES_MAX;
    if of_party < DIRECTORIES_PER_USER && !is_full {
        return DirectoryRoom::Free;
    }
    let other = if of_party < DIRECTORIES_PER_USER { has_too_many(watched, party, of_party) } else { None };
    let mut by_process: BTreeMap<u32, usize> = BTreeMap::new();
    let of_loser = watched.iter().filter(|(_, whose)| *whose == other.unwrap_or(party));
    for owner in of_loser.filter_map(|(owner, _)| *owner) {
        *by_process.entry(owner).or_default() += 1;
    }
    let Some((loses, most)) = by_process.into_iter().max_by_key(|(_, held)| *held) else {
        return DirectoryRoom::Full;
    };
    if other.is_none() && most <= of_process + 1 {
        return DirectoryRoom::Full;
    }
    // Usually the one that came last.
    let last = watched.iter().rposition(|(owner, _)| *owner == Some(loses));
    last.map_or(DirectoryRoom::Full, DirectoryRoom::InPlaceOf)
}

/// Returns the other party with most directories, if these exceed both its fair share and the
/// number that this party would have.
fn has_too_many(watched: &[(Option<u32>, Party)], party: Party, of_party: usize) -> Option<Party> {
    let mut by_party = BTreeMap::from([(party, 0)]);
    for (_, whose) in watched {
        *by_party.entry(*whose).or_default() += 1;
    }
    let part = DIRECTORIES_MAX / by_party.len();
    let others = by_party.into_iter().filter(|(whose, _)| *whose != party && *whose != Party::Operator);
    let (whose, most) = others.max_by_key(|(_, held)| *held)?;
    (most > part && most > of_party + 1).then_some(whose)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKERS: [Party; 2] = [Party::User(1), Party::User(2)];
    const SERVER: Party = Party::User(3);

    /// Two users with two databases each, which have filled the table.
    fn full() -> Vec<(Option<u32>, Party)> {
        (0..4u32)
            .flat_map(|pid| vec![(Some(pid), ATTACKERS[pid as usize / 2]); DIRECTORIES_PER_DATABASE])
            .collect()
    }

    /// Makes a process take as many places as it gets.
    fn take(watched: &mut Vec<(Option<u32>, Party)>, pid: u32, party: Party) -> usize {
        for took in 0..=DIRECTORIES_MAX {
            match room_for(watched, pid, party) {
                DirectoryRoom::Free => watched.push((Some(pid), party)),
                DirectoryRoom::InPlaceOf(at) => watched[at] = (Some(pid), party),
                DirectoryRoom::Full => return took,
            }
        }
        panic!("there is no end");
    }

    #[test]
    fn a_server_that_comes_late_gets_the_places_of_those_who_have_most() {
        let mut watched = full();
        assert_eq!(watched.len(), DIRECTORIES_MAX);
        assert_eq!(take(&mut watched, 9, SERVER), DIRECTORIES_PER_DATABASE);
        assert_eq!(watched.len(), DIRECTORIES_MAX);
        // Nor does it lose them again.
        for pid in 0..4 {
            take(&mut watched, pid, ATTACKERS[pid as usize / 2]);
        }
        let of_server = watched.iter().filter(|(owner, _)| *owner == Some(9)).count();
        assert_eq!(of_server, DIRECTORIES_PER_DATABASE);
    }

    #[test]
    fn a_server_of_the_same_user_gets_its_part_of_what_that_one_has() {
        let mut watched = full();
        let took = take(&mut watched, 9, ATTACKERS[0]);
        assert!((600..=DIRECTORIES_PER_DATABASE).contains(&took), "a third of 2048 but for the last: {took}");
        assert_eq!(watched.iter().filter(|(_, party)| *party == ATTACKERS[1]).count(), DIRECTORIES_PER_USER);
    }

    #[test]
    fn who_has_no_more_than_a_part_and_what_was_named_loses_nothing() {
        let count = u32::try_from(DIRECTORIES_MAX).unwrap();
        let each: Vec<_> = (0..count).map(|user| (Some(user), Party::User(user))).collect();
        assert_eq!(room_for(&each, count, Party::User(count)), DirectoryRoom::Full);
        let named = vec![(None, Party::Operator); DIRECTORIES_MAX];
        assert_eq!(room_for(&named, 1, SERVER), DirectoryRoom::Full);
    }
}
