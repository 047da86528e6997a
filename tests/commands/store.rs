//! `pagekeeper store` on stores that the library made: its output, its findings, and that it
//! leaves a store unchanged.

use crate::support;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::MutexGuard;
use std::time::SystemTime;

use crate::support::command::{Outcome, finish, pagekeeper, run};
use pagekeeper_store::{Create, Durability, PageNo, Store};
use serde_json::{Value, json};
use tempfile::TempDir;

const PAGE: u64 = 4096;
const SLOT_BYTES: usize = 4096;
/// The store of the child that serves backups.
const SERVED: &str = "PAGEKEEPER_SERVED_STORE";

/// The lock and the directory of a store; both are released when a test ends.
type StoreTestGuard = (MutexGuard<'static, ()>, TempDir);

/// Returns a store of ten pages, synced: page 3 says "hello", pages 5 and 6 are free, 8 and 9 never
/// written.
///
/// One test at a time: a program that another one starts holds the locks of this process until its
/// execve(2).
fn store() -> (StoreTestGuard, PathBuf) {
    let alone = support::alone();
    let temp = support::scratch();
    let dir = temp.path().join("store");
    let store = Store::options().create(Create::New).journal_bytes(64 << 10).open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let pages: Vec<_> = (0..8).map(|_| txn.allocate().unwrap()).collect();
    txn.allocate_run(2).unwrap();
    txn.page_mut(pages[3]).unwrap()[..5].copy_from_slice(b"hello");
    txn.set_root(Some(pages[3]));
    txn.set_metadata(b"tree\n").unwrap();
    txn.commit(Durability::Sync).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.free(pages[5]).unwrap();
    txn.free(pages[6]).unwrap();
    txn.commit(Durability::Sync).unwrap();
    store.close_and_sync().unwrap();
    ((alone, temp), dir)
}

/// Commits a change of page 0, and leaves it in the journal.
fn commit(dir: &Path) {
    let store = Store::options().create(Create::Never).background_apply(false).open(dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.page_mut(PageNo::new(0)).unwrap()[..3].copy_from_slice(b"new");
    txn.commit(Durability::Sync).unwrap();
    store.close().unwrap();
}

fn overwrite(file: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(file).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_all().unwrap();
}

fn inspect(arguments: &[&str], dir: &Path) -> Outcome {
    finish(pagekeeper().arg("store").args(arguments).arg(dir))
}

#[test]
fn figures_and_the_work_of_a_recovery_are_shown() {
    let (_held, dir) = store();
    let text = inspect(&["stat"], &dir).expect_success();
    assert!(text.starts_with(&format!("{}: a store of pages of 4 KiB\n", dir.display())), "{text}");
    assert!(text.contains("10 (40 KiB), 2 of them free"), "{text}");
    assert!(text.contains("Nothing is to be recovered"), "{text}");
    commit(&dir);
    let text = inspect(&["stat"], &dir).expect_success();
    assert!(
        text.contains("The journal has 1 commit that the data file has not; they change 1 page."),
        "{text}"
    );
    let report = inspect(&["stat", "--json"], &dir).json();
    for (name, expected) in [
        ("page_size", 4096),
        ("pages", 10),
        ("free_pages", 2),
        ("root", 3),
        ("metadata_bytes", 5),
        ("seq", 3),
        ("checkpoint_seq", 2),
        ("max_journal_bytes", 64 << 10),
    ] {
        assert_eq!(report[name], expected, "{name}: {report}");
    }
    assert_eq!((&report["recovery"]["commits"], &report["recovery"]["pages"]), (&json!(1), &json!(1)));
    assert!(report["journal_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{report}");
    assert_eq!(report["superblocks"].as_array().map(Vec::len), Some(2));
}

#[test]
fn inspection_leaves_a_store_as_it_was() {
    let (_held, dir) = store();
    commit(&dir);
    let before = everything(&dir);
    for arguments in [&["stat"][..], &["verify"], &["dump"], &["dump", "--page", "0"], &["verify", "--json"]]
    {
        inspect(arguments, &dir).expect_success();
        assert_eq!(everything(&dir), before, "{arguments:?}");
    }
    let report = inspect(&["stat", "--json"], &dir).json();
    assert_eq!(report["recovery"]["commits"], 1);
}

/// Returns names, bytes and times of everything in a directory.
fn everything(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
        if path.is_dir() {
            all.extend(everything(&path));
            all.insert(path, (Vec::new(), changed));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            all.insert(path, (bytes, changed));
        }
    }
    all
}

/// The command makes no call that could change a file, and opens no file for writing.
#[test]
fn inspection_makes_no_call_that_could_write() {
    let (_held, dir) = store();
    commit(&dir);
    if Command::new("strace").arg("-V").output().is_err() {
        return pagekeeper_testing::skip(
            "the calls of an inspection are seen by strace, which is not installed",
        );
    }
    let trace = dir.with_file_name("trace");
    for arguments in [&["stat"][..], &["verify"], &["dump"]] {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "trace=desc,file", "-o"]).arg(&trace);
        strace.arg(pagekeeper().get_program()).arg("store").args(arguments).arg(&dir);
        finish(&mut strace).expect_success();
        let calls = std::fs::read_to_string(&trace).unwrap();
        let of_the_store = calls.lines().filter(|call| call.contains(&*dir.to_string_lossy()));
        let mut opened = 0;
        for call in of_the_store.filter(|call| !call.contains("execve(")) {
            let reads =
                ["O_RDONLY", "O_PATH", "stat(", "fstatat(", "statx(", "statfs(", "access", "readlink"];
            assert!(reads.iter().any(|read| call.contains(read)), "{arguments:?}: {call}");
            let writes = ["O_RDWR", "O_WRONLY", "O_CREAT", "O_TRUNC", "O_TMPFILE"];
            assert!(!writes.iter().any(|write| call.contains(write)), "{arguments:?}: {call}");
            opened += u32::from(call.contains("O_RDONLY"));
        }
        assert!(opened > 5, "{calls}");
        let syncs = ["fsync(", "fdatasync(", "pwrite64(", "pwritev", "ftruncate(", "fallocate(", "rename"];
        for call in calls.lines() {
            assert!(!syncs.iter().any(|sync| call.contains(sync)), "{arguments:?}: {call}");
        }
    }
}

#[test]
fn many_inspections_do_not_fill_the_journal() {
    let (_held, dir) = store();
    commit(&dir);
    let of = |report: &Value| report["journal_bytes"].as_u64().unwrap();
    let first = of(&inspect(&["stat", "--json"], &dir).json());
    for _ in 0..40 {
        inspect(&["stat"], &dir).expect_success();
    }
    let last = of(&inspect(&["stat", "--json"], &dir).json());
    assert_eq!(last, first);
    assert_eq!(inspect(&["stat", "--json"], &dir).json()["seq"], 3);
    commit(&dir);
}

#[test]
fn a_sound_store_is_reported_as_sound() {
    let (_held, dir) = store();
    commit(&dir);
    let counts = "6 pages of data, 2 free, 2 never written, 2 of 2 superblocks whole";
    assert_eq!(inspect(&["verify"], &dir).expect_success(), format!("{}: sound: {counts}\n", dir.display()));
    let outcome = inspect(&["verify", "--json"], &dir);
    assert_eq!(
        outcome.json(),
        json!({
            "schema_version": 1,
            "path": dir, "sound": true, "data_pages": 6, "free_pages": 2, "never_written_pages": 2,
            "whole_superblocks": 2, "faults": 0, "named": [],
        })
    );
    outcome.expect_success();
}

#[test]
fn each_fault_is_named_and_ends_with_1() {
    let (_held, dir) = store();
    // Page 0 is whole in the journal, so its bytes in the data file do not count.
    commit(&dir);
    overwrite(&dir.join("data"), 100, b"rot");
    overwrite(&dir.join("data"), 4 * PAGE + 100, b"rot");
    let mut page = vec![0; 4096];
    File::open(dir.join("data")).unwrap().read_exact_at(&mut page, 3 * PAGE).unwrap();
    overwrite(&dir.join("data"), 7 * PAGE, &page);
    let outcome = inspect(&["verify"], &dir);
    let (code, text) = (outcome.code, outcome.stdout);
    assert_eq!((code, text.lines().count()), (1, 3), "{text}");
    assert!(text.contains("page 4 is damaged: its checksum does not hold"), "{text}");
    assert!(text.contains("page 7 is damaged: page 3 stands in its place"), "{text}");
    assert!(text.lines().last().unwrap().contains(": 2 faults: "), "{text}");
    let outcome = inspect(&["verify", "--json"], &dir);
    let report = outcome.json();
    assert_eq!((outcome.code, &report["sound"], &report["faults"]), (1, &json!(false), &json!(2)));

    let listed = inspect(&["dump"], &dir);
    assert_eq!(listed.code, 1);
    let damaged = listed.stdout.lines().filter(|line| line.contains("damaged")).collect::<Vec<_>>();
    assert_eq!(damaged.len(), 2, "{}", listed.stdout);
    assert!(
        damaged[0].contains("4  damaged") && damaged[0].ends_with("its checksum does not hold"),
        "{damaged:?}"
    );
    let shown = inspect(&["dump", "--page", "4"], &dir);
    assert_eq!(shown.code, 1);
    assert!(
        shown.stdout.contains("damaged: its checksum") && shown.stdout.contains("|....rot."),
        "{}",
        shown.stdout
    );
    // A damaged store's intact pages are shown, too.
    inspect(&["dump", "--pages", "..4"], &dir).expect_success();
}

#[test]
fn a_rotten_superblock_is_a_fault_while_the_other_is_whole() {
    for slot in 0..2 {
        let (_held, dir) = store();
        overwrite(&dir.join("superblock"), slot * SLOT_BYTES as u64 + 50, b"rot");
        for _ in 0..2 {
            let outcome = inspect(&["verify", "--json"], &dir);
            let report = outcome.json();
            assert_eq!(
                (&report["whole_superblocks"], &report["faults"], outcome.code),
                (&json!(1), &json!(1), 1)
            );
            let named = report["named"][0].as_str().unwrap();
            assert!(named.starts_with(&format!("superblock, slot {slot}: ")), "{report}");
            let text = inspect(&["stat"], &dir).expect_success();
            assert!(text.contains("1 of 2 whole"), "{text}");
        }
        // Opening it for writing heals it.
        commit(&dir);
        inspect(&["verify"], &dir).expect_success();
    }
}

#[test]
fn a_rotten_slot_of_the_journals_control_file_is_a_fault() {
    for slot in 0..2 {
        let (_held, dir) = store();
        overwrite(&dir.join("journal/control"), slot * SLOT_BYTES as u64 + 50, b"rot");
        let outcome = inspect(&["verify"], &dir);
        let said = format!("the journal's control file, slot {slot}: it is not whole\n");
        assert!(outcome.code == 1 && outcome.stdout.contains(&said), "{outcome:?}");
        commit(&dir);
        inspect(&["verify"], &dir).expect_success();
    }
}

/// The journal of a closed and synced store begins with padding.
#[test]
fn a_rotten_padding_of_the_journal_is_a_fault_and_loses_nothing() {
    let (_held, dir) = store();
    let superblock = std::fs::read(dir.join("superblock")).unwrap();
    let end = u64::from_le_bytes(superblock[40..48].try_into().unwrap());
    overwrite(&dir.join("journal/redo.000"), end + 5, b"rot");
    assert!(inspect(&["stat"], &dir).expect_success().contains("Nothing is to be recovered"));
    let outcome = inspect(&["verify"], &dir);
    let said =
        format!("redo.000: the padding at byte {end} is damaged: it holds nothing, and no commit is lost\n");
    assert!(outcome.code == 1 && outcome.stdout.contains(&said), "{outcome:?}");
}

#[test]
fn pages_are_listed() {
    let (_held, dir) = store();
    commit(&dir);
    let text = inspect(&["dump"], &dir).expect_success();
    for expected in [
        "10 pages of 4 KiB, as of commit 3",
        "root       page 3",
        "metadata   5 B: tree\\n",
        "free list  2 pages in 1 trunk, the first is page 5",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.contains("KIND"))
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let kinds: Vec<_> = rows.iter().map(|row| (row[0], row[1], row[2], row[4])).collect();
    assert_eq!(kinds[0], ("0", "data", "3", "journal"));
    assert_eq!(kinds[3], ("3", "data", "1", "file"));
    assert_eq!((kinds[5], kinds[6]), (("5", "trunk", "2", "file"), ("6", "free", "2", "file")));
    assert_eq!((kinds.len(), kinds[9]), (10, ("9", "never-written", "0", "file")));

    let report = inspect(&["dump", "--json"], &dir).json();
    assert_eq!(report["pages"].as_array().map(Vec::len), Some(10));
    assert_eq!(report["free_list"], json!({"pages": 2, "trunks": [{"page": 5, "names": 1}], "fault": null}));
    assert_eq!((&report["root"], &report["metadata"]), (&json!(3), &json!("747265650a")));
    assert_eq!(report["pages"][0]["source"], "journal");
}

#[test]
fn lists_have_the_requested_length() {
    let (_held, dir) = store();
    let text = inspect(&["dump", "--limit", "4"], &dir).expect_success();
    assert!(text.ends_with("6 pages more: see --limit and --pages\n"), "{text}");
    let report = inspect(&["dump", "--json", "--pages", "2..", "-n", "3"], &dir).json();
    let numbers: Vec<_> =
        report["pages"].as_array().unwrap().iter().map(|page| page["page"].clone()).collect();
    assert_eq!(numbers, [2, 3, 4]);
    let report = inspect(&["dump", "--json", "--pages", "8..100"], &dir).json();
    assert_eq!(report["pages"].as_array().map(Vec::len), Some(2));
    for arguments in [&["dump", "--pages", "10.."][..], &["dump", "--page", "10"]] {
        let outcome = inspect(arguments, &dir);
        assert_eq!(outcome.code, 1);
        assert_eq!(outcome.stderr, "pagekeeper: page 10 is out of range: the store has 10 pages\n");
    }
}

#[test]
fn one_page_is_shown_byte_by_byte() {
    let (_held, dir) = store();
    let text = inspect(&["dump", "--page", "3"], &dir).expect_success();
    assert!(text.starts_with("page 3: data\n  changed last by commit 1, CRC-32C "), "{text}");
    assert!(text.contains("00000000  68 65 6c 6c 6f 00 00 00  00"), "{text}");
    assert!(text.ends_with("*\n00000fe0\n"), "{text}");
    let report = inspect(&["dump", "--page", "3", "--json"], &dir).json();
    let payload = report["payload"].as_str().unwrap();
    assert!(payload.starts_with("68656c6c6f00") && payload.len() == 2 * (4096 - 32), "{report}");
    commit(&dir);
    let text = inspect(&["dump", "--page", "0"], &dir).expect_success();
    assert!(text.contains("from the journal") && text.contains("|new....."), "{text}");
}

#[test]
fn files_that_are_not_stores_are_reported_and_left_alone() {
    let _alone = support::alone();
    let scratch = support::scratch();
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let (empty, file, other) =
        (scratch.path().join("empty"), scratch.path().join("file"), scratch.path().join("other"));
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(&file, b"x").unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("superblock"), vec![7; 2 * SLOT_BYTES]).unwrap();
    std::fs::write(other.join("data"), vec![7; SLOT_BYTES]).unwrap();
    for command in ["stat", "verify", "dump"] {
        for (dir, reason) in [
            (scratch.path().join("missing"), "no store here"),
            (empty.clone(), "no store here"),
            (file.clone(), "Not a directory"),
            (other.clone(), "neither of its two slots can be used"),
        ] {
            let outcome = inspect(&[command], &dir);
            assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{command} {}", dir.display());
            assert!(outcome.stderr.contains(reason), "{command} {}: {}", dir.display(), outcome.stderr);
            assert!(outcome.stderr.contains(&dir.display().to_string()), "{}", outcome.stderr);
        }
    }
    assert_eq!((names(&empty).len(), scratch.path().join("missing").exists()), (0, false));
}

#[test]
fn a_newer_format_is_reported_and_left_alone() {
    let (_held, dir) = store();
    let path = dir.join("superblock");
    let mut bytes = std::fs::read(&path).unwrap();
    for slot in bytes.chunks_mut(SLOT_BYTES) {
        slot[8..10].copy_from_slice(&9_u16.to_le_bytes());
        let crc = crc32c::crc32c(&slot[..SLOT_BYTES - 4]);
        slot[SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    std::fs::write(&path, &bytes).unwrap();
    let outcome = inspect(&["stat"], &dir);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("written by a newer pagekeeper: version 9"), "{outcome:?}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_store_that_is_open_elsewhere_is_reported() {
    let (_held, dir) = store();
    let held = Store::options().create(Create::Never).open(&dir).unwrap();
    for command in ["stat", "verify", "dump"] {
        let outcome = inspect(&[command], &dir);
        assert_eq!(outcome.code, 1);
        let expected =
            format!("pagekeeper: {}: in use: another process has this store open\n", dir.display());
        assert_eq!(outcome.stderr, expected);
    }
    held.close().unwrap();
    inspect(&["stat"], &dir).expect_success();
}

#[test]
fn wrong_calls_end_with_2() {
    let _alone = support::alone();
    for (arguments, fix) in [
        (&["store"][..], "Usage: pagekeeper store"),
        (&["store", "stat"], "<DIR>"),
        (&["store", "verfy", "."], "similar subcommand exists: 'verify'"),
        (&["store", "dump", "--pages", "7", "."], "give A..B, A.. or ..B"),
        (&["store", "dump", "--pages", "7..3", "."], "its end is not after its start"),
        (&["store", "dump", "--limit", "few", "."], "give a number, or \"all\""),
        (&["store", "dump", "--page", "1", "--limit", "1", "."], "cannot be used with"),
        (&["store", "dump", "--page", "-1", "."], "unexpected argument '-1'"),
        (&["store", "restore", "backup"], "<DST>"),
        (&["store", "restore", "backup", "more", "dst"], "unexpected argument 'dst'"),
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, 64, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(fix), "{arguments:?}: {outcome:?}");
        assert!(outcome.stdout.is_empty(), "{arguments:?}: {outcome:?}");
    }
    for command in ["stat", "verify", "dump", "backup", "restore", "compact", "repair"] {
        let help = run(["store", command, "--help"]).expect_success();
        assert!(help.contains("Examples:") && help.contains("Usage: pagekeeper store "), "{help}");
    }
}

/// A backup, and a store restored from it, have the store's content; existing files are left alone.
///
#[test]
fn a_store_is_backed_up_and_restored() {
    let (_held, dir) = store();
    commit(&dir);
    let (copy, back) = (dir.with_file_name("copy"), dir.with_file_name("back"));
    let text = inspect(&["backup", dir.to_str().unwrap()], &copy).expect_success();
    let said =
        format!("{}: 10 pages of 4 KiB, as of commit 3, each checked: 40 KiB written in ", copy.display());
    assert!(text.starts_with(&said), "{text}");
    let report = inspect(&["restore", "--json", copy.to_str().unwrap()], &back).json();
    for (name, expected) in [("seq", 3), ("pages", 10), ("bytes", 40 << 10)] {
        assert_eq!(report[name], expected, "{name}: {report}");
    }
    let listed = |dir: &Path| {
        let mut report = inspect(&["dump", "--json"], dir).json();
        report["path"] = json!(null);
        // The copies have no journal to recover.
        report["pages"].as_array_mut().unwrap().iter_mut().for_each(|page| page["source"] = json!(null));
        report
    };
    for other in [&copy, &back] {
        assert_eq!(listed(other), listed(&dir));
        assert!(inspect(&["verify"], other).expect_success().contains(": sound: 6 pages of data"));
    }
    let before = std::fs::read(copy.join("data")).unwrap();
    for (command, from) in [("backup", &dir), ("restore", &back)] {
        let outcome = inspect(&[command, from.to_str().unwrap()], &copy);
        let said = "there already, and left as it is: give a name that nothing has";
        assert!(outcome.code == 1 && outcome.stderr.contains(said), "{outcome:?}");
    }
    assert_eq!(std::fs::read(copy.join("data")).unwrap(), before);
}

/// The process that has a store open makes a backup of it beside its commits, and reports requests
/// that it can't fulfil.
#[test]
fn an_open_store_is_backed_up_by_its_process() {
    let (_held, dir) = store();
    let at = |name: &str| dir.with_file_name(name);
    let held = Store::options().create(Create::Never).serve_backups(true).open(&dir).unwrap();
    let change = |value: u8| {
        let mut txn = held.begin_write().unwrap();
        txn.page_mut(PageNo::new(3)).unwrap()[0] = value;
        txn.commit(Durability::Sync).unwrap()
    };
    let seq = change(1);
    let report = inspect(&["backup", "--json", dir.to_str().unwrap()], &at("sunday")).json();
    assert_eq!((&report["seq"], &report["pages"]), (&json!(seq.get()), &json!(10)), "{report}");
    let seq = change(2);
    let text = inspect(&["backup", dir.to_str().unwrap()], &at("monday")).expect_success();
    assert!(text.contains(&format!("10 pages of 4 KiB, as of commit {seq}, each checked")), "{text}");
    for (name, said) in
        [("sunday", "sunday: there already, and left as it is"), ("no/copy", "made no backup: ")]
    {
        let outcome = inspect(&["backup", dir.to_str().unwrap()], &at(name));
        assert!(outcome.code == 1 && outcome.stderr.contains(said), "{outcome:?}");
    }
    held.close().unwrap();
    inspect(&["restore", at("monday").to_str().unwrap()], &at("back")).expect_success();
    let restored = Store::options().open(at("back")).unwrap();
    assert_eq!(restored.begin_read().unwrap().read(PageNo::new(3)).unwrap()[0], 2);
}

/// Serves backups in a child until its input ends; not a test of its own.
#[test]
fn child_that_serves_backups() {
    let Some(dir) = std::env::var_os(SERVED) else { return };
    let store = Store::options().create(Create::Never).serve_backups(true).open(Path::new(&dir)).unwrap();
    println!("serving");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    store.close().unwrap();
}

#[test]
fn a_backup_that_another_mount_namespace_got_is_no_backup() {
    if !support::can_run("backups from another mount namespace", &["unshare", "mount"]) {
        return;
    }
    let (_held, dir) = store();
    let at = |name: &str| dir.with_file_name(name);
    std::fs::create_dir(at("mount")).unwrap();
    let mut server = Command::new("unshare")
        .args(["--mount", "--", "sh", "-c", "mount -t tmpfs none \"$1\" && shift && exec \"$@\"", "sh"])
        .arg(at("mount"))
        .arg(std::env::current_exe().unwrap())
        .args(["store::child_that_serves_backups", "--exact", "--nocapture", "--test-threads=1"])
        .env(SERVED, &dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.ends_with("serving")));
    let outcome = inspect(&["backup", dir.to_str().unwrap()], &at("mount/copy"));
    let why = "nothing is there: it may see another directory under this name";
    assert!(outcome.code == 1 && outcome.stderr.contains(why), "{outcome:?}");
    assert!(outcome.stdout.is_empty() && !at("mount/copy").exists());
    let text = inspect(&["backup", dir.to_str().unwrap()], &at("shared")).expect_success();
    assert!(text.contains("10 pages of 4 KiB, as of commit 2, each checked: 32 KiB written"), "{text}");
    drop(server.stdin.take());
    said.for_each(drop);
    assert!(server.wait().unwrap().success());
    inspect(&["verify"], &at("shared")).expect_success();
}

#[test]
fn damaged_open_and_foreign_files_yield_no_store() {
    let (_held, dir) = store();
    let copy = dir.with_file_name("copy");
    let backup = |from: &Path| inspect(&["backup", from.to_str().unwrap()], &copy);
    let outcome = backup(&dir.with_file_name("missing"));
    assert!(outcome.code == 1 && outcome.stderr.contains("no store here"), "{outcome:?}");
    let held = Store::options().create(Create::Never).open(&dir).unwrap();
    let outcome = backup(&dir);
    let said =
        "in use: another process has this store open, and serves no backups: have it call Store::backup";
    assert!(outcome.code == 1 && outcome.stderr.contains(said), "{outcome:?}");
    held.close().unwrap();
    overwrite(&dir.join("data"), 4 * PAGE + 100, b"rot");
    let outcome = backup(&dir);
    assert!(outcome.code == 1 && outcome.stderr.contains("page 4 is damaged"), "{outcome:?}");
    assert!(!copy.exists() && outcome.stdout.is_empty());
}

fn repair(arguments: &[&str], from: &Path, to: &Path) -> Outcome {
    finish(pagekeeper().args(["store", "repair"]).args(arguments).arg(from).arg(to))
}

#[test]
fn a_repair_saves_the_readable_pages_of_a_damaged_store() {
    let (_held, dir) = store();
    commit(&dir);
    let at = |name: &str| dir.with_file_name(name);
    let text = repair(&[], &dir, &at("sound")).expect_success();
    let sum = "6 pages of data saved, 2 free, 2 never written, 0 lost, 0 doubtful; as of commit 3";
    assert_eq!(text, format!("{}: {sum}\n", at("sound").display()));

    overwrite(&dir.join("data"), 4 * PAGE + 100, b"rot");
    std::fs::remove_file(dir.join("superblock")).unwrap();
    let before = std::fs::read(dir.join("data")).unwrap();
    let outcome = repair(&["--json"], &dir, &at("saved"));
    let report = outcome.json();
    assert_eq!((outcome.code, &report["complete"], &report["seq"]), (1, &json!(false), &json!(3)));
    assert_eq!(report["lost"], json!([{"page": 4, "what": "its checksum does not hold"}]));
    assert_eq!(report["notes"], json!(["superblock: gone: made again from journal and pages"]));
    assert_eq!((std::fs::read(dir.join("data")).unwrap(), dir.join("superblock").exists()), (before, false));
    let text = inspect(&["dump"], &at("saved"));
    assert!(text.code == 1 && text.stdout.contains("root       page 3"), "{text:?}");
    assert!(text.stdout.contains("written data is lost"), "{text:?}");

    let outcome = repair(&[], &dir, &at("saved"));
    assert!(outcome.code == 1 && outcome.stderr.contains("there already"), "{outcome:?}");
    let held = Store::options().create(Create::Never).open(at("sound")).unwrap();
    let outcome = repair(&[], &at("sound"), &at("other"));
    assert!(outcome.code == 1 && outcome.stderr.contains("in use: another process"), "{outcome:?}");
    held.close().unwrap();
    assert!(!at("other").exists());
}

#[test]
fn a_compacted_store_is_smaller_and_keeps_its_content() {
    let (_held, dir) = store();
    let store = Store::options().create(Create::Never).open(&dir).unwrap();
    let mut txn = store.begin_write().unwrap();
    let pages: Vec<_> = (0..600).map(|_| txn.allocate().unwrap()).collect();
    let keep = pages[500];
    txn.page_mut(keep).unwrap()[..4].copy_from_slice(b"keep");
    let many = vec![7; store.payload_size()];
    txn.commit(Durability::Sync).unwrap();
    for pages in pages.chunks(5) {
        let mut txn = store.begin_write().unwrap();
        pages.iter().filter(|page| **page != keep).for_each(|page| txn.write(*page, &many).unwrap());
        txn.commit(Durability::None).unwrap();
    }
    let mut txn = store.begin_write().unwrap();
    pages.iter().filter(|page| **page != keep).for_each(|page| txn.free(*page).unwrap());
    txn.commit(Durability::Sync).unwrap();
    let outcome = inspect(&["compact"], &dir);
    assert!(outcome.code == 1 && outcome.stderr.contains("in use: another process"), "{outcome:?}");
    store.close_and_sync().unwrap();

    let room = || {
        let found = std::fs::metadata(dir.join("data")).unwrap();
        (found.len(), std::os::unix::fs::MetadataExt::blocks(&found) * 512)
    };
    let (before, left) = (room(), keep.get() + 1);
    let report = inspect(&["compact", "--json"], &dir).json();
    let after = room();
    assert_eq!((after.0, &report["pages"]), (left * PAGE, &json!(left)));
    assert_eq!(report["cut_bytes"], json!(before.0 - after.0));
    match report["given_back_bytes"].as_u64() {
        Some(bytes) => {
            assert!(bytes > 450 * PAGE, "{report}");
            assert!(after.1 + 450 * PAGE < before.1, "{before:?} {after:?}");
        }
        None => println!("SKIPPED: the file system makes no holes"),
    }
    let again = inspect(&["compact"], &dir).expect_success();
    let sum = format!("{left} pages of {left} left: 0 B cut off, 0 B of free pages given back");
    assert_eq!(again, format!("{}: {sum}\n", dir.display()));
    let report = inspect(&["compact", "--json", "--journal", "1M"], &dir).json();
    assert_eq!(report["max_journal_bytes"], json!(1 << 20));
    assert_eq!(inspect(&["compact", "--journal", "1K"], &dir).code, 64);
    inspect(&["verify"], &dir).expect_success();
    let store = Store::options().create(Create::Never).open(&dir).unwrap();
    assert_eq!(store.stats().max_journal_bytes, 1 << 20);
    let read = store.begin_read().unwrap();
    assert_eq!(
        (&read.read(keep).unwrap()[..4], &read.read(PageNo::new(3)).unwrap()[..5]),
        (&b"keep"[..], &b"hello"[..])
    );
}
