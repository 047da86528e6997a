//! `pagekeeper warm --learn`: what a start reads is recorded, and loaded ahead of the next one.
//!
//! Needs root and a kernel whose events can be followed. Pages count as loaded even if the kernel
//! took them again by itself; nothing here asserts a time.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use pagekeeper_testing::Mounted;

use crate::support::command::{self, Outcome};
use crate::support::postgresql::{self, Server};
use crate::support::{self, MIB, eventually, kept_bytes};

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// The name of all recordings in these tests.
const NAME: &str = "service";

/// The directories of recordings, and of files that are read.
struct Place {
    scratch: tempfile::TempDir,
    recordings: PathBuf,
}

impl Place {
    fn new(test: &str, programs: &[&str]) -> Option<Self> {
        let programs = [programs, &["fincore", "dd", "sh"]].concat();
        support::can_follow(test, &programs).then(|| {
            let scratch = support::scratch();
            Self { recordings: scratch.path().join("recordings"), scratch }
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn recording(&self) -> PathBuf {
        self.recordings.join(NAME)
    }

    /// Creates a cold file of this many MiB.
    fn file(&self, name: &str, mib: u64) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, vec![7; usize::try_from(mib * MIB).expect("it is small")]).expect("write");
        support::evict(&path);
        path
    }

    /// Returns arguments that learn what a command reads.
    fn learning(&self, seconds: u32) -> Vec<String> {
        let recordings = self.recordings.display().to_string();
        let duration = format!("{seconds}s");
        ["warm", "--recordings", &recordings, "--duration", &duration, "--learn", NAME]
            .map(str::to_owned)
            .to_vec()
    }

    /// Runs a shell's command to its end, and the process beside it.
    fn learn(&self, script: &str) -> Outcome {
        command::run([self.learning(60), ["--", "sh", "-c", script].map(str::to_owned).to_vec()].concat())
    }

    /// Starts a command that continues, and waits until what it reads was learned.
    fn learn_beside(&self, script: &str) -> Running {
        let before = modified(&self.recording());
        let script = format!("{script}; exec sleep 600");
        let arguments = [self.learning(30), ["--", "sh", "-c", &script].map(str::to_owned).to_vec()].concat();
        let child = command::pagekeeper().args(arguments).stderr(Stdio::null()).spawn().expect("start it");
        let running = Running(child);
        eventually("a new recording", WAIT_TIMEOUT, || (modified(&self.recording()) != before).then_some(()));
        running
    }

    /// Loads what was learned.
    fn load(&self, more: &[&str]) -> Outcome {
        let recordings = self.recordings.display().to_string();
        command::run([&["warm", "--recordings", &recordings, "--learned", NAME], more].concat())
    }

    /// Returns the requested bytes of each file that the recording has.
    fn learned(&self) -> BTreeMap<String, u64> {
        let said = self.load(&["--json"]).json();
        let mut learned = BTreeMap::new();
        for file in said["files"].as_array().expect("a list of files") {
            let path = file["path"].as_str().expect("a path").to_owned();
            *learned.entry(path).or_insert(0) += file["requested"].as_u64().expect("bytes");
        }
        learned
    }
}

/// A command that continues until it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|found| found.modified()).ok()
}

/// Returns a shell's command that reads a part of a file, in MiB.
fn read(file: &Path, skip: u64, count: u64) -> String {
    format!("dd if={} of=/dev/null bs=1M skip={skip} count={count} status=none", file.display())
}

/// Returns the bytes of a file that are resident or reclaimed by the kernel.
fn resident(file: &Path) -> u64 {
    kept_bytes(&[file.to_owned()])
}

#[test]
fn pages_that_a_start_reads_are_loaded_before_the_next() {
    let Some(place) = Place::new("what a start reads", &[]) else { return };
    let (log, data, other) = (place.file("log", 32), place.file("data", 64), place.file("other", 8));
    let outcome = place.learn(&format!("{}; {}", read(&data, 20, 4), read(&log, 0, 32)));
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("this start of service read "), "{outcome:?}");
    assert_eq!(std::fs::metadata(place.recording()).unwrap().permissions().mode() & 0o777, 0o600);

    for file in [&log, &data, &other] {
        support::evict(file);
    }
    let loaded = place.load(&[]);
    assert_eq!(loaded.code, 0, "{loaded:?}");
    assert_eq!(resident(&log), 32 * MIB);
    let of_data = resident(&data);
    assert!((4 * MIB..32 * MIB).contains(&of_data), "{of_data}: what was read, and read-ahead");
    assert_eq!(resident(&other), 0);

    // The next start finds all of it, also what its log has grown by since.
    support::evict(&data);
    std::fs::write(&log, vec![8; usize::try_from(40 * MIB).unwrap()]).unwrap();
    support::evict(&log);
    let running = place.learn_beside(&format!("sleep 1; {}", read(&data, 20, 4)));
    assert_eq!(resident(&log), 40 * MIB, "loaded beside it");
    assert_eq!(resident(&data), of_data);
    drop(running);
}

#[test]
fn unused_pages_are_forgotten_and_warm_ones_kept() {
    let Some(place) = Place::new("what a start no longer reads", &[]) else { return };
    let (first, second) = (place.file("first", 16), place.file("second", 16));
    let both = format!("{}; {}", read(&first, 0, 16), read(&second, 0, 16));
    drop(place.learn_beside(&both));
    let has = |file: &Path| place.learned().contains_key(file.to_str().unwrap());
    assert!(has(&first) && has(&second), "{:?}", place.learned());
    // All is warm now, by what was just loaded: that nobody reads it says nothing.
    drop(place.learn_beside("true"));
    assert!(has(&first) && has(&second), "{:?}", place.learned());
    let sees_use = Path::new("/sys/kernel/tracing/events/filemap/mm_filemap_get_pages").exists()
        || Path::new("/sys/kernel/debug/tracing/events/filemap/mm_filemap_get_pages").exists();
    if !sees_use {
        return pagekeeper_testing::skip("what is forgotten needs Linux 6.12 and tracefs.");
    }
    for file in [&first, &second] {
        support::evict(file);
    }
    drop(place.learn_beside(&format!("sleep 1; {}", read(&first, 0, 16))));
    assert!(has(&first) && !has(&second), "{:?}", place.learned());
    assert_eq!(place.learned()[first.to_str().unwrap()], 16 * MIB);
}

#[test]
fn a_wal_of_sqlite_is_loaded_and_the_rest_is_not() {
    let Some(place) = Place::new("the WAL of SQLite", &["sqlite3"]) else { return };
    let (database, wal) = (place.at("db"), place.at("db-wal"));
    let sql = |text: &str| {
        let output = Command::new("sqlite3").arg(&database).arg(text).output().expect("run sqlite3");
        assert!(output.status.success(), "{output:?}");
    };
    sql(
        "PRAGMA journal_mode=WAL; CREATE TABLE t (v); WITH n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n \
         WHERE i < 32000) INSERT INTO t SELECT randomblob(1000) FROM n; CREATE TABLE few (v); INSERT INTO few VALUES (1);",
    );
    // Killed, it leaves its log.
    let killed = Command::new("sh")
        .args(["-c", "sqlite3 \"$1\" \"PRAGMA wal_autocheckpoint=0; UPDATE t SET v = randomblob(1000);\" \".shell kill -9 \\$PPID\""])
        .arg("sh")
        .arg(&database)
        .output()
        .expect("run sqlite3");
    let log_bytes = std::fs::metadata(&wal).unwrap_or_else(|_| panic!("no log is left: {killed:?}")).len();
    assert!(log_bytes > 30 * MIB, "{log_bytes}");
    // The end of a connection takes the log away.
    let (saved, database_bytes) = (place.at("saved"), std::fs::metadata(&database).unwrap().len());
    std::fs::copy(&wal, &saved).unwrap();
    for file in [&wal, &database] {
        support::evict(file);
    }
    let query = format!("sqlite3 {} 'SELECT count(*) FROM few;'", database.display());
    let outcome = place.learn(&query);
    assert_eq!((outcome.code, outcome.stdout.trim()), (0, "1"), "{outcome:?}");

    std::fs::copy(&saved, &wal).unwrap();
    for file in [&wal, &database] {
        support::evict(file);
    }
    place.load(&[]);
    assert_eq!(resident(&wal), log_bytes.next_multiple_of(4096));
    assert!(resident(&database) <= database_bytes, "{}", resident(&database));
    let outcome = place.learn(&query);
    assert_eq!((outcome.code, outcome.stdout.trim()), (0, "1"), "{outcome:?}");
}

#[test]
#[ignore = "long: make test-stories"]
fn segments_and_tables_of_a_crashed_postgresql_are_loaded() {
    let programs = postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    let Some(place) = Place::new("a crashed PostgreSQL", &programs) else { return };
    let _alone = support::alone();
    let words = [vec![command::program().display().to_string()], place.learning(5), vec!["--".to_owned()]];
    let mut server =
        Server::start_by(place.scratch.path(), words.concat().into_iter().map(Into::into).collect());
    let data = server.home().join("data");
    let cold = || drop(command::run([Path::new("evict"), data.as_path()]));
    let write = |server: &Server| {
        server.query("CHECKPOINT");
        let mut load = server.pgbench(&["--client=4", "--transactions=1500"]);
        assert!(load.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    };
    let newest = |server: &Server| server.segments().into_iter().max_by_key(|file| modified(file)).unwrap();
    write(&server);
    eventually("the first recordings are done", WAIT_TIMEOUT, || {
        (recorders(&place).is_empty()).then_some(())
    });
    // This recovery is recorded.
    server.crash_then(cold);
    eventually("its recovery is learned", WAIT_TIMEOUT, || (recorders(&place).is_empty()).then_some(()));
    let learned = place.learned();
    let has = |part: &str| learned.keys().any(|path| path.contains(part));
    assert!(has("/pg_wal/") && has("/base/") && has("/global/pg_control"), "{learned:?}");

    write(&server);
    let last = newest(&server);
    server.crash_then(|| {
        cold();
        let loaded = place.load(&[]);
        assert_eq!(loaded.code, 0, "{loaded:?}");
        assert_eq!(resident(&last), std::fs::metadata(&last).unwrap().len(), "{loaded:?}");
        let base = support::files_in(&data.join("base"));
        let (resident, all) = (kept_bytes(&base), support::size_bytes(&base));
        assert!(resident > MIB && resident < all, "{resident} of {all}");
    });
    server.check();
    drop(server);
    eventually("nothing stays behind", WAIT_TIMEOUT, || (recorders(&place).is_empty()).then_some(()));
}

/// Returns the processes that record for this place.
fn recorders(place: &Place) -> Vec<u32> {
    let recordings = place.recordings.display().to_string();
    let of = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        (words.get(1) == Some(&&b"warm"[..]) && words.contains(&recordings.as_bytes())).then_some(pid)
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
}

#[test]
fn a_unit_s_processes_are_known_by_their_control_group() {
    let Some(place) = Place::new("a unit's processes", &[]) else { return };
    let Some(root) = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
        .map(Path::new)
        .into_iter()
        .find(|root| root.join("cgroup.procs").exists())
    else {
        return pagekeeper_testing::skip("a unit's processes need a control group.");
    };
    let group = tempfile::Builder::new().prefix("pagekeeper-test-").suffix(".service").tempdir_in(root);
    let Ok(group) = group.map(tempfile::TempDir::keep) else {
        return pagekeeper_testing::skip("a unit's processes need a control group of their own.");
    };
    let (own, others) = (place.file("own", 8), place.file("others", 8));
    let unit = group.file_name().unwrap().to_str().unwrap().to_owned();
    let notified = place.at("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&notified).unwrap();
    socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let mut learning = command::pagekeeper();
    learning.args(place.learning(60)).args(["--unit", &unit]).env("NOTIFY_SOCKET", &notified);
    let mut learning = learning.stderr(Stdio::piped()).spawn().unwrap();
    let mut message = [0; 64];
    let length = socket.recv(&mut message).expect("it says that it is ready");
    assert_eq!(&message[..length], b"READY=1");
    let shell = |script: &str| assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    shell(&read(&others, 0, 8));
    // As a service manager starts a program: in the group before it is executed. It is looked at a
    // moment after it has begun, and must still be there.
    let service = format!("sh -c '{}; sleep 1'", read(&own, 0, 8));
    shell(&format!("echo $$ > {}/cgroup.procs; exec {service}", group.display()));
    let status = eventually("it ends after its unit", WAIT_TIMEOUT, || learning.try_wait().unwrap());
    std::fs::remove_dir(&group).unwrap();
    assert!(status.success(), "{status}");
    let learned = place.learned();
    assert!(learned.contains_key(own.to_str().unwrap()), "{learned:?}");
    assert!(!learned.contains_key(others.to_str().unwrap()), "{learned:?}");
}

#[test]
fn a_unit_that_does_not_start_leaves_the_older_recording() {
    let Some(place) = Place::new("a unit that does not start", &[]) else { return };
    let file = place.file("file", 8);
    assert_eq!(place.learn(&read(&file, 0, 8)).code, 0);
    let older = std::fs::read(place.recording()).unwrap();
    let notified = place.at("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&notified).unwrap();
    socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let mut learning = command::pagekeeper();
    // That time is none of a start's before there is a process.
    learning.args(place.learning(1)).args(["--unit", "no-such-unit.service"]).env("NOTIFY_SOCKET", &notified);
    let mut learning = Running(learning.stderr(Stdio::piped()).spawn().unwrap());
    socket.recv(&mut [0; 64]).expect("it says that it is ready");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(learning.0.try_wait().unwrap(), None, "it waits for the start");
    let pid = rustix::process::Pid::from_child(&learning.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut said = String::new();
    learning.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(learning.0.wait().unwrap().success(), "{said}");
    assert!(said.contains("no start of service was seen"), "{said}");
    assert_eq!(std::fs::read(place.recording()).unwrap(), older);
}

#[test]
fn a_command_with_an_empty_argument_is_started() {
    let Some(place) = Place::new("an empty argument", &[]) else { return };
    let words = ["--", "sh", "-c", "echo \"$#:$2\"", "sh", "", "--save"].map(str::to_owned);
    let outcome = command::run([place.learning(60), words.to_vec()].concat());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "2:--save\n"), "{outcome:?}");
}

#[test]
fn a_replaced_file_of_a_recording_is_left_alone() {
    let Some(place) = Place::new("what took the place of a recorded file", &["mkfifo"]) else { return };
    let names = ["stays", "link", "fifo", "gone", "directory"];
    let files = names.map(|name| place.file(name, 4));
    let [stays, link, fifo, gone, directory] = &files;
    let secret = place.file("secret", 4);
    let script: Vec<String> = files.iter().map(|file| read(file, 0, 4)).collect();
    assert_eq!(place.learn(&script.join("; ")).code, 0);
    support::evict(stays);
    for file in [link, fifo, gone, directory] {
        std::fs::remove_file(file).unwrap();
    }
    std::os::unix::fs::symlink(&secret, link).unwrap();
    assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
    std::fs::create_dir(directory).unwrap();
    let outcome = place.load(&[]);
    assert_eq!(resident(stays), 4 * MIB, "{outcome:?}");
    assert_eq!(resident(&secret), 0, "no link is followed: {outcome:?}");
    // Neither is one in the place of a directory.
    let [real, moved] = ["below", "moved"].map(|name| place.at(name));
    std::fs::create_dir(&real).unwrap();
    let below = place.file("below/file", 4);
    assert_eq!(place.learn(&read(&below, 0, 4)).code, 0);
    std::fs::rename(&real, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &real).unwrap();
    support::evict(&moved.join("file"));
    let outcome = place.load(&[]);
    assert_eq!(resident(&moved.join("file")), 0, "{outcome:?}");
    // The same beside a command, which is not kept waiting.
    support::evict(stays);
    let outcome = place.learn("true");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(resident(&secret), 0);
}

#[test]
fn a_recording_that_another_user_could_have_written_is_refused() {
    let Some(place) = Place::new("another user's recording", &[]) else { return };
    let file = place.file("file", 8);
    assert_eq!(place.learn(&read(&file, 0, 8)).code, 0);
    let refused = |why: &str| {
        support::evict(&file);
        let outcome = place.load(&[]);
        assert!(outcome.code == 1 && outcome.stderr.contains(why), "{outcome:?}");
        assert_eq!(resident(&file), 0);
        // A command is started all the same.
        let outcome = place.learn("echo started");
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "started\n"), "{outcome:?}");
        assert!(outcome.stderr.contains(why), "{outcome:?}");
    };
    std::os::unix::fs::chown(place.recording(), Some(1001), None).unwrap();
    refused("it belongs to another user");
    std::os::unix::fs::chown(&place.recordings, Some(1001), None).unwrap();
    refused("it belongs to another user");
    std::os::unix::fs::chown(&place.recordings, Some(0), None).unwrap();
    let mut bytes = std::fs::read(place.recording()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(place.recording(), bytes).unwrap();
    refused("damaged");
    // The recording was replaced by the reads of that start.
    assert_eq!(place.load(&[]).code, 0);
    let said = command::run(["warm", "--learned", "../x"]);
    assert!(said.code == 64 && said.stderr.contains("a name has letters"), "{said:?}");
}

#[test]
fn a_full_disk_leaves_the_older_recording() {
    let Some(mut place) = Place::new("a full disk", &[]) else { return };
    let Some(mount) = Mounted::new("tmpfs") else { return };
    std::fs::set_permissions(mount.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    place.recordings = mount.path().to_owned();
    let file = place.file("file", 8);
    assert_eq!(place.learn(&read(&file, 0, 8)).code, 0);
    let older = std::fs::read(place.recording()).unwrap();
    let filled = Command::new("dd")
        .args(["if=/dev/zero", "bs=4k", "status=none"])
        .arg(format!("of={}", mount.path().join("full").display()))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!filled.success(), "it is full");
    let outcome = place.learn("echo started");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "started\n"), "{outcome:?}");
    assert!(
        outcome.stderr.contains("can't write") && outcome.stderr.contains("No space left"),
        "{outcome:?}"
    );
    assert_eq!(std::fs::read(place.recording()).unwrap(), older);
    assert_eq!(std::fs::read_dir(&place.recordings).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_killed_recorder_leaves_the_older_recording_and_the_command() {
    let Some(place) = Place::new("a killed recorder", &[]) else { return };
    let file = place.file("file", 8);
    assert_eq!(place.learn(&read(&file, 0, 8)).code, 0);
    let older = std::fs::read(place.recording()).unwrap();
    let script = format!("{}; exec sleep 600", read(&file, 0, 4));
    let mut running = command::pagekeeper();
    running.args(place.learning(60)).args(["--", "sh", "-c", &script]).stderr(Stdio::null());
    let mut running = Running(running.spawn().unwrap());
    let recorder = eventually("the command beside its recorder", WAIT_TIMEOUT, || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", running.0.id())).ok()?;
        recorders(&place).first().copied().filter(|_| name.trim() == "sleep")
    });
    let pid = rustix::process::Pid::from_raw(recorder.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("it has ended", WAIT_TIMEOUT, || recorders(&place).is_empty().then_some(()));
    assert!(running.0.try_wait().unwrap().is_none(), "the command continues");
    assert_eq!(std::fs::read(place.recording()).unwrap(), older);
    assert_eq!(std::fs::read_dir(&place.recordings).unwrap().count(), 1);
}

#[test]
fn the_older_recording_is_loaded_with_a_warning_without_permission_for_events() {
    let Some(place) = Place::new("no permission for events", &["setpriv"]) else { return };
    let file = place.file("file", 8);
    assert_eq!(place.learn(&read(&file, 0, 8)).code, 0);
    let older = std::fs::read(place.recording()).unwrap();
    support::evict(&file);
    let mut contained = command::contained(&command::program());
    contained.args(place.learning(60)).args(["--", "sh", "-c", "echo started; sleep 1"]);
    let outcome = command::finish(&mut contained);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "started\n"), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("the reads of a start of service are not learned: "), "{outcome:?}");
    eventually("it is loaded", WAIT_TIMEOUT, || (resident(&file) == 8 * MIB).then_some(()));
    eventually("nothing stays behind", WAIT_TIMEOUT, || recorders(&place).is_empty().then_some(()));
    assert_eq!(std::fs::read(place.recording()).unwrap(), older);
}

#[test]
fn a_start_that_bypasses_the_page_cache_is_left_alone() {
    let Some(place) = Place::new("a start by direct I/O", &[]) else { return };
    let file = place.file("file", 64);
    let direct = format!("{} iflag=direct", read(&file, 0, 64));
    let running = place.learn_beside(&direct);
    drop(running);
    let outcome = place.load(&[]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("there is nothing to load ahead of it"), "{outcome:?}");
    assert_eq!(resident(&file), 0);
    let nothing =
        command::run(["warm", "--recordings", place.recordings.to_str().unwrap(), "--learned", "another"]);
    assert_eq!(nothing.code, 0, "{nothing:?}");
    assert!(nothing.stderr.contains("no start of another was recorded yet"), "{nothing:?}");
}

#[test]
fn pages_of_a_snapshot_are_loaded_in_part_and_locked() {
    let Some(place) = Place::new("a snapshot that is locked", &[]) else { return };
    let file = place.file("file", 8);
    let snapshot = place.at("snapshot");
    let [path, saved] = [&file, &snapshot].map(|path| path.to_str().unwrap());
    command::run(["warm", "--range", "2M..6M", path]).expect_success();
    command::run(["snapshot", path, "--output", saved]).expect_success();
    support::evict(&file);
    command::run(["warm", "--from", saved, "--range", "..4M"]).expect_success();
    assert_eq!(resident(&file), 2 * MIB);
    let mut locking = command::pagekeeper();
    locking.args(["warm", "--from", saved, "--lock"]).stdout(Stdio::null()).stderr(Stdio::null());
    let locking = Running(locking.spawn().unwrap());
    let status = format!("/proc/{}/status", locking.0.id());
    eventually("they are locked", WAIT_TIMEOUT, || {
        std::fs::read_to_string(&status).ok()?.contains("VmLck:\t    4096 kB").then_some(())
    });
    command::run(["evict", path]);
    assert_eq!(resident(&file), 4 * MIB, "locked pages stay");
}
