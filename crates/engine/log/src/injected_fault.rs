//! Faults that crash tests inject, to see that they would be found: tests of this crate, and of crates built on it (feature
//! `injected-faults`). Outside of tests there are none.

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

/// A fault of a [`RedoLog`](crate::RedoLog), for [`RedoOptions::injected_fault`](crate::RedoOptions::injected_fault). Only with the
/// feature `injected-faults`, for tests of what is built on the log: a crash test that does not find it is no test.
#[cfg(any(test, feature = "injected-faults"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InjectedFault {
    /// What is kept is not synced when a log is opened.
    NoSyncAtOpen,
    /// No new epoch is begun when a log is opened.
    NoEpoch,
    /// The new epoch has the salt of the old one.
    SameSalt,
    /// A commit is acknowledged before its sync.
    AckBeforeSync,
    /// A checkpoint is taken for durable before it is synced.
    NoSyncOfControl,
    /// A checkpoint is written over the one that counts.
    OneSlot,
    /// The log goes on in the block that it ended in.
    AppendIntoTornBlock,
    /// The checksums of records are not checked.
    NoChecksum,
    /// A record that is not whole is left out, and reading goes on after it.
    SkipBadRecord,
    /// Opening reads through the page cache.
    ReadThroughCache,
    /// The names of the files are not synced when a log is made.
    NoSyncOfDirectory,
    /// A sync that failed is done again, and then believed.
    SyncRetried,
    /// A failed write is taken for a good one.
    WriteErrorIgnored,
    /// Nothing that is appended is ever synced.
    NoSync,
    /// What the control file says is settled, up to the end of a log that was closed, is not minded.
    SettledNotKept,
    /// The control file does not note the last epoch.
    EpochNotNoted,
    /// Past an end no record is searched that knows better.
    NoSearchBehindEnd,
    /// What a checkpoint frees is written over when one slot of the control file has it.
    OneSlotIsEnough,
    /// A block that can't be read is one in which no record stands.
    UnreadableIsEmpty,
}

#[cfg(any(test, feature = "injected-faults"))]
impl InjectedFault {
    /// Each of them.
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
    /// Those that crashes show without any damage of the medium.
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
