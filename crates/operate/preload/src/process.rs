//! The settings of the process, and whether the rules are on. Both are set once as the library is loaded, before there is a second thread.
//!
//! Invariants:
//! 1. [`plan`] is set before [`is_on`] is ever true, and never changed.
//! 2. Once off, the rules stay off.
//! 3. The rules are on only in the process that they were set up for. A child of vfork shares its parent's memory and must not change the
//!    state there. A child of fork is entered by the library's handler ([`entered_child`]).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::counters::{Count, Record};
use crate::settings::{Action, Part, Plan, RULES_MAX};
use crate::sys;

struct Static<T>(UnsafeCell<T>);

// SAFETY: written only by `set_up`, before `ON` is set, and read only after that was seen.
#[allow(unsafe_code, reason = "a static that is set once")]
unsafe impl<T> Sync for Static<T> {}

static PLAN: Static<Plan<'static>> = Static(UnsafeCell::new(Plan::NONE));
static ON: AtomicBool = AtomicBool::new(false);
/// The scope of the hooks in this process: a [`HookScope`].
static HOOK_SCOPE: AtomicU8 = AtomicU8::new(HookScope::Nothing as u8);
/// The bytes that names with a rule may end in: a bit for each.
static LAST: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// The last four bytes of such names ([`tails`]).
static TAILS: [AtomicU64; RULES_MAX] = [const { AtomicU64::new(0) }; RULES_MAX];
static TAILS_COUNT: AtomicU32 = AtomicU32::new(0);
/// Whether an undecided process turned out to be a stream.
static BECAME_STREAM: AtomicBool = AtomicBool::new(false);
static URING: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);
/// The record that this process counts in: its own, until [`count_in`] sets one of a report.
static RECORD: AtomicPtr<Record> = AtomicPtr::new((&raw const OWN).cast_mut());
static OWN: Record = Record::EMPTY;

/// Turns the rules on, once, with this plan.
///
/// # Safety
///
/// At most one call in a process, by its only thread, or before there is another call into this library.
#[allow(unsafe_code, reason = "sets the statics")]
pub unsafe fn set_up(plan: &Plan<'static>) {
    // SAFETY: by this function's contract nobody reads it yet.
    unsafe { *PLAN.0.get() = *plan };
    PID.store(sys::getpid(), Ordering::Relaxed);
    let scope = match plan.part {
        Part::None => HookScope::Nothing,
        Part::Stream | Part::Bulk | Part::Logs | Part::Undecided => HookScope::All,
        Part::Files => HookScope::Named,
    };
    for (word, bits) in LAST.iter().zip(last_bytes(plan)) {
        word.store(bits, Ordering::Relaxed);
    }
    let (found, count) = tails(plan);
    for (tail, found) in TAILS.iter().zip(found) {
        tail.store(found, Ordering::Relaxed);
    }
    TAILS_COUNT.store(count as u32, Ordering::Relaxed);
    ON.store(true, Ordering::Release);
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

/// Returns the files of this process that rules may apply to. One load; it does not check the process id.
#[inline]
pub fn hook_scope() -> HookScope {
    match HOOK_SCOPE.load(Ordering::Relaxed) {
        1 => HookScope::Named,
        2 => HookScope::All,
        _ => HookScope::Nothing,
    }
}

/// Whether a rule may apply to the file at that path, by the path's end: a quick "no" for most.
#[inline]
pub fn is_in_scope(path: &[u8]) -> bool {
    let Some(&last) = path.last() else { return false };
    let word = LAST.get(usize::from(last >> 6)).map_or(0, |word| word.load(Ordering::Relaxed));
    word >> (last & 63) & 1 != 0 && ends_as_some(path)
}

/// Whether the path ends like a pattern: compares the last four bytes of each pattern's literal end.
#[cold]
#[inline(never)]
fn ends_as_some(path: &[u8]) -> bool {
    let last = last_four(path);
    let count = TAILS_COUNT.load(Ordering::Relaxed) as usize;
    TAILS.iter().take(count).any(|tail| {
        let tail = tail.load(Ordering::Relaxed);
        last & (tail >> 32) as u32 == tail as u32
    })
}

/// Returns the last four bytes, the last one lowest, padded with zeros.
fn last_four(path: &[u8]) -> u32 {
    match path.last_chunk() {
        Some(&last) => u32::from_be_bytes(last),
        None => path.iter().fold(0, |word, &byte| word << 8 | u32::from(byte)),
    }
}

/// Returns masks and values for the last four bytes of a name, one for each literal end of the plan's patterns: the mask is in the upper
/// half.
fn tails(plan: &Plan<'_>) -> ([u64; RULES_MAX], usize) {
    let (mut tails, mut count) = ([0; RULES_MAX], 0);
    for rule in plan.rules().iter().filter(|rule| rule.action != Action::Leave) {
        let bits = 8 * rule.tail.len().min(4) as u32;
        let mask = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
        let tail = mask << 32 | u64::from(last_four(rule.tail));
        if !tails.iter().take(count).any(|&other| other == tail)
            && let Some(free) = tails.get_mut(count)
        {
            *free = tail;
            count += 1;
        }
    }
    (tails, count)
}

/// Returns the bytes that names can end in if a rule of the plan applies to them.
fn last_bytes(plan: &Plan<'_>) -> [u64; 4] {
    let mut bits = [0_u64; 4];
    let mut set = |bytes: core::ops::RangeInclusive<u8>| {
        for byte in bytes {
            if let Some(word) = bits.get_mut(usize::from(byte >> 6)) {
                *word |= 1 << (byte & 63);
            }
        }
    };
    for rule in plan.rules().iter().filter(|rule| rule.action != Action::Leave) {
        match rule.pattern {
            [.., b'{', b'n', b'}'] => set(b'0'..=b'9'),
            [.., b'{', b'x', b'}'] => {
                set(b'0'..=b'9');
                set(b'a'..=b'f');
                set(b'A'..=b'F');
            }
            [.., b'*'] => set(0..=u8::MAX),
            [.., last] => set(*last..=*last),
            [] => {}
        }
    }
    bits
}

/// Records that the process has created an `io_uring`, whose reads and writes are not hooked.
pub fn found_uring() {
    URING.store(true, Ordering::Relaxed);
}

/// Whether the process was seen to create an `io_uring`.
pub fn has_uring() -> bool {
    URING.load(Ordering::Relaxed)
}

/// Returns the plan that this process took from its settings.
#[allow(unsafe_code, reason = "reads a static that is set once")]
pub fn plan() -> &'static Plan<'static> {
    if ON.load(Ordering::Acquire) {
        // SAFETY: set before `ON`, and never again.
        unsafe { &*PLAN.0.get() }
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
    ON.load(Ordering::Acquire) && is_here()
}

/// Whether this is the process that the rules were set up for, on or off, and not a child of vfork, which shares its memory.
pub fn is_here() -> bool {
    PID.load(Ordering::Relaxed) == sys::getpid()
}

/// Turns the rules off for good: something that they rely on failed, or may soon.
pub fn turn_off() {
    ON.store(false, Ordering::Release);
    HOOK_SCOPE.store(HookScope::Nothing as u8, Ordering::Release);
}

/// Records that this is a child of fork, with memory of its own.
pub fn entered_child() {
    PID.store(sys::getpid(), Ordering::Relaxed);
}

/// Counts in that record from now on.
pub fn count_in(record: &'static Record) {
    RECORD.store((&raw const *record).cast_mut(), Ordering::Release);
}

/// Adds to a count.
#[allow(unsafe_code, reason = "follows the pointer to the record")]
pub fn count(what: Count, much: u64) {
    // SAFETY: it points to `OWN` or to the argument of `count_in`, both of which live as long as the process.
    unsafe { &*RECORD.load(Ordering::Acquire) }.add(what, much);
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_by_its_last_byte() {
        let text = b"profile x\nprocess db\nfile bulk keep *.sst\nfile data direct-only base/{n}\nfile leave *\nfile data direct-only a/{x}\n";
        let bits = last_bytes(&Plan::decode(text, b"db").unwrap());
        let seen: Vec<u8> =
            (0..=u8::MAX).filter(|byte| bits[usize::from(byte >> 6)] >> (byte & 63) & 1 != 0).collect();
        assert_eq!(String::from_utf8(seen).unwrap(), "0123456789ABCDEFabcdeft");
        let all =
            last_bytes(&Plan::decode(b"profile x\nprocess db\nfile data direct-only relay*", b"db").unwrap());
        assert_eq!(all, [u64::MAX; 4]);
        assert_eq!(last_bytes(&Plan::NONE), [0; 4]);
        assert!(hook_scope() == HookScope::Nothing && !is_in_scope(b"/a") && !is_in_scope(b""));
    }

    #[test]
    fn ends_are_compared_four_bytes_at_a_time() {
        let text = b"profile x\nprocess db\nfile bulk keep *.sst\nfile data direct-only *.ibd\nfile data direct-only a/{n}.sst\nfile data direct-only b\nfile leave *.x\n";
        let (tails, count) = tails(&Plan::decode(text, b"db").unwrap());
        let fits = |path: &[u8]| {
            tails[..count].iter().any(|tail| last_four(path) & (tail >> 32) as u32 == *tail as u32)
        };
        assert_eq!(count, 3);
        for (path, expected) in [
            ("/d/1.sst", true),
            ("1.lst", false),
            ("sst", false),
            (".ibd", true),
            ("/d/ab", true),
            ("b", true),
            ("a.x", false),
        ] {
            assert_eq!(fits(path.as_bytes()), expected, "{path}");
        }
    }
}
