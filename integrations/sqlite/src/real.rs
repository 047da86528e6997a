//! The VFS beneath, and a file that it opened, behind safe methods.
//!
//! Invariants:
//! 1. A database file is opened and closed by that VFS alone: POSIX drops a process's locks on a file when *any* of its descriptors is closed,
//!    and only the VFS that holds the locks knows when one may be.
//! 2. The name that a file was opened by lives as long as the file: the VFS keeps the pointer.
//!
//! What fails is SQLite's code for it.
#![allow(unsafe_code, reason = "calls of the VFS beneath, by its function table")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::abi::{self, Code, File, Vfs};

/// The VFS beneath: registered for as long as the process lives.
#[derive(Clone, Copy)]
pub(crate) struct RealVfs(NonNull<Vfs>);

// SAFETY: a VFS is called by any thread, which SQLite asks of each.
unsafe impl Send for RealVfs {}
// SAFETY: as above.
unsafe impl Sync for RealVfs {}

impl RealVfs {
    /// # Safety
    ///
    /// A pointer that `sqlite3_vfs_find` gave, of a VFS that is never unregistered.
    pub(crate) unsafe fn new(vfs: NonNull<Vfs>) -> Self {
        Self(vfs)
    }

    pub(crate) fn as_ptr(self) -> *mut Vfs {
        self.0.as_ptr()
    }

    /// Bytes of its `sqlite3_file`.
    pub(crate) fn file_bytes(self) -> usize {
        // SAFETY: it is valid, by `new`, and nobody changes the size.
        usize::try_from(unsafe { (*self.as_ptr()).os_file_size }).unwrap_or(0)
    }

    /// Whether a file is there.
    pub(crate) fn exists(self, name: &CStr) -> Result<bool, Code> {
        let mut found = 0;
        // SAFETY: valid by `new`; name and place live through the call.
        let code = unsafe {
            ((*self.as_ptr()).access)(self.as_ptr(), name.as_ptr(), abi::ACCESS_EXISTS, &raw mut found)
        };
        checked(code).map(|()| found != 0)
    }

    /// Removes a file, and makes that durable; `sync` or not.
    pub(crate) fn delete(self, name: &CStr, sync: bool) -> Result<(), Code> {
        // SAFETY: as above.
        checked(unsafe { ((*self.as_ptr()).delete)(self.as_ptr(), name.as_ptr(), c_int::from(sync)) })
    }
}

pub(crate) fn checked(code: Code) -> Result<(), Code> {
    if code == abi::OK { Ok(()) } else { Err(code) }
}

/// A file that the VFS beneath opened; dropping it closes it.
pub(crate) struct RealFile {
    /// `sqlite3_file` and what the VFS has behind it.
    memory: Box<[u64]>,
    /// What it was opened as: read and write, or read alone.
    pub(crate) is_writable: bool,
    /// See invariant 2, where the name is not the caller's.
    name: Option<Box<[u8]>>,
}

// SAFETY: `sqlite3_file` is entered by one thread at a time, which `&mut` sees to, on any thread.
unsafe impl Send for RealFile {}

impl RealFile {
    /// Opens a file by SQLite's own name of it, which has URI parameters behind it. Gives the flags that it was opened with, too.
    ///
    /// # Safety
    ///
    /// The name is one that SQLite gave to `xOpen`, and lives as long as the file.
    pub(crate) unsafe fn open_as(
        vfs: RealVfs,
        name: *const c_char,
        flags: c_int,
    ) -> Result<(Self, c_int), Code> {
        let mut memory = vec![0_u64; vfs.file_bytes().div_ceil(8).max(1)].into_boxed_slice();
        let file = memory.as_mut_ptr().cast::<File>();
        let mut opened = flags;
        // SAFETY: memory of the size that the VFS asks for, and the name is the caller's promise.
        let code = unsafe { ((*vfs.as_ptr()).open)(vfs.as_ptr(), name, file, flags, &raw mut opened) };
        let is_writable = opened & abi::OPEN_READWRITE != 0;
        let file = Self { memory, is_writable, name: None };
        // Dropping it closes it as SQLite would: if it has methods.
        checked(code).map(|()| (file, opened))
    }

    /// Opens a database file that is there, by a plain name, for writing if that may be.
    pub(crate) fn open_database(vfs: RealVfs, name: &CStr) -> Result<Self, Code> {
        // As `sqlite3_create_filename` lays it out: zeros before it, and no parameters behind it.
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
        // SAFETY: it was opened, so that the VFS has set its methods, which are static.
        (file, unsafe { &*(*file).methods })
    }

    /// Reads, and fills up with zeros what is past the end. Gives whether all was there.
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

    /// Waits for all that was written.
    pub(crate) fn sync(&mut self) -> Result<(), Code> {
        let (file, methods) = self.parts();
        // SAFETY: it is open.
        checked(unsafe { (methods.sync)(file, abi::SYNC_NORMAL) })
    }

    pub(crate) fn size(&mut self) -> Result<u64, Code> {
        let (file, methods) = self.parts();
        let mut size = 0;
        // SAFETY: it is open, and the place is of this frame.
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
        // SAFETY: it is open, and the place is of this frame.
        checked(unsafe { (methods.check_reserved_lock)(file, &raw mut reserved) })?;
        Ok(reserved != 0)
    }

    /// Whether another file, or none, has its name by now.
    pub(crate) fn has_moved(&mut self) -> bool {
        let mut moved: c_int = 0;
        // SAFETY: the place of a number, as this control wants it; one that does not know it leaves it as it is.
        unsafe { self.control(abi::FCNTL_HAS_MOVED, (&raw mut moved).cast()) };
        moved != 0
    }

    /// Passes a control on.
    ///
    /// # Safety
    ///
    /// The argument is what SQLite gave with it.
    pub(crate) unsafe fn control(&mut self, op: c_int, argument: *mut c_void) -> Code {
        let (file, methods) = self.parts();
        // SAFETY: the caller's promise.
        unsafe { (methods.file_control)(file, op, argument) }
    }
}

impl Drop for RealFile {
    fn drop(&mut self) {
        let file = self.memory.as_mut_ptr().cast::<File>();
        // SAFETY: zeros, or what the VFS made of it; closed once.
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
