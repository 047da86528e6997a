//! Faults injected into the store and its journal, to see that random crashes find them. If a fault
//! is not found, the oracle or the crashes are too weak.

use pagekeeper_wal::InjectedFault as OfJournal;

use super::life::{Made, OF_A_LIFE, life};
use crate::injected_fault::InjectedFault;
use pagekeeper_testing::{Seed, expect_found};

/// Each fault must be found within this many crashes: as many as are run without faults.
const CRASHES_MAX: u64 = 50_000;

/// Excludes faults of the journal that its own tests find, and that take more than a few crashes of
/// a whole store. For example, a new epoch with the old one's salt shows only if two groups are in
/// flight at once.
const BUGS: &[(InjectedFault, u64)] = &[
    (InjectedFault::PageBeforeJournal, 14),
    (InjectedFault::NoSyncOfSuperblock, 2),
    (InjectedFault::NoSyncOfData, 0),
    (InjectedFault::AppliedBeforeSync, 17),
    (InjectedFault::SuperblockFirst, 0),
    (InjectedFault::OneSuperblockSlot, 0),
    (InjectedFault::OneSlotOfTwo, 0),
    (InjectedFault::SyncTriedAgain, 3),
    (InjectedFault::FullPagesFromTheEnd, 9),
    (InjectedFault::SkippedByPage, 0),
    (InjectedFault::NoFullPages, 0),
    (InjectedFault::NoSyncAtOpen, 2647),
    (InjectedFault::NoPageChecksum, 7),
    (InjectedFault::NoPageMap, 51),
    (InjectedFault::Journal(OfJournal::NoSyncAtOpen), 2),
    (InjectedFault::Journal(OfJournal::NoEpoch), 246),
    (InjectedFault::Journal(OfJournal::AckBeforeSync), 2),
    (InjectedFault::Journal(OfJournal::NoSyncOfControl), 0),
    (InjectedFault::Journal(OfJournal::OneSlot), 53),
    (InjectedFault::Journal(OfJournal::AppendIntoTornBlock), 983),
    (InjectedFault::Journal(OfJournal::NoChecksum), 17),
    (InjectedFault::Journal(OfJournal::SkipBadRecord), 395),
    (InjectedFault::Journal(OfJournal::ReadThroughCache), 51),
    (InjectedFault::Journal(OfJournal::NoSyncOfDirectory), 8),
    (InjectedFault::Journal(OfJournal::SyncRetried), 28),
    (InjectedFault::Journal(OfJournal::NoSync), 0),
];

#[test]
fn injected_faults_are_found() {
    let (seed, made) = (Seed(12), Made::new());
    expect_found(CRASHES_MAX.div_ceil(OF_A_LIFE), BUGS, |bug, which| {
        life(&seed, which, &made, Some(bug));
    });
}
