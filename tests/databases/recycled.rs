//! Logs that are overwritten: a real `RocksDB` with recycled logs is recognised and left alone,
//! one without is not; and files like raft-engine's are left alone.
//!
//! `RocksDB` is Debian's `db_bench`. raft-engine itself is in no package. A thread of this test
//! acts like it: it overwrites a file with its name by `pwrite` in parts of pages. Each test also
//! forces the release that the guard refuses, and sees device reads, which shows that the test can
//! fail. Needs root, `fincore`, `setpriv` and `db_bench`; skips with a sentence otherwise, and
//! fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Reads are the kernel's own counts.

use crate::support;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::rocksdb::{Bench, REQUIRED_PROGRAMS};
use crate::support::{MIB, eventually, resident_bytes};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Device reads of a writer whose log pages are resident: only the kernel's own, such as
/// metadata.
const FEW_READS: u64 = 2 * MIB;

/// Returns a configuration in which this log counts as one that is written in whole pages, so that
/// it is released.
fn forcing_config(scratch: &Path, files: &str, position: &str) -> PathBuf {
    let profile = format!(
        "name = \"forced\"\n[[log]]\nclass = \"wal\"\nfiles = \"{files}\"\nrule = \"release-behind-writer\"\nslack = \"0\"\n\
         rewrite = \"whole-pages\"\nposition = \"{position}\"\n"
    );
    std::fs::write(scratch.join("forced.toml"), profile).expect("write a profile");
    let config = scratch.join("guard.toml");
    std::fs::write(&config, "profiles = [\"forced.toml\"]\n").expect("write a configuration");
    config
}

fn start_forcing_guard(config: &Path, pid: &str) -> Guard {
    let config = config.to_str().expect("a path of this test's own");
    Guard::spawn(&["--tick", "50ms", "--config", config, "--profile", "forced", "--pid", pid])
}

fn assert_kept_with_a_warning(ended: &EndedGuard, directory: &Path, hint: &str) {
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    assert_eq!(ended.summary()["released_bytes"]["wal"], serde_json::Value::Null, "{}", ended.summary());
    let warned = ended.events.iter().any(|event| {
        event["event"] == "warning"
            && event["path"].as_str().is_some_and(|path| Path::new(path).starts_with(directory))
            && event["warning"].as_str().is_some_and(|said| said.contains("recycled") && said.contains(hint))
    });
    assert!(warned, "no warning: {:#?}", ended.events);
}

/// Attempts at a measurement that the rest of the machine may disturb.
const PHASES: u32 = 5;

/// Returns the minimum, over several phases, of the bytes read from a device while `bytes` are
/// written. Pages that the kernel evicts are read back in some phases, pages that a guard releases
/// in every one.
fn min_device_reads(bench: &mut Bench, bytes: u64) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..PHASES {
        let before = bench.device_bytes_read();
        bench.write(bytes);
        least = least.min(bench.device_bytes_read() - before);
        if least < FEW_READS {
            break;
        }
    }
    least
}

#[test]
fn a_recycled_log_of_rocksdb_is_kept_and_costs_no_reads() {
    /// Bytes of some twenty logs.
    const PHASE_BYTES: u64 = 128 * MIB;
    if !support::can_run("a RocksDB with recycled logs", &[&REQUIRED_PROGRAMS[..], &["fincore"]].concat()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut bench = Bench::start(scratch.path(), 3 * MIB, true);
    let pid = bench.pid();
    bench.write(PHASE_BYTES / 2);

    for _ in 0..2 {
        let alone = min_device_reads(&mut bench, PHASE_BYTES);
        assert!(
            alone < FEW_READS,
            "{alone} bytes are read even without a guard: nothing can be concluded here"
        );

        // Others may have logs that are not recycled.
        let guard = Guard::spawn(&["--tick", "50ms", "--only", &format!("pid:{pid}")]);
        let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid);
        assert_eq!(found["profile"], "rocksdb");
        let added = min_device_reads(&mut bench, PHASE_BYTES);
        assert!(added < FEW_READS, "{added} bytes were read from the device beside the guard");
        assert_kept_with_a_warning(&guard.stop(), bench.database(), "recycle_log_file_num=0");
    }

    let config = forcing_config(scratch.path(), "{n}.log", "descriptor");
    let guard = start_forcing_guard(&config, &pid.to_string());
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid);
    let before = bench.device_bytes_read();
    let mut harm = 0;
    // Long enough for a guard on a busy machine to sample between two writes of one log.
    //
    for _ in 0..PHASES {
        bench.write(PHASE_BYTES);
        harm = bench.device_bytes_read() - before;
        if harm > 4 * FEW_READS {
            break;
        }
    }
    let ended = guard.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(
        harm > 4 * FEW_READS,
        "a released log that is written over is read again, but only {harm} bytes were: {}",
        ended.summary()
    );
    println!("read back where releases were forced: {} MiB of {} written", harm / MIB, PHASE_BYTES / MIB);
}

#[test]
#[ignore = "long: make test-stories"]
fn a_log_of_rocksdb_that_is_not_recycled_is_released_behind_its_writer() {
    /// Bytes of a log and of its tables: two logs and a half.
    const PHASE_BYTES: u64 = 2 * 160 * MIB;
    /// One log. Without a guard it is resident to its end.
    const LOG_BYTES: u64 = 64 * MIB;
    if !support::can_run("a RocksDB without recycled logs", &[&REQUIRED_PROGRAMS[..], &["fincore"]].concat())
    {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut bench = Bench::start(scratch.path(), LOG_BYTES, false);
    let pid = bench.pid();
    let logs_at_most = |bench: &mut Bench| {
        let database = bench.database().to_path_buf();
        let mut most = 0;
        bench.write_while(PHASE_BYTES, || {
            most = most.max(resident_bytes(&support::rocksdb::logs_in(&database)));
        });
        most
    };
    let alone = logs_at_most(&mut bench);
    assert!(alone > LOG_BYTES / 4 * 3, "{alone} bytes of the log are resident without a guard");

    let guard = Guard::spawn(&["--tick", "100ms"]);
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid);
    assert_eq!(found["profile"], "rocksdb");
    // Pages that were resident before go first.
    support::wait_until_resident_below(
        &support::rocksdb::logs_in(bench.database()),
        LOG_BYTES / 2,
        WAIT_TIMEOUT,
    );
    let before = bench.device_bytes_read();
    // The writer's pace is set by what is resident: dirty pages stay until the disk has them,
    // however slow it is, and a guard that gets no processor releases nothing meanwhile. Pages that
    // stay after that are the guard's fault.
    let database = bench.database().to_path_buf();
    let logs = || resident_bytes(&support::rocksdb::logs_in(&database));
    let (mut guarded, until) = (0, bench.written() + PHASE_BYTES);
    while bench.written() < until {
        bench.write(MIB);
        if logs() >= LOG_BYTES / 2 {
            bench.while_stopped(|| {
                let logs = support::rocksdb::logs_in(&database);
                support::wait_until_resident_below(&logs, LOG_BYTES / 2, WAIT_TIMEOUT);
            });
        }
        guarded = guarded.max(logs());
    }
    let added = bench.device_bytes_read() - before;
    let ended = guard.stop();
    assert!(added < FEW_READS, "{added} bytes were read from the device beside the guard");
    let released = ended.summary()["released_bytes"]["wal"].as_u64();
    assert!(released > Some(PHASE_BYTES / 4), "{}", ended.summary());
    println!("{} MiB of the log resident at most, {} MiB beside the guard", alone / MIB, guarded / MIB);
}

/// Three files in turn, as raft-engine has them: the oldest is renamed to the next number and
/// written over from its start, in parts of pages, until asked to stop.
struct PartialWriter {
    directory: PathBuf,
    /// Files written since the start.
    rounds: AtomicU64,
    thread: AtomicU64,
    stop: AtomicBool,
}

impl PartialWriter {
    const FILE_COUNT: u64 = 3;
    const PARTS: u64 = 8 << 10;
    const PART_BYTES: usize = 1000;

    fn new(directory: &Path) -> Self {
        let writer = Self {
            directory: directory.to_path_buf(),
            rounds: AtomicU64::new(0),
            thread: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        };
        for number in 1..=Self::FILE_COUNT {
            let file = File::create(writer.path(number)).expect("make a log");
            Self::write_over(&file);
        }
        writer
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016}.raftlog"))
    }

    fn write_over(file: &File) {
        for part in 0..Self::PARTS {
            let offset = part * Self::PART_BYTES as u64;
            file.write_all_at(&[7; Self::PART_BYTES], offset).expect("write a part");
            if part % 512 == 511 {
                file.sync_data().expect("sync");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn run(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(u64::try_from(thread).expect("a positive number"), Ordering::SeqCst);
        for number in Self::FILE_COUNT + 1.. {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let path = self.path(number);
            std::fs::rename(self.path(number - Self::FILE_COUNT), &path).expect("rename the oldest");
            Self::write_over(&File::options().write(true).open(path).expect("open a log"));
            self.rounds.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits until some more files are written. Returns the bytes that the writer read from a
    /// device meanwhile.
    fn device_bytes_in(&self, rounds: u64) -> u64 {
        let thread = eventually("the writer runs", WAIT_TIMEOUT, || {
            Some(self.thread.load(Ordering::SeqCst)).filter(|&thread| thread > 0)
        });
        let io = format!("/proc/self/task/{thread}/io");
        let read = || support::io_counter(Path::new(&io), "read_bytes");
        let (before, until) = (read(), self.rounds.load(Ordering::SeqCst) + rounds);
        // Each round syncs sixteen times.
        eventually("the writer continues", Duration::from_secs(600), || {
            (self.rounds.load(Ordering::SeqCst) >= until).then_some(())
        });
        read() - before
    }
}

#[test]
#[ignore = "long: make test-stories"]
fn a_log_named_like_raft_engines_is_kept() {
    const ROUNDS: u64 = 9;
    if !support::can_run("a log like raft-engine's", &["fincore", "setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let config = forcing_config(scratch.path(), "{n}.raftlog", "hidden");
    let own = std::process::id().to_string();
    let directory = scratch.path().join("raft-engine");
    std::fs::create_dir(&directory).expect("make a directory");
    let writer = PartialWriter::new(&directory);

    std::thread::scope(|scope| {
        scope.spawn(|| writer.run());
        // Also after a panic: otherwise the writer would never end.
        let _stop = StopOnDrop(&writer.stop);
        let alone = writer.device_bytes_in(ROUNDS);
        assert!(
            alone < FEW_READS,
            "{alone} bytes are read even without a guard: nothing can be concluded here"
        );

        let guard = Guard::spawn(&["--tick", "50ms", "--profile", "rocksdb", "--pid", &own]);
        guard.wait_for("found", WAIT_TIMEOUT, |_| true);
        let added = writer.device_bytes_in(ROUNDS);
        assert!(added < FEW_READS, "{added} bytes were read from the device beside the guard");
        assert_kept_with_a_warning(&guard.stop(), &directory, "kept");

        let guard = start_forcing_guard(&config, &own);
        guard.wait_for("tick", WAIT_TIMEOUT, |tick| tick["released_bytes"].as_u64() > Some(0));
        let mut harm = 0;
        for _ in 0..PHASES {
            harm += writer.device_bytes_in(ROUNDS);
            if harm > 4 * FEW_READS {
                break;
            }
        }
        let ended = guard.stop();
        assert!(
            harm > 4 * FEW_READS,
            "a released log that is written over is read again, but only {harm} bytes were: {}",
            ended.summary()
        );
        println!("read back where releases were forced: {} MiB", harm / MIB);
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
