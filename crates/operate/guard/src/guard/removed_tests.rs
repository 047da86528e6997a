//! Tests of log files that are removed while processes have them open. As root, beside processes of
//! their own users.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_kernel::{ExpectedFile, InspectedFile, residency};

use super::claim_tests::{ATTACKER, DATABASE, Fake, OTHER, Watch, directory, log, scratch, whole};
use crate::config::Options;
use crate::directory::DatabaseKey;

/// Returns the resident bytes of a file that a process has open.
fn resident(pid: u32, fd: u32) -> u64 {
    let link = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
    let file = InspectedFile::open_magic_link(&link, ExpectedFile::Any, link.clone()).unwrap();
    residency(&file, 0..u64::MAX).unwrap().resident
}

fn watch(pids: &[u32], dry_run: bool) -> Watch {
    let mut watch = Watch::with(Options { find: false, pids: pids.to_vec(), dry_run, ..Options::default() });
    watch.guard.watched.removed.quiet = Duration::from_millis(500);
    watch
}

fn binlogs(directory: &Path, user: u32, numbers: &[u32]) {
    std::fs::write(directory.join("binlog.index"), "").unwrap();
    for number in numbers {
        log(directory.join(format!("binlog.{number:06}")), user, 0o644);
    }
}

#[test]
fn unneeded_pages_of_removed_logs_are_released_and_others_stay() {
    let Some(scratch) = scratch("removed logs") else { return };
    let data = directory(scratch.path().join("data"), DATABASE, 0o755);
    binlogs(&data, DATABASE, &[1, 2, 3, 4, 5, 6, 7]);
    // 3 is read to its end, 4 not at all, and 5 is written by another process; 6 has another name.
    // 7 is a child's, like a backend's segment. The last one is the writer's, and is not removed.
    let script = "exec 3<binlog.000001 4<binlog.000002 5<binlog.000003 6<binlog.000004 8>>binlog.000007
        for fd in 3 5 6; do dd of=/dev/null bs=1M count=1 status=none <&$fd; done
        sleep 60 7<>binlog.000005 >/dev/null & echo $! >child; exec 9>>binlog.000006";
    let server = Fake::start(scratch.path(), "mariadbd", DATABASE, &data, script);
    let child: u32 = std::fs::read_to_string(data.join("child")).unwrap().trim().parse().unwrap();
    let mut writer = OpenOptions::new().append(true).open(data.join("binlog.000003")).unwrap();
    std::fs::hard_link(data.join("binlog.000004"), scratch.path().join("backup")).unwrap();

    // A process with the name of a database that has a file of another user open.
    let home = directory(scratch.path().join("home"), ATTACKER, 0o755);
    binlogs(&home, ATTACKER, &[2]);
    log(home.join("binlog.000001"), 0, 0o644);
    let script = "exec 3<binlog.000001 8>>binlog.000002; dd of=/dev/null bs=1M count=1 status=none <&3";
    let hostile = Fake::start(scratch.path(), "mariadbd", ATTACKER, &home, script);

    let mut watch = watch(&[server.pid(), hostile.pid()], false);
    watch.tick();
    let rounds = Cell::new(0);
    let began = Instant::now();
    let gone = |fd: u32| resident(server.pid(), fd) == 0;
    let mut write = |watch: &mut Watch| {
        writer.write_all(b"x").unwrap();
        watch.tick();
        std::thread::sleep(Duration::from_millis(100));
        rounds.set(rounds.get() + 1);
    };
    for number in 1..=6 {
        std::fs::remove_file(data.join(format!("binlog.{number:06}"))).unwrap();
    }
    std::fs::remove_file(home.join("binlog.000001")).unwrap();
    File::open(&data).unwrap().sync_all().unwrap();
    while !(gone(3) && gone(9) && resident(child, 7) == 0) {
        let left = [3, 9].map(|fd| resident(server.pid(), fd));
        assert!(began.elapsed() < Duration::from_secs(60), "{left:?}: {:#?}", watch.reports);
        write(&mut watch);
    }
    // For as long again, and some passes more.
    for _ in 0..rounds.get() + 20 {
        write(&mut watch);
    }
    assert_eq!(resident(server.pid(), 4), whole(), "who has yet to read it reads it from storage");
    assert!(resident(server.pid(), 5) >= whole(), "it is written");
    assert_eq!(resident(server.pid(), 6), whole(), "it has a name");
    assert_eq!(resident(hostile.pid(), 3), whole(), "it is another user's");
    let released = watch.guard.summary().released_total_bytes;
    assert!(released >= 3 * whole(), "{released}");
    // Only these processes have them open: their space comes back.
    let own = std::fs::read_dir("/proc/self/fd").unwrap();
    let held = own.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let held: Vec<PathBuf> = held.filter(|path| path.starts_with(&data)).collect();
    assert_eq!(held.len(), 1, "the writer's alone: {held:?}");
}

#[test]
fn a_dry_run_reports_removed_logs_once() {
    let Some(scratch) = scratch("removed logs in a dry run") else { return };
    let data = directory(scratch.path().join("data"), DATABASE, 0o755);
    binlogs(&data, DATABASE, &[1, 2]);
    let script = "exec 8>>binlog.000002 9>>binlog.000001";
    let server = Fake::start(scratch.path(), "mariadbd", DATABASE, &data, script);
    std::fs::remove_file(data.join("binlog.000001")).unwrap();
    let mut watch = watch(&[server.pid()], true);
    let began = Instant::now();
    let said = |watch: &Watch| {
        let about = |said: &&String| said.contains("Would") && said.contains("binlog.000001");
        watch.reports.iter().filter(about).count()
    };
    while said(&watch) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:#?}", watch.reports);
        watch.tick();
        std::thread::sleep(Duration::from_millis(100));
    }
    watch.tick_past_listing();
    watch.tick_past_listing();
    assert_eq!(said(&watch), 1, "{:#?}", watch.reports);
    assert_eq!(resident(server.pid(), 9), whole());
}

#[test]
fn pages_that_another_process_has_yet_to_read_stay() {
    let Some(scratch) = scratch("readers of removed logs") else { return };
    let data = directory(scratch.path().join("data"), DATABASE, 0o755);
    let size = 6 << 20;
    binlogs(&data, DATABASE, &[1, 2, 3]);
    for number in 1..=2 {
        let file = OpenOptions::new().write(true).open(data.join(format!("binlog.{number:06}"))).unwrap();
        file.set_len(0).unwrap();
        (&file).write_all(&vec![1; size]).unwrap();
        file.sync_all().unwrap();
    }
    let script = "exec 3<binlog.000001 4<binlog.000002 8>>binlog.000003
        for fd in 3 4; do dd of=/dev/null bs=1M count=6 status=none <&$fd; done";
    let server = Fake::start(scratch.path(), "mariadbd", DATABASE, &data, script);
    // A slow mysqlbinlog, of another user that may read them.
    let script = "exec 3<binlog.000001; dd of=/dev/null bs=1M count=3 status=none <&3";
    let reader = Fake::start(scratch.path(), "mysqlbinlog", OTHER, &data, script);
    let mut watch = watch(&[server.pid()], false);
    // At once, as it may be with any descriptor: no listing is waited for.
    watch.guard.watched.removed.quiet = Duration::ZERO;
    for number in 1..=2 {
        std::fs::remove_file(data.join(format!("binlog.{number:06}"))).unwrap();
    }
    let window = 2 << 20;
    let began = Instant::now();
    while resident(server.pid(), 4) > 0 || resident(server.pid(), 3) == size as u64 {
        let left = [3, 4].map(|fd| resident(server.pid(), fd));
        assert!(began.elapsed() < Duration::from_secs(60), "{left:?}: {:#?}", watch.reports);
        watch.tick();
        std::thread::sleep(Duration::from_millis(100));
        assert!(resident(reader.pid(), 3) >= size as u64 - window, "what it has yet to read");
    }
    watch.tick_past_listing();
    watch.tick_past_listing();
    assert_eq!(resident(reader.pid(), 3), size as u64 - window);
}

#[test]
fn a_hostile_database_in_debt_gets_nothing() {
    let Some(scratch) = scratch("removed logs without time") else { return };
    let data = directory(scratch.path().join("data"), ATTACKER, 0o755);
    binlogs(&data, ATTACKER, &[1, 2]);
    let server =
        Fake::start(scratch.path(), "mariadbd", ATTACKER, &data, "exec 3<binlog.000001 8>>binlog.000002");
    let mut watch = watch(&[server.pid()], false);
    watch.tick();
    watch.tick();
    std::fs::remove_file(data.join("binlog.000001")).unwrap();
    let key = DatabaseKey::Process(server.pid());
    watch.guard.watched.jobs.turns.spend(&key, Duration::from_secs(3600));
    let began = Instant::now();
    while watch.guard.watched.removed.looked_at().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "{:#?}", watch.reports);
        watch.tick();
        std::thread::sleep(Duration::from_millis(100));
    }
    // A pass comes every two seconds.
    watch.tick_past_listing();
    assert_eq!(watch.guard.watched.removed.looked_at(), [false]);
}
