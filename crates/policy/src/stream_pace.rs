//! How fast streams may use a disk that others use, too: what the operator asks for.

/// How fast streams may use a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamPace {
    /// At the disk's full speed while nobody else waits for it, and behind who does.
    #[default]
    Auto,
    /// As fast as the programs go by themselves.
    Off,
    /// As [`Self::Auto`], but with no more than a third of the disk's time as long as others use it.
    Idle,
    /// At most so many bytes a second on each file system, and behind others as with [`Self::Auto`].
    BytesPerSecond(u64),
}
