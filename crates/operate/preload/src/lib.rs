//! The rules inside an unmodified process: a library to preload (`LD_PRELOAD`) that stands between
//! a program and its C library where files are opened, read, written, synced and closed.
//!
//! As the preloaded library (feature `interpose`, `--crate-type cdylib`) it does without the
//! standard library. Without the feature it has what the launcher ([`settings`], [`counters`]) and
//! the tests need.
//!
//! Invariants of each hook:
//! 1. The program's call is made once, with the program's arguments, and returns what the C library
//!    returned; `errno` is the call's own.
//! 2. It takes no memory, waits for no lock and sets up no thread-local storage, unless the helper
//!    is needed and does not exist yet. That happens only where a file is opened, closed, first
//!    seen to be used by calls that are not hooked, or was written much. The C library then creates
//!    the helper's thread, as for any `pthread_create`. In a signal handler no thread is created.
//!    The table's memory comes directly from the kernel ([`chunks`]).
//! 3. A call on a file that no rule applies to costs two loads and a jump.
//! 4. Any failure in here turns off a rule, or the whole library, never the program.

#![cfg_attr(feature = "interpose", no_std)]
#![allow(unsafe_code, reason = "stands between a program, its C library and the kernel")]
#![allow(clippy::declare_interior_mutable_const, reason = "initial values of statics and of zeroed memory")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "only for processors of 64 bits; the C library uses signed types for unsigned values"
)]

pub mod chunks;
pub mod counters;
mod files;
pub mod followers;
pub mod helper;
#[cfg(feature = "interpose")]
mod hooks;
#[cfg(feature = "interpose")]
mod interpose;
pub mod introspection;
pub mod launcher;
mod pages;
pub mod parts;
pub mod process;
pub mod program;
#[cfg(feature = "interpose")]
mod real;
pub mod rules;
pub mod settings;
pub mod shared;
pub mod symbols;
pub mod sys;

pub use files::{identity, open_readers, paths, table, temporary, tracked_files, tracked_place};
pub use pages::{page_probe, residency};
