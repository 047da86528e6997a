//! Decides, from the neighbouring files, whether a marker that a process holds open belongs to a
//! database of this profile, or to another one that uses the same name.
//!
//! Invariants: if the process's directory can't be listed, the marker does not count. At most
//! `PROCESS_NAMES_MAX` names are read for one process, whatever it holds open. Each directory is
//! listed once, so thousands of descriptors in one huge directory cost at most one.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::hang;
use pagekeeper_kernel::process::{Mount, ProcRoot};
use rustix::fs::RawDir;

use pagekeeper_policy::names::NamePattern;

use crate::profile::Profile;

/// Maximum number of names read for one process: some 50 ms on Linux 6.18, ext4.
const PROCESS_NAMES_MAX: usize = 200_000;

/// The markers of one process, during one inspection.
#[derive(Debug)]
pub(crate) struct MarkerCheck {
    pid: u32,
    /// Profiles, by name, and directories without any of their files.
    refused: HashSet<(String, PathBuf)>,
    /// The number of names that may still be read.
    left: usize,
    /// Whether only local disks are queried.
    of_own_disks: bool,
    /// The mounts of the process, once they were read.
    mounts: Option<Vec<Mount>>,
}

impl MarkerCheck {
    /// Creates the check for a new inspection.
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, refused: HashSet::new(), left: PROCESS_NAMES_MAX, of_own_disks: false, mounts: None }
    }

    /// Creates a check that never waits: markers on remote or user-space file systems do not count.
    pub(crate) fn of_own_disks(pid: u32) -> Self {
        Self { of_own_disks: true, ..Self::new(pid) }
    }

    /// Whether a directory is on a local disk, as far as that is known without accessing it.
    fn is_on_own_disk(&mut self, proc: &ProcRoot, directory: &Path) -> bool {
        let mounts = self.mounts.get_or_insert_with(|| proc.mounts(self.pid).unwrap_or_default());
        Mount::of_path(mounts, directory).is_some_and(|mount| !mount.may_never_answer())
    }

    /// Whether a marker belongs to a database of this profile. `marker` is its path as the kernel
    /// shows it.
    pub(crate) fn is_own(&mut self, proc: &ProcRoot, profile: &Profile, marker: &Path) -> bool {
        if profile.beside.is_empty() {
            return true;
        }
        let directory = proc.as_seen_by(self.pid, marker.parent().unwrap_or(marker));
        let asked = (profile.name.clone(), directory);
        if self.left == 0 || self.refused.contains(&asked) {
            return false;
        }
        let may_be_asked = !self.of_own_disks || self.is_on_own_disk(proc, &asked.1);
        let is_own = may_be_asked && self.has_neighbour(proc, profile, &asked.1);
        if !is_own {
            self.refused.insert(asked);
        }
        is_own
    }

    /// A file system that does not answer counts as having no files.
    fn has_neighbour(&mut self, proc: &ProcRoot, profile: &Profile, directory: &Path) -> bool {
        let (pid, left) = (self.pid, self.left);
        let listed = if hang::is_in_job() {
            Ok(has_neighbour(proc, pid, &profile.beside, directory, left))
        } else {
            hang::run_job(|| {
                let (proc, beside, directory) =
                    (proc.clone(), profile.beside.clone(), directory.to_path_buf());
                move || has_neighbour(&proc, pid, &beside, &directory, left)
            })
        };
        let (found, left) = listed.unwrap_or((false, left));
        self.left = left;
        found
    }
}

/// Whether a directory has a file that matches one of these patterns, and how many names may be
/// read after that.
fn has_neighbour(
    proc: &ProcRoot,
    pid: u32,
    beside: &[NamePattern],
    directory: &Path,
    mut left: usize,
) -> (bool, usize) {
    let Ok(opened) = proc.open_directory_in_namespace(pid, directory) else { return (false, left) };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
    let mut entries = RawDir::new(&opened, &mut buffer);
    while left > 0
        && let Ok(_call) = hang::announce_from(opened.as_fd(), directory)
        && let Some(Ok(entry)) = entries.next()
    {
        left -= 1;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if beside.iter().any(|pattern| pattern.matches_name(name).is_some()) {
            return (true, left);
        }
    }
    (false, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_directory_is_listed_once_for_a_process() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..100 {
            std::fs::write(dir.path().join(format!("{name}")), "").unwrap();
        }
        let profiles = Profile::built_in();
        let rocksdb = profiles.iter().find(|profile| profile.name == "rocksdb").unwrap();
        let mut check = MarkerCheck::new(std::process::id());
        let proc = ProcRoot::default();
        for number in 0..1000 {
            assert!(!check.is_own(&proc, rocksdb, &dir.path().join(format!("MANIFEST-{number:06}"))));
        }
        assert_eq!(check.left, PROCESS_NAMES_MAX - 102, "with . and ..");
        std::fs::write(dir.path().join("OPTIONS-000007"), "").unwrap();
        let marker = dir.path().join("MANIFEST-000001");
        assert!(MarkerCheck::new(std::process::id()).is_own(&proc, rocksdb, &marker));
        check.left = 0;
        check.refused.clear();
        assert!(!check.is_own(&proc, rocksdb, &marker), "the room is used up");
    }
}
