//! The boundary between C and Rust: the tables of functions that SQLite calls, and the few SQLite
//! functions that are called.
//!
//! Invariants: `sqlite3_file` memory of SQLite holds either a file of the underlying VFS, which
//! sets its own methods, or a [`Handle`] to one of our boxes, freed only by `xClose`. SQLite
//! guarantees that one thread at a time uses a file. A panic aborts the process, as in every
//! `extern "C"` function. That loses no commit: acknowledged commits are in the log.
#![allow(unsafe_code, reason = "SQLite's C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::abi::{self, Code, File, IoMethods, Vfs, routine};
use crate::database::{Database, SideFile};
use crate::file::{DatabaseFile, JournalFile, delete_journal, exists_beside};
use crate::real::{RealFile, RealVfs};
use crate::refused::{RefusedFile, check_connection};
use crate::session::Failure;

/// The functions of SQLite that are called.
struct Api {
    mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
    log: unsafe extern "C" fn(c_int, *const c_char, ...),
    uri_boolean: unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int,
    file_control: FileControl,
    db_filename: DatabaseName,
    real: RealVfs,
}

type FileControl = unsafe extern "C" fn(*mut c_void, *const c_char, c_int, *mut c_void) -> c_int;
type DatabaseName = unsafe extern "C" fn(*mut c_void, *const c_char) -> *const c_char;

static API: OnceLock<Api> = OnceLock::new();

fn api() -> &'static Api {
    API.get().expect("set before the VFS is registered")
}

/// Creates a string that SQLite frees; NULL if memory runs out.
pub(crate) fn string(text: &str) -> *mut c_char {
    let text = plain(text);
    // SAFETY: a format with one string, which ends with a zero byte.
    unsafe { (api().mprintf)(c"%s".as_ptr(), text.as_ptr()) }
}

/// Writes a line to SQLite's log.
pub(crate) fn log(code: Code, line: &str) {
    let line = plain(line);
    // SAFETY: as above.
    unsafe { (api().log)(code, c"pagekeeper: %s".as_ptr(), line.as_ptr()) }
}

/// Gives a control to the main database of a connection.
///
/// # Safety
///
/// SQLite's connection, and the argument that belongs to the control's number.
pub(crate) unsafe fn control_main(connection: *mut c_void, op: c_int, argument: *mut c_void) -> Code {
    // SAFETY: the caller's promise.
    unsafe { (api().file_control)(connection, c"main".as_ptr(), op, argument) }
}

/// Returns the name of a connection's main database, if SQLite has one for it.
///
/// # Safety
///
/// SQLite's connection, which outlives the name.
pub(crate) unsafe fn name_of_main<'a>(connection: *mut c_void) -> Option<&'a CStr> {
    // SAFETY: the caller's promise; a string of SQLite's, or NULL.
    unsafe {
        let name = (api().db_filename)(connection, c"main".as_ptr());
        (!name.is_null()).then(|| CStr::from_ptr(name))
    }
}

fn plain(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// A file of this VFS.
pub(crate) trait Opened: Sized {
    fn close(self) -> Result<(), Code>;
    /// Reads. Returns whether all bytes existed; bytes past the end are zero.
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<bool, Code>;
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code>;
    fn truncate(&mut self, size: u64) -> Result<(), Code>;
    fn sync(&mut self) -> Result<(), Code>;
    fn size(&mut self) -> Result<u64, Code>;
    fn lock(&mut self, level: c_int) -> Result<(), Code>;
    fn unlock(&mut self, level: c_int) -> Result<(), Code>;
    fn is_reserved(&mut self) -> Result<bool, Code>;
    /// # Safety
    ///
    /// The argument is the one that SQLite passes with the control of this number.
    unsafe fn control(&mut self, op: c_int, argument: *mut c_void) -> Code;
}

/// The content of SQLite's memory for a file of this VFS.
#[repr(C)]
struct Handle<T> {
    file: File,
    opened: *mut T,
}

/// Puts a file into SQLite's memory.
///
/// # Safety
///
/// The memory has the size that the VFS requests.
unsafe fn hand_out<T: Opened>(memory: *mut File, opened: T, methods: &'static IoMethods) {
    let handle = Handle { file: File { methods }, opened: Box::into_raw(Box::new(opened)) };
    // SAFETY: the caller's promise.
    unsafe { memory.cast::<Handle<T>>().write(handle) }
}

/// Returns the file behind SQLite's memory.
///
/// # Safety
///
/// It was handed out with methods of this type and not closed, and no other thread uses it.
unsafe fn opened<'a, T: Opened>(file: *mut File) -> &'a mut T {
    // SAFETY: the caller's promise.
    unsafe { &mut *(*file.cast::<Handle<T>>()).opened }
}

fn code(result: Result<(), Code>) -> c_int {
    result.err().unwrap_or(abi::OK)
}

unsafe extern "C" fn close<T: Opened>(file: *mut File) -> c_int {
    // SAFETY: SQLite closes each opened file once; the box was created by `hand_out`.
    let opened = unsafe { Box::from_raw((*file.cast::<Handle<T>>()).opened) };
    // SAFETY: as above.
    unsafe { (*file).methods = std::ptr::null() };
    code(opened.close())
}

unsafe extern "C" fn read<T: Opened>(file: *mut File, buffer: *mut c_void, len: c_int, offset: i64) -> c_int {
    let (Ok(len), Ok(offset)) = (usize::try_from(len), u64::try_from(offset)) else { return abi::IOERR_READ };
    // SAFETY: SQLite's memory, of this length. It may be uninitialised before, and every bit
    // pattern is a valid u8.
    let (opened, buffer) = unsafe {
        buffer.cast::<u8>().write_bytes(0, len);
        (opened::<T>(file), std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len))
    };
    match opened.read(buffer, offset) {
        Ok(true) => abi::OK,
        Ok(false) => abi::IOERR_SHORT_READ,
        Err(code) => code,
    }
}

unsafe extern "C" fn write<T: Opened>(
    file: *mut File,
    bytes: *const c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    let (Ok(len), Ok(offset)) = (usize::try_from(len), u64::try_from(offset)) else {
        return abi::IOERR_WRITE;
    };
    // SAFETY: SQLite's memory, of this length.
    let (opened, bytes) = unsafe { (opened::<T>(file), std::slice::from_raw_parts(bytes.cast::<u8>(), len)) };
    code(opened.write(bytes, offset))
}

unsafe extern "C" fn truncate<T: Opened>(file: *mut File, size: i64) -> c_int {
    let Ok(size) = u64::try_from(size) else { return abi::IOERR_WRITE };
    // SAFETY: an open file of this type.
    code(unsafe { opened::<T>(file) }.truncate(size))
}

unsafe extern "C" fn sync<T: Opened>(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: an open file of this type.
    code(unsafe { opened::<T>(file) }.sync())
}

unsafe extern "C" fn file_size<T: Opened>(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: an open file of this type.
    match unsafe { opened::<T>(file) }.size() {
        Ok(bytes) => {
            // SAFETY: an address that SQLite passes.
            unsafe { *size = i64::try_from(bytes).unwrap_or(i64::MAX) };
            abi::OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn lock<T: Opened>(file: *mut File, level: c_int) -> c_int {
    // SAFETY: an open file of this type.
    code(unsafe { opened::<T>(file) }.lock(level))
}

unsafe extern "C" fn unlock<T: Opened>(file: *mut File, level: c_int) -> c_int {
    // SAFETY: an open file of this type.
    code(unsafe { opened::<T>(file) }.unlock(level))
}

unsafe extern "C" fn check_reserved_lock<T: Opened>(file: *mut File, reserved: *mut c_int) -> c_int {
    // SAFETY: an open file of this type.
    match unsafe { opened::<T>(file) }.is_reserved() {
        Ok(is_reserved) => {
            // SAFETY: an address that SQLite passes.
            unsafe { *reserved = c_int::from(is_reserved) };
            abi::OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn file_control<T: Opened>(file: *mut File, op: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: an open file of this type, and SQLite's argument.
    unsafe { opened::<T>(file).control(op, argument) }
}

unsafe extern "C" fn sector_size(_file: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_file: *mut File) -> c_int {
    abi::CHARACTERISTICS
}

const fn methods<T: Opened>() -> IoMethods {
    IoMethods {
        version: 1,
        close: close::<T>,
        read: read::<T>,
        write: write::<T>,
        truncate: truncate::<T>,
        sync: sync::<T>,
        file_size: file_size::<T>,
        lock: lock::<T>,
        unlock: unlock::<T>,
        check_reserved_lock: check_reserved_lock::<T>,
        file_control: file_control::<T>,
        sector_size,
        device_characteristics,
    }
}

static DATABASE_METHODS: IoMethods = methods::<DatabaseFile>();
static JOURNAL_METHODS: IoMethods = methods::<JournalFile>();
static REFUSED_METHODS: IoMethods = methods::<RefusedFile>();

unsafe extern "C" fn open(
    _vfs: *mut Vfs,
    name: *const c_char,
    memory: *mut File,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's memory, and its address for flags, or NULL.
    unsafe {
        (*memory).methods = std::ptr::null();
        match open_file(name, memory, flags) {
            Ok(opened) => {
                if let Some(out) = out.as_mut() {
                    *out = opened;
                }
                abi::OK
            }
            Err(code) => code,
        }
    }
}

/// Opens a file in SQLite's memory. Returns the flags with which it was opened.
///
/// # Safety
///
/// SQLite's own name (or NULL) and memory.
unsafe fn open_file(name: *const c_char, memory: *mut File, flags: c_int) -> Result<c_int, Code> {
    let real = api().real;
    // SAFETY: SQLite's name, if there is one.
    let text = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    // The database keeps the reason.
    let refused = |why: &str| {
        if let Some(database) = text.and_then(Database::of_file_beside) {
            return Err(database.state()?.refuse(abi::CANTOPEN, why));
        }
        log(abi::CANTOPEN, why);
        Err(abi::CANTOPEN)
    };
    match (text, flags) {
        (Some(text), _) if flags & abi::OPEN_MAIN_DB != 0 => {
            // SAFETY: SQLite's own name, which lives as long as the file; the memory is as large as
            // `register` said.
            unsafe {
                match open_database(name, text, flags) {
                    Ok((file, opened)) => {
                        hand_out(memory, file, &DATABASE_METHODS);
                        Ok(opened)
                    }
                    Err(Failure::Refused(_, Some(why)) | Failure::Final(why)) => {
                        hand_out(memory, RefusedFile::new(&why), &REFUSED_METHODS);
                        Ok(flags)
                    }
                    Err(Failure::Refused(code, None)) => Err(code),
                }
            }
        }
        (Some(text), _) if flags & abi::OPEN_MAIN_JOURNAL != 0 && Database::of_journal(text).is_some() => {
            let Some(database) = Database::of_journal(text) else { return Err(abi::CANTOPEN) };
            let may_create = flags & abi::OPEN_CREATE != 0;
            let (file, opened) = if let Some(file) = JournalFile::own(&database, may_create)? {
                (file, flags)
            } else {
                // SAFETY: as above.
                let (file, opened) = unsafe { RealFile::open_as(real, name, flags) }?;
                (JournalFile::left(database, file)?, opened)
            };
            // SAFETY: as above.
            unsafe { hand_out(memory, file, &JOURNAL_METHODS) };
            Ok(opened)
        }
        _ if flags & abi::OPEN_WAL != 0 => {
            refused("WAL mode is refused: set journal_mode=DELETE by the default VFS first")
        }
        _ if flags & abi::OPEN_SUPER_JOURNAL != 0 && flags & abi::OPEN_CREATE != 0 => {
            refused("a transaction over several databases is refused: this VFS can't commit them as one")
        }
        _ => {
            let mut opened = flags;
            // SAFETY: SQLite's own arguments, passed on; the memory has the size that the
            // underlying VFS needs.
            let code =
                unsafe { ((*real.as_ptr()).open)(real.as_ptr(), name, memory, flags, &raw mut opened) };
            if code == abi::OK { Ok(opened) } else { Err(code) }
        }
    }
}

/// Opens a database. Gives the flags it was opened with, too.
///
/// # Safety
///
/// SQLite's own name of a database, twice, which lives as long as the file.
unsafe fn open_database(
    name: *const c_char,
    text: &CStr,
    flags: c_int,
) -> Result<(DatabaseFile, c_int), Failure> {
    // SAFETY: a name with parameters behind it, as SQLite gives it for a database.
    let is_set = |setting: &CStr| unsafe { (api().uri_boolean)(name, setting.as_ptr(), 0) } != 0;
    for setting in [c"nolock", c"immutable"] {
        if is_set(setting) {
            let why = "nolock and immutable are refused: this VFS stands on the file's locks";
            return Err(Failure::cant_open(why));
        }
    }
    // SAFETY: the caller's promise.
    let (file, opened) = unsafe { RealFile::open_as(api().real, name, flags) }?;
    Ok((DatabaseFile::new(api().real, text, file)?, opened))
}

unsafe extern "C" fn delete(_vfs: *mut Vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite's name.
    let name = unsafe { CStr::from_ptr(name) };
    let real = api().real;
    code(match Database::of_journal(name) {
        Some(database) => delete_journal(real, &database, name, sync != 0),
        None => real.delete(name, sync != 0),
    })
}

unsafe extern "C" fn access(_vfs: *mut Vfs, name: *const c_char, flags: c_int, out: *mut c_int) -> c_int {
    let real = api().real;
    // SAFETY: SQLite's name.
    let text = unsafe { CStr::from_ptr(name) };
    let mut kinds = [SideFile::Journal, SideFile::Wal].into_iter();
    if flags == abi::ACCESS_EXISTS
        && let Some((which, database)) = kinds.find_map(|which| Some((which, Database::beside(text, which)?)))
    {
        return match exists_beside(real, &database, text, which) {
            Ok(exists) => {
                // SAFETY: an address that SQLite passes.
                unsafe { *out = c_int::from(exists) };
                abi::OK
            }
            Err(code) => code,
        };
    }
    // SAFETY: passed on unchanged.
    unsafe { ((*real.as_ptr()).access)(real.as_ptr(), name, flags, out) }
}

/// A call that is passed on to the underlying VFS unchanged.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        unsafe extern "C" fn $name(_vfs: *mut Vfs, $($argument: $type),*) -> $result {
            let real = api().real.as_ptr();
            // SAFETY: SQLite's own arguments, passed to the VFS they are for.
            unsafe { ((*real).$name)(real, $($argument),*) }
        }
    )*};
}

passed_on! {
    full_pathname(name: *const c_char, len: c_int, out: *mut c_char) -> c_int;
    dl_open(name: *const c_char) -> *mut c_void;
    dl_error(len: c_int, out: *mut c_char) -> ();
    dl_sym(library: *mut c_void, name: *const c_char) -> abi::SysCall;
    dl_close(library: *mut c_void) -> ();
    randomness(len: c_int, out: *mut c_char) -> c_int;
    sleep(microseconds: c_int) -> c_int;
    current_time(out: *mut f64) -> c_int;
    last_error(len: c_int, out: *mut c_char) -> c_int;
    current_time_int64(out: *mut i64) -> c_int;
    set_system_call(name: *const c_char, call: abi::SysCall) -> c_int;
    get_system_call(name: *const c_char) -> abi::SysCall;
    next_system_call(name: *const c_char) -> *const c_char;
}

/// The oldest SQLite that can keep a library loaded on request: 3.14.
const SQLITE_VERSION_MIN: c_int = 3_014_000;

/// Registers the VFS `pagekeeper`, once per process.
///
/// # Safety
///
/// The arguments are those that SQLite passes to the entry point of an extension.
pub(crate) unsafe fn load(message: *mut *mut c_char, routines: *const *const c_void, default: bool) -> c_int {
    type Find = unsafe extern "C" fn(*const c_char) -> *mut Vfs;
    type Register = unsafe extern "C" fn(*mut Vfs, c_int) -> c_int;
    type Version = unsafe extern "C" fn() -> c_int;
    type AutoExtension = unsafe extern "C" fn(unsafe extern "C" fn()) -> c_int;
    type Entry = unsafe extern "C" fn(*mut c_void, *mut *mut c_char, *const c_void) -> c_int;
    /// The VFS, which SQLite links into its list: never freed.
    static REGISTERED: OnceLock<usize> = OnceLock::new();

    // SAFETY: SQLite's table has these functions at these indices since 3.8, with these types.
    let (api, register, add) = unsafe {
        let at = |place: usize| *routines.add(place);
        let version: Version = std::mem::transmute(at(routine::LIBVERSION_NUMBER));
        let mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char =
            std::mem::transmute(at(routine::MPRINTF));
        let refused = |why: &CStr| {
            if let Some(message) = message.as_mut() {
                *message = mprintf(c"%s".as_ptr(), why.as_ptr());
            }
            abi::ERROR
        };
        if version() < SQLITE_VERSION_MIN {
            return refused(c"pagekeeper needs SQLite 3.14 or newer");
        }
        let find: Find = std::mem::transmute(at(routine::VFS_FIND));
        let Some(real) = NonNull::new(find(c"unix".as_ptr())) else {
            return refused(c"pagekeeper stands on the VFS \"unix\", which is not here");
        };
        if API.get().is_some_and(|first| first.real.as_ptr() != real.as_ptr()) {
            // For example, SQLite built into a program and a library: each has its own list of
            // VFSs.
            return refused(c"pagekeeper is loaded by another copy of SQLite in this process already");
        }
        let api = Api {
            mprintf,
            log: std::mem::transmute::<*const c_void, unsafe extern "C" fn(c_int, *const c_char, ...)>(at(
                routine::LOG,
            )),
            uri_boolean: std::mem::transmute::<
                *const c_void,
                unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int,
            >(at(routine::URI_BOOLEAN)),
            file_control: std::mem::transmute::<*const c_void, FileControl>(at(routine::FILE_CONTROL)),
            db_filename: std::mem::transmute::<*const c_void, DatabaseName>(at(routine::DB_FILENAME)),
            real: RealVfs::new(real),
        };
        let add: AutoExtension = std::mem::transmute(at(routine::AUTO_EXTENSION));
        let register: Register = std::mem::transmute(at(routine::VFS_REGISTER));
        (api, register, add)
    };
    let real = api.real;
    let _ = API.set(api);
    // SAFETY: a function of the kind that SQLite's list has, by the type that it is listed with;
    // one that is in it already stays once.
    let code = unsafe { add(std::mem::transmute::<Entry, unsafe extern "C" fn()>(check_connection)) };
    if code != abi::OK {
        return code;
    }
    if !default && REGISTERED.get().is_some() {
        // Registering it again would end its role as the default.
        return abi::OK_LOAD_PERMANENTLY;
    }
    let vfs = *REGISTERED.get_or_init(|| {
        let own = c_int::try_from(size_of::<Handle<DatabaseFile>>()).unwrap_or(c_int::MAX);
        // SAFETY: a registered VFS is valid.
        let (size, max_path, version) =
            unsafe { ((*real.as_ptr()).os_file_size, (*real.as_ptr()).max_path, (*real.as_ptr()).version) };
        let vfs = Box::new(Vfs {
            version: version.min(3),
            os_file_size: size.max(own),
            max_path,
            next: std::ptr::null_mut(),
            name: c"pagekeeper".as_ptr(),
            app_data: std::ptr::null_mut(),
            open,
            delete,
            access,
            full_pathname,
            dl_open,
            dl_error,
            dl_sym,
            dl_close,
            randomness,
            sleep,
            current_time,
            last_error,
            current_time_int64,
            set_system_call,
            get_system_call,
            next_system_call,
        });
        Box::into_raw(vfs).expose_provenance()
    });
    // SAFETY: a VFS that lives forever; registering it again is SQLite's way to make it the
    // default.
    let code = unsafe { register(std::ptr::with_exposed_provenance_mut(vfs), c_int::from(default)) };
    if code == abi::OK { abi::OK_LOAD_PERMANENTLY } else { code }
}
