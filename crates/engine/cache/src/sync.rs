//! The synchronization types that the cache uses from the standard library.
//!
//! Imported only here, so that the models can compile the same sources with loom's types instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

pub(crate) use crate::sys::barrier::BarrierPair;
/// Returns counters that are 0; their memory is taken up on first use.
pub(crate) use crate::sys::memory::zeros as counters;
