//! The guard beside a database of very many directories, which takes it several ticks to take up:
//! meanwhile it serves others, and ends on request.
//!
//! The databases are programs that only hold files open, under a database's name. Needs root,
//! `fincore`, `setpriv` and `bash`; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`. Progress is counted in directories and ticks: no time is asserted.

use crate::support;
use crate::support::fake::Database;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::logs::Logs;
use crate::support::{MIB, eventually, resident_bytes};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

const REQUIRED_PROGRAMS: [&str; 3] = ["fincore", "setpriv", "bash"];

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Directories per process, and processes: as many as one user may have, together with the user's
/// server.
const DIRECTORIES_PER_PROCESS: u64 = 1000;
const PROCESSES: u64 = 2;
const DIRECTORIES: u64 = DIRECTORIES_PER_PROCESS * PROCESSES;

/// Number of releases of a server's log during that time, unless all directories are watched
/// sooner.
const ROUNDS: u32 = 3;

/// Returns processes that hold a log open in each of very many directories, once `gate` is there.
fn start_hoarders(scratch: &Path, gate: &Path) -> Vec<Database> {
    let start = |number: u64| {
        let directory = scratch.join(format!("hoard{number}"));
        for number in 0..DIRECTORIES_PER_PROCESS {
            let own = directory.join(number.to_string());
            std::fs::create_dir_all(&own).expect("make a directory");
            for name in ["binlog.index", "binlog.000001"] {
                File::create(own.join(name)).expect("make a file");
            }
        }
        Database::of_many(scratch, &directory, 0, gate)
    };
    (0..PROCESSES).map(start).collect()
}

/// Uses the guard's default tick: shorter ones leave too little time for new directories.
///
fn guard(databases: &[&Database], more: &[&str]) -> Guard {
    let pids = databases.iter().flat_map(|database| ["--pid".to_owned(), database.pid().to_string()]);
    let pids: Vec<String> = pids.collect();
    let pids: Vec<&str> = pids.iter().map(String::as_str).collect();
    Guard::spawn(&[&["--profile", "mariadb", "--tick", "500ms"], more, &pids].concat())
}

/// Returns the number of watched log files.
fn files(tick: &Value) -> u64 {
    tick["files"].as_u64().expect("each tick says so")
}

/// Checks that it ended well, before it had taken up all directories.
fn assert_ended_early(ended: &EndedGuard) {
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert!(ended.summary()["ticks"].as_u64() > Some(0), "{}", ended.summary());
    let last = ended.events.iter().rfind(|event| event["event"] == "tick").expect("it ticks");
    assert!(files(last) < DIRECTORIES, "it went on until all was taken up: {last}");
}

#[test]
#[ignore = "long: make test-stories"]
fn others_are_served_while_very_many_directories_are_taken_up() {
    if !support::can_run("a server beside very many directories", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let gate = scratch.path().join("gate");
    let hoards = start_hoarders(scratch.path(), &gate);
    let logs = Logs::filled(&scratch.path().join("server"), 3);
    let server = Database::start(scratch.path(), &logs.path(3));
    let of_server: PathBuf = logs.path(1);
    let all: Vec<&Database> = hoards.iter().chain([&server]).collect();
    let guard = guard(&all, &[]);
    let is_released = || {
        eventually("the server's log is released", WAIT_TIMEOUT, || {
            (resident_bytes(std::slice::from_ref(&of_server)) == 0).then_some(())
        });
    };
    is_released();
    let before = files(&guard.latest_tick().expect("it ticks"));
    let all = before + DIRECTORIES;
    File::create(&gate).expect("open the gate");
    let (mut watched, mut rounds) = (before, 0);
    while rounds < ROUNDS {
        // The guard continues to take up directories.
        let next = guard.wait_for("tick", WAIT_TIMEOUT, |tick| files(tick) > watched);
        assert_eq!(std::fs::read(&of_server).expect("read a log").len() as u64, MIB);
        is_released();
        watched = files(&guard.latest_tick().expect("it ticks")).max(files(&next));
        if watched == all {
            break;
        }
        rounds += 1;
    }
    println!("the server's log was released {rounds} times meanwhile");
    assert!(rounds > 0, "nothing was released until all directories were taken up");
    assert!(guard.stop().status.success());
}

#[test]
fn sigterm_ends_it_while_very_many_directories_are_taken_up() {
    if !support::can_run("ending the guard at very many directories", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let hoards = start_hoarders(scratch.path(), scratch.path());
    let guard = guard(&hoards.iter().collect::<Vec<_>>(), &[]);
    guard.wait_for("tick", WAIT_TIMEOUT, |tick| files(tick) > 0);
    assert_ended_early(&guard.stop());
}

#[test]
#[ignore = "long: make test-stories"]
fn a_duration_ends_it_while_very_many_directories_are_taken_up() {
    if !support::can_run("a duration at very many directories", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let hoards = start_hoarders(scratch.path(), scratch.path());
    for duration in ["200ms", "400ms", "800ms", "1600ms", "3200ms", "6400ms", "12800ms"] {
        let ended = guard(&hoards.iter().collect::<Vec<_>>(), &["--duration", duration]).wait();
        // On a busy machine it may have found no named directory yet, which is a failure.
        let found = ended.events.iter().any(|event| event["event"] == "found");
        assert_eq!(ended.status.success(), found, "{duration}: {} {}", ended.status, ended.stderr);
        if found {
            return assert_ended_early(&ended);
        }
    }
    panic!("no duration was enough for it to begin");
}
