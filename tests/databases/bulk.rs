//! Servers under `pagekeeper run`, each with its profile: output of flushes and merges is written
//! out behind them and stays resident, and all acknowledged data is there, also after a kill.
//!
//! Each needs its server; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::logged::can_run_jars;
use crate::support;
use crate::support::guard::program;
use crate::support::{MIB, resident_bytes, size_bytes};
use pagekeeper_testing::servers::{Cassandra, FlushMode, Launcher, LoggedServer, OpenSearch, SearchProduct};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// A deadline far longer than a server takes to end.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts the server under `pagekeeper run` with this profile and a report file. The server is
/// its child, and ends with it.
pub(crate) fn under_run(profile: &str, report: &Path) -> Launcher {
    let mut report_option = OsString::from("--report=");
    report_option.push(report);
    let words = ["run", "--require", "--json", "--profile", profile].map(OsString::from);
    let program = [program().into_os_string()];
    let with_parent = ["--", "setpriv", "--pdeathsig=KILL", "--"].map(OsString::from);
    Launcher::new(program.into_iter().chain(words).chain([report_option]).chain(with_parent))
}

/// Ends a server by a signal to this process, which is `pagekeeper run` or its child, and returns
/// its report. The next run begins a new report.
pub(crate) fn ended(pid: u32, signal: Signal, report: &Path) -> serde_json::Value {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process")).expect("a process");
    kill_process(pid, signal).expect("signal a server");
    support::eventually("it says what it did", WAIT_TIMEOUT, || {
        serde_json::from_str(&std::fs::read_to_string(report).ok()?).ok()
    })
}

/// Puts enough that tables are written, and reads everything back from them, after a stop and after
/// a kill.
fn tables_are_bulk_files(mut server: impl LoggedServer, report: &Path) {
    server.put(300 * MIB);
    let said = ended(server.pid(), Signal::TERM, report);
    let written = said["total"]["bulk_written_bytes"].as_u64().expect("a number");
    assert!(written >= 100 * MIB, "{said:#}");
    assert_eq!(said["total"]["bulk_released_bytes"], 0, "they stay: {said:#}");
    let tables = server.others().expect("it has data");
    let (resident, size) = (resident_bytes(&tables), size_bytes(&tables));
    // Some machines page out idle memory.
    assert!(size >= 100 * MIB && resident >= size / 4 * 3, "{resident} bytes of {size} are resident");
    server.stop_and_restart();
    server.check_all();
    let run = server.pid();
    let children = std::fs::read_to_string(format!("/proc/{run}/task/{run}/children")).expect("it runs");
    ended(children.trim().parse().expect("the server alone"), Signal::KILL, report);
    server.stop_and_restart();
    server.check_all();
}

#[test]
#[ignore = "make test-databases fetches Cassandra"]
fn tables_of_cassandra_are_written_out_behind_it() {
    if !can_run_jars("Cassandra", &Cassandra::REQUIRED_PROGRAMS, Cassandra::jars().as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let report = scratch.path().join("report");
    let home = scratch.path().join("cassandra");
    let server = Cassandra::start_by(&home, under_run("cassandra", &report), FlushMode::Usual);
    tables_are_bulk_files(server, &report);
}

#[test]
#[ignore = "make test-databases fetches OpenSearch"]
fn segments_of_opensearch_are_written_out_behind_it() {
    segments_are_written_out(SearchProduct::OpenSearch, "OpenSearch");
}

#[test]
#[ignore = "make test-databases fetches Elasticsearch"]
fn segments_of_elasticsearch_are_written_out_behind_it() {
    segments_are_written_out(SearchProduct::Elasticsearch, "Elasticsearch");
}

fn segments_are_written_out(of: SearchProduct, name: &str) {
    if !can_run_jars(name, &OpenSearch::REQUIRED_PROGRAMS, of.jars().as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let report = scratch.path().join("report");
    let server = OpenSearch::start_by(&scratch.path().join("node"), of, under_run("opensearch", &report));
    tables_are_bulk_files(server, &report);
}
