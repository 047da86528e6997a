//! The helper: one thread in a process whose rules need one, for what the program's own threads are not to wait for.
//!
//! It has a table of descriptors of its own, and gets files as read-only descriptors made anew over a socket pair: so it holds
//! no open file of the program's (no lock of flock(2), no file that can't be executed since it is open for writing), and the program's
//! table shows one descriptor of ours, at a high number: the socket's sending end.
//!
//! Invariants:
//! 1. Nobody waits for the helper, but who makes it (until it has its own table), who ends the process in order ([`drain`]), a writer
//!    whose output goes, where writeback can't be seen ([`wait_dropped`]), who takes the last name of a file away that it has in hand,
//!    or unmounts ([`let_go`]), and a first thread that leaves its process to the others.
//!    All but the last of these waits are bounded.
//! 2. Nothing is sent to a descriptor that is not the socket made here: its inode is checked before.
//! 3. A child of fork has no helper until it has a file that needs one; nothing that its parent sent is done twice.
//! 4. It is made only where a file is opened or closed, or was written so much that it is needed ([`prepare`]), and not in a signal handler,
//!    which may do that, too: to make a thread takes the C library's allocator, which what was interrupted may hold. Nor is it made as
//!    the process ends.
//! 5. It fails by being off ([`is_off`]): [`send`] says `false`, and the caller does without. So it does for a file
//!    that the process may not open anew, since it gave up its rights. Without /proc, and where that can't be asked before (Linux 5.8), the
//!    helper is off from then on.

mod ahead;
mod channel;
pub mod closings;
mod drop;
mod forks;
mod handler;
mod held;
mod kept;
mod later;
mod start;
mod thread;
pub mod watch;

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::counters::Count;
use crate::{process, sys};

pub use ahead::{Ahead, Calls, Waited};
use drop::first_resident;
pub(crate) use drop::{begin, drop_written, write_and_drop, write_now_and_drop};
pub use forks::{Moment, forked};
pub(crate) use held::has_no_name;
pub use held::{FileHash, holds_some, let_go, let_go_of, let_go_of_all, let_go_of_kept};
pub use start::{Find, set_up};

/// Nanoseconds that the end of a process waits for the helper, at most: what its writers had in flight is written by then.
pub const DRAIN_MAX: u64 = 2_000_000_000;

/// Nanoseconds after which who waits for the helper checks whether it is still there.
const DROP_POLL: u64 = 100_000_000;

/// Not made yet.
const NONE: u32 = 0;
/// Being made.
const STARTING: u32 = 1;
/// Running.
const ON: u32 = 2;
/// Can't be made, or no more.
const OFF: u32 = 3;
/// Being made, and has a table of its own.
const OWN_TABLE: u32 = 4;
/// The bits of these.
const STATES: u32 = 7;

/// How it stands, and above the lowest bits how often it was made.
static STATE: AtomicU32 = AtomicU32::new(NONE);
/// The socket's sending end; -1 where there is none.
static SENDER: AtomicI32 = AtomicI32::new(-1);
/// Its inode.
static SENDER_INODE: AtomicU64 = AtomicU64::new(0);
/// Threads that are sending now.
static SENDING: AtomicU32 = AtomicU32::new(0);
/// Jobs sent, and jobs done: both wrap.
static SENT: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
/// Numbers of ranges that writers wait for: the last that was given out, the last that was seen to, and the last of which pages stayed.
static ASKED: AtomicU32 = AtomicU32::new(0);
static SEEN_TO: AtomicU32 = AtomicU32::new(0);
static STAYED: AtomicU32 = AtomicU32::new(0);
/// Files that the helper has in hand for longer: those that it watches, and those whose reader it follows.
static LASTING: AtomicU32 = AtomicU32::new(0);
/// Whether somebody waits for a change of `DONE`.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel can't be asked before who may open a file.
static ASKS_NOBODY: AtomicBool = AtomicBool::new(false);
/// Whether files could not be opened anew: then all is done without the helper.
static HELPLESS: AtomicBool = AtomicBool::new(false);

/// What is done with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// Has the range be written, and drops its pages, where `release` says so, a little later: when many files are in hand, or none
    /// came for a while. Else it only begins to write it. What is little is begun at once.
    AfterClose {
        /// Bytes; to the end of the file with an end of `u64::MAX`.
        range: Range<u64>,
        /// Whether its pages are dropped.
        release: bool,
        /// Counts the bytes that were dropped.
        count: Count,
    },
    /// Begins to write the range, waits until it is written, then drops its pages.
    Release {
        /// Bytes; to the end of the file with an end of `u64::MAX`.
        range: Range<u64>,
        /// Counts the bytes that were dropped.
        count: Count,
    },
    /// Has the range be written, drops its pages, and says so to who waits for that ([`wait_dropped`]).
    Drop {
        /// Bytes; to the end of the file with an end of `u64::MAX`.
        range: Range<u64>,
        /// Counts the bytes that were dropped.
        count: Count,
        /// The number that is waited for.
        number: u32,
    },
    /// Checks the file from time to time, for as long as the number names it: it is read or written by calls that are not seen.
    Watch {
        /// How it is open: `O_ACCMODE` of its flags, and `O_APPEND`.
        flags: c_int,
        /// Whether pages that came since the watch began are dropped behind whoever reads or writes.
        release: bool,
        /// Counts the bytes that were dropped.
        count: Count,
        /// Counts the bytes that were read or written, as far as the file's position shows them.
        used: Count,
        /// The entry of a temporary file that is kept: it is the helper's from then on.
        kept: Option<u32>,
    },
    /// Keeps a temporary file that was closed.
    Keep {
        /// Its entry.
        entry: u32,
    },
    /// Drops the range's pages, which something holds, as soon as they can be.
    Later {
        /// Bytes.
        range: Range<u64>,
        /// Counts the bytes that were dropped.
        count: Count,
    },
    /// Reads ahead of a reader.
    Ahead {
        /// Its place.
        index: u32,
    },
}

/// Has the helper see to the temporary files that it keeps: they are results.
pub fn keeps_results() {
    if is_there() {
        channel::send_check();
    }
}

/// Whether no helper can be had in this process.
pub fn is_off() -> bool {
    STATE.load(Ordering::Acquire) & STATES == OFF || HELPLESS.load(Ordering::Relaxed)
}

/// A file could not be named or opened anew: takes note, if no other can. `ENOENT` is also said of a descriptor that was closed behind
/// our back.
fn was_refused(error: sys::Errno) {
    let is_refused = matches!(error.0, libc::EACCES | libc::EPERM | libc::ENOENT);
    let is_for_all = || sys::stat(c"/proc/thread-self/fd").is_err();
    if is_refused && ((error.0 != libc::ENOENT && ASKS_NOBODY.load(Ordering::Relaxed)) || is_for_all()) {
        HELPLESS.store(true, Ordering::Relaxed);
    }
}

/// Whether this descriptor is the helper's own: the program has not opened it, so for the program it is not open. One load.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    fd >= 0 && SENDER.load(Ordering::Relaxed) == fd
}

/// Whether a descriptor that [`is_ours`] by its number is so indeed. It isn't in a process with a table of its own and this one's memory
/// (a child of vfork), or where the program has put something else there behind our back.
#[cold]
#[inline(never)]
pub fn is_really_ours(fd: c_int) -> bool {
    process::is_on() && channel::socket_inode(fd) == Some(SENDER_INODE.load(Ordering::Acquire))
}

/// The helper's own descriptor in the program's table, if there is one: what closes a whole range leaves it out.
pub fn ours() -> Option<c_int> {
    let fd = SENDER.load(Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// Gives the number up for the program, which is about to name it as the target of dup2 or dup3.
pub fn make_room(fd: c_int) {
    if is_ours(fd) && is_really_ours(fd) {
        channel::move_away(fd);
    }
}

/// Whether there is a helper.
pub fn is_there() -> bool {
    STATE.load(Ordering::Acquire) & STATES == ON && !HELPLESS.load(Ordering::Relaxed)
}

/// Makes the helper, unless there is one: where a file that needs it is opened, closed, or written so much that it is needed. Nowhere
/// else, since to make a thread takes the C library's allocator. In a signal handler it isn't made, but by a later call. Whether there is one now.
pub fn prepare() -> bool {
    match STATE.load(Ordering::Acquire) & STATES {
        ON => true,
        NONE => start::start(),
        _ => false,
    }
}

/// Gives the helper a job on the file that `fd` names. `false`: it was not taken, and won't be done: there is no helper, or no room.
/// Neither blocks nor takes memory.
pub fn send(fd: c_int, job: &Job) -> bool {
    is_there() && channel::send_job(fd, job)
}

/// Has the helper drop the range's pages as they are written, and waits for it, for so many nanoseconds at most. Whether all went, as
/// far as is known: what others wait for may be sent first. `false`, too, where there is no helper. The program's own table is no place
/// for that: to close a file there ends the process's record locks on it (fcntl(2)), however it came by them.
pub fn wait_dropped(fd: c_int, range: &Range<u64>, count: Count, max: u64) -> bool {
    let number = ASKED.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    let end = sys::now().saturating_add(max);
    let mut is_sent = false;
    loop {
        is_sent = is_sent || send(fd, &Job::Drop { range: range.clone(), count, number });
        let seen_to = SEEN_TO.load(Ordering::Acquire);
        if is_sent && seen_to >= number {
            return STAYED.load(Ordering::Acquire) != number;
        }
        if !is_there() || sys::now() >= end {
            return false;
        }
        // Where there was no room, there is some once a job is done.
        sys::futex_wait(&SEEN_TO, seen_to, if is_sent { DROP_POLL } else { 1_000_000 });
    }
}

/// The range of that number was seen to: all of its pages went, or some stayed.
fn saw_to(number: u32, all_went: bool) {
    if !all_went {
        STAYED.store(number, Ordering::Release);
    }
    SEEN_TO.fetch_max(number, Ordering::AcqRel);
    sys::futex_wake(&SEEN_TO);
}

/// Has all be done that the helper was given, and waits for it, for [`DRAIN_MAX`] at most: the process is about to end.
pub fn drain() {
    if STATE.load(Ordering::Acquire) & STATES == ON {
        channel::drain();
    }
}

/// Has all be done that the helper was given, and sends it away for good, before a call that fails where the process has a second
/// thread (`unshare`, `setns`), or that is to hold for all of its threads (a filter of system calls). Waits for both, for a few seconds
/// at most. Nothing where there is none, or in a child of vfork.
pub fn leave_now() {
    if STATE.load(Ordering::Acquire) & STATES == ON && process::is_here() {
        channel::drain();
        start::leave_and_wait();
    }
}

/// A thread is about to fork.
pub fn before_fork() {
    if STATE.load(Ordering::Acquire) & STATES == ON && process::is_on() {
        start::rest();
    }
    forks::before_fork();
}

/// This is a child of fork: it has its parent's descriptors and memory, and no helper.
pub fn after_fork() {
    SENDING.store(0, Ordering::Relaxed);
    channel::close_sender();
    forks::after_fork();
    held::after_fork();
    ahead::after_fork();
    closings::after_fork();
    SENT.store(0, Ordering::Relaxed);
    DONE.store(0, Ordering::Relaxed);
    ASKED.store(0, Ordering::Relaxed);
    SEEN_TO.store(0, Ordering::Relaxed);
    STAYED.store(0, Ordering::Relaxed);
    AWAITED.store(false, Ordering::Relaxed);
    LASTING.store(0, Ordering::Relaxed);
    start::after_fork();
    // The count of makings starts anew too.
    STATE.store(NONE, Ordering::Release);
}

/// A job is done.
fn done() {
    DONE.fetch_add(1, Ordering::AcqRel);
    if AWAITED.load(Ordering::Acquire) {
        sys::futex_wake(&DONE);
    }
}
