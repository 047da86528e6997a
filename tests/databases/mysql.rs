//! The guard beside a real `MySQL` 9: buffered redo log in `#innodb_redo`, binlogs, and a follower that lags.
//!
//! Run by `make test-mysql`, which fetches the server and says in `PAGEKEEPER_MYSQL_ROOT` where it is; needs root.
//! Residency is `fincore`'s, reads are the kernel's own counts.

use crate::support;
use crate::support::guard::Guard;
use crate::support::mysql::{BINLOG_BYTES, DATA, Follower, PROGRAMS, REDO_BYTES, Server};
use crate::support::sysbench::{self, Load, Loaded as _};
use crate::support::{MIB, eventually, resident_bytes, size_bytes, wait_until_resident_below};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Log files may hold this much of the page cache while a load runs: the binlog being written, the three that
/// followers may still be reading, and a margin for the redo log and for what one tick writes.
const BUSY_LIMIT: u64 = (3 + 1) * BINLOG_BYTES + 64 * MIB;

/// The redo log's part of it: nobody reads it.
const REDO_LIMIT: u64 = REDO_BYTES / 2;

/// ... and this much soon after it.
const IDLE_LIMIT: u64 = 16 * MIB;

/// Binlogs that a load fills: their bytes alone are more than `BUSY_LIMIT`; and the redo log goes round meanwhile.
const BINLOGS: usize = 9;

/// No step needs as long, even on a slow disk.
const DEADLINE: Duration = Duration::from_secs(300);

const SOON: Duration = Duration::from_secs(30);

fn log_files(server: &Server) -> Vec<PathBuf> {
    [server.binlogs(), server.redo()].concat()
}

/// Lets the load go on until it has begun `binlogs` more files, and calls `sample` about every 200 ms.
fn fill(load: &mut Load, server: &Server, binlogs: usize, mut sample: impl FnMut()) {
    let until = server.binlogs().len() + binlogs;
    let start = Instant::now();
    while server.binlogs().len() < until {
        load.check();
        sample();
        assert!(start.elapsed() < DEADLINE, "the load is too slow");
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
    wait_until_resident_below(&log_files(server), IDLE_LIMIT, SOON);
}

/// Files between the follower's newest copy and the newest binlog.
fn lag(server: &Server, follower: &mut Follower) -> usize {
    server.binlogs().len() - follower.copies().len()
}

fn wait_until_in_step(server: &Server, follower: &mut Follower) {
    eventually("the follower has it all", DEADLINE, || {
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
    wait_until_resident_below(&server.binlogs(), 4 * BINLOG_BYTES, SOON);
    follower.thaw();
    eventually("the follower catches up", DEADLINE, || {
        load.check();
        (lag(server, follower) <= 1).then_some(())
    });
    // It brought in what it went through faster than the guard samples.
    guard.wait_for_ticks(4);
    fill(&mut load, server, 2, || assert_bounded(server, guard));
    drop(load);
    wait_until_in_step(server, follower);
    wait_until_released(server);
}

#[test]
#[ignore = "MySQL is in no stable Debian: make test-mysql fetches it"]
fn logs_of_mysql_stay_out_of_the_page_cache() {
    let unpacked = std::env::var("PAGEKEEPER_MYSQL_ROOT").unwrap_or("$PAGEKEEPER_MYSQL_ROOT".to_owned());
    let server = format!("{unpacked}/usr/sbin/mysqld");
    if !support::can_run("MySQL with a follower", &[&PROGRAMS[..], &[&server]].concat()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = Server::start(Path::new(&unpacked), scratch.path());
    sysbench::prepare(&server);

    grow_without_a_guard(&server);

    let guard = Guard::spawn(&[]);
    let found = guard.wait_for("found", SOON, |event| event["pid"] == server.pid());
    assert_eq!(found["profile"], "mysql");
    for directory in [DATA.to_owned(), format!("{DATA}/#innodb_redo")] {
        assert!(
            found["directories"].as_array().is_some_and(|all| all.contains(&directory.into())),
            "{found}"
        );
    }
    wait_until_released(&server);
    // From the first binlog on: far at first, and reads what was released.
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
