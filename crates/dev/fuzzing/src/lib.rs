//! All parsers of data that others can write, each as a function of any bytes ([`Target`]). It
//! panics if the parser does, or if the result can't be right.
//!
//! The same functions run in `tests/random_input` with any compiler, and in `fuzz/` under
//! libFuzzer. Crates with private parsers offer tests of them by their feature `fuzzing`.

mod http;
mod innodb_header;
mod machine;
mod machine_tree;
mod pattern;
mod pg_control;
mod pg_slot;
mod process;
mod profile;
mod redo;
mod seeds;
mod server;
mod settings;
mod snapshot;
mod stream_request;

use pagekeeper_store::fuzzing;

/// A parser, and examples of its input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name on the command line.
    pub name: &'static str,
    /// Runs one input.
    ///
    /// # Panics
    ///
    /// If the parser does, or if its result can't be right.
    pub fuzz_one: fn(&[u8]),
    /// Initial inputs, most of them valid.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 19] = [
    Target { name: "entry", fuzz_one: fuzzing::entry, seeds: seeds::entry },
    Target { name: "http", fuzz_one: http::fuzz_one, seeds: http::seeds },
    Target { name: "innodb_header", fuzz_one: innodb_header::fuzz_one, seeds: innodb_header::seeds },
    Target { name: "machine", fuzz_one: machine::fuzz_one, seeds: machine::seeds },
    Target { name: "page", fuzz_one: fuzzing::page, seeds: seeds::page },
    Target { name: "page_map", fuzz_one: fuzzing::page_map, seeds: seeds::page_map },
    Target { name: "pattern", fuzz_one: pattern::fuzz_one, seeds: seeds::pattern },
    Target { name: "pg_control", fuzz_one: pg_control::fuzz_one, seeds: pg_control::seeds },
    Target { name: "pg_slot", fuzz_one: pg_slot::fuzz_one, seeds: pg_slot::seeds },
    Target { name: "process", fuzz_one: process::fuzz_one, seeds: process::seeds },
    Target { name: "profile", fuzz_one: profile::fuzz_one, seeds: seeds::profile },
    Target { name: "redo", fuzz_one: redo::fuzz_one, seeds: seeds::redo },
    Target { name: "server", fuzz_one: server::fuzz_one, seeds: server::seeds },
    Target { name: "settings", fuzz_one: settings::fuzz_one, seeds: seeds::settings },
    Target { name: "snapshot", fuzz_one: snapshot::fuzz_one, seeds: seeds::snapshot },
    Target { name: "stream_request", fuzz_one: stream_request::fuzz_one, seeds: stream_request::seeds },
    Target { name: "superblock", fuzz_one: fuzzing::superblock, seeds: seeds::superblock },
    Target { name: "tree_page", fuzz_one: pagekeeper_tree::fuzzing::fuzz_one, seeds: seeds::tree_page },
    Target { name: "warm", fuzz_one: fuzzing::warm, seeds: seeds::warm },
];

/// Returns the target of this name.
///
/// # Panics
///
/// If there is no such target.
pub fn target(name: &str) -> Target {
    *TARGETS.iter().find(|target| target.name == name).expect("a target")
}

/// Returns the longest prefix of the input that is text.
fn text(data: &[u8]) -> &str {
    let valid = match std::str::from_utf8(data) {
        Ok(_) => data.len(),
        Err(error) => error.valid_up_to(),
    };
    std::str::from_utf8(&data[..valid]).unwrap_or_default()
}

/// Creates a directory for a fake machine whose files are rewritten continually: in memory if
/// possible.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}
