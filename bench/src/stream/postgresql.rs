//! A private `PostgreSQL` in a memory cgroup, and pgbench's reads of it.
//!
//! Invariants: it has its own data directory and socket and no port; it is in the cgroup from the
//! start; it ends with its handle and with the thread that started it. After it is filled nothing
//! is written: rows are frozen, and vacuum is off. Fails with the program's output.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::database::{DatabaseServer, admit_server_user, files_below, number_after};
use crate::mariadb::with_parent;
use crate::memory_group::MemoryGroup;
use crate::peers::{InstalledProgram, run as run_process};
use crate::scratch::StopRequest;

/// Its own cache, which is small so that the page cache does the work.
const SHARED_BUFFERS_SETTING: &str = "shared_buffers=64MB";

/// A running server.
pub(crate) struct PostgreSql {
    /// Directory of its programs.
    programs: PathBuf,
    home: PathBuf,
    child: Child,
}

impl PostgreSql {
    /// Starts a server in the group and fills it with about 15 MB per step of pgbench's `scale`.
    pub(crate) fn start(
        postgres: &InstalledProgram,
        parent: &Path,
        group: &MemoryGroup,
        scale: u32,
        stop: &StopRequest,
    ) -> Result<Self> {
        // Its other programs are beside it, but perhaps not beside a link to it.
        let program = postgres.path.canonicalize().context("can't find postgres")?;
        let programs = program.parent().context("postgres is in no directory")?.to_path_buf();
        let home = parent.join("postgresql");
        admit_server_user(parent, &home, "postgres")?;
        let data = home.join("data");
        let mut initdb = as_owner(&mut Command::new("setpriv"), &programs.join("initdb"));
        initdb.args(["--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", "--pgdata"]).arg(&data);
        run_process(&mut initdb)?;
        let log = std::fs::File::create(home.join("log")).context("can't make the server's log")?;
        let mut server = as_owner(&mut group.command("setpriv"), &program);
        server.arg("-D").arg(&data).arg("-k").arg(&home);
        for setting in [
            SHARED_BUFFERS_SETTING,
            "listen_addresses=",
            "autovacuum=off",
            "wal_level=minimal",
            "max_wal_senders=0",
            "max_wal_size=8GB",
        ] {
            server.args(["-c", setting]);
        }
        let child = server
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("can't start postgres")?;
        let mut server = Self { programs, home, child };
        server.wait_until_ready(stop)?;
        run_process(
            server
                .client("pgbench")
                .args(["--initialize", "--quiet", "--init-steps=dtgp"])
                .arg(format!("--scale={scale}")),
        )?;
        server.query("CHECKPOINT")?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, stop: &StopRequest) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.query("SELECT 1") {
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
                bail!("postgres ended with {status}: {said}");
            }
            if Instant::now() >= deadline {
                return Err(error).context("postgres does not answer after a minute");
            }
            stop.sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    fn query(&self, sql: &str) -> Result<()> {
        run_process(self.client("psql").args(["-X", "-q", "-c", sql]))?;
        Ok(())
    }

    /// Returns pgbench's command that lets four clients read single rows for this many seconds.
    pub(crate) fn select_only(&self, seconds: u64) -> Command {
        let mut pgbench = self.client("pgbench");
        pgbench.args(["--no-vacuum", "--select-only", "--protocol=prepared", "--client=4", "--jobs=2"]);
        pgbench.arg(format!("--time={seconds}"));
        pgbench
    }

    fn client(&self, name: &str) -> Command {
        let mut command = with_parent(self.programs.join(name));
        command.arg("-h").arg(&self.home).args(["-U", "postgres", "-d", "postgres"]);
        command
    }
}

impl DatabaseServer for PostgreSql {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn hot(&self) -> Result<Vec<PathBuf>> {
        files_below(&self.home.join("data/base"))
    }

    fn load(&self, seconds: u64) -> Result<f64> {
        let said = run_process(&mut self.select_only(seconds))?.stdout;
        // The number of failures proves that none was silent.
        let failed = number_after(&said, "number of failed transactions: ").unwrap_or(0.0);
        ensure!(failed == 0.0, "pgbench says: {said}");
        number_after(&said, "tps = ").with_context(|| format!("pgbench says: {said}"))
    }
}

impl Drop for PostgreSql {
    fn drop(&mut self) {
        // SIGQUIT makes it end its children, which would otherwise continue for a while.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        let _ = self.child.wait();
    }
}

/// Continues a command that runs setpriv: it runs the program as the server's user, which must not
/// be root, for as long as its parent lives.
fn as_owner(setpriv: &mut Command, program: &Path) -> Command {
    let mut command = Command::new(setpriv.get_program());
    command.args(setpriv.get_args());
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL", "--"])
        .arg(program);
    command
}
