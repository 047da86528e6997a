//! The ways in which bulk output is written.

use std::fmt;

/// How bulk output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BulkMode {
    /// Direct where that is real, else paced.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`), with no more than a budget in flight, which it shares with paced writers.
    Direct,
    /// Through the page cache, with no more than a budget unwritten at any time. The budget is shared by all writers of
    /// one disk in this process that have one, and stays well below where the kernel begins to slow writers down.
    Paced,
    /// As paced, with writes whose pages the kernel drops once they are written (`RWF_DONTCACHE`, Linux 6.14). Such writes
    /// alone start writeback and never wait for it: they stall others more than buffered ones do.
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
