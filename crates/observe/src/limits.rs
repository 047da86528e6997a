//! What a look could not see, gathered while it looks: each kind is said once, with how often and the first example.
//!
//! Invariants: what is gone is no limit; what was denied names the capability of capabilities(7) that would show it.

use std::collections::BTreeMap;

use pagekeeper_kernel::Error;
use rustix::thread::CapabilitySet;

use crate::Limited;

/// Lets a process look at those of other users.
const PTRACE: CapabilitySet = CapabilitySet::SYS_PTRACE;

/// What keeps a process from one that has the capability to look at it.
const KEPT: &str = "in another user namespace, or protected by a security module";

/// What was denied, or not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The open files of a database's process.
    OwnProcess,
    /// The open files of other processes.
    OtherProcesses,
    /// A directory of a database.
    Directory,
    /// A file can't be opened.
    File,
    /// A file's pages are not shown.
    Residency,
    /// Only mincore(2) is there.
    NoCachestat,
    /// Its pages belong to a file of the layer below.
    Overlay,
    /// A database's memory cgroup.
    Cgroup,
    /// Anything else about one path.
    Other,
}

/// What one look could not see.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    counted: BTreeMap<Kind, Counted>,
    said: Vec<Limited>,
}

#[derive(Debug)]
struct Counted {
    times: usize,
    first: String,
    why: String,
}

impl Limits {
    /// Takes note of a failure, but for what is gone.
    pub(crate) fn failed(&mut self, kind: Kind, error: &Error) {
        if error.is_gone() {
            return;
        }
        let kind = if error.is_denied() { kind } else { Kind::Other };
        self.count(kind, &error.path().display().to_string(), &reason(error));
    }

    /// Takes note that a process that is no database can't be looked into.
    pub(crate) fn other_process(&mut self, pid: u32, error: &Error) {
        if !error.is_gone() {
            self.count(
                Kind::OtherProcesses,
                &format!("process {pid}"),
                &reason_of_process(error, has(PTRACE)),
            );
        }
    }

    /// Takes note of one more of a kind.
    pub(crate) fn count(&mut self, kind: Kind, first: &str, why: &str) {
        self.counted.entry(kind).and_modify(|counted| counted.times += 1).or_insert_with(|| Counted {
            times: 1,
            first: first.to_owned(),
            why: why.to_owned(),
        });
    }

    /// Takes note that a database's process can't be looked into.
    pub(crate) fn process(&mut self, pid: u32, name: &str, error: &Error) {
        if !error.is_gone() {
            self.count(Kind::OwnProcess, &format!("{pid} ({name})"), &reason_of_process(error, has(PTRACE)));
        }
    }

    /// Says a thing of its own.
    pub(crate) fn say(&mut self, what: &str, why: impl Into<String>, needs: Option<&str>) {
        self.said.push(Limited { what: what.to_owned(), why: why.into(), needs: needs.map(str::to_owned) });
    }

    /// All of them, in a fixed order.
    pub(crate) fn into_said(self) -> Vec<Limited> {
        let counted = self.counted.into_iter().map(|(kind, counted)| counted.said(kind));
        let mut all: Vec<Limited> = counted.chain(self.said).collect();
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|limited| seen.insert(limited.clone()));
        all
    }
}

/// What the kernel said, without the path, which is said already.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::Call { call, source, .. } => format!("{call}: {source}"),
        other => other.to_string(),
    }
}

/// The same about a process's open files and mappings: what a capability does not open is kept by something else.
fn reason_of_process(error: &Error, has_ptrace: bool) -> String {
    if has_ptrace && error.is_denied() { KEPT.to_owned() } else { reason(error) }
}

/// Why processes are not shown that were denied, and what would show them.
pub(crate) fn of_denied_processes() -> (&'static str, Option<&'static str>) {
    if has(PTRACE) { (KEPT, None) } else { ("permission denied", Some("root, or CAP_SYS_PTRACE")) }
}

impl Counted {
    fn said(self, kind: Kind) -> Limited {
        let Self { times, first, why } = self;
        let (one, many, needs) = match kind {
            Kind::OwnProcess => (
                "which files the database's process has open",
                "which files processes of databases have open",
                lacked(&[("CAP_SYS_PTRACE", PTRACE)]),
            ),
            Kind::OtherProcesses => (
                "the open files of another process",
                "the open files of other processes",
                lacked(&[("CAP_SYS_PTRACE", PTRACE)]),
            ),
            Kind::Directory => (
                "what is in a directory",
                "what is in directories",
                lacked(&[("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH)]),
            ),
            Kind::File => (
                "what of a file is in the page cache",
                "what of files is in the page cache",
                lacked(&[
                    ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
                    ("CAP_FOWNER", CapabilitySet::FOWNER),
                ]),
            ),
            Kind::Residency => (
                "what of another user's file is in the page cache",
                "what of other users' files is in the page cache",
                lacked(&[("CAP_FOWNER", CapabilitySet::FOWNER)]),
            ),
            Kind::NoCachestat => (
                "what of a file is dirty, or was evicted",
                "what of files is dirty, or was evicted",
                Some("Linux 6.5 (cachestat)".to_owned()),
            ),
            Kind::Overlay => (
                "what of a file on overlayfs is dirty or was evicted, and which of its pages come and go",
                "what of files on overlayfs is dirty or was evicted, and which of their pages come and go",
                Some("a file system of its own for the data (a volume)".to_owned()),
            ),
            Kind::Cgroup => ("the memory cgroup of a database", "the memory cgroups of databases", None),
            Kind::Other => ("a file or process", "files and processes", None),
        };
        let what = match times {
            1 => format!("{one}: {first}"),
            _ => format!("{many}: {first} and {} more", times - 1),
        };
        Limited { what, why, needs }
    }
}

/// Those of the capabilities that this process lacks. Where it has them all, something else forbids it.
pub(crate) fn lacked(wanted: &[(&str, CapabilitySet)]) -> Option<String> {
    let lacked: Vec<&str> = wanted.iter().filter(|(_, one)| !has(*one)).map(|(name, _)| *name).collect();
    (!lacked.is_empty()).then(|| listed(&lacked))
}

/// Whether this process has a capability in effect.
fn has(one: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(one))
}

/// "A, B and C"
pub(crate) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_what_is_lacking_is_needed() {
        if rustix::process::geteuid().is_root() {
            assert_eq!(lacked(&[("CAP_CHOWN", CapabilitySet::CHOWN)]), None);
            let needs =
                || lacked(&[("CAP_CHOWN", CapabilitySet::CHOWN), ("CAP_FOWNER", CapabilitySet::FOWNER)]);
            assert_eq!(crate::testing::as_nobody(needs).as_deref(), Some("CAP_CHOWN and CAP_FOWNER"));
        }
    }

    #[test]
    fn no_right_is_named_for_a_process_to_one_that_has_it() {
        assert_eq!(of_denied_processes().1.is_none(), has(PTRACE));
        if rustix::process::geteuid().is_root() {
            let denied = ("permission denied", Some("root, or CAP_SYS_PTRACE"));
            assert_eq!(crate::testing::as_nobody(of_denied_processes), denied);
        }
    }

    #[test]
    fn a_process_that_no_capability_opens_is_said_to_be_kept() {
        let denied = Error::call("readlink", "/proc/1/fd/0", Errno::ACCESS);
        let kept = "in another user namespace, or protected by a security module";
        assert_eq!(reason_of_process(&denied, true), kept);
        assert!(reason_of_process(&denied, false).starts_with("readlink: Permission denied"));
        let odd = Error::call("readlink", "/proc/1/fd/0", Errno::IO);
        assert!(reason_of_process(&odd, true).starts_with("readlink: "));
        let mut limits = Limits::default();
        limits.other_process(1, &denied);
        assert_eq!(limits.into_said()[0].what, "the open files of another process: process 1");
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
    }

    #[test]
    fn each_kind_is_said_once_with_what_would_show_it() {
        let mut limits = Limits::default();
        for path in ["/d/a", "/d/b", "/d/c"] {
            limits.failed(Kind::File, &Error::call("open", path, Errno::ACCESS));
        }
        limits.failed(Kind::File, &Error::call("open", "/d/gone", Errno::NOENT));
        limits.failed(Kind::Directory, &Error::call("readdir", "/d", Errno::IO));
        limits.say("who waits for memory", "no PSI", Some("psi=1"));
        limits.say("who waits for memory", "no PSI", Some("psi=1"));
        let said = limits.into_said();
        assert_eq!(said.len(), 3, "{said:?}");
        assert_eq!(said[0].what, "what of files is in the page cache: /d/a and 2 more");
        assert!(said[0].why.starts_with("open: Permission denied"), "{}", said[0].why);
        assert_eq!(said[1].what, "a file or process: /d");
        assert_eq!(said[1].needs, None);
    }
}
