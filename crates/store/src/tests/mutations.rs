//! Bugs that are planted in the store and in its journal, to see that crashes at random would find them: a bug that is not found
//! shows that the oracle, or the crashes, are too weak.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use pagekeeper_log::InjectedFault as OfJournal;

use super::life::{Made, OF_A_LIFE, life};
use crate::planted::Planted;
use pagekeeper_testing::Seed;

/// Each bug must be found within this many crashes: as many as are tried without any.
const WITHIN: u64 = 50_000;

const BUGS: &[Planted] = &[
    Planted::PageBeforeJournal,
    Planted::NoSyncOfSuperblock,
    Planted::NoSyncOfData,
    Planted::SuperblockFirst,
    Planted::OneSuperblockSlot,
    Planted::SyncTriedAgain,
    Planted::ImagesFromTheEnd,
    Planted::SkippedByPage,
    Planted::NoImages,
    Planted::NoSyncAtOpen,
    Planted::NoPageChecksum,
    Planted::Journal(OfJournal::NoSyncAtOpen),
    Planted::Journal(OfJournal::NoEpoch),
    Planted::Journal(OfJournal::SameSalt),
    Planted::Journal(OfJournal::AckBeforeSync),
    Planted::Journal(OfJournal::NoSyncOfControl),
    Planted::Journal(OfJournal::OneSlot),
    Planted::Journal(OfJournal::AppendIntoTornBlock),
    Planted::Journal(OfJournal::NoChecksum),
    Planted::Journal(OfJournal::SkipBadRecord),
    Planted::Journal(OfJournal::ReadThroughCache),
    Planted::Journal(OfJournal::NoSyncOfDirectory),
    Planted::Journal(OfJournal::SyncRetried),
    Planted::Journal(OfJournal::NoSync),
];

#[test]
fn planted_bugs_are_found() {
    let seed = Seed(12);
    let made = Made::new();
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let lives = || 0..WITHIN.div_ceil(OF_A_LIFE);
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
