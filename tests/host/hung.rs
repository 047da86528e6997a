//! Commands that inspect the whole machine, beside a file system that does not answer: they end,
//! and name it.
//!
//! Needs root, `bindfs` and `setpriv`; skips with a sentence otherwise.

use crate::support;
use crate::support::command::{Outcome, finish, program};
use crate::support::fake::Database;
use pagekeeper_testing::HangingMount;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A deadline far longer than any run takes; without one a failed test would hang.
const TIMEOUT_SECONDS: &str = "100";

/// A database beside one on a file system that can be kept from answering.
struct HungDatabase {
    remote: Database,
    local: Database,
    hanging: HangingMount,
    // Dropped after the mounts inside, since it could not be removed with them.
    scratch: tempfile::TempDir,
}

impl HungDatabase {
    fn start() -> Self {
        let scratch = support::scratch();
        let log = |directory: &Path| {
            std::fs::create_dir_all(directory).expect("make a directory");
            std::fs::write(directory.join("binlog.index"), b"").expect("write an index");
            let log = directory.join("binlog.000001");
            std::fs::write(&log, vec![1; 1 << 20]).expect("write a log");
            log
        };
        let (below, point, here) =
            (scratch.path().join("below"), scratch.path().join("point"), scratch.path().join("here"));
        log(&below);
        let local = Database::start(scratch.path(), &log(&here));
        let hanging = HangingMount::mount(&below, &point, "binlog.index");
        let remote = Database::start(scratch.path(), &point.join("binlog.000001"));
        Self { remote, local, hanging, scratch }
    }

    fn point(&self) -> PathBuf {
        self.scratch.path().join("point")
    }

    fn pids(&self) -> Vec<String> {
        let pids = [&self.remote, &self.local].map(|database| database.pid().to_string());
        pids.iter().flat_map(|pid| ["--pid".to_owned(), pid.clone()]).collect()
    }

    /// Runs it while the file system does not answer.
    fn run(&self, arguments: &[String]) -> Outcome {
        self.hanging.stop();
        let mut command = Command::new("timeout");
        let outcome = finish(command.args(["--signal=KILL", TIMEOUT_SECONDS]).arg(program()).args(arguments));
        self.hanging.go_on();
        assert_ne!(outcome.code, 137, "it hangs: {outcome:#?}");
        outcome
    }
}

fn can_run() -> bool {
    support::can_run("a file system that does not answer", &["setpriv", "bindfs", "timeout"])
}

/// Asserts that a report names the file system, with its type and the seconds.
fn names(report: &Value, point: &Path) {
    let gaps = report["visibility_gaps"].as_array().expect("gaps");
    let point = point.display().to_string();
    let named = gaps.iter().any(|gap| {
        let (what, why) = (gap["what"].as_str().unwrap_or(""), gap["why"].as_str().unwrap_or(""));
        what.contains(&point)
            && what.contains("(fuse")
            && why.contains("not answered for")
            && why.ends_with(" s")
    });
    assert!(named, "{gaps:#?}");
}

#[test]
fn the_doctor_ends_and_names_hung_paths() {
    if !can_run() {
        return;
    }
    let _alone = support::alone();
    let beside = HungDatabase::start();
    let mut arguments: Vec<String> = ["doctor", "--watch", "1s", "--json"].map(str::to_owned).to_vec();
    arguments.extend(beside.pids());
    let outcome = beside.run(&arguments);
    let report = support::doctor_report::of(&outcome);
    names(&report, &beside.point());
    let databases = report["inspected"]["databases"].as_array().expect("databases");
    let local =
        databases.iter().find(|database| database["pid"] == beside.local.pid()).expect("the local one");
    assert!(local["files"].as_u64().is_some_and(|files| files >= 2), "{local}");
    // Without a hung file system it sees everything.
    let all = crate::support::command::run(&arguments).json();
    let remote = all["inspected"]["databases"].as_array().expect("databases").iter();
    let mut remote = remote.filter(|database| database["pid"] == beside.remote.pid());
    assert!(remote.next().is_some_and(|database| database["files"].as_u64() >= Some(2)), "{all:#}");
}

#[test]
fn top_ends_and_names_hung_paths() {
    if !can_run() {
        return;
    }
    let _alone = support::alone();
    let beside = HungDatabase::start();
    let directory = beside.scratch.path().display().to_string();
    let arguments = ["top", "--once", "--json", "--network", &directory].map(str::to_owned);
    let outcome = beside.run(&arguments);
    names(&outcome.json(), &beside.point());
    assert!(outcome.stdout.contains("/here/binlog.000001"), "{}", outcome.stdout);
}
