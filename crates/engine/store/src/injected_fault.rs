//! Faults that the crash tests inject, to see that they would be found. There are none but in tests.

/// Whether this fault is injected.
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
    /// There is but one superblock, which is written over.
    OneSuperblockSlot,
    /// The journal is given up when one of the two superblocks is durable.
    OneSlotOfTwo,
    /// A sync of the data file that failed is tried again, and then trusted.
    SyncTriedAgain,
    /// Full-page images begin again when a checkpoint has ended, in place of when it starts.
    FullPagesFromTheEnd,
    /// A change is skipped if the page in the data file is newer.
    SkippedByPage,
    /// Pages may be changed by diffs at once, though writes of pages are not atomic.
    NoFullPages,
    /// What is found at the opening is not synced.
    NoSyncAtOpen,
    /// Checksums of pages are not verified.
    NoPageChecksum,
    /// Pages are not compared with the page map.
    NoPageMap,
    /// The file is cut, and holes are made, before a checkpoint has made sure that nothing names what was there.
    CompactedBeforeCheckpoint,
    /// Holes are made while the map says what is there.
    HolesUnknownToTheMap,
    /// A journal of another size takes the place of the one that is needed yet.
    ResizedBeforeCheckpoint,
    /// The journal goes before the superblock names the one that takes its place.
    OldJournalGoneFirst,
    /// An opening writes before all was found to be in order.
    WrittenBeforeChecked,
    /// What can't be tried for want of room keeps a store from being opened.
    OpenNeedsRoom,
    /// A data file that is shorter than its pages is opened.
    LengthNotChecked,
    /// A store is made anew where the superblock was lost.
    MadeAnewOverLost,
    /// A checkpoint writes a block of the page map to one of its two places.
    MapInOnePlace,
    /// The room that a transaction was refused ends the store.
    RefusedRoomPoisons,
    /// An entry of an unknown version is taken for the end of the journal.
    UnknownVersionIsEnd,
    /// A bug of the journal.
    Journal(pagekeeper_log::InjectedFault),
}
