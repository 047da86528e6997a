//! `RocksDB` as a store of values by number, through the C++ source beside this file.
//!
//! Fails where `RocksDB` does, with its message.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Bytes for an error message.
const MESSAGE_BYTES: usize = 256;

/// `bench_pages` of the C++ source.
#[repr(C)]
struct OpaquePages {
    private: [u8; 0],
}

// SAFETY: these are the signatures of rocksdb.cc, with `bool` and `size_t` as Rust has them. The
// requirements of each function's pointers are stated where it is called.
unsafe extern "C" {
    fn bench_pages_open(
        dir: *const c_char,
        memory: usize,
        memtable: usize,
        error: *mut c_char,
        len: usize,
    ) -> *mut OpaquePages;
    fn bench_pages_close(pages: *mut OpaquePages);
    fn bench_pages_get(
        pages: *mut OpaquePages,
        page: u64,
        value: *mut c_char,
        size: usize,
        error: *mut c_char,
        len: usize,
    ) -> bool;
    fn bench_pages_put(
        pages: *mut OpaquePages,
        numbers: *const u64,
        count: usize,
        values: *const c_char,
        size: usize,
        sync: bool,
        error: *mut c_char,
        len: usize,
    ) -> bool;
    fn bench_pages_flush(pages: *mut OpaquePages, error: *mut c_char, len: usize) -> bool;
    fn bench_pages_idle(pages: *mut OpaquePages) -> bool;
    fn bench_rocksdb_version() -> u32;
}

/// Values by number, behind the C functions of rocksdb.cc.
pub(crate) struct RocksDbValues(NonNull<OpaquePages>);

// SAFETY: rocksdb/db.h: a DB is "safe for concurrent access from multiple threads without any
// external synchronization"; only `drop` frees the value behind the pointer.
unsafe impl Send for RocksDbValues {}
// SAFETY: as above.
unsafe impl Sync for RocksDbValues {}

/// Runs a call that reports its failure as text.
fn done(call: impl FnOnce(*mut c_char) -> bool) -> Result<()> {
    let mut words = [0; MESSAGE_BYTES];
    if !call(words.as_mut_ptr()) {
        bail!("RocksDB: {}", text(&words));
    }
    Ok(())
}

impl RocksDbValues {
    /// Opens or creates a database in a directory, with a block cache of `memory` bytes. With a
    /// `memtable` of this many bytes nothing is compacted, otherwise all is as by default.
    pub(crate) fn open(dir: &Path, memory: u64, memtable: Option<u64>) -> Result<Self> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let (memory, memtable) = (usize::try_from(memory)?, usize::try_from(memtable.unwrap_or(0))?);
        let mut words = [0; MESSAGE_BYTES];
        // SAFETY: the path ends with a zero byte, and `words` has room for `MESSAGE_BYTES` bytes.
        let database =
            unsafe { bench_pages_open(path.as_ptr(), memory, memtable, words.as_mut_ptr(), MESSAGE_BYTES) };
        Ok(Self(NonNull::new(database).with_context(|| format!("RocksDB: {}", text(&words)))?))
    }

    /// Fills `value`, which has the length of the value that was put.
    pub(crate) fn get(&self, page: u64, value: &mut [u8]) -> Result<()> {
        // SAFETY: the database is alive; at most the lengths of `value` and `words` are written
        // before the call returns.
        done(|words| unsafe {
            bench_pages_get(
                self.0.as_ptr(),
                page,
                value.as_mut_ptr().cast(),
                value.len(),
                words,
                MESSAGE_BYTES,
            )
        })
    }

    /// Puts consecutive values of one length for these pages.
    pub(crate) fn put(&self, pages: &[u64], values: &[u8], sync: bool) -> Result<()> {
        let size = values.len() / pages.len().max(1);
        assert_eq!(values.len(), pages.len() * size, "a value for each page");
        // SAFETY: the database is alive; as many numbers and values as there are pages are read,
        // which was just checked, and `words` is written within its length, before the call
        // returns.
        done(|words| unsafe {
            bench_pages_put(
                self.0.as_ptr(),
                pages.as_ptr(),
                pages.len(),
                values.as_ptr().cast(),
                size,
                sync,
                words,
                MESSAGE_BYTES,
            )
        })
    }

    /// Flushes the memtables to tables.
    pub(crate) fn flush(&self) -> Result<()> {
        // SAFETY: the database is alive, and `words` is written within its length before the call
        // returns.
        done(|words| unsafe { bench_pages_flush(self.0.as_ptr(), words, MESSAGE_BYTES) })
    }

    /// Waits until no flush or compaction is running.
    pub(crate) fn wait_until_idle(&self) {
        // SAFETY: the database is alive.
        while !unsafe { bench_pages_idle(self.0.as_ptr()) } {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for RocksDbValues {
    fn drop(&mut self) {
        // SAFETY: made by `bench_pages_open`, and freed once.
        unsafe { bench_pages_close(self.0.as_ptr()) }
    }
}

/// Returns the version of the headers this was built with.
pub(crate) fn version() -> String {
    // SAFETY: takes nothing, returns a constant.
    let version = unsafe { bench_rocksdb_version() };
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn text(words: &[c_char; MESSAGE_BYTES]) -> String {
    // SAFETY: `words` starts as zeros, and snprintf(3) ends its output with one.
    unsafe { CStr::from_ptr(words.as_ptr()) }.to_string_lossy().into_owned()
}
