//! A private `MariaDB` server and sysbench's load on it.
//!
//! Invariants: the server has its own data directory and socket and no port; server and load end
//! with their handles, and with the thread that started them (`setpriv --pdeathsig`). As root the
//! server runs as the user mysql. Fails with the program's output.

use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::clients::{COUNTER_TABLE_SQL, line_buffered};
use crate::data::MIB;
use crate::peers::{InstalledProgram, run as run_process};
use crate::running::RunningChild;
use crate::scratch::StopRequest;

/// Programs that must be installed beside server and load.
pub(crate) const REQUIRED_PROGRAMS: [&str; 2] = ["mariadb-install-db", "mariadb"];

/// Rows per statement when a table is filled.
const FILL_BATCH_ROWS: usize = 50_000;
/// Size of the redo ring.
const REDO_RING_BYTES: u64 = 48 * MIB;
/// Size at which a binlog is followed by the next.
pub(crate) const BINLOG_BYTES: u64 = 16 * MIB;

/// The database of clients whose commits are timed. Nobody else locks a row of its table.
const COMMITS_DATABASE: &str = "commits";

/// A running server.
pub(crate) struct MariaDbServer {
    home: PathBuf,
    child: RunningChild,
}

impl MariaDbServer {
    /// Creates a data directory in `parent` and starts a server on it; both logs are buffered and
    /// synced at every commit.
    pub(crate) fn with_logs(mariadbd: &InstalledProgram, parent: &Path, stop: &StopRequest) -> Result<Self> {
        let options = [
            "--innodb-buffer-pool-size=128M".to_owned(),
            "--innodb-flush-log-at-trx-commit=1".to_owned(),
            format!("--innodb-log-file-size={REDO_RING_BYTES}"),
            // Whole pages, also on a device of 512-byte blocks; otherwise a released page of the
            // ring must be read back.
            "--innodb-log-file-buffering=ON".to_owned(),
            "--innodb-log-write-ahead-size=4096".to_owned(),
            "--server-id=1".to_owned(),
            "--log-bin=binlog".to_owned(),
            "--binlog-format=ROW".to_owned(),
            "--sync-binlog=1".to_owned(),
            format!("--max-binlog-size={BINLOG_BYTES}"),
        ];
        Self::start(mariadbd, Command::new("setpriv"), &options, parent, stop)
    }

    /// Creates a data directory in `parent` and starts a server on it, by a command that runs
    /// `setpriv`.
    pub(crate) fn start(
        mariadbd: &InstalledProgram,
        setpriv: Command,
        options: &[String],
        parent: &Path,
        stop: &StopRequest,
    ) -> Result<Self> {
        let home = parent.join("mariadb");
        std::fs::create_dir(&home).context("can't make the server's directory")?;
        for path in [parent, &home] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
                .context("can't let the server's user in")?;
        }
        let root = rustix::process::geteuid().is_root();
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
        install.arg("--auth-root-authentication-method=normal");
        install.arg(format!("--datadir={}", home.join("data").display()));
        if root {
            install.arg("--user=mysql");
        }
        run_process(&mut install)?;
        // Its socket, pid file and messages are there.
        let messages = home.join("run");
        std::fs::create_dir(&messages).context("can't make the server's directory")?;
        if root {
            run_process(Command::new("chown").arg("mysql:").arg(&messages))?;
        }
        let child = spawn(mariadbd, setpriv, options, &home)?;
        let mut server = Self { child: child.into(), home };
        server.wait_until_ready(stop)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, stop: &StopRequest) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(self.home.join("run/log.err")).unwrap_or_default();
                bail!("mariadbd ended with {status}: {said}");
            }
            if self.query("SELECT 1").is_ok() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "mariadbd does not answer after a minute");
            stop.sleep(Duration::from_millis(100))?;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the server's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.home.join("run/socket")
    }

    /// Returns its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Returns the client's output for a statement, without column names.
    pub(crate) fn query(&self, sql: &str) -> Result<String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--batch", "--skip-column-names", "--user=root", "--execute", sql]);
        client.arg(format!("--socket={}", self.socket().display()));
        Ok(run_process(&mut client)?.stdout)
    }

    /// Returns the number of statements from clients so far, and the time of the query.
    pub(crate) fn questions(&self) -> Result<(f64, Instant)> {
        let text = self.query("SHOW GLOBAL STATUS LIKE 'Questions'")?;
        let count = text.split_whitespace().nth(1).and_then(|count| count.parse().ok());
        Ok((count.with_context(|| format!("not a count: {text}"))?, Instant::now()))
    }

    /// Returns the paths of its redo log and binlogs.
    pub(crate) fn logs(&self) -> Result<Vec<PathBuf>> {
        let mut logs = Vec::new();
        for entry in std::fs::read_dir(self.data()).context("can't list the data directory")? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let number = name.strip_prefix("binlog.").unwrap_or_default();
            let is_binlog = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            if is_binlog || name == "ib_logfile0" {
                logs.push(path);
            }
        }
        Ok(logs)
    }

    /// Deletes the oldest binlogs so that at most `keep` stay, as a server's expiry does.
    pub(crate) fn purge(&self, keep: u64) -> Result<()> {
        let mut binlogs = self.logs()?;
        binlogs.retain(|path| !path.ends_with("ib_logfile0"));
        binlogs.sort();
        let first_kept = binlogs.len().saturating_sub(usize::try_from(keep)?);
        let Some(oldest) = binlogs.get(first_kept).and_then(|path| path.file_name()) else {
            return Ok(());
        };
        self.query(&format!("PURGE BINARY LOGS TO '{}'", oldest.to_string_lossy()))?;
        Ok(())
    }

    fn sysbench(&self) -> Command {
        let mut command = with_parent("sysbench");
        command.args(["oltp_read_write", "--mysql-user=root", "--db-ps-mode=disable", "--mysql-db=load"]);
        command.args(["--rand-type=uniform", "--table-size=10000", "--tables=4", "--threads=8"]);
        command.arg(format!("--mysql-socket={}", self.socket().display()));
        command
    }

    /// Creates and fills the tables of the load.
    pub(crate) fn prepare(&self) -> Result<()> {
        self.query("CREATE DATABASE `load`")?;
        run_process(self.sysbench().arg("prepare"))?;
        Ok(())
    }

    /// Creates and fills the table of [`Self::committer`].
    pub(crate) fn prepare_committer(&self) -> Result<()> {
        self.query(&format!(
            "CREATE DATABASE {COMMITS_DATABASE}; USE {COMMITS_DATABASE}; {COUNTER_TABLE_SQL}"
        ))
        .map(drop)
    }

    /// Returns a command that makes changes from its standard input, each in its own transaction.
    pub(crate) fn committer(&self) -> Command {
        let mut client = line_buffered("mariadb");
        client.args(["--no-defaults", "--batch", "--skip-column-names", "--unbuffered", "--user=root"]);
        client.arg("--socket").arg(self.socket()).arg(COMMITS_DATABASE);
        client
    }

    /// Creates a table whose dump has about `bytes` bytes, in a database of its own, without
    /// binlog. Returns its file.
    pub(crate) fn make_table(&self, database: &str, bytes: u64) -> Result<PathBuf> {
        // Including the number, quotes and brackets of a row in a dump.
        let rows = bytes / 1006;
        self.query(&format!(
            "SET sql_log_bin=0; CREATE DATABASE `{database}`; CREATE TABLE `{database}`.rows_of_a_kib \
             (id INT PRIMARY KEY, content VARCHAR(1000) CHARACTER SET latin1)"
        ))?;
        // One large transaction would have to be kept in memory or in the undo log.
        for first in (1..=rows).step_by(FILL_BATCH_ROWS) {
            let last = (first + FILL_BATCH_ROWS as u64 - 1).min(rows);
            self.query(&format!(
                "SET sql_log_bin=0; USE `{database}`; INSERT INTO rows_of_a_kib \
                 SELECT seq, REPEAT(MD5(seq), 31) FROM seq_{first}_to_{last}"
            ))?;
        }
        Ok(self.data().join(database).join("rows_of_a_kib.ibd"))
    }

    /// Starts `oltp_read_write` with more writes per transaction than by default, at this many
    /// transactions per second, or as fast as the server can.
    pub(crate) fn load(&self, transactions: Option<NonZeroU32>) -> Result<SysbenchLoad> {
        let mut sysbench = self.sysbench();
        if let Some(transactions) = transactions {
            sysbench.arg(format!("--rate={transactions}"));
        }
        let child = sysbench
            .args(["--time=0", "--range-selects=off", "--point-selects=2"])
            .args(["--index-updates=15", "--non-index-updates=15", "--delete-inserts=10"])
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("can't start sysbench")?;
        Ok(SysbenchLoad(child.into()))
    }
}

/// Returns a command that is killed when its parent's thread ends.
pub(crate) fn with_parent(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--"]).arg(program);
    command
}

fn spawn(
    mariadbd: &InstalledProgram,
    mut command: Command,
    options: &[String],
    home: &Path,
) -> Result<Child> {
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid=mysql", "--regid=mysql", "--clear-groups"]);
    }
    // The signal would be lost if the server itself changed its user.
    command.args(["--pdeathsig=KILL", "--"]).arg(&mariadbd.path);
    command.args(["--no-defaults", "--skip-networking"]);
    for (option, path) in
        [("datadir", "data"), ("socket", "run/socket"), ("pid-file", "run/pid"), ("log-error", "run/log.err")]
    {
        command.arg(format!("--{option}={}", home.join(path).display()));
    }
    command.args(options);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("can't start mariadbd")
}

/// A running load.
pub(crate) struct SysbenchLoad(RunningChild);

impl SysbenchLoad {
    /// Fails if the load has ended by itself, which means that the server refused it.
    pub(crate) fn check(&mut self) -> Result<()> {
        let ended = self.0.try_wait()?;
        ensure!(ended.is_none(), "sysbench ended by itself: {ended:?}");
        Ok(())
    }
}
