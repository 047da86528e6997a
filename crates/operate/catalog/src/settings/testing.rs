//! Servers without a process for this module's tests: they use this machine's files.

use std::ffi::OsString;
use std::path::Path;

use super::{Engine, ServerFacts};

/// Returns a server of this engine with its files in `directory` and this command line.
pub(super) fn server(engine: Engine, directory: &Path, command_line: &str) -> ServerFacts {
    ServerFacts {
        pid: None,
        engine,
        is_certain: true,
        is_brief: false,
        directories: vec![directory.to_path_buf()],
        command_line: words(command_line),
        started: None,
        files: Vec::new(),
    }
}

/// Splits a command line into words.
pub(super) fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}
