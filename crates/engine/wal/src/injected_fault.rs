//! Faults that crash tests inject, to prove that the tests detect them: tests of this crate, and of
//! crates built on it (feature `injected-faults`). There are none outside of tests.

/// Whether this fault is injected.
macro_rules! injected_fault {
    ($of:expr, $fault:ident) => {{
        #[cfg(any(test, feature = "injected-faults"))]
        let is_injected = $of.injected_fault == Some($crate::injected_fault::InjectedFault::$fault);
        #[cfg(not(any(test, feature = "injected-faults")))]
        let is_injected = false;
        is_injected
    }};
}

pub(crate) use injected_fault;

/// A fault of a [`RedoLog`](crate::RedoLog), for
/// [`RedoOptions::injected_fault`](crate::RedoOptions::injected_fault). It exists only with the
/// feature `injected-faults`, for tests of crates built on the log: a crash test must detect it.
#[cfg(any(test, feature = "injected-faults"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InjectedFault {
    /// At opening, the data that is kept is not synced.
    NoSyncAtOpen,
    /// No new epoch is begun when a log is opened.
    NoEpoch,
    /// The new epoch has the salt of the old one.
    SameSalt,
    /// A commit is acknowledged before its sync.
    AckBeforeSync,
    /// A checkpoint counts as durable before it is synced.
    NoSyncOfControl,
    /// A checkpoint overwrites the valid one.
    OneSlot,
    /// The log continues in the block that it ended in.
    AppendIntoTornBlock,
    /// The checksums of records are not checked.
    NoChecksum,
    /// A damaged record is skipped, and reading continues after it.
    SkipBadRecord,
    /// Opening reads through the page cache.
    ReadThroughCache,
    /// At creation, the names of the files are not synced.
    NoSyncOfDirectory,
    /// A failed sync is repeated, and its success is trusted.
    SyncRetried,
    /// A failed write is treated as a success.
    WriteErrorIgnored,
    /// Appended records are never synced.
    NoSync,
    /// The settled position in the control file (for a closed log, its end) is ignored.
    SettledNotKept,
    /// The control file does not record the last epoch.
    EpochNotNoted,
    /// The bytes past an end are not searched for a record that proves an earlier loss.
    NoSearchBehindEnd,
    /// Space that a checkpoint frees is overwritten once one slot of the control file has the
    /// checkpoint.
    OneSlotIsEnough,
    /// A block that can't be read is treated as empty.
    UnreadableIsEmpty,
}

#[cfg(any(test, feature = "injected-faults"))]
impl InjectedFault {
    /// All faults.
    pub const ALL: [Self; 19] = [
        Self::NoSyncAtOpen,
        Self::NoEpoch,
        Self::SameSalt,
        Self::AckBeforeSync,
        Self::NoSyncOfControl,
        Self::OneSlot,
        Self::AppendIntoTornBlock,
        Self::NoChecksum,
        Self::SkipBadRecord,
        Self::ReadThroughCache,
        Self::NoSyncOfDirectory,
        Self::SyncRetried,
        Self::WriteErrorIgnored,
        Self::NoSync,
        Self::SettledNotKept,
        Self::EpochNotNoted,
        Self::NoSearchBehindEnd,
        Self::OneSlotIsEnough,
        Self::UnreadableIsEmpty,
    ];
    /// The faults that crashes reveal without damage to the medium.
    pub const OF_CRASHES: [Self; 13] = [
        Self::NoSyncAtOpen,
        Self::NoEpoch,
        Self::SameSalt,
        Self::AckBeforeSync,
        Self::NoSyncOfControl,
        Self::OneSlot,
        Self::AppendIntoTornBlock,
        Self::NoChecksum,
        Self::SkipBadRecord,
        Self::ReadThroughCache,
        Self::NoSyncOfDirectory,
        Self::SyncRetried,
        Self::NoSync,
    ];
}
