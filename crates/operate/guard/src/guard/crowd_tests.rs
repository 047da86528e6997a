//! Tests of a user who runs very many processes that have a database's name and no log.
//!
//! The tests count their cost and do not time it: calls of read(2) in a tick, and listings of
//! descriptors.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_testing::fake_process;
use tempfile::TempDir;

use super::Guard;
use super::claim_tests::{ATTACKER, DATABASE};
use crate::config::Options;
use crate::directory::DatabaseKey;

/// Number of the attacker's processes.
const CROWD: u32 = 1000;
/// Process IDs that this process and its children do not have.
const FIRST_PID: u32 = 10_000_000;
const SERVER_PID: u32 = FIRST_PID + CROWD;
/// Upper bound of the ticks in which a process is found.
const TICKS: u32 = 10_000;

/// Adds a process of one user.
fn add_process(proc: &Path, pid: u32, name: &str, user: u32, files: &[&str]) {
    fake_process(proc, pid, name, 1, files);
    let process = proc.join(pid.to_string());
    let users =
        format!("Uid:\t{user}\t{user}\t{user}\t{user}\nGid:\t{user}\t{user}\t{user}\t{user}\nGroups:\t\n");
    std::fs::write(process.join("status"), users).unwrap();
    let _ = std::os::unix::fs::symlink("/", process.join("cwd"));
}

/// Returns a guard that has found the crowd and has no time left to list descriptors.
fn guard_beside_a_crowd(name: &str) -> (TempDir, Guard) {
    let tree = tempfile::tempdir().unwrap();
    for pid in FIRST_PID..SERVER_PID {
        add_process(tree.path(), pid, name, ATTACKER, &[]);
    }
    let mut guard = Guard::new(Options::default(), ProcRoot::at(tree.path())).unwrap();
    guard.watched.listing_time.spend(Duration::from_secs(3600));
    tick_until(&mut guard, |guard| guard.watched.databases.len() == CROWD as usize);
    (tree, guard)
}

fn tick_until(guard: &mut Guard, done: impl Fn(&Guard) -> bool) {
    let reached = (0..TICKS).any(|_| {
        guard.tick(&mut |_| {});
        // Processes are listed once a second.
        std::thread::sleep(Duration::from_millis(1));
        done(guard)
    });
    assert!(reached, "{} databases", guard.watched.databases.len());
}

/// Returns the number of calls of read(2) and the like that this thread has made.
fn read_calls() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let reads = counters.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap();
    reads.parse().unwrap()
}

#[test]
fn idle_impostors_cost_a_tick_no_call_each() {
    // A PostgreSQL also claims a directory by its name, which these do not have.
    for name in ["mariadbd", "postgres"] {
        let (_tree, mut guard) = guard_beside_a_crowd(name);
        guard.watched.listing_time.hurry();
        let fewest = (0..20).map(|_| {
            let before = read_calls();
            guard.tick(&mut |_| {});
            read_calls() - before
        });
        // In most of these ticks no process is listed or inspected.
        let fewest = fewest.min().unwrap();
        assert!(fewest < u64::from(CROWD / 10), "{fewest} reads for {CROWD} processes named {name}");
    }
}

#[test]
fn a_new_server_of_another_user_is_listed_beside_a_crowd_at_once() {
    let (tree, mut guard) = guard_beside_a_crowd("mariadbd");
    add_process(tree.path(), SERVER_PID, "mariadbd", DATABASE, &[]);
    let server = |guard: &Guard| guard.watched.databases.iter().position(|one| one.pid == SERVER_PID);
    tick_until(&mut guard, |guard| server(guard).is_some());
    // The new process is queued behind the crowd.
    guard.tick(&mut |_| {});
    assert!(guard.watched.listings.waiting() > CROWD as usize);
    // Time for two processes.
    guard.watched.listing_time.hurry();
    guard.watched.listing_time.spend(Duration::from_nanos(249_999_999));
    guard.tick(&mut |_| {});
    let listed = |at: usize| guard.watched.databases[at].descriptors.schedule.ended;
    let others: usize = (0..CROWD as usize).map(listed).sum();
    assert_eq!(listed(server(&guard).unwrap()), 1, "after {others} of the crowd");
}

#[test]
fn the_servers_of_very_many_users_are_all_taken_up() {
    let tree = tempfile::tempdir().unwrap();
    for number in 0..40 {
        add_process(tree.path(), FIRST_PID + number, "mariadbd", DATABASE + number, &[]);
    }
    let mut guard = Guard::new(Options::default(), ProcRoot::at(tree.path())).unwrap();
    tick_until(&mut guard, |guard| guard.watched.databases.len() == 40);
}

#[test]
fn a_user_out_of_budget_is_skipped_and_another_users_server_is_not() {
    let (tree, mut guard) = guard_beside_a_crowd("mariadbd");
    let listed = |guard: &Guard, pids: Range<u32>| -> usize {
        let those = guard.watched.databases.iter().filter(|one| pids.contains(&one.pid));
        those.map(|one| one.descriptors.schedule.ended).sum()
    };
    let tick = |guard: &mut Guard| {
        guard.watched.listing_time.hurry();
        guard.tick(&mut |_| {});
        std::thread::sleep(Duration::from_millis(1));
    };
    guard.watched.jobs.turns.spend(&DatabaseKey::Process(FIRST_PID), Duration::from_secs(3600));
    // Listings that have begun are finished.
    while !guard.watched.listings.is_empty() {
        tick(&mut guard);
    }
    let before = listed(&guard, FIRST_PID..SERVER_PID);
    add_process(tree.path(), SERVER_PID, "mariadbd", DATABASE, &[]);
    add_process(tree.path(), SERVER_PID + 1, "mariadbd", ATTACKER, &[]);
    let began = Instant::now();
    // Without the limit each of the crowd would be listed again within a second.
    while listed(&guard, SERVER_PID..SERVER_PID + 1) == 0 || began.elapsed() < Duration::from_secs(3) {
        assert!(began.elapsed() < Duration::from_secs(60), "the server is not listed");
        tick(&mut guard);
    }
    assert_eq!(listed(&guard, FIRST_PID..SERVER_PID), before);
    assert!(guard.watched.databases.iter().all(|one| one.pid != SERVER_PID + 1));
}
