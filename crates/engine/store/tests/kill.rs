//! Real kills: a child process commits under load and reports each acknowledged commit. It is
//! killed at random, and the store is opened, verified and compared with the reports.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagekeeper_store::{Durability, Error, PageNo, Store, StoreOptions};
use pagekeeper_testing::{Mounted, Rng, Seed, disk_dir};

/// Pages of the store.
const PAGES: u64 = 300;
/// The environment variable with the directory of the child's store.
const DIRECTORY: &str = "PAGEKEEPER_KILLED_STORE";

/// Returns options with little memory and a short journal, so that checkpoints run all the time.
fn options() -> StoreOptions {
    Store::options().memory(2 << 20).journal_bytes(512 << 10)
}

/// Returns a number in which each bit depends on all bits of this one.
fn mix(number: u64) -> u64 {
    Rng::from_seed(number).number()
}

/// Returns the pages that a commit changes.
fn pages_of(number: u64) -> impl Iterator<Item = PageNo> {
    (0..=mix(number) % 4).map(move |which| PageNo::new(mix(number ^ (which + 1) << 40) % PAGES))
}

/// Marks a page with its commit: sometimes as a whole, mostly in three places.
fn mark(payload: &mut [u8], number: u64) {
    let len = payload.len();
    for at in [0, len / 2, len - 8] {
        payload[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
}

fn number_of(metadata: &[u8]) -> u64 {
    metadata.try_into().map_or(0, u64::from_le_bytes)
}

/// Makes one commit, which contains its own number.
fn commit(store: &Store, durability: Durability) -> Result<u64, Error> {
    let mut txn = store.begin_write()?;
    let number = number_of(txn.metadata()) + 1;
    if txn.pages() == 0 {
        txn.allocate_run(PAGES)?;
        let blank = vec![0; store.payload_size()];
        (0..PAGES).try_for_each(|page| txn.write(PageNo::new(page), &blank))?;
    }
    for page in pages_of(number) {
        if number.is_multiple_of(7) {
            txn.write(page, &vec![number.to_le_bytes()[0]; store.payload_size()])?;
        }
        mark(txn.page_mut(page)?, number);
    }
    txn.set_metadata(&number.to_le_bytes())?;
    txn.commit(durability)?;
    Ok(number)
}

/// Does the child's work until it is killed; not a test of its own.
#[test]
fn child_under_load() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let store = options().open(Path::new(&directory)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let store = &store;
            scope.spawn(move || {
                loop {
                    let durability = if thread == 0 { Durability::Group } else { Durability::Sync };
                    let number = commit(store, durability).unwrap();
                    let _ =
                        std::io::stdout().lock().write_all(format!("\nacknowledged {number}\n").as_bytes());
                    if thread == 2 {
                        commit(store, Durability::None).unwrap();
                    }
                }
            });
        }
    });
}

/// Runs a child, and kills it after this time, counted from its start or its first commit. Returns
/// the last commit that it reported.
fn kill_one(directory: &Path, after_first: bool, wait: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_under_load", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = BufReader::new(child.stdout.take().unwrap()).lines();
    let number =
        |line: String| line.strip_prefix("acknowledged ").and_then(|number| number.parse::<u64>().ok());
    let mut last = 0;
    if after_first {
        last = reported
            .by_ref()
            .map_while(Result::ok)
            .find_map(number)
            .expect("it failed before its first commit");
    }
    std::thread::sleep(wait);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(status.code().is_none(), "it ended by itself: {status}");
    // Threads report in any order. A line that was cut off reports nothing.
    reported.map_while(Result::ok).filter_map(number).fold(last, u64::max)
}

fn kill_and_compare(directory: &Path, kills: u64) {
    let seed = Seed::new();
    let mut expected = vec![0; usize::try_from(PAGES).unwrap()];
    let (mut acknowledged, mut done, mut at_least) = (0, 0, 0);
    for kill in 0..kills {
        let rng = mix(seed.0 ^ kill);
        // Some while the store is still being opened or made.
        let after_first = !rng.is_multiple_of(5);
        let wait = Duration::from_micros((rng >> 8) % if after_first { 150_000 } else { 30_000 });
        at_least += u64::from(after_first);
        acknowledged = kill_one(directory, after_first, wait).max(acknowledged);
        let store = options().open(directory).unwrap();
        let read = store.begin_read().unwrap();
        let found = number_of(read.metadata());
        assert!(found >= acknowledged, "kill {kill}: {found} is found of {acknowledged} commits");
        for number in done + 1..=found {
            pages_of(number).for_each(|page| expected[usize::try_from(page.get()).unwrap()] = number);
        }
        done = found;
        for (page, number) in (0..read.pages()).zip(&expected) {
            let payload = read.read(PageNo::new(page)).unwrap();
            let len = payload.len();
            let marks = [0, len / 2, len - 8].map(|at| number_of(&payload[at..at + 8]));
            assert_eq!(marks, [*number; 3], "kill {kill}, page {page} of commit {found}");
        }
        drop(read);
        let verified = store.verify().unwrap();
        assert!(verified.is_sound(), "kill {kill}: {verified}");
        // The next opening finds it as it was left, or applied.
        if rng.is_multiple_of(3) { store.close_and_sync() } else { store.close() }.unwrap();
    }
    println!("{kills} kills, {done} commits, {acknowledged} of them acknowledged");
    assert!(acknowledged >= at_least, "hardly anything was committed");
}

/// Runs on the build's disk, or the directory in `PAGEKEEPER_KILLS_IN`, for example on a slow disk.
#[test]
fn acknowledged_commits_survive_kills() {
    let given = std::env::var_os("PAGEKEEPER_KILLS_IN");
    let temp = given.map_or_else(disk_dir, |given| tempfile::tempdir_in(given).unwrap());
    kill_and_compare(&temp.path().join("store"), 50);
}

/// Runs on XFS, in a separate file system on a loop device.
#[test]
fn acknowledged_commits_survive_kills_on_xfs() {
    let Some(mounted) = Mounted::new("xfs") else { return };
    kill_and_compare(&mounted.path().join("store"), 20);
}
