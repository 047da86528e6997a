//! The library's start and end in a process, and its replacement for the standard library.
//!
//! Before the program's own code runs, the constructor reads the settings of the process, looks up
//! the C library's functions, and follows the descriptors that the process was started with. In a
//! process without settings it does nothing.
//!
//! How it fails: the rules stay off in three cases: the settings are not understood; the program is
//! set-user-ID or has another C library; or a seccomp filter would kill the process for the rules'
//! system calls (the report counts that). If the report cannot be mapped, nothing is counted in it.
//! The code should never panic. If it does, the rules are turned off and the process aborts.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};

use crate::counters::Count;
use crate::files::{open_readers, tracked_files};
use crate::hooks::{self, stdio};
use crate::launcher;
use crate::settings::{Part, Plan, TEXT_MAX, VARIABLE};
use crate::{counters, followers, helper, introspection, process, real, rules, sys};

/// A copy of the settings' text, because a program may overwrite its environment. A null byte stays
/// behind the text.
struct SettingsText(UnsafeCell<[u8; TEXT_MAX + 1]>);

// SAFETY: written by `begin` alone, before the program's own code runs.
unsafe impl Sync for SettingsText {}

static TEXT_COPY: SettingsText = SettingsText(UnsafeCell::new([0; TEXT_MAX + 1]));

/// Standard input, output and error: a shell redirects these. If no name decides the kind of a
/// process, only these are examined at the start.
const STANDARD_DESCRIPTORS: core::ops::Range<c_int> = 0..3;

type BeginFunction = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN_ENTRY: BeginFunction = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END_ENTRY: unsafe extern "C" fn() = end;

/// Starts the library, as its constructor. The C library passes it the arguments of `main`.
unsafe extern "C" fn begin(_count: c_int, _args: *const *const c_char, environment: *const *const c_char) {
    if real::must_find_all() {
        hooks::find_all();
    }
    // Another C library may pass other arguments.
    if introspection::is_secure() || !real::is_for_this() {
        return;
    }
    // SAFETY: the environment as the C library keeps it.
    let mut variables = unsafe { launcher::strings(environment) };
    let of_ours = |one: &'static [u8]| one.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=");
    let Some(text) = variables.find_map(of_ours) else { return };
    // SAFETY: nobody else uses it yet.
    let whole = unsafe { &mut *TEXT_COPY.0.get() };
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
    let report = |path| {
        counters::open_report(path).inspect(|report| tracked_files::track_in(report))?.claim(pid, comm)
    };
    if introspection::is_deadly() {
        // In a child: the system calls for this may be deadly, too.
        introspection::is_survived(|| {
            if let Some(record) = plan.report.and_then(record) {
                record.add(Count::Filtered, 1);
            }
        });
        return;
    }
    if !real::around_forks(before_fork, after_fork_in_parent, after_fork_in_child) {
        return;
    }
    // SAFETY: the one call, before the program's own code runs.
    unsafe { process::set_up(&plan) };
    // SAFETY: likewise, in the first thread; functions found by names of the C library are its own.
    unsafe { helper::set_up(real::address) };
    if rules::has_followers() {
        // If that fails, each process knows its own readers alone.
        let _ = followers::share();
    }
    if let (Part::Stream, Some(readers)) = (plan.part, plan.readers) {
        open_readers::share(readers);
    }
    // Most processes without a deciding name do nothing that is counted.
    if plan.part != Part::Undecided
        && let Some(record) = plan.report.and_then(report)
    {
        process::count_in(record);
    }
    let follow = |fd| {
        if sys::fstat(fd).is_ok_and(|stat| sys::is_regular(&stat) || sys::is_block_device(&stat))
            && let Ok(flags) = sys::flags(fd)
        {
            rules::opened(fd, None, flags);
            stdio::may_be_standard(fd);
        }
    };
    if plan.part == Part::Undecided {
        STANDARD_DESCRIPTORS.for_each(follow);
    } else {
        introspection::descriptors(follow);
    }
}

/// Runs before a fork, in the forking thread.
unsafe extern "C" fn before_fork() {
    helper::before_fork();
}

/// Runs after a fork, in the parent.
unsafe extern "C" fn after_fork_in_parent() {
    helper::forked();
}

/// Runs after a fork, in the child.
unsafe extern "C" fn after_fork_in_child() {
    process::entered_child();
    rules::after_fork();
}

/// Ends the library, as its destructor: runs as the process ends by `exit` or returns from `main`.
unsafe extern "C" fn end() {
    if process::is_on() {
        rules::before_exit();
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    process::count(Count::Failures, 1);
    process::turn_off();
    // SAFETY: it takes no arguments.
    unsafe { libc::abort() }
}
