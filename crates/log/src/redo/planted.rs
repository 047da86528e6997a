//! Bugs that the crash tests plant, to see that they would be found. There are none but in tests.

/// Whether this bug is planted.
macro_rules! planted {
    ($of:expr, $bug:ident) => {{
        #[cfg(test)]
        let is_planted = $of.planted == Some($crate::redo::planted::Planted::$bug);
        #[cfg(not(test))]
        let is_planted = false;
        is_planted
    }};
}

pub(super) use planted;

/// One bug.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planted {
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
}
