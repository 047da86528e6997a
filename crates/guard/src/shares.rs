//! What each database gets of what there is for all, by the shares of `pagekeeper_policy`: alike for each user, and of each
//! user's alike for its databases.
//!
//! Invariant: all together get no more than there is, and one each.

use std::collections::BTreeMap;

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::shares;

/// The databases that there are, by whose they are, and what one of each user gets of something of which it gets no more than
/// `most`: at least one, and all together no more than `all`, and one each.
#[derive(Debug)]
pub(crate) struct Databases {
    all: usize,
    most: usize,
    count: BTreeMap<Party, usize>,
    /// What one gets, until there is another.
    share: BTreeMap<Party, usize>,
}

impl Databases {
    /// None yet.
    pub(crate) fn new(all: usize, most: usize) -> Self {
        Self { all, most, count: BTreeMap::new(), share: BTreeMap::new() }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.count.clear();
        self.share.clear();
    }

    /// Takes in one more.
    pub(crate) fn add(&mut self, party: Party) {
        *self.count.entry(party).or_default() += 1;
        self.share.clear();
    }

    /// What one of this party gets.
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
    use crate::budget::{ALL_NAMES, ALL_WINDOWS, NAMES, WINDOWS};

    #[test]
    fn databases_have_shares_of_their_users() {
        let of = |all, most, counts: &[usize]| {
            let mut databases = Databases::new(all, most);
            for (user, count) in (1..).zip(counts) {
                (0..*count).for_each(|_| databases.add(Party::User(user)));
            }
            databases
        };
        let names = |counts: &[usize], user| of(ALL_NAMES, NAMES, counts).share(Party::User(user));
        assert_eq!(names(&[8], 1), NAMES);
        assert_eq!(names(&[64], 1), 512);
        assert_eq!((names(&[2048, 1], 1), names(&[2048, 1], 2)), (14, NAMES));
        assert_eq!(names(&[2048, 2048], 1), 8);
        let mut windows = of(ALL_WINDOWS, WINDOWS, &[1_000_000, 1]);
        assert_eq!((windows.share(Party::User(1)), windows.share(Party::User(2))), (1, WINDOWS));
        windows.clear();
        windows.add(Party::User(1));
        assert_eq!(windows.share(Party::User(1)), WINDOWS);
        // A stated bound, whoever has how many.
        let each = vec![1; 4000];
        for counts in [&[1_usize, 2, 2000, 7][..], &[4000, 96], &each] {
            let mut databases = of(ALL_NAMES, NAMES, counts);
            let kept = |(user, count): (u32, &usize)| databases.share(Party::User(user)) * count;
            let kept: usize = (1..).zip(counts).map(kept).sum();
            assert!(kept <= ALL_NAMES, "{kept} {counts:?}");
        }
    }
}
