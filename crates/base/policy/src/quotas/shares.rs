//! Fair shares of a common total: equal for each party (a user, a container), and equal within a
//! party for each of its own items. Unneeded parts go to the others. So a party that starts many
//! items makes only its own shares small.
//!
//! Invariant: the sum of all shares does not exceed the total.

use std::collections::BTreeMap;

/// Returns the share of each item, by the wanted amounts. Parts that one does not need go to the
/// others.
///
/// ```
/// assert_eq!(pagekeeper_policy::shares::shares(100, &[50, 10, 70]), [45, 10, 45]);
/// ```
pub fn shares(all: usize, wanted: &[usize]) -> Vec<usize> {
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

/// Returns the share of each item: the total is divided among the parties first, then within each
/// party.
pub fn shares_by_party<P: Ord + Copy>(all: usize, wanted: &[(P, usize)]) -> Vec<usize> {
    if wanted.iter().map(|(_, wanted)| wanted).sum::<usize>() <= all {
        return wanted.iter().map(|(_, wanted)| *wanted).collect();
    }
    let mut parties: BTreeMap<P, Vec<usize>> = BTreeMap::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_share_goes_to_the_others() {
        assert_eq!(shares(100, &[50, 10, 70]), [45, 10, 45]);
        assert_eq!(shares(100, &[50, 10]), [50, 10]);
        assert_eq!(shares(3, &[5, 5, 5, 5]), [0, 1, 1, 1]);
        assert_eq!(shares(3, &[]), []);
    }

    #[test]
    fn a_user_with_very_many_takes_nothing_from_another_user() {
        let mut wanted = vec![(1, 100); 1000];
        wanted.push((2, 30));
        let shares = shares_by_party(512, &wanted);
        assert_eq!(shares[1000], 30);
        assert!(shares.iter().sum::<usize>() <= 512, "{shares:?}");
        wanted.push((2, 1000));
        let shares = shares_by_party(512, &wanted);
        assert_eq!(shares[1000..], [30, 226], "half of all");
        assert!(shares.iter().sum::<usize>() <= 512, "{shares:?}");
    }
}
