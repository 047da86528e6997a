//! Parts of what there is for all in one snapshot: alike for each party, of that for each of its databases, and of that for
//! each thing of a database (its directories, what it holds). What one does not need is the others'.
//!
//! Invariant: who takes no more than it may leaves to each of the others at least its share, and all together take no more
//! than there is.

use pagekeeper_catalog::Party;
use pagekeeper_policy::shares::{shares, shares_by_party};

/// What a database wants of something for each of its things, and whose part that is.
pub(crate) type Wanted = (Party, Vec<usize>);

/// The shares, and what is left over so far.
#[derive(Debug, Default)]
pub(crate) struct Allotment {
    /// Of each thing of each database.
    shares: Vec<Vec<usize>>,
    /// What is nobody's share, or was not needed.
    spare: usize,
}

impl Allotment {
    /// Shares `all` out.
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

    /// What this thing of a database may take: its share, and what others left over.
    pub(crate) fn most(&self, database: usize, thing: usize) -> usize {
        self.shares[database][thing] + self.spare
    }

    /// Takes so much for it, once: what remains of its share is for those that come after.
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
