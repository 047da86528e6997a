//! A C program with an open database and children: forked ones, their own children, and executed
//! programs; also while other threads read and write. The children make arbitrary calls, and change
//! nothing of their parent's.

use std::fs;
use std::process::Command;

use pagekeeper_testing::disk_dir;

use crate::shell::{built, library, open_with_our_vfs, said};

/// Arguments: library, database, number of other threads. Prints every failure, or how many rows
/// these threads have committed, and kills itself.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(sqlite3 *db, const char *sql) { return sqlite3_exec(db, sql, 0, 0, 0); }
static void must(int holds, const char *what) {
    if (!holds) { printf("wrong: %s\n", what); fflush(stdout); exit(1); }
}

static sqlite3 *theirs[2];
static volatile int committed[2];

/* SQLite's own locks that a child would wait for are in opening and closing: these stay open. */
static void *work(void *number) {
    int nth = (int)(long)number;
    for (;;) {
        must(!run(theirs[nth], "INSERT INTO u DEFAULT VALUES"), "a thread writes");
        committed[nth]++;
        must(!run(theirs[nth], "SELECT count(*) FROM t, u"), "a thread reads");
    }
}

int main(int count, char **arguments) {
    sqlite3 *loader, *db, *other;
    int threads = atoi(arguments[3]);
    pthread_t thread;
    (void)count;
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    must(!sqlite3_open(":memory:", &loader), "open loader");
    sqlite3_enable_load_extension(loader, 1);
    must(!sqlite3_load_extension(loader, arguments[1], 0, 0), "load");
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    must(!sqlite3_open_v2(arguments[2], &db, flags, "pagekeeper"), "open");
    sqlite3_busy_timeout(db, 100000);
    must(!run(db, "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES(1, 'b')"), "write");
    must(!run(db, "CREATE TABLE u(a INTEGER PRIMARY KEY)"), "write");
    for (int nth = 0; nth < threads; nth++) {
        must(!sqlite3_open_v2(arguments[2], &theirs[nth], flags | SQLITE_OPEN_NOMUTEX, "pagekeeper"), "open");
        sqlite3_busy_timeout(theirs[nth], 100000);
    }
    for (long nth = 0; nth < threads; nth++) must(!pthread_create(&thread, 0, work, (void *)nth), "thread");
    for (int round = 0; round < 9; round++) {
        /* Four ways, each by a child and by a child of a child. */
        int way = round < 8 ? round % 4 : 9;
        if (way == 3) must(!run(db, "BEGIN; INSERT INTO t VALUES(100, 'b')"), "begin");
        pid_t child = way == 9 ? vfork() : fork();
        if (child == 0) {
            if (way == 9) {
                execl("/bin/true", "true", (char *)0);
                _exit(1);
            }
            alarm(60);
            if (round >= 4 && (child = fork()) != 0) {
                int status = 1;
                waitpid(child, &status, 0);
                _exit(status != 0);
            }
            if (way == 0) {
                int opened = sqlite3_open_v2(arguments[2], &other, flags, "pagekeeper");
                must(opened, "the child opens by itself");
                must(strstr(sqlite3_errmsg(other), "was forked from") != 0, sqlite3_errmsg(other));
                sqlite3_close(other);
            } else if (way == 1) {
                must(run(db, "SELECT count(*) FROM t"), "the child reads");
                must(run(db, "INSERT INTO t VALUES(50, 'b')"), "the child writes");
                must(run(db, "PRAGMA pagekeeper_release"), "the child releases");
                char copy[5000];
                snprintf(copy, sizeof copy, "VACUUM INTO '%s-copy-%d'", arguments[2], round);
                must(run(db, copy), "the child copies");
            }
            /* Closes the inherited connection, in the last way in the middle of a transaction. */
            sqlite3_close(db);
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        must(status == 0, "a child's end");
        if (way == 3) must(!run(db, "INSERT INTO t VALUES(101, 'b'); ROLLBACK"), "roll back");
        char insert[64];
        snprintf(insert, sizeof insert, "INSERT INTO t VALUES(%d, 'b')", round + 2);
        must(!run(db, insert), "commit after a child");
    }
    printf("%d", committed[0] + committed[1]);
    fflush(stdout);
    kill(getpid(), SIGKILL);
}
"#;

#[test]
fn a_child_changes_nothing_of_its_parents() {
    let Some(library) = library() else { return };
    let dir = disk_dir();
    let Some(program) = built(dir.path(), PROGRAM) else { return };
    for threads in ["0", "2"] {
        let database = dir.path().join(format!("{threads}.db"));
        let output = Command::new(&program).args([&library, &database]).arg(threads).output().unwrap();
        let committed = String::from_utf8_lossy(&output.stdout).into_owned();
        let committed: u64 = committed.parse().unwrap_or_else(|_| panic!("{committed} {output:?}"));
        assert_eq!(committed > 0, threads != "0");
        assert!(fs::read(&database).unwrap().starts_with(b"pgkeeper"), "the parent was killed with it open");
        let found = said(&format!(
            "{}SELECT group_concat(a) FROM t; SELECT count(*) >= {committed} FROM u; PRAGMA integrity_check;",
            open_with_our_vfs(&library, &database)
        ));
        assert_eq!(found, "1,2,3,4,5,6,7,8,9,10\n1\nok");
    }
}
