//! Backups on real file systems: beside commits, with the process killed at random, onto a full
//! disk, and with something else at the destination.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_store::{Create, Durability, Error, PageNo, Store, StoreOptions};
use pagekeeper_testing::{Mounted, Rng, Seed, disk_dir};

/// Pages of the store.
const PAGES: u64 = 2000;
/// The environment variable with the directory of the store that the child opens and backs up.
const DIRECTORY: &str = "PAGEKEEPER_BACKED_UP_STORE";

/// Returns options with little memory and a short journal: checkpoints run all the time, and
/// snapshots are ended.
fn options() -> StoreOptions {
    Store::options().memory(2 << 20).journal_bytes(512 << 10)
}

/// Makes a store of pages of zeros.
fn filled(dir: &Path) -> Store {
    let store = options().open(dir).unwrap();
    let blank = vec![0; store.payload_size()];
    for from in (store.begin_read().unwrap().pages()..PAGES).step_by(100) {
        let mut txn = store.begin_write().unwrap();
        let first = txn.allocate_run(100).unwrap();
        assert_eq!(first.get(), from);
        PageNo::each(first..first + 100).for_each(|page| txn.write(page, &blank).unwrap());
        txn.commit(Durability::Sync).unwrap();
    }
    store
}

fn number(payload: &[u8]) -> u64 {
    payload[..8].try_into().map_or(0, u64::from_le_bytes)
}

/// Makes one commit that moves an amount from one page to another, so that the sum of all stays
/// zero.
fn transfer(store: &Store, rng: &mut Rng) -> Result<(), Error> {
    let mut txn = store.begin_write()?;
    let by = rng.of(0..1000);
    for by in [by, by.wrapping_neg()] {
        let payload = txn.page_mut(PageNo::new(rng.of(0..PAGES)))?;
        let sum = number(payload).wrapping_add(by);
        payload[..8].copy_from_slice(&sum.to_le_bytes());
    }
    txn.commit(if rng.one_in(20) { Durability::Sync } else { Durability::None })?;
    Ok(())
}

/// Checks that its pages are as of one commit, and valid.
fn is_whole(store: &Store) {
    let read = store.begin_read().unwrap();
    let sum =
        (0..PAGES).map(|page| number(&read.read(PageNo::new(page)).unwrap())).fold(0, u64::wrapping_add);
    assert_eq!(sum, 0, "of no one commit");
    let verified = store.verify().unwrap();
    assert!(verified.is_sound(), "{verified}");
}

/// Does the child's work until it is killed; not a test of its own.
#[test]
fn child_that_is_backed_up() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let store = filled(&directory.join("store"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::from_seed(std::process::id().into());
            loop {
                transfer(&store, &mut rng).unwrap();
            }
        });
        for copy in 0.. {
            let say = |what| std::io::stdout().lock().write_all(format!("\n{what} {copy}\n").as_bytes());
            let _ = say("begun");
            // At full speed, so that some backups are whole by the time of the kill.
            let made = store.backup_paced(directory.join(format!("copy-{copy}")), StreamPace::Off).unwrap();
            assert!(made.pages == PAGES && made.bytes >= PAGES * 4096);
            let _ = say("made");
        }
    });
}

#[test]
fn a_killed_backup_leaves_a_whole_store_or_none() {
    let temp = disk_dir();
    let directory = temp.path();
    let seed = Seed::new();
    filled(&directory.join("store")).close().unwrap();
    let (mut whole, mut unfinished) = (0, 0);
    for kill in 0..12 {
        let mut rng = seed.rng(kill);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_is_backed_up", "--exact", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let begun = said.by_ref().find(|line| line.starts_with("begun"));
        assert!(begun.is_some(), "it failed before its first backup");
        std::thread::sleep(Duration::from_micros(rng.of(0..600_000)));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(status.code().is_none(), "it ended by itself: {status}");
        let made: Vec<_> = said.filter_map(|line| line.strip_prefix("made ")?.parse::<u64>().ok()).collect();
        for copy in 0.. {
            let path = directory.join(format!("copy-{copy}"));
            match options().create(Create::Never).open(&path) {
                Ok(store) => {
                    is_whole(&store);
                    store.close().unwrap();
                    whole += 1;
                }
                Err(Error::NoStore { .. } | Error::Unfinished { .. }) => {
                    assert!(!made.contains(&copy), "kill {kill}: a backup is gone that was made");
                    unfinished += u64::from(path.exists());
                }
                Err(error) => panic!("kill {kill}: {error}"),
            }
            if !path.exists() {
                break;
            }
            std::fs::remove_dir_all(&path).unwrap();
        }
        let store = options().open(directory.join("store")).unwrap();
        is_whole(&store);
        store.close().unwrap();
    }
    println!("{whole} whole, {unfinished} never finished");
    assert!(whole > 0 && unfinished > 0, "{whole} whole, {unfinished} never finished");
}

#[test]
fn existing_files_and_links_are_not_followed_or_overwritten() {
    let temp = disk_dir();
    let at = |name: &str| temp.path().join(name);
    let store = options().open(at("store")).unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    symlink(at("empty"), at("to-empty")).unwrap();
    symlink(at("nothing"), at("to-nothing")).unwrap();
    symlink(at("store"), at("to-store")).unwrap();
    std::fs::write(at("file"), b"mine").unwrap();
    for name in ["empty", "to-empty", "to-nothing", "to-store", "file", "store"] {
        let error = store.backup(at(name)).unwrap_err();
        assert!(matches!(error, Error::Exists { is_unfinished: false, .. }), "{name}: {error}");
    }
    assert_eq!(std::fs::read_dir(at("empty")).unwrap().count(), 0);
    assert!(!at("nothing").exists());
    assert_eq!(std::fs::read(at("file")).unwrap(), b"mine");
    // The error names the remains of an interrupted backup.
    std::fs::create_dir(at("half")).unwrap();
    std::fs::write(at("half/superblock.new"), b"").unwrap();
    let error = store.backup(at("half")).unwrap_err();
    assert!(matches!(error, Error::Exists { is_unfinished: true, .. }), "{error}");
    std::fs::remove_file(at("half/superblock.new")).unwrap();
    std::fs::write(at("half/superblock.copy"), b"").unwrap();
    let error = store.backup(at("half")).unwrap_err();
    assert!(
        error.to_string().contains("never finished, by a backup or repair that was interrupted"),
        "{error}"
    );
    store.backup(at("copy")).unwrap();
}

/// The store is in the state after a kill just before the rename. Created again, it would look
/// empty to the user who wants the copy.
#[test]
fn no_store_is_made_of_a_backup_that_was_never_finished() {
    let temp = disk_dir();
    let at = |name: &str| temp.path().join(name);
    let store = filled(&at("store"));
    store.backup(at("copy")).unwrap();
    std::fs::rename(at("copy/superblock"), at("copy/superblock.copy")).unwrap();
    for create in [Create::Never, Create::IfMissing, Create::New] {
        for read_only in [false, true] {
            let opened = options().create(create).read_only(read_only).open(at("copy"));
            assert!(matches!(opened, Err(Error::Unfinished { .. })), "{create:?}: {opened:?}");
        }
    }
    assert!(matches!(options().repair(at("copy"), at("repaired")), Err(Error::Unfinished { .. })));
    // With the mark renamed to the final name, nothing is missing.
    std::fs::rename(at("copy/superblock.copy"), at("copy/superblock")).unwrap();
    is_whole(&options().open(at("copy")).unwrap());
}

#[test]
fn a_full_file_system_gets_its_room_back() {
    let Some(mounted) = Mounted::new("tmpfs") else { return };
    let temp = disk_dir();
    let store = filled(&temp.path().join("store"));
    let to = mounted.path().join("copy");
    let fill = mounted.path().join("fill");
    // Fills of a disk of 64 MiB: no space for the journal, or for only some of the pages.
    for taken in [64, 60] {
        std::fs::write(&fill, vec![1; (taken << 20) - (256 << 10)]).unwrap();
        let error = store.backup(&to).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
        assert!(!to.exists(), "it is left there");
    }
    std::fs::remove_file(&fill).unwrap();
    store.backup(&to).unwrap();
    is_whole(&options().open(&to).unwrap());
    transfer(&store, &mut Rng::from_seed(1)).unwrap();
    is_whole(&store);
}
