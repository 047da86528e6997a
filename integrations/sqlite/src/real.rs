//! The underlying VFS, and a file that it opened, behind safe methods.
//!
//! Invariants:
//! 1. Only that VFS opens and closes a database file: POSIX drops a process's locks on a file when
//!    *any* of its descriptors is closed, and only the VFS that holds the locks knows when one may
//!    be closed.
//! 2. The name with which a file was opened lives as long as the file: the VFS keeps the pointer.
//!
//! Errors are SQLite's codes.
#![allow(unsafe_code, reason = "calls of the VFS beneath, by its function table")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::abi::{self, Code, File, Vfs};

/// The underlying VFS: registered while the process lives.
#[derive(Clone, Copy)]
pub(crate) struct RealVfs(NonNull<Vfs>);

// SAFETY: SQLite requires that any thread may call a VFS.
unsafe impl Send for RealVfs {}
// SAFETY: as above.
unsafe impl Sync for RealVfs {}

impl RealVfs {
    /// # Safety
    ///
    /// The pointer came from `sqlite3_vfs_find`, and the VFS is never unregistered.
    pub(crate) unsafe fn new(vfs: NonNull<Vfs>) -> Self {
        Self(vfs)
    }

    pub(crate) fn as_ptr(self) -> *mut Vfs {
        self.0.as_ptr()
    }

    /// Returns the size of its `sqlite3_file` in bytes.
    pub(crate) fn file_bytes(self) -> usize {
        // SAFETY: it is valid, by `new`, and nobody changes the size.
        usize::try_from(unsafe { (*self.as_ptr()).os_file_size }).unwrap_or(0)
    }

    /// Whether a file exists.
    pub(crate) fn exists(self, name: &CStr) -> Result<bool, Code> {
        let mut found = 0;
        // SAFETY: valid by `new`; name and result live during the call.
        let code = unsafe {
            ((*self.as_ptr()).access)(self.as_ptr(), name.as_ptr(), abi::ACCESS_EXISTS, &raw mut found)
        };
        checked(code).map(|()| found != 0)
    }

    /// Removes a file, and makes that durable if `sync` is set.
    pub(crate) fn delete(self, name: &CStr, sync: bool) -> Result<(), Code> {
        // SAFETY: as above.
        checked(unsafe { ((*self.as_ptr()).delete)(self.as_ptr(), name.as_ptr(), c_int::from(sync)) })
    }
}

pub(crate) fn checked(code: Code) -> Result<(), Code> {
    if code == abi::OK { Ok(()) } else { Err(code) }
}

/// A file that the underlying VFS opened. Dropping it closes it.
pub(crate) struct RealFile {
    /// `sqlite3_file`, followed by the VFS's data.
    memory: Box<[u64]>,
    /// Whether it was opened for reading and writing, or read-only.
    pub(crate) is_writable: bool,
    /// The name of invariant 2, if the caller does not own it.
    name: Option<Box<[u8]>>,
}

// SAFETY: `sqlite3_file` may be used by any thread, but by one at a time, which `&mut` guarantees.
unsafe impl Send for RealFile {}

impl RealFile {
    /// Opens a file by SQLite's own name for it, which is followed by URI parameters. Also returns
    /// the flags with which it was opened.
    ///
    /// # Safety
    ///
    /// The name is one that SQLite passed to `xOpen`, and lives as long as the file.
    pub(crate) unsafe fn open_as(
        vfs: RealVfs,
        name: *const c_char,
        flags: c_int,
    ) -> Result<(Self, c_int), Code> {
        let mut memory = vec![0_u64; vfs.file_bytes().div_ceil(8).max(1)].into_boxed_slice();
        let file = memory.as_mut_ptr().cast::<File>();
        let mut opened = flags;
        // SAFETY: the memory has the size that the VFS requests, and the caller guarantees the
        // name.
        let code = unsafe { ((*vfs.as_ptr()).open)(vfs.as_ptr(), name, file, flags, &raw mut opened) };
        let is_writable = opened & abi::OPEN_READWRITE != 0;
        let file = Self { memory, is_writable, name: None };
        // Dropping it closes it as SQLite would: if it has methods.
        checked(code).map(|()| (file, opened))
    }

    /// Opens an existing database file by a plain name, for writing if permitted.
    pub(crate) fn open_database(vfs: RealVfs, name: &CStr) -> Result<Self, Code> {
        // Laid out as by `sqlite3_create_filename`: preceded by zeros, and without parameters.
        let mut laid_out = vec![0; 4];
        laid_out.extend_from_slice(name.to_bytes_with_nul());
        laid_out.extend_from_slice(&[0; 8]);
        let laid_out = laid_out.into_boxed_slice();
        let start = laid_out[4..].as_ptr().cast();
        // SAFETY: laid out as SQLite does it, on the heap, and kept beside the file.
        let (mut file, _) = unsafe { Self::open_as(vfs, start, abi::OPEN_READWRITE | abi::OPEN_MAIN_DB) }?;
        file.name = Some(laid_out);
        Ok(file)
    }

    fn parts(&mut self) -> (*mut File, &'static abi::IoMethods) {
        let file = self.memory.as_mut_ptr().cast::<File>();
        // SAFETY: it is open, so the VFS has set its methods, which are static.
        (file, unsafe { &*(*file).methods })
    }

    /// Reads, and fills bytes past the end with zeros. Returns whether all bytes existed.
    pub(crate) fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<bool, Code> {
        let (file, methods) = self.parts();
        let (len, offset) = (length(buffer.len())?, place(offset)?);
        // SAFETY: the buffer has that many bytes.
        match unsafe { (methods.read)(file, buffer.as_mut_ptr().cast(), len, offset) } {
            abi::OK => Ok(true),
            abi::IOERR_SHORT_READ => Ok(false),
            code => Err(code),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code> {
        let (file, methods) = self.parts();
        let (len, offset) = (length(bytes.len())?, place(offset)?);
        // SAFETY: there are that many bytes.
        checked(unsafe { (methods.write)(file, bytes.as_ptr().cast(), len, offset) })
    }

    pub(crate) fn truncate(&mut self, size: u64) -> Result<(), Code> {
        let (file, methods) = self.parts();
        let size = place(size)?;
        // SAFETY: it is open.
        checked(unsafe { (methods.truncate)(file, size) })
    }

    /// Makes all written data durable.
    pub(crate) fn sync(&mut self) -> Result<(), Code> {
        let (file, methods) = self.parts();
        // SAFETY: it is open.
        checked(unsafe { (methods.sync)(file, abi::SYNC_NORMAL) })
    }

    pub(crate) fn size(&mut self) -> Result<u64, Code> {
        let (file, methods) = self.parts();
        let mut size = 0;
        // SAFETY: it is open, and the result is a local variable.
        checked(unsafe { (methods.file_size)(file, &raw mut size) })?;
        Ok(u64::try_from(size).unwrap_or(0))
    }

    pub(crate) fn lock(&mut self, level: c_int) -> Result<(), Code> {
        let (file, methods) = self.parts();
        // SAFETY: it is open.
        checked(unsafe { (methods.lock)(file, level) })
    }

    pub(crate) fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        let (file, methods) = self.parts();
        // SAFETY: it is open.
        checked(unsafe { (methods.unlock)(file, level) })
    }

    pub(crate) fn is_reserved(&mut self) -> Result<bool, Code> {
        let (file, methods) = self.parts();
        let mut reserved = 0;
        // SAFETY: it is open, and the result is a local variable.
        checked(unsafe { (methods.check_reserved_lock)(file, &raw mut reserved) })?;
        Ok(reserved != 0)
    }

    /// Whether its name now refers to another file, or to none.
    pub(crate) fn has_moved(&mut self) -> bool {
        let mut moved: c_int = 0;
        // SAFETY: the address of a number, as this control requires; a VFS that does not know the
        // control leaves it unchanged.
        unsafe { self.control(abi::FCNTL_HAS_MOVED, (&raw mut moved).cast()) };
        moved != 0
    }

    /// Passes a control on.
    ///
    /// # Safety
    ///
    /// The argument is the one that SQLite passed with it.
    pub(crate) unsafe fn control(&mut self, op: c_int, argument: *mut c_void) -> Code {
        let (file, methods) = self.parts();
        // SAFETY: the caller's promise.
        unsafe { (methods.file_control)(file, op, argument) }
    }
}

impl Drop for RealFile {
    fn drop(&mut self) {
        let file = self.memory.as_mut_ptr().cast::<File>();
        // SAFETY: zeros, or initialised by the VFS; closed once.
        unsafe {
            if let Some(methods) = (*file).methods.as_ref() {
                (methods.close)(file);
            }
        }
    }
}

fn length(bytes: usize) -> Result<c_int, Code> {
    c_int::try_from(bytes).map_err(|_| abi::IOERR)
}

fn place(offset: u64) -> Result<i64, Code> {
    i64::try_from(offset).map_err(|_| abi::FULL)
}
