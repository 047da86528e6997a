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

/// A refusal: statements that are refused after the database was opened, and words of the reason.
const REFUSED_LATER: [(&str, &str); 4] = [
    (
        "ATTACH 'file:PLACE/b.db?vfs=pagekeeper' AS b; CREATE TABLE b.u(a);
      BEGIN; DELETE FROM t; INSERT INTO u VALUES(1); COMMIT;",
        "a transaction over several databases is refused",
    ),
    (
        ".shell rm -rf PLACE/a.db-pagekeeper && mkdir PLACE/a.db-pagekeeper && chmod 777 PLACE/a.db-pagekeeper
      DELETE FROM t;",
        "others may write in it",
    ),
    (
        ".shell rm -rf PLACE/a.db-pagekeeper && ln -s / PLACE/a.db-pagekeeper
      DELETE FROM t;",
        "not a directory of this user's",
    ),
    (
        // With a journal in a file, SQLite refuses it.
        "PRAGMA journal_mode=MEMORY; DELETE FROM t WHERE a=1; PRAGMA pagekeeper_release;\n\
         .shell mv PLACE/a.db PLACE/b.db\nDELETE FROM t;",
        "moved while it was open: open it by its new name",
    ),
];

/// A refusal: a file that is refused when it is opened, the commands that make it, and words of the
/// reason.
const REFUSED_AT_ONCE: [(&str, &str, &str); 5] = [
    (
        "wal.db?vfs=pagekeeper",
        "sqlite3 wal.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(a)'",
        "WAL mode is refused",
    ),
    ("a.db?nolock=1&vfs=pagekeeper", "true", "nolock and immutable are refused"),
    ("a.db?immutable=1&vfs=pagekeeper", "true", "nolock and immutable are refused"),
    ("link.db?vfs=pagekeeper", "ln a.db link.db", "open under another name"),
    (
        "k.db?vfs=pagekeeper",
        r#"(echo ".load $LIBRARY"; echo ".open file:k.db?vfs=pagekeeper"; echo "CREATE TABLE t(a);"
            echo '.shell kill -9 $PPID') | sqlite3; rm -r k.db-pagekeeper"#,
        "which can't be used: it does not exist",
    ),
];

#[test]
fn each_refusal_has_its_reason_in_the_log_and_in_the_pragma() {
    let Some(library) = library() else { return };
    for (statements, why) in REFUSED_LATER {
        let dir = disk_dir();
        let open = open_with_our_vfs(&library, &dir.path().join("a.db"));
        let load = open.lines().next().unwrap();
        assert_eq!(said(&format!("{open}{TABLE}")), "");
        let statements = statements.replace("PLACE", &dir.path().display().to_string());
        let answer = said(&format!("{load}\n.log stdout\n{open}{statements}\nPRAGMA pagekeeper;\n"));
        let reasons = answer.lines().filter(|line| line.contains(why));
        let (in_log, in_pragma): (Vec<_>, Vec<_>) = reasons.partition(|line| line.contains(") pagekeeper: "));
        assert!(!in_log.is_empty(), "{answer}");
        assert!(in_pragma.iter().any(|line| line.contains("; last refusal: ")), "{answer}");
    }
    for (name, commands, why) in REFUSED_AT_ONCE {
        let dir = disk_dir();
        let open = open_with_our_vfs(&library, &dir.path().join("a.db"));
        let first = said(&format!("{open}{TABLE}"));
        assert_eq!(first, "");
        assert!(
            Command::new("sh")
                .args(["-c", commands])
                .env("LIBRARY", &library)
                .current_dir(dir.path())
                .output()
                .unwrap()
                .status
                .success()
        );
        let url = format!(".open 'file:{}/{name}'\n", dir.path().display());
        let answer =
            said(&format!("{open}.log stdout\n.connection 1\n{url}SELECT * FROM t;\nPRAGMA pagekeeper;\n"));
        assert!(answer.lines().filter(|line| line.contains(why)).count() >= 2, "{answer}");
        assert!(answer.lines().any(|line| line.contains(why) && line.contains(") pagekeeper: ")), "{answer}");
    }
}
