//! Openings that are refused say why in the message that a driver shows, not in SQLite's error log
//! alone.

use std::fs;
use std::process::Command;

use pagekeeper_testing::disk_dir;

use crate::TABLE;
use crate::shell::{built, library, open_with_default_vfs, open_with_our_vfs, said};

#[test]
fn a_name_that_asks_for_the_vfs_and_is_no_uri_is_refused() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let load = format!(".load {}\n", library.display());
    for name in ["a.db?vfs=pagekeeper", "a.db?mode=rwc&vfs=pagekeeper"] {
        let opened = said(&(load.clone() + &open_with_default_vfs(&dir.path().join(name)) + TABLE));
        assert!(opened.contains("taken for a file's name, not for a URI"), "{opened}");
    }
    for name in ["what?.db", "what?vfs=other", "vfs=pagekeeper"] {
        let opened = said(&(load.clone() + &open_with_default_vfs(&dir.path().join(name)) + TABLE));
        assert_eq!(opened, "", "{name}");
    }
}

#[test]
fn failed_openings_give_the_reason() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let (database, link) = (dir.path().join("a.db"), dir.path().join("b.db"));
    let open = open_with_our_vfs(&library, &database);
    assert_eq!(said(&(open.clone() + TABLE)), "");
    fs::hard_link(&database, &link).unwrap();
    let second = said(&format!("{open}.connection 1\n{}", open_with_our_vfs(&library, &link)));
    assert!(second.contains("open under another name, or replaced while it is open"), "{second}");
    let locks = said(&open.replace("?vfs", "?nolock=1&vfs"));
    assert!(locks.contains("nolock and immutable are refused"), "{locks}");
    fs::remove_file(link).unwrap();
    assert_eq!(said(&format!("{}PRAGMA journal_mode=WAL;", open_with_default_vfs(&database))), "wal");
    let wal = said(&open);
    assert!(wal.contains("WAL mode is refused: set journal_mode=DELETE"), "{wal}");
    assert_eq!(said(&format!("{}PRAGMA journal_mode=DELETE;", open_with_default_vfs(&database))), "delete");
    assert_eq!(said(&format!("{open}SELECT count(*) FROM t;")), "100");
}

/// Arguments: library, database in WAL mode. Prints what doesn't go as it should.
const PROGRAM: &str = r#"
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static int fails(sqlite3 *db, const char *sql, int code, const char *words) {
    int found = sqlite3_exec(db, sql, 0, 0, 0);
    if (found == code && strstr(sqlite3_errmsg(db), words)) return 0;
    printf("%s: %d %s\n", sql, found, sqlite3_errmsg(db));
    return 1;
}

int main(int count, char **arguments) {
    sqlite3 *loader, *db;
    (void)count;
    sqlite3_open(":memory:", &loader);
    sqlite3_enable_load_extension(loader, 1);
    if (sqlite3_load_extension(loader, arguments[1], 0, 0)) return 1;
    sqlite3_reset_auto_extension();
    if (sqlite3_open_v2(arguments[2], &db, SQLITE_OPEN_READWRITE, "pagekeeper")) return 2;
    int wrong = fails(db, "SELECT * FROM t", SQLITE_CANTOPEN, "unable to open")
        + fails(db, "INSERT INTO t VALUES(1, 'b')", SQLITE_CANTOPEN, "unable to open")
        + fails(db, "PRAGMA pagekeeper", SQLITE_CANTOPEN, "WAL mode is refused");
    return wrong + (sqlite3_close(db) != SQLITE_OK);
}
"#;

/// Some programs keep their connections to functions of their own (`sqlite3_reset_auto_extension`).
#[test]
fn without_a_check_of_connections_the_first_use_fails() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let Some(program) = built(dir.path(), PROGRAM) else { return };
    let database = dir.path().join("a.db");
    assert_eq!(said(&format!("{}PRAGMA journal_mode=WAL; {TABLE}", open_with_default_vfs(&database))), "wal");
    let before = fs::read(&database).unwrap();
    let output = Command::new(program).args([&library, &database]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(&database).unwrap() == before, "it was changed");
}
