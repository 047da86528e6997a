//! A storage engine that is a library, in a program of a few lines that its values are put into by [`Lines`].

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::Daemon;
use super::lines::Lines;

/// Programs that it is built and run with.
pub(super) const PROGRAMS: [&str; 2] = ["gcc", "setpriv"];

/// A running program with an engine, whose files are in `data` below its home.
#[derive(Debug)]
pub(super) struct Engine {
    home: PathBuf,
    daemon: Daemon,
    lines: Lines,
}

impl Engine {
    /// Builds the program of this C source with this library, and starts it; `home` is there.
    ///
    /// # Panics
    ///
    /// Where it can't be built, or does not start.
    pub(super) fn start(home: &Path, source: &str, library: &str) -> Self {
        let file = home.join("engine.c");
        std::fs::write(&file, source).expect("write its source");
        let mut build = Command::new("gcc");
        build.args(["-O1", "-o"]).arg(home.join("engine")).arg(&file).arg(format!("-l{library}"));
        let said = build.output().expect("start gcc");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let (daemon, lines) = daemon(home, 0);
        Self { home: home.to_owned(), daemon, lines }
    }

    pub(super) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Where its files are.
    pub(super) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Puts about so many bytes; how many they were.
    pub(super) fn put(&mut self, bytes: u64) -> u64 {
        self.lines.put(bytes)
    }

    pub(super) fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        (self.daemon, self.lines) = daemon(&self.home, self.lines.values());
    }

    /// Panics unless all that was put is there.
    pub(super) fn check(&mut self) {
        self.lines.check();
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
