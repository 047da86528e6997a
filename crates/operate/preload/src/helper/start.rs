//! Starts the helper, and ends it when the process's first thread leaves.
//!
//! The helper is a thread of the C library, so that setuid(2) and similar calls reach it; it takes
//! no signal. The C library allocates memory for it, so it is never started where a signal handler
//! may be running. If the first thread ends alone (`pthread_exit` in `main`), the C library ends
//! the process with its last thread. That must not be the helper, whose descriptor table is empty.
//! So the first thread ends the helper, and waits for it, as it leaves.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void, pthread_attr_t, pthread_key_t, pthread_t, sigset_t};

use super::forks::ForkGuard;
use super::{
    HAS_LASTING_FILES, NONE, OFF, ON, OWN_TABLE, SENDER, SENDER_INODE, STARTING, STATE, STATES, channel,
    handler, helper_files, thread,
};
use crate::counters::Count;
use crate::{process, rules, sys};

/// Finds a function of the C library by its name; returns null if there is none.
pub type FindFunction = fn(&CStr) -> *mut c_void;

/// A process with a descriptor limit below this has no helper: it would miss the one descriptor.
const DESCRIPTORS_MIN: u64 = 512;
/// Maximum number of helpers that a process creates.
const HELPER_START_MAX: u32 = 4;
/// The longest wait for a new helper to have its own descriptor table, in nanoseconds.
const START_MAX_NS: u64 = 1_000_000_000;
/// The longest wait for the helper's end, and the time between two checks, in nanoseconds.
const LEAVE_MAX_NS: u64 = 1_000_000_000;
const PAUSE_NS: u64 = 100_000;
/// The longest time that a fork waits for the helper to have no file, in nanoseconds.
const REST_MAX_NS: u64 = 50_000_000;
/// After a fork that timed out, no fork waits for this many nanoseconds; and the end of that time.
const FORK_PATIENCE_NS: u64 = 2_000_000_000;
static BUSY_UNTIL: AtomicU64 = AtomicU64::new(0);
/// Attempts to tell the helper to leave.
const LEAVE_RETRY_MAX: u32 = 1000;
/// Bytes of its stack. Part of them holds the thread-local data of the program's libraries.
/// Untouched pages cost nothing.
const STACK_BYTES: usize = 512 << 10;

type ThreadBody = extern "C" fn(*mut c_void) -> *mut c_void;

/// Defines the functions of the C library that are called, and their lookup. Each returns an error
/// number, 0 for success.
macro_rules! functions {
    ($($field:ident: $name:literal ($($arg:ty),*);)*) => {
        #[derive(Clone, Copy)]
        struct ThreadFunctions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
            key: pthread_key_t,
        }

        impl ThreadFunctions {
            /// Looks them up; `None` if one is missing.
            ///
            /// # Safety
            ///
            /// `find` returns null or the C library's function of that name.
            unsafe fn find(find: FindFunction) -> Option<Self> {
                let found = |name: &CStr| Some(find(name)).filter(|at| !at.is_null());
                // SAFETY: each address is that of the C library's function, whose type POSIX
                // defines.
                let all = unsafe {
                    Self { $($field: transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> c_int>(found($name)?),)* key: 0 }
                };
                Some(all)
            }
        }
    };
}
functions! {
    create: c"pthread_create" (*mut pthread_t, *const pthread_attr_t, ThreadBody, *mut c_void);
    attr_init: c"pthread_attr_init" (*mut pthread_attr_t);
    attr_destroy: c"pthread_attr_destroy" (*mut pthread_attr_t);
    set_stack: c"pthread_attr_setstacksize" (*mut pthread_attr_t, usize);
    mask: c"pthread_sigmask" (c_int, *const sigset_t, *mut sigset_t);
    join: c"pthread_join" (pthread_t, *mut *mut c_void);
    detach: c"pthread_detach" (pthread_t);
    make_key: c"pthread_key_create" (*mut pthread_key_t, Option<unsafe extern "C" fn(*mut c_void)>);
    set_key: c"pthread_setspecific" (pthread_key_t, *const c_void);
}

struct ThreadStatic(UnsafeCell<Option<ThreadFunctions>>);

// SAFETY: written once, by `set_up`, before `CALLS_READY` is set; only read after that was seen.
unsafe impl Sync for ThreadStatic {}

static THREAD_CALLS: ThreadStatic = ThreadStatic(UnsafeCell::new(None));
static CALLS_READY: AtomicBool = AtomicBool::new(false);
static HELPERS_MADE: AtomicU32 = AtomicU32::new(0);
static HELPER_THREAD: AtomicUsize = AtomicUsize::new(0);
/// Whether the first thread has left.
static HAS_FIRST_LEFT: AtomicBool = AtomicBool::new(false);

fn calls() -> Option<ThreadFunctions> {
    // SAFETY: set before `CALLS_READY`, and never again.
    if CALLS_READY.load(Ordering::Acquire) { unsafe { *THREAD_CALLS.0.get() } } else { None }
}

/// Looks up the functions that create threads, in the process's first thread. The helper is off
/// without this call, or if `find` does not find all of them (an older C library in a program
/// without threads).
///
/// # Safety
///
/// Called at most once in a process, before there is another call into this library. `find` returns
/// null or the C library's function of that name.
pub unsafe fn set_up(find: FindFunction) {
    let make = || {
        // SAFETY: by this function's contract.
        let mut calls = unsafe { ThreadFunctions::find(find) }?;
        // SAFETY: the function of that name; the key lives for the call.
        (unsafe { (calls.make_key)(&raw mut calls.key, Some(first_thread_leaves)) } == 0).then_some(calls)
    };
    let Some(calls) = make() else {
        STATE.store(OFF, Ordering::Release);
        return;
    };
    // SAFETY: by this function's contract nobody reads it yet.
    unsafe { *THREAD_CALLS.0.get() = Some(calls) };
    CALLS_READY.store(true, Ordering::Release);
    mark(calls);
}

/// Marks this thread as the process's first, whose end is noticed.
fn mark(calls: ThreadFunctions) {
    // SAFETY: the key is ours; its value is never followed.
    unsafe { (calls.set_key)(calls.key, ptr::without_provenance(1)) };
}

/// Resets the state in a child of fork. The thread that forked is its child's first.
pub(super) fn after_fork() {
    HELPERS_MADE.store(0, Ordering::Relaxed);
    HELPER_THREAD.store(0, Ordering::Relaxed);
    HAS_FIRST_LEFT.store(false, Ordering::Relaxed);
    if let Some(calls) = calls() {
        mark(calls);
    }
}

/// Ends the helper as the process's first thread leaves the process to the others.
unsafe extern "C" fn first_thread_leaves(_: *mut c_void) {
    HAS_FIRST_LEFT.store(true, Ordering::Release);
    if process::is_here()
        && leave()
        && let Some(calls) = calls()
    {
        // SAFETY: the helper of this process, which nobody else waits for.
        unsafe { (calls.join)(HELPER_THREAD.swap(0, Ordering::AcqRel) as pthread_t, ptr::null_mut()) };
    }
}

/// Tells the helper to leave for good. Returns whether there was one.
fn leave() -> bool {
    let state = STATE.load(Ordering::Acquire);
    if state & STATES != ON
        || STATE.compare_exchange(state, state - ON + OFF, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return false;
    }
    // A full queue has room again once a request is done. A closed socket ends the helper, too,
    // unless a child kept the socket.
    for _ in 0..LEAVE_RETRY_MAX {
        if channel::send(channel::HelperOrder::Leave) {
            break;
        }
        sys::sleep(PAUSE_NS);
    }
    channel::close_sender();
    true
}

/// Tells the helper to leave for good, and waits, for at most [`LEAVE_MAX_NS`], until the kernel
/// does not know its thread any more.
pub(super) fn leave_and_wait() {
    let Some(calls) = calls() else { return };
    if !leave() {
        return;
    }
    let end = sys::now().saturating_add(LEAVE_MAX_NS);
    let mut is_there = true;
    while is_there && sys::now() < end {
        is_there = thread::is_there();
        if is_there {
            sys::sleep(PAUSE_NS);
        }
    }
    let thread = HELPER_THREAD.swap(0, Ordering::AcqRel) as pthread_t;
    // SAFETY: the helper of this process, which nobody else waits for. It is joined only if it has
    // ended.
    unsafe {
        if is_there {
            (calls.detach)(thread);
        } else {
            (calls.join)(thread, ptr::null_mut());
        }
    }
}

/// Sends the helper away until it is needed again, if it has no file, or will have none soon: a
/// forking program would otherwise see a second thread.
pub(super) fn rest() {
    if HAS_LASTING_FILES.load(Ordering::Acquire) > 0 || handler::may_be_in_handler() {
        return;
    }
    let now = sys::now();
    let end = now.saturating_add(REST_MAX_NS);
    if helper_files::holds_some()
        && (now < BUSY_UNTIL.load(Ordering::Relaxed) || !channel::send(channel::HelperOrder::Finish))
    {
        return;
    }
    while helper_files::holds_some() {
        let now = sys::now();
        if now >= end {
            BUSY_UNTIL.store(now.saturating_add(FORK_PATIENCE_NS), Ordering::Relaxed);
            return;
        }
        sys::sleep(PAUSE_NS);
    }
    leave_and_wait();
    let state = STATE.load(Ordering::Acquire);
    if state & STATES == OFF
        && HELPER_THREAD.load(Ordering::Acquire) == 0
        && !HAS_FIRST_LEFT.load(Ordering::Acquire)
    {
        let _ = HELPERS_MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| made.checked_sub(1));
        let _ = STATE.compare_exchange(state, state - OFF + NONE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Creates the helper. `false`: another thread is creating it, or it cannot be created.
pub(super) fn start() -> bool {
    let state = STATE.load(Ordering::Acquire);
    let Some(calls) = calls() else { return false };
    if sys::descriptor_limit() < DESCRIPTORS_MIN || sys::is_on_other_stack() || handler::may_be_in_handler() {
        return false;
    }
    // The helper's table begins as a copy of the program's. Closing a file there flushes it as if
    // the program closed it.
    if rules::has_close_error_risk() {
        return false;
    }
    let starting = (state & !STATES).wrapping_add(STATES + 1) | STARTING;
    if state & STATES != NONE
        || HAS_FIRST_LEFT.load(Ordering::Acquire)
        || STATE.compare_exchange(state, starting, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return false;
    }
    let is_on = HELPERS_MADE.fetch_add(1, Ordering::Relaxed) < HELPER_START_MAX && make(calls, starting);
    if !is_on {
        STATE.store(starting - STARTING + OFF, Ordering::Release);
        process::count(Count::Failures, 1);
    }
    if is_on && HAS_FIRST_LEFT.load(Ordering::Acquire) {
        leave();
    }
    is_on
}

fn make(calls: ThreadFunctions, starting: u32) -> bool {
    let _blocked = sys::SignalsBlocked::begin();
    // Held until the receiving end is closed and the other one is known. The helper is created all
    // the same if a fork takes long.
    let _guard = ForkGuard::begin();
    let Ok((sending, receiving)) = channel::pair() else { return false };
    helper_files::reset();
    let inode = channel::socket_inode(sending);
    if inode.is_some() && make_thread(calls, receiving, starting) {
        let end = sys::now().saturating_add(START_MAX_NS);
        while STATE.load(Ordering::Acquire) == starting && sys::now() < end {
            sys::futex_wait(&STATE, starting, START_MAX_NS);
        }
    }
    // The helper has its own by now, or won't need it.
    sys::close(receiving);
    SENDER_INODE.store(inode.unwrap_or_default(), Ordering::Release);
    SENDER.store(sending, Ordering::Release);
    // From here on other threads send.
    let has_own_table = starting - STARTING + OWN_TABLE;
    let is_on = STATE
        .compare_exchange(has_own_table, starting - STARTING + ON, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok();
    if !is_on {
        SENDER.store(-1, Ordering::Release);
        sys::close(sending);
    }
    is_on
}

/// Creates the thread, with all of the program's signals blocked.
fn make_thread(calls: ThreadFunctions, receiving: c_int, starting: u32) -> bool {
    let argument = ptr::without_provenance_mut((starting as usize) << 32 | receiving as usize);
    let mut attr = MaybeUninit::<pthread_attr_t>::uninit();
    let mut old = MaybeUninit::<sigset_t>::zeroed();
    // A number or a pointer, depending on the C library.
    let mut thread = MaybeUninit::<pthread_t>::uninit();
    // All signals: the C library leaves out those that it needs.
    let all = MaybeUninit::<[u8; size_of::<sigset_t>()]>::new([0xff; size_of::<sigset_t>()]);
    // SAFETY: each is the C library's function and gets what POSIX requires: `attr` is initialised
    // before it is used, and destroyed; `all` has the size of a set of signals, in which all bits
    // are valid; the body takes its argument for a number.
    let made = unsafe {
        if (calls.attr_init)(attr.as_mut_ptr()) != 0 {
            return false;
        }
        if (calls.mask)(libc::SIG_SETMASK, all.as_ptr().cast(), old.as_mut_ptr()) != 0 {
            (calls.attr_destroy)(attr.as_mut_ptr());
            return false;
        }
        // If so small a stack is refused, the default size.
        let small = (calls.set_stack)(attr.as_mut_ptr(), STACK_BYTES) == 0
            && (calls.create)(thread.as_mut_ptr(), attr.as_ptr(), thread::body, argument) == 0;
        let made = small || (calls.create)(thread.as_mut_ptr(), ptr::null(), thread::body, argument) == 0;
        (calls.mask)(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut());
        (calls.attr_destroy)(attr.as_mut_ptr());
        made
    };
    if made {
        // SAFETY: written by the call that created it.
        let before = HELPER_THREAD.swap(unsafe { thread.assume_init() } as usize, Ordering::AcqRel);
        if before != 0 {
            // SAFETY: the helper before this one, which has ended or is about to, and which nobody
            // waits for.
            unsafe { (calls.detach)(before as pthread_t) };
        }
    }
    made
}
