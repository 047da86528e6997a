//! A private `MariaDB` with its tables in `MyRocks`, buffered, in a memory cgroup, and sysbench's reads of it.
//!
//! Invariants: it has its own data directory and socket and no port; it is in the cgroup from the start; it ends with
//! its handle and with the thread that started it. After it is filled and compacted nothing is written. Fails with the
//! program's output.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::database::{Database, files_below, let_in, number_after};
use crate::guard::server::with_parent;
use crate::peers::{Program, run as run_process};
use crate::pressure::group::Group;
use crate::running::Running;
use crate::scratch::Stop;

/// The path of the plugin in Debian's package.
pub(super) const PLUGIN: &str = "/usr/lib/mysql/plugin/ha_rocksdb.so";
/// Rows per statement when a table is filled.
const STEP: u64 = 200_000;

/// A running server.
pub(super) struct MyRocks {
    home: PathBuf,
    rows: u64,
    child: Running,
}

impl MyRocks {
    /// Starts a server in the group and fills it with this many rows of about 200 bytes.
    pub(super) fn start(
        mariadbd: &Program,
        parent: &Path,
        group: &Group,
        rows: u64,
        stop: &Stop,
    ) -> Result<Self> {
        let home = parent.join("myrocks");
        let_in(parent, &home, "mysql")?;
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve", "--user=mysql"]);
        install.arg("--auth-root-authentication-method=normal");
        install.arg(format!("--datadir={}", home.join("data").display()));
        run_process(&mut install)?;
        let mut server = Self { child: spawn(mariadbd, &home, group)?.into(), home, rows };
        server.wait_until_ready(stop)?;
        server.fill(stop)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, stop: &Stop) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.query("SELECT 1") {
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(self.home.join("log.err")).unwrap_or_default();
                bail!("mariadbd ended with {status}: {said}");
            }
            if Instant::now() >= deadline {
                return Err(error).context("mariadbd does not answer after a minute");
            }
            stop.sleep(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Creates sysbench's table, without the index that point selects do not use.
    fn fill(&self, stop: &Stop) -> Result<()> {
        self.query(
            "CREATE DATABASE `load`; CREATE TABLE `load`.sbtest1 (id INT NOT NULL PRIMARY KEY, k INT NOT NULL, \
             c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL) ENGINE=ROCKSDB CHARSET=latin1",
        )?;
        for first in (1..=self.rows).step_by(usize::try_from(STEP)?) {
            let last = (first + STEP - 1).min(self.rows);
            self.query(&format!(
                "USE `load`; SET rocksdb_bulk_load=1; INSERT INTO sbtest1 SELECT seq, seq % 1000, \
                 LEFT(REPEAT(MD5(seq), 4), 120), LEFT(REPEAT(MD5(-seq), 2), 60) FROM seq_{first}_to_{last}; \
                 SET rocksdb_bulk_load=0"
            ))?;
            stop.check()?;
        }
        self.query("SET GLOBAL rocksdb_force_flush_memtable_now=1; SET GLOBAL rocksdb_compact_cf='default'")
    }

    fn query(&self, sql: &str) -> Result<()> {
        let mut client = with_parent("mariadb");
        client.args(["--no-defaults", "--batch", "--user=root", "--execute", sql]);
        run_process(client.arg(format!("--socket={}", self.home.join("socket").display())))?;
        Ok(())
    }
}

impl Database for MyRocks {
    fn name(&self) -> &'static str {
        "MyRocks"
    }

    fn hot(&self) -> Result<Vec<PathBuf>> {
        let mut files = files_below(&self.home.join("data/#rocksdb"))?;
        files.retain(|path| path.extension().is_some_and(|kind| kind == "sst"));
        Ok(files)
    }

    fn load(&self, seconds: u64) -> Result<f64> {
        let mut sysbench = with_parent("sysbench");
        sysbench.args(["oltp_point_select", "--mysql-user=root", "--mysql-db=load", "--rand-type=uniform"]);
        sysbench.args(["--mysql-storage-engine=rocksdb", "--tables=1", "--threads=4", "--skip-trx=on"]);
        sysbench.arg(format!("--mysql-socket={}", self.home.join("socket").display()));
        sysbench.args([format!("--table-size={}", self.rows), format!("--time={seconds}")]);
        let said = run_process(sysbench.arg("run"))?.stdout;
        let errors = number_after(&said, "ignored errors:                      ").unwrap_or(0.0);
        ensure!(errors == 0.0, "sysbench says: {said}");
        let rate = said.split_once("transactions:").and_then(|(_, rest)| number_after(rest, "("));
        rate.with_context(|| format!("sysbench says: {said}"))
    }
}

fn spawn(mariadbd: &Program, home: &Path, group: &Group) -> Result<Child> {
    let mut command = group.command("setpriv");
    command.args(["--reuid=mysql", "--regid=mysql", "--clear-groups", "--pdeathsig=KILL", "--"]);
    command.arg(&mariadbd.path).args(["--no-defaults", "--skip-networking", "--skip-log-bin"]);
    for (option, path) in
        [("datadir", "data"), ("socket", "socket"), ("pid-file", "pid"), ("log-error", "log.err")]
    {
        command.arg(format!("--{option}={}", home.join(path).display()));
    }
    command.args([
        "--plugin-load-add=ha_rocksdb",
        "--rocksdb-block-cache-size=64M",
        "--innodb-buffer-pool-size=8M",
    ]);
    command.args(["--rocksdb-use-direct-reads=OFF", "--rocksdb-use-direct-io-for-flush-and-compaction=OFF"]);
    // The filling data compresses well, unlike most data.
    command
        .arg("--rocksdb-default-cf-options=compression=kNoCompression;bottommost_compression=kNoCompression");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("can't start mariadbd")
}
