//! Reports of `pagekeeper doctor --json`, each compared with its schema.
//!
//! Panics if a report has a field that the schema does not know, lacks one, or has something else
//! in it.

use serde_json::Value;

use super::command::Outcome;
use super::schemas;

/// Returns the report that a run of the doctor printed, as its schema says.
pub(crate) fn of(outcome: &Outcome) -> Value {
    let report = outcome.json();
    schemas::check("doctor", &report);
    report
}

/// Returns the exit code of `--check` for this report: by its worst finding, or `otherwise`.
pub(crate) fn check_code(report: &Value, otherwise: i32) -> i32 {
    let found = report["findings"].as_array().expect("findings");
    let has = |severity: &str| found.iter().any(|finding| finding["severity"] == severity);
    if has("serious") {
        2
    } else if has("warning") {
        1
    } else {
        otherwise
    }
}

/// Returns the first finding of this kind in a report.
pub(crate) fn finding<'a>(report: &'a Value, kind: &str) -> Option<&'a Value> {
    report["findings"].as_array().expect("findings").iter().find(|finding| finding["kind"] == kind)
}
