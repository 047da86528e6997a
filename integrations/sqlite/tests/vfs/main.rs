//! Databases, used by SQLite's own shell: plain after the close, refused to others before, complete
//! after kills.

mod crashes;
mod fork;
mod refused;
mod shell;
mod threads;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use pagekeeper_testing::{Mounted, disk_dir};
use shell::{Shell, library, open_with_default_vfs, open_with_our_vfs, said};

/// A table of 100 rows.
const TABLE: &str = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
INSERT INTO t SELECT value, hex(randomblob(100)) FROM generate_series(1, 100);\n";
const NOT_A_DATABASE: &str = "file is not a database";
const LOCKED: &str = "database is locked";
/// A transaction that exceeds the part kept in memory: 6 MB.
const LARGE: &str = "INSERT INTO t(b) SELECT hex(randomblob(3000)) FROM generate_series(1, 1000);";

fn is_marked(database: &Path) -> bool {
    fs::read(database).unwrap().starts_with(b"pgkeeper")
}

#[test]
fn a_database_is_plain_after_the_close_and_refused_before() {
    let Some(library) = library() else { return };
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        let dir = disk_dir();
        let database = dir.path().join("a.db");
        let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
        assert_eq!(ours.ask(&format!("PRAGMA journal_mode={mode};")), mode);
        assert_eq!(ours.ask(TABLE), "");
        assert_eq!(ours.ask("UPDATE t SET b='new' WHERE a=7; SELECT b FROM t WHERE a=7;"), "new");
        assert_eq!(ours.ask("BEGIN; DELETE FROM t WHERE a>50; SELECT count(*) FROM t;"), "50");
        if mode == "off" {
            assert_eq!(ours.ask("COMMIT;"), "");
        } else {
            let rolled_back = ours.ask("ROLLBACK; SELECT count(*) FROM t; PRAGMA integrity_check;");
            assert_eq!(rolled_back, "100\nok", "{mode}");
        }
        assert!(is_marked(&database) && !dir.path().join("a.db-journal").exists());
        let others = said(&format!("{}SELECT count(*) FROM t;", open_with_default_vfs(&database)));
        assert!(others.contains(LOCKED), "{others}");
        let copy = dir.path().join("copy.db");
        fs::copy(&database, &copy).unwrap();
        let copied = said(&format!("{}SELECT count(*) FROM t;", open_with_default_vfs(&copy)));
        assert!(copied.contains(NOT_A_DATABASE), "{copied}");

        ours.quit();
        assert!(!is_marked(&database));
        let rows = if mode == "off" { "50" } else { "100" };
        let plain = said(&format!(
            "{}SELECT count(*), min(b) FROM t WHERE a<>7 OR b='new'; PRAGMA integrity_check;",
            open_with_default_vfs(&database)
        ));
        assert!(plain.starts_with(rows) && plain.ends_with("\nok"), "{mode}: {plain}");
    }
}

#[test]
fn other_processes_wait_and_come_in_after_a_release() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    assert_eq!(said(&(open_with_default_vfs(&database) + TABLE)), "");
    let count = "SELECT count(*) FROM t;";
    let (mut ours, mut second) = (
        Shell::open(&open_with_our_vfs(&library, &database)),
        Shell::open(&open_with_our_vfs(&library, &database)),
    );
    let mut plain = Shell::open(&open_with_default_vfs(&database));

    // Readers share; a writer waits for them, and they for the writer.
    assert_eq!(ours.ask(count), "100");
    assert_eq!(second.ask(count), "100");
    assert_eq!(plain.ask(&format!("BEGIN; {count}")), "100");
    assert!(ours.ask("DELETE FROM t WHERE a=1;").contains(LOCKED));
    assert_eq!(plain.ask("COMMIT;"), "");
    assert_eq!(ours.ask("DELETE FROM t WHERE a=1;"), "");
    for other in [&mut second, &mut plain] {
        assert!(other.ask(count).contains(LOCKED));
        assert!(other.ask("DELETE FROM t;").contains(LOCKED));
    }
    assert!(ours.ask("BEGIN IMMEDIATE; PRAGMA pagekeeper_release;").contains("a transaction is open"));
    assert!(ours.ask("COMMIT; PRAGMA pagekeeper_release;").starts_with("plain"));
    // Connections that had it open before see the new data.
    assert_eq!(plain.ask(count), "99");
    assert_eq!(second.ask("DELETE FROM t WHERE a=2;"), "");
    assert!(ours.ask(count).contains(LOCKED));
    second.quit();
    assert_eq!(ours.ask(count), "98");
    assert_eq!(plain.ask("DELETE FROM t WHERE a=3; SELECT changes();"), "1");
    assert_eq!(ours.ask(count), "97");
    ours.quit();
    assert_eq!(plain.ask("PRAGMA integrity_check;"), "ok");
}

#[test]
fn a_connection_from_before_a_kill_is_not_served_from_memory() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    assert_eq!(said(&(open_with_default_vfs(&database) + TABLE)), "");
    let mut plain = Shell::open(&open_with_default_vfs(&database));
    let count = "SELECT count(*) FROM t;";
    assert_eq!(plain.ask(count), "100");
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("DELETE FROM t WHERE a>10;"), "");
    ours.kill();
    assert!(is_marked(&database));
    assert!(plain.ask(count).contains(NOT_A_DATABASE));
    assert!(plain.ask("DELETE FROM t;").contains(NOT_A_DATABASE));
    assert_eq!(said(&format!("{}{count}", open_with_our_vfs(&library, &database))), "10");
    assert_eq!(plain.ask(&format!("{count} PRAGMA integrity_check;")), "10\nok");
}

#[test]
fn a_journal_that_sqlite_left_is_rolled_back_once() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    assert_eq!(said(&(open_with_default_vfs(&database) + TABLE)), "");
    for mode in ["delete", "truncate", "persist"] {
        let mut plain = Shell::open(&open_with_default_vfs(&database));
        // A small cache, which writes to the file before the commit.
        let statements =
            "PRAGMA cache_size=5; PRAGMA cache_spill=5; BEGIN; UPDATE t SET b=hex(randomblob(1500));";
        assert_eq!(plain.ask(&format!("PRAGMA journal_mode={mode};{statements}")), mode);
        plain.kill();
        let journal = dir.path().join("a.db-journal");
        assert!(fs::metadata(&journal).unwrap().len() > 512, "a hot journal");

        let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
        let sum = "SELECT count(*), max(length(b)) FROM t; PRAGMA integrity_check;";
        assert_eq!(ours.ask(sum), "100|200\nok", "{mode}");
        assert_eq!(ours.ask("UPDATE t SET b='kept' WHERE a=1; SELECT b FROM t WHERE a=1;"), "kept");
        ours.kill();
        // If the journal still existed, this would be undone.
        assert_eq!(
            said(&format!("{}SELECT b FROM t WHERE a=1; {sum}", open_with_our_vfs(&library, &database))),
            "kept\n100|200\nok"
        );
        let plain = said(&format!(
            "{}UPDATE t SET b=hex(zeroblob(100)) WHERE a=1; {sum}",
            open_with_default_vfs(&database)
        ));
        assert_eq!(plain, "100|200\nok");
    }
}

/// A neighbour with write permission to the directory creates an old journal there that looks hot,
/// and a file that looks like a WAL.
#[test]
fn files_that_appear_beside_the_database_are_not_mistaken_for_its_own() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    assert_eq!(said(&(open_with_default_vfs(&database) + TABLE)), "");
    let mut plain = Shell::open(&open_with_default_vfs(&database));
    let changed = "PRAGMA cache_size=5; PRAGMA cache_spill=5; BEGIN; UPDATE t SET b=hex(randomblob(1500));";
    assert_eq!(plain.ask(changed), "");
    plain.kill();
    let (journal, wal) = (dir.path().join("a.db-journal"), dir.path().join("a.db-wal"));
    let hot = fs::read(&journal).unwrap();
    assert!(hot.len() > 512, "a hot journal");

    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("UPDATE t SET b='kept' WHERE a=1;"), "");
    fs::write(&journal, &hot).unwrap();
    fs::write(&wal, [0x37; 8192]).unwrap();
    let sum = "SELECT b FROM t WHERE a=1; SELECT count(*), max(length(b)) FROM t; PRAGMA integrity_check;";
    assert_eq!(ours.ask(sum), "kept\n100|200\nok");
    assert_eq!(ours.ask(&format!("UPDATE t SET b='later' WHERE a=1; {sum}")), "later\n100|200\nok");
    fs::remove_file(wal).unwrap();
    ours.quit();
    // SQLite would undo committed data with that journal.
    assert!(!journal.exists());
    assert_eq!(said(&format!("{}{sum}", open_with_default_vfs(&database))), "later\n100|200\nok");
}

#[test]
fn impossible_arguments_are_refused() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let database = dir.path().join("a.db");
    let other = dir.path().join("b.db");
    let open = open_with_our_vfs(&library, &database);
    assert_eq!(said(&format!("{open}{TABLE}")), "");

    let wal = said(&format!("{open}PRAGMA journal_mode=WAL;"));
    assert!(wal.contains("WAL mode is refused"), "{wal}");
    let locks = said(&open.replace("?vfs", "?nolock=1&vfs"));
    assert!(locks.contains("unable to open"), "{locks}");
    // Two databases in one transaction: one may be written, both may not.
    let attach = format!(
        "{open}ATTACH 'file:{}?vfs=pagekeeper' AS b; CREATE TABLE IF NOT EXISTS b.u(a);",
        other.display()
    );
    let both = said(&format!("{attach}\nBEGIN;\nDELETE FROM t;\nINSERT INTO u VALUES(1);\nCOMMIT;\n"));
    assert!(both.contains("unable to open"), "{both}");
    assert_eq!(
        said(&format!("{attach} SELECT count(*) FROM t; SELECT count(*) FROM u;")).lines().last(),
        Some("0")
    );
    // A database of this VFS attached to one of SQLite's: refused because of the name that its
    // journal gets.
    let plain = dir.path().join("plain.db");
    let mixed = format!(
        ".load {}\n{}CREATE TABLE p(a);\nATTACH 'file:{}?vfs=pagekeeper' AS b;\nBEGIN;\nINSERT INTO p VALUES(1);\nINSERT INTO u VALUES(1);\nCOMMIT;\n",
        library.display(),
        open_with_default_vfs(&plain)
            .replace(&plain.display().to_string(), &format!("file:{}", plain.display())),
        other.display()
    );
    let mixed = said(&mixed);
    assert!(mixed.contains("unable to open"), "{mixed}");

    // A database in WAL mode.
    assert_eq!(said(&format!("{}PRAGMA journal_mode=WAL; {TABLE}", open_with_default_vfs(&plain))), "wal");
    let opened = said(&format!("{}SELECT count(*) FROM t;", open_with_our_vfs(&library, &plain)));
    assert!(opened.contains("unable to open"), "{opened}");

    // A file that is not a database.
    let text = dir.path().join("text");
    fs::write(&text, "no database, but longer than a header of one, so that it is looked at".repeat(20))
        .unwrap();
    let before = fs::read(&text).unwrap();
    assert!(
        said(&format!("{}CREATE TABLE t(a);", open_with_our_vfs(&library, &text))).contains(NOT_A_DATABASE)
    );
    assert_eq!(fs::read(&text).unwrap(), before);
}

#[test]
fn a_database_without_its_log_or_with_anothers_is_refused() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let (first, second) = (dir.path().join("a.db"), dir.path().join("b.db"));
    for database in [&first, &second] {
        let mut ours = Shell::open(&open_with_our_vfs(&library, database));
        assert_eq!(ours.ask(TABLE), "");
        ours.kill();
    }
    let count =
        |database: &Path| said(&format!("{}SELECT count(*) FROM t;", open_with_our_vfs(&library, database)));
    let log = |name: &str| dir.path().join(name);
    fs::rename(log("a.db-pagekeeper"), log("kept")).unwrap();
    assert!(count(&first).contains("unable to open"));
    fs::rename(log("b.db-pagekeeper"), log("a.db-pagekeeper")).unwrap();
    assert!(count(&first).contains("unable to open"));
    // Nothing was changed: with its own log it is complete.
    fs::rename(log("a.db-pagekeeper"), log("b.db-pagekeeper")).unwrap();
    fs::rename(log("kept"), log("a.db-pagekeeper")).unwrap();
    assert_eq!((count(&first), count(&second)), ("100".to_owned(), "100".to_owned()));
}

#[test]
fn a_full_disk_fails_the_commit_and_loses_nothing() {
    let Some(library) = library() else { return };
    let Some(disk) = Mounted::new("tmpfs") else { return };
    let database = disk.path().join("a.db");
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);"), "");
    let mut rows = 0;
    loop {
        let said = ours.ask("INSERT INTO t(b) VALUES(hex(randomblob(50000)));");
        if !said.is_empty() {
            assert!(said.contains("full"), "{said}");
            break;
        }
        rows += 1;
        assert!(rows < 2000, "the disk has 64 MiB");
    }
    assert!(rows > 50, "{rows}");
    // A large transaction needs a spill file, for which there is no space either.
    let large = ours.ask(LARGE);
    assert!(large.contains("full"), "{large}");
    let check = "SELECT count(*) FROM t; PRAGMA integrity_check;";
    assert_eq!(ours.ask(check), format!("{rows}\nok"));
    assert_eq!(ours.ask("UPDATE t SET a=a+1000 WHERE a=1; SELECT changes();"), "1");
    ours.kill();
    assert_eq!(said(&format!("{}{check}", open_with_our_vfs(&library, &database))), format!("{rows}\nok"));
    assert_eq!(said(&format!("{}{check}", open_with_default_vfs(&database))), format!("{rows}\nok"));
}

/// Returns the bytes that the files of a log take up; `None` without a log.
fn log_bytes(database: &Path) -> Option<u64> {
    let log = PathBuf::from(format!("{}-pagekeeper/log", database.display()));
    let files = fs::read_dir(log).ok()?.map(|file| file.unwrap().metadata().unwrap());
    Some(files.map(|file| file.blocks() * 512).sum())
}

#[test]
fn a_log_begins_small_grows_and_goes() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let (database, directory) = (dir.path().join("a.db"), dir.path().join("a.db-pagekeeper"));
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);"), "");
    let first = log_bytes(&database).unwrap();
    assert!(first <= (1 << 20) + (64 << 10), "{first} bytes");
    // A transaction of 1 MB, and many small ones.
    assert_eq!(ours.ask("INSERT INTO t(b) SELECT hex(randomblob(3000)) FROM generate_series(1, 160);"), "");
    let second = log_bytes(&database).unwrap();
    assert!(second > 4 * first, "{second} bytes");
    for _ in 0..15 {
        let insert = "INSERT INTO t(b) SELECT hex(randomblob(3000)) FROM generate_series(1, 100);\n";
        assert_eq!(ours.ask(&insert.repeat(2)), "");
    }
    let third = log_bytes(&database).unwrap();
    assert!(third > 2 * second && third <= 33 << 20, "{third} bytes");
    ours.kill();
    let count = "SELECT count(*) FROM t; PRAGMA integrity_check;";
    assert_eq!(said(&format!("{}{count}", open_with_our_vfs(&library, &database))), "3160\nok");
    assert!(!directory.exists());
    // A crash left a part of a log that was being removed, and none in its place.
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask("DELETE FROM t WHERE a=1; PRAGMA pagekeeper_release;"), "plain: no commits in a log");
    assert!(!directory.exists());
    fs::create_dir_all(directory.join("old")).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(directory.join("old/redo.000"), "part of it").unwrap();
    assert_eq!(ours.ask("DELETE FROM t WHERE a=2;"), "");
    assert!(log_bytes(&database) == Some(first) && !directory.join("old").exists());
    ours.quit();
    assert!(!directory.exists());
    assert_eq!(said(&format!("{}{count}", open_with_default_vfs(&database))), "3158\nok");
}

/// The first process moves on while another has a database of the same name.
#[test]
fn a_close_of_a_moved_database_leaves_the_next_one_its_log() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    let mut first = Shell::open(&open_with_our_vfs(&library, &at("a.db")));
    // With a journal in a file, SQLite refuses writes to a moved database.
    assert_eq!(first.ask(&format!("PRAGMA journal_mode=MEMORY; {TABLE}")), "memory");
    for name in ["a.db", "a.db-pagekeeper"] {
        fs::rename(at(name), at(&name.replacen('a', "b", 1))).unwrap();
    }
    let mut second = Shell::open(&open_with_our_vfs(&library, &at("a.db")));
    assert_eq!(second.ask(TABLE), "");
    // Both have a spill file at the same time.
    assert_eq!(second.ask(&format!("BEGIN; {}", LARGE.replace("random", "zero"))), "");
    assert_eq!(first.ask(LARGE), "");
    // This transaction needs a larger log, whose path is the second database's now.
    let medium = "INSERT INTO t(b) SELECT hex(randomblob(3000)) FROM generate_series(1, 160);";
    assert_eq!(first.ask(medium), "");
    assert_eq!(second.ask("COMMIT;"), "");
    first.quit();
    assert!(!is_marked(&at("b.db")) && is_marked(&at("a.db")));
    // The process knows only the directory's old name: the empty directory stays.
    assert_eq!(fs::read_dir(at("b.db-pagekeeper")).unwrap().count(), 0);
    assert_eq!(second.ask("DELETE FROM t WHERE a=1;"), "");
    second.kill();
    let check = "SELECT count(*), sum(b = hex(zeroblob(3000))) FROM t; PRAGMA integrity_check;";
    assert_eq!(said(&format!("{}{check}", open_with_our_vfs(&library, &at("a.db")))), "1099|1000\nok");
    assert_eq!(said(&format!("{}{check}", open_with_default_vfs(&at("b.db")))), "1260|0\nok");

    // An empty directory that is not the one the process created stays.
    let mut ours = Shell::open(&open_with_our_vfs(&library, &at("c.db")));
    assert_eq!(ours.ask(TABLE), "");
    fs::rename(at("c.db-pagekeeper"), at("moved")).unwrap();
    fs::create_dir(at("c.db-pagekeeper")).unwrap();
    ours.quit();
    assert!(at("c.db-pagekeeper").exists() && fs::read_dir(at("moved")).unwrap().count() == 0);
}

#[test]
fn a_log_that_cannot_be_removed_is_not_replaced_at_each_commit() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let (database, log) = (dir.path().join("a.db"), dir.path().join("log.txt"));
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask(&format!(".log '{}'\n{TABLE}", log.display())), "");
    fs::create_dir_all(dir.path().join("a.db-pagekeeper/old/not-a-file")).unwrap();
    let medium = "INSERT INTO t(b) SELECT hex(randomblob(3000)) FROM generate_series(1, 160);\n";
    assert_eq!(ours.ask(&medium.repeat(5)), "");
    assert_eq!(fs::read_to_string(&log).unwrap().matches("stays").count(), 1);
    ours.quit();
    let check = "SELECT count(*) FROM t; PRAGMA integrity_check;";
    assert_eq!(said(&format!("{}{check}", open_with_default_vfs(&database))), "900\nok");
}

/// Databases that one statement makes, and that are attached by a plain name.
#[test]
fn copies_and_attached_databases_keep_no_log() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let place = dir.path().display();
    let mut ours = Shell::open(&open_with_our_vfs(&library, &dir.path().join("a.db")));
    assert_eq!(ours.ask(&format!("{TABLE}VACUUM INTO '{place}/copy.db';")), "");
    let attach = format!("ATTACH '{place}/b.db' AS b; CREATE TABLE b.u(a); DETACH b;");
    assert_eq!(ours.ask(&attach), "");
    ours.quit();
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.db", "b.db", "copy.db"]);
    let count = format!("{}SELECT count(*) FROM t;", open_with_default_vfs(&dir.path().join("copy.db")));
    assert_eq!(said(&count), "100");
}

/// Fills a file system but for some bytes.
fn fill_but(dir: &Path, bytes: u64) {
    let free = rustix::fs::statvfs(dir).unwrap();
    let len = free.f_bavail * free.f_frsize - bytes;
    fs::write(dir.join("rest"), vec![1; usize::try_from(len).unwrap()]).unwrap();
}

#[test]
fn a_disk_without_room_for_the_log_leaves_a_plain_database() {
    let Some(library) = library() else { return };
    let Some(disk) = Mounted::new("tmpfs") else { return };
    let database = disk.path().join("a.db");
    assert_eq!(said(&(open_with_default_vfs(&database) + TABLE)), "");
    fill_but(disk.path(), 512 << 10);
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    let refused = ours.ask("DELETE FROM t;");
    assert!(refused.contains("full"), "{refused}");
    assert!(!is_marked(&database));
    assert_eq!(said(&format!("{}SELECT count(*) FROM t;", open_with_default_vfs(&database))), "100");
    fs::remove_file(disk.path().join("rest")).unwrap();
    assert_eq!(ours.ask("DELETE FROM t WHERE a=1; SELECT count(*) FROM t;"), "99");
}

#[test]
fn a_disk_with_room_for_a_small_log_alone_has_it() {
    let Some(library) = library() else { return };
    let Some(disk) = Mounted::new("tmpfs") else { return };
    let database = disk.path().join("a.db");
    fill_but(disk.path(), 4 << 20);
    let mut ours = Shell::open(&open_with_our_vfs(&library, &database));
    assert_eq!(ours.ask(TABLE), "");
    for _ in 0..20 {
        assert_eq!(ours.ask("UPDATE t SET b=hex(randomblob(500));\n".repeat(2).as_str()), "");
    }
    // Its record is too long for the small log: it goes through the spill file.
    let insert = "INSERT INTO t(b) SELECT hex(randomblob(3000)) FROM generate_series(1, 160);";
    assert_eq!(ours.ask(insert), "");
    assert!(log_bytes(&database).is_some_and(|bytes| bytes < 2 << 20));
    let check = "SELECT count(*) FROM t; PRAGMA integrity_check;";
    assert_eq!(ours.ask(check), "260\nok");
    ours.kill();
    assert_eq!(said(&format!("{}{check}", open_with_our_vfs(&library, &database))), "260\nok");
}

#[test]
fn a_size_of_a_mapping_is_answered() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let open = open_with_our_vfs(&library, &dir.path().join("a.db"));
    assert_eq!(said(&format!("{open}{TABLE}PRAGMA mmap_size=1000000; PRAGMA mmap_size;")), "0\n0");
}

#[test]
fn loading_the_vfs_again_keeps_the_default() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let library = library.display();
    let asked = format!("{}PRAGMA pagekeeper;", open_with_default_vfs(&dir.path().join("a.db")));
    assert_eq!(said(&format!(".load {library}\n{asked}")), "");
    let plain = "plain: no commits in a log";
    let default = format!(".load {library} sqlite3_pagekeeper_default_init\n");
    assert_eq!(said(&format!("{default}{asked}")), plain);
    assert_eq!(said(&format!("{default}.load {library}\n{asked}")), plain);
    assert_eq!(said(&format!(".load {library}\n{default}{asked}")), plain);
}
