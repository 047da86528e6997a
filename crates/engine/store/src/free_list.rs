//! Walks a free list from its head.
//!
//! Invariant: nothing is changed, and a list with a cycle ends where its caller says so.

use pagekeeper_cache::PageRef;

use crate::format::page::PageKind;
use crate::format::superblock::StoreMeta;
use crate::format::trunk;
use crate::page::FoundPage;
use crate::{Error, PageNo};

/// The reason why a free list cannot be followed further.
pub(crate) struct FreeListFault {
    /// The trunk's page.
    pub(crate) page: PageNo,
    pub(crate) reason: String,
}

/// Calls `see` with the page and the payload of each trunk, in the order of the list. Returns
/// why the list cannot be followed to its end, if so: a trunk is damaged or invalid, or `see`
/// refuses it.
pub(crate) fn walk(
    meta: &StoreMeta,
    read: impl Fn(PageNo) -> Result<Option<FoundPage<PageRef>>, Error>,
    mut see: impl FnMut(PageNo, &[u8]) -> Result<(), &'static str>,
) -> Result<Option<FreeListFault>, Error> {
    let mut next = meta.free_head;
    while let Some(page) = next {
        let found = match read(page) {
            Ok(found) => found.filter(|found| found.kind() == PageKind::Trunk),
            Err(Error::Damaged { reason, .. }) => return Ok(Some(FreeListFault { page, reason })),
            Err(error) => return Err(error),
        };
        let payload = found.as_ref().map(FoundPage::payload);
        let seen = payload.ok_or_else(|| "it is no trunk of the free list".to_owned()).and_then(|payload| {
            trunk::check(payload, meta.pages).map_err(|fault| fault.to_string())?;
            see(page, payload)?;
            Ok(trunk::next(payload))
        });
        match seen {
            Ok(following) => next = following,
            Err(reason) => return Ok(Some(FreeListFault { page, reason })),
        }
    }
    Ok(None)
}
