//! Bugs that crash tests plant, to see that they would be found: those of this crate, and those of crates that rest on it
//! (feature `planted`). There are none but in tests.

/// Whether this bug is planted.
macro_rules! planted {
    ($of:expr, $bug:ident) => {{
        #[cfg(any(test, feature = "planted"))]
        let is_planted = $of.planted == Some($crate::redo::planted::Planted::$bug);
        #[cfg(not(any(test, feature = "planted")))]
        let is_planted = false;
        is_planted
    }};
}

pub(crate) use planted;

/// One bug of a [`RedoLog`](crate::RedoLog), for [`RedoOptions::planted`](crate::RedoOptions::planted). Only with the feature
/// `planted`, for tests of what rests on the log: a crash test that does not find it is no test.
#[cfg(any(test, feature = "planted"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Planted {
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
    /// The checksums of records are not looked at.
    NoChecksum,
    /// A record that is not whole is left out, and reading goes on behind it.
    SkipBadRecord,
    /// Opening reads through the page cache.
    ReadThroughCache,
    /// The names of the files are not synced when a log is made.
    NoSyncOfDirectory,
    /// A sync that failed is done again, and then believed.
    SyncRetried,
    /// Nothing that is appended is ever synced.
    NoSync,
}

#[cfg(any(test, feature = "planted"))]
impl Planted {
    /// Each of them.
    pub const ALL: [Self; 13] = [
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

/// The bug of [`Planted::AppendIntoTornBlock`]: the block in which the log ended is filled as it was.
#[cfg(any(test, feature = "planted"))]
pub(super) fn go_on_in_block(
    buffer: &super::buffer::Buffer,
    files: &[std::sync::Arc<dyn pagekeeper_io::IoFile>],
    geometry: super::ring::Geometry,
    end: u64,
) -> Result<(), crate::Error> {
    use crate::record::{BLOCK, BLOCK_LEN};
    let mut block = pagekeeper_io::AlignedBuf::new(BLOCK_LEN);
    let (file, offset) = geometry.place(end - end % BLOCK);
    files[file].read_at(offset, &mut block)?;
    if let Some(span) = buffer.reserve_beyond_limit(end % BLOCK) {
        let len = usize::try_from(end % BLOCK).unwrap_or(0);
        buffer.fill(span, [&block[..len], &[]]);
    }
    Ok(())
}
