//! A storage engine that is a library, linked into a small program that [`LineClient`] drives.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::lines::LineClient;
use super::{LoggedServer, ServerProcess, files_below};

/// The engine's library, and the program that it is linked into.
pub trait EngineLibrary {
    /// The name that the linker takes.
    const LINKER_NAME: &str;
    /// The source of the program, in C.
    const PROGRAM_SOURCE: &str;
    /// The header that the program includes.
    const HEADER_PATH: &str;
    /// The directory below the program's that must exist when it starts. Its files are in `data` or
    /// in a subdirectory.
    const DATA_DIRECTORY: &str;

    /// Returns the engine's name and installed version, or `None` if it is not installed.
    fn version() -> Option<String>;

    /// Whether a file of the engine belongs to its log.
    fn is_log(path: &Path) -> bool;

    /// Whether a file of the engine belongs to its data.
    fn is_data(path: &Path) -> bool;
}

/// A running program with an engine.
#[derive(Debug)]
pub struct EngineProgram<L> {
    home: PathBuf,
    daemon: ServerProcess,
    lines: LineClient,
    library: PhantomData<L>,
}

impl<L: EngineLibrary> EngineProgram<L> {
    /// The header that it is built with.
    pub const HEADER_PATH: &str = L::HEADER_PATH;
    /// Programs that are needed to build and run it.
    pub const REQUIRED_PROGRAMS: [&str; 2] = ["gcc", "setpriv"];

    /// Builds the program and starts it with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it cannot be built, or does not start.
    pub fn start(home: &Path) -> Self {
        std::fs::create_dir_all(home.join(L::DATA_DIRECTORY)).expect("make a directory for an engine");
        let file = home.join("engine.c");
        std::fs::write(&file, L::PROGRAM_SOURCE).expect("write its source");
        let mut build = Command::new("gcc");
        build.args(["-O1", "-o"]).arg(home.join("engine")).arg(&file).arg(format!("-l{}", L::LINKER_NAME));
        let said = build.output().expect("start gcc");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let (daemon, lines) = daemon(home, 0);
        Self { home: home.to_owned(), daemon, lines, library: PhantomData }
    }

    /// Returns the engine's name and installed version, or `None` if it is not installed.
    pub fn version() -> Option<String> {
        L::version()
    }
}

impl<L: EngineLibrary> LoggedServer for EngineProgram<L> {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data"), L::is_log)
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        Some(files_below(&self.home.join("data"), L::is_data))
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

fn daemon(home: &Path, put: u64) -> (ServerProcess, LineClient) {
    let program = home.join("engine");
    let mut daemon =
        ServerProcess::start(home, program.to_str().expect("a path of this test's own"), |command| {
            command.arg("data").stdin(Stdio::piped()).stdout(Stdio::piped());
        });
    let lines = LineClient::of(&mut daemon.child, daemon.log.clone(), put);
    (daemon, lines)
}
