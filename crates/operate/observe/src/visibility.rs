//! Visibility gaps: everything that a snapshot could not see. They are collected while it is taken.
//! Each kind is listed once, with its count and the first example of each party, so that nobody's
//! path stands for another's.
//!
//! Invariants: an object that is gone is not a gap. A denied one names the capability of
//! capabilities(7) that would show it.

use std::collections::BTreeMap;

use pagekeeper_catalog::Party;
use pagekeeper_kernel::Error;
use pagekeeper_kernel::hang::{self, HungFileSystem};
use pagekeeper_text::{escaped, listed};
use rustix::thread::CapabilitySet;
use serde::Serialize;

/// Something a snapshot could not see.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct VisibilityGap {
    /// The subject that could not be seen: "pages that come and go, and their users".
    pub what: String,
    /// The reason: the kernel's answer.
    pub why: String,
    /// The capability or setting that would show it: `CAP_SYS_PTRACE`, "Linux 6.5". `None` if
    /// nothing would.
    pub needs: Option<String>,
}

/// The capability to inspect processes of other users.
const PTRACE_CAPABILITY: CapabilitySet = CapabilitySet::SYS_PTRACE;

/// The reason why a process is out of reach even with that capability.
const PROTECTED_PROCESS_REASON: &str = "in another user namespace, or protected by a security module";

/// Maximum number of single gaps of one party that are listed; the rest is counted. So very many
/// directories of one party hide nothing else.
const PARTY_GAPS_MAX: usize = 16;

/// Maximum number of parties that have an example in the gap of a kind.
const GAP_EXAMPLES_MAX: usize = 4;

/// The kind of a gap: something that was denied, or is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GapKind {
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
    /// Only mincore(2) is available.
    NoCachestat,
    /// Its pages belong to a file of the layer below.
    Overlay,
    /// A database's memory cgroup.
    Cgroup,
    /// Anything else about one path.
    Other,
}

/// Collects the gaps of one snapshot.
#[derive(Debug, Default)]
pub(crate) struct VisibilityGaps {
    counted: BTreeMap<GapKind, CountedGaps>,
    single: Vec<VisibilityGap>,
    /// Gaps caused by databases of a party, and the number of further ones.
    of_parties: BTreeMap<Party, (Vec<VisibilityGap>, usize)>,
}

#[derive(Debug, Default)]
struct CountedGaps {
    times: usize,
    /// The first example of each party, with its reason.
    examples: Vec<(Party, String, String)>,
}

impl VisibilityGaps {
    /// Records a failure on a path that a party's database leads to, unless its file or process is
    /// gone.
    pub(crate) fn failed(&mut self, party: Party, kind: GapKind, error: &Error) {
        if error.is_gone() {
            return;
        }
        let kind = if error.is_denied() { kind } else { GapKind::Other };
        self.count(party, kind, || escaped(error.path()).to_string(), &reason(error));
    }

    /// Records that a process that is not a database can't be inspected.
    pub(crate) fn other_process(&mut self, pid: u32, error: &Error) {
        if !error.is_gone() {
            let why = reason_of_process(error, has(PTRACE_CAPABILITY));
            // The number is nothing that its user chose.
            self.count(Party::Unknown, GapKind::OtherProcesses, || format!("process {pid}"), &why);
        }
    }

    /// Counts one more of a kind. Keeps the first of each party as an example.
    pub(crate) fn count(&mut self, party: Party, kind: GapKind, example: impl FnOnce() -> String, why: &str) {
        let counted = self.counted.entry(kind).or_default();
        counted.times += 1;
        let is_first = counted.examples.iter().all(|(other, ..)| *other != party);
        if is_first && counted.examples.len() < GAP_EXAMPLES_MAX {
            counted.examples.push((party, example(), why.to_owned()));
        }
    }

    /// Records that a database's process can't be inspected.
    pub(crate) fn process(&mut self, party: Party, pid: u32, name: &str, error: &Error) {
        if !error.is_gone() {
            let why = reason_of_process(error, has(PTRACE_CAPABILITY));
            self.count(party, GapKind::OwnProcess, || format!("{pid} ({name})"), &why);
        }
    }

    /// Adds a gap without a kind.
    pub(crate) fn add(&mut self, what: &str, why: impl Into<String>, needs: Option<&str>) {
        self.single.push(VisibilityGap {
            what: what.to_owned(),
            why: why.into(),
            needs: needs.map(str::to_owned),
        });
    }

    /// Adds a gap caused by a database of some party. The first ones are listed, the others
    /// counted.
    pub(crate) fn add_of(&mut self, party: Party, what: &str, why: impl Into<String>) {
        let (listed, more) = self.of_parties.entry(party).or_default();
        let gap = VisibilityGap { what: what.to_owned(), why: why.into(), needs: None };
        if listed.len() < PARTY_GAPS_MAX {
            listed.push(gap);
        } else {
            *more += 1;
        }
    }

    /// Adds the file systems that do not answer.
    pub(crate) fn unanswered(&mut self) {
        self.single.extend(unanswered());
    }

    /// Returns all gaps, in a fixed order.
    pub(crate) fn into_gaps(self) -> Vec<VisibilityGap> {
        let counted = self.counted.into_iter().map(|(kind, counted)| counted.into_gap(kind));
        let of_parties = self.of_parties.into_iter().flat_map(|(party, (mut listed, more))| {
            if more > 0 {
                let what = format!("{more} more of what databases of {party} lead to");
                listed.push(VisibilityGap {
                    what,
                    why: "as listed for the first of them".to_owned(),
                    needs: None,
                });
            }
            listed
        });
        let mut all: Vec<VisibilityGap> = counted.chain(self.single).chain(of_parties).collect();
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|gap| seen.insert(gap.clone()));
        all
    }
}

/// Returns the gaps for file systems that do not answer.
pub fn unanswered() -> Vec<VisibilityGap> {
    let of = |found: HungFileSystem| VisibilityGap {
        what: match found.kind {
            Some(kind) => format!("the content of {} ({})", escaped(&found.point), escaped(&kind)),
            None => format!("the object at {}", escaped(&found.point)),
        },
        why: format!("its file system has not answered for {:.1} s", found.time.as_secs_f64()),
        needs: None,
    };
    hang::hung_file_systems().into_iter().map(of).collect()
}

/// Returns the kernel's reason, without the path, which the gap already names.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::Call { call, source, .. } => format!("{call}: {source}"),
        other => other.to_string(),
    }
}

/// Returns the reason for a process's open files and mappings. With the capability, something else
/// must forbid it.
fn reason_of_process(error: &Error, has_ptrace: bool) -> String {
    if has_ptrace && error.is_denied() { PROTECTED_PROCESS_REASON.to_owned() } else { reason(error) }
}

/// Returns why some processes can't be inspected, and what would allow it.
pub(crate) fn of_denied_processes() -> (&'static str, Option<&'static str>) {
    if has(PTRACE_CAPABILITY) {
        (PROTECTED_PROCESS_REASON, None)
    } else {
        ("permission denied", Some("root, or CAP_SYS_PTRACE"))
    }
}

impl CountedGaps {
    fn into_gap(self, kind: GapKind) -> VisibilityGap {
        let Self { times, examples } = self;
        let (one, many, needs) = match kind {
            GapKind::OwnProcess => (
                "the open files of the database's process",
                "the open files of databases' processes",
                lacked(&[("CAP_SYS_PTRACE", PTRACE_CAPABILITY)]),
            ),
            GapKind::OtherProcesses => (
                "the open files of another process",
                "the open files of other processes",
                lacked(&[("CAP_SYS_PTRACE", PTRACE_CAPABILITY)]),
            ),
            GapKind::Directory => (
                "the content of a directory",
                "the content of directories",
                lacked(&[("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH)]),
            ),
            GapKind::File => (
                "the cached pages of a file",
                "the cached pages of files",
                lacked(&[
                    ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
                    ("CAP_FOWNER", CapabilitySet::FOWNER),
                ]),
            ),
            GapKind::Residency => (
                "the cached pages of another user's file",
                "the cached pages of other users' files",
                lacked(&[("CAP_FOWNER", CapabilitySet::FOWNER)]),
            ),
            GapKind::NoCachestat => (
                "the dirty and evicted pages of a file",
                "the dirty and evicted pages of files",
                Some("Linux 6.5 (cachestat)".to_owned()),
            ),
            GapKind::Overlay => (
                "the dirty and evicted pages of a file on overlayfs, and the changes of its cached pages",
                "the dirty and evicted pages of files on overlayfs, and the changes of their cached pages",
                Some("a file system of its own for the data (a volume)".to_owned()),
            ),
            GapKind::Cgroup => ("the memory cgroup of a database", "the memory cgroups of databases", None),
            GapKind::Other => ("a file or process", "files and processes", None),
        };
        let (mut shown, mut reasons): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        for (_, example, why) in examples {
            shown.push(example);
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
        if times > shown.len() {
            shown.push(format!("{} more", times - shown.len()));
        }
        let shown = listed(&shown);
        let what = format!("{}: {shown}", if times == 1 { one } else { many });
        VisibilityGap { what, why: reasons.join("; "), needs }
    }
}

/// Returns which of these capabilities this process lacks; `None` if it has them all, and something
/// else forbids it.
pub(crate) fn lacked(wanted: &[(&str, CapabilitySet)]) -> Option<String> {
    let lacked: Vec<&str> = wanted.iter().filter(|(_, one)| !has(*one)).map(|(name, _)| *name).collect();
    (!lacked.is_empty()).then(|| listed(&lacked))
}

/// Returns whether this process has a capability in effect.
pub(crate) fn has(one: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_missing_permissions_are_named() {
        if rustix::process::geteuid().is_root() {
            assert_eq!(lacked(&[("CAP_CHOWN", CapabilitySet::CHOWN)]), None);
            let needs =
                || lacked(&[("CAP_CHOWN", CapabilitySet::CHOWN), ("CAP_FOWNER", CapabilitySet::FOWNER)]);
            assert_eq!(crate::testing::as_nobody(needs).as_deref(), Some("CAP_CHOWN and CAP_FOWNER"));
        }
    }

    #[test]
    fn no_permission_is_named_that_the_process_has() {
        assert_eq!(of_denied_processes().1.is_none(), has(PTRACE_CAPABILITY));
        if rustix::process::geteuid().is_root() {
            let denied = ("permission denied", Some("root, or CAP_SYS_PTRACE"));
            assert_eq!(crate::testing::as_nobody(of_denied_processes), denied);
        }
    }

    #[test]
    fn a_process_that_no_capability_opens_is_reported_as_protected() {
        let denied = Error::call("readlink", "/proc/1/fd/0", Errno::ACCESS);
        let protected = "in another user namespace, or protected by a security module";
        assert_eq!(reason_of_process(&denied, true), protected);
        assert!(reason_of_process(&denied, false).starts_with("readlink: Permission denied"));
        let odd = Error::call("readlink", "/proc/1/fd/0", Errno::IO);
        assert!(reason_of_process(&odd, true).starts_with("readlink: "));
        let mut gaps = VisibilityGaps::default();
        gaps.other_process(1, &denied);
        assert_eq!(gaps.into_gaps()[0].what, "the open files of another process: process 1");
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
    }

    #[test]
    fn each_kind_of_gap_is_listed_once_with_its_permission() {
        let mut gaps = VisibilityGaps::default();
        for path in ["/d/a", "/d/b", "/d/c"] {
            gaps.failed(Party::User(1), GapKind::File, &Error::call("open", path, Errno::ACCESS));
        }
        gaps.failed(Party::User(1), GapKind::File, &Error::call("open", "/d/gone", Errno::NOENT));
        gaps.failed(Party::User(1), GapKind::Directory, &Error::call("readdir", "/d", Errno::IO));
        gaps.add("tasks that wait for memory", "no PSI", Some("psi=1"));
        gaps.add("tasks that wait for memory", "no PSI", Some("psi=1"));
        let listed = gaps.into_gaps();
        assert_eq!(listed.len(), 3, "{listed:?}");
        assert_eq!(listed[0].what, "the cached pages of files: /d/a and 2 more");
        assert!(listed[0].why.starts_with("open: Permission denied"), "{}", listed[0].why);
        assert_eq!(listed[1].what, "a file or process: /d");
        assert_eq!(listed[1].needs, None);
    }

    #[test]
    fn the_example_of_one_user_hides_none_of_another() {
        let mut gaps = VisibilityGaps::default();
        for number in 0..1000 {
            let error = Error::call("open", format!("/home/1/{number}"), Errno::IO);
            gaps.failed(Party::User(1), GapKind::File, &error);
        }
        gaps.failed(Party::User(2), GapKind::File, &Error::call("readdir", "/srv/data", Errno::LOOP));
        let listed = gaps.into_gaps();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].what, "files and processes: /home/1/0, /srv/data and 999 more");
        for why in ["open: ", "readdir: "] {
            assert!(listed[0].why.contains(why), "{}", listed[0].why);
        }
        // The line stays short, however many parties there are.
        let mut gaps = VisibilityGaps::default();
        for user in 0..1000 {
            let error = Error::call("open", format!("/home/{user}"), Errno::IO);
            gaps.failed(Party::User(user), GapKind::File, &error);
        }
        let what = &gaps.into_gaps()[0].what;
        assert_eq!(what, "files and processes: /home/0, /home/1, /home/2, /home/3 and 996 more");
    }

    #[test]
    fn very_many_directories_of_one_user_hide_no_gap_of_another() {
        let mut gaps = VisibilityGaps::default();
        for number in 0..10_000 {
            gaps.add_of(Party::User(1), &format!("the content of /d/{number}"), "it is not its own");
        }
        gaps.add_of(Party::User(2), "the content of /srv/space", "it is not its own");
        let listed: Vec<String> = gaps.into_gaps().into_iter().map(|gap| gap.what).collect();
        assert_eq!(listed.len(), PARTY_GAPS_MAX + 2);
        assert_eq!(listed[PARTY_GAPS_MAX], "9984 more of what databases of user 1 lead to");
        assert_eq!(listed[PARTY_GAPS_MAX + 1], "the content of /srv/space");
    }
}
