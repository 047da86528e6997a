//! A loadable VFS for SQLite. It commits in rollback-journal modes with one sync of a redo log
//! beside the database.
//!
//! It is a shim over SQLite's own VFS `unix`. SQLite works as usual, in the journal modes DELETE,
//! TRUNCATE, PERSIST or MEMORY. Writes of a transaction to the database are held back, and its
//! journal is in memory. When the journal ends, the transaction becomes one record in the log. Then
//! its blocks are written to the database file, which a later checkpoint syncs. From the first
//! write to the close the file is marked, so that SQLite without this VFS refuses it, and locked,
//! so that other processes wait. After the close it is a plain file.
//!
//! | module | contents |
//! |---|---|
//! | `abi` | SQLite's C declarations |
//! | `glue` | functions that SQLite calls, and calls of its functions |
//! | `real` | the underlying VFS |
//! | `file` | databases and journals as SQLite has them open |
//! | `database` | the open databases of the process |
//! | `state` | the state that a database's connections share |
//! | `session` | log, commit, checkpoint |
//! | `recover` | recovery after a kill or a power cut |
//! | `places` | the log's directory and its owner |
//! | `pending` | the writes of a transaction |
//! | `journal` | rollback journals in memory |
//! | `record` | a commit in the log |
//! | `locks` | locks between connections |
//! | `refused` | openings that are refused, with their reason |
//! | `mark` | the mark in a file's first bytes |
//!
//! There is no Rust interface: SQLite loads `libpagekeeper_sqlite.so`.

mod abi;
mod database;
mod file;
mod glue;
mod journal;
mod locks;
mod mark;
mod pending;
mod places;
mod real;
mod record;
mod recover;
mod refused;
mod session;
mod state;

use std::ffi::{c_char, c_int, c_void};

use glue::log as said;

/// Registers the VFS `pagekeeper`. SQLite looks for this entry point first.
///
/// # Safety
///
/// SQLite calls it, with its own table of functions.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "SQLite's entry point of an extension")]
pub unsafe extern "C" fn sqlite3_extension_init(
    _database: *mut c_void,
    message: *mut *mut c_char,
    routines: *const *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { glue::load(message, routines, false) }
}

/// Registers the VFS as the default one, for programs that cannot name it.
///
/// # Safety
///
/// As [`sqlite3_extension_init`].
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "as above")]
pub unsafe extern "C" fn sqlite3_pagekeeper_default_init(
    _database: *mut c_void,
    message: *mut *mut c_char,
    routines: *const *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { glue::load(message, routines, true) }
}
