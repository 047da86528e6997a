//! Shares of a limit within one snapshot: equal for each party, for each of its databases, and for each thing
//! of a database (its directories, the files it holds). Unused shares go to the others.
//!
//! Invariant: a database that takes at most its allowance leaves each of the others at least its share, and
//! all together take at most the limit.

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::{shares, shares_by_party};

/// The party of a database, and the amount that each of its things wants.
pub(crate) type Wanted = (Party, Vec<usize>);

/// The shares, and the amount left over so far.
#[derive(Debug, Default)]
pub(crate) struct Allotment {
    /// The share of each thing of each database.
    shares: Vec<Vec<usize>>,
    /// The amount that is nobody's share, or was not needed.
    spare: usize,
}

impl Allotment {
    /// Divides `all` into shares.
    pub(crate) fn new(all: usize, wanted: &[Wanted]) -> Self {
        let wanted: Vec<(Party, Vec<usize>)> = wanted
            .iter()
            .map(|(party, things)| (*party, things.iter().map(|one| (*one).min(all)).collect()))
            .collect();
        let of_databases: Vec<(Party, usize)> =
            wanted.iter().map(|(party, things)| (*party, things.iter().sum())).collect();
        let each = shares_by_party(all, &of_databases);
        let shares: Vec<Vec<usize>> =
            wanted.iter().zip(each).map(|((_, things), share)| shares(share, things)).collect();
        let spare = all - shares.iter().flatten().sum::<usize>();
        Self { shares, spare }
    }

    /// Returns how much this thing of a database may take: its share, and what others left over.
    pub(crate) fn most(&self, database: usize, thing: usize) -> usize {
        self.shares[database][thing] + self.spare
    }

    /// Takes this amount for it, once. The rest of its share goes to those that come later.
    pub(crate) fn take(&mut self, database: usize, thing: usize, taken: usize) {
        let share = std::mem::take(&mut self.shares[database][thing]);
        self.spare = (self.spare + share).saturating_sub(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_leaves_over_is_for_those_that_come_after() {
        let wanted =
            [(Party::User(1), vec![100; 10]), (Party::User(2), vec![100]), (Party::User(2), vec![5])];
        let mut allotment = Allotment::new(100, &wanted);
        assert_eq!((allotment.most(0, 0), allotment.most(1, 0), allotment.most(2, 0)), (5, 45, 5));
        for thing in 0..10 {
            allotment.take(0, thing, 1);
        }
        assert_eq!(allotment.most(1, 0), 85);
        allotment.take(1, 0, 85);
        assert_eq!(allotment.most(2, 0), 5);
    }
}
