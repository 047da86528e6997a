//! A follower that no descriptor shows: `RocksDB`'s `GetUpdatesSince`, which opens the log, reads it from its beginning and closes
//! it again, each time that it is asked. The guard sees by what is read back that somebody does, and keeps the log.
//!
//! The program is `rocksdb_follower.cc`, on Debian's librocksdb. Needs root, `fincore`, `setpriv` and a C++ compiler; skips with a
//! sentence otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Reads are the kernel's own counts.

use crate::support;
use crate::support::guard::Guard;
use crate::support::{MIB, eventually, resident_bytes};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(180);

/// Other reads of the kernel, such as metadata.
const FEW_READS: u64 = 4 * MIB;

/// A database that is written to and followed.
struct Followed {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    database: PathBuf,
}

impl Followed {
    fn start(scratch: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/databases/rocksdb_follower.cc");
        let (program, database) = (scratch.join("rocksdb_follower"), scratch.join("database"));
        let output = Command::new("c++")
            .args(["-std=c++17", "-O1", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-lrocksdb")
            .output()
            .expect("run c++");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--"])
            .arg(&program)
            .arg(&database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the follower");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut followed = Self { child, stdin, stdout: BufReader::new(stdout), database };
        followed.put(MIB);
        followed
    }

    /// Puts so many bytes.
    fn put(&mut self, bytes: u64) {
        writeln!(self.stdin, "{bytes}").expect("it runs");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it runs");
        assert_eq!(line, "put\n", "it has ended");
    }

    fn log(&self) -> Vec<PathBuf> {
        support::rocksdb::logs_in(&self.database)
    }

    /// Bytes that it had read from a device so far.
    fn device_bytes_read(&self) -> u64 {
        support::io_counter(Path::new(&format!("/proc/{}/io", self.child.id())), "read_bytes")
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_log_that_is_read_back_is_kept_whoever_reads_it() {
    /// Puts the log's bytes in all, some thirty times the follower's interval and more.
    const LOG: u64 = 96 * MIB;
    if !support::can_run("a follower of RocksDB", &["c++", "fincore", "setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut followed = Followed::start(scratch.path());
    followed.put(LOG / 4);
    let alone = followed.device_bytes_read();
    assert!(
        alone < 2 * FEW_READS,
        "{alone} bytes are read even without a guard: nothing can be concluded here"
    );

    let pid = followed.child.id();
    let guard = Guard::spawn(&["--tick", "100ms", "--pid", &pid.to_string()]);
    guard.wait_for("found", SOON, |event| event["pid"] == pid);
    followed.put(LOG);
    let read = followed.device_bytes_read() - alone;
    // All that is put from now on stays.
    let before = resident_bytes(&followed.log());
    followed.put(LOG / 4);
    eventually("what is put stays", SOON, || {
        (resident_bytes(&followed.log()) >= before + LOG / 4 - MIB).then_some(())
    });
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let summary = ended.summary();
    let released = summary["released_bytes"]["wal"].as_u64().expect("a first release shows it the reader");
    let read_back = summary["read_back_bytes"]["wal"].as_u64().unwrap_or(0);
    println!("released {released} bytes, read back {read_back}; {read} bytes were read from the device");
    // Each byte that was released is read once again, and of them no more than the threshold and a tick's reads twice.
    assert!(read <= released + FEW_READS, "{read} bytes were read, {released} released: {summary}");
    assert!(released <= LOG, "the log was released more than once: {summary}");
    assert!(0 < read_back && read_back <= released, "{summary}");
    let warned = ended.events.iter().filter(|event| {
        event["event"] == "warning"
            && event["warning"].as_str().is_some_and(|said| said.contains("read back"))
    });
    assert_eq!(warned.count(), 1, "{:#?}", ended.events);
}
