//! The guard and the doctor beside the text logs of real servers: `PostgreSQL`'s logging collector,
//! `MariaDB`'s general and slow log, `RocksDB`'s `LOG` and `mongod.log`, under names that their
//! profiles know and under names that no profile knows.
//!
//! Needs root, Debian's `postgresql`, `mariadb-server` and librocksdb-dev; skips with a sentence
//! otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_testing::servers::{LoggedServer as _, MongoDb};
use serde_json::Value;

use crate::logged::can_run_mongodb;
use crate::rocksdb_driver::{self, Driver, Role};
use crate::support;
use crate::support::command::run;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::{MIB, doctor_report, eventually, mariadb, postgresql, resident_bytes};
use crate::support::{size_bytes, wait_until_resident_below};

/// Maximum resident bytes of one log: the tail of one file, and the windows that its writer shares
/// with it.
const TAIL_BYTES_MAX: u64 = 8 * MIB;

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Enough that the growth of small files adds up to a reported size.
const MANY_LOOKS: Duration = Duration::from_secs(300);

/// The length of one statement in the log, in bytes.
const STATEMENT_BYTES: u64 = 64 << 10;

/// Has `PostgreSQL` log this many bytes of statements.
fn log_statements(server: &postgresql::Server, bytes: u64) {
    let script = server.home().join("statement.sql");
    let text = "x".repeat(usize::try_from(STATEMENT_BYTES).expect("it is small"));
    std::fs::write(&script, format!("SELECT length('{text}');\n")).expect("write a script");
    let count = format!("--transactions={}", bytes.div_ceil(STATEMENT_BYTES));
    let file = format!("--file={}", script.display());
    let mut load = server.pgbench(&["--no-vacuum", "--client=1", &count, &file]);
    let done = load.output().expect("start pgbench");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Returns the files in a directory with this name ending.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let all = support::files_in(directory);
    all.into_iter().filter(|path| path.to_str().is_some_and(|path| path.ends_with(ending))).collect()
}

/// Returns a guard's reports of files that match no pattern.
fn unnamed(ended: &EndedGuard) -> Vec<&Value> {
    let is_of = |event: &&Value| event["warning"].as_str().is_some_and(|text| text.contains("no pattern"));
    ended.events.iter().filter(|event| event["event"] == "warning").filter(is_of).collect()
}

/// Waits until the guard reports that a server's files in this directory match no pattern.
fn wait_until_unnamed(guard: &Guard, directory: &Path) -> Value {
    guard.wait_for("warning", WAIT_TIMEOUT, |event| {
        event["warning"].as_str().is_some_and(|text| text.contains("no pattern"))
            && event["path"].as_str().is_some_and(|path| Path::new(path).starts_with(directory))
    })
}

#[test]
#[ignore = "long: make test-stories"]
fn csvlog_and_jsonlog_of_postgresql_stay_out_of_the_page_cache() {
    let programs = postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("PostgreSQL's csvlog and jsonlog", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = postgresql::Server::start_with(
        scratch.path(),
        &[
            "logging_collector=on",
            "log_destination=csvlog,jsonlog",
            "log_statement=all",
            "log_rotation_size=0",
        ],
    );
    let pid = server.pid().to_string();
    let logs = || [".csv", ".json"].map(|ending| files(&server.wal().with_file_name("log"), ending)).concat();
    // Several files of each log, whose names have the time in them.
    for _ in 0..3 {
        log_statements(&server, 8 * MIB);
        let before = logs().len();
        eventually("another file", WAIT_TIMEOUT, || {
            server.query("SELECT pg_rotate_logfile()");
            (logs().len() > before).then_some(())
        });
    }
    log_statements(&server, 8 * MIB);
    assert!(support::kept_bytes(&logs()) > 60 * MIB, "nothing releases them yet");

    let report = doctor_report::of(&run(["doctor", "--pid", &pid, "--json", "--watch", "3s"]));
    let found = doctor_report::finding(&report, "logs-in-cache").expect("the logs are in the page cache");
    let all = found["evidence"].as_array().expect("evidence");
    let figure = |name: &str, of: &dyn Fn(&Value) -> bool| {
        let figures = all.iter().map(|evidence| &evidence["figures"]);
        figures.clone().find(|figures| of(figures)).and_then(|figures| figures[name].as_u64())
    };
    let resident = figure("resident_bytes", &|figures| figures["class"] == "text");
    assert!(resident > Some(60 * MIB), "{found:#}");
    // Except the tail of each, and the current WAL segment.
    let [all, releasable] =
        ["resident_bytes", "releasable_bytes"].map(|name| figure(name, &|figures| figures["readers"] == 0));
    assert!(releasable.zip(all).is_some_and(|(some, all)| some + 32 * MIB > all), "{found:#}");

    let guard = Guard::spawn(&["--pid", &pid, "--tick", "250ms"]);
    wait_until_resident_below(&logs(), 2 * TAIL_BYTES_MAX, WAIT_TIMEOUT);
    // The same while it is written, and with a near reader.
    let mut reader = std::process::Command::new("tail")
        .args(["-q", "-c", "0", "-f"])
        .args(logs())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("start tail");
    guard.wait_for("tick", WAIT_TIMEOUT, |tick| tick["followers"].as_u64() > Some(0));
    log_statements(&server, 24 * MIB);
    guard.assert_bounded(2 * TAIL_BYTES_MAX + 32 * MIB, resident_bytes(&logs()), || resident_bytes(&logs()));
    wait_until_resident_below(&logs(), 2 * TAIL_BYTES_MAX, WAIT_TIMEOUT);
    // Pages that a reader has yet to read stay while it has the file open.
    let stopped = rustix::process::Pid::from_child(&reader);
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).expect("stop tail");
    log_statements(&server, 12 * MIB);
    guard.wait_for_ticks(12);
    let resident = resident_bytes(&logs());
    assert!(resident > 20 * MIB, "{resident} bytes are left for a reader that has yet to read 24 MiB");
    reader.kill().expect("end tail");
    reader.wait().expect("wait for tail");
    wait_until_resident_below(&logs(), 2 * TAIL_BYTES_MAX, WAIT_TIMEOUT);

    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert!(ended.summary()["released_bytes"]["text"].as_u64() > Some(100 * MIB), "{}", ended.summary());
    assert!(unnamed(&ended).is_empty(), "{:#?}", unnamed(&ended));
    println!("{} bytes logged; {}", size_bytes(&logs()), ended.summary());
}

#[test]
#[ignore = "long: make test-stories"]
fn a_log_of_postgresql_that_no_pattern_names_is_reported_once() {
    let programs = postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("PostgreSQL's log of another name", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    // Rotated by size, the default: no file grows by much.
    let place = scratch.path().join("audit");
    std::fs::create_dir(&place).expect("make a directory");
    std::os::unix::fs::chown(&place, Some(user_of("postgres")), None).expect("give it away");
    let server = postgresql::Server::start_with(
        scratch.path(),
        &[
            "logging_collector=on",
            "log_statement=all",
            "log_rotation_size=10MB",
            "log_filename=statements-%H%M%S.txt",
            &format!("log_directory={}", place.display()),
        ],
    );
    let pid = server.pid().to_string();
    let guard = Guard::spawn(&["--pid", &pid, "--tick", "250ms"]);
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    guard.wait_for_ticks(4);
    let said = || {
        guard.has_event("warning", |event| {
            event["warning"].as_str().is_some_and(|text| text.contains("no pattern"))
        })
    };
    // The guard knows a rotated file's size from its last sample, which may be 15 s old on a busy
    // machine.
    let start = Instant::now();
    while !said() && start.elapsed() < MANY_LOOKS {
        log_statements(&server, 8 * MIB);
        std::thread::sleep(Duration::from_millis(1200));
    }
    let warning = wait_until_unnamed(&guard, &place);
    assert!(warning["warning"].as_str().is_some_and(|text| text.contains("doctor")), "{warning:#}");
    log_statements(&server, 24 * MIB);
    guard.wait_for_ticks(8);
    let ended = guard.stop();
    assert_eq!(unnamed(&ended).len(), 1, "{:#?}", unnamed(&ended));
    println!("{} bytes logged", size_bytes(&files(&place, ".txt")));
}

#[test]
fn text_logs_of_mariadb_are_released_and_one_of_another_name_is_reported() {
    if !support::can_run("MariaDB's general and slow log", &mariadb::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let all = ["--general-log=ON", "--general-log-file=queries.log", "--max-allowed-packet=64M"];
    let slow = ["--slow-query-log=ON", "--slow-query-log-file=slow.log", "--long-query-time=0"];
    let options = all.into_iter().chain(slow).fold(mariadb::Options::primary(), mariadb::Options::argument);
    let server = mariadb::Server::start(scratch.path(), options);
    let pid = server.pid().to_string();
    let log_queries = |bytes: u64| {
        let statement =
            format!("SELECT LENGTH('{}');\n", "x".repeat(usize::try_from(MIB).expect("it is small")));
        (0..bytes / MIB / 8).for_each(|_| server.run_script(&statement.repeat(8)));
    };
    log_queries(48 * MIB);
    let named = ["queries.log", "slow.log"].map(|name| server.data().join(name));
    for log in &named {
        let kept = support::kept_bytes(std::slice::from_ref(log));
        assert!(kept > 47 * MIB, "nothing releases {} yet", log.display());
    }
    let guard = Guard::spawn(&["--pid", &pid, "--tick", "250ms"]);
    wait_until_resident_below(&named, 2 * TAIL_BYTES_MAX, WAIT_TIMEOUT);

    // Logs to another file, whose name matches no pattern.
    server.query("SET GLOBAL general_log_file = 'statements.txt'");
    log_queries(4 * MIB);
    guard.wait_for_ticks(8);
    log_queries(96 * MIB);
    wait_until_unnamed(&guard, &server.data());
    let ended = guard.stop();
    assert_eq!(unnamed(&ended).len(), 1, "{:#?}", unnamed(&ended));
    assert!(ended.summary()["released_bytes"]["text"].as_u64() > Some(100 * MIB), "{}", ended.summary());

    let report = doctor_report::of(&run(["doctor", "--pid", &pid, "--json", "--watch", "2s"]));
    let found = doctor_report::finding(&report, "unnamed-log").expect("it is in the page cache");
    assert!(found["title"].as_str().is_some_and(|title| title.contains("no pattern")), "{found:#}");
    let lines = found["pagekeeper"].as_str().expect("the lines for a profile");
    assert!(lines.contains("files = \"statements.txt\"") && lines.contains("class = \"text\""), "{lines}");
}

#[test]
fn the_info_log_of_rocksdb_stays_out_of_the_page_cache() {
    if !rocksdb_driver::can_run("the guard beside RocksDB's LOG") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut database = Driver::start(scratch.path(), Role::Primary);
    let logs = |database: &Driver| database.files(|name| name.starts_with("LOG"));
    let pid = database.pid();
    check_log_is_released(&mut database, pid, logs, |database, bytes| database.ask("log", bytes));
    let rotated = logs(&database).into_iter().filter(|path| path.to_string_lossy().contains("LOG.old."));
    assert!(rotated.count() > 3, "{:?}", logs(&database));
}

#[test]
#[ignore = "make test-databases fetches MongoDB"]
fn the_text_log_of_mongodb_stays_out_of_the_page_cache() {
    if !can_run_mongodb() {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = MongoDb::start(&scratch.path().join("mongodb"));
    let pid = server.pid();
    check_log_is_released(&mut server, pid, |server| vec![server.text_log()], MongoDb::log);
}

/// Makes a server write to its text log, and checks that without a guard all pages stay, and with
/// one at most a tail.
fn check_log_is_released<S>(
    server: &mut S,
    pid: u32,
    logs: impl Fn(&S) -> Vec<PathBuf>,
    log: impl Fn(&mut S, u64),
) {
    log(server, 56 * MIB);
    assert!(support::kept_bytes(&logs(server)) > 55 * MIB, "nothing releases it yet");
    let guard = Guard::spawn(&["--pid", &pid.to_string(), "--tick", "250ms"]);
    wait_until_resident_below(&logs(server), TAIL_BYTES_MAX, WAIT_TIMEOUT);
    log(server, 48 * MIB);
    wait_until_resident_below(&logs(server), TAIL_BYTES_MAX, WAIT_TIMEOUT);
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert!(ended.summary()["released_bytes"]["text"].as_u64() > Some(90 * MIB), "{}", ended.summary());
    assert!(unnamed(&ended).is_empty(), "{:#?}", unnamed(&ended));
}

/// Returns the id of a user.
fn user_of(name: &str) -> u32 {
    let output = std::process::Command::new("id").args(["-u", name]).output().expect("run id");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("there is such a user")
}
