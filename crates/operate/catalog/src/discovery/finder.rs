//! Finds the databases among the processes, for tools that inspect them without watching them.
//!
//! It finds the same as the guard: a process by its name and its open files, an embedded database
//! by its files alone. A process that can't be inspected is known by its name at best. Fails only
//! if the processes can't be listed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::ProcRoot;

use crate::discovery::discover::{DatabaseDiscovery, FoundProcess, ProfileMatch, recognise};
use crate::discovery::process_table::{ProcessEntry, ProcessTable};
use crate::profile::Profile;

/// A running database.
#[derive(Debug, Clone)]
pub struct FoundDatabase {
    /// The ID of its process.
    pub pid: u32,
    /// Its profile. If it embeds several databases, this is the one that its process is named
    /// after.
    pub profile: Arc<Profile>,
    /// Whether it is known by its open files, not by its name alone.
    pub certain: bool,
    /// Its worker processes, ascending: its descendants whose names fit its profile, too
    /// (`PostgreSQL`).
    pub workers: Vec<u32>,
}

/// Returns the running databases, by ascending process ID.
///
/// Reads the open files of all processes, at about a microsecond per descriptor. To repeat the
/// search, keep a [`DatabaseFinder`].
///
/// ```
/// use std::sync::Arc;
/// use pagekeeper_catalog::{Profile, find_databases};
/// use pagekeeper_kernel::process::ProcRoot;
///
/// let profiles: Vec<_> = Profile::built_in().into_iter().map(Arc::new).collect();
/// for database in find_databases(&ProcRoot::default(), &profiles)? {
///     println!("{} {}", database.pid, database.profile.name);
/// }
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
pub fn find_databases(proc: &ProcRoot, profiles: &[Arc<Profile>]) -> Result<Vec<FoundDatabase>> {
    DatabaseFinder::default().find(proc, profiles)
}

/// Returns the profile that fits a process best, whether it is a database's main process or a
/// worker.
pub fn recognise_process(proc: &ProcRoot, pid: u32, profiles: &[Arc<Profile>]) -> Option<Arc<Profile>> {
    recognise(proc, pid, profiles).map(|recognised| recognised.profile)
}

/// Returns a database's worker processes, ascending: its descendants whose names fit the profile.
pub fn workers_of(proc: &ProcRoot, pid: u32, profile: &Profile) -> Result<Vec<u32>> {
    let mut table = ProcessTable::default();
    table.update(proc, Instant::now())?;
    Ok(find_workers(&table, pid, profile))
}

/// Finds databases repeatedly. Processes that are not databases are inspected less and less often.
#[derive(Debug, Default)]
pub struct DatabaseFinder {
    discovery: DatabaseDiscovery,
    known: Vec<FoundProcess>,
}

impl DatabaseFinder {
    /// Returns the running databases, by ascending process ID. A database that opens its files long
    /// after its process started is found some calls later.
    pub fn find(&mut self, proc: &ProcRoot, profiles: &[Arc<Profile>]) -> Result<Vec<FoundDatabase>> {
        let known = self.known.iter().map(|known| (known.pid, known.recognised.clone())).collect();
        let found = self.discovery.scan(proc, &known, profiles, Instant::now())?;
        let table = self.discovery.processes();
        self.known.retain(|known| {
            table.get(known.pid).is_some_and(|process| process.started == known.started)
                && found.iter().all(|found| found.pid != known.pid)
        });
        self.known.extend(found);
        // Process IDs wrap around: a worker may have been found before its parent.
        let of: BTreeMap<u32, String> =
            self.known.iter().map(|known| (known.pid, known.recognised.kind().to_owned())).collect();
        let kind_of = |pid| of.get(&pid).map(String::as_str);
        self.known.retain(|known| !table.is_worker(known.pid, known.recognised.kind(), kind_of));
        self.known.sort_unstable_by_key(|known| known.pid);
        let database = |known: &FoundProcess| {
            let ProfileMatch { profile, certain } = known.recognised.clone();
            FoundDatabase {
                pid: known.pid,
                workers: find_workers(table, known.pid, &profile),
                profile,
                certain,
            }
        };
        Ok(self.known.iter().map(database).collect())
    }
}

fn find_workers(table: &ProcessTable, pid: u32, profile: &Profile) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let is_worker = |(pid, process): &(u32, &ProcessEntry)| {
            process.parent == parent
                && !found.contains(pid)
                && profile.processes.iter().any(|glob| glob.is_match(&process.name))
        };
        let more: Vec<u32> = table.programs().filter(is_worker).map(|(pid, _)| pid).collect();
        found.extend(more);
        next += 1;
    }
    found.remove(0);
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fake_process, profiles};

    fn found(finder: &mut DatabaseFinder, proc: &ProcRoot) -> Vec<(u32, String, Vec<u32>)> {
        let databases = finder.find(proc, &profiles()).unwrap();
        databases.into_iter().map(|found| (found.pid, found.profile.name.clone(), found.workers)).collect()
    }

    #[test]
    fn each_database_is_found_once_with_its_workers() {
        let tree = tempfile::tempdir().unwrap();
        // A worker with a lower ID than its parent: the IDs have wrapped around.
        fake_process(tree.path(), 29, "postgres", 30, &[]);
        fake_process(tree.path(), 30, "postgres", 1, &[]);
        fake_process(tree.path(), 31, "postgres", 30, &[]);
        fake_process(tree.path(), 32, "sh", 31, &[]);
        fake_process(tree.path(), 33, "mysqld_safe", 1, &[]);
        fake_process(
            tree.path(),
            34,
            "mariadbd",
            33,
            &["/d/aria_log_control", "/d/#rocksdb/MANIFEST-000004"],
        );
        let proc = ProcRoot::at(tree.path());
        let expected = [(30, "postgresql".to_owned(), vec![29, 31]), (34, "mariadb".to_owned(), Vec::new())];
        let mut finder = DatabaseFinder::default();
        assert_eq!(found(&mut finder, &proc), expected);
        assert_eq!(found(&mut finder, &proc), expected);
        assert_eq!(find_databases(&proc, &profiles()).unwrap().len(), 2);
        std::fs::remove_dir_all(tree.path().join("34")).unwrap();
        assert_eq!(found(&mut finder, &proc), expected[..1]);
    }

    #[test]
    fn a_reused_process_id_is_another_process() {
        let tree = tempfile::tempdir().unwrap();
        fake_process(tree.path(), 40, "mariadbd", 1, &[]);
        let proc = ProcRoot::at(tree.path());
        let mut finder = DatabaseFinder::default();
        assert_eq!(found(&mut finder, &proc).len(), 1);
        fake_process(tree.path(), 40, "sh", 1, &[]);
        let stat = format!("40 (sh) S 1 1 1 0 -1 0 {}77 0\n", "0 ".repeat(12));
        std::fs::write(tree.path().join("40/stat"), stat).unwrap();
        assert_eq!(found(&mut finder, &proc), []);
    }
}
