//! Room for one more directory, where there are as many as may be.
//!
//! Whoever comes first may fill the table. So who comes later gets a place of the user who has most, as long as that one
//! has more than its part, and of a user's own places one of the database that has most. Nobody loses to one who has as
//! many as it, so two never take a place from each other in turns. What the operator named is never taken.

use std::collections::BTreeMap;

use pagekeeper_catalog::Party;

use crate::budget::{ALL_DIRECTORIES, DIRECTORIES, DIRECTORIES_OF_USER};

/// Whether one more directory may be watched for a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// If the one of this index is given up.
    InPlaceOf(usize),
    Full,
}

/// What room there is for a process of this party beside what is watched: for which process each, and whose that is.
pub(super) fn room_for(watched: &[(Option<u32>, Party)], pid: u32, party: Party) -> Room {
    let of_process = watched.iter().filter(|(owner, _)| *owner == Some(pid)).count();
    let of_party = watched.iter().filter(|(_, whose)| *whose == party).count();
    if of_process >= DIRECTORIES {
        return Room::Full;
    }
    let is_full = watched.len() >= ALL_DIRECTORIES;
    if of_party < DIRECTORIES_OF_USER && !is_full {
        return Room::Free;
    }
    let other = if of_party < DIRECTORIES_OF_USER { has_too_many(watched, party, of_party) } else { None };
    let mut by_process: BTreeMap<u32, usize> = BTreeMap::new();
    let of_loser = watched.iter().filter(|(_, whose)| *whose == other.unwrap_or(party));
    for owner in of_loser.filter_map(|(owner, _)| *owner) {
        *by_process.entry(owner).or_default() += 1;
    }
    let Some((loses, most)) = by_process.into_iter().max_by_key(|(_, held)| *held) else { return Room::Full };
    if other.is_none() && most <= of_process + 1 {
        return Room::Full;
    }
    // The one that came last, as a rule.
    let last = watched.iter().rposition(|(owner, _)| *owner == Some(loses));
    last.map_or(Room::Full, Room::InPlaceOf)
}

/// Which other party has most, if that is more than its part and than this one would have.
fn has_too_many(watched: &[(Option<u32>, Party)], party: Party, of_party: usize) -> Option<Party> {
    let mut by_party = BTreeMap::from([(party, 0)]);
    for (_, whose) in watched {
        *by_party.entry(*whose).or_default() += 1;
    }
    let part = ALL_DIRECTORIES / by_party.len();
    let others = by_party.into_iter().filter(|(whose, _)| *whose != party && *whose != Party::Operator);
    let (whose, most) = others.max_by_key(|(_, held)| *held)?;
    (most > part && most > of_party + 1).then_some(whose)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKERS: [Party; 2] = [Party::User(1), Party::User(2)];
    const SERVER: Party = Party::User(3);

    /// Two users with two databases each, which have all that there is.
    fn full() -> Vec<(Option<u32>, Party)> {
        (0..4u32).flat_map(|pid| vec![(Some(pid), ATTACKERS[pid as usize / 2]); DIRECTORIES]).collect()
    }

    /// Has a process take as much as it gets.
    fn take(watched: &mut Vec<(Option<u32>, Party)>, pid: u32, party: Party) -> usize {
        for took in 0..=ALL_DIRECTORIES {
            match room_for(watched, pid, party) {
                Room::Free => watched.push((Some(pid), party)),
                Room::InPlaceOf(at) => watched[at] = (Some(pid), party),
                Room::Full => return took,
            }
        }
        panic!("there is no end");
    }

    #[test]
    fn a_server_that_comes_late_gets_the_places_of_those_who_have_most() {
        let mut watched = full();
        assert_eq!(watched.len(), ALL_DIRECTORIES);
        assert_eq!(take(&mut watched, 9, SERVER), DIRECTORIES);
        assert_eq!(watched.len(), ALL_DIRECTORIES);
        // Nor does it lose them again.
        for pid in 0..4 {
            take(&mut watched, pid, ATTACKERS[pid as usize / 2]);
        }
        let of_server = watched.iter().filter(|(owner, _)| *owner == Some(9)).count();
        assert_eq!(of_server, DIRECTORIES);
    }

    #[test]
    fn a_server_of_the_same_user_gets_its_part_of_what_that_one_has() {
        let mut watched = full();
        let took = take(&mut watched, 9, ATTACKERS[0]);
        assert!((600..=DIRECTORIES).contains(&took), "a third of 2048 but for the last: {took}");
        assert_eq!(watched.iter().filter(|(_, party)| *party == ATTACKERS[1]).count(), DIRECTORIES_OF_USER);
    }

    #[test]
    fn who_has_no_more_than_a_part_and_what_was_named_loses_nothing() {
        let count = u32::try_from(ALL_DIRECTORIES).unwrap();
        let each: Vec<_> = (0..count).map(|user| (Some(user), Party::User(user))).collect();
        assert_eq!(room_for(&each, count, Party::User(count)), Room::Full);
        let named = vec![(None, Party::Operator); ALL_DIRECTORIES];
        assert_eq!(room_for(&named, 1, SERVER), Room::Full);
    }
}
