//! The changes that a crash leaves behind: the changed pages and their expected content.
//!
//! A page begins as noise derived from its number. Each round changes a hundred bytes of other
//! pages, at a place that depends on the page's number alone, so a page's content after a round
//! does not depend on earlier rounds. Nothing is compressible. Invariants: the pages of a round are
//! distinct and in random order; equal seed and round give equal changes. Fails with the page that
//! holds something else.

use std::collections::HashSet;

use anyhow::{Result, ensure};

use crate::drive::FILE_PAGE_BYTES;
use crate::pattern;
use crate::rounds::SplitMix;

/// Bytes changed in a page.
pub(super) const CHANGE_BYTES: usize = 100;
/// Bytes of a page that every subject stores: 4 KiB minus room for headers.
pub(super) const PAGE_BODY_BYTES: usize = 4000;
/// Pages changed in one transaction.
pub(super) const PAGES_PER_COMMIT: usize = 25;

/// The number of changes, and the size of the file.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct ChangeLoad {
    /// Pages of the file.
    #[arg(long)]
    pub(super) pages: u64,
    /// Pages that are changed.
    #[arg(long)]
    pub(super) changes: usize,
    /// Seed of all contents and places.
    #[arg(long)]
    pub(super) seed: u64,
    /// The number of the round.
    #[arg(long)]
    pub(super) round: u64,
}

impl ChangeLoad {
    /// Returns the arguments for a child process.
    pub(super) fn arguments(&self) -> [String; 4] {
        let Self { pages, changes, seed, round } = self;
        [
            format!("--pages={pages}"),
            format!("--changes={changes}"),
            format!("--seed={seed}"),
            format!("--round={round}"),
        ]
    }

    /// Returns the changed pages, in that order. There must be more pages than changes.
    pub(super) fn changed(&self) -> Vec<u64> {
        let mut random = SplitMix::new(self.of_round());
        let mut seen = HashSet::with_capacity(self.changes);
        std::iter::repeat_with(|| random.below(self.pages))
            .filter(|page| seen.insert(*page))
            .take(self.changes)
            .collect()
    }

    /// Fills `body` with a page's content before the changes.
    pub(super) fn base(&self, page: u64, body: &mut [u8]) {
        pattern::fill(self.seed, page * FILE_PAGE_BYTES, body);
    }

    /// Returns the bytes that the round writes to a page, and their place.
    pub(super) fn change(&self, page: u64) -> (usize, [u8; CHANGE_BYTES]) {
        let room = (PAGE_BODY_BYTES - CHANGE_BYTES) as u64;
        let offset = SplitMix::new(self.seed ^ page).below(room);
        let mut bytes = [0; CHANGE_BYTES];
        pattern::fill(self.of_round(), page * FILE_PAGE_BYTES + offset, &mut bytes);
        (usize::try_from(offset).unwrap_or(0), bytes)
    }

    /// Returns a changed page's content after the round.
    pub(super) fn expected(&self, page: u64, body: &mut [u8]) {
        self.base(page, body);
        let (offset, bytes) = self.change(page);
        body[offset..offset + CHANGE_BYTES].copy_from_slice(&bytes);
    }

    /// Fails unless a changed page has its expected content.
    pub(super) fn check(&self, page: u64, found: &[u8]) -> Result<()> {
        ensure!(found.len() >= PAGE_BODY_BYTES, "page {page} has {} bytes", found.len());
        let mut expected = vec![0; found.len()];
        self.expected(page, &mut expected);
        let equal = found.iter().zip(&expected).take_while(|(found, expected)| found == expected).count();
        ensure!(equal == found.len(), "page {page} has wrong bytes from {equal} on");
        Ok(())
    }

    /// Returns a seed that differs between rounds.
    fn of_round(&self) -> u64 {
        SplitMix::new(self.seed ^ (self.round + 1)).next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: ChangeLoad = ChangeLoad { pages: 100, changes: 90, seed: 7, round: 0 };

    #[test]
    fn a_round_changes_different_pages_and_repeats_itself() {
        let changed = LOAD.changed();
        assert_eq!(changed, LOAD.changed());
        assert_ne!(changed, ChangeLoad { round: 1, ..LOAD }.changed());
        let mut sorted = changed.clone();
        sorted.sort_unstable();
        assert_ne!(changed, sorted);
        sorted.dedup();
        assert_eq!(sorted.len(), 90);
        assert!(sorted.iter().all(|page| *page < 100));
    }

    #[test]
    fn a_round_writes_over_the_one_before() {
        for page in LOAD.changed() {
            let (mut body, mut base) = ([0; 4064], [0; 4064]);
            LOAD.base(page, &mut base);
            LOAD.expected(page, &mut body);
            LOAD.check(page, &body).unwrap();
            assert!(LOAD.check(page, &base).is_err());
            let next = ChangeLoad { round: 1, ..LOAD };
            assert!(next.check(page, &body).is_err());
            let (offset, bytes) = next.change(page);
            body[offset..offset + CHANGE_BYTES].copy_from_slice(&bytes);
            next.check(page, &body).unwrap();
            assert!(next.check(page + 1, &body).is_err());
            body[(offset + 2000) % 4064] ^= 1;
            assert!(next.check(page, &body).is_err());
        }
    }
}
