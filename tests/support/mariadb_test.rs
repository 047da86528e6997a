//! `MariaDB`'s own test programs (Debian's mariadb-test), run by another program, such as
//! `pagekeeper run --`.
//!
//! Invariants: the runner retries failed tests, as MariaDB's own CI does; its servers run as the
//! user `mysql`.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// The directory in which Debian keeps them.
pub(crate) const DIRECTORY: &str = "/usr/share/mysql/mysql-test";

/// The results of a run's test programs.
#[derive(Debug)]
pub(crate) struct Results {
    /// Names that passed.
    pub(crate) passed: Vec<String>,
    /// Names that failed, and failed again.
    pub(crate) failed: Vec<String>,
    /// All output of the run.
    pub(crate) output: String,
}

/// Runs these tests under `parent`.
pub(crate) fn results(starter: &[OsString], tests: &[String], parent: &Path) -> Results {
    let owned = Command::new("chown").arg("mysql:").arg(parent).status().expect("run chown");
    assert!(owned.success(), "there is no user mysql");
    let mut command = super::started_by(starter, "setpriv");
    command
        .args(["--reuid=mysql", "--regid=mysql", "--clear-groups", "--pdeathsig=KILL", "--"])
        .args(["perl", "mariadb-test-run.pl", "--force", "--retry=2", "--max-test-fail=0", "--parallel=2"])
        .args(["--testcase-timeout=8", "--nowarnings"])
        .arg(format!("--vardir={}", parent.join("var").display()))
        .args(tests)
        .current_dir(DIRECTORY)
        .env("HOME", parent);
    let output = command.stdin(Stdio::null()).output().expect("run mariadb-test-run");
    let output =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let ended_so = |how: &str| -> Vec<String> {
        let lines = output.lines().filter(|line| line.contains(how));
        let mut names: Vec<String> =
            lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect();
        names.sort();
        names.dedup();
        names
    };
    let passed = ended_so("[ pass ]").into_iter().chain(ended_so("[ retry-pass ]")).collect();
    // A test that passed when it was retried is not a failure.
    let again = ended_so("[ retry-pass ]");
    let failed = ended_so("[ fail ]").into_iter().chain(ended_so("[ retry-fail ]"));
    let failed = failed.filter(|name| !again.contains(name)).collect();
    Results { passed, failed, output }
}
