//! The standard library's primitives that coordinate threads in the log buffer.
//!
//! They are named only here, so that the models can compile the same sources with loom's instead.

pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(super) use super::memory::UncheckedMemory;
