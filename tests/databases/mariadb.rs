//! The guard beside a real `MariaDB`: a primary under sysbench's load, with a real replica,
//! and with a crash.
//!
//! Needs root and Debian's `mariadb-server`, `sysbench` and `util-linux`; skips with a sentence
//! otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s, reads
//! are the kernel's own counts.

use crate::support;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::mariadb::{BINLOG_BYTES, GALERA, Options, REQUIRED_PROGRAMS, Server};
use crate::support::sysbench::{self, Load, LoadedServer as _};
use crate::support::{MIB, kept_bytes, resident_bytes, size_bytes, wait_until_resident_below};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Maximum page cache of log files while a load runs. It has room for the current
/// binlog and the three that followers may still read, and a margin for the redo log and the bytes
/// of one tick.
const BUSY_LIMIT: u64 = (3 + 1) * BINLOG_BYTES + 64 * MIB;

/// Maximum soon after the load.
const IDLE_LIMIT: u64 = 16 * MIB;

/// Binlogs that a load fills: their bytes alone are more than `BUSY_LIMIT`, together with the redo
/// ring.
const BINLOGS: usize = 8;

/// No step takes this long, even on a slow disk.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Lets the load continue until it has begun `binlogs` more files, and calls `sample` with the
/// bytes of all log files that are resident, about every 200 ms.
fn fill(load: &mut Load, server: &Server, binlogs: usize, mut sample: impl FnMut(u64)) {
    let until = server.binlogs().len() + binlogs;
    let start = Instant::now();
    loop {
        load.check();
        sample(resident_bytes(&server.log_files()));
        let count = server.binlogs().len();
        if count >= until {
            return;
        }
        assert!(start.elapsed() < RUN_TIMEOUT, "the load has begun only {count} of {until} binlogs");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn assert_bounded(guard: &Guard, primary: &Server, resident: u64) {
    guard.assert_bounded(BUSY_LIMIT, resident, || resident_bytes(&primary.log_files()));
}

fn wait_until_released(server: &Server) {
    wait_until_resident_below(&server.log_files(), IDLE_LIMIT, WAIT_TIMEOUT);
}

fn wait_until_found(guard: &Guard, server: &Server) {
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    assert_eq!(found["profile"], "mariadb");
    let data = server.data();
    let directories = found["directories"].as_array().expect("a list");
    assert!(directories.iter().any(|directory| directory.as_str().map(Path::new) == Some(&data)), "{found}");
}

/// Waits until the replica has applied all that the primary has written, and compares every row.
fn assert_equal_after_catching_up(primary: &Server, replica: &Server) {
    support::eventually("the replica is in step", RUN_TIMEOUT, || {
        (primary.written_to() == replica.applied_to()).then_some(())
    });
    let checksums = format!("CHECKSUM TABLE {}", sysbench::tables());
    let rows = primary.query(&checksums);
    assert_eq!(rows.len(), sysbench::TABLES);
    assert_eq!(rows, replica.query(&checksums));
}

fn figure(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("no figure {name}: {event}"))
}

/// Runs the same load without a guard: log pages accumulate.
fn grow_without_a_guard(primary: &Server, replica: &Server) {
    // All but the newest, which is not full.
    let full = || {
        let mut binlogs = primary.binlogs();
        binlogs.pop();
        binlogs
    };
    let mut load = Load::start(primary);
    for _ in 0..BINLOGS {
        // This includes pages that the kernel itself paged out as idle.
        let before = kept_bytes(&full());
        fill(&mut load, primary, 1, |_| ());
        let grown = kept_bytes(&full()).saturating_sub(before);
        assert!(grown >= BINLOG_BYTES / 10 * 9, "one binlog more, but only {grown} bytes more are resident");
    }
    drop(load);
    assert_equal_after_catching_up(primary, replica);
    let binlogs = primary.binlogs();
    let (resident, size) = (kept_bytes(&binlogs), size_bytes(&binlogs));
    assert!(resident >= size / 10 * 9, "{resident} of {size} bytes of binlogs are resident");
    assert!(kept_bytes(&primary.log_files()) > BUSY_LIMIT);
}

/// Checks that the reads of a near replica find their pages.
fn stay_bounded_with_a_near_follower(guard: &Guard, primary: &Server, replica: &Server) {
    let read_before = primary.dump_thread_device_bytes();
    let mut furthest = 0;
    let mut load = Load::start(primary);
    let pause = load.pause();
    let lag = || primary.follower_lags().into_iter().max().unwrap_or_default();
    fill(&mut load, primary, BINLOGS, |resident| {
        assert_bounded(guard, primary, resident);
        furthest = furthest.max(lag());
        // On a busy machine the replica would fall behind, so the load waits for it.
        if lag() > 1 {
            pause(true);
            support::eventually("the replica comes near", RUN_TIMEOUT, || (lag() == 0).then_some(()));
            pause(false);
        }
    });
    drop(load);
    assert!(furthest <= 3, "the replica fell {furthest} binlogs behind, so this run shows nothing");
    assert_equal_after_catching_up(primary, replica);
    let read = primary.dump_thread_device_bytes() - read_before;
    assert!(read < MIB, "the dump thread had {read} bytes read from the device");
    wait_until_released(primary);
}

/// Checks a hung replica, then one with stopped threads: neither holds memory forever nor loses
/// a row.
fn stay_bounded_with_a_far_follower(guard: &Guard, primary: &Server, replica: &Server) {
    let mut load = Load::start(primary);
    fill(&mut load, primary, 1, |resident| assert_bounded(guard, primary, resident));
    replica.freeze();
    // Enough binlogs that a guard that waits for this follower exceeds the limit.
    fill(&mut load, primary, BINLOGS + 1, |resident| assert_bounded(guard, primary, resident));
    let lags = primary.follower_lags();
    assert!(lags.iter().any(|&lag| lag > 3), "the dump thread did not fall behind: {lags:?}");
    replica.thaw();
    replica.execute("STOP SLAVE");
    fill(&mut load, primary, 2, |resident| assert_bounded(guard, primary, resident));
    drop(load);
    wait_until_released(primary);
    replica.execute("START SLAVE");
    assert_equal_after_catching_up(primary, replica);
    wait_until_released(primary);
}

/// Checks a crash under load: the new process is found and bounded like the old one.
fn stay_bounded_after_a_crash(guard: &Guard, primary: &mut Server, replica: &Server) {
    let mut load = Load::start(primary);
    fill(&mut load, primary, 1, |resident| assert_bounded(guard, primary, resident));
    let crashed = primary.pid();
    primary.kill9();
    drop(load);
    guard.wait_for("lost", WAIT_TIMEOUT, |event| event["pid"] == crashed);
    primary.restart();
    wait_until_found(guard, primary);
    let mut load = Load::start(primary);
    fill(&mut load, primary, 2, |resident| assert_bounded(guard, primary, resident));
    drop(load);
    assert_equal_after_catching_up(primary, replica);
    wait_until_released(primary);
}

/// Checks that it ended well and warned about no file under `place` (databases of others may be
/// elsewhere).
fn assert_clean_end(ended: &EndedGuard, place: &Path) {
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let problems: Vec<&Value> = ended
        .events
        .iter()
        .filter(|event| event["event"] == "problem")
        .filter(|event| event["path"].as_str().is_some_and(|path| Path::new(path).starts_with(place)))
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn logs_of_a_replicated_primary_stay_out_of_the_page_cache() {
    if !support::can_run("a primary with a replica", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut primary = Server::start(scratch.path(), Options::primary().redo_buffered(true));
    let replica = Server::start(scratch.path(), Options::replica());
    replica.replicate_from(&primary);
    sysbench::prepare(&primary);
    assert!(!primary.redo_is_direct());

    grow_without_a_guard(&primary, &replica);

    let guard = Guard::spawn(&["--tick", "500ms"]);
    wait_until_found(&guard, &primary);
    wait_until_released(&primary);
    stay_bounded_with_a_near_follower(&guard, &primary, &replica);
    stay_bounded_with_a_far_follower(&guard, &primary, &replica);
    stay_bounded_after_a_crash(&guard, &mut primary, &replica);

    let memory = guard.memory_peak_bytes();
    assert!(memory <= 32 * MIB, "the guard took {memory} bytes");
    let ended = guard.stop();
    assert_clean_end(&ended, scratch.path());
    let summary = ended.summary();
    assert!(
        figure(&summary["released_bytes"], "binlog") >= 2 * BINLOGS as u64 * BINLOG_BYTES / 10 * 9,
        "{summary}"
    );
    assert!(figure(&summary["released_bytes"], "redo") > 0, "{summary}");
    println!("{summary}");
}

#[test]
fn binlogs_beside_a_direct_redo_log_stay_out_of_the_page_cache() {
    if !support::can_run("a primary with an O_DIRECT redo log", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let primary = Server::start(scratch.path(), Options::primary());
    sysbench::prepare(&primary);
    let mut load = Load::start(&primary);
    fill(&mut load, &primary, 2, |_| ());
    assert!(kept_bytes(&primary.binlogs()) >= 2 * BINLOG_BYTES / 10 * 9);

    let pid = primary.pid().to_string();
    let guard = Guard::spawn(&["--pid", &pid]);
    wait_until_found(&guard, &primary);
    fill(&mut load, &primary, 4, |resident| assert_bounded(&guard, &primary, resident));
    drop(load);
    wait_until_released(&primary);
    let ended = guard.stop();
    assert_clean_end(&ended, scratch.path());
    let summary = ended.summary();
    assert!(figure(&summary["released_bytes"], "binlog") >= 5 * BINLOG_BYTES / 10 * 9, "{summary}");
}

/// A relay log is recognised by its server's descriptors; released events are applied from the
/// disk.
#[test]
fn a_relay_log_of_any_name_is_released_and_still_applied() {
    if !support::can_run("a replica whose relay log has a name of its own", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let primary = Server::start(scratch.path(), Options::primary());
    let replica = Server::start(scratch.path(), Options::replica().relay_log("received"));
    replica.replicate_from(&primary);
    sysbench::prepare(&primary);
    replica.execute("STOP SLAVE SQL_THREAD");
    let mut load = Load::start(&primary);
    fill(&mut load, &primary, 5, |_| ());
    drop(load);
    let all = support::eventually("all was received", RUN_TIMEOUT, || {
        let row = &replica.query("SHOW SLAVE STATUS")[0];
        let received =
            (row["Master_Log_File"].clone(), row["Read_Master_Log_Pos"].parse().expect("a number"));
        (received == primary.written_to()).then(|| replica.relay_logs())
    });
    assert!(all.len() >= 4, "{all:?}");
    let (before, size) = (kept_bytes(&all), size_bytes(&all));
    assert!(before >= size / 10 * 9 && size >= 3 * BINLOG_BYTES, "{before} of {size} bytes are resident");

    let guard = Guard::spawn(&["--pid", &replica.pid().to_string()]);
    wait_until_found(&guard, &replica);
    wait_until_resident_below(&all, IDLE_LIMIT, WAIT_TIMEOUT);
    replica.execute("START SLAVE SQL_THREAD");
    assert_equal_after_catching_up(&primary, &replica);
    let ended = guard.stop();
    assert_clean_end(&ended, scratch.path());
    let released = &ended.summary()["released_bytes"];
    assert!(figure(released, "relay") >= (before - IDLE_LIMIT) / 10 * 9, "{released}");
    assert_eq!(
        released["binlog"].as_u64().unwrap_or_default(),
        0,
        "none of them was taken for a binlog: {released}"
    );
}

/// Galera's ring of write sets is mapped, and read when a member returns, so it is left alone.
///
#[test]
#[ignore = "long: make test-stories"]
fn galeras_ring_stays_and_its_members_binlogs_are_released() {
    const WHAT: &str = "a member of a Galera cluster";
    if !support::can_run(WHAT, &REQUIRED_PROGRAMS) {
        return;
    }
    if !Path::new(GALERA).exists() {
        return pagekeeper_testing::skip(format_args!("{WHAT}: there is no {GALERA}"));
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut member = Server::start(scratch.path(), Options::galera());
    support::eventually("the cluster is ready", WAIT_TIMEOUT, || {
        let status = member.query("SHOW STATUS LIKE 'wsrep_ready'");
        status.iter().any(|row| row.values().any(|value| value == "ON")).then_some(())
    });
    sysbench::prepare(&member);
    let guard = Guard::spawn(&["--pid", &member.pid().to_string()]);
    wait_until_found(&guard, &member);
    let mut load = Load::start(&member);
    fill(&mut load, &member, 4, |_| ());
    drop(load);
    // The kernel itself may page out parts of the ring, too.
    let ring = [member.data().join("galera.cache")];
    let before = kept_bytes(&ring);
    assert!(before >= 2 * BINLOG_BYTES, "{before} bytes of write sets");
    wait_until_released(&member);
    let ended = guard.stop();
    assert_clean_end(&ended, scratch.path());
    assert!(figure(&ended.summary()["released_bytes"], "binlog") >= 2 * BINLOG_BYTES, "{}", ended.summary());

    // A mapped page can't be released. The guard also leaves it after the unmapping.
    member.kill9();
    let log = &member.binlogs()[..1];
    assert!(!std::fs::read(&log[0]).expect("read a binlog").is_empty());
    let data = member.data();
    let data = data.to_str().expect("a path of this test's own");
    let once = Guard::spawn(&["--dir", data, "--profile", "mariadb", "--once"]).wait();
    assert!(once.status.success(), "{}", once.stderr);
    assert_eq!(resident_bytes(log), 0);
    assert!(kept_bytes(&ring) >= before, "{before} bytes before");
}

#[test]
fn a_dry_run_and_a_guard_without_rights_release_nothing() {
    if !support::can_run("a dry run beside a primary", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let primary = Server::start(scratch.path(), Options::primary().redo_buffered(true));
    sysbench::prepare(&primary);
    let mut load = Load::start(&primary);
    fill(&mut load, &primary, 2, |_| ());
    drop(load);
    let pid = primary.pid().to_string();
    // This includes pages that the kernel itself paged out, which may be more than a release.
    let before = kept_bytes(&primary.log_files());
    assert!(before > 2 * IDLE_LIMIT);
    let mostly = before / 10 * 9;

    let dry = Guard::spawn(&["--pid", &pid, "--dry-run", "--duration", "3s"]).wait();
    assert!(dry.status.success(), "{}", dry.stderr);
    assert_eq!(dry.events[0]["event"], "start");
    assert_eq!(dry.events[0]["dry_run"], true);
    let planned = dry
        .events
        .iter()
        .filter(|event| event["event"] == "tick")
        .map(|tick| figure(tick, "acts"))
        .sum::<u64>();
    assert!(planned > 0, "a dry run says what it would do: {:#?}", dry.events);
    assert!(kept_bytes(&primary.log_files()) >= mostly, "a dry run released pages");

    // A copy, since others may not be allowed where this program was built.
    let program = scratch.path().join("pagekeeper");
    support::copy_program(&support::guard::program(), &program);
    let unprivileged = Guard::spawn_command(
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL", "--"])
            .arg(&program)
            .args(["guard", "--json", "--pid", &pid, "--duration", "3s"]),
    )
    .wait();
    let mut said = unprivileged.stderr.clone();
    for event in &unprivileged.events {
        if event["event"] == "problem" || event["event"] == "warning" {
            said.push_str(&event.to_string());
        }
    }
    let said = said.to_lowercase();
    assert!(
        ["root", "permission", "privilege", "cap_"].iter().any(|word| said.contains(word)),
        "a guard without rights says what it lacks: {said}"
    );
    assert!(kept_bytes(&primary.log_files()) >= mostly, "a guard without rights released pages");
}
