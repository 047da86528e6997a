//! Hooks of formatted output (the `printf` family), which the C library's streams write by internal
//! calls.
//!
//! A function cannot pass on variable arguments that it does not know. So these hooks are a
//! comparison and a jump, with all registers as the caller left them. Only while a standard stream
//! is not known to be used do they notify the rules before the jump; they preserve the argument
//! registers meanwhile.
//!
//! Invariants: those of the crate. A hook that is called before the C library's function was looked
//! up looks it up first.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::AtomicU8;

use super::stdio::{STANDARD_STREAMS, used, used_descriptor};
use crate::real::Next;

/// The code below reads these by their first byte.
const _: () = assert!(size_of::<AtomicU8>() == 1);

/// A hook that jumps to the next definition if [`STANDARD_STREAMS`] is zero, else to `$early`,
/// which calls `$notify` with the first argument and then jumps to the next definition.
macro_rules! variadic {
    ($($name:ident, $next:ident, $early:ident, |$first:ident| $notify:expr;)*) => {
        /// Looks up the next definitions.
        pub(crate) fn find_all() {
            $($next.find();)*
        }

        $(
        /// The next definition.
        static $next: Next<unsafe extern "C" fn()> =
            Next::new(crate::real::name(concat!(stringify!($name), "\0")), $early as *const ());

        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "endbr64",
                "cmp byte ptr [rip + {standard}], 0",
                "jne {early}",
                "jmp qword ptr [rip + {next}]",
                standard = sym STANDARD_STREAMS, early = sym $early, next = sym $next,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "hint #34",
                "adrp x16, {standard}",
                "ldrb w16, [x16, :lo12:{standard}]",
                "cbnz w16, 2f",
                "adrp x16, {next}",
                "ldr x16, [x16, :lo12:{next}]",
                "br x16",
                "2: b {early}",
                standard = sym STANDARD_STREAMS, early = sym $early, next = sym $next,
            );
        }

        #[unsafe(naked)]
        unsafe extern "C" fn $early() {
            unsafe extern "C" fn notify($first: *mut c_void) {
                // Until the constructor runs, the hook jumps here.
                $next.find_unless_found($early as *const ());
                $notify
            }
            // The argument registers: six general ones, eight of the floating point unit, and al
            // with the number of the latter in use. With the return address they are a multiple of
            // 16 bytes.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "endbr64",
                "sub rsp, 184",
                "mov [rsp], rdi", "mov [rsp + 8], rsi", "mov [rsp + 16], rdx", "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8", "mov [rsp + 40], r9", "mov [rsp + 48], rax",
                "movups [rsp + 56], xmm0", "movups [rsp + 72], xmm1", "movups [rsp + 88], xmm2",
                "movups [rsp + 104], xmm3", "movups [rsp + 120], xmm4", "movups [rsp + 136], xmm5",
                "movups [rsp + 152], xmm6", "movups [rsp + 168], xmm7",
                "call {notify}",
                "movups xmm0, [rsp + 56]", "movups xmm1, [rsp + 72]", "movups xmm2, [rsp + 88]",
                "movups xmm3, [rsp + 104]", "movups xmm4, [rsp + 120]", "movups xmm5, [rsp + 136]",
                "movups xmm6, [rsp + 152]", "movups xmm7, [rsp + 168]",
                "mov rdi, [rsp]", "mov rsi, [rsp + 8]", "mov rdx, [rsp + 16]", "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]", "mov r9, [rsp + 40]", "mov rax, [rsp + 48]",
                "add rsp, 184",
                "jmp qword ptr [rip + {next}]",
                notify = sym notify, next = sym $next,
            );
            // Eight general registers, eight of the floating point unit, and the return address.
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "hint #34",
                "stp x29, x30, [sp, #-208]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]", "stp q4, q5, [sp, #144]", "stp q6, q7, [sp, #176]",
                "bl {notify}",
                "ldp q0, q1, [sp, #80]", "ldp q2, q3, [sp, #112]", "ldp q4, q5, [sp, #144]", "ldp q6, q7, [sp, #176]",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #208",
                "adrp x16, {next}",
                "ldr x16, [x16, :lo12:{next}]",
                "br x16",
                notify = sym notify, next = sym $next,
            );
        }
        )*
    };
}
variadic! {
    printf, NEXT_PRINTF, early_printf, |_format| used_descriptor(1);
    __printf_chk, NEXT_PRINTF_CHK, early_printf_chk, |_flag| used_descriptor(1);
    // SAFETY: the program's stream is open, by the function's contract.
    fprintf, NEXT_FPRINTF, early_fprintf, |stream| unsafe { used(stream) };
    // SAFETY: likewise.
    __fprintf_chk, NEXT_FPRINTF_CHK, early_fprintf_chk, |stream| unsafe { used(stream) };
}
