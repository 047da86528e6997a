//! Output of `--json`, compared with the schemas in `docs/schemas` by a validator of others
//! (python3-jsonschema), which runs once for each schema in a program of tests. If that is not
//! installed, it says so, and accepts everything.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use pagekeeper_testing::skip;
use serde_json::Value;

/// Debian's Python, to which the package belongs.
const PYTHON: &str = "/usr/bin/python3";

/// The validators by the names of their schemas; none where they can't be started.
static VALIDATORS: Mutex<Option<HashMap<String, Option<Validator>>>> = Mutex::new(None);

struct Validator {
    /// Ends when this program does: its standard input is closed then.
    _process: Child,
    reports: ChildStdin,
    errors: BufReader<ChildStdout>,
}

impl Validator {
    /// Returns `None` if there is none.
    fn start(schema: &Path) -> Option<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/support/validate.py");
        let mut process = Command::new(PYTHON)
            .arg(here)
            .arg(schema)
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

/// Returns the file of a command's schema: "stat", "store-dump".
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../docs/schemas/{name}.json"))
}

/// Returns the deviations of a report from the schema of its command; `None` without a validator.
pub(crate) fn errors(name: &str, report: &Value) -> Option<String> {
    let mut all = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
    let validator = all.get_or_insert_default().entry(name.to_owned()).or_insert_with(|| {
        let validator = Validator::start(&file(name));
        if validator.is_none() {
            skip(format_args!("the comparison of {name} --json with its schema needs python3-jsonschema."));
        }
        validator
    });
    Some(validator.as_mut()?.errors(report))
}

/// Panics if a report is not as the schema of its command says.
pub(crate) fn check(name: &str, report: &Value) {
    if let Some(errors) = errors(name, report) {
        assert!(errors.is_empty(), "{name}: {errors}\n{report:#}");
    }
}
