//! Tests of claims by processes that are not what their names say, and of what the real databases
//! keep beside them. As root: the guard may open everything, and each process runs as a user of its
//! own.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{InspectedFile, Links, residency};
use tempfile::TempDir;

use super::Guard;
use crate::config::Options;
use crate::event::Event;

pub(super) const ATTACKER: u32 = 54_321;
pub(super) const DATABASE: u32 = 54_322;
pub(super) const OTHER: u32 = 54_323;
const SIZE: usize = 1 << 20;

/// A process with the name of a database that does nothing but hold files open.
pub(super) struct Fake(Child);

impl Fake {
    /// Starts a shell of this name and user that runs `script` in `directory`, and then waits.
    pub(super) fn start(parent: &Path, name: &str, user: u32, directory: &Path, script: &str) -> Self {
        let programs = parent.join(format!("programs-{user}"));
        std::fs::create_dir_all(&programs).unwrap();
        let program = programs.join(name);
        if !program.exists() {
            symlink("/bin/sh", &program).unwrap();
        }
        let ready = format!("{script}; echo ready; while :; do sleep 0.05; {AGAIN}; done");
        let mut child = Command::new("setpriv")
            .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
            .args(["--pdeathsig=KILL", "--"])
            .arg(program)
            .args(["-c", &ready])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

/// Makes a shell run the script in the file `go`, once it exists.
const AGAIN: &str = "if [ -e go ] && ! [ \"$went\" ]; then . ./go; went=1; fi";

impl Drop for Fake {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Returns a scratch directory where the test can run.
pub(super) fn scratch(test: &str) -> Option<TempDir> {
    let missing = ["setpriv"].into_iter().find(|program| Command::new(program).arg("-V").output().is_err());
    if !rustix::process::geteuid().is_root() || missing.is_some() {
        pagekeeper_testing::skip(format_args!("{test} needs root and setpriv"));
        return None;
    }
    let parent = std::env::var_os("PAGEKEEPER_TEST_DIR").unwrap_or_else(|| "/var/tmp".into());
    let dir = tempfile::Builder::new().prefix("pagekeeper-test-").tempdir_in(parent).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(dir)
}

pub(super) fn directory(path: PathBuf, user: u32, mode: u32) -> PathBuf {
    std::fs::create_dir(&path).unwrap();
    chown(&path, Some(user), Some(user)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

pub(super) fn log(path: PathBuf, user: u32, mode: u32) -> PathBuf {
    std::fs::write(&path, vec![1; SIZE]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    chown(&path, Some(user), Some(user)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

pub(super) fn resident(path: &Path) -> u64 {
    residency(&InspectedFile::open(path, Links::Refuse).unwrap(), 0..u64::MAX).unwrap().resident
}

pub(super) fn whole() -> u64 {
    SIZE as u64
}

/// A guard that acts, and its events.
pub(super) struct Watch {
    pub(super) guard: Guard,
    pub(super) reports: Vec<String>,
}

impl Watch {
    fn of(pids: &[u32]) -> Self {
        Self::with(Options { find: false, pids: pids.to_vec(), ..Options::default() })
    }

    pub(super) fn with(options: Options) -> Self {
        Self { guard: Guard::new(options, ProcRoot::default()).unwrap(), reports: Vec::new() }
    }

    pub(super) fn tick(&mut self) {
        let reports = &mut self.reports;
        self.guard.tick(&mut |event| match event {
            Event::Tick(_) => {}
            event => reports.push(format!("{event:?}")),
        });
    }

    /// Ticks for longer than the interval between two listings of descriptors.
    pub(super) fn tick_past_listing(&mut self) {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2500) {
            self.tick();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ticks until a file is not resident.
    pub(super) fn tick_until_released(&mut self, path: &Path) {
        let began = Instant::now();
        while resident(path) > 0 {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{} stays: {:#?}",
                path.display(),
                self.reports
            );
            self.tick();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the number of reports of this kind about this process.
    pub(super) fn report_count(&self, what: &str, pid: u32, also: &str) -> usize {
        let begins = format!("{what} {{ pid: {pid},");
        let is_about = |line: &&String| line.replace("Some(", "").replacen(')', "", 1).starts_with(&begins);
        self.reports.iter().filter(is_about).filter(|line| line.contains(also)).count()
    }
}

#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let Some(dir) = scratch("a directory that becomes a link") else { return };
    let secret = directory(dir.path().join("secret"), 0, 0o700);
    let theirs: Vec<_> = (1..=3)
        .map(|number| log(secret.join(format!("WiredTigerLog.000000000{number}")), 0, 0o600))
        .collect();
    let data = directory(dir.path().join("data"), ATTACKER, 0o755);
    let journal = directory(data.join("journal"), ATTACKER, 0o755);
    let own = log(journal.join("WiredTigerLog.0000000001"), ATTACKER, 0o600);
    log(journal.join("WiredTigerLog.0000000002"), ATTACKER, 0o600);
    let fake = Fake::start(dir.path(), "mongod", ATTACKER, &data, "exec 3>>journal/WiredTigerLog.0000000002");
    let mut watch = Watch::of(&[fake.pid()]);
    watch.tick_until_released(&own);
    std::fs::rename(&journal, data.join("was")).unwrap();
    symlink(&secret, &journal).unwrap();
    watch.tick_past_listing();
    assert_eq!(theirs.iter().map(|path| resident(path)).collect::<Vec<_>>(), [whole(); 3]);
    assert_eq!(watch.report_count("Refused", fake.pid(), "DirectoryChanged"), 1, "{:#?}", watch.reports);
}

#[test]
fn a_directory_that_is_restored_is_watched_again() {
    let Some(dir) = scratch("a directory that is restored") else { return };
    let data = directory(dir.path().join("data"), DATABASE, 0o700);
    let make = |name: &str| {
        let wal = directory(data.join(name), DATABASE, 0o700);
        let logs =
            [1, 2].map(|number| log(wal.join(format!("00000001000000000000000{number}")), DATABASE, 0o600));
        logs[0].clone()
    };
    let first = make("pg_wal");
    let fake = Fake::start(dir.path(), "postgres", DATABASE, &data, ":");
    let mut watch = Watch::of(&[fake.pid()]);
    watch.tick_until_released(&first);
    std::fs::rename(data.join("pg_wal"), data.join("pg_wal.old")).unwrap();
    watch.tick_until_released(&make("pg_wal"));
    // The directory is moved to another disk, and linked to by the database's user.
    std::fs::remove_dir_all(data.join("pg_wal")).unwrap();
    let moved = make("elsewhere");
    symlink("elsewhere", data.join("pg_wal")).unwrap();
    watch.tick_until_released(&moved);
    assert!(watch.report_count("Found", fake.pid(), "pg_wal") >= 2, "{:#?}", watch.reports);
}

#[test]
fn files_of_others_in_a_directory_of_its_own_are_left_alone() {
    let Some(dir) = scratch("files of others") else { return };
    let data = directory(dir.path().join("data"), ATTACKER, 0o755);
    let journal = directory(data.join("journal"), ATTACKER, 0o755);
    let theirs = log(journal.join("WiredTigerLog.0000000001"), DATABASE, 0o600);
    let own = log(journal.join("WiredTigerLog.0000000002"), ATTACKER, 0o600);
    log(journal.join("WiredTigerLog.0000000003"), ATTACKER, 0o600);
    let fake = Fake::start(dir.path(), "mongod", ATTACKER, &data, "exec 3<journal/WiredTigerLog.0000000003");
    let mut watch = Watch::of(&[fake.pid()]);
    watch.tick_until_released(&own);
    // Anything else may drop pages on this machine meanwhile.
    std::fs::read(&theirs).unwrap();
    watch.tick_past_listing();
    assert_eq!(resident(&theirs), whole());
    assert_eq!(watch.report_count("Refused", fake.pid(), "NotOwner"), 1, "{:#?}", watch.reports);
}

#[test]
fn a_directory_of_another_user_is_not_claimed_by_reading_there() {
    let Some(dir) = scratch("a directory of another user") else { return };
    let data = directory(dir.path().join("data"), DATABASE, 0o755);
    let journal = directory(data.join("journal"), DATABASE, 0o755);
    let logs =
        [1, 2].map(|number| log(journal.join(format!("WiredTigerLog.000000000{number}")), DATABASE, 0o644));
    let fake = Fake::start(dir.path(), "mongod", ATTACKER, &data, "exec 3<journal/WiredTigerLog.0000000002");
    let mut watch = Watch::of(&[fake.pid()]);
    watch.tick_past_listing();
    assert_eq!(logs.map(|path| resident(&path)), [whole(); 2]);
    assert_eq!(watch.report_count("Refused", fake.pid(), "NotOwner"), 1, "{:#?}", watch.reports);
    assert_eq!(watch.report_count("Found", fake.pid(), ""), 0, "{:#?}", watch.reports);
}

#[test]
fn logs_of_a_directory_given_by_its_group_are_its_writers() {
    let Some(dir) = scratch("a directory given by its group") else { return };
    let data = directory(dir.path().join("data"), 0, 0o775);
    chown(&data, None, Some(DATABASE)).unwrap();
    std::fs::write(data.join("binlog.index"), "").unwrap();
    // A file left by the previous user.
    let old = log(data.join("binlog.000001"), ATTACKER, 0o664);
    log(data.join("binlog.000002"), DATABASE, 0o664);
    let fake = Fake::start(dir.path(), "mariadbd", DATABASE, &data, "exec 3>>binlog.000002");
    Watch::of(&[fake.pid()]).tick_until_released(&old);
    // Not in a directory that everybody may write to: there another's file may have such a name.
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let old = log(data.join("binlog.000001"), ATTACKER, 0o664);
    let mut watch = Watch::of(&[fake.pid()]);
    watch.tick_past_listing();
    assert_eq!(resident(&old), whole());
}

#[test]
fn a_server_gets_its_directory_from_an_earlier_claimant() {
    let Some(dir) = scratch("a directory that was claimed before") else { return };
    let real_data = directory(dir.path().join("real"), DATABASE, 0o755);
    std::fs::write(real_data.join("binlog.index"), "").unwrap();
    let logs = [1, 2].map(|number| log(real_data.join(format!("binlog.00000{number}")), DATABASE, 0o600));
    let data = directory(dir.path().join("data"), ATTACKER, 0o755);
    let journal = directory(data.join("journal"), ATTACKER, 0o755);
    log(journal.join("WiredTigerLog.0000000001"), ATTACKER, 0o600);
    let fake = Fake::start(dir.path(), "mongod", ATTACKER, &data, "exec 3>>journal/WiredTigerLog.0000000001");
    let real = Fake::start(dir.path(), "mariadbd", DATABASE, &real_data, ":");
    let mut watch = Watch::of(&[fake.pid(), real.pid()]);
    watch.tick();
    std::fs::rename(&journal, data.join("was")).unwrap();
    symlink(&real_data, &journal).unwrap();
    // The process whose directory has changed claims it before the server has opened anything
    // there.
    std::fs::write(data.join("was/new"), "").unwrap();
    watch.tick_past_listing();
    // Whole from its first moment.
    std::fs::write(real_data.join("go.new"), "exec 3>>binlog.000002").unwrap();
    std::fs::rename(real_data.join("go.new"), real_data.join("go")).unwrap();
    watch.tick_until_released(&logs[0]);
    assert_eq!(watch.report_count("Found", real.pid(), "real"), 1, "{:#?}", watch.reports);
}

#[test]
fn the_writing_one_of_two_servers_of_a_user_owns_the_directory() {
    let Some(dir) = scratch("two kinds of the same user") else { return };
    let data = directory(dir.path().join("data"), DATABASE, 0o755);
    let shared = directory(data.join("journal"), DATABASE, 0o755);
    let logs = ["000005.log", "000007.log"].map(|name| log(shared.join(name), DATABASE, 0o600));
    log(shared.join("WiredTigerLog.0000000001"), DATABASE, 0o600);
    std::fs::write(shared.join("MANIFEST-000004"), "").unwrap();
    let fake = Fake::start(dir.path(), "mongod", DATABASE, &data, "exec 3<journal/WiredTigerLog.0000000001");
    let base = directory(dir.path().join("base"), DATABASE, 0o755);
    let opens = format!("exec 3<{0}/MANIFEST-000004 4>>{0}/000007.log", shared.display());
    std::fs::write(shared.join("OPTIONS-000006"), "").unwrap();
    let real = Fake::start(dir.path(), "service", DATABASE, &base, &opens);
    // The fake comes first.
    let mut watch = Watch::of(&[fake.pid()]);
    watch.tick();
    assert_eq!(watch.report_count("Found", fake.pid(), "journal"), 1, "{:#?}", watch.reports);
    let mut watch = Watch::of(&[fake.pid(), real.pid()]);
    watch.tick_until_released(&logs[0]);
    assert_eq!(watch.report_count("TakenOver", real.pid(), "journal"), 1, "{:#?}", watch.reports);
    let pid = fake.pid();
    watch.tick_past_listing();
    assert_eq!(watch.report_count("Found", pid, "journal"), 1, "it does not come back: {:#?}", watch.reports);
    assert_eq!(watch.report_count("TakenOver", pid, ""), 0);
    drop(real);
    watch.tick_past_listing();
    assert_eq!(
        watch.report_count("Found", pid, "journal"),
        2,
        "what was another's may be its own: {:#?}",
        watch.reports
    );
}

#[test]
fn two_servers_of_one_kind_share_a_directory() {
    let Some(dir) = scratch("two of one kind") else { return };
    let data = directory(dir.path().join("data"), DATABASE, 0o755);
    let journal = directory(data.join("journal"), DATABASE, 0o755);
    let logs = [1, 2, 3]
        .map(|number| log(journal.join(format!("WiredTigerLog.000000000{number}")), DATABASE, 0o600));
    let start = |number: u32| {
        let opens = format!("exec 3>>journal/WiredTigerLog.000000000{number}");
        Fake::start(dir.path(), "mongod", DATABASE, &data, &opens)
    };
    let (one, two) = (start(2), start(3));
    let mut watch = Watch::of(&[one.pid(), two.pid()]);
    watch.tick_until_released(&logs[0]);
    watch.tick_past_listing();
    assert_eq!(watch.report_count("Shared", two.pid(), "journal"), 1, "{:#?}", watch.reports);
    assert_eq!(watch.report_count("Refused", two.pid(), ""), 0, "{:#?}", watch.reports);
}
