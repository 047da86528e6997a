//! `pk_pacer`: the pace of an engine's own output.
//!
//! Invariant: the state is words that no lock guards, so threads share it and a forked child can
//! use its copy. Two threads at once may lose what one of them reports; any mixture of two states
//! is a valid one.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_policy::pacer;

use crate::call::{fill, plain};
use crate::pointers::{ClosingHandle, OptionsPointer, SizedStruct, given};
use crate::status::{CallFailure, Status};

/// `pk_pacer`.
#[derive(Debug, Default)]
pub struct Pacer([AtomicU64; pacer::WORDS]);

impl Pacer {
    fn load(&self) -> pacer::Pacer {
        pacer::Pacer::from_words(self.0.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    fn store(&self, state: pacer::Pacer) {
        for (word, value) in self.0.iter().zip(state.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct WrittenPart {
    struct_size: usize,
    bytes: u64,
    in_flight: u64,
    took_min_ns: u64,
    took_max_ns: u64,
    busy_ns: u64,
}

// SAFETY: integers alone, the size first.
unsafe impl SizedStruct for WrittenPart {
    const STRUCT_NAME: &'static str = "pk_written_part";
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_pacer_new(pacer: Option<&mut MaybeUninit<Box<Pacer>>>) -> Status {
    fill(pacer, "the pacer", || Ok(Box::default()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_pacer_piece(pacer: Option<&Pacer>) -> u64 {
    plain(0, || pacer.map_or(0, |pacer| pacer.load().piece()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_pacer_written(
    pacer: Option<&Pacer>,
    part: OptionsPointer<WrittenPart>,
    pause_ns: Option<&mut MaybeUninit<u64>>,
) -> Status {
    fill(pause_ns, "the pause", || {
        let (pacer, part) = (given(pacer, "the pacer")?, part.read()?);
        if part.bytes == 0 {
            return Err(CallFailure::misuse("a part of no bytes"));
        }
        let mut state = pacer.load();
        let pause_ns = state.written(pacer::WrittenPart {
            bytes: part.bytes,
            in_flight: part.in_flight.max(part.bytes),
            took_min: part.took_min_ns,
            took_max: part.took_max_ns.max(part.took_min_ns),
            busy: Some(part.busy_ns).filter(|ns| *ns > 0),
        });
        pacer.store(state);
        Ok(pause_ns)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_pacer_free(pacer: Option<ClosingHandle<Pacer>>) {
    plain((), || drop(pacer.map(ClosingHandle::open)));
}
