//! Finding databases among the processes: by name, and by the files that they hold open. No credentials are
//! needed.
//!
//! A process is inspected when it is first seen, and again, ever more seldom, since a database may be opened
//! long after its process began. Workers of a database (a process whose parent is one of the same profile)
//! belong to it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

use pagekeeper_kernel::process::ProcRoot;

use crate::profile::Profile;

/// Scans between two inspections of the open files of a process that is no database, at first and at most.
const INSPECT_AGAIN: (u32, u32) = (2, 64);

/// A process that is a database.
#[derive(Debug, Clone)]
pub struct FoundProcess {
    /// Its id.
    pub pid: u32,
    /// What it was taken for.
    pub recognised: Recognised,
}

/// What a process was taken for.
#[derive(Debug, Clone)]
pub struct Recognised {
    /// The profile that fits it best.
    pub profile: Arc<Profile>,
    /// By its open files; by its name alone another profile may fit better once it has opened them.
    pub certain: bool,
}

/// What is known of the processes that are no databases.
#[derive(Debug, Default)]
pub struct Discovery {
    others: HashMap<u32, OtherProcess>,
}

#[derive(Debug, Default)]
struct OtherProcess {
    /// A process that becomes another program is inspected again at once.
    name: OsString,
    due: u32,
    interval: u32,
}

impl Discovery {
    /// Finds databases among `pids`, ascending, that are not in `known`.
    pub fn scan(
        &mut self,
        proc: &ProcRoot,
        pids: &[u32],
        known: &[u32],
        profiles: &[Arc<Profile>],
    ) -> Vec<FoundProcess> {
        self.others.retain(|pid, _| pids.binary_search(pid).is_ok());
        let mut found: Vec<FoundProcess> = Vec::new();
        for &pid in pids {
            if known.contains(&pid) || pid == std::process::id() {
                continue;
            }
            let Ok(name) = proc.name(pid) else {
                continue;
            };
            let other = self.others.entry(pid).or_default();
            if other.name != name {
                *other = OtherProcess { name, due: 0, interval: INSPECT_AGAIN.0 };
            }
            if other.due > 0 {
                other.due -= 1;
                continue;
            }
            other.due = other.interval;
            other.interval = (other.interval * 2).min(INSPECT_AGAIN.1);
            if let Some(recognised) = recognise(proc, pid, profiles) {
                let profile = &recognised.profile;
                let parent = proc.parent(pid).ok();
                let is_worker = parent.is_some_and(|parent| {
                    known.contains(&parent)
                        || found
                            .iter()
                            .any(|other| other.pid == parent && other.recognised.profile.name == profile.name)
                });
                if !is_worker {
                    found.push(FoundProcess { pid, recognised });
                }
            }
        }
        for database in &found {
            self.others.remove(&database.pid);
        }
        found
    }

    /// Inspects every process again at the next scan.
    pub fn forget(&mut self) {
        self.others.clear();
    }
}

/// The profile that fits a process best: its name counts one, its open files two.
pub fn recognise(proc: &ProcRoot, pid: u32, profiles: &[Arc<Profile>]) -> Option<Recognised> {
    let name = proc.name(pid).ok()?;
    let mut seen: Vec<Vec<bool>> =
        profiles.iter().map(|profile| vec![false; profile.markers.len()]).collect();
    // A process that may not be inspected can still be known by its name.
    let _ = proc.fd_links(pid, |_, target| {
        for (profile, seen) in profiles.iter().zip(&mut seen) {
            for (marker, seen) in profile.markers.iter().zip(seen) {
                *seen =
                    *seen || (marker.matches(target).is_some() && profile.is_marked_by(proc, pid, target));
            }
        }
    });
    let mut best: Option<(u32, &Arc<Profile>)> = None;
    for (profile, seen) in profiles.iter().zip(seen) {
        let by_name = profile.processes.iter().any(|glob| glob.is_match(&name));
        let by_files = !seen.is_empty() && seen.iter().all(|&seen| seen);
        let score = u32::from(by_name) + 2 * u32::from(by_files);
        if score > best.map_or(0, |(score, _)| score) {
            best = Some((score, profile));
        }
    }
    best.map(|(score, profile)| Recognised { profile: Arc::clone(profile), certain: score >= 2 })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::{fake_process as process, profiles};

    /// A directory of a RocksDB, as far as what stands beside its markers shows it.
    fn rocksdb_directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("OPTIONS-000007"), "").unwrap();
        dir
    }

    fn name_of(proc: &Path, pid: u32) -> Option<String> {
        recognise(&ProcRoot::at(proc), pid, &profiles()).map(|recognised| recognised.profile.name.clone())
    }

    #[test]
    fn mysql_and_mariadb_are_distinguished_by_their_files() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 10, "mysqld", 1, &["/d/#innodb_redo/#ib_redo3", "/d/binlog.000001"]);
        process(proc.path(), 11, "mysqld", 1, &["/d/ib_logfile0", "/d/aria_log_control"]);
        process(proc.path(), 12, "mariadbd", 1, &[]);
        process(proc.path(), 13, "mysql", 1, &[]);
        assert_eq!(name_of(proc.path(), 10).as_deref(), Some("mysql"));
        assert_eq!(name_of(proc.path(), 11).as_deref(), Some("mariadb"));
        assert_eq!(name_of(proc.path(), 12).as_deref(), Some("mariadb"));
        assert_eq!(name_of(proc.path(), 13), None);
    }

    #[test]
    fn a_server_that_has_yet_to_open_its_files_is_known_by_name_for_the_time_being() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 14, "mysqld", 1, &["/d/binlog.000001"]);
        let root = ProcRoot::at(proc.path());
        assert!(!recognise(&root, 14, &profiles()).unwrap().certain);
        std::os::unix::fs::symlink("/d/#innodb_redo/#ib_redo0", proc.path().join("14/fd/7")).unwrap();
        let later = recognise(&root, 14, &profiles()).unwrap();
        assert_eq!((later.profile.name.as_str(), later.certain), ("mysql", true));
    }

    #[test]
    fn a_process_that_becomes_another_program_is_inspected_at_once() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 15, "sh", 1, &[]);
        let root = ProcRoot::at(proc.path());
        let mut discovery = Discovery::default();
        for _ in 0..50 {
            assert!(discovery.scan(&root, &[15], &[], &profiles()).is_empty());
        }
        process(proc.path(), 15, "mariadbd", 1, &[]);
        assert_eq!(discovery.scan(&root, &[15], &[], &profiles()).len(), 1);
    }

    #[test]
    fn an_embedded_rocksdb_is_found_whatever_its_process_is_called() {
        let proc = tempfile::tempdir().unwrap();
        let data = rocksdb_directory();
        let held = ["MANIFEST-000004", "000005.log"].map(|name| data.path().join(name));
        let held = held.each_ref().map(|path| path.to_str().unwrap());
        process(proc.path(), 20, "my-service", 1, &[held[0], held[1], "socket:[7]"]);
        assert_eq!(name_of(proc.path(), 20).as_deref(), Some("rocksdb"));
    }

    #[test]
    fn a_marker_whose_directory_cannot_be_listed_is_nobodys() {
        let proc = tempfile::tempdir().unwrap();
        let data = rocksdb_directory();
        let marker = data.path().join("MANIFEST-000004");
        process(proc.path(), 21, "sh", 1, &["/nonexistent/MANIFEST-000004", "/dev/null/MANIFEST-000004"]);
        process(proc.path(), 22, "sh", 1, &[marker.to_str().unwrap()]);
        assert_eq!(name_of(proc.path(), 21), None, "there is no such directory");
        std::fs::remove_file(proc.path().join("22/root")).unwrap();
        assert_eq!(name_of(proc.path(), 22), None, "where its paths begin can't be seen");
        std::os::unix::fs::symlink("/", proc.path().join("22/root")).unwrap();
        assert_eq!(name_of(proc.path(), 22).as_deref(), Some("rocksdb"));
    }

    #[test]
    fn leveldb_is_no_rocksdb() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = dir.path().join("MANIFEST-000001");
        for name in ["MANIFEST-000001", "000003.log", "000005.ldb", "LOG", "CURRENT"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .stdin(std::fs::File::open(&manifest).unwrap())
            .spawn()
            .unwrap();
        let name = || {
            let recognised = recognise(&ProcRoot::default(), child.id(), &profiles());
            recognised.map(|recognised| recognised.profile.name.clone())
        };
        let before = name();
        std::fs::write(dir.path().join("OPTIONS-000007"), "").unwrap();
        let after = name();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((before, after.as_deref()), (None, Some("rocksdb")));
    }

    #[test]
    fn workers_belong_to_their_parent() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 30, "postgres", 1, &[]);
        process(proc.path(), 31, "postgres", 30, &[]);
        process(proc.path(), 32, "postgres", 30, &[]);
        let root = ProcRoot::at(proc.path());
        let mut discovery = Discovery::default();
        let found = discovery.scan(&root, &[30, 31, 32], &[], &profiles());
        assert_eq!(found.iter().map(|found| found.pid).collect::<Vec<_>>(), [30]);
        process(proc.path(), 33, "postgres", 30, &[]);
        assert!(discovery.scan(&root, &[30, 31, 32, 33], &[30], &profiles()).is_empty());
    }

    #[test]
    fn a_process_that_becomes_a_database_later_is_found() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 40, "service", 1, &[]);
        let root = ProcRoot::at(proc.path());
        let mut discovery = Discovery::default();
        assert!(discovery.scan(&root, &[40], &[], &profiles()).is_empty());
        let data = rocksdb_directory();
        std::os::unix::fs::symlink(data.path().join("MANIFEST-000001"), proc.path().join("40/fd/9")).unwrap();
        let scans = (1..=3).find(|_| !discovery.scan(&root, &[40], &[], &profiles()).is_empty());
        assert!(scans.is_some());
    }
}
