//! Keeps since when all processes have been read, while some are read for very long.

use std::collections::BTreeSet;
use std::time::Instant;

/// The time since which all processes have been read. One with very many descriptors may be read
/// for longer than a listing lasts.
#[derive(Debug, Default)]
pub struct FullListing {
    /// The time since which all processes have been read.
    pub since: Option<Instant>,
    /// The next such time: when a finished listing began, and which processes have yet to be read
    /// from then on.
    next: Option<(Instant, BTreeSet<u32>)>,
}

impl FullListing {
    /// Records a listing that began at that time and has ended, except for the processes in `but`.
    pub fn listed(&mut self, began: Instant, but: BTreeSet<u32>) {
        // Otherwise processes with very many descriptors would postpone it endlessly.
        self.next.get_or_insert((began, but));
        self.settle();
    }

    /// Records that a process was read, or has ended; reading it began at that time.
    pub fn read(&mut self, pid: u32, began: Instant) {
        if let Some((_, waiting)) = self.next.as_mut().filter(|(since, _)| began >= *since) {
            waiting.remove(&pid);
            self.settle();
        }
    }

    /// Forgets processes that have ended.
    pub fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        if let Some((_, waiting)) = &mut self.next {
            waiting.retain(|pid| is_there(*pid));
            self.settle();
        }
    }

    fn settle(&mut self) {
        if let Some((since, _)) = self.next.take_if(|(_, waiting)| waiting.is_empty()) {
            self.since = Some(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_process_with_many_descriptors_delays_a_full_listing_once() {
        let now = Instant::now();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        let mut full_listing = FullListing::default();
        full_listing.listed(at(1), BTreeSet::new());
        assert_eq!(full_listing.since, Some(at(1)));
        // Reading 7 began before this listing, and reading 8 during it.
        full_listing.listed(at(10), BTreeSet::from([7, 8]));
        full_listing.read(8, at(11));
        full_listing.read(7, at(5));
        assert_eq!(full_listing.since, Some(at(1)), "of 7 a part was read before");
        // There are ever new ones with very many descriptors.
        for second in [20, 30] {
            full_listing.listed(at(second), BTreeSet::from([7, 9]));
        }
        full_listing.read(7, at(21));
        assert_eq!(full_listing.since, Some(at(10)));
        full_listing.listed(at(40), BTreeSet::from([9]));
        full_listing.keep(|pid| pid != 9);
        assert_eq!(full_listing.since, Some(at(40)), "it has ended");
    }
}
