//! `RocksDB`, as Debian's library, in a small program with the engine's defaults. Since one of its
//! two column families hardly grows, its WAL exceeds 1 GiB before any of it is removed.

use std::path::Path;

use super::engine::{self, EngineProgram};

/// A running program with the engine.
pub type RocksDb = EngineProgram<RocksDbLibrary>;

/// The engine's library.
#[derive(Debug)]
pub struct RocksDbLibrary;

impl engine::EngineLibrary for RocksDbLibrary {
    const LINKER_NAME: &str = "rocksdb";
    const PROGRAM_SOURCE: &str = include_str!("rocksdb.c");
    const HEADER_PATH: &str = "/usr/include/rocksdb/c.h";
    // It creates `data` itself.
    const DATA_DIRECTORY: &str = "";

    fn version() -> Option<String> {
        let header =
            std::fs::read_to_string(Path::new(Self::HEADER_PATH).with_file_name("version.h")).ok()?;
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
