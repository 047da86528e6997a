//! Servers: `PostgreSQL`, etcd, `MariaDB`.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pagekeeper_testing::Seed;
use pagekeeper_testing::http::{ask, ask_with, free_port};

use super::service::{RestartedService, RunningService, as_user, behind};
use crate::peers::{InstalledProgram, run as run_program};
use crate::scratch::StopRequest;

/// Returns the directory of sockets: beside the disk, which has none.
fn sockets(dir: &Path) -> Result<PathBuf> {
    let directory = dir.ancestors().nth(2).context("it is below the scratch directory")?.join("sockets");
    // The user of each server makes its socket here.
    run_program(Command::new("install").args(["-d", "-m", "1777"]).arg(&directory))?;
    Ok(directory)
}

/// Crash recovery of `PostgreSQL`.
pub(super) struct PostgreSqlStart {
    pub(super) bytes: u64,
}

impl PostgreSqlStart {
    /// The port that names its socket.
    const PORT: &str = "54329";
    /// Clients that write.
    const CLIENTS: u64 = 16;
    /// Bytes of WAL per transaction: most have an image of a page.
    const BYTES_PER_TRANSACTION: u64 = 10 << 10;
    /// Bytes of tables per unit of pgbench's scale.
    const BYTES_PER_SCALE: u64 = 16 << 20;

    fn program(name: &str) -> Result<PathBuf> {
        let postgres = InstalledProgram::find("postgres").context("there is no postgres")?;
        Ok(postgres.path.canonicalize()?.with_file_name(name))
    }

    fn owned(prefix: &[OsString], name: &str) -> Result<Command> {
        Ok(as_user(prefix, "postgres", &Self::program(name)?))
    }

    fn client(dir: &Path, name: &str) -> Result<Command> {
        let mut command = Command::new(Self::program(name)?);
        command.arg("-h").arg(sockets(dir)?).args(["-p", Self::PORT, "-U", "postgres"]);
        Ok(command)
    }
}

impl RestartedService for PostgreSqlStart {
    fn name(&self) -> &'static str {
        "PostgreSQL, crash recovery"
    }

    fn ratio(&self) -> &'static str {
        "restart_postgresql_vs_plain"
    }

    fn programs(&self) -> &'static [&'static str] {
        &["postgres", "pgbench", "setpriv"]
    }

    fn prepare(&self, dir: &Path, stop: &StopRequest) -> Result<()> {
        let data = dir.join("data");
        run_program(Command::new("install").args(["-d", "-o", "postgres", "-m", "700"]).arg(&data))?;
        let mut initdb = Self::owned(&[], "initdb")?;
        run_program(initdb.args(["--no-sync", "--no-locale", "--auth=trust", "--pgdata"]).arg(&data))?;
        let server = self.start(dir, &[], stop)?;
        let scale = format!("--scale={}", (self.bytes / Self::BYTES_PER_SCALE).max(1));
        run_program(Self::client(dir, "pgbench")?.args(["--initialize", "--quiet", &scale, "postgres"]))?;
        drop(server);
        // Its children end when they notice.
        stop.sleep(super::KILLED_WAIT)
    }

    fn start(&self, dir: &Path, prefix: &[OsString], stop: &StopRequest) -> Result<RunningService> {
        let mut command = Self::owned(prefix, "postgres")?;
        command.arg("-D").arg(dir.join("data")).args(["-p", Self::PORT, "-k"]).arg(sockets(dir)?);
        let settings = ["listen_addresses=", "shared_buffers=64MB", "fsync=off", "autovacuum=off"];
        let limits = ["max_wal_size=16GB", "checkpoint_timeout=1d"];
        for setting in settings.iter().chain(&limits) {
            command.args(["-c", setting]);
        }
        RunningService::server(&mut command, 0, stop, || {
            let asked = Self::client(dir, "pg_isready").and_then(|mut asks| Ok(asks.arg("-q").status()?));
            asked.is_ok_and(|status| status.success())
        })
    }

    fn write(&self, dir: &Path, _: &mut RunningService) -> Result<()> {
        run_program(Self::client(dir, "psql")?.args(["-d", "postgres", "-c", "CHECKPOINT"]))?;
        let transactions = self.bytes / Self::BYTES_PER_TRANSACTION / Self::CLIENTS;
        let mut load = Self::client(dir, "pgbench")?;
        load.args(["--no-vacuum", &format!("--client={}", Self::CLIENTS), "--protocol=prepared"]);
        run_program(load.args(["-t", &transactions.to_string(), "postgres"])).map(drop)
    }
}

/// The start of a member of etcd.
pub(super) struct EtcdStart {
    pub(super) bytes: u64,
}

impl EtcdStart {
    /// Bytes of a value.
    const VALUE_BYTES: usize = 512 << 10;
    /// The parts that all bytes are written in: one after the recording.
    const PARTS: u64 = 8;
}

impl RestartedService for EtcdStart {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn ratio(&self) -> &'static str {
        "restart_etcd_vs_plain"
    }

    fn programs(&self) -> &'static [&'static str] {
        &["etcd"]
    }

    fn prepare(&self, dir: &Path, stop: &StopRequest) -> Result<()> {
        let mut server = self.start(dir, &[], stop)?;
        (2..Self::PARTS).try_for_each(|_| self.write(dir, &mut server))
    }

    fn start(&self, dir: &Path, prefix: &[OsString], stop: &StopRequest) -> Result<RunningService> {
        let ports = [free_port(), free_port()];
        let [client, peer] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = behind(prefix, "etcd");
        command.arg("--data-dir").arg(dir.join("data")).args(["--quota-backend-bytes", "8000000000"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
        RunningService::server(&mut command, ports[0], stop, || {
            ask(ports[0], "GET", "/health", &[]).is_some_and(|answer| answer.body.contains("true"))
        })
    }

    fn write(&self, _: &Path, running: &mut RunningService) -> Result<()> {
        let mut random = Seed::new().rng(0);
        let mut value = vec![0_u8; Self::VALUE_BYTES];
        for _ in 0..self.bytes / Self::PARTS / Self::VALUE_BYTES as u64 {
            value.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random.number().to_le_bytes()));
            let key = STANDARD.encode(random.number().to_le_bytes());
            let body = format!("{{\"key\":\"{key}\",\"value\":\"{}\"}}", STANDARD.encode(&value));
            let answer = ask_with(running.port, "POST", "/v3/kv/put", &[], body.as_bytes());
            let answer = answer.context("etcd does not answer")?;
            ensure!(answer.status == 200, "etcd refuses a value: {}", answer.body);
        }
        Ok(())
    }
}

/// Crash recovery of `MariaDB`.
pub(super) struct MariaDbStart {
    pub(super) bytes: u64,
    pub(super) is_direct: bool,
}

impl MariaDbStart {
    /// Bytes of a row.
    const ROW_BYTES: u64 = 1000;
    /// Bytes of the redo log per byte of the table: two updates of all rows, and the older rows.
    const REDO_PER_TABLE: u64 = 4;

    fn socket(dir: &Path) -> Result<PathBuf> {
        Ok(sockets(dir)?.join("mariadb"))
    }

    fn query(dir: &Path, sql: &str) -> Result<()> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--user=root", "--execute", sql]);
        run_program(client.arg(format!("--socket={}", Self::socket(dir)?.display()))).map(drop)
    }
}

impl RestartedService for MariaDbStart {
    fn name(&self) -> &'static str {
        if self.is_direct { "MariaDB, direct I/O" } else { "MariaDB, buffered" }
    }

    fn ratio(&self) -> &'static str {
        if self.is_direct { "restart_mariadb_direct_vs_plain" } else { "restart_mariadb_vs_plain" }
    }

    fn programs(&self) -> &'static [&'static str] {
        &["mariadbd", "mariadb-install-db", "mariadb", "setpriv"]
    }

    fn prepare(&self, dir: &Path, stop: &StopRequest) -> Result<()> {
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
        install.arg("--user=mysql").arg(format!("--datadir={}", dir.join("data").display()));
        run_program(install.stdout(Stdio::null()))?;
        let server = self.start(dir, &[], stop)?;
        let rows = self.bytes / Self::REDO_PER_TABLE / Self::ROW_BYTES;
        Self::query(
            dir,
            &format!(
                "CREATE DATABASE d; USE d; CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(1000)); \
                 INSERT INTO t SELECT seq, RANDOM_BYTES(1000) FROM seq_1_to_{rows}"
            ),
        )?;
        drop(server);
        Ok(())
    }

    fn start(&self, dir: &Path, prefix: &[OsString], stop: &StopRequest) -> Result<RunningService> {
        let mariadbd = InstalledProgram::find("mariadbd").context("there is no mariadbd")?;
        let mut command = as_user(prefix, "mysql", &mariadbd.path);
        let socket = Self::socket(dir)?;
        command.args(["--no-defaults", "--skip-networking"]);
        command.arg(format!("--innodb-log-file-size={}", self.bytes + self.bytes / 2));
        command.args(["--innodb-buffer-pool-size=256M", "--innodb-flush-log-at-trx-commit=2"]);
        if !self.is_direct {
            command.args(["--innodb-flush-method=fsync", "--innodb-log-file-buffering=ON"]);
        }
        for (option, path) in [("datadir", &dir.join("data")), ("socket", &socket)] {
            command.arg(format!("--{option}={}", path.display()));
        }
        RunningService::server(&mut command, 0, stop, || UnixStream::connect(&socket).is_ok())
    }

    fn write(&self, dir: &Path, _: &mut RunningService) -> Result<()> {
        let update = "UPDATE d.t SET v = RANDOM_BYTES(1000);";
        Self::query(dir, &update.repeat(2))
    }
}
