//! The doctor beside a real `PostgreSQL` in the memory cgroup of a pod in which `cat` reads a file
//! twice, as backups do with what was read before: how the lists of file pages changed, both
//! figures for the node's memory, and the effect of `pagekeeper run` on the lists.
//!
//! Needs root, Debian's `postgresql` and a memory cgroup; skips with a sentence otherwise.

use crate::support;
use crate::support::MIB;
use crate::support::command::{program, run};
use crate::support::doctor_report::{self, finding};
use crate::support::memory_group::MemoryGroup;
use crate::support::postgresql::{Server, programs};
use pagekeeper_kernel::pressure::{MemInfo, SysRoots};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const MEMORY_LIMIT_BYTES: u64 = 320 * MIB;
/// A file of holes, which fills the page cache like any other file.
const FILE_BYTES: u64 = 200 * MIB;
const READ_TIMES: usize = 3;
const WATCH_DURATION: &str = "6s";
/// The time after which the doctor has inspected the server.
const LOOKED: Duration = Duration::from_secs(2);
/// Attempts, since the machine may page out idle memory.
const ATTEMPTS_MAX: usize = 3;

/// Watches the server while a program reads a file in its group, and returns the report.
fn report_beside_reader(server: &Server, group: &MemoryGroup, words: &[PathBuf], file: &Path) -> Value {
    support::evict(file);
    let pid = server.pid().to_string();
    let arguments = ["doctor", "--json", "--watch", WATCH_DURATION, "--pid", &pid];
    let outcome = std::thread::scope(|scope| {
        let doctor = scope.spawn(|| run(arguments));
        std::thread::sleep(LOOKED);
        let mut reader = group.command_with(server.pid(), "env");
        reader.args(words).args(std::iter::repeat_n(file, READ_TIMES)).arg("-");
        let mut reader = reader.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start a reader");
        let outcome = doctor.join().expect("the doctor");
        // The reader's standard input ends.
        drop(reader.stdin.take());
        assert!(reader.wait().expect("wait for the reader").success());
        outcome
    });
    assert!(outcome.code == 0, "{outcome:?}");
    doctor_report::of(&outcome)
}

/// Returns a figure of a finding's evidence; 0 without it.
fn figure(found: &Value, name: &str) -> u64 {
    let evidence = found["evidence"].as_array().expect("evidence");
    evidence.iter().find_map(|one| one["figures"][name].as_u64()).unwrap_or(0)
}

/// Returns by how much active file pages grew.
fn active_pages_growth(found: &Value) -> u64 {
    figure(found, "active_file_bytes").saturating_sub(figure(found, "active_file_before_bytes"))
}

#[test]
#[ignore = "long: make test-stories"]
fn a_backup_in_a_pod_is_reported_with_the_pods_and_the_nodes_figures() {
    let test = "PostgreSQL and cat in the memory cgroup of a pod";
    let programs = programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["cat", "env"]).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let _alone = support::alone();
    let Some(group) = MemoryGroup::of_pod(test, MEMORY_LIMIT_BYTES) else { return };
    let scratch = support::scratch();
    let server = Server::start(scratch.path());
    let _load = server.read_in(&group, "--scale=5");
    let file = scratch.path().join("file");
    std::fs::File::create(&file).and_then(|file| file.set_len(FILE_BYTES)).expect("make a file");

    let cat = [PathBuf::from("cat")];
    let mut attempts = (0..ATTEMPTS_MAX).map(|_| report_beside_reader(&server, &group, &cat, &file));
    let is_found = |report: &Value| {
        finding(report, "cgroup-cache").is_some_and(|found| active_pages_growth(found) > FILE_BYTES / 2)
    };
    let report = attempts.find(is_found).expect("it is found in one of some attempts");
    let found = finding(&report, "cgroup-cache").expect("a finding");
    let by_cat = active_pages_growth(found);

    // What kubelet counts as needed grew with it; the kernel would reclaim it.
    let memory = MemInfo::read(&SysRoots::default()).expect("read /proc/meminfo");
    let (kubelet, kernel) = (figure(found, "node_available_bytes"), figure(found, "mem_available_bytes"));
    assert!(kubelet > 0 && kubelet <= memory.total && kernel > 0 && kernel <= memory.total, "{found:#}");
    assert!(figure(found, "working_set_bytes") > FILE_BYTES / 2, "{found:#}");
    let request = found["fixes"]
        .as_array()
        .expect("fixes")
        .iter()
        .find(|fix| fix["act"].as_str().is_some_and(|act| act.starts_with("resources.requests.memory")));
    assert!(
        request.is_some_and(|fix| fix["undo"].as_str().is_some_and(|undo| !undo.is_empty())),
        "{found:#}"
    );

    // The same program, as the doctor has streams started.
    let words = ["run", "--as", "stream", "--", "cat"].map(PathBuf::from);
    let report = report_beside_reader(&server, &group, &[&[program()], &words[..]].concat(), &file);
    let by_run = finding(&report, "cgroup-cache").map_or(0, active_pages_growth);
    println!("active pages grew by {by_cat} bytes, by run by {by_run}");
    assert!(by_run < by_cat / 2, "{report:#}");
}
