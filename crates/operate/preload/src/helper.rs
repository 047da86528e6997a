//! The helper: one thread, in processes whose rules need one, for work that the program's own
//! threads must not wait for.
//!
//! It has a descriptor table of its own. It gets files as descriptors over a socket pair, and
//! reopens each read-only. So it holds no open file description of the program: no lock of
//! flock(2), and no open-for-writing that would make a file unexecutable. The program's table shows
//! one descriptor of ours, at a high number: the socket's sending end.
//!
//! Invariants:
//! 1. Nobody waits for the helper, with these exceptions:
//!    - the thread that creates it, until the helper has its own table;
//!    - an orderly end of the process ([`drain`]);
//!    - a writer whose output is dropped, where writeback cannot be seen ([`wait_dropped`]);
//!    - a thread that removes the last name of a file the helper has, or unmounts ([`let_go`]);
//!    - a fork, until the helper is idle ([`before_fork`]), and a call that needs a process of one
//!      thread ([`leave_now`]);
//!    - a first thread that leaves its process to the others. This wait alone has no bound.
//! 2. Nothing is sent to a descriptor that is not the socket made here: its inode is checked
//!    before.
//! 3. A child of fork has no helper until it has a file that needs one. Nothing that its parent
//!    sent is done twice.
//! 4. The helper is created only where a file is opened or closed, or was written so much that it
//!    is needed ([`prepare`]). It is not created in a signal handler, which may do the same:
//!    creating a thread takes the C library's allocator, which the interrupted code may hold. Nor
//!    is it created as the process ends.
//! 5. It fails by being off ([`is_off`]): [`send`] returns `false`, and the caller does without.
//!    The same holds for a single file that the process may not open again because it gave up its
//!    privileges. The helper is off for good without /proc, or if an open is refused on a kernel
//!    that cannot be asked for access before (older than Linux 5.8).

mod ahead;
mod channel;
mod closed;
pub mod closings;
mod drop;
mod forks;
mod handler;
mod helper_files;
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

pub use ahead::{CallKind, ReadAhead, WaitOutcome};
pub(crate) use drop::{begin, drop_written, write_now_and_drop};
pub use forks::{ForkGuard, forked};
pub use handler::may_be_in_handler;
pub use helper_files::{FileHash, holds_some, let_go, let_go_of, let_go_of_all, let_go_of_kept};
pub use start::{FindFunction, set_up};

/// The longest time that the end of a process waits for the helper, in nanoseconds: enough to write
/// what its writers had in flight.
pub const DRAIN_MAX_NS: u64 = 2_000_000_000;

/// Nanoseconds after which a thread that waits for the helper checks whether it still exists.
const DROP_POLL: u64 = 1_000_000;

/// Not created yet.
const NONE: u32 = 0;
/// Being created.
const STARTING: u32 = 1;
/// Running.
const ON: u32 = 2;
/// Cannot be created, or has left for good.
const OFF: u32 = 3;
/// Being created, and has its own table.
const OWN_TABLE: u32 = 4;
/// The bits of these states.
const STATES: u32 = 7;

/// The state; the bits above count how often the helper was created.
static STATE: AtomicU32 = AtomicU32::new(NONE);
/// The socket's sending end; -1 if there is none.
static SENDER: AtomicI32 = AtomicI32::new(-1);
/// The sending end's inode.
static SENDER_INODE: AtomicU64 = AtomicU64::new(0);
/// Threads that are sending now.
static SENDING: AtomicU32 = AtomicU32::new(0);
/// Requests sent, and requests done. Both wrap.
static REQUESTS_SENT: AtomicU32 = AtomicU32::new(0);
static REQUESTS_DONE: AtomicU32 = AtomicU32::new(0);
/// Numbers of ranges that writers wait for: the last one given out, the last one done, and the last
/// one of which pages stayed.
static RANGES_ASKED: AtomicU32 = AtomicU32::new(0);
static SEEN_TO: AtomicU32 = AtomicU32::new(0);
static STAYED: AtomicU32 = AtomicU32::new(0);
/// Whether the helper has files for longer: watched ones, those whose reader it follows, and those
/// with pages to retry.
static HAS_LASTING_FILES: AtomicU32 = AtomicU32::new(0);
/// Whether a thread waits for a change of `REQUESTS_DONE`.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel cannot tell before an open whether it is allowed.
static NO_ACCESS_PRECHECK: AtomicBool = AtomicBool::new(false);
/// Whether opening files again was refused: then all work is done without the helper.
static HELPER_UNAVAILABLE: AtomicBool = AtomicBool::new(false);

/// A request to the helper about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelperRequest {
    /// Writes the range, and drops its pages if `release` says so. The helper does so a little
    /// later: when it has many closed files, or no request came for a while. It starts to write a
    /// small range at once.
    AfterClose {
        /// Bytes; `u64::MAX` as the end means the end of the file.
        range: Range<u64>,
        /// Whether its pages are dropped.
        release: bool,
        /// Counts the bytes dropped.
        count: Count,
    },
    /// Writes the range, waits until it is written, then drops its pages.
    Release {
        /// Bytes; `u64::MAX` as the end means the end of the file.
        range: Range<u64>,
        /// Counts the bytes dropped.
        count: Count,
    },
    /// Writes the range, drops its pages, and notifies the thread that waits ([`wait_dropped`]).
    Drop {
        /// Bytes; `u64::MAX` as the end means the end of the file.
        range: Range<u64>,
        /// Counts the bytes dropped.
        count: Count,
        /// The number that the thread waits for.
        number: u32,
    },
    /// Checks the file from time to time for as long as the descriptor names it: it is read or
    /// written by calls that are not hooked.
    Watch {
        /// `O_ACCMODE` and `O_APPEND` of its open flags.
        flags: c_int,
        /// Counts the bytes dropped of pages that came since the watch began.
        count: Count,
        /// Counts the bytes read or written, as far as the file offset shows them.
        used: Count,
        /// The entry of a temporary file that is kept. From then on it belongs to the helper.
        kept: Option<u8>,
    },
    /// Keeps a temporary file that was closed.
    Keep {
        /// Its entry.
        entry: u8,
    },
    /// Drops the range's pages, which something holds, as soon as they can be dropped.
    DropLater {
        /// Bytes.
        range: Range<u64>,
        /// Counts the bytes dropped.
        count: Count,
    },
    /// Reads ahead of a reader.
    ReadAhead {
        /// The reader's place.
        index: u32,
    },
}

/// Notifies the helper that the temporary files it keeps are results.
pub fn keeps_results() {
    if is_there() {
        channel::send(channel::HelperOrder::Check);
    }
}

/// Whether no helper is available in this process.
pub fn is_off() -> bool {
    STATE.load(Ordering::Acquire) & STATES == OFF || HELPER_UNAVAILABLE.load(Ordering::Relaxed)
}

/// Records that a file could not be named or reopened, if that holds for all files. `ENOENT`
/// also comes from a descriptor that the program closed by a call we do not see.
fn was_refused(error: sys::Errno) {
    let is_refused = matches!(error.0, libc::EACCES | libc::EPERM | libc::ENOENT);
    let is_for_all = || sys::stat(c"/proc/thread-self/fd").is_err();
    if is_refused && ((error.0 != libc::ENOENT && NO_ACCESS_PRECHECK.load(Ordering::Relaxed)) || is_for_all())
    {
        HELPER_UNAVAILABLE.store(true, Ordering::Relaxed);
    }
}

/// Whether this descriptor is the helper's own. The program has not opened it, so for the program
/// it is not open. One load.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    fd >= 0 && SENDER.load(Ordering::Relaxed) == fd
}

/// Whether a descriptor that [`is_ours`] by its number is the helper's indeed. It is not in a child
/// of vfork, which has a table of its own and this process's memory. Nor is it if the program has
/// put another file there by a call we do not see.
#[cold]
#[inline(never)]
pub fn is_really_ours(fd: c_int) -> bool {
    process::is_on() && channel::socket_inode(fd) == Some(SENDER_INODE.load(Ordering::Acquire))
}

/// Returns the helper's own descriptor in the program's table, if there is one. Calls that close a
/// whole range leave it out.
pub fn ours() -> Option<c_int> {
    let fd = SENDER.load(Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// Frees the number for the program, which is about to name it as the target of dup2 or dup3.
pub fn make_room(fd: c_int) {
    if is_ours(fd) && is_really_ours(fd) {
        channel::move_away(fd);
    }
}

/// Whether there is a helper.
pub fn is_there() -> bool {
    STATE.load(Ordering::Acquire) & STATES == ON && !HELPER_UNAVAILABLE.load(Ordering::Relaxed)
}

/// Creates the helper unless there is one; returns whether there is one now. Call it only where a
/// file that needs the helper is opened or closed, or was written so much that it is needed:
/// creating a thread takes the C library's allocator. In a signal handler it creates none; a later
/// call does.
pub fn prepare() -> bool {
    match STATE.load(Ordering::Acquire) & STATES {
        ON => true,
        NONE => start::start(),
        _ => false,
    }
}

/// Sends the helper a request on the file that `fd` names. `false`: it was not taken and won't be
/// done, because there is no helper or its queue is full. Neither blocks nor allocates.
pub fn send(fd: c_int, request: &HelperRequest) -> bool {
    is_there() && channel::send_request(fd, request)
}

/// Has the helper write the range and drop its pages, and waits for that, for at most `max`
/// nanoseconds. Returns whether all pages went, as far as is known; `false` also without a helper.
/// Other threads' ranges may be done first. The program's own table must not be used for this:
/// closing a file there releases the process's record locks on it (fcntl(2)), whichever descriptor
/// took them.
pub fn wait_dropped(fd: c_int, range: &Range<u64>, count: Count, max: u64) -> bool {
    let number = RANGES_ASKED.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    let mut is_sent = false;
    let went = sys::wait_until(&SEEN_TO, DROP_POLL, max, |seen_to| {
        // A full queue has room again once the helper has done a request.
        is_sent = is_sent || send(fd, &HelperRequest::Drop { range: range.clone(), count, number });
        if is_sent && seen_to >= number {
            return Some(STAYED.load(Ordering::Acquire) != number);
        }
        (!is_there()).then_some(false)
    });
    went == Some(true)
}

/// Records that the range of that number is done: all of its pages went, or some stayed.
fn saw_to(number: u32, all_went: bool) {
    if !all_went {
        STAYED.store(number, Ordering::Release);
    }
    SEEN_TO.fetch_max(number, Ordering::AcqRel);
    sys::futex_wake(&SEEN_TO);
}

/// Has the helper finish all work, and waits for that, for at most [`DRAIN_MAX_NS`]: the process is
/// about to end.
pub fn drain() {
    if STATE.load(Ordering::Acquire) & STATES == ON {
        channel::drain();
    }
}

/// Has the helper finish all work and leave for good. Called before a call that fails in a process
/// with a second thread (`unshare`, `setns`), or that must hold for all of its threads (a seccomp
/// filter). Waits for both, for a few seconds at most. Does nothing without a helper, or in a child
/// of vfork.
pub fn leave_now() {
    if STATE.load(Ordering::Acquire) & STATES == ON && process::is_here() {
        channel::drain();
        start::leave_and_wait();
    }
}

/// Prepares the helper for a fork by this thread.
pub fn before_fork() {
    if STATE.load(Ordering::Acquire) & STATES == ON && process::is_on() {
        start::rest();
    }
    forks::before_fork();
}

/// Resets the state in a child of fork: it has its parent's descriptors and memory, and no helper.
pub fn after_fork() {
    SENDING.store(0, Ordering::Relaxed);
    channel::close_sender();
    forks::after_fork();
    helper_files::after_fork();
    ahead::after_fork();
    closings::after_fork();
    REQUESTS_SENT.store(0, Ordering::Relaxed);
    REQUESTS_DONE.store(0, Ordering::Relaxed);
    RANGES_ASKED.store(0, Ordering::Relaxed);
    SEEN_TO.store(0, Ordering::Relaxed);
    STAYED.store(0, Ordering::Relaxed);
    AWAITED.store(false, Ordering::Relaxed);
    HAS_LASTING_FILES.store(0, Ordering::Relaxed);
    start::after_fork();
    // This also resets the count of created helpers.
    STATE.store(NONE, Ordering::Release);
}

/// Records that a request is done.
fn done() {
    REQUESTS_DONE.fetch_add(1, Ordering::AcqRel);
    if AWAITED.load(Ordering::Acquire) {
        sys::futex_wake(&REQUESTS_DONE);
    }
}
