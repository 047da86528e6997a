//! The storage engine of `MongoDB` by itself, Debian's library, in a program of a few lines: its journal is as `mongod` has it, which is
//! nowhere to be had.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::Signal;

use super::{Daemon, LoggedServer, files_below, text};

/// Bytes of a value.
const VALUE: usize = 128 << 10;
const SOURCE: &str = include_str!("wiredtiger.c");

/// A running program with the engine.
#[derive(Debug)]
pub struct WiredTiger {
    home: PathBuf,
    daemon: Daemon,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// How many values were put and acknowledged.
    put: u64,
}

impl WiredTiger {
    /// Programs that it needs.
    pub const PROGRAMS: [&str; 2] = ["gcc", "setpriv"];
    /// What it is built with.
    pub const HEADER: &str = "/usr/include/wiredtiger.h";

    /// Builds the program, and starts it with its data below `home`.
    ///
    /// # Panics
    ///
    /// Where it can't be built, or does not start.
    pub fn start(home: &Path) -> Self {
        std::fs::create_dir_all(home.join("data/journal")).expect("make a directory for an engine");
        let source = home.join("wiredtiger.c");
        std::fs::write(&source, SOURCE).expect("write its source");
        let mut build = Command::new("gcc");
        build.args(["-O1", "-o"]).arg(home.join("engine")).arg(&source).arg("-lwiredtiger");
        let said = build.output().expect("start gcc");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let (daemon, to, from) = daemon(home);
        let mut server = Self { home: home.to_owned(), daemon, to, from, put: 0 };
        server.expect_line("ready");
        server
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the engine goes on");
        line.trim_end().to_owned()
    }

    fn expect_line(&mut self, expected: &str) {
        let said = self.line();
        let log = || std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
        assert_eq!(said, expected, "{}", log());
    }
}

fn daemon(home: &Path) -> (Daemon, ChildStdin, BufReader<ChildStdout>) {
    let program = home.join("engine");
    let mut daemon = Daemon::start(home, program.to_str().expect("a path of this test's own"), |command| {
        command.arg("data").stdin(Stdio::piped()).stdout(Stdio::piped());
    });
    let to = daemon.child.stdin.take().expect("piped");
    let from = BufReader::new(daemon.child.stdout.take().expect("piped"));
    (daemon, to, from)
}

impl LoggedServer for WiredTiger {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data/journal"), |path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("WiredTigerLog."))
        })
    }

    fn others(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data"), |path| path.extension().is_some_and(|end| end == "wt"))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        let values = bytes.div_ceil(VALUE as u64);
        for _ in 0..values {
            let head = format!("put {} {VALUE}\n", self.put).into_bytes();
            self.to.write_all(&[head, text(self.put, VALUE)].concat()).expect("the engine goes on");
            self.expect_line("ok");
            self.put += 1;
        }
        values * VALUE as u64
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        (self.daemon, self.to, self.from) = daemon(&self.home);
        self.expect_line("ready");
    }

    fn check_all(&mut self) {
        for number in 0..self.put {
            self.to.write_all(format!("get {number}\n").as_bytes()).expect("the engine goes on");
            self.expect_line(&VALUE.to_string());
            let mut value = vec![0; VALUE];
            self.from.read_exact(&mut value).expect("the engine goes on");
            assert!(value == text(number, VALUE), "value {number} of {} is not as it was put", self.put);
        }
    }
}
