//! The data path: reading and writing files through one trait with two back-ends.
//!
//! [`Io`] opens files and reads them: one blocking read ([`IoFile::read_at`]), many in parallel
//! ([`Io::read_batch`]), a stream with many in flight ([`Io::read_stream`]), or in the background
//! ([`Io::submit`]). A result that is shorter than requested means end of file, on every back-end:
//! short reads, `EINTR` and `EAGAIN` are retried inside.
//!
//! | back-end | how | for |
//! |---|---|---|
//! | [`Uring`] | rings of `io_uring`: the caller of a batch keeps it in flight by itself | where the kernel has it |
//! | [`Threads`] | a pool of threads in `preadv` | everywhere else |
//!
//! [`best`] picks one of them; [`BackendChoice`] also says why. [`DirectSupport`] tests direct
//! reads of a file, [`WriteSupport`] the ways of writing that leave no pages in the cache.
//! [`AtomicWrites`] tests writes that no crash tears ([`WriteMode::Atomic`]), on another file. The
//! crate `pagekeeper-simdisk` has a third back-end, for tests.
//!
//! Files are written through [`Io::open_writable`]: blocking ([`IoFile::write_at`]) or in the
//! background ([`Io::submit_writes`]). [`IoFile`] also syncs, allocates space and releases pages;
//! [`Io`] handles names and locks. Nothing is durable before a sync: data and size need a sync of
//! the file, names one of the directory ([`Io::sync_dir`]). A failed write or sync is final, and
//! not retried.
//!
//! No lock is held over I/O. The crate writes only what a caller writes, except for an unnamed file
//! that tests a directory or atomic writes and is freed at once. A file that is opened for reading
//! is never created, truncated or written.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper-io needs Linux: its rules are about the Linux page cache");

mod aligned;
mod api;
pub mod backend;
mod error;
mod file;
mod files;
mod per_process;
mod process;
mod request;
mod threads;
mod transfers;
mod uring;
mod write;

pub use aligned::AlignedBuf;
pub use api::Io;
pub use error::{Error, FileKind};
pub use file::{Access, FileStat, IoFile};
pub use files::atomic::{AtomicWrites, writes_atomically};
pub use files::lock::FileLock;
pub use files::past_cache::{open_past_cache, open_writable_past_cache};
pub use files::probe::{Alignment, BackendChoice, DirectSupport, best};
pub use files::write_support::{ProbeResult, WriteSupport, has_real_files};
pub use per_process::PerProcess;
pub use process::Process;
pub use request::{BatchRead, OwnedRead, OwnedWrite};
pub use threads::Threads;
pub use transfers::stream::{ReadStream, StreamRead};
pub use transfers::target::ReadTarget;
pub use uring::Uring;
pub use write::{Create, ResidentBytes, WriteMode};
