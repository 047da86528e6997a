//! The data path: reading files through one trait with three back-ends.
//!
//! [`Io`] opens files and reads them: alone and blocking ([`IoFile::read_at`]), many at once and wide
//! ([`Io::read_batch`]), or in the background ([`Io::submit`]). A result that is shorter than what was asked means end
//! of file, on every back-end and nothing else: short counts, `EINTR` and `EAGAIN` are gone on with inside.
//!
//! | back-end | how | for |
//! |---|---|---|
//! | [`Uring`] | rings of `io_uring`: the caller of a batch keeps it in flight by itself | where the kernel has it |
//! | [`Threads`] | a pool of threads in `preadv` | everywhere else |
//! | [`SimDisk`] | virtual time, faults, computed files; repeats from a seed | tests |
//!
//! [`best`] picks one of the first two, [`Choice`] also says why. [`Support`] tells what direct reads come to on a file:
//! found out by reading.
//!
//! No lock is held over I/O. The library only reads: no file of others is made, cut or written (to probe a directory it
//! makes an unnamed file of its own there).

mod api;
mod error;
mod job;
mod open;
mod pread;
mod probe;
mod scatter;
mod sim;
mod target;
#[cfg(test)]
mod testing;
mod threads;
mod transfer;
mod uring;

pub use api::{Access, BatchRead, FileStat, Io, IoFile, OwnedRead};
pub use error::{Error, FileKind};
pub use probe::{Alignment, Choice, Support, best};
pub use sim::{Fault, Hold, RandomFaults, SimDisk, SimDiskBuilder, SimStats, Times, pattern};
pub use target::Target;
pub use threads::Threads;
pub use uring::Uring;
