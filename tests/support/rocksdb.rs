//! A real `RocksDB` that writes: `db_bench` of Debian's rocksdb-tools, random puts at a limited
//! rate until it is dropped.
//!
//! Invariants: compaction is off, so that its device reads are caused by its writes; it never
//! outlives its handle or the thread that started it.

use super::MIB;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Programs that it needs.
pub(crate) const REQUIRED_PROGRAMS: [&str; 2] = ["db_bench", "setpriv"];

/// The rate of its puts, in bytes a second.
const PUT_BYTES_PER_SECOND: u64 = 32 * MIB;

/// A deadline far longer than a disk needs for what is waited for here.
const RUN_TIMEOUT: Duration = Duration::from_secs(400);

/// A running `db_bench`.
pub(crate) struct Bench {
    database: PathBuf,
    child: Child,
}

impl Bench {
    /// Starts one under `parent`. A log is about `write_buffer` bytes long; with `recycled`, its
    /// file is then reused.
    pub(crate) fn start(parent: &Path, write_buffer: u64, recycled: bool) -> Self {
        let database = parent.join("database");
        let options = parent.join("options.ini");
        std::fs::write(&options, options_text(write_buffer, recycled)).expect("write options");
        let output = std::fs::File::create(parent.join("db_bench.out")).expect("make a file");
        let child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "db_bench", "--benchmarks=fillrandom", "--value_size=1000"])
            .args([
                "--num=1000000000",
                "--duration=600",
                &format!("--benchmark_write_rate_limit={PUT_BYTES_PER_SECOND}"),
            ])
            .arg(format!("--options_file={}", options.display()))
            .arg(format!("--db={}", database.display()))
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn()
            .expect("start db_bench");
        let mut bench = Self { database, child };
        bench.write(MIB);
        bench
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the directory of its files.
    pub(crate) fn database(&self) -> &Path {
        &self.database
    }

    /// Waits until it has written this many bytes more, to logs and tables together (each byte goes
    /// to both).
    pub(crate) fn write(&mut self, bytes: u64) {
        self.write_while(bytes, || ());
    }

    /// Writes like `write`, and calls `sample` now and then.
    pub(crate) fn write_while(&mut self, bytes: u64, mut sample: impl FnMut()) {
        let until = self.io("wchar") + bytes;
        super::eventually("db_bench writes", RUN_TIMEOUT, || {
            let ended = self.child.try_wait().expect("wait for db_bench");
            assert!(ended.is_none(), "db_bench ended by itself: {ended:?}");
            sample();
            (self.io("wchar") >= until).then_some(())
        });
    }

    /// Stops it (SIGSTOP), calls `meanwhile`, and lets it continue.
    pub(crate) fn while_stopped(&self, meanwhile: impl FnOnce()) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = |signal| rustix::process::kill_process(pid, signal).expect("signal db_bench");
        signal(rustix::process::Signal::STOP);
        meanwhile();
        signal(rustix::process::Signal::CONT);
    }

    /// Returns the bytes that it has read from a device so far.
    pub(crate) fn device_bytes_read(&self) -> u64 {
        self.io("read_bytes")
    }

    /// Returns the bytes that it has written so far, to logs and tables.
    pub(crate) fn written(&self) -> u64 {
        self.io("wchar")
    }

    fn io(&self, name: &str) -> u64 {
        super::io_counter(Path::new(&format!("/proc/{}/io", self.pid())), name)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the current logs of this database.
pub(crate) fn logs_in(database: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(database) else { return Vec::new() };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect()
}

fn options_text(write_buffer: u64, recycled: bool) -> String {
    // Recycling is switched off by RocksDB itself under every other recovery mode.
    let recycling = if recycled {
        "recycle_log_file_num=4\n  wal_recovery_mode=kSkipAnyCorruptedRecords"
    } else {
        "recycle_log_file_num=0"
    };
    format!(
        "[Version]
  rocksdb_version=7.8.3
  options_file_version=1.1
[DBOptions]
  create_if_missing=true
  {recycling}
[CFOptions \"default\"]
  write_buffer_size={write_buffer}
  disable_auto_compactions=true
  level0_slowdown_writes_trigger=1000
  level0_stop_writes_trigger=1000
  compression=kNoCompression
[TableOptions/BlockBasedTable \"default\"]
"
    )
}
