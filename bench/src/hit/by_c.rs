//! pagekeeper's cache through its C interface: the same file in the same cache, read by `pk_file_read`.
//!
//! Invariant: the call goes through a pointer that the compiler does not know, as one into a shared library does. Fails as the cache does.

#![expect(unsafe_code, reason = "calls of the C interface")]

use std::ffi::{c_int, c_void};
use std::hint::black_box;

use pagekeeper_cache::CachedFile;
use pagekeeper_capi::file::{File, pk_file_read};

use super::reader::{PAGE, Reader};

/// `pk_file_read` as C declares it.
type Read = unsafe extern "C" fn(*const c_void, u64, *mut u8, usize, *mut usize) -> c_int;

/// The file, as C holds it.
pub(crate) struct ByC {
    file: Box<File>,
    read: Read,
}

impl ByC {
    pub(crate) fn new(file: CachedFile) -> Self {
        let exported: *const () = black_box(pk_file_read as *const ());
        // SAFETY: the same function by the types of the header, which are laid out as Rust's: each pointer and reference as an
        // address, the status as an int.
        let read = unsafe { std::mem::transmute::<*const (), Read>(exported) };
        Self { file: Box::new(File::from(file)), read }
    }
}

impl Reader for ByC {
    #[inline]
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
        let mut got = 0;
        let file = std::ptr::from_ref(&*self.file).cast();
        let offset = page * PAGE as u64 + at as u64;
        // SAFETY: the file is open, and the buffer as long as is said.
        let status = unsafe { (self.read)(file, offset, buf.as_mut_ptr(), buf.len(), &raw mut got) };
        status == 0 && got == buf.len()
    }
}
