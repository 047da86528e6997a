//! The rules inside an unmodified process: a library that is preloaded (`LD_PRELOAD`), and stands between a program and its C library
//! where files are opened, read, written, synced and closed.
//!
//! As the library that is preloaded (feature `interpose`, `--crate-type cdylib`) it does without the standard library. Without the
//! feature it is what the launcher needs ([`settings`], [`counters`]), and what tests need.
//!
//! Invariants, in each hook:
//! 1. The program's call is made once, with what it was given, and returns what the C library returned; `errno` is the call's own.
//! 2. No memory is taken, no lock waited for and no thread-local storage set up, but where a file is opened, closed, first seen to be
//!    used by calls that are not hooked, or written much that the helper is needed for, which isn't there yet: the C library then makes
//!    its thread, as it does for any `pthread_create`. In a signal handler none is made. The table's memory is taken
//!    from the kernel itself ([`chunks`]).
//! 3. A call on a file that no rule is for costs two loads and a jump.
//! 4. Whatever fails in here turns a rule off, or the whole library, never the program.

#![cfg_attr(feature = "interpose", no_std)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "only for processors of 64 bits; the C library's types have signs where the values have none"
)]

pub mod chunks;
pub mod counters;
mod disks;
pub mod followers;
pub mod helper;
#[cfg(feature = "interpose")]
mod hooks;
#[cfg(feature = "interpose")]
mod interpose;
pub mod introspection;
pub mod launcher;
pub mod noted;
pub mod open_readers;
pub mod parts;
pub mod process;
#[cfg(feature = "interpose")]
mod real;
pub mod residency;
pub mod rules;
pub mod settings;
pub mod shared;
pub mod symbols;
pub mod sys;
pub mod table;
pub mod temporary;
mod writeback;
