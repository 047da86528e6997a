//! The guard and the doctor on the host, a `MariaDB` in containers of podman and crun: one with a
//! memory limit, and one in a user namespace.
//!
//! Needs root, Debian's `podman`, `crun` and `mariadb-server`, and minutes: `make test-cgroup-v2`
//! runs it in a virtual machine.

use crate::guard_cgroups::Group;
use crate::support;
use crate::support::command::run;
use crate::support::doctor_report;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::podman::{Container, DATA, Engine, FILLED_BYTES_MIN, REQUIRED_PROGRAMS};
use crate::support::{MIB, eventually};
use serde_json::Value;
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// The container's memory limit.
const MEMORY_LIMIT_BYTES: u64 = 288 * MIB;

/// Maximum resident bytes of the current binlog: twice the profile's slack.
const IDLE_LIMIT: u64 = 8 * MIB;

/// Returns the report's gaps about files and processes. Two lines are expected and left out: files
/// on an overlay, and all files before Linux 6.5, show only their resident pages.
fn gaps(report: &Value) -> Vec<String> {
    let gaps = report["visibility_gaps"].as_array().expect("a list of gaps");
    let mut kinds: Vec<&str> =
        gaps.iter().filter_map(|gap| gap["what"].as_str()?.split(':').next()).collect();
    kinds.sort_unstable();
    let known = [
        "the dirty and evicted pages of files",
        "the dirty and evicted pages of files on overlayfs, and the changes of their cached pages",
    ];
    let count = kinds.len();
    kinds.dedup();
    assert_eq!(kinds.len(), count, "each once: {gaps:#?}");
    let words = ["file", "process", "user namespace"];
    let unseen = |kind: &&str| !known.contains(kind) && words.iter().any(|word| kind.contains(word));
    kinds.into_iter().filter(unseen).map(str::to_owned).collect()
}

/// Returns the guard's warnings: files it could not see or release, or does not watch.
fn complaints(ended: &EndedGuard) -> Vec<&Value> {
    ended.events.iter().filter(|event| event["event"] == "problem" || event["event"] == "refused").collect()
}

/// Checks that with a guard its binlogs stay small and the guard warns about nothing.
fn check_guarded(container: &Container<'_>) {
    let guard = Guard::spawn(&["--tick", "200ms"]);
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == container.pid());
    let directories = found["directories"].as_array().expect("a list");
    assert!(found["profile"] == "mariadb" && directories.contains(&DATA.into()), "{found}");
    let left = || container.resident_binlogs();
    eventually("its binlogs are released", WAIT_TIMEOUT, || (left() < IDLE_LIMIT).then_some(()));
    container.fill_binlogs();
    eventually("its binlogs are released again", WAIT_TIMEOUT, || (left() < IDLE_LIMIT).then_some(()));
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert!(complaints(&ended).is_empty(), "{:#?}", complaints(&ended));
    println!("  the guard released {}", ended.summary()["released_bytes"]);
}

#[test]
#[ignore = "minutes: make test-cgroup-v2"]
fn a_container_of_podman_near_its_limit_is_named_and_its_logs_stay_small() {
    if !support::can_run("a container of podman", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let engine = Engine::new(scratch.path());
    let limit = format!("--memory={MEMORY_LIMIT_BYTES}");
    let container = engine.start("limited", &[&limit]);
    let group = Group::of(container.pid());
    assert_eq!(group.limit(), MEMORY_LIMIT_BYTES);
    // Fills it until little of its limit is left.
    for _ in 0..8 {
        container.fill_binlogs();
        if group.usage() > MEMORY_LIMIT_BYTES * 9 / 10 {
            break;
        }
    }
    assert!(container.resident_binlogs() >= FILLED_BYTES_MIN, "{}", container.resident_binlogs());

    let outcome = run(["doctor", "--watch", "5s", "--json"]);
    let report = doctor_report::of(&outcome);
    let found = doctor_report::finding(&report, "cgroup-cache").unwrap_or_else(|| panic!("{report:#}"));
    let title = found["title"].as_str().expect("a title");
    assert!(title.contains(group.directory.to_str().expect("UTF-8")), "{title}");
    let figure = |name: &str| {
        let of = |evidence: &Value| evidence["figures"][name].as_u64();
        found["evidence"].as_array().expect("evidence").iter().find_map(of)
    };
    let cache = group.file();
    println!(
        "{title}\n  page cache {} MiB by the doctor, {} MiB by memory.stat, {} MiB of it logs by the doctor, {} MiB by fincore; at its limit {:?} times",
        figure("page_cache_bytes").unwrap_or(0) / MIB,
        cache / MIB,
        figure("log_resident_bytes").unwrap_or(0) / MIB,
        container.resident_binlogs() / MIB,
        figure("limit_hits"),
    );
    assert!(figure("page_cache_bytes").is_some_and(|bytes| bytes.abs_diff(cache) <= 8 * MIB), "{found:#}");
    assert!(figure("log_resident_bytes") >= Some(FILLED_BYTES_MIN), "{found:#}");
    assert_eq!(gaps(&report), Vec::<String>::new());

    check_guarded(&container);
    println!("  after the guard: page cache {} MiB", group.file() / MIB);
}

#[test]
#[ignore = "minutes: make test-cgroup-v2"]
fn a_container_in_a_user_namespace_is_seen_and_served() {
    if !support::can_run("a container of podman in a user namespace", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let engine = Engine::new(scratch.path());
    let container = engine.start("mapped", &["--uidmap=0:200000:65536", "--gidmap=0:200000:65536"]);
    let map = std::fs::read_to_string(format!("/proc/{}/uid_map", container.pid())).expect("it runs");
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "200000", "65536"]);
    container.fill_binlogs();
    let outcome = run(["doctor", "--watch", "2s", "--json"]);
    assert_eq!(gaps(&doctor_report::of(&outcome)), Vec::<String>::new());
    // The host's root has all its permissions in another user namespace, too.
    check_guarded(&container);
}
