//! The operator's choice of how fast streams may use a shared disk.

/// How fast streams may use a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamPace {
    /// At the disk's full speed while nobody else waits for it; yields to those who wait.
    #[default]
    Auto,
    /// As fast as the programs run by themselves.
    Off,
    /// As [`Self::Auto`], but with at most a third of the disk's time while others use it.
    Idle,
    /// At most this many bytes per second on each file system; yields to others as [`Self::Auto`] does.
    BytesPerSecond(u64),
}
