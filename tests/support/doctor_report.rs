//! Reports of `pagekeeper doctor --json`, each compared with the published schema by a third-party
//! validator (python3-jsonschema), which runs once for all tests of a program. If that is not
//! installed, it says so, and accepts the report.
//!
//! Panics if a report has a field that the schema does not know, lacks one, or has something else
//! in it.

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use pagekeeper_testing::skip;
use serde_json::Value;

use super::command::Outcome;

/// Debian's Python, to which the package belongs.
const PYTHON: &str = "/usr/bin/python3";

struct Validator {
    /// Ends when this program does: its standard input is closed then.
    _process: Child,
    reports: ChildStdin,
    errors: BufReader<ChildStdout>,
}

impl Validator {
    /// Returns `None` if there is none.
    fn start() -> Option<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/support/validate.py");
        let mut process = Command::new(PYTHON)
            .arg(here)
            .arg(schema())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let reports = process.stdin.take().expect("piped");
        let mut errors = BufReader::new(process.stdout.take().expect("piped"));
        let mut ready = String::new();
        errors.read_line(&mut ready).expect("read what the validator says");
        (ready == "ready\n").then_some(Self { _process: process, reports, errors })
    }

    fn errors(&mut self, report: &Value) -> String {
        writeln!(self.reports, "{report}").expect("write to the validator");
        let mut line = String::new();
        self.errors.read_line(&mut line).expect("read what the validator says");
        serde_json::from_str(&line).expect("one string")
    }
}

/// Returns the schema of the doctor's reports.
fn schema() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../doctor/report.schema.json")
}

/// Returns the report's deviations from the schema; `None` without a validator.
pub(crate) fn errors(report: &Value) -> Option<String> {
    static VALIDATOR: OnceLock<Option<Mutex<Validator>>> = OnceLock::new();
    let validator = VALIDATOR.get_or_init(|| {
        let validator = Validator::start();
        if validator.is_none() {
            skip("the comparison of the doctor's reports with their schema needs python3-jsonschema.");
        }
        validator.map(Mutex::new)
    });
    Some(validator.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).errors(report))
}

/// Returns the report that a run of the doctor printed, as its schema says.
pub(crate) fn of(outcome: &Outcome) -> Value {
    let report = outcome.json();
    if let Some(errors) = errors(&report) {
        assert!(errors.is_empty(), "{errors}\n{report:#}");
    }
    report
}

/// Returns the first finding of this kind in a report.
pub(crate) fn finding<'a>(report: &'a Value, kind: &str) -> Option<&'a Value> {
    report["findings"].as_array().expect("findings").iter().find(|finding| finding["kind"] == kind)
}
