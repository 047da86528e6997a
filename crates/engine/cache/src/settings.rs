//! The settings that a cache was built with.

use std::fmt;
use std::sync::Arc;

use pagekeeper_io::{Access, Io};

use crate::verifier::PageVerifier;

/// Tables may take up at most one part in this many of the budget.
pub(crate) const TABLES_BUDGET_DIVISOR: u64 = 2;

/// The source of the frames' memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HugePages {
    /// Transparent huge pages (`MADV_HUGEPAGE`), if the kernel has some available.
    #[default]
    Transparent,
    /// Huge pages of 2 MiB that were set aside (`vm.nr_hugepages`); the build fails if there are
    /// too few. They are taken as a whole and can't be given back in parts. The tables of files are
    /// therefore outside the budget.
    Hugetlb,
    /// No huge pages.
    Off,
}

/// The settings of a cache.
pub(crate) struct CacheSettings {
    pub(crate) memory: u64,
    pub(crate) page_shift: u32,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) access: Access,
    pub(crate) verifier: Option<PageVerifier>,
    pub(crate) reserve_tables: bool,
    /// Maximum number of descriptors of files; `None` without a limit.
    pub(crate) max_open_files: Option<usize>,
    /// Whether the cache may start its own threads.
    pub(crate) threads: bool,
    /// Bytes of a kernel page.
    pub(crate) kernel_page: usize,
}

impl fmt::Debug for CacheSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSettings")
            .field("memory", &self.memory)
            .field("page_size", &(1 << self.page_shift))
            .field("io", &self.io.name())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
