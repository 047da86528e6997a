//! Lookups and scans read pages in place: only this test shows it, since a page that is kept has
//! the same bytes.

use std::cell::Cell;

use pagekeeper_store::{Page, ReadTxn};

use super::*;
use crate::read::sealed::Sealed;

/// A transaction that counts the pages read from it.
struct Counted<'t> {
    txn: &'t ReadTxn<'t>,
    in_place: Cell<u64>,
    kept: Cell<u64>,
}

impl Sealed for Counted<'_> {}

impl Pages for Counted<'_> {
    fn page(&self, page: PageNo) -> Result<Page, Error> {
        self.kept.update(|kept| kept + 1);
        self.txn.read(page)
    }

    fn page_with<T>(&self, page: PageNo, look: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        self.in_place.update(|in_place| in_place + 1);
        self.txn.read_with(page, look)
    }

    fn fetch(&self, page: PageNo) {
        self.txn.fetch_page(page);
    }

    fn end(&self) -> u64 {
        self.txn.pages()
    }

    fn root_page(&self) -> Option<PageNo> {
        self.txn.root()
    }
}

#[test]
fn a_tree_is_looked_up_and_scanned_in_place() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    for key in 0..100_u32 {
        // Each in a separate page.
        tree.insert(&mut txn, &key.to_be_bytes(), &[7; 4000]).unwrap();
    }
    txn.commit(Durability::Sync).unwrap();
    let read = store.begin_read().unwrap();
    let height = u64::from(tree.check(&read).unwrap().levels);
    let pages = Counted { txn: &read, in_place: Cell::new(0), kept: Cell::new(0) };
    let len = tree.get_with(&pages, &50_u32.to_be_bytes(), <[u8]>::len).unwrap();
    assert_eq!(len, Some(4000));
    assert_eq!((pages.in_place.take(), pages.kept.get()), (height + 1, 0), "the levels, and the value");
    let mut seen = 0;
    let range = 10_u32.to_be_bytes()..60_u32.to_be_bytes();
    let ended = tree.scan_with(&pages, range, |_, value| {
        seen += value.len();
        ControlFlow::<()>::Continue(())
    });
    assert!(ended.unwrap().is_continue() && seen == 50 * 4000);
    assert_eq!((pages.in_place.take(), pages.kept.get()), (height + 50, 0), "the levels, and the values");
}
