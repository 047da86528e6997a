//! The doctor beside a real `PostgreSQL` whose data does not fit its memory cgroup: found, given more, gone.
//!
//! Needs root, Debian's `postgresql` and a memory cgroup; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report;
use crate::support::memory_group::MemoryGroup;
use crate::support::postgresql::{Server, programs};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Less than the table of [`SCALE`] takes, in bytes.
const LIMIT: u64 = 260 * MIB;
/// A table of about 390 MiB with an index of 64.
const SCALE: &str = "--scale=30";
const WATCH: &str = "3s";
/// Other programs run on this machine, too; and a slow disk takes minutes to read in again what was taken away.
const TRIES: usize = 40;

/// What is said of the server's memory, if anything is.
fn examine(server: &Server) -> Option<Value> {
    let pid = server.pid().to_string();
    let outcome = run(["doctor", "--pid", &pid, "--watch", WATCH, "--json"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let report = doctor_report::of(&outcome);
    let findings = report["findings"].as_array().expect("findings");
    let of_server = |finding: &&Value| finding["kind"] == "memory-short" && !finding["database"].is_null();
    findings.iter().find(of_server).cloned()
}

/// Does what the finding names; false where it names no limit.
fn fix(group: &MemoryGroup, found: &Value) -> bool {
    let fixes = found["fixes"].as_array().expect("fixes");
    let act = fixes.iter().filter_map(|fix| fix["act"].as_str()).find(|act| act.starts_with("echo "));
    let Some(act) = act else { return false };
    assert!(act.contains(&group.path().display().to_string()), "{act}");
    let done = Command::new("sh").args(["-c", act]).status().expect("start a shell");
    assert!(done.success(), "{act}");
    true
}

#[test]
fn a_database_whose_data_does_not_fit_its_memory_cgroup() {
    let test = "PostgreSQL at the limit of its memory cgroup";
    let programs = programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let _alone = support::alone();
    let Some(group) = MemoryGroup::new(test, LIMIT) else { return };
    let scratch = support::scratch();
    let server = Server::start(scratch.path());
    let _load = server.read_in(&group, SCALE);

    let found = support::eventually("the limit is reported", Duration::from_secs(180), || {
        examine(&server).filter(|found| {
            let evidence = found["evidence"].as_array().expect("evidence");
            evidence.iter().any(|one| one["figures"]["refaulted_bytes"].as_u64() > Some(MIB))
        })
    });
    assert!(found["severity"] == "warning" || found["severity"] == "serious", "{found:#}");
    assert!(found["database"].as_str().is_some_and(|name| name.contains(&server.pid().to_string())));
    assert!(
        found["title"].as_str().is_some_and(|title| title.contains("at its limit of 260 MiB")),
        "{found:#}"
    );
    assert!(
        found["cost"]["text"].as_str().is_some_and(|cost| cost.contains("read from storage again")),
        "{found:#}"
    );

    // The fix that it names; where that was seen to be too little yet, once more.
    assert!(fix(&group, &found), "no other limit is named: {found:#}");
    let tries: Vec<Value> = (0..TRIES)
        .map_while(|_| {
            // What was taken away comes back first. A group that is full and reads nothing again is no more than a note.
            std::thread::sleep(Duration::from_secs(2));
            let found = examine(&server).filter(|found| found["severity"] != "note")?;
            fix(&group, &found);
            Some(found)
        })
        .collect();
    assert!(tries.len() < TRIES, "it is still said to be short: {:#}", tries[TRIES - 1]);
}
