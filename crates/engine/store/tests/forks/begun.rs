//! Transactions, pages, readers and output that the parent began before the fork: they belong to
//! the parent, and continue there.

use std::path::Path;
use std::time::Duration;

use pagekeeper_bulk::BulkWriter;
use pagekeeper_store::{Durability, Error, PageNo, Store};
use pagekeeper_testing::{ChildEnd, disk_dir, forked};
use pagekeeper_wal::{BinLog, LogMode, Lsn, Position, PurgeMode, RedoLog};

use crate::things::{Answer, taken};

/// Whether it is refused, like everything that a child does with its parent's objects.
fn is_refused<T>(result: Result<T, Error>) -> bool {
    let answer = Answer::of_store(result);
    if answer != Answer::Refused {
        eprintln!("answered {answer:?}");
    }
    answer == Answer::Refused
}

fn options() -> pagekeeper_store::StoreOptions {
    Store::options().memory(2 << 20).journal_bytes(512 << 10).serve_backups(true)
}

#[test]
fn operations_begun_before_a_fork_continue_in_the_parent_alone() {
    let dir = disk_dir();
    let directory = dir.path().join("store");
    let store = options().open(&directory).unwrap();
    let mut txn = store.begin_write().unwrap();
    let page = txn.allocate().unwrap();
    txn.commit(Durability::Sync).unwrap();

    let read = store.begin_read().unwrap();
    let held = read.read(page).unwrap();
    let mut txn = store.begin_write().unwrap();
    // The allocated pages extend the file until they are committed or dropped.
    let run = txn.allocate_run(100).unwrap();
    txn.page_mut(page).unwrap()[0] = 7;
    let payload = vec![7; store.payload_size()];

    let in_child = || {
        let mut own = taken(&txn);
        let own_txn = [
            is_refused(own.allocate()),
            is_refused(own.allocate_run(1)),
            is_refused(own.free(page)),
            is_refused(own.read(page)),
            is_refused(own.read_with(page, <[u8]>::len)),
            is_refused(own.write(page, &payload)),
            is_refused(own.page_mut(page)),
            is_refused(own.commit(Durability::None)),
        ];
        let to = Path::new("/nonexistent/copy");
        let own_store = [
            is_refused(store.begin_write()),
            is_refused(store.begin_read()),
            is_refused(store.step()),
            is_refused(store.verify()),
            is_refused(store.backup(to)),
            is_refused(store.compact()),
            is_refused(store.inspect(PageNo::new(0)..PageNo::new(1))),
            is_refused(store.free_list()),
            is_refused(store.superblocks()),
            store.stats().seq.get() == 0,
        ];
        store.prefetch([page]);
        let others =
            [is_refused(read.read(page)), is_refused(read.read_with(page, <[u8]>::len)), held[0] == 0];
        own_txn.into_iter().chain(own_store).chain(others).all(|is_right| is_right)
    };
    assert_eq!(forked(in_child).end(), ChildEnd::Well);
    let drops = || {
        drop((taken(&read), taken(&held), taken(&txn), taken(&store)));
        true
    };
    assert_eq!(forked(drops).end(), ChildEnd::Well);

    txn.write(run, &payload).unwrap();
    let seq = txn.commit(Durability::Sync).unwrap();
    assert_eq!((held[0], read.read(page).unwrap()[0]), (0, 0));
    drop((held, read));
    // Its socket exists.
    assert_eq!(Store::request_backup(&directory, dir.path().join("copy")).unwrap().seq, seq);
    store.close_and_sync().unwrap();
    for opened in [&directory, &dir.path().join("copy")] {
        let store = options().open(opened).unwrap();
        assert!(store.verify().unwrap().is_sound());
        let read = store.begin_read().unwrap();
        assert_eq!((read.read(page).unwrap()[0], read.read(run).unwrap()[0]), (7, 7));
    }
}

#[test]
fn readers_and_output_begun_before_a_fork_continue_in_the_parent_alone() {
    let dir = disk_dir();
    let redo = RedoLog::options().files(2).file_bytes(1 << 20).create(dir.path().join("redo")).unwrap();
    redo.wait_flushed(redo.append(b"record").unwrap()).unwrap();
    let mut records = redo.read_from(Lsn::new(0)).unwrap();
    let binlog = BinLog::options().open(dir.path().join("binlog")).unwrap();
    binlog.append_group(&[b"event"]).unwrap();
    let mut follower = binlog.follow(binlog.first()).unwrap();
    let path = dir.path().join("output");
    let mut output = BulkWriter::options().create(&path).unwrap();
    // Several writes are in flight.
    let part = vec![7; 10 << 20];
    output.write_all(&part).unwrap();

    let in_child = || {
        let mut own = taken(&output);
        let refused = [
            Answer::of_log(taken(&records).next().unwrap()),
            Answer::of_log(taken(&follower).next_timeout(Duration::MAX)),
            Answer::of_io(own.write_all(b"more")),
            Answer::of_io(own.finish()),
            Answer::of_log(redo.read_again(std::slice::from_ref(&(Lsn::new(0)..Lsn::new(4))), 1 << 20)),
            Answer::of_log(redo.control_faults()),
            Answer::of_log(redo.settle()),
            Answer::of_log(binlog.purge_to(binlog.first(), PurgeMode::Forced)),
        ];
        let is_nothing_known =
            binlog.end() == Position { segment: 0, offset: 0 } && binlog.resident().is_none();
        let has_id = redo.id() != 0 && redo.mode() != LogMode::Auto && binlog.mode() != LogMode::Auto;
        refused.iter().all(|answer| *answer == Answer::Refused) && is_nothing_known && has_id
    };
    assert_eq!(forked(in_child).end(), ChildEnd::Well);

    output.write_all(&part).unwrap();
    assert_eq!(output.finish().unwrap().bytes, 20 << 20);
    assert!(std::fs::read(path).unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(records.next().unwrap().unwrap().body, b"record");
    assert_eq!(follower.try_next().unwrap().unwrap().bytes, b"event");
    redo.close().unwrap();
    binlog.close().unwrap();
}
