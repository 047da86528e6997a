//! Openings that are refused, and the reason in the message that the caller of SQLite gets.
//!
//! A VFS can only fail an opening by a code, for which SQLite has its own words ("unable to open
//! database file"). So [`RefusedFile`] takes the file's place, and [`check_connection`], which
//! SQLite calls for each new connection, fails with the reason. A program may have emptied SQLite's
//! list of such functions (`sqlite3_reset_auto_extension`). Then the first use of the file fails,
//! and each PRAGMA with the reason. A file that is attached is not checked: its first use fails.
//!
//! Invariant: a refused file is never read, written or locked.
#![allow(unsafe_code, reason = "SQLite's C interface")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use crate::abi::{self, Code};
use crate::glue::{Opened, control_main, log, name_of_main, string};
use pagekeeper_text::escaped;

/// Answered by refused files alone.
const ASK: &CStr = c"pagekeeper_refused";

/// The file that SQLite has open in place of a refused database.
pub(crate) struct RefusedFile {
    why: String,
}

impl RefusedFile {
    pub(crate) fn new(why: &str) -> Self {
        log(abi::CANTOPEN, why);
        Self { why: format!("pagekeeper: {why}") }
    }
}

impl Opened for RefusedFile {
    fn close(self) -> Result<(), Code> {
        Ok(())
    }

    /// Reads like an empty file: SQLite reads the header before it locks, when no connection
    /// can be given the reason yet.
    fn read(&mut self, buffer: &mut [u8], _offset: u64) -> Result<bool, Code> {
        buffer.fill(0);
        Ok(false)
    }

    fn write(&mut self, _bytes: &[u8], _offset: u64) -> Result<(), Code> {
        Err(abi::CANTOPEN)
    }

    fn truncate(&mut self, _size: u64) -> Result<(), Code> {
        Err(abi::CANTOPEN)
    }

    fn sync(&mut self) -> Result<(), Code> {
        Err(abi::CANTOPEN)
    }

    fn size(&mut self) -> Result<u64, Code> {
        Ok(0)
    }

    fn lock(&mut self, _level: c_int) -> Result<(), Code> {
        Err(abi::CANTOPEN)
    }

    fn unlock(&mut self, _level: c_int) -> Result<(), Code> {
        Ok(())
    }

    fn is_reserved(&mut self) -> Result<bool, Code> {
        Err(abi::CANTOPEN)
    }

    unsafe fn control(&mut self, op: c_int, argument: *mut c_void) -> Code {
        if op != abi::FCNTL_PRAGMA {
            return abi::NOTFOUND;
        }
        // SAFETY: SQLite, or `reason`, gives strings with this control, the answer's place first.
        unsafe { *argument.cast::<*mut c_char>() = string(&self.why) };
        abi::CANTOPEN
    }
}

/// Fails a new connection whose database was refused, or opened by a name that asks for this VFS
/// and was not read as a URI.
///
/// # Safety
///
/// SQLite calls it, with a connection and the place of a message.
pub(crate) unsafe extern "C" fn check_connection(
    connection: *mut c_void,
    message: *mut *mut c_char,
    _routines: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let found = unsafe { reason(connection).or_else(|| literal_uri(connection)) };
    // SAFETY: as above.
    match (found, unsafe { message.as_mut() }) {
        (None, _) => abi::OK,
        (Some(why), Some(message)) => {
            *message = why;
            abi::CANTOPEN
        }
        (Some(_), None) => abi::CANTOPEN,
    }
}

/// Returns the reason that a refused file gives, in SQLite's memory.
///
/// # Safety
///
/// A connection of SQLite's.
unsafe fn reason(connection: *mut c_void) -> Option<*mut c_char> {
    let mut parts: [*mut c_char; 3] = [std::ptr::null_mut(), ASK.as_ptr().cast_mut(), std::ptr::null_mut()];
    // SAFETY: the caller's promise; laid out as a PRAGMA's argument.
    let code = unsafe { control_main(connection, abi::FCNTL_PRAGMA, parts.as_mut_ptr().cast()) };
    (code == abi::CANTOPEN).then_some(parts[0])
}

/// The reason why a file was not opened by this VFS whose name asks for it: `app.db?vfs=pagekeeper`
/// without `file:`, or a URI given to a SQLite that takes none.
///
/// # Safety
///
/// A connection of SQLite's.
unsafe fn literal_uri(connection: *mut c_void) -> Option<*mut c_char> {
    // SAFETY: the caller's promise.
    let name = unsafe { name_of_main(connection) }?.to_str().ok()?;
    let (_, parameters) = name.rsplit_once('?')?;
    if !parameters.split('&').any(|parameter| parameter == "vfs=pagekeeper") {
        return None;
    }
    let why = format!(
        "{}: taken for a file's name, not for a URI: begin it with \"file:\" and open it with SQLITE_OPEN_URI, or load \
         pagekeeper by its entry point sqlite3_pagekeeper_default_init and give the name alone",
        escaped(Path::new(name))
    );
    log(abi::CANTOPEN, &why);
    Some(string(&format!("pagekeeper: {why}")))
}
