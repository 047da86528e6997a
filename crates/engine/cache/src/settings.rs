//! What a cache was built with.

use std::fmt;
use std::sync::Arc;

use pagekeeper_io::{Access, Io};

use crate::verifier::Verifier;

/// Tables may take up one part in this many of the budget.
pub(crate) const TABLES_SHARE: u64 = 2;

/// Where the frames' memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Transparent huge pages (`MADV_HUGEPAGE`), where the kernel has any at hand.
    #[default]
    Transparent,
    /// Huge pages of 2 MiB that were set aside (`vm.nr_hugepages`); the build fails if there are too few. They are taken as a whole,
    /// and can't be given back in parts: what the tables of files take up comes on top of them, and is not within the budget.
    Hugetlb,
    /// None.
    Off,
}

/// What a cache was built with.
pub(crate) struct Settings {
    pub(crate) memory: u64,
    pub(crate) page_shift: u32,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) access: Access,
    pub(crate) verifier: Option<Verifier>,
    pub(crate) reserve_tables: bool,
    /// It may have threads of its own.
    pub(crate) threads: bool,
    /// Bytes of a page of the kernel's.
    pub(crate) kernel_page: usize,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("memory", &self.memory)
            .field("page_size", &(1 << self.page_shift))
            .field("io", &self.io.name())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
