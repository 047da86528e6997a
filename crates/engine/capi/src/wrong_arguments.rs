//! Every wrong page, root, LSN and position gives `PK_MISUSE` or `PK_NOT_FOUND`: a caller's mistake
//! is never reported as damage of the disk.

use std::sync::Arc;

use pagekeeper_store::{Durability, Store};
use pagekeeper_tree::Tree;
use pagekeeper_wal::{BinLog, Lsn, Position, PurgeMode, RedoLog};

use crate::map::{
    pk_cursor_open, pk_map_check, pk_map_delete, pk_map_drop, pk_map_get, pk_map_put, pk_write_cursor_open,
    pk_write_map_get,
};
use crate::pointers::{ArrayPointer, MutArrayPointer};
use crate::read_txn::{ReadTxnHandle, pk_read_copy, pk_read_page};
use crate::status::{CallFailure, Status};
use crate::write_txn::{WriteTxnHandle, pk_write_change, pk_write_copy, pk_write_free, pk_write_page};

fn is_callers(status: Status) -> bool {
    matches!(status, Status::Misuse | Status::NotFound)
}

/// Makes a store's pages that are not roots, and returns their numbers.
fn wrong_pages(store: &Store) -> Vec<(&'static str, u64)> {
    let mut txn = store.begin_write().unwrap();
    let tree = Tree::create(&mut txn).unwrap();
    tree.insert(&mut txn, b"key", b"value").unwrap();
    let [zeros, data, free, other] = std::array::from_fn(|_| txn.allocate().unwrap());
    txn.page_mut(data).unwrap().fill(0xd7);
    txn.free(free).unwrap();
    txn.free(other).unwrap();
    let unwritten = txn.allocate_run(1).unwrap();
    txn.commit(Durability::None).unwrap();
    vec![
        ("out of range", 1 << 20),
        ("no page", u64::MAX),
        ("free", free.get()),
        ("freed later", other.get()),
        ("never written", unwritten.get()),
        ("zeros", zeros.get()),
        ("data", data.get()),
    ]
}

/// Calls each function that takes the root of a tree.
fn with_root(txn: &WriteTxnHandle, snapshot: &ReadTxnHandle, root: u64) -> Vec<(&'static str, Status)> {
    let (txn, snapshot) = (Some(txn), Some(snapshot));
    let (key, buffer) = (|| ArrayPointer::from(b"key"), &mut [0; 100]);
    vec![
        ("map_get", pk_map_get(snapshot, root, key(), 3, MutArrayPointer::from(&mut *buffer), 100, None)),
        (
            "write_map_get",
            pk_write_map_get(txn, root, key(), 3, MutArrayPointer::from(&mut *buffer), 100, None),
        ),
        ("map_put", pk_map_put(txn, root, key(), 3, key(), 3)),
        ("map_delete", pk_map_delete(txn, root, key(), 3)),
        ("map_drop", pk_map_drop(txn, root)),
        ("cursor_open", {
            let mut cursor = std::mem::MaybeUninit::uninit();
            pk_cursor_open(snapshot, root, key(), 3, 0, Some(&mut cursor))
        }),
        ("write_cursor_open", {
            let mut cursor = std::mem::MaybeUninit::uninit();
            pk_write_cursor_open(txn, root, key(), 3, 0, Some(&mut cursor))
        }),
        ("map_check", pk_map_check(snapshot, root, None)),
    ]
}

/// Calls each function that takes a page that cannot be read.
fn with_page(txn: &WriteTxnHandle, snapshot: &ReadTxnHandle, page: u64) -> Vec<(&'static str, Status)> {
    let (txn, snapshot) = (Some(txn), Some(snapshot));
    let (bytes, buffer) = (|| ArrayPointer::from(b"key"), &mut [0; 100]);
    vec![
        ("write_copy", pk_write_copy(txn, page, 0, MutArrayPointer::from(&mut *buffer), 100, None)),
        ("write_change", pk_write_change(txn, page, 0, bytes(), 3)),
        ("write_page", pk_write_page(txn, page, bytes(), 3)),
        ("read_copy", pk_read_copy(snapshot, page, 0, MutArrayPointer::from(&mut *buffer), 100, None)),
        ("read_page", {
            let mut found = std::mem::MaybeUninit::uninit();
            pk_read_page(snapshot, page, Some(&mut found))
        }),
    ]
}

#[test]
fn a_wrong_page_is_the_callers_mistake() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let options = Store::options().memory(4 << 20).journal_bytes(1 << 20);
    let store = Arc::new(options.open(dir.path().join("store")).unwrap());
    let pages = wrong_pages(&store);
    let snapshot = ReadTxnHandle(Arc::new(store.begin_read_owned().unwrap()));
    let txn = WriteTxnHandle::new(store.begin_write_owned().unwrap());
    for (kind, page) in pages {
        for (function, status) in with_root(&txn, &snapshot, page) {
            // Not PK_NOT_FOUND, which is a missing key.
            assert_eq!(status, Status::Misuse, "{function} of a root that is {kind}");
        }
        if matches!(kind, "zeros" | "data") {
            continue;
        }
        for (function, status) in with_page(&txn, &snapshot, page) {
            assert!(is_callers(status), "{function} of a page that is {kind}: {status:?}");
        }
        if kind != "never written" {
            assert_eq!(pk_write_free(Some(&txn), page), Status::NotFound, "{kind}");
        }
    }
}

#[test]
fn a_wrong_lsn_or_position_is_the_callers_mistake() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let redo = RedoLog::options().files(1).file_bytes(1 << 20).create(dir.path().join("redo")).unwrap();
    let end = redo.append(&[0xd7; 100]).unwrap();
    redo.wait_flushed(end).unwrap();
    let past = Lsn::new(1 << 40);
    let last =
        |lsn| redo.read_from(lsn)?.last().unwrap_or_else(|| redo.read_from(past).map(|_| unreachable!()));
    let mut found: Vec<(&str, CallFailure)> = vec![
        ("checkpoint past the end", redo.checkpoint(past).unwrap_err().into()),
        ("checkpoint within a record", redo.checkpoint(Lsn::new(8)).unwrap_err().into()),
        ("wait past the end", redo.wait_flushed(past).unwrap_err().into()),
        ("read past the end", redo.read_from(past).err().unwrap().into()),
        ("read within a record", last(Lsn::new(8)).unwrap_err().into()),
        ("read at an odd LSN", last(Lsn::new(3)).unwrap_err().into()),
    ];
    let binlog = BinLog::options().open(dir.path().join("binlog")).unwrap();
    let first = binlog.first();
    let end = binlog.append_group(&[&[0xd7; 100]]).unwrap();
    let at = |segment, offset| Position { segment, offset };
    for (place, from) in [
        ("past the end", at(end.segment, end.offset + 8192)),
        ("past the last segment", at(end.segment + 9, 0)),
        ("within a record", at(first.segment, first.offset + 8)),
        ("at an odd offset", at(first.segment, first.offset + 3)),
    ] {
        let next = binlog.follow(from).and_then(|mut follower| follower.try_next());
        found.push((place, next.expect_err(place).into()));
    }
    let purged = binlog.purge_to(at(end.segment + 9, 0), PurgeMode::Forced);
    found.push(("purge past the end", purged.unwrap_err().into()));
    for (place, failure) in found {
        assert!(is_callers(failure.status), "{place}: {failure:?}");
    }
}
