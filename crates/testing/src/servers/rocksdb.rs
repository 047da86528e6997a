//! `RocksDB` by itself, Debian's library, in a program of a few lines with the engine's own defaults: with two column families, of
//! which one hardly grows, its WAL comes to more than 1 GiB before any of it is removed.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::engine::{self, Engine};
use super::{LoggedServer, files_below};

const SOURCE: &str = include_str!("rocksdb.c");

/// A running program with the engine.
#[derive(Debug)]
pub struct RocksDb(Engine);

impl RocksDb {
    /// Programs that it needs.
    pub const PROGRAMS: [&str; 2] = engine::PROGRAMS;
    /// What it is built with.
    pub const HEADER: &str = "/usr/include/rocksdb/c.h";

    /// Builds the program, and starts it with its data below `home`.
    ///
    /// # Panics
    ///
    /// Where it can't be built, or does not start.
    pub fn start(home: &Path) -> Self {
        std::fs::create_dir_all(home).expect("make a directory for an engine");
        Self(Engine::start(home, SOURCE, "rocksdb"))
    }

    /// The version that is installed, such as "RocksDB 7.8.3"; none where there is none.
    pub fn version() -> Option<String> {
        let header = std::fs::read_to_string(Path::new(Self::HEADER).with_file_name("version.h")).ok()?;
        let part = |name: &str| {
            let define = format!("#define ROCKSDB_{name} ");
            header.lines().find_map(|line| line.strip_prefix(&define))
        };
        Some(format!("RocksDB {}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
    }

    fn files(&self, extension: &str) -> Vec<PathBuf> {
        files_below(&self.0.data(), |path| path.extension().is_some_and(|end| end == extension))
    }
}

impl LoggedServer for RocksDb {
    fn pid(&self) -> u32 {
        self.0.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        self.files("log")
    }

    fn others(&self) -> Vec<PathBuf> {
        self.files("sst")
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
