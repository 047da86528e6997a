//! Storage engines in a program: SQLite, `WiredTiger`, `RocksDB`.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::SNAPSHOT_NAME;
use super::service::{RestartedService, RunningService, behind};
use crate::data::MIB;
use crate::peers::run as run_program;
use crate::scratch::StopRequest;

/// A query of a database whose WAL was not checkpointed.
pub(super) struct SqliteStart {
    pub(super) bytes: u64,
}

impl SqliteStart {
    /// The table is rewritten into the WAL this often.
    const REWRITES: u64 = 8;
    /// Bytes of a row with its part of a page.
    const ROW_BYTES: u64 = 1100;
}

impl RestartedService for SqliteStart {
    fn name(&self) -> &'static str {
        "SQLite, its WAL"
    }

    fn ratio(&self) -> &'static str {
        "restart_sqlite_vs_plain"
    }

    fn programs(&self) -> &'static [&'static str] {
        &["sqlite3"]
    }

    fn prepare(&self, dir: &Path, stop: &StopRequest) -> Result<()> {
        let rows = self.bytes / Self::REWRITES / Self::ROW_BYTES;
        let sql = format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; CREATE TABLE few (v); INSERT INTO few VALUES (1); \
             CREATE TABLE t (v); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
             INSERT INTO t SELECT randomblob(1000) FROM n;"
        );
        run_program(Command::new("sqlite3").arg(dir.join("db")).arg(sql))?;
        let mut first = self.start(dir, &[], stop)?;
        for _ in 1..Self::REWRITES {
            self.write(dir, &mut first)?;
        }
        Ok(())
    }

    fn start(&self, dir: &Path, prefix: &[OsString], _: &StopRequest) -> Result<RunningService> {
        let mut running =
            RunningService::driven(behind(prefix, "sqlite3").arg("-batch").arg(dir.join("db")))?;
        running.drive("SELECT count(*) FROM few;", "1")?;
        Ok(running)
    }

    fn write(&self, _: &Path, running: &mut RunningService) -> Result<()> {
        let settings = "PRAGMA synchronous=OFF; PRAGMA wal_autocheckpoint=0;";
        running.drive(&format!("{settings} UPDATE t SET v = randomblob(1000); SELECT 'done';"), "done")
    }
}

/// The recovery of `WiredTiger`, with a journal as MongoDB has it.
pub(super) struct WiredTigerStart {
    pub(super) bytes: u64,
}

impl WiredTigerStart {
    /// Bytes of a value.
    const VALUE_BYTES: u64 = 1000;
    /// Bytes of the table per updated row: most pages have 32 KiB.
    const BYTES_PER_UPDATE: u64 = 32 << 10;
}

impl RestartedService for WiredTigerStart {
    fn name(&self) -> &'static str {
        "WiredTiger, random updates"
    }

    fn ratio(&self) -> &'static str {
        "restart_wiredtiger_vs_plain"
    }

    fn means(&self) -> &'static str {
        SNAPSHOT_NAME
    }

    fn programs(&self) -> &'static [&'static str] {
        &["gcc"]
    }

    fn header(&self) -> Option<&'static str> {
        Some("/usr/include/wiredtiger.h")
    }

    fn prepare(&self, dir: &Path, _: &StopRequest) -> Result<()> {
        let (source, program) = (dir.join("engine.c"), dir.join("engine"));
        std::fs::create_dir_all(dir.join("data/journal"))?;
        std::fs::write(&source, include_str!("wiredtiger.c"))?;
        run_program(Command::new("gcc").args(["-O1", "-o"]).args([&program, &source]).arg("-lwiredtiger"))?;
        let rows = (self.bytes / Self::VALUE_BYTES).to_string();
        run_program(Command::new(program).arg(dir.join("data")).args([&rows, "fill"])).map(drop)
    }

    fn start(&self, dir: &Path, prefix: &[OsString], _: &StopRequest) -> Result<RunningService> {
        let rows = (self.bytes / Self::VALUE_BYTES).to_string();
        let mut command = behind(prefix, dir.join("engine"));
        let mut running = RunningService::driven(command.arg(dir.join("data")).arg(rows))?;
        running.drive("0", "done")?;
        Ok(running)
    }

    fn write(&self, _: &Path, running: &mut RunningService) -> Result<()> {
        running.drive(&(self.bytes / Self::BYTES_PER_UPDATE).to_string(), "done")
    }
}

/// The opening of a `RocksDB` with many tables.
pub(super) struct RocksDbStart {
    pub(super) bytes: u64,
}

impl RocksDbStart {
    /// Bytes of a table.
    const TABLE_BYTES: u64 = 64 << 10;
    /// Bytes of the database per table.
    const BYTES_PER_TABLE: u64 = MIB / 2;
    /// Bytes of an entry.
    const ENTRY_BYTES: u64 = 116;

    fn benchmark(dir: &Path, prefix: &[OsString], arguments: &[&str]) -> Result<RunningService> {
        let mut command = behind(prefix, "db_bench");
        command.arg(format!("--db={}", dir.join("db").display()));
        command
            .args(["--open_files=-1", "--compression_type=none", "--disable_auto_compactions=1"])
            .args(arguments);
        RunningService::finished(&mut command)
    }

    fn fill(dir: &Path, entries: u64, how: [&str; 2]) -> Result<()> {
        let size = |name| format!("--{name}={}", Self::TABLE_BYTES);
        let [buffer, target] = ["write_buffer_size", "target_file_size_base"].map(size);
        let number = format!("--num={entries}");
        let common = ["--disable_wal=1", &number, &buffer, &target];
        // Without compactions each full buffer stays a table, and no write waits for fewer of them.
        let tables = ["slowdown", "stop"].map(|what| format!("--level0_{what}_writes_trigger=1000000"));
        let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
        Self::benchmark(dir, &[], &[&common[..], &tables, &how].concat()).map(drop)
    }
}

impl RestartedService for RocksDbStart {
    fn name(&self) -> &'static str {
        "RocksDB, many tables"
    }

    fn ratio(&self) -> &'static str {
        "restart_rocksdb_vs_plain"
    }

    fn programs(&self) -> &'static [&'static str] {
        &["db_bench"]
    }

    fn prepare(&self, dir: &Path, _: &StopRequest) -> Result<()> {
        let tables = self.bytes / Self::BYTES_PER_TABLE;
        Self::fill(
            dir,
            tables * Self::TABLE_BYTES / Self::ENTRY_BYTES,
            ["--benchmarks=fillrandom", "--use_existing_db=0"],
        )
    }

    fn start(&self, dir: &Path, prefix: &[OsString], _: &StopRequest) -> Result<RunningService> {
        let arguments = ["--benchmarks=readrandom", "--use_existing_db=1", "--reads=1", "--num=1000"];
        Self::benchmark(dir, prefix, &arguments)
    }

    fn write(&self, dir: &Path, _: &mut RunningService) -> Result<()> {
        Self::fill(
            dir,
            8 * Self::TABLE_BYTES / Self::ENTRY_BYTES,
            ["--benchmarks=overwrite", "--use_existing_db=1"],
        )
    }
}
