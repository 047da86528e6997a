//! `RocksDB` by itself, Debian's library, in a program of a few lines with the engine's own defaults: with two column families, of
//! which one hardly grows, its WAL comes to more than 1 GiB before any of it is removed.

use std::path::Path;

use super::engine::{self, Engine};

/// A running program with the engine.
pub type RocksDb = Engine<Library>;

/// The engine.
#[derive(Debug)]
pub struct Library;

impl engine::Library for Library {
    const NAME: &str = "rocksdb";
    const SOURCE: &str = include_str!("rocksdb.c");
    const HEADER: &str = "/usr/include/rocksdb/c.h";
    // It makes `data` itself.
    const DIRECTORY: &str = "";

    fn version() -> Option<String> {
        let header = std::fs::read_to_string(Path::new(Self::HEADER).with_file_name("version.h")).ok()?;
        let part = |name: &str| {
            let define = format!("#define ROCKSDB_{name} ");
            header.lines().find_map(|line| line.strip_prefix(&define))
        };
        Some(format!("RocksDB {}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
    }

    fn is_log(path: &Path) -> bool {
        path.extension().is_some_and(|end| end == "log")
    }

    fn is_data(path: &Path) -> bool {
        path.extension().is_some_and(|end| end == "sst")
    }
}
