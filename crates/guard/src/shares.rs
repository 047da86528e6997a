//! Shares of what there is for all: alike for each user, and of each user's alike for its databases or processes. What one
//! does not need is the others'. So whoever starts many makes its own shares small, and nobody else's.
//!
//! Invariant: the shares of all together are no more than there is.

use std::collections::BTreeMap;

use crate::ownership::Party;

/// The share of each of those that want so much: what one does not need is the others'.
pub(crate) fn shares(all: usize, wanted: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|at| wanted[*at]);
    let mut shares = vec![0; wanted.len()];
    let mut left = all;
    for (waiting, at) in (1..=wanted.len()).rev().zip(order) {
        shares[at] = wanted[at].min(left / waiting);
        left -= shares[at];
    }
    shares
}

/// The share of each of those of some party that want so much: first of the party, then of the one.
pub(crate) fn shares_by_party(all: usize, wanted: &[(Party, usize)]) -> Vec<usize> {
    if wanted.iter().map(|(_, wanted)| wanted).sum::<usize>() <= all {
        return wanted.iter().map(|(_, wanted)| *wanted).collect();
    }
    let mut parties: BTreeMap<Party, Vec<usize>> = BTreeMap::new();
    for (at, (party, _)) in wanted.iter().enumerate() {
        parties.entry(*party).or_default().push(at);
    }
    let of = |own: &Vec<usize>| own.iter().map(|at| wanted[*at].1).collect::<Vec<_>>();
    let together: Vec<usize> = parties.values().map(|own| of(own).iter().sum()).collect();
    let mut each = vec![0; wanted.len()];
    for (own, share) in parties.values().zip(shares(all, &together)) {
        for (at, share) in own.iter().zip(shares(share, &of(own))) {
            each[*at] = share;
        }
    }
    each
}

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
    fn what_one_does_not_need_is_the_others() {
        assert_eq!(shares(100, &[50, 10, 70]), [45, 10, 45]);
        assert_eq!(shares(100, &[50, 10]), [50, 10]);
        assert_eq!(shares(3, &[5, 5, 5, 5]), [0, 1, 1, 1]);
        assert_eq!(shares(3, &[]), []);
    }

    #[test]
    fn who_has_very_many_takes_nothing_of_another_user() {
        let mut wanted = vec![(Party::User(1), 100); 1000];
        wanted.push((Party::User(2), 30));
        let shares = shares_by_party(512, &wanted);
        assert_eq!(shares[1000], 30);
        assert!(shares.iter().sum::<usize>() <= 512, "{shares:?}");
        wanted.push((Party::User(2), 1000));
        let shares = shares_by_party(512, &wanted);
        assert_eq!(shares[1000..], [30, 226], "half of all");
        assert!(shares.iter().sum::<usize>() <= 512, "{shares:?}");
    }

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
