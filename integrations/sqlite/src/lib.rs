//! A loadable VFS for SQLite: commits of rollback-journal modes by one sync of a redo log beside the database.
//!
//! A shim on SQLite's own VFS `unix`. SQLite works as ever, in the journal modes DELETE, TRUNCATE, PERSIST or MEMORY; what it writes to the database in
//! a transaction is kept back, its journal is in memory, and when the journal ends the transaction is one record in the log. Then the blocks go to
//! the database file, which is synced later, by a checkpoint. From the first write to the close the file is marked, so that SQLite without this VFS refuses it,
//! and locked, so that other processes wait; after the close it is a plain file.
//!
//! | module | what it does |
//! |---|---|
//! | `abi` | SQLite's C declarations |
//! | `glue` | functions that SQLite calls, and that are called of it |
//! | `real` | the VFS beneath |
//! | `file` | databases and journals as SQLite has them open |
//! | `database` | the databases that are open in the process |
//! | `state` | what the connections share of one |
//! | `session` | log, commit, checkpoint |
//! | `recover` | going on after a kill or a power cut |
//! | `places` | where the log is, and whose |
//! | `pending` | what a transaction wrote |
//! | `journal` | rollback journals in memory |
//! | `record` | a commit in the log |
//! | `locks` | locks between connections |
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
mod session;
mod state;

use std::ffi::{c_char, c_int, c_void};

use glue::log as said;

/// The entry point that SQLite looks for first: registers the VFS `pagekeeper`.
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

/// Registers the VFS as the default one, for programs that can't name it.
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
