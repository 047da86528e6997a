//! `MyRocks` in a private `MariaDB` in a memory cgroup, with buffered files, and sysbench's reads
//! of it.
//!
//! Invariant: after it is filled and compacted nothing is written. Fails with the program's output.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::database::{DatabaseServer, files_below, number_after};
use crate::mariadb::{MariaDbServer, with_parent};
use crate::memory_group::MemoryGroup;
use crate::peers::{InstalledProgram, run as run_process};
use crate::scratch::StopRequest;

/// The path of the plugin in Debian's package.
pub(super) const PLUGIN_PATH: &str = "/usr/lib/mysql/plugin/ha_rocksdb.so";
/// Rows per statement when a table is filled.
const FILL_STEP_ROWS: u64 = 200_000;
const MYROCKS_OPTIONS: [&str; 7] = [
    "--skip-log-bin",
    "--plugin-load-add=ha_rocksdb",
    "--rocksdb-block-cache-size=64M",
    "--innodb-buffer-pool-size=8M",
    "--rocksdb-use-direct-reads=OFF",
    "--rocksdb-use-direct-io-for-flush-and-compaction=OFF",
    // The filling data compresses well, unlike most data.
    "--rocksdb-default-cf-options=compression=kNoCompression;bottommost_compression=kNoCompression",
];

/// A running server.
pub(super) struct MyRocks {
    server: MariaDbServer,
    rows: u64,
}

impl MyRocks {
    /// Starts a server in the group and fills it with this many rows of about 200 bytes.
    pub(super) fn start(
        mariadbd: &InstalledProgram,
        parent: &Path,
        group: &MemoryGroup,
        rows: u64,
        stop: &StopRequest,
    ) -> Result<Self> {
        let launcher = group.command("setpriv");
        let server =
            MariaDbServer::start(mariadbd, launcher, &MYROCKS_OPTIONS.map(str::to_owned), parent, stop)?;
        let server = Self { server, rows };
        server.fill(stop)?;
        Ok(server)
    }

    /// Creates sysbench's table, without the index that point selects do not use.
    fn fill(&self, stop: &StopRequest) -> Result<()> {
        self.server.query(
            "CREATE DATABASE `load`; CREATE TABLE `load`.sbtest1 (id INT NOT NULL PRIMARY KEY, k INT NOT NULL, \
             c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL) ENGINE=ROCKSDB CHARSET=latin1",
        )?;
        for first in (1..=self.rows).step_by(usize::try_from(FILL_STEP_ROWS)?) {
            let last = (first + FILL_STEP_ROWS - 1).min(self.rows);
            self.server.query(&format!(
                "USE `load`; SET rocksdb_bulk_load=1; INSERT INTO sbtest1 SELECT seq, seq % 1000, \
                 LEFT(REPEAT(MD5(seq), 4), 120), LEFT(REPEAT(MD5(-seq), 2), 60) FROM seq_{first}_to_{last}; \
                 SET rocksdb_bulk_load=0"
            ))?;
            stop.check()?;
        }
        let compact =
            "SET GLOBAL rocksdb_force_flush_memtable_now=1; SET GLOBAL rocksdb_compact_cf='default'";
        self.server.query(compact).map(drop)
    }
}

impl DatabaseServer for MyRocks {
    fn name(&self) -> &'static str {
        "MyRocks"
    }

    fn hot(&self) -> Result<Vec<PathBuf>> {
        let mut files = files_below(&self.server.data().join("#rocksdb"))?;
        files.retain(|path| path.extension().is_some_and(|kind| kind == "sst"));
        Ok(files)
    }

    fn load(&self, seconds: u64) -> Result<f64> {
        let mut sysbench = with_parent("sysbench");
        sysbench.args(["oltp_point_select", "--mysql-user=root", "--mysql-db=load", "--rand-type=uniform"]);
        sysbench.args(["--mysql-storage-engine=rocksdb", "--tables=1", "--threads=4", "--skip-trx=on"]);
        sysbench.arg(format!("--mysql-socket={}", self.server.socket().display()));
        sysbench.args([format!("--table-size={}", self.rows), format!("--time={seconds}")]);
        let said = run_process(sysbench.arg("run"))?.stdout;
        let errors = number_after(&said, "ignored errors:                      ").unwrap_or(0.0);
        ensure!(errors == 0.0, "sysbench says: {said}");
        let rate = said.split_once("transactions:").and_then(|(_, rest)| number_after(rest, "("));
        rate.with_context(|| format!("sysbench says: {said}"))
    }
}
