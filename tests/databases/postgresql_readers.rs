//! The guard beside readers of a real `PostgreSQL`'s WAL that show no position: the
//! archiver while it archives, logical decoding by polling a slot, and the replay of a standby that
//! lags or is paused.
//!
//! Needs root and Debian's `postgresql`; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`. Reads are the kernel's own counts of the servers' processes,
//! residency is `fincore`'s.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagekeeper_catalog::postgresql::slot::{ReplicationSlot, SLOT_BYTES};
use pagekeeper_catalog::postgresql::wal_reader;

use crate::support::guard::Guard;
use crate::support::postgresql::{SEGMENT_BYTES, Server, programs};
use crate::support::{self, MIB, eventually, resident_bytes};

/// Device reads of processes whose log pages are resident: only those of a new process or the
/// system tables.
const FEW_READS: u64 = 4 * MIB;
/// Maximum resident bytes once no reader lags: the current segment, and the guard's slack in one
/// more.
const IDLE_LIMIT: u64 = 2 * SEGMENT_BYTES + MIB;

/// A tick so short that a segment is soon released once nobody waits for it.
const TICK: [&str; 2] = ["--tick", "250ms"];

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

fn can_run(test: &str) -> bool {
    let programs = programs();
    support::can_run(test, &programs.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Starts a guard for that server only, and waits until it has found it.
fn guard_of(server: &Server, more: &[&str]) -> Guard {
    let pid = server.pid().to_string();
    let guard = Guard::spawn(&[&["--pid", &pid], more].concat());
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    guard.wait_for_ticks(4);
    guard
}

/// Waits until at most this much of a server's WAL is resident.
fn wait_until_released(guard: &Guard, server: &Server, limit: u64) {
    let resident = || resident_bytes(&server.segments());
    for _ in 0..60 {
        if resident() < limit {
            return;
        }
        guard.wait_for_ticks(1);
    }
    guard.assert_bounded(limit, resident(), resident);
}

/// Ends the guard, and checks that it warned about nothing and released something.
fn stop(guard: Guard) {
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let problems: Vec<_> = ended.events.iter().filter(|event| event["event"] == "problem").collect();
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(ended.summary()["released_bytes"]["wal"].as_u64() > Some(SEGMENT_BYTES), "{}", ended.summary());
}

#[test]
#[ignore = "long: make test-stories"]
fn segments_stay_until_postgresql_has_archived_them() {
    if !can_run("PostgreSQL with an archiver") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let attempts = scratch.path().join("attempts");
    std::fs::create_dir(&attempts).expect("make a directory");
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&attempts, all).expect("let the server's user write there");
    // Reads a segment and then sleeps, like an upload. If that directory exists, each segment
    // fails once.
    let fails = attempts.join("fail");
    let command = format!(
        "cat %p > /dev/null; sleep 1; test ! -e {fails} -o -e {attempts}/%f || {{ touch {attempts}/%f; exit 1; }}",
        fails = fails.display(),
        attempts = attempts.display()
    );
    let settings = ["archive_mode=on", &format!("archive_command={command}")];
    let server = Server::start_with(scratch.path(), &settings);
    let guard = guard_of(&server, &TICK);

    let burst = |name: &str| {
        let before = server.all_device_bytes_read();
        // Two segments and the start of a third.
        server.write_records(32, Duration::ZERO);
        let segment = server.query("SELECT pg_walfile_name(pg_switch_wal())");
        // The server continues in a fourth segment, as an idle one does within 15 s, so the
        // archiver is as far behind as the rule waits.
        server.query("CHECKPOINT");
        eventually("all is archived", WAIT_TIMEOUT, || {
            let last = "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver";
            (server.query(last) >= segment).then_some(())
        });
        let read = server.all_device_bytes_read() - before;
        println!("{name}: {read} bytes read");
        assert!(read < FEW_READS, "{read} bytes were read from the device: {name}");
        assert!(resident_bytes(&server.segments()) > 0);
    };
    burst("each archived at once");
    burst("and again");
    std::fs::write(&fails, "").expect("make a file");
    burst("each fails once");
    assert!(server.query("SELECT failed_count FROM pg_stat_archiver").parse::<u32>().expect("a number") >= 3);
    wait_until_released(&guard, &server, IDLE_LIMIT);
    stop(guard);
}

#[test]
fn wal_that_a_polled_slot_has_yet_to_decode_stays() {
    if !can_run("PostgreSQL with a slot that is polled") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = Server::start_with(scratch.path(), &["wal_level=logical"]);
    server.query("SELECT pg_create_logical_replication_slot('polled', 'test_decoding')");
    let guard = guard_of(&server, &TICK);
    let poll = || server.query("SELECT count(*) FROM pg_logical_slot_get_changes('polled', NULL, NULL)");
    let restart = || server.query("SELECT restart_lsn - '0/0' FROM pg_replication_slots");
    poll();

    let (first, before) = (restart(), server.all_device_bytes_read());
    for _ in 0..6 {
        // A snapshot of running transactions, from which decoding may restart.
        server.query("CHECKPOINT");
        server.write_records(12, Duration::ZERO);
        guard.wait_for_ticks(3);
        assert_ne!(poll(), "0");
    }
    let read = server.all_device_bytes_read() - before;
    println!("{read} bytes read by six polls");
    assert!(read < FEW_READS, "{read} bytes were read from the device");
    assert_ne!(restart(), first, "the slot did not move, so this run shows little");

    // The file has the server's position once the server has saved it.
    server.query("CHECKPOINT");
    let state = server.wal().with_file_name("pg_replslot").join("polled/state");
    let bytes = std::fs::read(state).expect("read a slot");
    let slot = ReplicationSlot::parse(&bytes[..bytes.len().min(SLOT_BYTES)]).expect("a slot");
    assert_eq!(slot.restart_lsn.map(|lsn| lsn.to_string()), Some(restart()));
    assert!(slot.is_logical);

    server.query("SELECT pg_drop_replication_slot('polled')");
    wait_until_released(&guard, &server, IDLE_LIMIT);
    stop(guard);
}

/// The lag of a standby, in MiB: more than the three segments of `near_files`.
const LAG_MIB: u32 = 112;

/// A standby, and the server that it follows.
struct StandbyPair {
    server: Server,
    standby: Server,
}

impl StandbyPair {
    fn start(scratch: &Path, settings: &[&str]) -> Self {
        let server = Server::start_with(scratch, &["wal_keep_size=1GB"]);
        let standby = server.standby(scratch, settings);
        Self { server, standby }
    }

    /// Writes this much with a pause after each MiB, waits until the standby has received it, and
    /// returns where it ends.
    fn write(&self, mib: u32, pause: Duration) -> String {
        self.server.write_records(mib, pause);
        let end = self.server.query("SELECT pg_current_wal_lsn()");
        self.wait_until_it_has("pg_last_wal_receive_lsn", &end);
        end
    }

    fn wait_until_replayed(&self, lsn: &str) {
        self.wait_until_it_has("pg_last_wal_replay_lsn", lsn);
    }

    fn wait_until_it_has(&self, what: &str, lsn: &str) {
        let question = format!("SELECT {what}() >= '{lsn}'");
        eventually(what, WAIT_TIMEOUT, || (self.standby.query(&question) == "t").then_some(()));
    }

    /// Pauses the replay at the start of a segment.
    fn pause(&self) {
        self.server.query("SELECT pg_switch_wal()");
        self.wait_until_replayed(&self.write(1, Duration::ZERO));
        self.standby.query("SELECT pg_wal_replay_pause()");
        let state = "SELECT pg_get_wal_replay_pause_state()";
        eventually("it pauses", WAIT_TIMEOUT, || (self.standby.query(state) == "paused").then_some(()));
    }

    /// Returns the bytes that the standby has read from the device so far.
    fn read(&self) -> u64 {
        self.standby.all_device_bytes_read()
    }
}

/// Returns a configuration that waits for a standby up to this distance.
fn standby_limit(scratch: &Path, limit: &str) -> PathBuf {
    let config = scratch.join("guard.toml");
    std::fs::write(&config, format!("[postgresql]\nstandby = \"{limit}\"\n")).expect("write a configuration");
    config
}

#[test]
#[ignore = "long: make test-stories"]
fn wal_that_a_standby_has_yet_to_replay_stays() {
    if !can_run("PostgreSQL with a standby that lags") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let both = StandbyPair::start(scratch.path(), &["recovery_min_apply_delay=10s"]);

    // Delayed: nothing is read from the device.
    let guard = guard_of(&both.standby, &TICK);
    let before = both.read();
    let end = both.write(LAG_MIB, Duration::ZERO);
    guard.wait_for_ticks(4);
    let startup = both.standby.device_bytes_read().into_keys().find_map(|pid| {
        let title = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let title = String::from_utf8_lossy(&title).replace('\0', " ");
        title.contains("startup").then_some(title)
    });
    let startup = startup.expect("a startup process");
    assert!(wal_reader(&startup, None).is_some_and(|reader| reader.place.is_some()), "{startup}");
    both.wait_until_replayed(&end);
    let read = both.read() - before;
    println!("delayed: {read} bytes read for {LAG_MIB} MiB of WAL");
    assert!(read < FEW_READS, "{read} bytes were read from the device");
    wait_until_released(&guard, &both.standby, IDLE_LIMIT);
    stop(guard);

    // Beyond the limit the WAL is released, and read back once, however often the guard samples
    // during the read.
    let config = standby_limit(scratch.path(), "16M");
    let guard = guard_of(&both.standby, &["--tick", "100ms", "--config", path(&config)]);
    let before = both.read();
    both.wait_until_replayed(&both.write(LAG_MIB, Duration::from_millis(100)));
    let read = both.read() - before;
    println!("beyond the limit: {read} bytes read for {LAG_MIB} MiB of WAL");
    assert!(read > SEGMENT_BYTES, "{read} bytes: it was waited for");
    assert!(read < u64::from(LAG_MIB) * MIB + FEW_READS, "{read} bytes: some were read more than once");
    wait_until_released(&guard, &both.standby, IDLE_LIMIT);
    stop(guard);
}

#[test]
#[ignore = "long: make test-stories"]
fn wal_that_a_paused_standby_has_yet_to_replay_stays_up_to_the_limit() {
    /// A lag of 64 MiB and a little more, in MiB: it ends in the fourth segment behind the pause,
    /// one more than `near_files`.
    const REACHED_LAG_MIB: u32 = 66;
    if !can_run("PostgreSQL with a standby that pauses") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let both = StandbyPair::start(scratch.path(), &[]);
    let config = standby_limit(scratch.path(), "64M");
    let guard = guard_of(&both.standby, &[&TICK[..], &["--config", path(&config)]].concat());
    let resumed = |end: &str| {
        let before = both.read();
        both.standby.query("SELECT pg_wal_replay_resume()");
        both.wait_until_replayed(end);
        let read = both.read() - before;
        wait_until_released(&guard, &both.standby, IDLE_LIMIT);
        read
    };

    both.pause();
    let end = both.write(REACHED_LAG_MIB, Duration::ZERO);
    guard.wait_for_ticks(12);
    let kept = support::kept_bytes(&both.standby.segments());
    assert!(kept >= u64::from(REACHED_LAG_MIB) * MIB, "only {kept} bytes stay");
    let read = resumed(&end);
    println!("within the limit: {read} bytes read for {REACHED_LAG_MIB} MiB of WAL");
    assert!(read < FEW_READS, "{read} bytes were read from the device");

    both.pause();
    let end = both.write(LAG_MIB, Duration::ZERO);
    // All segments are released except the one that replay has open.
    wait_until_released(&guard, &both.standby, IDLE_LIMIT + SEGMENT_BYTES);
    let read = resumed(&end);
    println!("beyond the limit: {read} bytes read for {LAG_MIB} MiB of WAL");
    assert!(read > SEGMENT_BYTES, "{read} bytes: it was waited for");
    assert!(read < u64::from(LAG_MIB) * MIB + FEW_READS, "{read} bytes: some were read more than once");
    stop(guard);
}

#[test]
fn wal_that_a_standby_has_recycled_goes() {
    if !can_run("PostgreSQL with a standby that recycles segments") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let both = StandbyPair::start(scratch.path(), &[]);
    both.server.write_records(64, Duration::ZERO);
    both.server.query("CHECKPOINT");
    both.wait_until_replayed(&both.server.query("SELECT pg_current_wal_lsn()"));
    let StandbyPair { server, standby } = &both;
    // Nothing was released before the checkpoint renames replayed segments.
    standby.query("CHECKPOINT");
    let written = server.query("SELECT pg_walfile_name(pg_current_wal_lsn())");
    let mut ahead = standby.segments();
    ahead.retain(|path| path.file_name().is_some_and(|name| name > written.as_str()));
    let resident = resident_bytes(&ahead);
    assert!(resident > IDLE_LIMIT, "{resident} bytes of {ahead:?} are resident");

    let guard = guard_of(standby, &TICK);
    wait_until_released(&guard, standby, IDLE_LIMIT);
    stop(guard);
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}
