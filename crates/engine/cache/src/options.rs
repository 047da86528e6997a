//! Options of one open.

use std::fmt;
use std::sync::Arc;

use crate::priority::FilePriority;
use crate::verifier::{LoadedPage, PageVerifier};

/// Options for opening one file.
#[derive(Clone, Default)]
pub struct OpenOptions {
    pub(crate) verifier: Option<PageVerifier>,
    pub(crate) priority: FilePriority,
}

impl OpenOptions {
    /// Creates the options that [`PageCache::open`](crate::PageCache::open) uses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a verifier that checks each page of this file when it is loaded, in place of the
    /// cache's own [`verifier`](crate::CacheOptions::verifier). For a file with checksums of its
    /// own.
    #[must_use]
    pub fn verifier(
        mut self,
        verifier: impl Fn(&LoadedPage<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.verifier = Some(Arc::new(verifier));
        self
    }

    /// Sets how long the file's pages stay beside those of other files [default: normal].
    #[must_use]
    pub fn priority(mut self, priority: FilePriority) -> Self {
        self.priority = priority;
        self
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("verifier", &self.verifier.is_some())
            .field("priority", &self.priority)
            .finish()
    }
}
