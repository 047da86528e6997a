//! The guard beside a database that is hostile or whose file system hangs: the other databases are
//! served as before.
//!
//! The databases are programs that only hold files open, under a database's name. Needs root,
//! `fincore`, `setpriv`, and, for a hung file system, `bindfs`, whose process is stopped; skips
//! with a sentence otherwise.

use crate::support;
use crate::support::fake::Database;
use crate::support::guard::{Guard, program};
use crate::support::memory_group::MemoryGroup;
use crate::support::prometheus::free_port;
use crate::support::unit::memory_max;
use crate::support::{MIB, eventually, evict, kept_bytes, resident_bytes};
use pagekeeper_testing::{HangingMount, Mounted};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

fn binlog(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("binlog.{number:06}"))
}

/// Returns a directory of binary logs; the last one is the writer's, and empty.
fn logs(directory: &Path, count: u64, size: u64) -> Vec<PathBuf> {
    std::fs::create_dir_all(directory).expect("make a directory");
    std::fs::write(directory.join("binlog.index"), b"").expect("write an index");
    let paths: Vec<PathBuf> = (1..=count).map(|number| binlog(directory, number)).collect();
    for (index, path) in (1..).zip(&paths) {
        fill(path, if index < count { size } else { 0 });
    }
    paths
}

fn fill(path: &Path, size: u64) {
    let bytes = vec![7; usize::try_from(size).expect("a small size")];
    std::fs::write(path, bytes).and_then(|()| File::open(path)?.sync_all()).expect("write a log");
}

/// Reads a log, and waits until it is released again.
fn wait_until_released(what: &str, log: &Path) {
    wait_until_released_within(WAIT_TIMEOUT, what, log);
}

fn wait_until_released_within(deadline: Duration, what: &str, log: &Path) {
    assert!(!std::fs::read(log).expect("read a log").is_empty());
    eventually(what, deadline, || (resident_bytes(&[log.to_owned()]) == 0).then_some(()));
}

/// Returns a configuration that samples often, even when idle.
///
fn config(directory: &Path, more: &str) -> String {
    let config = directory.join("guard.toml");
    std::fs::write(&config, format!("tick = \"100ms\"\nidle_tick = \"100ms\"\n{more}"))
        .expect("write the configuration");
    config.into_os_string().into_string().expect("a path of this test's own")
}

fn guard(directory: &Path, databases: &[&Database]) -> Guard {
    guard_with(databases, &["--config", &config(directory, "")])
}

fn guard_with(databases: &[&Database], more: &[&str]) -> Guard {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--"]).arg(program());
    guard_by(command, databases, more)
}

/// Starts the guard by a launcher, with more arguments.
fn guard_by(mut command: Command, databases: &[&Database], more: &[&str]) -> Guard {
    command.args(["guard", "--json", "--profile", "mariadb"]).args(more);
    for database in databases {
        command.args(["--pid", &database.pid().to_string()]);
    }
    Guard::spawn_command(&mut command)
}

/// Returns how often the kernel killed a process of the group for its memory.
fn kills(group: &MemoryGroup) -> u64 {
    let read = |name| std::fs::read_to_string(group.path().join(name));
    let text = read("memory.oom_control").or_else(|_| read("memory.events")).expect("the group's events");
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("a count of kills");
    count.parse().expect("a number")
}

#[test]
fn a_directory_of_very_many_names_costs_the_others_nothing() {
    many_names("pagekeeper-guard.service", 100_000, &[]);
}

#[test]
#[ignore = "two minutes: make test-hostile"]
fn half_a_million_names_fit_into_the_memory_of_the_unit() {
    many_names("pagekeeper-guard.service", 500_000, &[]);
}

#[test]
#[ignore = "two minutes: make test-hostile"]
fn half_a_million_names_fit_into_the_memory_of_the_unit_with_metrics() {
    let port = free_port().to_string();
    many_names("pagekeeper-guard.service.d/metrics.conf", 500_000, &["--metrics", &port]);
}

/// Runs the guard with these arguments beside a database and a directory of `names` files, with
/// the memory limit of the unit. Inodes and names take most of that memory.
fn many_names(unit: &str, names: u64, more: &[&str]) {
    if !support::can_run("a directory of very many names", &["fincore", "setpriv"]) {
        return;
    }
    let _alone = support::alone();
    // Uses a fresh file system: ext4 skips recently deleted inodes one by one for each new file.
    //
    let Some(disk) = Mounted::new("xfs") else { return };
    let scratch = support::scratch();
    let (many, few) = (disk.path().join("many"), scratch.path().join("few"));
    logs(&many, 1, 0);
    for number in 2..=names {
        File::create(binlog(&many, number)).expect("make a file");
    }
    let own = logs(&few, 3, MIB);
    let hostile = Database::start(scratch.path(), &binlog(&many, names));
    let honest = Database::start(scratch.path(), &own[2]);
    let limit = memory_max(unit);
    let Some(group) = MemoryGroup::new("a directory of very many names", limit) else { return };
    // With this many files a quiet one is sampled every 128 ticks; with idle ticks of two seconds
    // that would be four minutes. Shorter ticks have so little time that going through thousands of
    // files takes all of it.
    let config = scratch.path().join("guard.toml");
    std::fs::write(&config, "tick = \"500ms\"\nidle_tick = \"500ms\"\n").expect("write the configuration");
    let config = config.into_os_string().into_string().expect("a path of this test's own");
    let arguments = [&["--config", &*config], more].concat();
    let guard = guard_by(group.command(&program().to_string_lossy()), &[&hostile, &honest], &arguments);
    wait_until_released("the other's log is released", &own[0]);
    guard.wait_for("in_part", WAIT_TIMEOUT, |event| {
        event["budget"] == "names" && event["pid"] == hostile.pid()
    });
    guard.wait_for("tick", WAIT_TIMEOUT, |tick| {
        tick["left_out_files"].as_u64().is_some_and(|left| left > names / 2)
    });
    wait_until_released("the other's log is still released", &own[1]);
    // The newest of the many files are served.
    let newest = binlog(&many, names - 1);
    fill(&newest, MIB);
    // The log is sampled in one of 128 turns, and every other turn may go to listings.
    wait_until_released_within(3 * WAIT_TIMEOUT, "the newest but one of the many is released", &newest);
    guard.wait_for_ticks(20);
    let peak = guard.memory_peak_bytes();
    println!("{unit}: {:.1} MiB of memory", peak as f64 / MIB as f64);
    assert!(peak < limit, "{peak}");
    assert!(guard.stop().status.success());
    assert_eq!(kills(&group), 0, "{unit}");
}

#[test]
#[ignore = "long: make test-stories"]
fn pages_scattered_over_large_files_cost_the_others_nothing() {
    const FILE_COUNT: u64 = 20;
    const WINDOWS: u64 = 1000;
    if !support::can_run("scattered pages", &["fincore", "setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let (sparse, few) = (scratch.path().join("sparse"), scratch.path().join("few"));
    let large = logs(&sparse, FILE_COUNT, 0);
    for path in &large {
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_len(WINDOWS * 2 * MIB))
            .expect("grow");
    }
    let touch = || {
        for path in &large {
            let file = File::open(path).expect("open a log");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("advise");
            for window in 0..WINDOWS {
                file.read_at(&mut [0], window * 2 * MIB).expect("read");
            }
        }
    };
    touch();
    let own = logs(&few, 3, MIB);
    let hostile = Database::start(scratch.path(), &large[0]);
    let honest = Database::start(scratch.path(), &own[2]);
    let guard = guard(scratch.path(), &[&hostile, &honest]);
    guard.wait_for("in_part", WAIT_TIMEOUT, |event| event["pid"] == hostile.pid());
    for log in &own[..2] {
        touch();
        wait_until_released("the other's log is released", log);
    }
    // Beyond what it saved up, the hostile one gets a small share of a processor.
    let (before, began) = (guard.cpu_seconds(), Instant::now());
    while began.elapsed() < Duration::from_secs(10) {
        touch();
    }
    let share = (guard.cpu_seconds() - before) / began.elapsed().as_secs_f64();
    println!("the guard took {:.1} % of a core", share * 100.0);
    assert!(share < 0.25, "{share}");
    assert!(guard.memory_peak_bytes() < 64 * MIB);
    assert!(guard.stop().status.success());
}

#[test]
#[ignore = "three minutes: make test-hostile"]
fn a_server_that_starts_when_all_places_are_taken_gets_its_own() {
    const PROCESSES: u32 = 4;
    const PLACES_PER_PROCESS: u64 = 1024;
    if !support::can_run("all places for directories", &["fincore", "setpriv", "bash"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    support::open_to_others(scratch.path());
    let give = |path: &Path, user: u32| {
        for entry in std::fs::read_dir(path).expect("list").map(|entry| entry.expect("list").path()) {
            std::os::unix::fs::chown(entry, Some(user), Some(user)).expect("give it away");
        }
        std::os::unix::fs::chown(path, Some(user), Some(user)).expect("give it away");
    };
    // Two processes of each of two users hold as many as fit.
    let (open, gate) = (scratch.path().to_owned(), scratch.path().join("gate"));
    let hoards = (0..PROCESSES).map(|number| {
        let (directory, user) = (scratch.path().join(format!("hoard{number}")), 54_321 + number % 2);
        for number in 0..PLACES_PER_PROCESS {
            let own = directory.join(number.to_string());
            std::fs::create_dir_all(&own).expect("make a directory");
            for name in ["binlog.index", "binlog.000001"] {
                File::create(own.join(name)).expect("make a file");
            }
            give(&own, user);
        }
        Database::of_many(scratch.path(), &directory, user, &open)
    });
    let hoards: Vec<Database> = hoards.collect();
    let own = logs(&scratch.path().join("server/data"), 3, MIB);
    give(&scratch.path().join("server/data"), 54_323);
    let server = Database::of_many(scratch.path(), &scratch.path().join("server"), 54_323, &gate);
    // Uses the default tick: shorter ones leave too little time for new directories.
    //
    let guard = guard_with(&hoards.iter().chain([&server]).collect::<Vec<_>>(), &["--tick", "500ms"]);
    let files = |tick: &serde_json::Value| tick["files"].as_u64().unwrap_or_default();
    let all = u64::from(PROCESSES) * PLACES_PER_PROCESS;
    // The files are taken up as the budget of processor time allows.
    guard.wait_for("tick", 5 * WAIT_TIMEOUT, |tick| files(tick) == all);

    File::create(&gate).expect("open the gate");
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    guard.wait_for("in_part", WAIT_TIMEOUT, |event| {
        event["budget"] == "directories" && hoards.iter().any(|hoard| event["pid"] == hoard.pid())
    });
    wait_until_released("the server's log is released", &own[1]);
    guard.wait_for_ticks(5);
    let tick = guard.latest_tick().expect("it ticks");
    // One directory with three logs.
    assert_eq!(files(&tick), all - 1 + 3, "{tick}");
    assert!(guard.memory_peak_bytes() < 64 * MIB);
    assert!(guard.stop().status.success());
}

#[test]
#[ignore = "long: make test-stories"]
fn a_file_system_that_does_not_answer_stops_nobody_else() {
    if !support::can_run("a file system that hangs", &["fincore", "setpriv", "bindfs"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let (below, point, few) =
        (scratch.path().join("below"), scratch.path().join("point"), scratch.path().join("few"));
    logs(&below, 3, MIB);
    let own = logs(&few, 3, MIB);
    let hanging = HangingMount::mount(&below, &point, "binlog.index");
    let behind = binlog(&point, 1);
    let remote = Database::start(scratch.path(), &binlog(&point, 3));
    let local = Database::start(scratch.path(), &own[2]);
    let guard = guard(scratch.path(), &[&remote, &local]);
    wait_until_released("the remote log is released", &behind);
    wait_until_released("the local log is released", &own[0]);

    hanging.stop();
    let hung = guard.wait_for("hung", WAIT_TIMEOUT, |event| event["pid"] == remote.pid());
    assert!(hung["seconds"].as_f64().is_some_and(|seconds| seconds >= 5.0), "{hung}");
    assert_eq!(guard.latest_tick().expect("it ticks")["hung"], 1);
    wait_until_released("the local log is released meanwhile", &own[1]);

    hanging.go_on();
    guard.wait_for("answers", WAIT_TIMEOUT, |event| event["pid"] == remote.pid());
    wait_until_released("the remote log is released again", &behind);

    hanging.stop();
    eventually("it hangs again", WAIT_TIMEOUT, || (guard.latest_tick()?["hung"] == 1).then_some(()));
    let began = Instant::now();
    let ended = guard.stop();
    let took = began.elapsed();
    hanging.go_on();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(took < Duration::from_secs(30), "{took:?}");
}

/// `cat`, which reads a file only as fast as its output is consumed.
struct CatReader(Child);

impl CatReader {
    fn of(path: &Path) -> Self {
        Self(Command::new("cat").arg(path).stdout(Stdio::piped()).spawn().expect("start cat"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn read(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).expect("a small size");
        let output = self.0.stdout.as_mut().expect("piped");
        output.read_exact(&mut vec![0; bytes]).expect("read what it reads");
    }

    /// Consumes its output slowly in a thread. Returns the bytes so far.
    fn keep_reading(&mut self) -> Arc<AtomicU64> {
        let mut output = self.0.stdout.take().expect("piped");
        let taken = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&taken);
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 18];
            while let Ok(bytes @ 1..) = output.read(&mut piece) {
                sum.fetch_add(bytes as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        taken
    }

    fn end(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("end cat");
    }
}

/// Starts the guard of a database with more configuration.
fn configured(directory: &Path, database: &Database, more: &[&str], text: &str) -> Guard {
    let (config, pid) = (config(directory, text), database.pid().to_string());
    Guard::spawn(&[&["--config", &config, "--pid", &pid], more].concat())
}

#[test]
#[ignore = "long: make test-stories"]
fn a_stream_on_a_file_system_that_does_not_answer_stops_no_database_and_no_other_stream() {
    if !support::can_run("two streams, of which one hangs", &["fincore", "setpriv", "bindfs", "cat"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let (below, point, few) =
        (scratch.path().join("below"), scratch.path().join("point"), scratch.path().join("few"));
    let local = scratch.path().join("dump");
    std::fs::create_dir(&below).expect("make a directory");
    for file in [&below.join("dump"), &local] {
        fill(file, 256 * MIB);
        evict(file);
    }
    let own = logs(&few, 3, MIB);
    let hanging = HangingMount::mount(&below, &point, "dump");
    let database = Database::start(scratch.path(), &own[2]);
    let (mut remote, mut near) = (CatReader::of(&point.join("dump")), CatReader::of(&local));
    let guard = configured(scratch.path(), &database, &[], "[streams]\nprocesses = [\"cat\"]\n");
    guard.wait_for("tick", WAIT_TIMEOUT, |_| true);
    let taken = remote.keep_reading();
    near.read(16 * MIB);
    for stream in [&remote, &near] {
        guard.wait_for("stream", WAIT_TIMEOUT, |event| event["pid"] == stream.pid());
    }
    wait_until_released("the local log is released", &own[0]);

    // The stream reads all the time, so that there are always pages to release.
    eventually("it reads", WAIT_TIMEOUT, || (taken.load(Ordering::Relaxed) > 16 * MIB).then_some(()));
    hanging.stop();
    assert!(taken.load(Ordering::Relaxed) < 240 * MIB, "it hangs while it reads");
    guard.wait_for("problem", WAIT_TIMEOUT, |event| {
        event["problem"].as_str().is_some_and(|problem| problem.contains("its file system does not answer"))
    });
    near.read(64 * MIB);
    eventually("pages of the other reader are released", WAIT_TIMEOUT, || {
        (kept_bytes(std::slice::from_ref(&local)) < 32 * MIB).then_some(())
    });
    wait_until_released("the local log is released meanwhile", &own[1]);

    hanging.go_on();
    for stream in [&mut remote, &mut near] {
        stream.end();
        guard.wait_for("stream_ended", WAIT_TIMEOUT, |event| event["pid"] == stream.pid());
    }
    assert!(guard.stop().status.success());
}

#[test]
fn a_control_file_on_a_file_system_that_does_not_answer_stops_no_other_database() {
    if !support::can_run("a control file that hangs", &["fincore", "setpriv", "bindfs"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let (data, below, few) =
        (scratch.path().join("data"), scratch.path().join("below"), scratch.path().join("few"));
    let (wal, global) = (data.join("pg_wal"), data.join("global"));
    for directory in [&wal, &below] {
        std::fs::create_dir_all(directory).expect("make a directory");
    }
    fill(&below.join("pg_control"), 8192);
    let own = logs(&few, 3, MIB);
    let hanging = HangingMount::mount(&below, &global, "pg_control");
    let local = Database::start(scratch.path(), &own[2]);
    for number in 1..=2 {
        fill(&wal.join(format!("{:024X}", (1_u128 << 64) + number)), 16 * MIB);
    }
    hanging.stop();
    let rule = "[rules.wal]\nrule = \"release-before-checkpoint\"\n";
    let named = ["--dir", wal.to_str().expect("a path of this test's own")];
    let guard = configured(scratch.path(), &local, &named, rule);
    let of_wal =
        |event: &serde_json::Value| event["path"].as_str().is_some_and(|path| path.ends_with("/pg_wal"));
    guard.wait_for("hung", WAIT_TIMEOUT, of_wal);
    wait_until_released("the log beside it is released meanwhile", &own[0]);
    hanging.go_on();
    guard.wait_for("answers", WAIT_TIMEOUT, of_wal);
    // The reader shows no position, so all of its log stays.
    guard.wait_for("problem", WAIT_TIMEOUT, |event| {
        event["problem"]
            .as_str()
            .is_some_and(|problem| problem.contains("crash recovery starts is not known"))
    });
    assert!(guard.stop().status.success());
}
