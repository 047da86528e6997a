//! Knowledge about programs by their names.

use pagekeeper_catalog::streaming_programs;
use pagekeeper_text::shell_quoted;

use crate::advice::step;
use crate::fix::{Confidence, Fix, Terms};

/// Streaming programs that no library can be preloaded into: they are statically linked, and make
/// their own system calls.
pub(crate) const STATIC_PROGRAMS: [&str; 5] = ["restic", "rclone", "kopia", "wal-g", "duplicacy"];

/// Whether pagekeeper knows the program as a stream by its name.
pub(crate) fn usual(name: &str) -> bool {
    streaming_programs().iter().any(|glob| glob.is_match(name))
}

/// Returns the fix that starts a program as a stream under `pagekeeper run`; `None` if no library
/// can be preloaded into it.
pub(crate) fn run_as_stream(name: &str, confidence: Confidence, evidence: impl Into<String>) -> Option<Fix> {
    if STATIC_PROGRAMS.contains(&name) {
        return None;
    }
    let role = if usual(name) { "" } else { "--as stream " };
    let (program, evidence) = (shell_quoted(name), evidence.into());
    let fix = step("run-as-stream", &[("role", &role), ("program", &program), ("evidence", &evidence)]);
    Some(Fix { terms: Terms { confidence, ..fix.terms }, ..fix })
}

/// Returns the guard's command and configuration by which it follows a program from outside.
pub(crate) fn guard_follows(name: &str) -> String {
    if usual(name) {
        return "`pagekeeper guard --streams`".to_owned();
    }
    let processes = serde_json::Value::from(name);
    format!("`pagekeeper guard` with `processes = [{processes}]` under `[streams]` in its configuration")
}
