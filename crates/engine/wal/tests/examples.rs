//! The examples run.

#[path = "../examples/binlog.rs"]
mod binlog;
#[path = "../examples/wal.rs"]
mod wal;

use std::error::Error;

#[test]
fn the_example_of_a_redo_log_runs() -> Result<(), Box<dyn Error>> {
    wal::main()
}

#[test]
fn the_example_of_a_binlog_runs() -> Result<(), Box<dyn Error>> {
    binlog::main()
}
