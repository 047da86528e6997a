//! The C interface. `include/pagekeeper.h` is its documentation and its contract.
//!
//! Invariants:
//!
//! * Nothing unwinds into C. An error is a status, with a message and errno for the calling thread.
//! * A pointer from C is NULL or points to the data that the header specifies. All `unsafe` here
//!   depends on that (`pointers`).
//! * A structure is read and written only up to the size that its caller knows.
//! * A handle with a position or changes of its own is used by one thread at a time (`exclusive`).

#![allow(missing_docs, reason = "each function and structure is documented in the header, which people read")]
#![allow(unreachable_pub, reason = "functions are exported by their names")]
#![allow(
    unsafe_code,
    reason = "exported names; the blocks are in `pointers` and where a buffer outlives its call"
)]

#[cfg(not(target_os = "linux"))]
compile_error!("libpagekeeper needs Linux: its rules are about the Linux page cache");

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("libpagekeeper needs x86_64 or aarch64: `former_names` has a jump for each of these alone");

mod binlog;
mod bulk;
mod cache;
mod call;
mod exclusive;
#[doc(hidden)]
pub mod file;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod former_names;
mod map;
mod owned;
mod pages;
mod pointers;
mod queue;
mod read_txn;
mod redo;
mod status;
mod store;
mod task;
mod write_txn;
#[cfg(test)]
mod wrong_arguments;

/// The version as a NUL-terminated string.
const VERSION_TEXT: &std::ffi::CStr =
    match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("the version has no zero in it"),
    };

#[unsafe(no_mangle)]
pub extern "C" fn pk_version() -> *const std::ffi::c_char {
    VERSION_TEXT.as_ptr()
}

/// The structures of the header with their sizes in bytes in Rust: a test compares them with C's.
#[doc(hidden)]
pub const STRUCT_SIZES: [(&str, usize); 16] = [
    ("pk_cache_options", size_of::<cache::CacheOptions>()),
    ("pk_cache_stats", size_of::<cache::CacheStats>()),
    ("pk_read", size_of::<file::BatchRead>()),
    ("pk_completion", size_of::<queue::ReadCompletion>()),
    ("pk_bulk_options", size_of::<bulk::BulkOptions>()),
    ("pk_bulk_report", size_of::<bulk::BulkReport>()),
    ("pk_written_part", size_of::<bulk::pacer::WrittenPart>()),
    ("pk_redo_options", size_of::<redo::RedoOptions>()),
    ("pk_position", size_of::<binlog::BinlogPosition>()),
    ("pk_record", size_of::<binlog::BinlogRecord>()),
    ("pk_event", size_of::<binlog::FollowerEvent>()),
    ("pk_binlog_options", size_of::<binlog::BinlogOptions>()),
    ("pk_store_options", size_of::<store::StoreOptions>()),
    ("pk_store_stat", size_of::<store::StoreStats>()),
    ("pk_residency", size_of::<pages::Residency>()),
    ("pk_status", size_of::<status::Status>()),
];
