//! Checks of pages by the cache's user: the type of a verifier, and the page that it gets.

use std::path::Path;
use std::sync::Arc;

/// Checks a page that was loaded, before anyone reads it.
pub(crate) type PageVerifier = Arc<dyn Fn(&LoadedPage<'_>) -> Result<(), String> + Send + Sync>;

/// A page for a verifier to check.
#[derive(Debug)]
pub struct LoadedPage<'a> {
    pub(crate) path: &'a Path,
    pub(crate) file_id: u64,
    pub(crate) page: u32,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: &'a [u8],
}

impl LoadedPage<'_> {
    /// Returns the page's number in the file.
    pub fn page(&self) -> u64 {
        self.page.into()
    }

    /// Returns the page's offset in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the page's bytes: a page, or less at the end of the file.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Returns the file's path, as it was opened.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// Returns the [`CachedFile::id`](crate::CachedFile::id) of the file.
    pub fn file_id(&self) -> u64 {
        self.file_id
    }
}
