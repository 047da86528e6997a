//! pagekeeper's cache through its C interface: the same file in the same cache, read by
//! `pk_file_read`; and the limit by a call of the same form, which no library can beat.
//!
//! Invariant: the calls go through pointers that the compiler cannot see through, as into a shared
//! library. Fails as the cache does.

#![expect(unsafe_code, reason = "calls of the C interface")]

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::Arc;

use pagekeeper_cache::CachedFile;
use pagekeeper_capi::file::{FileHandle, pk_file_read};

use super::plain::ArrayLimit;
use super::reader::{PAGE_BYTES, PageReader};

/// `pk_file_read` as C declares it.
type ReadFunction = unsafe extern "C" fn(*const c_void, u64, *mut u8, usize, *mut usize) -> c_int;

/// The file, as C holds it.
pub(crate) struct FileByC {
    file: Box<FileHandle>,
    read: ReadFunction,
}

impl FileByC {
    pub(crate) fn new(file: CachedFile) -> Self {
        let exported: *const () = black_box(pk_file_read as *const ());
        // SAFETY: the same function with the header's types, which are laid out as Rust's: each
        // pointer and reference is an address, the status is an int.
        let read = unsafe { std::mem::transmute::<*const (), ReadFunction>(exported) };
        Self { file: Box::new(FileHandle::from(file)), read }
    }
}

impl PageReader for FileByC {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        // SAFETY: the file is open.
        unsafe { read_by(self.read, std::ptr::from_ref(&*self.file).cast(), page, at, buf) }
    }
}

/// Fills the buffer by such a call.
///
/// # Safety
/// `of` must be a valid first argument of the function.
#[inline]
unsafe fn read_by(read: ReadFunction, of: *const c_void, page: u64, at: usize, buf: &mut [u8]) -> bool {
    let mut got = 0;
    let offset = page * PAGE_BYTES as u64 + at as u64;
    // SAFETY: this function's contract; the buffer has the given length.
    let status = unsafe { read(of, offset, buf.as_mut_ptr(), buf.len(), &raw mut got) };
    status == 0 && got == buf.len()
}

/// The limit, read by a call.
pub(crate) struct LimitByC {
    limit: Arc<ArrayLimit>,
    read: ReadFunction,
}

impl LimitByC {
    pub(crate) fn new(limit: Arc<ArrayLimit>) -> Self {
        Self { limit, read: black_box(limit_read) }
    }
}

/// Reads like `pk_file_read`, for an [`ArrayLimit`].
///
/// # Safety
///
/// `limit` must be an [`ArrayLimit`], `buffer` must have `size` bytes, and `got` must be writable;
/// all must belong to this call alone.
unsafe extern "C" fn limit_read(
    limit: *const c_void,
    offset: u64,
    buffer: *mut u8,
    size: usize,
    got: *mut usize,
) -> c_int {
    // SAFETY: this function's contract.
    let (limit, buffer) =
        unsafe { (&*limit.cast::<ArrayLimit>(), std::slice::from_raw_parts_mut(buffer, size)) };
    let at = usize::try_from(offset % PAGE_BYTES as u64).expect("less than a page");
    // SAFETY: this function's contract.
    unsafe { *got = size };
    c_int::from(!limit.read(offset / PAGE_BYTES as u64, at, buffer))
}

impl PageReader for LimitByC {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        // SAFETY: the pointer is to the limit, which lives as long as this value.
        unsafe { read_by(self.read, Arc::as_ptr(&self.limit).cast(), page, at, buf) }
    }
}
