//! The bytes that an open transaction will take in the journal, so that the change after the limit
//! fails, and not only the commit.
//!
//! A small transaction costs one comparison per change. Once its pages might not fit as full
//! images, those that changed since the last time are measured, as the commit would encode them.
//!
//! Invariant: a commit takes no more than what was measured: the longer of a page's image and its
//! diff, even where the journal already has an image, since a checkpoint may start meanwhile.

use std::collections::BTreeMap;

use pagekeeper_kernel::mutex::lock;

use crate::commit::{entry_bytes, max_change_bytes, max_entry_bytes, write_change};
use crate::core::Core;
use crate::format::entry::EntryWriter;
use crate::format::superblock::StoreMeta;
use crate::txn::{MeasuredChanges, PageEdit, WriteTxn};
use crate::{Error, PageNo};

/// Maximum bytes of the meta in an entry, beside the user's part.
const META_BYTES: usize = 64;

impl MeasuredChanges {
    fn measure(&mut self, core: &Core, meta: &StoreMeta, changed: &BTreeMap<PageNo, PageEdit>) {
        // The writer's lock is held, so this is the number of the commit.
        let seq = lock(&core.tail).seq + 1;
        let mut entry = EntryWriter::new(seq, meta);
        let before = entry.len();
        for page in std::mem::take(&mut self.due) {
            let Some(edit) = changed.get(&page) else { continue };
            // In both forms that the commit may choose.
            let sizes = [core.config.diffs_first, true].map(|may_differ| {
                write_change(core, &mut entry, page, edit, (0, may_differ));
                let size = entry.len() - before;
                entry.undo(before);
                size
            });
            self.sizes.insert(page, sizes[0].max(sizes[1]));
        }
        let meta = META_BYTES + meta.user.len();
        let items = std::iter::once(meta).chain(self.sizes.values().copied());
        self.bytes = entry_bytes(items, core.journal.longest_record());
    }
}

impl WriteTxn<'_> {
    /// Checks that the journal can take all changes so far, so that the commit will not fail with
    /// [`Error::TransactionTooLarge`]. Each change first checks those before it, in the same way.
    ///
    /// ```
    /// use pagekeeper_store::{Error, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let page = txn.allocate()?;
    /// txn.page_mut(page)?.fill(7);
    /// txn.check_size()?; // a commit fits now
    /// while txn.check_size().is_ok() {
    ///     txn.allocate()?;
    /// }
    /// assert!(matches!(txn.check_size(), Err(Error::TransactionTooLarge { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_size(&mut self) -> Result<(), Error> {
        let (core, changed) = (&*self.core, &self.changed);
        let max = max_entry_bytes(core.config.max_journal_bytes);
        let longest = core.journal.longest_record();
        let each = max_change_bytes(core.config.page_size as u64, longest as u64);
        let (measured, due) = match &self.measured {
            // The meta takes less than a change.
            None => (0, changed.len() + 1),
            Some(measured) => (measured.bytes, measured.due.len()),
        };
        if measured + due as u64 * each <= max {
            return Ok(());
        }
        let measured = self.measured.get_or_insert_with(|| {
            let due = changed.keys().copied().collect();
            Box::new(MeasuredChanges { due, ..MeasuredChanges::default() })
        });
        measured.measure(core, &self.meta, changed);
        let bytes = measured.bytes;
        if bytes <= max { Ok(()) } else { Err(Error::TransactionTooLarge { bytes, max }) }
    }

    /// Records that a page is about to change.
    pub(crate) fn touch(&mut self, page: PageNo) {
        if let Some(measured) = &mut self.measured {
            measured.due.insert(page);
        }
    }
}
