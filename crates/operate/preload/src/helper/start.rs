//! Starts the helper, and ends it when the process's first thread leaves.
//!
//! The helper is a thread of the C library, so that setuid(2) and similar calls reach it; it takes no signal. The C library allocates
//! memory for it, so it is never started where a signal handler may be running. If the first thread ends alone (`pthread_exit` in `main`),
//! the C library ends the process with its last thread. That must not be the helper, whose descriptor table is empty. So the first thread
//! ends the helper, and waits for it, as it leaves.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void, pthread_attr_t, pthread_key_t, pthread_t, sigset_t};

use super::forks::ForkGuard;
use super::{
    LASTING, NONE, OFF, ON, OWN_TABLE, SENDER, SENDER_INODE, STARTING, STATE, STATES, channel, handler,
    helper_files, thread,
};
use crate::counters::Count;
use crate::{process, rules, sys};

/// Finds a function of the C library by its name; returns null if there is none.
pub type Find = fn(&CStr) -> *mut c_void;

/// A process with a descriptor limit below this has no helper: it would miss the one descriptor.
const FEW: u64 = 512;
/// The most helpers that a process creates.
const HELPER_START_MAX: u32 = 4;
/// The longest wait for a new helper to have its own descriptor table, in nanoseconds.
const START_MAX: u64 = 1_000_000_000;
/// The longest wait for the helper's end, and the time between two checks, in nanoseconds.
const LEAVE_MAX: u64 = 1_000_000_000;
const PAUSE: u64 = 100_000;
/// The longest time that a fork waits for the helper to have no file, in nanoseconds.
const REST_MAX: u64 = 50_000_000;
/// After a fork that timed out, no fork waits for this many nanoseconds; and the end of that time.
const BUSY: u64 = 2_000_000_000;
static BUSY_UNTIL: AtomicU64 = AtomicU64::new(0);
/// Attempts to tell the helper to leave.
const LEAVE_RETRY_MAX: u32 = 1000;
/// Bytes of its stack. Part of them holds the thread-local data of the program's libraries. Untouched pages cost nothing.
const STACK: usize = 512 << 10;

type Body = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Body, *mut c_void) -> c_int;
type Attr = unsafe extern "C" fn(*mut pthread_attr_t) -> c_int;
type SetStack = unsafe extern "C" fn(*mut pthread_attr_t, usize) -> c_int;
type Mask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;
type Join = unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;
type Detach = unsafe extern "C" fn(pthread_t) -> c_int;
type MakeKey = unsafe extern "C" fn(*mut pthread_key_t, Option<unsafe extern "C" fn(*mut c_void)>) -> c_int;
type SetKey = unsafe extern "C" fn(pthread_key_t, *const c_void) -> c_int;

/// The functions of the C library that are called.
#[derive(Clone, Copy)]
struct ThreadFunctions {
    create: Create,
    attr_init: Attr,
    attr_destroy: Attr,
    set_stack: SetStack,
    mask: Mask,
    join: Join,
    detach: Detach,
    set_key: SetKey,
    key: pthread_key_t,
}

struct Static(UnsafeCell<Option<ThreadFunctions>>);

// SAFETY: written once, by `set_up`, before `READY` is set; only read after that was seen.
#[allow(unsafe_code, reason = "a static that is set once")]
unsafe impl Sync for Static {}

static CALLS: Static = Static(UnsafeCell::new(None));
static READY: AtomicBool = AtomicBool::new(false);
static MADE: AtomicU32 = AtomicU32::new(0);
static THREAD: AtomicUsize = AtomicUsize::new(0);
/// Whether the first thread has left.
static LEFT: AtomicBool = AtomicBool::new(false);

#[allow(unsafe_code, reason = "reads a static that is set once")]
fn calls() -> Option<ThreadFunctions> {
    // SAFETY: set before `READY`, and never again.
    if READY.load(Ordering::Acquire) { unsafe { *CALLS.0.get() } } else { None }
}

/// Looks up the functions that create threads, in the process's first thread. The helper is off without this call, or if `find` does not
/// find all of them (an older C library in a program without threads).
///
/// # Safety
///
/// Called at most once in a process, before there is another call into this library. `find` returns null or the C library's function of
/// that name.
#[allow(unsafe_code, reason = "takes addresses for functions")]
pub unsafe fn set_up(find: Find) {
    let found = |name: &CStr| Some(find(name)).filter(|at| !at.is_null());
    let make = || {
        let mut key: pthread_key_t = 0;
        // SAFETY: by this function's contract each address is that of the C library's function, whose type POSIX defines.
        let (calls, made) = unsafe {
            let make_key = core::mem::transmute::<*mut c_void, MakeKey>(found(c"pthread_key_create")?);
            let calls = ThreadFunctions {
                create: core::mem::transmute::<*mut c_void, Create>(found(c"pthread_create")?),
                attr_init: core::mem::transmute::<*mut c_void, Attr>(found(c"pthread_attr_init")?),
                attr_destroy: core::mem::transmute::<*mut c_void, Attr>(found(c"pthread_attr_destroy")?),
                set_stack: core::mem::transmute::<*mut c_void, SetStack>(found(
                    c"pthread_attr_setstacksize",
                )?),
                mask: core::mem::transmute::<*mut c_void, Mask>(found(c"pthread_sigmask")?),
                join: core::mem::transmute::<*mut c_void, Join>(found(c"pthread_join")?),
                detach: core::mem::transmute::<*mut c_void, Detach>(found(c"pthread_detach")?),
                set_key: core::mem::transmute::<*mut c_void, SetKey>(found(c"pthread_setspecific")?),
                key: 0,
            };
            (calls, make_key(&raw mut key, Some(first_thread_leaves)))
        };
        (made == 0).then_some(ThreadFunctions { key, ..calls })
    };
    let Some(calls) = make() else {
        STATE.store(OFF, Ordering::Release);
        return;
    };
    // SAFETY: by this function's contract nobody reads it yet.
    unsafe { *CALLS.0.get() = Some(calls) };
    READY.store(true, Ordering::Release);
    mark(calls);
}

/// Marks this thread as the process's first, whose end is noticed.
#[allow(unsafe_code, reason = "calls the C library")]
fn mark(calls: ThreadFunctions) {
    // SAFETY: the key is ours; its value is never followed.
    unsafe { (calls.set_key)(calls.key, ptr::without_provenance(1)) };
}

/// Resets the state in a child of fork. The thread that forked is its child's first.
pub(super) fn after_fork() {
    MADE.store(0, Ordering::Relaxed);
    THREAD.store(0, Ordering::Relaxed);
    LEFT.store(false, Ordering::Relaxed);
    if let Some(calls) = calls() {
        mark(calls);
    }
}

/// Ends the helper as the process's first thread leaves the process to the others.
#[allow(unsafe_code, reason = "called by the C library; waits for the helper's end")]
unsafe extern "C" fn first_thread_leaves(_: *mut c_void) {
    LEFT.store(true, Ordering::Release);
    if process::is_here()
        && leave()
        && let Some(calls) = calls()
    {
        // SAFETY: the helper of this process, which nobody else waits for.
        unsafe { (calls.join)(THREAD.swap(0, Ordering::AcqRel) as pthread_t, ptr::null_mut()) };
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
    // A full queue has room again once a request is done. A closed socket ends the helper, too, unless a child kept the socket.
    for _ in 0..LEAVE_RETRY_MAX {
        if channel::send(channel::Order::Leave) {
            break;
        }
        sys::sleep(PAUSE);
    }
    channel::close_sender();
    true
}

/// Tells the helper to leave for good, and waits, for at most [`LEAVE_MAX`], until the kernel does not know its thread any more.
#[allow(unsafe_code, reason = "calls the C library")]
pub(super) fn leave_and_wait() {
    let Some(calls) = calls() else { return };
    if !leave() {
        return;
    }
    let end = sys::now().saturating_add(LEAVE_MAX);
    let mut is_there = true;
    while is_there && sys::now() < end {
        is_there = thread::is_there();
        if is_there {
            sys::sleep(PAUSE);
        }
    }
    let thread = THREAD.swap(0, Ordering::AcqRel) as pthread_t;
    // SAFETY: the helper of this process, which nobody else waits for. It is joined only if it has ended.
    unsafe {
        if is_there {
            (calls.detach)(thread);
        } else {
            (calls.join)(thread, ptr::null_mut());
        }
    }
}

/// Sends the helper away until it is needed again, if it has no file, or will have none soon: a forking program would otherwise see a
/// second thread.
pub(super) fn rest() {
    if LASTING.load(Ordering::Acquire) > 0 || handler::may_be_under_way() {
        return;
    }
    let now = sys::now();
    let end = now.saturating_add(REST_MAX);
    if helper_files::holds_some()
        && (now < BUSY_UNTIL.load(Ordering::Relaxed) || !channel::send(channel::Order::Finish))
    {
        return;
    }
    while helper_files::holds_some() {
        let now = sys::now();
        if now >= end {
            BUSY_UNTIL.store(now.saturating_add(BUSY), Ordering::Relaxed);
            return;
        }
        sys::sleep(PAUSE);
    }
    leave_and_wait();
    let state = STATE.load(Ordering::Acquire);
    if state & STATES == OFF && THREAD.load(Ordering::Acquire) == 0 && !LEFT.load(Ordering::Acquire) {
        let _ = MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| made.checked_sub(1));
        let _ = STATE.compare_exchange(state, state - OFF + NONE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Creates the helper. `false`: another thread is creating it, or it cannot be created.
pub(super) fn start() -> bool {
    let state = STATE.load(Ordering::Acquire);
    let Some(calls) = calls() else {
        return false;
    };
    if sys::descriptor_limit() < FEW || sys::is_on_other_stack() || handler::may_be_under_way() {
        return false;
    }
    // Its table begins as a copy of the program's, and closing a file there flushes it as if the program closed it.
    if rules::has_close_error_risk() {
        return false;
    }
    let starting = (state & !STATES).wrapping_add(STATES + 1) | STARTING;
    if state & STATES != NONE
        || LEFT.load(Ordering::Acquire)
        || STATE.compare_exchange(state, starting, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return false;
    }
    let is_on = MADE.fetch_add(1, Ordering::Relaxed) < HELPER_START_MAX && make(calls, starting);
    if !is_on {
        STATE.store(starting - STARTING + OFF, Ordering::Release);
        process::count(Count::Failures, 1);
    }
    if is_on && LEFT.load(Ordering::Acquire) {
        leave();
    }
    is_on
}

fn make(calls: ThreadFunctions, starting: u32) -> bool {
    let _blocked = sys::SignalsBlocked::begin();
    // Held until the receiving end is closed and the other one is known. The helper is created all the same if a fork takes long.
    let _guard = ForkGuard::begin();
    let Ok((sending, receiving)) = channel::pair() else {
        return false;
    };
    helper_files::reset();
    let inode = channel::socket_inode(sending);
    if inode.is_some() && make_thread(calls, receiving, starting) {
        let end = sys::now().saturating_add(START_MAX);
        while STATE.load(Ordering::Acquire) == starting && sys::now() < end {
            sys::futex_wait(&STATE, starting, START_MAX);
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
#[allow(unsafe_code, reason = "calls the C library")]
fn make_thread(calls: ThreadFunctions, receiving: c_int, starting: u32) -> bool {
    let argument = ptr::without_provenance_mut((starting as usize) << 32 | receiving as usize);
    let mut attr = MaybeUninit::<pthread_attr_t>::uninit();
    let mut old = MaybeUninit::<sigset_t>::zeroed();
    // A number or a pointer, depending on the C library.
    let mut thread = MaybeUninit::<pthread_t>::uninit();
    // All signals: the C library leaves out those that it needs.
    let all = MaybeUninit::<[u8; size_of::<sigset_t>()]>::new([0xff; size_of::<sigset_t>()]);
    // SAFETY: each is the C library's function and gets what POSIX requires: `attr` is initialised before it is used, and destroyed; `all`
    // has the size of a set of signals, in which all bits are valid; the body takes its argument for a number.
    let made = unsafe {
        if (calls.attr_init)(attr.as_mut_ptr()) != 0 {
            return false;
        }
        if (calls.mask)(libc::SIG_SETMASK, all.as_ptr().cast(), old.as_mut_ptr()) != 0 {
            (calls.attr_destroy)(attr.as_mut_ptr());
            return false;
        }
        // If so small a stack is refused, the default size.
        let small = (calls.set_stack)(attr.as_mut_ptr(), STACK) == 0
            && (calls.create)(thread.as_mut_ptr(), attr.as_ptr(), thread::body, argument) == 0;
        let made = small || (calls.create)(thread.as_mut_ptr(), ptr::null(), thread::body, argument) == 0;
        (calls.mask)(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut());
        (calls.attr_destroy)(attr.as_mut_ptr());
        made
    };
    if made {
        // SAFETY: written by the call that created it.
        let before = THREAD.swap(unsafe { thread.assume_init() } as usize, Ordering::AcqRel);
        if before != 0 {
            // SAFETY: the helper before this one, which has ended or is about to, and which nobody waits for.
            unsafe { (calls.detach)(before as pthread_t) };
        }
    }
    made
}
