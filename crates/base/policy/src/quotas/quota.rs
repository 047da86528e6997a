//! Quotas: how many log files, windows and directories of each database may be watched.
//!
//! Names and windows are shares of a total ([`Quota`]): fair between users, and equal between the
//! databases of each.
//!
//! Places for directories are given as they are asked for ([`room_for`]). When all are taken, a new
//! directory evicts one of the user furthest above their fair share. Among a user's own places, it
//! evicts one of the database that has most. Nobody loses a place to somebody who has as many, so
//! two users never take a place from each other in turns. Directories without a process, which the
//! operator named, are never evicted.

use std::collections::BTreeMap;

use crate::quotas::shares::shares;

/// The most log files watched per database.
pub const NAMES_PER_DATABASE: usize = 4096;
/// The most log files watched in all.
pub const NAMES_MAX: usize = 32_768;
/// The most windows with resident pages kept per database: 16 GiB of them. More are taken up once
/// these are released.
pub const WINDOWS_PER_DATABASE: usize = 8192;
/// The most windows kept in all.
pub const WINDOWS_MAX: usize = 32_768;
/// The most directories watched per database.
pub const DIRECTORIES_PER_DATABASE: usize = 1024;
/// The most directories watched per user.
pub const DIRECTORIES_PER_USER: usize = 2048;
/// The most directories watched in all.
pub const DIRECTORIES_MAX: usize = 4096;

/// A limit that users share, and the databases of each. A database's share is at least one; all
/// shares together are at most `all`, plus one for each database.
#[derive(Debug)]
pub struct Quota<U> {
    all: usize,
    per_database: usize,
    /// The share of one database of each user; empty when it has to be computed again.
    shares: BTreeMap<U, usize>,
}

impl<U: Ord + Copy> Quota<U> {
    /// Makes a limit of `all`, and at most `per_database`.
    pub fn new(all: usize, per_database: usize) -> Self {
        Self { all, per_database, shares: BTreeMap::new() }
    }

    /// Records that the numbers of databases have changed.
    pub fn forget(&mut self) {
        self.shares.clear();
    }

    /// Returns the share of one database of a user, given the number of each user's databases.
    pub fn share(&mut self, databases: &BTreeMap<U, u32>, user: U) -> usize {
        if self.shares.is_empty() {
            let count = |count: &u32| usize::try_from((*count).max(1)).unwrap_or(usize::MAX);
            let most = self.per_database;
            let wanted: Vec<usize> =
                databases.values().map(|databases| count(databases).saturating_mul(most)).collect();
            let shares = shares(self.all, &wanted).into_iter().zip(databases);
            let each = shares.map(|(share, (user, own))| (*user, (share / count(own)).clamp(1, most)));
            self.shares = each.collect();
        }
        self.shares.get(&user).copied().unwrap_or(1)
    }
}

/// The room for one more directory of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryRoom {
    /// There is room.
    Free,
    /// There is room if the directory of this index is given up.
    InPlaceOf(usize),
    /// There is none.
    Full,
}

/// Returns whether there is room for a directory of this process and party, given the process and
/// party of each watched directory.
///
/// ```
/// use pagekeeper_policy::quota::{DirectoryRoom, room_for};
///
/// assert_eq!(room_for(&[(Some(1), "mysql")], 2, "postgres"), DirectoryRoom::Free);
/// ```
pub fn room_for<U: Ord + Copy>(watched: &[(Option<u32>, U)], pid: u32, party: U) -> DirectoryRoom {
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
    // The process loses the directory that it usually got last.
    let last = watched.iter().rposition(|(owner, _)| *owner == Some(loses));
    last.map_or(DirectoryRoom::Full, DirectoryRoom::InPlaceOf)
}

/// Returns the other party with most directories, if these exceed both its fair share and the
/// number that this party would have.
fn has_too_many<U: Ord + Copy>(watched: &[(Option<u32>, U)], party: U, of_party: usize) -> Option<U> {
    let mut by_party = BTreeMap::from([(party, 0)]);
    for (owner, whose) in watched {
        *by_party.entry(*whose).or_default() += usize::from(owner.is_some());
    }
    let part = DIRECTORIES_MAX / by_party.len();
    let others = by_party.into_iter().filter(|(whose, _)| *whose != party);
    let (whose, most) = others.max_by_key(|(_, held)| *held)?;
    (most > part && most > of_party + 1).then_some(whose)
}

/// Returns whether the limits on jobs or calls that hang, per party and in all, are reached.
pub fn are_too_many<U: PartialEq + Copy>(
    hung: impl Iterator<Item = U>,
    party: U,
    (of_party, of_all): (usize, usize),
) -> bool {
    let (own, all) = hung.fold((0, 0), |(own, all), other| (own + usize::from(other == party), all + 1));
    own >= of_party || all >= of_all
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKERS: [u32; 2] = [1, 2];
    const SERVER: u32 = 3;

    /// Returns the table after two users, with two databases each, have filled it.
    fn full() -> Vec<(Option<u32>, u32)> {
        (0..4u32)
            .flat_map(|pid| vec![(Some(pid), ATTACKERS[pid as usize / 2]); DIRECTORIES_PER_DATABASE])
            .collect()
    }

    /// Makes a process take as many places as it gets.
    fn take(watched: &mut Vec<(Option<u32>, u32)>, pid: u32, party: u32) -> usize {
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
    fn a_late_server_gets_the_places_of_the_largest_users() {
        let mut watched = full();
        assert_eq!(watched.len(), DIRECTORIES_MAX);
        assert_eq!(take(&mut watched, 9, SERVER), DIRECTORIES_PER_DATABASE);
        assert_eq!(watched.len(), DIRECTORIES_MAX);
        // The other user does not take the places back.
        for pid in 0..4 {
            take(&mut watched, pid, ATTACKERS[pid as usize / 2]);
        }
        let of_server = watched.iter().filter(|(owner, _)| *owner == Some(9)).count();
        assert_eq!(of_server, DIRECTORIES_PER_DATABASE);
    }

    #[test]
    fn a_server_of_the_same_user_gets_its_fair_share() {
        let mut watched = full();
        let took = take(&mut watched, 9, ATTACKERS[0]);
        assert!((600..=DIRECTORIES_PER_DATABASE).contains(&took), "a third of 2048 but for the last: {took}");
        assert_eq!(watched.iter().filter(|(_, party)| *party == ATTACKERS[1]).count(), DIRECTORIES_PER_USER);
    }

    #[test]
    fn fair_shares_and_named_directories_lose_nothing() {
        let count = u32::try_from(DIRECTORIES_MAX).unwrap();
        let each: Vec<_> = (0..count).map(|user| (Some(user), user)).collect();
        assert_eq!(room_for(&each, count, count), DirectoryRoom::Full);
        let named = vec![(None, 0); DIRECTORIES_MAX];
        assert_eq!(room_for(&named, 1, SERVER), DirectoryRoom::Full);
    }

    #[test]
    fn databases_have_shares_of_their_users() {
        let share = |all, most, counts: &[u32], of: usize| {
            let counts = counts.iter().enumerate().map(|(at, count)| (at + 1, *count)).collect();
            Quota::new(all, most).share(&counts, of)
        };
        let names = |counts: &[u32], of| share(NAMES_MAX, NAMES_PER_DATABASE, counts, of);
        assert_eq!(names(&[8], 1), NAMES_PER_DATABASE);
        assert_eq!(names(&[64], 1), 512);
        assert_eq!((names(&[2048, 1], 1), names(&[2048, 1], 2)), (14, NAMES_PER_DATABASE));
        assert_eq!(names(&[2048, 2048], 1), 8);
        let windows = |of| share(WINDOWS_MAX, WINDOWS_PER_DATABASE, &[1_000_000, 1], of);
        assert_eq!((windows(1), windows(2)), (1, WINDOWS_PER_DATABASE));
        // The stated bound holds for any distribution of databases over users.
        let each = vec![1; 4000];
        for counts in [&[1_u32, 2, 2000, 7][..], &[4000, 96], &each] {
            let all = counts.iter().enumerate().map(|(at, count)| (at + 1, *count)).collect();
            let mut quota = Quota::new(NAMES_MAX, NAMES_PER_DATABASE);
            let kept = counts.iter().enumerate();
            let kept = kept.map(|(at, count)| quota.share(&all, at + 1) * *count as usize);
            let kept: usize = kept.sum();
            assert!(kept <= NAMES_MAX, "{kept} {counts:?}");
        }
    }
}
