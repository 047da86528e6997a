//! Databases, used by SQLite's own shell, after kills: repeated kills without a close in between,
//! small pages, and files from another time than the log.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::shell::{Shell, library, open_with_default_vfs, open_with_our_vfs, said};
use crate::{LARGE, NOT_A_DATABASE, is_marked};
use pagekeeper_testing::{Seed, disk_dir};
use rustix::fs::{FlockOperation, flock};

const UNABLE: &str = "unable to open";
/// The reason for refusing a file and a log that do not belong together.
const ANOTHER: &str = "of another time";
const CHECK: &str = "PRAGMA integrity_check; SELECT count(*), coalesce(max(a), 0) FROM t WHERE a<1000000;";

/// Returns the number of rows that a check found, which must be 1, 2, 3 ... without gaps.
fn rows(found: &str) -> u64 {
    let (whole, counts) = found.split_once('\n').unwrap_or_else(|| panic!("{found}"));
    assert_eq!(whole, "ok");
    let (count, last) = counts.split_once('|').unwrap_or_else(|| panic!("{found}"));
    assert_eq!(count, last, "rows are missing");
    count.parse().unwrap()
}

/// Repeatedly kills a shell that commits. Returns how often the database was left marked.
fn kill(library: &Path, cycles: usize, settings: &str, is_closed_between: bool) -> u32 {
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    let mut expected = 0_u64;
    let mut marked = 0;
    let table = format!("{settings}\nCREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);");
    assert_eq!(said(&(open_with_our_vfs(library, &database) + &table)), "");
    for cycle in 0..cycles {
        let mode = ["delete", "truncate", "persist", "memory"][cycle % 4];
        let mut ours = Shell::open(&open_with_our_vfs(library, &database));
        assert_eq!(rows(&ours.ask(CHECK)), expected, "cycle {cycle}");
        assert_eq!(ours.ask(&format!("PRAGMA journal_mode={mode};\nPRAGMA cache_size=50;")), mode);
        // Rows 1, 2, 3 ..., each acknowledged; in between transactions without a lasting effect,
        // small and large.
        for row in expected + 1..=expected + 400 {
            let size = 10 + rng.of(0..3000);
            ours.send(&format!(
                "INSERT INTO t VALUES({row}, hex(randomblob({size})));\nSELECT 'row {row}';\n"
            ));
            match rng.of(0..40) {
                0 => ours.send(&format!("BEGIN;\n{LARGE}\nROLLBACK;\n")),
                1 => ours.send(&format!("BEGIN;\n{LARGE}\nDELETE FROM t WHERE a>{row};\nCOMMIT;\n")),
                2 => ours.send("VACUUM;\n"),
                3 => ours.send("UPDATE t SET b=hex(randomblob(50)) WHERE a%7=1;\n"),
                4..8 => ours.send(&format!(
                    "INSERT INTO t VALUES(1000000, hex(randomblob({size})));\nDELETE FROM t WHERE a=1000000;\n"
                )),
                _ => {}
            }
        }
        let mut acknowledged = expected;
        let until = rng.of(0..120);
        let mut note = |lines: Vec<String>| {
            for line in lines {
                acknowledged = line.strip_prefix("row ").unwrap_or_else(|| panic!("{line}")).parse().unwrap();
            }
            acknowledged
        };
        let start = Instant::now();
        while note(ours.printed()) < expected + until {
            assert!(start.elapsed() < Duration::from_secs(120), "cycle {cycle}: the shell prints no more");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(rng.of(0..30)));
        let acknowledged = note(ours.kill());

        let is_left_marked = is_marked(&database);
        marked += u32::from(is_left_marked);
        if is_closed_between {
            let plain = said(&format!("{}PRAGMA integrity_check;", open_with_default_vfs(&database)));
            let expected = if is_left_marked { NOT_A_DATABASE } else { "ok" };
            assert!(plain.contains(expected), "cycle {cycle}: {plain}");
        }
        let mut next = Shell::open(&open_with_our_vfs(library, &database));
        // A large transaction that is killed between its statements leaves nothing. The commit in
        // flight may exist.
        expected = rows(&next.ask(CHECK));
        assert!(
            expected == acknowledged || expected == acknowledged + 1,
            "cycle {cycle}: {acknowledged} rows were acknowledged, {expected} are there"
        );
        assert_eq!(next.ask("DELETE FROM t WHERE a>=1000000; SELECT count(*) FROM t WHERE b IS NULL;"), "0");
        if is_closed_between {
            next.quit();
            let plain = said(&format!("{}PRAGMA integrity_check;", open_with_default_vfs(&database)));
            assert_eq!(plain, "ok", "cycle {cycle}");
        } else {
            next.kill();
        }
    }
    marked
}

#[test]
fn acknowledged_commits_survive_kills() {
    let Some(library) = library() else { return };
    let marked = kill(&library, 24, "", true);
    assert!(marked > 10, "only {marked} kills came while the log had commits");
}

#[test]
fn pages_shorter_than_blocks_are_there_after_kills() {
    let Some(library) = library() else { return };
    for page in [512, 1024] {
        let settings = format!("PRAGMA page_size={page}; PRAGMA auto_vacuum=FULL;");
        let marked = kill(&library, 8, &settings, page == 512);
        assert!(marked > 3, "only {marked} kills came while the log had commits");
    }
}

#[test]
fn kills_without_a_close_between_lose_nothing() {
    let Some(library) = library() else { return };
    let marked = kill(&library, 16, "", false);
    assert!(marked > 10, "only {marked} kills came while the log had commits");
}

#[test]
fn kills_while_a_log_grows_lose_nothing() {
    let Some(library) = library() else { return };
    // Each database begins with the smallest log.
    for _ in 0..12 {
        kill(&library, 1, "", false);
    }
}

/// Commits only through the spill file, so that most kills hit the middle of a commit.
#[test]
fn large_commits_are_whole_after_kills_one_after_the_other() {
    let Some(library) = library() else { return };
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    let table = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, round INTEGER);
INSERT INTO t SELECT value, hex(randomblob(3000)), 0 FROM generate_series(1, 1000);";
    assert_eq!(said(&format!("{}{table}", open_with_our_vfs(&library, &database))), "");
    let mut expected = 0_u64;
    for cycle in 0..40 {
        let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
        let found = ours.ask("SELECT count(*), min(round), max(round) FROM t; PRAGMA integrity_check;");
        let is_round = |round: u64| found == format!("1000|{round}|{round}\nok");
        assert!(
            is_round(expected) || is_round(expected + 1),
            "cycle {cycle}: {expected} were acknowledged: {found}"
        );
        expected += u64::from(!is_round(expected));
        for round in expected + 1..expected + 9 {
            ours.send(&format!("UPDATE t SET b=hex(randomblob(3000)), round={round}; SELECT {round};\n"));
        }
        std::thread::sleep(Duration::from_millis(rng.of(0..200)));
        for line in ours.kill() {
            expected = line.parse().unwrap_or_else(|_| panic!("cycle {cycle}: {line}"));
        }
    }
    assert!(expected > 3, "only {expected} commits");
}

/// A database of small pages is truncated and extended between two checkpoints. After a kill, no
/// old bytes return.
#[test]
fn pages_that_were_cut_off_do_not_come_back() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    let table = "PRAGMA page_size=1024; PRAGMA auto_vacuum=FULL; CREATE TABLE t(a INTEGER PRIMARY KEY, b);";
    assert_eq!(ours.ask(table), "");
    let content = "SELECT count(*), group_concat(hex(b), '') FROM t;";
    for _ in 0..4 {
        assert_eq!(ours.ask("INSERT INTO t(b) SELECT randomblob(900) FROM generate_series(1, 5);"), "");
        assert_eq!(ours.ask("DELETE FROM t;"), "");
    }
    assert_eq!(ours.ask("INSERT INTO t(b) SELECT zeroblob(700) FROM generate_series(1, 4);"), "");
    let before = ours.ask(content);
    ours.kill();
    // As a power cut may leave it: arbitrary bytes, except for the mark.
    let mut bytes = fs::read(&database).unwrap();
    bytes[28..].fill(0xaa);
    fs::write(&database, &bytes).unwrap();
    let found = said(&format!("{}{content} PRAGMA integrity_check;", open_with_our_vfs(&library, &database)));
    assert_eq!(found, format!("{before}\nok"));
}

#[test]
fn many_unclean_ends_leave_it_writable() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    let table = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);";
    assert_eq!(said(&(open_with_our_vfs(&library, &database) + table)), "");
    // More than the log can distinguish without a checkpoint.
    for row in 1..=270 {
        let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
        assert_eq!(
            ours.ask(&format!("INSERT INTO t VALUES({row}, 'b'); SELECT max(a) FROM t;")),
            row.to_string()
        );
        ours.kill();
    }
    assert_eq!(rows(&said(&format!("{}{CHECK}", open_with_our_vfs(&library, &database)))), 270);
    assert_eq!(rows(&said(&format!("{}{CHECK}", open_with_default_vfs(&database)))), 270);
}

#[test]
fn a_commit_is_durable_where_sqlite_neither_syncs_nor_unlocks() {
    let Some(library) = library() else { return };
    for mode in ["memory", "off", "delete", "truncate", "persist"] {
        let dir = disk_dir();
        let database = dir.path().join("a.db");
        let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
        let settings = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=OFF; PRAGMA journal_mode=";
        assert_eq!(ours.ask(&format!("{settings}{mode};")), format!("exclusive\n{mode}"));
        assert_eq!(ours.ask("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);"), "");
        for row in 1..=20 {
            assert_eq!(ours.ask(&format!("INSERT INTO t VALUES({row}, 'b');")), "");
        }
        assert_eq!(ours.ask("BEGIN; INSERT INTO t VALUES(21, 'b');"), "");
        ours.kill();
        assert_eq!(rows(&said(&format!("{}{CHECK}", open_with_our_vfs(&library, &database)))), 20, "{mode}");
    }
}

fn copy_log(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// Checks that the database is refused without a change, with the reason in SQLite's log and in the
/// PRAGMA.
fn is_refused(library: &Path, database: &Path, why: &str) {
    let before = fs::read(database).unwrap();
    let open = open_with_our_vfs(library, database);
    let refused = said(&format!(".log stderr\n{open}SELECT count(*) FROM t;\nPRAGMA pagekeeper;"));
    let (_, in_pragma) = refused.split_once("last refusal: ").unwrap_or_else(|| panic!("{refused}"));
    assert!(refused.contains(UNABLE) && refused.matches(why).count() > 1, "{refused}");
    assert!(in_pragma.lines().next().unwrap().contains(why), "{refused}");
    assert!(fs::read(database).unwrap() == before, "it was changed");
}

#[test]
fn a_copy_of_another_time_than_the_log_is_refused() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    let (database, log) = (at("a.db"), at("a.db-pagekeeper"));
    let open = open_with_our_vfs(&library, &database);
    let count = format!("{open}SELECT count(*) FROM t;");
    let table = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t SELECT value, 'b' FROM generate_series(1, 100);";

    // A copy that was made while the file was marked, and put back after a checkpoint and a kill.
    let mut ours = Shell::open(&open);
    assert_eq!(ours.ask(table), "");
    fs::copy(&database, at("marked")).unwrap();
    assert_eq!(ours.ask("BEGIN;"), "");
    assert_eq!(ours.ask(LARGE), "");
    assert_eq!(ours.ask("COMMIT; DELETE FROM t WHERE a=1;"), "");
    ours.kill();
    fs::rename(&database, at("newer")).unwrap();
    fs::copy(at("marked"), &database).unwrap();
    is_refused(&library, &database, ANOTHER);
    fs::rename(at("newer"), &database).unwrap();
    assert_eq!(said(&count), "1099");

    // The same after a close, which has removed the log.
    fs::rename(&database, at("newer")).unwrap();
    fs::copy(at("marked"), &database).unwrap();
    is_refused(&library, &database, "it does not exist");
    fs::rename(at("newer"), &database).unwrap();

    // A database that was moved without its log, and put back after another was created in its
    // place.
    let mut ours = Shell::open(&open);
    assert_eq!(ours.ask("DELETE FROM t WHERE a=2;"), "");
    ours.kill();
    fs::rename(&database, at("moved")).unwrap();
    let mut ours = Shell::open(&open);
    assert_eq!(ours.ask(table), "");
    ours.kill();
    fs::rename(&database, at("other")).unwrap();
    fs::rename(at("moved"), &database).unwrap();
    is_refused(&library, &database, ANOTHER);
    fs::rename(at("other"), &database).unwrap();
    assert_eq!(said(&count), "100");

    // The log of another time.
    let mut ours = Shell::open(&open);
    assert_eq!(ours.ask("DELETE FROM t WHERE a=3;"), "");
    ours.kill();
    copy_log(&log, &at("log"));
    assert_eq!(said(&count), "99");
    let mut ours = Shell::open(&open);
    assert_eq!(ours.ask("DELETE FROM t WHERE a=4;"), "");
    ours.kill();
    fs::rename(&log, at("right")).unwrap();
    fs::rename(at("log"), &log).unwrap();
    is_refused(&library, &database, ANOTHER);
    fs::remove_dir_all(&log).unwrap();
    fs::rename(at("right"), &log).unwrap();
    assert_eq!(said(&count), "98");

    // A plain copy that is put back over a database is not changed by the existing log.
    let copy = fs::read(&database).unwrap();
    let mut ours = Shell::open(&open);
    assert_eq!(ours.ask("DELETE FROM t;"), "");
    ours.kill();
    fs::write(&database, copy).unwrap();
    assert_eq!(said(&count), "98");
}

#[test]
fn a_log_that_others_may_have_made_is_not_trusted() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let (database, log) = (dir.path().join("a.db"), dir.path().join("a.db-pagekeeper"));
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES(1, 'b');"), "");
    ours.kill();
    let mode = |mode: u32| fs::set_permissions(&log, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o770);
    is_refused(&library, &database, "others may write in it");
    mode(0o700);
    let own = dir.path().join("own");
    fs::rename(&log, &own).unwrap();
    symlink(&own, &log).unwrap();
    is_refused(&library, &database, "not a directory of this user's");
    fs::remove_file(&log).unwrap();
    fs::rename(&own, &log).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&log, Some(65534), None).unwrap();
        is_refused(&library, &database, "not a directory of this user's");
        chown(&log, Some(0), None).unwrap();
    }
    // The target of the spill file's name stays as it is.
    let precious = dir.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, log.join("spill")).unwrap();
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("SELECT count(*) FROM t;"), "1");
    assert!(ours.ask(LARGE).contains("disk I/O error"));
    assert_eq!(ours.ask("SELECT count(*) FROM t;"), "1");
    ours.quit();
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn a_log_that_another_has_open_is_locked_and_not_refused() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES(1, 'b');"), "");
    ours.kill();
    let (directory, copy) = (dir.path().join("a.db-pagekeeper"), dir.path().join("copy"));
    copy_log(&directory, &copy);
    let lock = fs::File::open(directory.join("log/lock")).unwrap();
    let check = format!("{}{CHECK}", open_with_our_vfs(&library, &database));
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(said(&check).contains("database is locked"));
    flock(&lock, FlockOperation::Unlock).unwrap();
    assert_eq!(rows(&said(&check)), 1);
    // The same for the first write to a plain file, whose log stayed for some reason.
    fs::rename(copy, &directory).unwrap();
    let lock = fs::File::open(directory.join("log/lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert!(ours.ask("INSERT INTO t VALUES(2, 'b');").contains("database is locked"));
    assert!(!is_marked(&database));
    flock(&lock, FlockOperation::Unlock).unwrap();
    assert_eq!(ours.ask("INSERT INTO t VALUES(2, 'b'); SELECT count(*) FROM t;"), "2");
}

#[test]
fn remains_of_an_unfinished_log_do_not_hinder() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let log = dir.path().join("a.db-pagekeeper");
    fs::create_dir_all(log.join("log")).unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(log.join("log/redo.000"), "part of it").unwrap();
    let found = said(&format!(
        "{}CREATE TABLE t(a); INSERT INTO t VALUES(7); SELECT a FROM t;",
        open_with_our_vfs(&library, &dir.path().join("a.db"))
    ));
    assert_eq!(found, "7");
}

/// The power is cut when an empty file has the length of its first mark, but nothing of the mark.
#[test]
fn an_empty_file_that_only_got_longer_is_an_empty_database() {
    let Some(library) = library() else { return };
    for len in [1, 28] {
        let dir = disk_dir();
        let database = dir.path().join("a.db");
        fs::write(&database, vec![0; len]).unwrap();
        // Without a log, the file is not ours.
        said(&format!("{}SELECT * FROM sqlite_master;", open_with_our_vfs(&library, &database)));
        assert_eq!(fs::read(&database).unwrap(), vec![0; len]);
        let beside = dir.path().join("a.db-pagekeeper");
        fs::create_dir_all(beside.join("log")).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o700)).unwrap();
        let table = "CREATE TABLE t(a); INSERT INTO t VALUES(7); SELECT a FROM t;";
        assert_eq!(said(&format!("{}{table}", open_with_our_vfs(&library, &database))), "7");
        // A longer file is not ours.
        fs::write(&database, vec![0; 4096]).unwrap();
        said(&format!("{}SELECT * FROM sqlite_master;", open_with_our_vfs(&library, &database)));
        assert_eq!(fs::read(&database).unwrap(), vec![0; 4096]);
    }
}
