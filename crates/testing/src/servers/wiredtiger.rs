//! The storage engine of `MongoDB` by itself, Debian's library, in a program of a few lines: its journal is as `mongod` has it, of which
//! no newer one than 3.6 is to be had.

use std::path::Path;

use super::engine::{self, Engine};

/// A running program with the engine.
pub type WiredTiger = Engine<Library>;

/// The engine.
#[derive(Debug)]
pub struct Library;

impl engine::Library for Library {
    const NAME: &str = "wiredtiger";
    const SOURCE: &str = include_str!("wiredtiger.c");
    const HEADER: &str = "/usr/include/wiredtiger.h";
    const DIRECTORY: &str = "data/journal";

    fn version() -> Option<String> {
        let header = std::fs::read_to_string(Self::HEADER).ok()?;
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
