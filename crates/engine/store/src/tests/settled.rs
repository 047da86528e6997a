//! The fastest path of a read: taken wherever possible, and only there. Only this test shows
//! whether it is taken, since all paths find the same.

use std::sync::Arc;

use pagekeeper_simdisk::SimDisk;

use super::disk::{Meanwhile, Prompt};
use super::world::dir;
use crate::core::settled_reads;
use crate::{Durability, PageNo, ReadTxn, Store};

/// Returns how many reads take it during an action.
fn shortest(what: impl FnOnce()) -> u64 {
    let before = settled_reads();
    what();
    settled_reads() - before
}

fn store() -> Store {
    let io = Arc::new(Prompt::new(SimDisk::builder().by_steps().build(), Meanwhile::default()));
    let options = Store::options().journal_bytes(1 << 20).memory(8 << 20).io(io).warm(false);
    options.without_threads().open(dir()).expect("nothing fails")
}

/// Reads a page a few times.
fn warm(read: &ReadTxn<'_>, page: PageNo) {
    for _ in 0..8 {
        read.read_with(page, |_| ()).expect("it is there");
    }
}

#[test]
fn a_page_that_is_applied_and_read_often_is_found_by_the_shortest_way() {
    let store = store();
    let mut txn = store.begin_write().expect("nothing fails");
    let [page, other] = [0; 2].map(|_| txn.allocate().expect("there is room"));
    txn.page_mut(page).expect("it is there")[0] = 1;
    txn.commit(Durability::Sync).expect("nothing fails");
    let read_with = |times: u64, expected: u8| {
        let read = store.begin_read().expect("nothing fails");
        for _ in 0..times {
            assert_eq!(read.read_with(page, |payload| payload[0]).expect("it is there"), expected);
        }
    };
    assert_eq!(shortest(|| read_with(20, 1)), 0, "it is not applied");
    store.sync().expect("nothing fails");
    warm(&store.begin_read().expect("nothing fails"), page);
    assert_eq!(shortest(|| read_with(20, 1)), 20);
    // As of another commit.
    let before = store.begin_read().expect("nothing fails");
    let mut txn = store.begin_write().expect("nothing fails");
    txn.page_mut(page).expect("it is there")[0] = 2;
    txn.commit(Durability::Sync).expect("nothing fails");
    assert_eq!(shortest(|| read_with(20, 2)), 0, "it is not applied");
    store.sync().expect("nothing fails");
    let read_before = || {
        assert_eq!(before.read_with(page, |payload| payload[0]).expect("it is kept"), 1);
    };
    assert_eq!(shortest(read_before), 0, "it is newer than the snapshot");
    drop(before);
    // The next checkpoint drops what was kept for it.
    let mut txn = store.begin_write().expect("nothing fails");
    txn.page_mut(other).expect("it is there")[0] = 1;
    txn.commit(Durability::Sync).expect("nothing fails");
    store.sync().expect("nothing fails");
    warm(&store.begin_read().expect("nothing fails"), page);
    assert_eq!(shortest(|| read_with(20, 2)), 20);
    // A page that is free.
    let mut txn = store.begin_write().expect("nothing fails");
    txn.free(other).expect("it is there");
    txn.commit(Durability::Sync).expect("nothing fails");
    store.sync().expect("nothing fails");
    let read = store.begin_read().expect("nothing fails");
    assert_eq!(shortest(|| (0..20).for_each(|_| assert!(read.read_with(other, |_| ()).is_err()))), 0);
}
