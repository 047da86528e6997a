//! `RocksDB`'s write-ahead log: synced puts, through the C++ source beside this file.
//!
//! A put goes into the memtable, too, which is part of this log's cost. The memtable is so large that it is never
//! flushed. Fails where `RocksDB` does, with its message.

#![expect(unsafe_code, reason = "calls into C++")]

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

use super::{Kind, Log};

/// The subject.
pub(super) const KIND: Kind =
    Kind { name: "RocksDB's log", make: |dir, _| Ok(Box::new(Wal::open(dir)?)), check: None };

/// Bytes of the memtable: more than a sample writes.
const MEMTABLE: usize = 4 << 30;
/// Bytes for an error message.
pub(crate) const WORDS: usize = 256;

/// `bench_wal` of the C++ source.
#[repr(C)]
struct Opaque {
    private: [u8; 0],
}

// SAFETY: these are the signatures of rocksdb.cc, with `bool` and `size_t` as Rust has them. The requirements of each
// function's pointers are stated where it is called.
unsafe extern "C" {
    fn bench_wal_open(dir: *const c_char, memtable: usize, error: *mut c_char, len: usize) -> *mut Opaque;
    fn bench_wal_close(wal: *mut Opaque);
    fn bench_wal_put(
        wal: *mut Opaque,
        key: u64,
        bytes: *const c_char,
        len: usize,
        sync: bool,
        error: *mut c_char,
        error_len: usize,
    ) -> bool;
}

/// A database of which only the log matters.
struct Wal {
    database: NonNull<Opaque>,
    next: AtomicU64,
}

// SAFETY: rocksdb/db.h: a DB is "safe for concurrent access from multiple threads without any external
// synchronization"; only `drop` frees the value behind the pointer.
unsafe impl Send for Wal {}
// SAFETY: as above.
unsafe impl Sync for Wal {}

impl Wal {
    /// Creates a database in a directory.
    fn open(dir: &Path) -> Result<Self> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let mut words = [0; WORDS];
        // SAFETY: the path ends with a zero byte, and `words` has room for `WORDS` bytes.
        let database = unsafe { bench_wal_open(path.as_ptr(), MEMTABLE, words.as_mut_ptr(), WORDS) };
        let database = NonNull::new(database).with_context(|| format!("RocksDB: {}", text(&words)))?;
        Ok(Self { database, next: AtomicU64::new(0) })
    }
}

impl Log for Wal {
    fn append(&self, body: &[u8], sync: bool) -> Result<()> {
        let mut words = [0; WORDS];
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the database is alive, `body` is read and `words` written within their lengths before the call returns.
        let done = unsafe {
            bench_wal_put(
                self.database.as_ptr(),
                key,
                body.as_ptr().cast(),
                body.len(),
                sync,
                words.as_mut_ptr(),
                WORDS,
            )
        };
        if !done {
            bail!("RocksDB: {}", text(&words));
        }
        Ok(())
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        // SAFETY: made by `bench_wal_open`, and freed once.
        unsafe { bench_wal_close(self.database.as_ptr()) }
    }
}

pub(crate) fn text(words: &[c_char; WORDS]) -> String {
    // SAFETY: `words` starts as zeros, and snprintf(3) ends its output with one.
    unsafe { CStr::from_ptr(words.as_ptr()) }.to_string_lossy().into_owned()
}
