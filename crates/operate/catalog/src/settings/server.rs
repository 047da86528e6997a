//! The facts about a server that are needed to read its settings: its process, and which of its
//! files were seen.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pagekeeper_kernel::process::ProcRoot;

use super::Engine;

/// Limit of databases looked for in one process.
const MANIFESTS_MAX: usize = 64;
/// Limit of descriptors searched per process: a server opens a database's manifest before its
/// tables.
const DESCRIPTORS_MAX: usize = 16_384;

/// A server whose settings are to be read.
#[derive(Debug, Clone)]
pub struct ServerFacts {
    /// Its process ID; `None` for a directory without a known process.
    pub pid: Option<u32>,
    /// The engine.
    pub engine: Engine,
    /// Whether the engine is known by more than the names of process and log; otherwise the program
    /// is searched.
    pub is_certain: bool,
    /// Whether the caller watches many servers and must be quick: less is read of each.
    pub is_brief: bool,
    /// The directories of its files, as the server sees them.
    pub directories: Vec<PathBuf>,
    /// Its command line; empty without a process.
    pub command_line: Vec<OsString>,
    /// Start time of its process; `None` if unknown.
    pub started: Option<SystemTime>,
    /// The files of the server that were seen: in its directories, or open in its process.
    pub files: Vec<ServerFile>,
}

impl ServerFacts {
    /// Creates a server from a process in `/proc`, for a brief reading. It lists only those of its
    /// files that show where a `RocksDB` database is.
    pub fn of_process(pid: u32, engine: Engine, is_certain: bool, proc: &ProcRoot) -> Self {
        let mut files = Vec::new();
        if matches!(engine, Engine::RocksDb | Engine::TiKv) {
            // A process that can't be listed shows no files.
            let _ = proc.first_fd_links(pid, DESCRIPTORS_MAX, |_, path| {
                let name = path.file_name().unwrap_or_default().as_bytes();
                if name.starts_with(b"MANIFEST-") && files.len() < MANIFESTS_MAX {
                    files.push(ServerFile { path: path.to_path_buf(), opened: vec![OpenMode::Buffered] });
                }
            });
        }
        Self {
            pid: Some(pid),
            engine,
            is_certain,
            is_brief: true,
            directories: Vec::new(),
            command_line: proc.command_line(pid).unwrap_or_default(),
            started: uptime(proc, pid).and_then(|uptime| SystemTime::now().checked_sub(uptime)),
            files,
        }
    }
}

/// Returns how long a process has been running.
#[allow(clippy::disallowed_methods, reason = "of /proc")]
#[allow(clippy::cast_precision_loss, reason = "centuries of ticks are exact")]
pub fn uptime(proc: &ProcRoot, pid: u32) -> Option<Duration> {
    let started = proc.start_time(pid).ok()?;
    let text = std::fs::read_to_string(proc.path().join("uptime")).ok()?;
    let host: f64 = text.split_whitespace().next()?.parse().ok()?;
    let ticks = rustix::param::clock_ticks_per_second();
    Duration::try_from_secs_f64(host - started as f64 / ticks as f64).ok()
}

/// A file of a server.
#[derive(Debug, Clone)]
pub struct ServerFile {
    /// Its path, as the server sees it.
    pub path: PathBuf,
    /// The ways in which its process has it open, one entry for each; empty if it is not open.
    pub opened: Vec<OpenMode>,
}

impl ServerFile {
    /// Whether its process has it open.
    pub(super) fn is_open(&self) -> bool {
        !self.opened.is_empty()
    }
}

/// A way in which a process has a file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
    /// Mapped into memory.
    Mapped,
}

impl Engine {
    /// Returns the engine, by the names of a profile and of a process.
    pub fn of(profile: &str, process: &str) -> Self {
        match profile {
            "mariadb" => Self::MariaDb,
            "mysql" => Self::MySql,
            "postgresql" => Self::PostgreSql,
            "rocksdb" if process.starts_with("tikv") => Self::TiKv,
            "rocksdb" => Self::RocksDb,
            "mongodb" => Self::MongoDb,
            _ => Self::Other,
        }
    }
}
