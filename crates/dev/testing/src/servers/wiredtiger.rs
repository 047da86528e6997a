//! `WiredTiger`, the storage engine of `MongoDB`, as Debian's library in a small program. Its
//! journal is set up as in `mongod`, of which Debian has no version newer than 3.6.

use std::path::Path;

use super::engine::{self, EngineProgram};

/// A running program with the engine.
pub type WiredTiger = EngineProgram<WiredTigerLibrary>;

/// The engine's library.
#[derive(Debug)]
pub struct WiredTigerLibrary;

impl engine::EngineLibrary for WiredTigerLibrary {
    const LINKER_NAME: &str = "wiredtiger";
    const PROGRAM_SOURCE: &str = include_str!("wiredtiger.c");
    const HEADER_PATH: &str = "/usr/include/wiredtiger.h";
    const DATA_DIRECTORY: &str = "data/journal";

    fn version() -> Option<String> {
        let header = std::fs::read_to_string(Self::HEADER_PATH).ok()?;
        let (_, after) = header.split_once("WIREDTIGER_VERSION_STRING\t\"")?;
        Some(after.split_once(':')?.0.to_owned())
    }

    fn is_log(path: &Path) -> bool {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("WiredTigerLog."))
    }

    fn is_data(path: &Path) -> bool {
        path.extension().is_some_and(|end| end == "wt")
    }
}
