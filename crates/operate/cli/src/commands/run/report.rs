//! The report on what the rules did: for people, or as one JSON object, on standard error or in a
//! file.
//!
//! Never fails: a report is no reason not to start the command, or to end differently from it.
//! Problems in writing are reported.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use pagekeeper_launch::{LaunchReport, ReportFile};
use pagekeeper_text::escaped;

use crate::output::{self, SCHEMA_VERSION, Versioned};

/// The file name that stands for standard error.
pub(crate) const STANDARD_ERROR: &str = "-";

/// The file name that stands for standard error, and for one JSON object.
const JSON: &str = "json";

/// Returns the file that a report goes to, if it goes to one.
pub(crate) fn file(to: &Path) -> Option<&Path> {
    (to != Path::new(STANDARD_ERROR) && to != Path::new(JSON)).then_some(to)
}

/// The destination of a report, opened before the command is started.
pub(crate) struct ReportPrinter {
    /// `None` for standard error.
    to: Option<(PathBuf, ReportFile)>,
    is_json: bool,
}

impl ReportPrinter {
    /// Creates the destination file.
    pub(crate) fn begin(to: &Path, is_json: bool) -> Self {
        let is_json = is_json || to == Path::new(JSON);
        let open = |path: &Path| ReportFile::open(path).map_err(|error| complain_of(path, &error)).ok();
        let to = file(to).and_then(|path| Some((path.to_path_buf(), open(path)?)));
        Self { to, is_json }
    }

    /// Prints the report.
    pub(crate) fn print(self, report: io::Result<LaunchReport>) {
        let text = match report.and_then(|report| self.text(&report)) {
            Ok(text) => text,
            Err(error) => {
                return output::complain(format_args!("the counts can't be read: {error}"));
            }
        };
        if let Some((path, to)) = self.to {
            match to.write(text.as_bytes()) {
                Ok(()) => return,
                Err(error) => complain_of(&path, &error),
            }
        }
        // If nobody listens there, nothing can be reported.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    fn text(&self, report: &LaunchReport) -> io::Result<String> {
        Ok(if self.is_json {
            output::json::text(&Versioned { schema_version: SCHEMA_VERSION, report })? + "\n"
        } else {
            report.to_string()
        })
    }
}

/// Reports a destination error; the report itself is not lost.
fn complain_of(path: &Path, error: &io::Error) {
    let path = escaped(path);
    output::complain(format_args!("can't write {path}: {error}; the report goes to standard error"));
}
