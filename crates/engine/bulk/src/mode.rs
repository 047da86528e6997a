//! The ways in which bulk output is written.

use std::fmt;

/// The way in which bulk output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BulkMode {
    /// Direct if that is real, otherwise paced.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`), with at most a budget in flight that it shares with paced
    /// writers.
    Direct,
    /// Through the page cache, with at most a budget unwritten at any time. All writers of one disk
    /// in this process that have a budget share it. It stays well below the point where the kernel
    /// begins to throttle writers.
    Paced,
    /// Like paced, with writes whose pages the kernel drops once they are written (`RWF_DONTCACHE`,
    /// Linux 6.14). Without pacing, such writes start writeback and never wait for it: they stall
    /// others more than buffered ones do.
    Uncached,
    /// Through the page cache and left there.
    Buffered,
}

impl fmt::Display for BulkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Paced => "paced",
            Self::Uncached => "uncached",
            Self::Buffered => "buffered",
        })
    }
}
