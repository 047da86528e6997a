//! The data path: reading and writing files through one trait with three back-ends.
//!
//! [`Io`] opens files and reads them: alone and blocking ([`IoFile::read_at`]), many at once and wide
//! ([`Io::read_batch`]), one after another and wide ([`Io::read_stream`]), or in the background ([`Io::submit`]). A result
//! that is shorter than what was asked means end of file, on every back-end and nothing else: short counts, `EINTR` and
//! `EAGAIN` are retried inside.
//!
//! | back-end | how | for |
//! |---|---|---|
//! | [`Uring`] | rings of `io_uring`: the caller of a batch keeps it in flight by itself | where the kernel has it |
//! | [`Threads`] | a pool of threads in `preadv` | everywhere else |
//! | [`SimDisk`] | virtual time, faults, computed files, power cuts; repeats from a seed | tests |
//!
//! [`best`] picks one of the first two, [`Choice`] also says why. [`Support`] reports what direct reads come to on a file:
//! found out by reading. [`AtomicWrites`] reports what writes come to that no crash tears ([`WriteMode::Atomic`]): found out
//! by writing to another file.
//!
//! Files are written through [`Io::open_writable`]: blocking ([`IoFile::write_at`]) or in the background
//! ([`Io::submit_writes`]); syncs, room and release of pages are [`IoFile`]'s, names and locks [`Io`]'s. Nothing is durable
//! before a sync has said so: of data and size the file's own, of names the directory's ([`Io::sync_dir`]). A write or sync
//! that failed is final, and not tried again.
//!
//! No lock is held over I/O. Nothing is written but what a caller writes (to probe a directory, or a file for atomic
//! writes, an unnamed file is made there and goes again); a file that is opened for reading is never made, cut or written.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod aligned;
mod api;
mod atomic;
mod atomic_limits;
mod directory;
mod error;
mod file;
mod job;
mod lock;
mod open;
mod pages;
mod past_cache;
mod pread;
mod probe;
mod process;
mod pwrite;
mod request;
mod scatter;
mod sim;
mod stream;
mod syscall;
mod target;
mod threads;
mod transfer;
mod uring;
mod write;

pub use aligned::AlignedBuf;
pub use api::Io;
pub use atomic::{AtomicWrites, writes_atomically};
pub use error::{Error, FileKind};
pub use file::{Access, FileStat, IoFile};
pub use lock::Lock;
pub use past_cache::{open_past_cache, open_writable_past_cache};
pub use probe::{Alignment, Choice, Support, best};
pub use process::Process;
pub use request::{BatchRead, OwnedRead, OwnedWrite};
pub use sim::{
    AnyFault, Damage, Fault, Hold, Persistence, RandomFaults, RandomWriteFaults, SimDisk, SimDiskBuilder,
    SimStats, Times, WriteFault, pattern,
};
pub use stream::{ReadStream, StreamRead};
pub use target::Target;
pub use threads::Threads;
pub use uring::Uring;
pub use write::{Create, Resident, WriteMode};
