//! Detects whether a signal handler is running on the calling thread. A handler may open files, but
//! the code that it interrupted may hold the C library's allocator, which creating a thread needs.
//!
//! Neither the mask of blocked signals shows it (`SA_NODEFER` blocks none, and servers block some
//! all the time) nor the installed handlers (`SA_RESETHAND` removes one first). The frame that the
//! kernel puts on the stack, to which the handler returns, does. Frames of earlier handlers remain
//! below, in stack space that calls leave unused, so an ended handler may be found.
//!
//! How it fails: unreadable memory and an ended handler count as a running handler: that call
//! creates no helper.

use core::mem::size_of;

use crate::{introspection, sys};

/// Bytes of the stack that are searched. A handler's own calls, between its frame and here, take
/// far less.
const SEARCH_BYTES: usize = 256 << 10;
/// Words read together. No such part crosses a page.
const WORDS_READ: usize = 64;
const WORD_BYTES: usize = size_of::<usize>();

/// Whether a signal handler may be running on this thread. Takes up to some hundred system calls.
pub fn may_be_in_handler() -> bool {
    let Some(marks) = FrameMarks::of_this_process() else { return true };
    if marks.are_none() {
        return false;
    }
    let start = sys::stack_pointer() / WORD_BYTES * WORD_BYTES;
    let mut at = start;
    while at < start.saturating_add(SEARCH_BYTES) {
        let count = WORDS_READ - at / WORD_BYTES % WORDS_READ;
        // SAFETY: all bits are valid for numbers.
        let Some(words) = (unsafe { introspection::peek::<usize, WORDS_READ>(at, count) }) else {
            // The stack's end, unless nothing can be read.
            return at == start;
        };
        let places = (at..).step_by(WORD_BYTES);
        if words.iter().zip(places).take(count).any(|(&word, at)| marks.is_frame(word, at)) {
            return true;
        }
        at = at.saturating_add(count * WORD_BYTES);
    }
    false
}

/// The marks of a signal frame. It begins with the return address of its handler, which the C
/// library gave the kernel with the handler (`sa_restorer`). It has the kernel's flags, a code
/// segment of user programs, and a pointer to the floating point unit's state, which lies just
/// above it. The return address alone is not proof: code that installs a handler has a copy of it
/// on its stack.
#[cfg(target_arch = "x86_64")]
struct FrameMarks {
    restorers: [usize; FrameMarks::RESTORERS_MAX],
}

#[cfg(target_arch = "x86_64")]
impl FrameMarks {
    /// Distinct restorers; each C library has one.
    const RESTORERS_MAX: usize = 4;
    /// The indices, in words, of the flags (`uc_flags`), the segments and the pointer in the frame
    /// (`struct rt_sigframe`).
    const FLAGS_INDEX: usize = 1;
    const SEGMENTS_INDEX: usize = 24;
    const STATE_INDEX: usize = 29;
    /// Words up to and including the pointer.
    const HEAD_WORDS: usize = Self::STATE_INDEX + 1;
    /// The possible values of the flags (`arch/x86/include/uapi/asm/ucontext.h`): a 64-bit
    /// program's frame has at least one set.
    const ANY_FLAG: core::ops::RangeInclusive<usize> = 1..=7;
    /// The privilege level of user programs in the code segment's selector. The rest of the
    /// selector differs under Xen.
    const USER_LEVEL: usize = 3;
    /// Bytes from the frame's start to the state: the frame has 440, and both are aligned.
    const STATE_DISTANCE: core::ops::RangeInclusive<usize> = 440..=520;
    const STATE_ALIGNMENT: usize = 64;

    /// Returns the marks of this process; `None` if they cannot be determined.
    fn of_this_process() -> Option<Self> {
        /// Bytes of the kernel's set of signals.
        const SIGNAL_SET_BYTES: usize = size_of::<u64>();
        const SA_RESTORER: usize = 0x0400_0000;
        let mut restorers = [0; Self::RESTORERS_MAX];
        for signal in 1..=64 {
            // The kernel's `struct sigaction`: handler, flags, restorer, mask. The restorer remains
            // after a handler was removed, or reset after one signal.
            let mut action = [0_usize; 4];
            let args = [signal, 0, action.as_mut_ptr() as usize, SIGNAL_SET_BYTES];
            // SAFETY: nothing is changed; `action` has room for what is written.
            unsafe { sys::call(libc::SYS_rt_sigaction, args) }.ok()?;
            let [_, flags, restorer, _] = action;
            if flags & SA_RESTORER != 0 && restorer != 0 && !restorers.contains(&restorer) {
                *restorers.iter_mut().find(|free| **free == 0)? = restorer;
            }
        }
        Some(Self { restorers })
    }

    /// Whether the process never had a handler.
    fn are_none(&self) -> bool {
        self.restorers == [0; Self::RESTORERS_MAX]
    }

    fn is_frame(&self, word: usize, at: usize) -> bool {
        if word == 0 || !self.restorers.contains(&word) {
            return false;
        }
        // SAFETY: all bits are valid for numbers.
        let head = unsafe { introspection::peek::<usize, { Self::HEAD_WORDS }>(at, Self::HEAD_WORDS) };
        head.is_some_and(|head| {
            let state = head[Self::STATE_INDEX];
            Self::ANY_FLAG.contains(&head[Self::FLAGS_INDEX])
                && head[Self::SEGMENTS_INDEX] & Self::USER_LEVEL == Self::USER_LEVEL
                && state.is_multiple_of(Self::STATE_ALIGNMENT)
                && Self::STATE_DISTANCE.contains(&state.wrapping_sub(at))
        })
    }
}

/// The mark of a signal frame: the head of the floating point unit's state
/// (`struct fpsimd_context`), its magic number and its size.
#[cfg(target_arch = "aarch64")]
struct FrameMarks;

#[cfg(target_arch = "aarch64")]
#[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as on the other architecture")]
impl FrameMarks {
    const HEAD_WORDS: usize = 528 << 32 | 0x4650_8001;

    fn of_this_process() -> Option<Self> {
        Some(Self)
    }

    fn are_none(&self) -> bool {
        false
    }

    fn is_frame(&self, word: usize, at: usize) -> bool {
        word == Self::HEAD_WORDS && at.is_multiple_of(16)
    }
}
