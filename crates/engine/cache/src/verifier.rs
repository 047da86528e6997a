//! Checks of pages by the cache's user: what a verifier is, and the page that it is given.

use std::path::Path;
use std::sync::Arc;

/// Checks a page that was loaded, before anyone reads it.
pub(crate) type Verifier = Arc<dyn Fn(&LoadedPage<'_>) -> Result<(), String> + Send + Sync>;

/// A page that a verifier is to check.
#[derive(Debug)]
pub struct LoadedPage<'a> {
    pub(crate) path: &'a Path,
    pub(crate) file_id: u64,
    pub(crate) page: u32,
    /// In the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: &'a [u8],
}

impl LoadedPage<'_> {
    /// Its number in the file.
    pub fn page(&self) -> u64 {
        self.page.into()
    }

    /// Where it starts in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its bytes: a page, or less at the end of the file.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The file's path, as it was opened.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// [`CachedFile::id`](crate::CachedFile::id) of the file.
    pub fn file_id(&self) -> u64 {
        self.file_id
    }
}
