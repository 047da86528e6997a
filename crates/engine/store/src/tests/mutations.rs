//! Faults injected into the store and its journal, to see that random crashes find them. If a fault
//! is not found, the oracle or the crashes are too weak.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use pagekeeper_wal::InjectedFault as OfJournal;

use super::life::{Made, OF_A_LIFE, life};
use crate::injected_fault::InjectedFault;
use pagekeeper_testing::Seed;

/// Each fault must be found within this many crashes: as many as are run without faults.
const CRASHES_MAX: u64 = 50_000;

/// Excludes faults of the journal that its own tests find, and that take more than a few crashes of
/// a whole store. For example, a new epoch with the old one's salt shows only if two groups are in
/// flight at once.
const BUGS: &[InjectedFault] = &[
    InjectedFault::PageBeforeJournal,
    InjectedFault::NoSyncOfSuperblock,
    InjectedFault::NoSyncOfData,
    InjectedFault::AppliedBeforeSync,
    InjectedFault::SuperblockFirst,
    InjectedFault::OneSuperblockSlot,
    InjectedFault::OneSlotOfTwo,
    InjectedFault::SyncTriedAgain,
    InjectedFault::FullPagesFromTheEnd,
    InjectedFault::SkippedByPage,
    InjectedFault::NoFullPages,
    InjectedFault::NoSyncAtOpen,
    InjectedFault::NoPageChecksum,
    InjectedFault::NoPageMap,
    InjectedFault::Journal(OfJournal::NoSyncAtOpen),
    InjectedFault::Journal(OfJournal::NoEpoch),
    InjectedFault::Journal(OfJournal::AckBeforeSync),
    InjectedFault::Journal(OfJournal::NoSyncOfControl),
    InjectedFault::Journal(OfJournal::OneSlot),
    InjectedFault::Journal(OfJournal::AppendIntoTornBlock),
    InjectedFault::Journal(OfJournal::NoChecksum),
    InjectedFault::Journal(OfJournal::SkipBadRecord),
    InjectedFault::Journal(OfJournal::ReadThroughCache),
    InjectedFault::Journal(OfJournal::NoSyncOfDirectory),
    InjectedFault::Journal(OfJournal::SyncRetried),
    InjectedFault::Journal(OfJournal::NoSync),
];

#[test]
fn injected_faults_are_found() {
    let seed = Seed(12);
    let made = Made::new();
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let lives = || 0..CRASHES_MAX.div_ceil(OF_A_LIFE);
    let is_found =
        |bug, which: &u64| catch_unwind(AssertUnwindSafe(|| life(&seed, *which, &made, Some(bug)))).is_err();
    let found: Vec<_> = BUGS
        .iter()
        .map(|bug| {
            let found = lives().find(|which| is_found(*bug, which));
            println!("{bug:?}: found in life {found:?}");
            found
        })
        .collect();
    set_hook(hook);
    assert!(found.iter().all(Option::is_some));
}
