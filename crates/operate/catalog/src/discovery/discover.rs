//! Finds databases among the processes, by their names and by the files that they hold open. No
//! credentials are needed.
//!
//! A process is inspected when it is first seen and when it becomes another program. It is
//! inspected again since a database may be opened long after its process started. The intervals
//! grow, in proportion to the processor time that an inspection takes, up to
//! [`INSPECTION_PAUSE_MAX`]. New processes come first, and those with few descriptors before those
//! with many, and users take turns, so that no process keeps another from being found. A budget of
//! processor time limits each call. Workers of a database (processes whose parent has the same
//! profile) belong to it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{FdRounds, FdVisitor, ProcRoot};
use pagekeeper_kernel::{Error, Result};

use crate::directories::markers::MarkerCheck;
use crate::discovery::process_table::{CHECK_PERIOD, ProcessEntry, ProcessTable};
use crate::party::Party;
use crate::profile::Profile;

/// First and longest interval between two inspections of the open files of a process that is not a
/// database.
const INSPECTION_PAUSE_MIN: Duration = Duration::from_secs(1);
const INSPECTION_PAUSE_MAX: Duration = CHECK_PERIOD;
/// The interval after an inspection, as a multiple of its processor time: half a percent of a core,
/// unless the longest interval is shorter.
const PAUSE_PER_COST: u32 = 200;
/// Interval between two listings of the processes.
const LIST_INTERVAL: Duration = Duration::from_millis(900);

/// A process that is a database.
#[derive(Debug, Clone)]
pub struct FoundProcess {
    /// Its ID.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub started: u64,
    /// The party whose share it counts towards.
    pub party: Party,
    /// The profile that it matched.
    pub recognised: ProfileMatch,
}

/// The profile that a process matched.
#[derive(Debug, Clone)]
pub struct ProfileMatch {
    /// The profile that fits best.
    pub profile: Arc<Profile>,
    /// Whether it fits by open files. If it fits by name only, another profile may fit better once
    /// the process has opened its files.
    pub certain: bool,
}

impl ProfileMatch {
    /// Returns the name of the profile.
    pub fn kind(&self) -> &str {
        &self.profile.name
    }
}

/// Returns whether a process is known to be a database by more than its name.
fn is_certain(known: &BTreeMap<u32, ProfileMatch>, pid: u32) -> bool {
    known.get(&pid).is_some_and(|known| known.certain)
}

/// Processor time for one call of [`DatabaseDiscovery::advance`].
#[derive(Debug, Clone, Copy)]
pub struct InspectionBudget {
    /// The budget while some processes were never inspected.
    pub new: Duration,
    /// The budget otherwise.
    pub old: Duration,
}

impl InspectionBudget {
    /// No limit.
    pub const UNLIMITED: Self = Self { new: Duration::MAX, old: Duration::MAX };
}

/// All processes, and the inspection state of those that are not databases.
#[derive(Debug, Default)]
pub struct DatabaseDiscovery {
    table: ProcessTable,
    listed: Option<Instant>,
    others: HashMap<u32, OtherProcess>,
    rounds: FdRounds<MarkerEvidence, Party>,
    of_own_disks: bool,
}

#[derive(Debug)]
struct OtherProcess {
    party: Party,
    /// `None` while it waits for its inspection or is being inspected.
    due: Option<Instant>,
    pause: Duration,
    /// Whether it was never inspected as its current program.
    new: bool,
}

impl OtherProcess {
    fn new(party: Party) -> Self {
        Self { party, due: None, pause: INSPECTION_PAUSE_MIN, new: true }
    }

    /// Sets the next inspection, after one that took this much processor time.
    fn inspected(&mut self, now: Instant, cost: Duration) {
        self.due = Some(now + self.pause.max(cost.saturating_mul(PAUSE_PER_COST)).min(INSPECTION_PAUSE_MAX));
        self.pause = (self.pause * 2).min(INSPECTION_PAUSE_MAX);
        self.new = false;
    }
}

impl DatabaseDiscovery {
    /// Creates a discovery that never waits for a remote or user-space file system. If a profile
    /// needs files beside its markers, markers on such file systems do not count.
    pub fn of_own_disks() -> Self {
        Self { of_own_disks: true, ..Self::default() }
    }

    /// Returns the processes of the last listing.
    pub fn processes(&self) -> &ProcessTable {
        &self.table
    }

    /// Whether every process that existed at the last call of [`Self::advance`] was inspected.
    pub fn has_seen_all(&self) -> bool {
        self.listed.is_some() && !self.others.values().any(|other| other.new)
    }

    /// Lists the processes if that is due, without inspecting them.
    pub fn list(&mut self, proc: &ProcRoot, now: Instant) -> Result<()> {
        let is_due = self.listed.is_none_or(|at| now.saturating_duration_since(at) >= LIST_INTERVAL);
        if !is_due {
            return Ok(());
        }
        self.listed = Some(now);
        let changed = self.table.update(proc, now)?;
        let table = &self.table;
        self.others.retain(|pid, _| table.get(*pid).is_some());
        for pid in changed {
            let is_program = table.get(pid).is_some_and(|process| !process.kernel_thread);
            if is_program && pid != std::process::id() {
                let party = Party::of(proc, pid);
                self.others.insert(pid, OtherProcess::new(party));
                self.rounds.push_first_in(party, pid);
            }
        }
        Ok(())
    }

    /// Finds databases within the budget. Those in `known` that are not certain are returned again
    /// once they are.
    pub fn advance(
        &mut self,
        proc: &ProcRoot,
        known: &BTreeMap<u32, ProfileMatch>,
        profiles: &[Arc<Profile>],
        budget: InspectionBudget,
        now: Instant,
    ) -> Result<Vec<FoundProcess>> {
        self.list(proc, now)?;
        for (pid, other) in &mut self.others {
            if other.due.is_some_and(|due| now >= due) && !is_certain(known, *pid) {
                other.due = None;
                self.rounds.push_in(other.party, *pid);
            }
        }
        let budget = if self.others.values().any(|other| other.new) { budget.new } else { budget.old };
        let mut inspection = InspectionRound {
            proc,
            profiles,
            known,
            table: &self.table,
            others: &mut self.others,
            of_own_disks: self.of_own_disks,
            now,
            found: Vec::new(),
        };
        self.rounds.advance(proc, &mut inspection, budget);
        let mut found = inspection.found;
        let known_kind = |pid| known.get(&pid).map(ProfileMatch::kind);
        let new_kind = |pid| found.iter().find(|found| found.pid == pid).map(|found| found.recognised.kind());
        let is_worker = |found: &&FoundProcess| {
            let kind = found.recognised.kind();
            !known.contains_key(&found.pid)
                && (self.table.is_worker(found.pid, kind, new_kind)
                    || self.table.is_worker(found.pid, kind, known_kind))
        };
        let workers: Vec<u32> = found.iter().filter(is_worker).map(|found| found.pid).collect();
        found.retain(|found| !workers.contains(&found.pid));
        Ok(found)
    }

    /// Has every process inspected again.
    pub fn forget(&mut self) {
        *self = Self { of_own_disks: self.of_own_disks, ..Self::default() };
    }

    /// Finds all databases now.
    pub(crate) fn scan(
        &mut self,
        proc: &ProcRoot,
        known: &BTreeMap<u32, ProfileMatch>,
        profiles: &[Arc<Profile>],
        now: Instant,
    ) -> Result<Vec<FoundProcess>> {
        self.table.check_all();
        self.listed = None;
        self.advance(proc, known, profiles, InspectionBudget::UNLIMITED, now)
    }
}

/// One round of inspections.
struct InspectionRound<'a> {
    proc: &'a ProcRoot,
    profiles: &'a [Arc<Profile>],
    known: &'a BTreeMap<u32, ProfileMatch>,
    table: &'a ProcessTable,
    others: &'a mut HashMap<u32, OtherProcess>,
    of_own_disks: bool,
    now: Instant,
    found: Vec<FoundProcess>,
}

impl InspectionRound<'_> {
    fn process(&self, pid: u32) -> Option<&ProcessEntry> {
        self.table.get(pid)
    }

    /// Finds a process by the evidence so far. A process that may not be inspected, or was not read
    /// to its end yet, can still be found by its name.
    fn recognise(&mut self, pid: u32, evidence: &MarkerEvidence) {
        let Some(process) = self.process(pid) else { return };
        let found = self.found.iter().position(|found| found.pid == pid);
        // A process that is already known just as well is not reported again.
        let is_known = found.is_some() || self.known.contains_key(&pid);
        let recognised = evidence.best_match(&process.name, self.profiles);
        let Some(recognised) = recognised.filter(|recognised| recognised.certain || !is_known) else {
            return;
        };
        let (started, party) =
            (process.started, self.others.get(&pid).map_or(Party::Unknown, |other| other.party));
        found.map(|at| self.found.swap_remove(at));
        self.found.push(FoundProcess { pid, started, party, recognised });
    }
}

impl FdVisitor for InspectionRound<'_> {
    type Process = MarkerEvidence;

    fn begin(&mut self, pid: u32) -> Option<MarkerEvidence> {
        self.others.get(&pid).filter(|_| !is_certain(self.known, pid))?;
        let markers = if self.of_own_disks { MarkerCheck::of_own_disks(pid) } else { MarkerCheck::new(pid) };
        Some(MarkerEvidence::new(markers, self.profiles))
    }

    fn visit(&mut self, evidence: &mut MarkerEvidence, _: RawFd, target: &Path) {
        evidence.take_in(self.proc, self.profiles, target);
    }

    fn pause(&mut self, pid: u32, evidence: &MarkerEvidence) {
        self.recognise(pid, evidence);
    }

    fn end(&mut self, pid: u32, evidence: MarkerEvidence, read: Result<()>, cost: Duration) {
        let Some(other) = self.others.get_mut(&pid) else { return };
        if read.as_ref().is_err_and(Error::is_gone) {
            self.others.remove(&pid);
            self.found.retain(|found| found.pid != pid);
            return;
        }
        other.inspected(self.now, cost);
        self.recognise(pid, &evidence);
    }
}

/// The markers of the profiles that a process was seen to hold open.
#[derive(Debug)]
struct MarkerEvidence {
    markers: MarkerCheck,
    seen: Vec<Vec<bool>>,
}

impl MarkerEvidence {
    fn new(markers: MarkerCheck, profiles: &[Arc<Profile>]) -> Self {
        let seen = profiles.iter().map(|profile| vec![false; profile.markers.len()]).collect();
        Self { markers, seen }
    }

    fn take_in(&mut self, proc: &ProcRoot, profiles: &[Arc<Profile>], target: &Path) {
        for (profile, seen) in profiles.iter().zip(&mut self.seen) {
            for (marker, seen) in profile.markers.iter().zip(seen) {
                *seen =
                    *seen || (marker.matches(target).is_some() && self.markers.is_own(proc, profile, target));
            }
        }
    }

    /// Returns the profile that fits best: a matching name counts one, matching open files two. The
    /// operator's own profiles that fit are joined to it. If a process has the name of a database
    /// that also has markers, only profiles of that name can match by files. While such a server
    /// starts, or is only partly read, the files of an engine embedded in it may be all that is
    /// visible.
    fn best_match(&self, name: &OsStr, profiles: &[Arc<Profile>]) -> Option<ProfileMatch> {
        let is_called = |profile: &Profile| profile.processes.iter().any(|glob| glob.is_match(name));
        let has_the_name = profiles.iter().any(|profile| is_called(profile) && !profile.markers.is_empty());
        let scored = profiles.iter().zip(&self.seen).map(|(profile, seen)| {
            let by_name = is_called(profile);
            let by_files = !seen.is_empty() && seen.iter().all(|&seen| seen) && (by_name || !has_the_name);
            (u32::from(by_name) + 2 * u32::from(by_files), profile)
        });
        let fits: Vec<(u32, &Arc<Profile>)> = scored.filter(|(score, _)| *score > 0).collect();
        let (profile, score) = Profile::join_fitting(&fits)?;
        Some(ProfileMatch { profile, certain: score >= 2 })
    }
}

/// Returns the profile that fits a process best: a matching name counts one, matching open files
/// two.
pub fn recognise(proc: &ProcRoot, pid: u32, profiles: &[Arc<Profile>]) -> Option<ProfileMatch> {
    let name = proc.name(pid).ok()?;
    let mut evidence = MarkerEvidence::new(MarkerCheck::new(pid), profiles);
    // A process that may not be inspected can still be known by its name.
    let _ = proc.fd_links(pid, |_, target| evidence.take_in(proc, profiles, target));
    evidence.best_match(&name, profiles)
}

/// Returns the same for a process whose name and open files the caller has read.
pub fn recognise_by_files<'a>(
    proc: &ProcRoot,
    pid: u32,
    name: &OsStr,
    files: impl Iterator<Item = &'a Path>,
    profiles: &[Arc<Profile>],
) -> Option<ProfileMatch> {
    let mut evidence = MarkerEvidence::new(MarkerCheck::new(pid), profiles);
    for file in files {
        evidence.take_in(proc, profiles, file);
    }
    evidence.best_match(name, profiles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fake_process as process, profiles};

    /// Creates a directory with the files beside a RocksDB's markers.
    fn rocksdb_directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("OPTIONS-000007"), "").unwrap();
        dir
    }

    fn known(pid: u32, profile: &str, certain: bool) -> BTreeMap<u32, ProfileMatch> {
        let profile = profiles().into_iter().find(|other| other.name == profile).unwrap();
        BTreeMap::from([(pid, ProfileMatch { profile, certain })])
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
    fn files_that_are_already_known_show_the_same_as_those_that_are_read() {
        let proc = ProcRoot::at("/nowhere");
        let name = |process: &str, files: &[&str]| {
            let files = files.iter().map(Path::new);
            recognise_by_files(&proc, 7, OsStr::new(process), files, &profiles())
                .map(|recognised| recognised.profile.name.clone())
        };
        assert_eq!(name("postgres", &[]).as_deref(), Some("postgresql"));
        assert_eq!(name("mysqld", &["/d/ib_logfile0", "/d/aria_log_control"]).as_deref(), Some("mariadb"));
        assert_eq!(name("cat", &["/etc/passwd"]), None);
    }

    /// An operator's own profile is used in addition to the other profiles of a process, and never
    /// replaces them.
    #[test]
    fn a_profile_of_ones_own_is_served_beside_the_one_that_is_built_in() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 70, "postgres", 1, &[]);
        process(proc.path(), 71, "mariadbd", 1, &["/d/aria_log_control"]);
        process(proc.path(), 72, "mysqld", 1, &[]);
        process(proc.path(), 73, "alone", 1, &[]);
        let own = "name = \"own\"\nprocesses = [\"postgres\", \"mariadbd\", \"alone\"]\ndirectories = [\"log\"]\n\
                   [[log]]\nclass = \"wal\"\nfiles = \"audit-{n}.own\"\nrule = \"release-behind-writer\"\n";
        let own = Arc::new(Profile::parse(own, Path::new("own.toml")).unwrap());
        let all: Vec<_> = [own].into_iter().chain(profiles()).collect();
        let found = |pid| recognise(&ProcRoot::at(proc.path()), pid, &all).unwrap();
        let knows = |pid: u32, path: &str| found(pid).profile.log_of(Path::new(path)).is_some();
        let names = |pid: u32| found(pid).profile.names().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            (names(70), names(71)),
            (vec!["own".into(), "postgresql".into()], vec!["mariadb".into(), "own".into()])
        );
        assert_eq!((names(72), names(73)), (vec!["mariadb".to_owned()], vec!["own".to_owned()]));
        assert!(knows(70, "/d/pg_wal/00000001000000000000000A") && knows(70, "/d/log/audit-7.own"));
        assert!(knows(71, "/d/ib_logfile0") && knows(71, "/d/audit-7.own") && !knows(72, "/d/audit-7.own"));
        let both = found(70).profile;
        assert!(both.postgresql_titles);
        assert_eq!(both.directories, [Path::new("log"), Path::new("pg_wal")]);
        assert!(found(71).certain && !found(70).certain);
    }

    #[test]
    fn a_profile_in_the_place_of_a_built_in_one_competes_with_the_others() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 80, "mysqld", 1, &["/d/#innodb_redo/#ib_redo3"]);
        process(proc.path(), 81, "mysqld", 1, &["/d/aria_log_control"]);
        process(proc.path(), 82, "mysqld", 1, &["/d/audit.mark"]);
        let edited = "name = \"mariadb\"\nprocesses = [\"mysqld\"]\nmarkers = [\"aria_log_control\"]\n\
                      [[log]]\nclass = \"wal\"\nfiles = \"edited.{n}\"\nrule = \"keep\"\n";
        let audit = "name = \"audit\"\nmarkers = [\"audit.mark\"]\nprocesses = [\"mysqld\"]\n\
                     [[log]]\nclass = \"wal\"\nfiles = \"audit.{n}\"\nrule = \"keep\"\n";
        let own = |text| Arc::new(Profile::parse(text, Path::new("own.toml")).unwrap());
        let others = profiles().into_iter().filter(|profile| profile.name != "mariadb");
        let mut all: Vec<_> = [own(edited)].into_iter().chain(others).collect();
        let found = |pid, all: &[Arc<Profile>]| recognise(&ProcRoot::at(proc.path()), pid, all).unwrap();
        let names = |pid: u32| found(pid, &all).profile.names().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((names(80), names(81)), (vec!["mysql".to_owned()], vec!["mariadb".to_owned()]));
        // The files of another profile do not show which database it is.
        all.push(own(audit));
        assert_eq!(found(82, &all).profile.name, "audit");
        assert!(!found(82, &all).certain);
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
    fn a_server_with_an_embedded_engine_is_told_from_that_engine() {
        let proc = tempfile::tempdir().unwrap();
        let data = rocksdb_directory();
        let manifest = data.path().join("MANIFEST-000004");
        let root = ProcRoot::at(proc.path());
        for (pid, server) in [(16, "mariadbd"), (17, "mysqld")] {
            // MyRocks opens its files before InnoDB and Aria do.
            process(proc.path(), pid, server, 1, &[manifest.to_str().unwrap()]);
            let early = recognise(&root, pid, &profiles()).unwrap();
            assert!(early.profile.name != "rocksdb" && !early.certain, "{server}: {early:?}");
            std::os::unix::fs::symlink("/d/aria_log_control", proc.path().join(format!("{pid}/fd/7")))
                .unwrap();
            let later = recognise(&root, pid, &profiles()).unwrap();
            assert_eq!((later.profile.name.as_str(), later.certain), ("mariadb", true));
        }
    }

    #[test]
    fn a_process_that_becomes_another_program_is_inspected_at_once() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 15, "sh", 1, &[]);
        let root = ProcRoot::at(proc.path());
        let mut discovery = DatabaseDiscovery::default();
        let mut now = Instant::now();
        for _ in 0..50 {
            now += Duration::from_secs(1);
            assert!(discovery.scan(&root, &BTreeMap::new(), &profiles(), now).unwrap().is_empty());
        }
        process(proc.path(), 15, "mariadbd", 1, &[]);
        assert_eq!(discovery.scan(&root, &BTreeMap::new(), &profiles(), now).unwrap().len(), 1);
    }

    #[test]
    fn an_embedded_rocksdb_is_found_in_any_process() {
        let proc = tempfile::tempdir().unwrap();
        let data = rocksdb_directory();
        let held = ["MANIFEST-000004", "000005.log"].map(|name| data.path().join(name));
        let held = held.each_ref().map(|path| path.to_str().unwrap());
        process(proc.path(), 20, "my-service", 1, &[held[0], held[1], "socket:[7]"]);
        assert_eq!(name_of(proc.path(), 20).as_deref(), Some("rocksdb"));
    }

    #[test]
    fn servers_of_queues_and_metrics_are_known_by_their_files() {
        let proc = tempfile::tempdir().unwrap();
        let data = tempfile::tempdir().unwrap();
        let at = |name: &str| data.path().join(name).to_str().unwrap().to_owned();
        for (path, beside) in [
            ("topic-0", "00000000000000000000.timeindex"),
            ("wal", "0.tmp"),
            ("raft", "1.tmp"),
            ("alone-0", "x"),
        ] {
            std::fs::create_dir(data.path().join(path)).unwrap();
            std::fs::write(data.path().join(path).join(beside), "").unwrap();
        }
        let (segment, alone) =
            (at("topic-0/00000000000000000000.log"), at("alone-0/00000000000000000000.log"));
        let wal = at("wal/0000000000000000-0000000000000000.wal");
        let elsewhere = at("raft/0000000000000000-0000000000000000.wal");
        let alone_wal = at("alone-0/0000000000000000-0000000000000000.wal");
        process(proc.path(), 50, "java", 1, &[&segment]);
        process(proc.path(), 51, "java", 1, &[&alone]);
        process(proc.path(), 52, "java", 1, &["/d/000012.log"]);
        process(proc.path(), 53, "k3s-server", 1, &[&wal]);
        process(proc.path(), 54, "mimir", 1, &["/d/tenant/chunks_head", "/d/tenant/wal/00000001"]);
        process(proc.path(), 55, "loki", 1, &["/d/wal/00000001"]);
        process(proc.path(), 56, "jetstream", 1, &["/d/jetstream/$G/streams/S/msgs/7.blk"]);
        process(proc.path(), 57, "prometheus", 1, &["/d/wal/00000001"]);
        process(proc.path(), 58, "prometheus-node", 1, &["socket:[7]"]);
        process(proc.path(), 59, "embeds-it", 1, &[&elsewhere]);
        process(proc.path(), 60, "embeds-it", 1, &[&alone_wal]);
        let found = |pid| name_of(proc.path(), pid);
        assert_eq!((found(59).as_deref(), found(60)), (Some("etcd"), None), "by what stands beside its WAL");
        assert_eq!(found(50).as_deref(), Some("kafka"));
        assert_eq!((found(51), found(52)), (None, None), "a java that is no broker");
        assert_eq!(found(53).as_deref(), Some("etcd"));
        assert_eq!(found(54).as_deref(), Some("prometheus"));
        assert_eq!(found(55), None, "a segment alone may belong to any program");
        assert_eq!(found(56).as_deref(), Some("nats"));
        assert_eq!(found(57).as_deref(), Some("prometheus"), "an agent, by its name");
        assert_eq!(found(58), None);
    }

    #[test]
    fn a_marker_in_an_unlistable_directory_counts_for_no_database() {
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
        let mut discovery = DatabaseDiscovery::default();
        let now = Instant::now();
        let found = discovery.scan(&root, &BTreeMap::new(), &profiles(), now).unwrap();
        assert_eq!(found.iter().map(|found| found.pid).collect::<Vec<_>>(), [30]);
        process(proc.path(), 33, "postgres", 30, &[]);
        let known = known(30, "postgresql", true);
        assert!(discovery.scan(&root, &known, &profiles(), now).unwrap().is_empty());
    }

    #[test]
    fn a_database_that_another_kind_started_is_found() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 35, "postgres", 1, &[]);
        process(proc.path(), 36, "mariadbd", 35, &[]);
        let root = ProcRoot::at(proc.path());
        let found = DatabaseDiscovery::default()
            .scan(&root, &known(35, "postgresql", true), &profiles(), Instant::now())
            .unwrap();
        assert_eq!(found.iter().map(|found| found.pid).collect::<Vec<_>>(), [36]);
    }

    #[test]
    fn a_server_of_very_many_descriptors_is_known_by_its_name_before_they_are_read() {
        let proc = tempfile::tempdir().unwrap();
        let many: Vec<String> = (0..3_000).map(|number| format!("/d/{number}")).collect();
        process(proc.path(), 37, "mariadbd", 1, &many.iter().map(String::as_str).collect::<Vec<_>>());
        let root = ProcRoot::at(proc.path());
        let slice = InspectionBudget { new: Duration::ZERO, old: Duration::ZERO };
        let found = DatabaseDiscovery::default()
            .advance(&root, &BTreeMap::new(), &profiles(), slice, Instant::now())
            .unwrap();
        let found: Vec<_> = found.iter().map(|found| (found.pid, found.recognised.certain)).collect();
        assert_eq!(found, [(37, false)]);
    }

    #[test]
    fn a_process_that_becomes_a_database_later_is_found() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 40, "service", 1, &[]);
        let root = ProcRoot::at(proc.path());
        let mut discovery = DatabaseDiscovery::default();
        let now = Instant::now();
        let mut found = |seconds| {
            let now = now + Duration::from_secs(seconds);
            discovery.scan(&root, &BTreeMap::new(), &profiles(), now).unwrap().len()
        };
        assert_eq!(found(0), 0);
        for seconds in (1..=300).step_by(5) {
            assert_eq!(found(seconds), 0);
        }
        let data = rocksdb_directory();
        std::os::unix::fs::symlink(data.path().join("MANIFEST-000001"), proc.path().join("40/fd/9")).unwrap();
        assert_eq!((301..=316).map(found).find(|count| *count > 0), Some(1));
    }

    #[test]
    fn slow_processes_are_inspected_again_within_fifteen_seconds() {
        let now = Instant::now();
        let pauses = |cost: Duration| {
            let mut other = OtherProcess::new(Party::Unknown);
            let mut next = || {
                other.inspected(now, cost);
                other.due.unwrap().duration_since(now).as_secs()
            };
            [next(), next(), next(), next(), next(), next()]
        };
        assert_eq!(pauses(Duration::from_micros(50)), [1, 2, 4, 8, 15, 15]);
        assert_eq!(pauses(Duration::from_millis(30)), [6, 6, 6, 8, 15, 15]);
        assert_eq!(pauses(Duration::from_secs(2)), [15; 6]);
    }

    #[test]
    fn a_database_known_by_name_is_reported_again_when_certain() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 50, "mysqld", 1, &[]);
        let root = ProcRoot::at(proc.path());
        let mut discovery = DatabaseDiscovery::default();
        let now = Instant::now();
        let mut found = |known: &BTreeMap<u32, ProfileMatch>, seconds| {
            let found =
                discovery.scan(&root, known, &profiles(), now + Duration::from_secs(seconds)).unwrap();
            found.iter().map(|found| found.recognised.certain).collect::<Vec<_>>()
        };
        assert_eq!(found(&BTreeMap::new(), 0), [false]);
        let by_name = known(50, "mysql", false);
        assert_eq!(found(&by_name, 20), [false; 0], "no news");
        std::os::unix::fs::symlink("/d/#innodb_redo/#ib_redo0", proc.path().join("50/fd/7")).unwrap();
        assert_eq!(found(&by_name, 40), [true]);
        assert_eq!(found(&known(50, "mysql", true), 60), [false; 0]);
    }

    #[test]
    fn a_new_process_is_found_within_two_slices_beside_one_of_many_descriptors() {
        let proc = tempfile::tempdir().unwrap();
        let many: Vec<String> = (0..3_000).map(|number| format!("/d/{number}")).collect();
        process(proc.path(), 60, "many", 1, &many.iter().map(String::as_str).collect::<Vec<_>>());
        let root = ProcRoot::at(proc.path());
        let mut discovery = DatabaseDiscovery::default();
        let slice = InspectionBudget { new: Duration::ZERO, old: Duration::ZERO };
        let now = Instant::now();
        let mut found = |seconds| {
            let now = now + Duration::from_secs(seconds);
            discovery.advance(&root, &BTreeMap::new(), &profiles(), slice, now).unwrap().len()
        };
        assert_eq!(found(0), 0);
        process(proc.path(), 61, "mariadbd", 1, &[]);
        assert!(found(1) + found(2) > 0);
        assert!(!discovery.has_seen_all(), "the other one continues");
    }

    #[test]
    fn a_new_server_is_found_beside_a_crowd_of_another_user_that_has_its_name() {
        let proc = tempfile::tempdir().unwrap();
        let of_user = |pid: u32, user: u32| {
            process(proc.path(), pid, "mariadbd", 1, &[]);
            let users = format!("Uid:\t{user}\t{user}\t{user}\t{user}\nGid:\t1\t1\t1\t1\nGroups:\t\n");
            std::fs::write(proc.path().join(format!("{pid}/status")), users).unwrap();
        };
        (100..400).for_each(|pid| of_user(pid, 1001));
        of_user(400, 1002);
        let root = ProcRoot::at(proc.path());
        // Time for one process in each call.
        let slice = InspectionBudget { new: Duration::ZERO, old: Duration::ZERO };
        let (mut discovery, now) = (DatabaseDiscovery::default(), Instant::now());
        let mut advance = || discovery.advance(&root, &BTreeMap::new(), &profiles(), slice, now).unwrap();
        let found: Vec<_> = (0..2).flat_map(|_| advance()).map(|found| found.party).collect();
        assert!(found.contains(&Party::User(1002)), "{found:?}");
    }
}
