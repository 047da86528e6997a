//! Faults that the crash tests inject to see that they are found. Outside tests there are none.

/// Evaluates to whether this fault is injected.
macro_rules! injected {
    ($of:expr, $bug:ident) => {{
        #[cfg(test)]
        let is_injected = $of.injected_fault == Some($crate::injected_fault::InjectedFault::$bug);
        #[cfg(not(test))]
        let is_injected = false;
        is_injected
    }};
}

/// One fault.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// Pages are written before the journal is durable up to their commit.
    PageBeforeJournal,
    /// The journal is given up before the superblock is durable.
    NoSyncOfSuperblock,
    /// The journal is given up before the data file is synced.
    NoSyncOfData,
    /// Versions leave the index before the data file is synced.
    AppliedBeforeSync,
    /// The superblock is written before the data file is synced.
    SuperblockFirst,
    /// There is only one superblock, which is overwritten.
    OneSuperblockSlot,
    /// The journal is given up when one of the two superblocks is durable.
    OneSlotOfTwo,
    /// A failed sync of the data file is retried, and then trusted.
    SyncTriedAgain,
    /// Full-page images begin again when a checkpoint ends, instead of when it starts.
    FullPagesFromTheEnd,
    /// A change is skipped if the page in the data file is newer.
    SkippedByPage,
    /// Pages may be changed by diffs at once, although writes of pages are not atomic.
    NoFullPages,
    /// Data found at the opening is not synced.
    NoSyncAtOpen,
    /// Checksums of pages are not verified.
    NoPageChecksum,
    /// Pages are not compared with the page map.
    NoPageMap,
    /// The file is cut, and holes are made, before a checkpoint has ensured that nothing names
    /// those pages.
    CompactedBeforeCheckpoint,
    /// Holes are made while the map still has entries for their pages.
    HolesUnknownToTheMap,
    /// A journal of another size replaces one that is still needed.
    ResizedBeforeCheckpoint,
    /// The journal is removed before the superblock names its replacement.
    OldJournalGoneFirst,
    /// An opening writes before it has checked everything.
    WrittenBeforeChecked,
    /// A store cannot be opened if there is no room to test for atomic writes.
    OpenNeedsRoom,
    /// A data file that is too short for its pages is opened.
    LengthNotChecked,
    /// A new store is made where the superblock was lost.
    MadeAnewOverLost,
    /// A checkpoint writes a block of the page map always to the same place.
    MapInOnePlace,
    /// A transaction that is refused room poisons the store.
    RefusedRoomPoisons,
    /// An entry of an unknown version counts as the end of the journal.
    UnknownVersionIsEnd,
    /// A bug of the journal.
    Journal(pagekeeper_wal::InjectedFault),
}
