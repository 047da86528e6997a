//! Faults that the tests of crash safety inject, to see that they are found. Outside of tests there are none.

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InjectedFault {
    /// Acknowledged without a sync.
    NoSync,
    /// A failed sync is taken for a good one.
    SyncErrorIgnored,
    /// A segment is left without a sync.
    NoSyncAtRotation,
    /// What a write that failed for want of space left is not cut off.
    RaggedEnd,
    /// A failed write is taken for a good one.
    WriteErrorIgnored,
    /// A segment's header is not synced before the index lists it.
    NoHeaderSync,
    /// A segment's name is not synced before the index lists it.
    NoNameSync,
    /// The index lists a segment before that is made.
    IndexFirst,
    /// The new index is renamed before it is synced.
    NoIndexSync,
    /// The new index's name is not synced.
    NoRenameSync,
    /// Files are purged before the index says so.
    PurgeFilesFirst,
    /// At opening, what was kept is not synced.
    NoSyncAtOpen,
    /// At opening, the log is read through the page cache.
    ReadThroughCache,
    /// Appends go on after a torn tail, under the same salt.
    AppendAfterTorn,
    /// A group counts though its end is missing.
    TornGroups,
    /// Past the end of a segment that was left open no record is searched that knows better.
    #[cfg(test)]
    NoSearchBehindEnd,
    /// A block that can't be read is one in which no record stands.
    #[cfg(test)]
    UnreadableIsEmpty,
    /// Where the index says that the last segment ends is not minded.
    #[cfg(test)]
    SealedEndIgnored,
    /// The records of a sealed segment are not checked as they are read.
    NoChecksum,
}
