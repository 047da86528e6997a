//! Paths that failed: they are collected while the rest continues, then reported one a line, each
//! with the problem and its fix.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;

use pagekeeper_kernel::Error;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_text::escaped;
use serde::Serialize;

use crate::output::{code, complain};

/// One path that failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Problem {
    path: String,
    error: String,
}

/// The failures so far; shared by threads.
#[derive(Debug, Default)]
pub(crate) struct Problems(Mutex<Vec<Problem>>);

impl Problems {
    /// Records a failure from the kernel crate.
    pub(crate) fn note(&self, error: &Error) {
        self.add(error.path(), in_words(error));
    }

    /// Records a failure in words.
    pub(crate) fn add(&self, path: &Path, error: String) {
        let problem = Problem { path: escaped(path).to_string(), error };
        lock(&self.0).push(problem);
    }

    /// Returns all failures, sorted by path.
    pub(crate) fn into_sorted(self) -> Vec<Problem> {
        let mut problems = ignore_poison(self.0.into_inner());
        problems.sort();
        problems
    }
}

/// Reports each problem on standard error, unless the JSON has them. Returns the exit code.
pub(crate) fn report(problems: &[Problem], is_json: bool) -> ExitCode {
    for Problem { path, error } in problems.iter().filter(|_| !is_json) {
        complain(format_args!("{path}: {error}"));
    }
    code(problems.is_empty())
}

/// Says why the residency of these files is not known.
pub(crate) fn report_unknown(what: impl Display) {
    complain(format_args!(
        "the kernel shows resident pages only to a file's owner: run as root, as the owner, or with CAP_FOWNER \
         to see {what}"
    ));
}

/// Returns the problem and its fix, without the path.
pub(crate) fn in_words(error: &Error) -> String {
    match error {
        Error::Call { call: "cachestat" | "mincore", .. } if error.is_denied() => {
            "the kernel shows resident pages only to the file's owner: \
             run as root, as the owner, or with CAP_FOWNER"
                .to_owned()
        }
        Error::Call { .. } if error.is_denied() => {
            "permission denied: run as root or as a user who may read it".to_owned()
        }
        Error::Call { .. } if error.is_gone() => "no such file or directory".to_owned(),
        Error::Call { call, source, .. } => {
            let said = source.to_string();
            let said = said.split(" (os error").next().unwrap_or(&said);
            match error.errno().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::MFILE) => format!("{said}: raise the limit with ulimit -n"),
                Some(rustix::io::Errno::LOOP) => format!("{said}: the link leads to itself"),
                _ => format!("{call}: {said}"),
            }
        }
        Error::NotRegular { found: "a block device", .. } => {
            "a block device: only stat, evict and warm take one, where it is named on the command line"
                .to_owned()
        }
        Error::NotRegular { found, .. } => {
            format!("{found}: only regular files and block devices have pages in the page cache to speak of")
        }
        Error::SymbolicLink { .. } => "a symbolic link, not followed: -L follows it".to_owned(),
        Error::MountPoint { .. } => "something is mounted over it, not opened".to_owned(),
        Error::OtherFile { .. } => "another file has its name now, not opened".to_owned(),
        Error::Unsupported { reason, .. } => (*reason).to_owned(),
        Error::Malformed { what, .. } => format!("can't read {what}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn each_problem_has_a_fix() {
        for (call, errno, fix) in [
            ("open", Errno::ACCESS, "run as root or as a user who may read it"),
            ("cachestat", Errno::PERM, "run as root, as the owner, or with CAP_FOWNER"),
            ("open", Errno::NOENT, "no such file or directory"),
            ("open", Errno::MFILE, "raise the limit with ulimit -n"),
            ("open", Errno::IO, "open: Input/output error"),
        ] {
            let words = in_words(&Error::call(call, "/path", errno));
            assert!(words.contains(fix), "{words}");
            assert!(!words.contains("os error") && !words.contains("/path"), "{words}");
        }
        let path = || "/path".into();
        for error in [
            Error::SymbolicLink { path: path() },
            Error::MountPoint { path: path() },
            Error::OtherFile { path: path() },
        ] {
            assert!(!in_words(&error).contains("/path"), "{error}");
        }
    }

    #[test]
    fn problems_come_by_path() {
        let problems = Problems::default();
        problems.note(&Error::call("open", "/b", Errno::IO));
        problems.add(Path::new("/a\n"), "odd".to_owned());
        let paths: Vec<String> = problems.into_sorted().into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["/a\\n", "/b"]);
    }
}
