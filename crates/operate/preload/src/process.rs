//! The settings of the process, and whether the rules are on. Both are set once as the library is
//! loaded, before there is a second thread.
//!
//! Invariants:
//! 1. [`plan`] is set before [`is_on`] is ever true, and never changed.
//! 2. Once off, the rules stay off.
//! 3. The rules are on only in the process that they were set up for. A child of vfork shares its
//!    parent's memory and must not change the state there. A child of fork is entered by the
//!    library's handler ([`entered_child`]).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use pagekeeper_policy::file_action::FileAction;
use pagekeeper_policy::names;

use crate::counters::{Count, Record};
use crate::settings::{Part, Plan, RULES_MAX};
use crate::sys;

/// Ends of names: at most two for each rule.
const ENDS_MAX: usize = 2 * RULES_MAX;

struct PlanStatic<T>(UnsafeCell<T>);

// SAFETY: written only by `set_up`, before `RULES_ON` is set, and read only after that was seen.
unsafe impl<T> Sync for PlanStatic<T> {}

static OWN_PLAN: PlanStatic<Plan<'static>> = PlanStatic(UnsafeCell::new(Plan::NONE));
static RULES_ON: AtomicBool = AtomicBool::new(false);
/// The scope of the hooks in this process: a [`HookScope`].
static HOOK_SCOPE: AtomicU8 = AtomicU8::new(HookScope::Nothing as u8);
/// The ends of names that a rule may apply to ([`names::pattern_ends`]).
static NAME_ENDS: [AtomicU64; ENDS_MAX] = [const { AtomicU64::new(0) }; ENDS_MAX];
static ENDS_COUNT: AtomicU32 = AtomicU32::new(0);
/// Whether an undecided process turned out to be a stream.
static BECAME_STREAM: AtomicBool = AtomicBool::new(false);
static HAS_URING: AtomicBool = AtomicBool::new(false);
static OWN_PID: AtomicU32 = AtomicU32::new(0);
/// The record that this process counts in: its own, until [`count_in`] sets one of a report.
static COUNTED_RECORD: AtomicPtr<Record> = AtomicPtr::new((&raw const OWN_RECORD).cast_mut());
static OWN_RECORD: Record = Record::EMPTY;

/// Turns the rules on, once, with this plan.
///
/// # Safety
///
/// At most one call in a process, by its only thread, or before there is another call into this
/// library.
pub unsafe fn set_up(plan: &Plan<'static>) {
    // SAFETY: by this function's contract nobody reads it yet.
    unsafe { *OWN_PLAN.0.get() = *plan };
    OWN_PID.store(sys::getpid(), Ordering::Relaxed);
    let scope = match plan.part {
        Part::None => HookScope::Nothing,
        Part::Stream | Part::Bulk | Part::Logs | Part::Undecided => HookScope::All,
        Part::Files => HookScope::Named,
    };
    let rules = plan.rules().iter().filter(|rule| rule.action != FileAction::Leave);
    let ends = rules.flat_map(|rule| names::pattern_ends(rule.pattern));
    let count = NAME_ENDS.iter().zip(ends).map(|(word, end)| word.store(end, Ordering::Relaxed)).count();
    ENDS_COUNT.store(count as u32, Ordering::Relaxed);
    RULES_ON.store(true, Ordering::Release);
    HOOK_SCOPE.store(scope as u8, Ordering::Release);
}

/// The files of a process that rules may apply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HookScope {
    /// None: no rule applies to this process, or the rules are off.
    Nothing = 0,
    /// Those with certain names ([`is_in_scope`]).
    Named = 1,
    /// All.
    All = 2,
}

/// Returns the files of this process that rules may apply to. One load; it does not check the
/// process id.
#[inline]
pub fn hook_scope() -> HookScope {
    match HOOK_SCOPE.load(Ordering::Relaxed) {
        1 => HookScope::Named,
        2 => HookScope::All,
        _ => HookScope::Nothing,
    }
}

/// Whether a rule may apply to the file at that path, by its last four bytes: a quick "no" for
/// most.
pub fn is_in_scope(path: &[u8]) -> bool {
    let last = names::last_four(path);
    let count = ENDS_COUNT.load(Ordering::Relaxed) as usize;
    NAME_ENDS.iter().take(count).any(|end| names::fits_end(end.load(Ordering::Relaxed), last))
}

/// Records that the process has created an `io_uring`, whose reads and writes are not hooked.
pub fn found_uring() {
    HAS_URING.store(true, Ordering::Relaxed);
}

/// Whether the process was seen to create an `io_uring`.
pub fn has_uring() -> bool {
    HAS_URING.load(Ordering::Relaxed)
}

/// Returns the plan that this process took from its settings.
pub fn plan() -> &'static Plan<'static> {
    if RULES_ON.load(Ordering::Acquire) {
        // SAFETY: set before `RULES_ON`, and never again.
        unsafe { &*OWN_PLAN.0.get() }
    } else {
        &Plan::NONE
    }
}

/// Returns the part of this process: the one in its settings, until it turns out to be a stream.
pub fn part() -> Part {
    match plan().part {
        Part::Undecided if BECAME_STREAM.load(Ordering::Acquire) => Part::Stream,
        part => part,
    }
}

/// Records that an undecided process is a stream.
pub fn become_stream() {
    BECAME_STREAM.store(true, Ordering::Release);
}

/// Whether the rules are on, and this is the process that they were set up for.
pub fn is_on() -> bool {
    RULES_ON.load(Ordering::Acquire) && is_here()
}

/// Whether this is the process that the rules were set up for, on or off, and not a child of vfork,
/// which shares its memory.
pub fn is_here() -> bool {
    OWN_PID.load(Ordering::Relaxed) == sys::getpid()
}

/// Turns the rules off for good: something that they rely on failed, or may soon.
pub fn turn_off() {
    RULES_ON.store(false, Ordering::Release);
    HOOK_SCOPE.store(HookScope::Nothing as u8, Ordering::Release);
}

/// Records that this is a child of fork, with memory of its own.
pub fn entered_child() {
    OWN_PID.store(sys::getpid(), Ordering::Relaxed);
}

/// Counts in that record from now on.
pub fn count_in(record: &'static Record) {
    COUNTED_RECORD.store((&raw const *record).cast_mut(), Ordering::Release);
}

/// Adds to a count.
pub fn count(what: Count, much: u64) {
    // SAFETY: it points to `OWN_RECORD` or to the argument of `count_in`, both of which live as
    // long as the process.
    unsafe { &*COUNTED_RECORD.load(Ordering::Acquire) }.add(what, much);
}
