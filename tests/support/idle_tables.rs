//! A private `PostgreSQL` server in a memory cgroup, with one table that is scanned repeatedly and
//! one that was read once.
//!
//! Invariants: the tables are charged to the server's own group, and the hot one comes from the
//! page cache at each scan.

use super::MIB;
use super::memory_group::MemoryGroup;
use super::postgresql::Server;
use std::path::{Path, PathBuf};

/// Rows of the table that was read once, of some 120 MiB.
const COLD_ROWS: &str = "120000";

/// The distance from `memory.high` to `memory.max`, in bytes.
pub(crate) const HEADROOM_BYTES: u64 = 20 * MIB;

/// The server; its processes end before the cgroup is removed.
pub(crate) struct IdleTables {
    pub(crate) server: Server,
    pub(crate) memory: MemoryGroup,
    /// The cgroup's `memory.high`, in bytes.
    pub(crate) limit: u64,
    script: PathBuf,
}

impl IdleTables {
    /// Starts it in a directory, with a limit of this many bytes. Returns `None`, and prints a
    /// sentence, if no cgroup can be created.
    pub(crate) fn start(test: &str, scratch: &Path, limit: u64) -> Option<Self> {
        let memory = limited(test, limit)?;
        let server = Server::start(scratch);
        for pid in server.device_bytes_read().keys() {
            memory.add(*pid);
        }
        // Creates the hot table of 64 MiB again, since earlier pages are charged elsewhere. Then
        // one that is written and read once.
        let made = server.pgbench(&["--initialize", "--quiet", "--scale=5"]).output().expect("start pgbench");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let rows = format!("SELECT g, repeat('x', 900) AS filler FROM generate_series(1, {COLD_ROWS}) AS g");
        server.query(&format!("CREATE TABLE cold AS {rows}"));
        server.query("CHECKPOINT");
        server.query("SELECT count(*) FROM cold");
        let script = scratch.join("scan.sql");
        std::fs::write(&script, "SELECT sum(abalance) FROM pgbench_accounts;\n").expect("write a script");
        let tables = Self { server, memory, limit, script };
        tables.scans(20);
        Some(tables)
    }

    /// Returns the cgroup's `memory.max` in bytes, of which the guard's share is a part.
    pub(crate) fn memory_max(&self) -> u64 {
        self.limit + HEADROOM_BYTES
    }

    /// Scans the hot table for this many seconds, by a ring of few buffers, so that it comes from
    /// the page cache each time. Returns the scans per minute.
    pub(crate) fn scans(&self, seconds: u64) -> f64 {
        let (time, script) = (format!("--time={seconds}"), self.script.to_str().expect("it is UTF-8"));
        let mut scans = self.server.pgbench(&["--no-vacuum", "--client=1", &time, "--file", script]);
        let output = scans.output().expect("start pgbench");
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.lines().find_map(|line| line.strip_prefix("tps = "));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        60.0 * line.split(' ').next().and_then(|figure| figure.parse::<f64>().ok()).expect("a number")
    }

    /// Panics unless the cold table has all its rows.
    pub(crate) fn assert_nothing_is_lost(&self) {
        assert_eq!(self.server.query("SELECT count(*) FROM cold"), COLD_ROWS);
    }
}

/// Creates a cgroup with `memory.max` of `limit` bytes, and `memory.high` a little below.
pub(crate) fn limited(test: &str, limit: u64) -> Option<MemoryGroup> {
    let memory = MemoryGroup::new(test, limit + HEADROOM_BYTES)?;
    std::fs::write(memory.path().join("memory.high"), limit.to_string()).expect("set memory.high");
    Some(memory)
}
