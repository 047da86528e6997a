//! A real `RocksDB` driven by lines: `rocksdb_driver.cc` on Debian's librocksdb.
//!
//!
//! Invariant: a driver outlives neither its handle nor the thread that started it.

use crate::support;
use pagekeeper_testing::servers::{Launcher, RocksDb};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The purpose of a database.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role {
    Primary,
    Followed,
    Direct,
}

/// Whether a driver can be built and run here.
pub(crate) fn can_run(test: &str) -> bool {
    crate::logged::can_run_engine(test, &["c++", "fincore", "setpriv"], RocksDb::HEADER_PATH)
}

/// A running driver.
#[derive(Debug)]
pub(crate) struct Driver {
    program: PathBuf,
    database: PathBuf,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Driver {
    /// Builds the program, and starts it with a new database below `scratch`.
    pub(crate) fn start(scratch: &Path, role: Role) -> Self {
        Self::start_by(&Launcher::default(), scratch, role)
    }

    /// Starts it by a launcher, whose child it is then.
    pub(crate) fn start_by(launcher: &Launcher, scratch: &Path, role: Role) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/databases/rocksdb_driver.cc");
        let program = scratch.join("rocksdb_driver");
        let mut build = Command::new("c++");
        build.args(["-std=c++17", "-O1", "-o"]).arg(&program).arg(&source).arg("-lrocksdb");
        let output = build.output().expect("run c++");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let role = match role {
            Role::Primary => "primary",
            Role::Followed => "followed",
            Role::Direct => "direct",
        };
        Self::spawn(launcher, program, scratch.join("database"), role)
    }

    /// Starts a secondary instance of this database, in a process of its own.
    pub(crate) fn secondary(&self) -> Self {
        Self::spawn(&Launcher::default(), self.program.clone(), self.database.clone(), "secondary")
    }

    fn spawn(launcher: &Launcher, program: PathBuf, database: PathBuf, role: &str) -> Self {
        let mut command = launcher.command(&program);
        command.arg(&database).arg(role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a driver");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut driver = Self { program, database, child, stdin, stdout: BufReader::new(stdout) };
        driver.wait_until_done();
        driver
    }

    /// Sends the driver a command with a number of bytes.
    pub(crate) fn ask(&mut self, verb: &str, bytes: u64) {
        writeln!(self.stdin, "{verb} {bytes}").expect("it runs");
        self.wait_until_done();
    }

    fn wait_until_done(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it runs");
        assert_eq!(line, "done\n", "it has ended");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its files for whose name `is_one` is true.
    pub(crate) fn files(&self, is_one: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let mut files = support::files_in(&self.database);
        files.retain(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&is_one));
        files
    }

    /// Returns the bytes that it has read from a device so far.
    pub(crate) fn device_bytes_read(&self) -> u64 {
        support::io_counter(Path::new(&format!("/proc/{}/io", self.pid())), "read_bytes")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
