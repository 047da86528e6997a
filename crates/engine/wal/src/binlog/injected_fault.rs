//! Faults that the crash safety tests inject, to prove that the tests detect them. There are none
//! outside of tests.

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinLogFault {
    /// A group is acknowledged without a sync.
    NoSync,
    /// A failed sync is treated as a success.
    SyncErrorIgnored,
    /// The writer leaves a segment without a sync.
    NoSyncAtRotation,
    /// The remains of a write that failed for lack of space are not cut off.
    RaggedEnd,
    /// A failed write is treated as a success.
    WriteErrorIgnored,
    /// A segment's header is not synced before the index lists it.
    NoHeaderSync,
    /// A segment's name is not synced before the index lists it.
    NoNameSync,
    /// The index lists a segment before it is created.
    IndexFirst,
    /// The new index is renamed before it is synced.
    NoIndexSync,
    /// The new index's name is not synced.
    NoRenameSync,
    /// Files are purged before the index is replaced.
    PurgeFilesFirst,
    /// At opening, the data that is kept is not synced.
    NoSyncAtOpen,
    /// At opening, the log is read through the page cache.
    ReadThroughCache,
    /// Appends continue after a torn tail, under the same salt.
    AppendAfterTorn,
    /// A group counts even if its end is missing.
    TornGroups,
    /// The bytes past the end of an open segment are not searched for a record that proves an
    /// earlier loss.
    #[cfg(test)]
    NoSearchBehindEnd,
    /// A block that can't be read is treated as empty.
    #[cfg(test)]
    UnreadableIsEmpty,
    /// The end of the last segment in the index is ignored.
    #[cfg(test)]
    SealedEndIgnored,
    /// The records of a sealed segment are not checked as they are read.
    NoChecksum,
}
