//! The library's start and end in a process, and its replacement for the standard library.
//!
//! Before the program's own code runs, the constructor reads the settings of the process, looks up the C library's functions, and
//! follows the descriptors that the process was started with. In a process without settings it does nothing.
//!
//! How it fails: the rules stay off where the settings are not understood, where the program is set-user-ID or has another C library,
//! and where its filter of system calls kills it for those of the rules (the report says so). A report that can't be mapped gets no
//! counts. The code should never panic. If it does, the rules are turned off and the process aborts.

#![allow(unsafe_code, reason = "is entered by the C library, as the process starts and ends")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};

use crate::counters::Count;
use crate::hooks::stdio;
use crate::settings::{Part, Plan, TEXT_MAX, VARIABLE};
use crate::{
    counters, followers, helper, introspection, launcher, noted, open_readers, process, real, rules, sys,
};

/// The text, kept: a program may write over its environment.
/// A null byte stays behind it.
struct Text(UnsafeCell<[u8; TEXT_MAX + 1]>);

// SAFETY: written by `begin` alone, before the program's own code runs.
unsafe impl Sync for Text {}

static TEXT: Text = Text(UnsafeCell::new([0; TEXT_MAX + 1]));

/// Standard input, output and error: what a shell redirects, and all that a process is looked at for that is no stream yet.
const STANDARD: core::ops::Range<c_int> = 0..3;

type Begin = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: Begin = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: unsafe extern "C" fn() = end;

/// The constructor. The C library gives it what `main` is given.
unsafe extern "C" fn begin(_count: c_int, _args: *const *const c_char, environment: *const *const c_char) {
    real::find_all();
    // Of another C library, nothing is known of what was given.
    if introspection::is_secure() || !real::is_for_this() {
        return;
    }
    // SAFETY: the environment as the C library keeps it: strings, and a null pointer behind the last.
    let Some(text) = (unsafe { find(environment) }) else { return };
    // SAFETY: nobody else uses it yet.
    let whole = unsafe { &mut *TEXT.0.get() };
    let Some(kept) = whole.get_mut(..text.len()).filter(|kept| kept.len() <= TEXT_MAX) else { return };
    kept.copy_from_slice(text);
    let whole: &'static [u8; TEXT_MAX + 1] = whole;
    let mut name = [0; 16];
    let comm = introspection::comm(&mut name);
    let Some(plan) = whole.get(..text.len()).and_then(|kept| Plan::decode(kept, comm)) else { return };
    // SAFETY: the one call, before the program's own code runs.
    unsafe { launcher::set_up(&plan, comm, whole) };
    let _ = real::environment();
    if plan.part == Part::None {
        return;
    }
    let pid = sys::getpid();
    let record = |path| counters::open_report(path)?.claim(pid, comm);
    let report =
        |path| counters::open_report(path).inspect(|report| noted::note_in(report))?.claim(pid, comm);
    if introspection::is_deadly() {
        // By a child, too: what that takes may be deadly as well.
        introspection::is_survived(|| {
            if let Some(record) = plan.report.and_then(record) {
                record.add(Count::Filtered, 1);
            }
        });
        return;
    }
    if !real::around_forks(forks, has_forked, forked) {
        return;
    }
    // SAFETY: the one call, before the program's own code runs.
    unsafe { process::set_up(&plan) };
    // SAFETY: likewise, in the first thread; functions of the C library's names are its own.
    unsafe { helper::set_up(real::address) };
    if rules::has_followers() {
        // Where that can't be, each process knows its own readers.
        let _ = followers::share();
    }
    if let (Part::Stream, Some(readers)) = (plan.part, plan.readers) {
        open_readers::share(readers);
    }
    // Most processes for which no name decides do nothing that is counted.
    if plan.part != Part::Undecided
        && let Some(record) = plan.report.and_then(report)
    {
        process::count_in(record);
    }
    let follow = |fd| {
        let has_pages =
            |stat: libc::stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG || sys::is_block_device(&stat);
        if sys::fstat(fd).is_ok_and(has_pages)
            && let Ok(flags) = sys::flags(fd)
        {
            rules::opened(fd, None, flags);
            stdio::started_with(fd);
        }
    };
    if plan.part == Part::Undecided {
        STANDARD.for_each(follow);
    } else {
        introspection::descriptors(follow);
    }
}

/// The text among the environment's.
///
/// # Safety
///
/// An array of strings, with a null pointer behind the last, or null itself.
unsafe fn find<'a>(mut environment: *const *const c_char) -> Option<&'a [u8]> {
    if environment.is_null() {
        return None;
    }
    loop {
        // SAFETY: by this function's contract, since the null pointer wasn't met yet.
        let one = unsafe { *environment };
        if one.is_null() {
            return None;
        }
        // SAFETY: by this function's contract.
        let one = unsafe { CStr::from_ptr(one) }.to_bytes();
        if let Some(text) = one.strip_prefix(VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(text);
        }
        environment = environment.wrapping_add(1);
    }
}

/// Before a fork, in the thread that forks.
unsafe extern "C" fn forks() {
    helper::before_fork();
}

/// After it, in the parent.
unsafe extern "C" fn has_forked() {
    helper::forked();
}

/// In a child of fork.
unsafe extern "C" fn forked() {
    process::entered_child();
    rules::after_fork();
}

/// The destructor: as the process ends by `exit` or from `main`.
unsafe extern "C" fn end() {
    if process::is_on() {
        rules::before_exit();
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    process::count(Count::Failures, 1);
    process::turn_off();
    // SAFETY: it takes nothing.
    unsafe { libc::abort() }
}
