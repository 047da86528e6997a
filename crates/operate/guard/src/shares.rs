//! The share of each database in a common limit, by the shares of `pagekeeper_policy`: equal for each user,
//! and equal for each of a user's databases.
//!
//! Invariant: all shares together are at most the limit, plus one for each database.

use std::collections::BTreeMap;

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::shares;

/// Counts databases by party, and computes the share of one database of each party in the limit `all`. A
/// share is at least one and at most `most`; all shares together are at most `all`, plus one for each
/// database.
#[derive(Debug)]
pub(crate) struct Databases {
    all: usize,
    most: usize,
    count: BTreeMap<Party, usize>,
    /// The share of one database of each party; empty when it has to be computed anew.
    share: BTreeMap<Party, usize>,
}

impl Databases {
    /// Counts no database yet.
    pub(crate) fn new(all: usize, most: usize) -> Self {
        Self { all, most, count: BTreeMap::new(), share: BTreeMap::new() }
    }

    /// Forgets all databases.
    pub(crate) fn clear(&mut self) {
        self.count.clear();
        self.share.clear();
    }

    /// Counts one more database of a party.
    pub(crate) fn add(&mut self, party: Party) {
        *self.count.entry(party).or_default() += 1;
        self.share.clear();
    }

    /// Returns the share of one database of this party.
    pub(crate) fn share(&mut self, party: Party) -> usize {
        if self.share.is_empty() {
            let wanted: Vec<usize> =
                self.count.values().map(|count| count.saturating_mul(self.most)).collect();
            let shares = shares(self.all, &wanted);
            let each = |((party, count), share): ((&Party, &usize), usize)| {
                (*party, (share / count).clamp(1, self.most))
            };
            self.share = self.count.iter().zip(shares).map(each).collect();
        }
        self.share.get(&party).copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{NAMES_MAX, NAMES_PER_DATABASE, WINDOWS_MAX, WINDOWS_PER_DATABASE};

    #[test]
    fn databases_have_shares_of_their_users() {
        let of = |all, most, counts: &[usize]| {
            let mut databases = Databases::new(all, most);
            for (user, count) in (1..).zip(counts) {
                (0..*count).for_each(|_| databases.add(Party::User(user)));
            }
            databases
        };
        let names =
            |counts: &[usize], user| of(NAMES_MAX, NAMES_PER_DATABASE, counts).share(Party::User(user));
        assert_eq!(names(&[8], 1), NAMES_PER_DATABASE);
        assert_eq!(names(&[64], 1), 512);
        assert_eq!((names(&[2048, 1], 1), names(&[2048, 1], 2)), (14, NAMES_PER_DATABASE));
        assert_eq!(names(&[2048, 2048], 1), 8);
        let mut windows = of(WINDOWS_MAX, WINDOWS_PER_DATABASE, &[1_000_000, 1]);
        assert_eq!((windows.share(Party::User(1)), windows.share(Party::User(2))), (1, WINDOWS_PER_DATABASE));
        windows.clear();
        windows.add(Party::User(1));
        assert_eq!(windows.share(Party::User(1)), WINDOWS_PER_DATABASE);
        // The stated bound holds for any distribution of databases over users.
        let each = vec![1; 4000];
        for counts in [&[1_usize, 2, 2000, 7][..], &[4000, 96], &each] {
            let mut databases = of(NAMES_MAX, NAMES_PER_DATABASE, counts);
            let kept = |(user, count): (u32, &usize)| databases.share(Party::User(user)) * count;
            let kept: usize = (1..).zip(counts).map(kept).sum();
            assert!(kept <= NAMES_MAX, "{kept} {counts:?}");
        }
    }
}
