//! Hooks of the exec functions that take a program's words one by one, ended by a null pointer (the
//! `execl` family).
//!
//! They put the arguments from registers beside those on the stack, so that all form a list, as the
//! other exec functions take it, and then call the hooks of those. On x86-64 the return address is
//! between the two. It moves further down meanwhile, and the last register's word takes its place.
//!
//! Invariants: those of the crate. If the call fails, the caller's stack is as it was.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int};

use super::exec::{execv, execve, execvp};
use crate::launcher::Words;

/// A hook that makes a list of the words, and calls `$then` with its first argument and the list.
macro_rules! listed {
    ($($name:ident => $then:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            // Five words are in registers.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "endbr64",
                "mov rax, [rsp]",
                "mov [rsp], r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {then}",
                "pop rdx",
                "add rsp, 32",
                "mov [rsp], rdx",
                "ret",
                then = sym $then,
            );
            // Seven words are in registers.
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "hint #34",
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "str x1, [sp, #24]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {then}",
                "ldp x29, x30, [sp], #80",
                "ret",
                then = sym $then,
            );
        }
    )*};
}
listed! {
    execl => by_path;
    execlp => by_name;
    execle => with_environment;
}

unsafe extern "C" fn by_path(path: *const c_char, words: Words) -> c_int {
    // SAFETY: with the program's arguments.
    unsafe { execv(path, words) }
}

unsafe extern "C" fn by_name(name: *const c_char, words: Words) -> c_int {
    // SAFETY: with the program's arguments.
    unsafe { execvp(name, words) }
}

/// Calls execve with the environment, which is behind the null pointer.
unsafe extern "C" fn with_environment(path: *const c_char, words: Words) -> c_int {
    let mut end = words;
    // SAFETY: the list ends with a null pointer, and one more pointer follows, by execle's
    // contract.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, words, (*end.add(1)).cast())
    }
}
