//! The tracepoints in use, and the kernel's names for them.

/// The tracepoints in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TracepointKind {
    Add,
    Delete,
    Pause,
    ReclaimBegin,
    ReclaimEnd,
    GroupReclaimBegin,
    GroupReclaimEnd,
    Issue,
    Complete,
}

impl TracepointKind {
    /// Returns the kernel's name of the subsystem.
    pub(super) fn category(self) -> &'static str {
        match self {
            Self::Add | Self::Delete => "filemap",
            Self::Pause => "writeback",
            Self::ReclaimBegin | Self::ReclaimEnd | Self::GroupReclaimBegin | Self::GroupReclaimEnd => {
                "vmscan"
            }
            Self::Issue | Self::Complete => "block",
        }
    }

    /// Returns the kernel's name of the tracepoint.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "mm_filemap_add_to_page_cache",
            Self::Delete => "mm_filemap_delete_from_page_cache",
            Self::Pause => "balance_dirty_pages",
            Self::ReclaimBegin => "mm_vmscan_direct_reclaim_begin",
            Self::ReclaimEnd => "mm_vmscan_direct_reclaim_end",
            Self::GroupReclaimBegin => "mm_vmscan_memcg_reclaim_begin",
            Self::GroupReclaimEnd => "mm_vmscan_memcg_reclaim_end",
            Self::Issue => "block_rq_issue",
            Self::Complete => "block_rq_complete",
        }
    }
}

impl std::fmt::Display for TracepointKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.category(), self.name())
    }
}
