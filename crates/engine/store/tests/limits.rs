//! Limits of a store: the space of abandoned runs is given back, journals too small for a page are
//! refused, little address space is reported, and a progress callback may call the store.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use pagekeeper_store::{Durability, Error, PageNo, Store, StoreOptions};

fn small() -> StoreOptions {
    Store::options().memory(1 << 20).journal_bytes(64 << 10).warm(false)
}

/// Commits pages with this byte.
fn commit(store: &Store, pages: u64, byte: u8) -> PageNo {
    let payload = vec![byte; store.payload_size()];
    let mut txn = store.begin_write().unwrap();
    let first = txn.allocate_run(pages).unwrap();
    PageNo::each(first..first + pages).for_each(|page| txn.write(page, &payload).unwrap());
    txn.commit(Durability::Sync).unwrap();
    first
}

#[test]
fn a_run_that_is_given_up_gives_its_room_back() {
    let temp = pagekeeper_testing::disk_dir();
    let dir = temp.path().join("store");
    let store = small().open(&dir).unwrap();
    let len = || std::fs::metadata(dir.join("data")).unwrap().len();
    commit(&store, 2, 1);
    let before = len();
    let mut txn = store.begin_write().unwrap();
    let run = txn.allocate_run(1 << 20).unwrap();
    assert!(len() >= 4096 << 20);
    drop(txn);
    assert_eq!(len(), before, "dropped");
    // Like one that is refused.
    let mut txn = store.begin_write().unwrap();
    let again = txn.allocate_run(1 << 20).unwrap();
    assert_eq!(again, run);
    // No two pages are alike, so that none is short in the journal.
    let mut state = 1_u32;
    let mut payload = vec![0; store.payload_size()];
    for page in PageNo::each(again..again + 100) {
        for byte in &mut payload {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = state.to_be_bytes()[0];
        }
        if let Err(error) = txn.write(page, &payload) {
            assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error}");
            break;
        }
    }
    let error = txn.commit(Durability::Sync).unwrap_err();
    assert!(matches!(error, Error::TransactionTooLarge { .. }), "{error}");
    assert_eq!(len(), before, "refused");
    // The next run gets the space, durably.
    let next = commit(&store, 3, 2);
    assert_eq!(next, run);
    store.close_and_sync().unwrap();
    let store = small().open(&dir).unwrap();
    assert!(store.verify().unwrap().is_sound());
    assert_eq!(store.begin_read().unwrap().read(next + 2).unwrap()[0], 2);
}

#[test]
fn a_journal_that_can_not_take_a_page_is_refused_before_anything_is_made() {
    let temp = pagekeeper_testing::disk_dir();
    for (page_size, journal_bytes, is_enough) in [
        (4 << 10, 64 << 10, true),
        (16 << 10, 64 << 10, true),
        (32 << 10, 64 << 10, false),
        (64 << 10, 64 << 10, false),
        (32 << 10, 128 << 10, true),
        (64 << 10, 128 << 10, true),
    ] {
        let dir = temp.path().join(format!("{page_size}-{journal_bytes}"));
        let options = || small().memory(4 << 20).page_size(page_size).journal_bytes(journal_bytes);
        if !is_enough {
            let error = options().open(&dir).map(drop).unwrap_err();
            assert!(matches!(error, Error::Setting { what: "a journal", .. }), "{error}");
            assert!(!dir.exists());
            continue;
        }
        let store = options().open(&dir).unwrap();
        let mut txn = store.begin_write().unwrap();
        txn.set_metadata(&[7; 1024]).unwrap();
        let page = txn.allocate_run(1).unwrap();
        let payload: Vec<_> = (0..store.payload_size()).map(|at| (at % 251).to_le_bytes()[0] | 1).collect();
        txn.write(page, &payload).unwrap();
        txn.commit(Durability::Sync).unwrap();
    }
}

const CHILD: &str = "PAGEKEEPER_TEST_STORE";

#[test]
fn little_address_space_makes_a_smaller_table_or_a_clear_error() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return in_little_address_space(Path::new(&dir));
    }
    let temp = pagekeeper_testing::disk_dir();
    let dir = temp.path().join("store");
    commit(&small().open(&dir).unwrap(), 8, 3);
    let name = "little_address_space_makes_a_smaller_table_or_a_clear_error";
    // In KiB: enough for everything but the full table, and too little for a cache of 256 MiB.
    for (limit, expected) in [(2 << 20, "opened"), (200 << 10, "the page cache: ")] {
        let script = format!("ulimit -v {limit}; exec \"$0\" --exact {name} --nocapture --test-threads=1");
        let child = Command::new("sh")
            .arg("-c")
            .arg(script)
            .arg(std::env::current_exe().unwrap())
            .env(CHILD, &dir)
            .output();
        let output = child.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(expected), "{limit} KiB: {output:?}");
    }
}

#[test]
fn the_budget_is_taken_as_it_is_needed() {
    let name = "the_budget_is_taken_as_it_is_needed";
    if let Some(dir) = std::env::var_os(CHILD) {
        let store = Store::options().open(Path::new(&dir)).unwrap();
        commit(&store, 8, 3);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        store.close_and_sync().unwrap();
        return println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
    }
    let temp = pagekeeper_testing::disk_dir();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, temp.path().join("store"))
        .output();
    let output = child.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let most = said.split_once("VmHWM:").and_then(|(_, rest)| rest.split_whitespace().next());
    let most: u64 = most.unwrap_or_else(|| panic!("{output:?}")).parse().unwrap();
    assert!(most < 64 << 10, "{most} KiB of a budget of 256 MiB are resident after eight pages");
}

fn in_little_address_space(dir: &Path) {
    let store = match Store::options().warm(false).open(dir) {
        Ok(store) => store,
        Err(error) => return println!("{error}"),
    };
    assert_eq!(store.begin_read().unwrap().read(PageNo::new(7)).unwrap()[0], 3);
    let mut txn = store.begin_write().unwrap();
    let error = txn.allocate_run(1 << 31).unwrap_err();
    assert!(matches!(error, Error::Setting { .. }) && error.to_string().contains("address space"), "{error}");
    drop(txn);
    commit(&store, 8, 4);
    assert!(store.verify().unwrap().is_sound());
    println!("opened");
}

#[test]
fn a_report_callback_may_call_the_store() {
    for threads in [true, false] {
        let temp = pagekeeper_testing::disk_dir();
        let dir = temp.path().join("store");
        let store = small().background_apply(false).open(&dir).unwrap();
        commit(&store, 4, 3);
        store.close().unwrap();

        let place: Arc<OnceLock<Weak<Store>>> = Arc::default();
        let found = Arc::new(Mutex::new(Vec::new()));
        let (inner, reports) = (Arc::clone(&place), Arc::clone(&found));
        let options = small().background_apply(false).on_progress(move |progress| {
            let store = inner.get().and_then(Weak::upgrade).expect("it is open");
            let first = commit(&store, 1, 9);
            store.sync().unwrap();
            reports.lock().unwrap().push((progress.left, first));
        });
        let options = if threads { options } else { options.without_threads() };
        let store = Arc::new(options.open(&dir).unwrap());
        place.set(Arc::downgrade(&store)).unwrap();
        store.sync().unwrap();
        let began = Instant::now();
        while found.lock().unwrap().is_empty() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(*found.lock().unwrap(), [(0, PageNo::new(4))]);
        // Also as its last owner.
        drop(store);
        assert_eq!(small().open(&dir).unwrap().begin_read().unwrap().read(PageNo::new(4)).unwrap()[0], 9);
    }
}
