//! The storage engine of `MongoDB` by itself, Debian's library, in a program of a few lines: its journal is as `mongod` has it, of which
//! no newer one than 3.6 is to be had.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::engine::{self, Engine};
use super::{LoggedServer, files_below};

const SOURCE: &str = include_str!("wiredtiger.c");

/// A running program with the engine.
#[derive(Debug)]
pub struct WiredTiger(Engine);

impl WiredTiger {
    /// Programs that it needs.
    pub const PROGRAMS: [&str; 2] = engine::PROGRAMS;
    /// What it is built with.
    pub const HEADER: &str = "/usr/include/wiredtiger.h";

    /// Builds the program, and starts it with its data below `home`.
    ///
    /// # Panics
    ///
    /// Where it can't be built, or does not start.
    pub fn start(home: &Path) -> Self {
        std::fs::create_dir_all(home.join("data/journal")).expect("make a directory for an engine");
        Self(Engine::start(home, SOURCE, "wiredtiger"))
    }

    /// The version that is installed, such as "`WiredTiger` 3.2.1"; none where there is none.
    pub fn version() -> Option<String> {
        let header = std::fs::read_to_string(Self::HEADER).ok()?;
        let (_, after) = header.split_once("WIREDTIGER_VERSION_STRING\t\"")?;
        Some(after.split_once(':')?.0.to_owned())
    }
}

impl LoggedServer for WiredTiger {
    fn pid(&self) -> u32 {
        self.0.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.0.data().join("journal"), |path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("WiredTigerLog."))
        })
    }

    fn others(&self) -> Vec<PathBuf> {
        files_below(&self.0.data(), |path| path.extension().is_some_and(|end| end == "wt"))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        self.0.put(bytes)
    }

    fn restart_after(&mut self, signal: Signal) {
        self.0.restart_after(signal);
    }

    fn check_all(&mut self) {
        self.0.check();
    }
}
