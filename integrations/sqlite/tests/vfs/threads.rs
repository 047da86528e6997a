//! Many connections in one process, by a C program. Threads open, write and close independently:
//! they lose no commit, and the last one leaves a plain file.

use std::process::Command;

use pagekeeper_testing::disk_dir;

use crate::is_marked;
use crate::shell::{built, library, open_with_default_vfs, said};

/// Arguments: library, database. Prints every failure.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

static const char *name;

static void must(int code, const char *what, sqlite3 *db) {
    if (code) { printf("%s: %d %s\n", what, code, db ? sqlite3_errmsg(db) : ""); fflush(stdout); exit(1); }
}

static sqlite3 *opened(void) {
    sqlite3 *db;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    must(sqlite3_open_v2(name, &db, flags, "pagekeeper"), "open", 0);
    sqlite3_busy_timeout(db, 100000);
    return db;
}

static void *write_some(void *unused) {
    for (int round = 0; round < 20; round++) {
        sqlite3 *db = opened();
        for (int at = 0; at < 5; at++) {
            must(sqlite3_exec(db, "BEGIN IMMEDIATE; UPDATE t SET a=a+1; INSERT INTO u VALUES(hex(randomblob(2000))); COMMIT", 0, 0, 0), "write", db);
            must(sqlite3_exec(db, "SELECT count(*) FROM u", 0, 0, 0), "read", db);
        }
        must(sqlite3_close(db), "close", db);
    }
    return unused;
}

int main(int count, char **arguments) {
    sqlite3 *loader, *db;
    pthread_t threads[4];
    (void)count;
    name = arguments[2];
    must(sqlite3_open(":memory:", &loader), "open loader", 0);
    sqlite3_enable_load_extension(loader, 1);
    must(sqlite3_load_extension(loader, arguments[1], 0, 0), "load", loader);
    db = opened();
    must(sqlite3_exec(db, "CREATE TABLE t(a); INSERT INTO t VALUES(0); CREATE TABLE u(b)", 0, 0, 0), "create", db);
    must(sqlite3_close(db), "close", db);
    for (int at = 0; at < 4; at++) must(pthread_create(&threads[at], 0, write_some, 0), "thread", 0);
    for (int at = 0; at < 4; at++) pthread_join(threads[at], 0);
    return 0;
}
"#;

#[test]
fn threads_that_come_and_go_lose_no_commit() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let Some(program) = built(dir.path(), PROGRAM) else { return };
    let database = dir.path().join("a.db");
    let output = Command::new(program).args([&library, &database]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert!(output.status.success() && !is_marked(&database));
    let found = said(&format!(
        "{}SELECT a FROM t; SELECT count(*) FROM u; PRAGMA integrity_check;",
        open_with_default_vfs(&database)
    ));
    assert_eq!(found, "400\n400\nok");
}
