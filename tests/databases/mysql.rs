//! The guard beside a real `MySQL`, 8.0, 8.4 or 9: buffered redo log in `#innodb_redo`, binlogs, a
//! follower that lags, and what crash recovery reads.
//!
//! Run by `make test-mysql`, which fetches the server and says in `PAGEKEEPER_MYSQL_ROOT` where it
//! is; needs root. Residency is `fincore`'s, reads are the kernel's own counts.

use crate::logged::can_run_fetched;
use crate::support;
use crate::support::guard::Guard;
use crate::support::mysql::{BINLOG_BYTES, DATA, Follower, REDO_BYTES, REQUIRED_PROGRAMS, Server};
use crate::support::sysbench::{self, Load, LoadedServer as _};
use crate::support::{MIB, eventually, kept_bytes, resident_bytes, size_bytes, wait_until_resident_below};
use pagekeeper_testing::servers::MySql;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum page cache of log files while a load runs. It has room for the current
/// binlog and the three that followers may still read, and a margin for the redo log and the bytes
/// of one tick.
const BUSY_LIMIT: u64 = (3 + 1) * BINLOG_BYTES + 64 * MIB;

/// The redo log's part of the limit; nobody reads it.
const REDO_LIMIT: u64 = REDO_BYTES / 2;

/// Maximum soon after the load.
const IDLE_LIMIT: u64 = 16 * MIB;

/// Binlogs that a load fills: their bytes alone are more than `BUSY_LIMIT`; and the redo log wraps
/// around meanwhile.
const BINLOGS: usize = 9;

/// No step takes this long, even on a slow disk.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

fn log_files(server: &Server) -> Vec<PathBuf> {
    [server.binlogs(), server.redo()].concat()
}

/// Lets the load continue until it has begun `binlogs` more files, and calls `sample` about every
/// 200 ms.
fn fill(load: &mut Load, server: &Server, binlogs: usize, mut sample: impl FnMut()) {
    let until = server.binlogs().len() + binlogs;
    let start = Instant::now();
    while server.binlogs().len() < until {
        load.check();
        sample();
        assert!(start.elapsed() < RUN_TIMEOUT, "the load is too slow");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn assert_bounded(server: &Server, guard: &Guard) {
    let (binlogs, redo) = (resident_bytes(&server.binlogs()), resident_bytes(&server.redo()));
    assert!(
        binlogs + redo < BUSY_LIMIT && redo < REDO_LIMIT,
        "{binlogs} bytes of binlogs are resident, {redo} of the redo log; the guard's last tick: {:?}",
        guard.latest_tick()
    );
}

fn wait_until_released(server: &Server) {
    wait_until_resident_below(&log_files(server), IDLE_LIMIT, WAIT_TIMEOUT);
}

/// Returns the number of files between the follower's newest copy and the newest binlog.
fn lag(server: &Server, follower: &mut Follower) -> usize {
    server.binlogs().len() - follower.copies().len()
}

fn wait_until_in_step(server: &Server, follower: &mut Follower) {
    eventually("the follower has it all", RUN_TIMEOUT, || {
        (size_bytes(&follower.copies()) == size_bytes(&server.binlogs())).then_some(())
    });
}

fn grow_without_a_guard(server: &Server) {
    let mut load = Load::start(server);
    fill(&mut load, server, BINLOGS, || ());
    let redo = resident_bytes(&server.redo());
    drop(load);
    let (resident, size) = (resident_bytes(&server.binlogs()), size_bytes(&server.binlogs()));
    assert!(resident >= size / 10 * 9, "{resident} of {size} bytes of binlogs are resident");
    assert!(redo > REDO_LIMIT / 2 * 3, "{redo} bytes of the redo log are resident");
    assert!(resident_bytes(&log_files(server)) > BUSY_LIMIT);
}

fn stay_bounded_with_a_near_follower(server: &Server, follower: &mut Follower, guard: &Guard) {
    let before = server.dump_thread_device_bytes();
    let mut furthest = 0;
    let mut load = Load::start(server);
    fill(&mut load, server, BINLOGS, || {
        assert_bounded(server, guard);
        furthest = furthest.max(lag(server, follower));
    });
    drop(load);
    assert!(furthest <= 3, "the follower fell {furthest} binlogs behind, so this run shows nothing");
    wait_until_in_step(server, follower);
    let read = server.dump_thread_device_bytes() - before;
    assert!(read < MIB, "the dump thread had {read} bytes read from the device");
    wait_until_released(server);
}

fn stay_bounded_with_a_far_follower(server: &Server, follower: &mut Follower, guard: &Guard) {
    let mut load = Load::start(server);
    fill(&mut load, server, 1, || assert_bounded(server, guard));
    follower.freeze();
    fill(&mut load, server, BINLOGS, || assert_bounded(server, guard));
    assert!(lag(server, follower) > 3, "the follower did not fall behind");
    wait_until_resident_below(&server.binlogs(), 4 * BINLOG_BYTES, WAIT_TIMEOUT);
    follower.thaw();
    eventually("the follower catches up", RUN_TIMEOUT, || {
        load.check();
        (lag(server, follower) <= 1).then_some(())
    });
    // The follower read faster than the guard samples.
    guard.wait_for_ticks(4);
    fill(&mut load, server, 2, || assert_bounded(server, guard));
    drop(load);
    wait_until_in_step(server, follower);
    wait_until_released(server);
}

/// Returns the folder that `make test-mysql` unpacked the server in, if it can be run.
fn unpacked() -> Option<PathBuf> {
    let unpacked = MySql::unpacked();
    let can_run = can_run_fetched("MySQL", &REQUIRED_PROGRAMS, "PAGEKEEPER_MYSQL_ROOT", unpacked.as_ref());
    unpacked.filter(|_| can_run)
}

#[test]
#[ignore = "MySQL is in no stable Debian: make test-mysql fetches it"]
fn logs_of_mysql_stay_out_of_the_page_cache() {
    let Some(unpacked) = unpacked() else { return };
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = Server::start(&unpacked, scratch.path());
    sysbench::prepare(&server);

    grow_without_a_guard(&server);

    let guard = Guard::spawn(&[]);
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    assert_eq!(found["profile"], "mysql");
    for directory in [DATA.to_owned(), format!("{DATA}/#innodb_redo")] {
        assert!(
            found["directories"].as_array().is_some_and(|all| all.contains(&directory.into())),
            "{found}"
        );
    }
    wait_until_released(&server);
    // Reads from the first binlog on: far behind at first, so it reads released pages.
    let mut follower = server.follow();
    wait_until_in_step(&server, &mut follower);
    wait_until_released(&server);
    stay_bounded_with_a_near_follower(&server, &mut follower, &guard);
    stay_bounded_with_a_far_follower(&server, &mut follower, &guard);

    let memory = guard.memory_peak_bytes();
    assert!(memory <= 32 * MIB, "the guard took {memory} bytes");
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let problems: Vec<_> = ended
        .events
        .iter()
        .filter(|event| event["event"] == "problem" || event["event"] == "warning")
        .filter(|event| event["path"].as_str().is_some_and(|path| path.starts_with(DATA)))
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
    let released = &ended.summary()["released_bytes"];
    assert!(released["binlog"].as_u64() >= Some(2 * BINLOGS as u64 * BINLOG_BYTES), "{}", ended.summary());
    assert!(released["redo"].as_u64() >= Some(2 * REDO_BYTES), "{}", ended.summary());
    println!("{}", ended.summary());

    // The newest one differs: its header says that it is in use.
    server.execute("FLUSH BINARY LOGS");
    wait_until_in_step(&server, &mut follower);
    let finished = server.binlogs().len() - 1;
    assert!(finished > 3 * BINLOGS);
    for (binlog, copy) in server.binlogs().iter().zip(follower.copies()).take(finished) {
        let read = |path: &Path| std::fs::read(path).expect("read a binlog");
        assert!(read(binlog) == read(&copy), "{} is not {}", copy.display(), binlog.display());
    }
}

/// Returns the LSN, and that of the last checkpoint.
fn log_status(server: &Server) -> (u64, u64) {
    let figure = |name: &str| -> u64 {
        let sql = format!(
            "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = '{name}'"
        );
        server.query(&sql)[0].parse().expect("a number")
    };
    let checkpoint = figure("Innodb_redo_log_checkpoint_lsn");
    (figure("Innodb_redo_log_current_lsn"), checkpoint)
}

/// Returns the redo files with records at or after this LSN, by the server's own list, and all
/// other files.
fn redo_from_checkpoint(server: &Server, lsn: u64) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let sql = format!("SELECT FILE_NAME FROM performance_schema.innodb_redo_log_files WHERE END_LSN > {lsn}");
    let needed = server.query(&sql);
    let is_needed = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        needed.iter().any(|needed| needed.ends_with(&format!("/{name}")))
    };
    server.redo().into_iter().partition(is_needed)
}

#[test]
#[ignore = "MySQL is in no stable Debian: make test-mysql fetches it"]
fn the_redo_log_of_mysql_from_the_checkpoint_on_stays_for_recovery_and_the_rest_goes() {
    let Some(unpacked) = unpacked() else { return };
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = Server::start(&unpacked, scratch.path());
    server.query("CREATE DATABASE shop");
    server.query("CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(2000))");
    let insert = |server: &Server| {
        server.query(
            "INSERT INTO shop.t (v) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 400) \
             SELECT HEX(RANDOM_BYTES(640)) FROM n",
        );
    };
    // The log wraps around once, so that its spare files are resident, too.
    let (first, _) = log_status(&server);
    while log_status(&server).0 - first < REDO_BYTES {
        insert(&server);
    }
    server.query("SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, innodb_max_dirty_pages_pct = 0");
    eventually("all is in the tables", WAIT_TIMEOUT, || {
        let (lsn, checkpoint) = log_status(&server);
        (lsn - checkpoint < MIB).then_some(())
    });
    // From here on only necessary writeback happens, so the checkpoint stays.
    server.query(
        "SET GLOBAL innodb_max_dirty_pages_pct = 99, innodb_adaptive_flushing = OFF, innodb_idle_flush_pct = 0",
    );
    let config = scratch.path().join("guard.toml");
    std::fs::write(&config, "[rules.redo]\nrule = \"release-before-checkpoint\"\n")
        .expect("write a configuration");
    let config = config.to_str().expect("a path in UTF-8");
    let guard = Guard::spawn(&["--tick", "250ms", "--config", config]);
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    let begun = Instant::now();
    let behind = || {
        let (lsn, checkpoint) = log_status(&server);
        lsn - checkpoint
    };
    while behind() < 36 * MIB {
        insert(&server);
        assert!(begun.elapsed() < RUN_TIMEOUT, "the checkpoint is only {} bytes behind", behind());
    }
    // Writeback that was in progress ends.
    let (lsn, checkpoint) = eventually("the checkpoint stands still", WAIT_TIMEOUT, || {
        let (_, before) = log_status(&server);
        guard.wait_for_ticks(8);
        let (lsn, checkpoint) = log_status(&server);
        (checkpoint == before).then_some((lsn, checkpoint))
    });
    assert!(lsn - checkpoint > IDLE_LIMIT, "the checkpoint is only {} bytes behind", lsn - checkpoint);
    let (needed, others) = redo_from_checkpoint(&server, checkpoint);
    let assert_kept = || {
        let kept = kept_bytes(&needed);
        assert!(
            kept >= (lsn - checkpoint) / 100 * 95,
            "{kept} bytes of the {} that recovery reads are resident",
            lsn - checkpoint
        );
    };
    assert_kept();
    assert!(
        size_bytes(&others) > 2 * IDLE_LIMIT,
        "{needed:?} are all, so this run shows nothing: {others:?}"
    );
    wait_until_resident_below(&others, IDLE_LIMIT / 2, WAIT_TIMEOUT);
    wait_until_resident_below(&server.binlogs(), IDLE_LIMIT, WAIT_TIMEOUT);

    let table = "SELECT CONCAT(COUNT(*), ' ', SUM(CRC32(v))) FROM shop.t";
    let before = server.query(table);
    server.crash();
    guard.wait_for_ticks(8);
    assert_kept();
    server.start_again();
    assert_eq!(server.query(table), before);

    // Log pages before the checkpoint are released.
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    server.query("SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, innodb_max_dirty_pages_pct = 0");
    eventually("all is in the tables", WAIT_TIMEOUT, || {
        let (lsn, checkpoint) = log_status(&server);
        (lsn - checkpoint < MIB).then_some(())
    });
    wait_until_resident_below(&server.redo(), IDLE_LIMIT, WAIT_TIMEOUT);
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let is_trouble = |event: &&serde_json::Value| event["event"] == "problem" || event["event"] == "warning";
    let own = |event: &&serde_json::Value| event["path"].as_str().is_some_and(|path| path.starts_with(DATA));
    let troubles: Vec<_> = ended.events.iter().filter(is_trouble).filter(own).collect();
    assert!(troubles.is_empty(), "{troubles:#?}");
}
