//! SQLite's C interface as far as a VFS needs it: structures and constants of `sqlite3.h` and
//! `sqlite3ext.h`, to which SQLite only adds.
//!
//! Invariant: sizes and offsets are those of C; a test compares them with the installed header. The
//! module has only declarations and calls nothing.

use std::ffi::{c_char, c_int, c_void};

/// A result code of SQLite.
pub(crate) type Code = c_int;

pub(crate) const OK: Code = 0;
pub(crate) const ERROR: Code = 1;
pub(crate) const BUSY: Code = 5;
pub(crate) const NOTFOUND: Code = 12;
pub(crate) const FULL: Code = 13;
pub(crate) const CANTOPEN: Code = 14;
pub(crate) const WARNING: Code = 28;
pub(crate) const IOERR: Code = 10;
pub(crate) const IOERR_READ: Code = IOERR | 1 << 8;
pub(crate) const IOERR_SHORT_READ: Code = IOERR | 2 << 8;
pub(crate) const IOERR_WRITE: Code = IOERR | 3 << 8;
pub(crate) const IOERR_FSYNC: Code = IOERR | 4 << 8;
pub(crate) const IOERR_DELETE_NOENT: Code = IOERR | 23 << 8;
pub(crate) const READONLY_RECOVERY: Code = 8 | 1 << 8;
pub(crate) const READONLY_DBMOVED: Code = 8 | 4 << 8;
pub(crate) const OK_LOAD_PERMANENTLY: Code = 1 << 8;

pub(crate) const OPEN_READWRITE: c_int = 0x2;
pub(crate) const OPEN_CREATE: c_int = 0x4;
pub(crate) const OPEN_MAIN_DB: c_int = 0x100;
pub(crate) const OPEN_MAIN_JOURNAL: c_int = 0x800;
pub(crate) const OPEN_SUPER_JOURNAL: c_int = 0x4000;
pub(crate) const OPEN_WAL: c_int = 0x0008_0000;

pub(crate) const ACCESS_EXISTS: c_int = 0;

pub(crate) const SYNC_NORMAL: c_int = 0x2;

/// A write changes no other bytes, even after a power cut; appends to a journal are safe; writes
/// are sequential.
pub(crate) const CHARACTERISTICS: c_int = 0x1000 | 0x200 | 0x400;

pub(crate) const FCNTL_LOCKSTATE: c_int = 1;
pub(crate) const FCNTL_LAST_ERRNO: c_int = 4;
pub(crate) const FCNTL_SIZE_HINT: c_int = 5;
pub(crate) const FCNTL_VFSNAME: c_int = 12;
pub(crate) const FCNTL_POWERSAFE_OVERWRITE: c_int = 13;
pub(crate) const FCNTL_PRAGMA: c_int = 14;
pub(crate) const FCNTL_TEMPFILENAME: c_int = 16;
pub(crate) const FCNTL_MMAP_SIZE: c_int = 18;
pub(crate) const FCNTL_HAS_MOVED: c_int = 20;
pub(crate) const FCNTL_SYNC: c_int = 21;

/// `sqlite3_file`: the VFS's own data follows it.
#[repr(C)]
pub(crate) struct File {
    pub(crate) methods: *const IoMethods,
}

type FileMethod = unsafe extern "C" fn(*mut File) -> c_int;

/// `sqlite3_io_methods`, version 1: without shared memory and mapping.
#[repr(C)]
pub(crate) struct IoMethods {
    pub(crate) version: c_int,
    pub(crate) close: FileMethod,
    pub(crate) read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub(crate) write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub(crate) truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub(crate) sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub(crate) lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub(crate) file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub(crate) sector_size: FileMethod,
    pub(crate) device_characteristics: FileMethod,
}

pub(crate) type SysCall = Option<unsafe extern "C" fn()>;

/// `sqlite3_vfs`, version 3.
#[repr(C)]
pub(crate) struct Vfs {
    pub(crate) version: c_int,
    pub(crate) os_file_size: c_int,
    pub(crate) max_path: c_int,
    pub(crate) next: *mut Vfs,
    pub(crate) name: *const c_char,
    pub(crate) app_data: *mut c_void,
    pub(crate) open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub(crate) delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub(crate) access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub(crate) full_pathname: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub(crate) dl_open: unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void,
    pub(crate) dl_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char),
    pub(crate) dl_sym: unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> SysCall,
    pub(crate) dl_close: unsafe extern "C" fn(*mut Vfs, *mut c_void),
    pub(crate) randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(crate) sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub(crate) current_time: unsafe extern "C" fn(*mut Vfs, *mut f64) -> c_int,
    pub(crate) last_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(crate) current_time_int64: unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int,
    pub(crate) set_system_call: unsafe extern "C" fn(*mut Vfs, *const c_char, SysCall) -> c_int,
    pub(crate) get_system_call: unsafe extern "C" fn(*mut Vfs, *const c_char) -> SysCall,
    pub(crate) next_system_call: unsafe extern "C" fn(*mut Vfs, *const c_char) -> *const c_char,
}

/// Indices in `sqlite3_api_routines`, a table of functions.
pub(crate) mod routine {
    pub(crate) const LIBVERSION_NUMBER: usize = 67;
    pub(crate) const MPRINTF: usize = 69;
    pub(crate) const FILE_CONTROL: usize = 127;
    pub(crate) const VFS_FIND: usize = 141;
    pub(crate) const VFS_REGISTER: usize = 142;
    pub(crate) const LOG: usize = 167;
    pub(crate) const DB_FILENAME: usize = 180;
    pub(crate) const URI_BOOLEAN: usize = 187;
    pub(crate) const AUTO_EXTENSION: usize = 192;
}
