//! Whether a signal handler is running on the calling thread. A handler may open files, but the code that it interrupted may hold the C
//! library's allocator, which creating a thread needs.
//!
//! Neither the mask of blocked signals shows it (`SA_NODEFER` blocks none, and servers block some all the time) nor the installed
//! handlers (`SA_RESETHAND` removes one first). The frame that the kernel puts on the stack, to which the handler returns, does. Frames of
//! earlier handlers stay below, in stack space that calls leave unused: then a handler is found that has ended.
//!
//! How it fails: what can't be read, and a handler that has ended, count as one that runs: that call makes no helper.

#![allow(unsafe_code, reason = "system calls")]

use core::mem::size_of;

use crate::{introspection, sys};

/// Bytes of the stack that are searched: a handler's own calls, between its frame and here, take far less.
const REACH: usize = 256 << 10;
/// Words that are read together. No such part crosses a page.
const WORDS: usize = 64;
const WORD: usize = size_of::<usize>();

/// Whether a handler may be under way.
pub(super) fn may_be_under_way() -> bool {
    let Some(marks) = Marks::of_this_process() else { return true };
    if marks.are_none() {
        return false;
    }
    let start = sys::stack_pointer() / WORD * WORD;
    let mut at = start;
    while at < start.saturating_add(REACH) {
        let count = WORDS - at / WORD % WORDS;
        // SAFETY: all bits are valid for numbers.
        let Some(words) = (unsafe { introspection::peek::<usize, WORDS>(at, count) }) else {
            // The stack's end; unless nothing can be read.
            return at == start;
        };
        let places = (at..).step_by(WORD);
        if words.iter().zip(places).take(count).any(|(&word, at)| marks.is_frame(word, at)) {
            return true;
        }
        at = at.saturating_add(count * WORD);
    }
    false
}

/// What a frame is known by: it begins with the address that its handler returns to, which the C library gave the kernel with the
/// handler (`sa_restorer`); has flags of the kernel's and a code segment of programs; and a pointer to the state of the floating
/// point unit, which lies just above it. (A copy of that address alone is on the stack of who asks for a handler.)
#[cfg(target_arch = "x86_64")]
struct Marks {
    restorers: [usize; Marks::KINDS],
}

#[cfg(target_arch = "x86_64")]
impl Marks {
    /// Restorers that are distinguished: each C library has one.
    const KINDS: usize = 4;
    /// Where in the frame (`struct rt_sigframe`) the flags (`uc_flags`), the segments and the pointer lie, in words.
    const FLAGS: usize = 1;
    const SEGMENTS: usize = 24;
    const STATE: usize = 29;
    /// Words up to the pointer.
    const HEAD: usize = Self::STATE + 1;
    /// The flags that there are (`arch/x86/include/uapi/asm/ucontext.h`): one at least is set in such a program.
    const ANY_FLAG: core::ops::RangeInclusive<usize> = 1..=7;
    /// The privilege level of programs, in their code segment's selector: which one that is differs under Xen.
    const LEVEL: usize = 3;
    /// Bytes from the frame's begin to the state: the frame has 440, and both are aligned.
    const BETWEEN: core::ops::RangeInclusive<usize> = 440..=520;
    const ALIGNED: usize = 64;

    /// `None` if they can't be known.
    fn of_this_process() -> Option<Self> {
        /// Bytes of the kernel's set of signals.
        const SET: usize = size_of::<u64>();
        const RESTORER: usize = 0x0400_0000;
        let mut restorers = [0; Self::KINDS];
        for signal in 1..=64 {
            // The kernel's `struct sigaction`: handler, flags, restorer, mask. A handler that is gone, or was for one time, leaves them.
            let mut action = [0_usize; 4];
            let args = [signal, 0, action.as_mut_ptr() as usize, SET, 0, 0];
            // SAFETY: nothing is changed; `action` has room for what is written.
            unsafe { sys::call(libc::SYS_rt_sigaction, args) }.ok()?;
            let [_, flags, restorer, _] = action;
            if flags & RESTORER != 0 && restorer != 0 && !restorers.contains(&restorer) {
                *restorers.iter_mut().find(|free| **free == 0)? = restorer;
            }
        }
        Some(Self { restorers })
    }

    /// Whether the process never had a handler.
    fn are_none(&self) -> bool {
        self.restorers == [0; Self::KINDS]
    }

    fn is_frame(&self, word: usize, at: usize) -> bool {
        if word == 0 || !self.restorers.contains(&word) {
            return false;
        }
        // SAFETY: all bits are valid for numbers.
        let head = unsafe { introspection::peek::<usize, { Self::HEAD }>(at, Self::HEAD) };
        head.is_some_and(|head| {
            let state = head[Self::STATE];
            Self::ANY_FLAG.contains(&head[Self::FLAGS])
                && head[Self::SEGMENTS] & Self::LEVEL == Self::LEVEL
                && state.is_multiple_of(Self::ALIGNED)
                && Self::BETWEEN.contains(&state.wrapping_sub(at))
        })
    }
}

/// What a frame is known by: the head of the floating point unit's state (`struct fpsimd_context`), its magic number and its size.
#[cfg(target_arch = "aarch64")]
struct Marks;

#[cfg(target_arch = "aarch64")]
#[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as on the other architecture")]
impl Marks {
    const HEAD: usize = 528 << 32 | 0x4650_8001;

    fn of_this_process() -> Option<Self> {
        Some(Self)
    }

    fn are_none(&self) -> bool {
        false
    }

    fn is_frame(&self, word: usize, at: usize) -> bool {
        word == Self::HEAD && at.is_multiple_of(16)
    }
}
