//! Shares of a limit within one snapshot: equal for each party, for each of its databases, and for
//! each item of a database (a directory, or the files it holds). Unused shares go to the others.
//!
//! Invariant: a database that takes at most its allowance leaves each of the others at least its
//! share, and all together take at most the limit.

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::{shares, shares_by_party};

/// The party of a database, and the amount that each of its items asks for.
pub(crate) type PartyDemand = (Party, Vec<usize>);

/// The shares, and the amount left over so far.
#[derive(Debug, Default)]
pub(crate) struct FairShares {
    /// The share of each item of each database.
    shares: Vec<Vec<usize>>,
    /// The amount that is nobody's share, or was not needed.
    spare: usize,
}

impl FairShares {
    /// Divides `all` into shares.
    pub(crate) fn new(all: usize, wanted: &[PartyDemand]) -> Self {
        let wanted: Vec<(Party, Vec<usize>)> = wanted
            .iter()
            .map(|(party, items)| (*party, items.iter().map(|one| (*one).min(all)).collect()))
            .collect();
        let of_databases: Vec<(Party, usize)> =
            wanted.iter().map(|(party, items)| (*party, items.iter().sum())).collect();
        let each = shares_by_party(all, &of_databases);
        let shares: Vec<Vec<usize>> =
            wanted.iter().zip(each).map(|((_, items), share)| shares(share, items)).collect();
        let spare = all - shares.iter().flatten().sum::<usize>();
        Self { shares, spare }
    }

    /// Returns how much an item of a database may take: its share, and the amount left over by
    /// others.
    pub(crate) fn limit(&self, database: usize, item: usize) -> usize {
        self.shares[database][item] + self.spare
    }

    /// Takes this amount for an item, once. The rest of its share goes to later items.
    pub(crate) fn take(&mut self, database: usize, item: usize, taken: usize) {
        let share = std::mem::take(&mut self.shares[database][item]);
        self.spare = (self.spare + share).saturating_sub(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_share_goes_to_later_parties() {
        let wanted =
            [(Party::User(1), vec![100; 10]), (Party::User(2), vec![100]), (Party::User(2), vec![5])];
        let mut shares = FairShares::new(100, &wanted);
        assert_eq!((shares.limit(0, 0), shares.limit(1, 0), shares.limit(2, 0)), (5, 45, 5));
        for item in 0..10 {
            shares.take(0, item, 1);
        }
        assert_eq!(shares.limit(1, 0), 85);
        shares.take(1, 0, 85);
        assert_eq!(shares.limit(2, 0), 5);
    }
}
