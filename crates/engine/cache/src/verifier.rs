//! Checks of pages by the cache's user: the type of a verifier, and the page that it gets.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use crate::page_table::PageTable;
use crate::{Error, PageNo};

/// Checks a page that was loaded, before anyone reads it.
pub(crate) type PageVerifier = Arc<dyn Fn(&LoadedPage<'_>) -> Result<(), String> + Send + Sync>;

thread_local! {
    /// The pages that this thread is verifying, of all caches; the innermost is last.
    static VERIFIED_HERE: RefCell<Vec<VerifiedPage>> = const { RefCell::new(Vec::new()) };
}

/// A page that is being verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VerifiedPage {
    file: FileKey,
    page: u32,
}

/// Identifies an open file among those of all caches, by the address of its page table. File
/// numbers don't: each cache counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileKey(usize);

impl FileKey {
    pub(crate) fn new(page_table: &Arc<PageTable>) -> Self {
        Self(Arc::as_ptr(page_table).addr())
    }
}

/// Whether a page that this thread is verifying satisfies the condition. False in a thread that is
/// ending.
fn is_verifying(condition: impl Fn(&VerifiedPage) -> bool) -> bool {
    VERIFIED_HERE.try_with(|pages| pages.borrow().iter().any(condition)).unwrap_or(false)
}

/// Whether this thread is verifying a page of the file: a wait for another page of it may never
/// end.
pub(crate) fn is_verifying_file(file: FileKey) -> bool {
    is_verifying(|page| page.file == file)
}

/// Notes that this thread is verifying a page, until it is dropped.
struct VerifiedHere;

impl VerifiedHere {
    fn new(page: VerifiedPage) -> Self {
        let _ = VERIFIED_HERE.try_with(|pages| pages.borrow_mut().push(page));
        Self
    }
}

impl Drop for VerifiedHere {
    fn drop(&mut self) {
        let _ = VERIFIED_HERE.try_with(|pages| pages.borrow_mut().pop());
    }
}

/// Calls the verifier. Fails if it has asked for the page that it is to verify.
pub(crate) fn verify(verifier: &PageVerifier, file: FileKey, page: &LoadedPage<'_>) -> Result<(), Error> {
    let this_page = VerifiedPage { file, page: page.page };
    if is_verifying(|other| *other == this_page) {
        return Err(Error::WithinVerifier { path: page.path.to_owned(), page: page.page() });
    }
    let _here = VerifiedHere::new(this_page);
    verifier(page).map_err(|reason| Error::Rejected {
        path: page.path.to_owned(),
        page: page.page(),
        reason: reason.into(),
    })
}

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
    pub fn page(&self) -> PageNo {
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
