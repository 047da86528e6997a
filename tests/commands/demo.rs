//! The whole demo: an engine whose pages are left to the kernel, the guard beside it, an engine
//! that releases by itself, and a page store that is killed and opened again.
//!
//! Needs a disk below the build's directory, and a kernel with cachestat(2);
//! skips with a sentence otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::support;
use crate::support::MIB;
use crate::support::guard::program;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn figure(report: &Value, part: &str, name: &str) -> u64 {
    report[part][name].as_u64().unwrap_or_else(|| panic!("{part}.{name}: {}", report[part]))
}

/// Returns the report, or the error message.
fn perform(dir: &Path, seconds: &str) -> Result<Value, String> {
    let mut demo = Command::new(program());
    let output = demo.args(["demo", "--json", "--seconds", seconds, "--dir"]).arg(dir).output();
    let output = output.expect("run pagekeeper");
    if output.status.success() {
        let report = serde_json::from_slice(&output.stdout).expect("one JSON object");
        support::schemas::check("demo", &report);
        Ok(report)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Whether each part had time to work.
fn is_long_enough(report: &Value) -> bool {
    let is_some = |part: &str, name: &str| report[part][name].as_u64() > Some(0);
    ["alone", "guarded", "inside"].iter().all(|part| {
        ["commits", "log_written_bytes", "follower_events_checked"].iter().all(|name| is_some(part, name))
            && report["samples"][part].as_array().is_some_and(|samples| !samples.is_empty())
    }) && is_some("guard", "released_total_bytes")
        && is_some("recovery", "commits_acknowledged")
        && is_some("recovery", "commits_in_journal")
}

#[test]
fn it_shows_all_parts_and_leaves_nothing() {
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut performed = perform(scratch.path(), "6");
    if let Err(complaints) = &performed
        && complaints.contains("cachestat")
    {
        return pagekeeper_testing::skip(format_args!("the demo needs cachestat: {complaints}"));
    }
    // A disk that others use may stand still for all of a part of two seconds.
    if !performed.as_ref().is_ok_and(is_long_enough) {
        performed = perform(scratch.path(), "45");
    }
    let report = performed.unwrap_or_else(|complaints| panic!("{complaints}"));
    for part in ["alone", "guarded", "inside"] {
        for name in ["commits", "log_written_bytes", "follower_events_checked"] {
            assert!(figure(&report, part, name) > 0, "{part}.{name}");
        }
        assert!(report["samples"][part].as_array().is_some_and(|samples| !samples.is_empty()), "{part}");
    }
    assert_eq!(report["alone"]["modes"]["redo"], "buffered");
    // The logs of the part without the guard stayed, or the other parts would show nothing.
    let alone = figure(&report, "alone", "log_resident_end_bytes");
    assert!(alone >= figure(&report, "alone", "log_written_bytes").min(256 * MIB) / 2, "{alone}");
    assert!(
        report["guard"]["released_total_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
        "{}",
        report["guard"]
    );
    assert!(figure(&report, "inside", "log_resident_max_bytes") <= 32 * MIB, "{}", report["inside"]);
    let found = |name| figure(&report, "recovery", name);
    assert!(found("commits_acknowledged") > 0, "{}", report["recovery"]);
    assert!(found("commits_found") >= found("commits_acknowledged"), "{}", report["recovery"]);
    assert!(found("commits_in_journal") > 0, "{}", report["recovery"]);
    assert!(found("journal_bytes") > 0 && found("pages_to_apply") > 0, "{}", report["recovery"]);
    assert_eq!(found("pages_verified") * 4096, found("data_bytes"));
    assert_eq!(found("rows_checked"), 65_536);
    for name in ["open_seconds", "first_read_seconds", "applied_seconds"] {
        assert!(report["recovery"][name].is_f64(), "{name}: {}", report["recovery"]);
    }
    assert_eq!(std::fs::read_dir(scratch.path()).expect("the scratch directory").count(), 0);
}
