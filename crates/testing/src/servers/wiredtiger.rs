//! The storage engine of `MongoDB` by itself, Debian's library, in a program of a few lines: its journal is as `mongod` has it, of which
//! no newer one than 3.6 is to be had.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::lines::Lines;
use super::{Daemon, LoggedServer, files_below};

const SOURCE: &str = include_str!("wiredtiger.c");

/// A running program with the engine.
#[derive(Debug)]
pub struct WiredTiger {
    home: PathBuf,
    daemon: Daemon,
    lines: Lines,
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
        let (daemon, lines) = daemon(home, 0);
        Self { home: home.to_owned(), daemon, lines }
    }
}

fn daemon(home: &Path, put: u64) -> (Daemon, Lines) {
    let program = home.join("engine");
    let mut daemon = Daemon::start(home, program.to_str().expect("a path of this test's own"), |command| {
        command.arg("data").stdin(Stdio::piped()).stdout(Stdio::piped());
    });
    let lines = Lines::of(&mut daemon.child, daemon.log.clone(), put);
    (daemon, lines)
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
        self.lines.put(bytes)
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        (self.daemon, self.lines) = daemon(&self.home, self.lines.values());
    }

    fn check_all(&mut self) {
        self.lines.check();
    }
}
