//! `pk_bulk`: files that are written once.

pub(crate) mod pacer;

use std::mem::MaybeUninit;

use pagekeeper_bulk::{BulkMode, BulkWriter};
use pagekeeper_policy::pacer::nanoseconds;

use crate::call::{call, fill, plain};
use crate::exclusive::{ExclusiveHandle, give_up};
use crate::pointers::{
    ArrayPointer, ClosingHandle, OptionsPointer, OutPointer, SizedStruct, TextPointer, given, is_zero,
};
use crate::status::{CallFailure, Status};

/// `pk_bulk`.
pub type BulkHandle = ExclusiveHandle<BulkWriter>;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BulkOptions {
    struct_size: usize,
    mode: u32,
    reserved: u32,
    expected_bytes: u64,
    budget: u64,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for BulkOptions {
    const STRUCT_NAME: &'static str = "pk_bulk_options";
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BulkReport {
    struct_size: usize,
    bytes: u64,
    resident_bytes: u64,
    took_ns: u64,
    waited_ns: u64,
    mode: u32,
    reserved: u32,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for BulkReport {
    const STRUCT_NAME: &'static str = "pk_bulk_report";
}

/// `pk_bulk_mode`, by number.
const BULK_MODES: [BulkMode; 5] =
    [BulkMode::Auto, BulkMode::Direct, BulkMode::Paced, BulkMode::Uncached, BulkMode::Buffered];

#[unsafe(no_mangle)]
pub extern "C" fn pk_bulk_create(
    path: TextPointer,
    options: OptionsPointer<BulkOptions>,
    bulk: Option<&mut MaybeUninit<Box<BulkHandle>>>,
) -> Status {
    fill(bulk, "the output", || {
        let (path, given) = (path.path()?, options.read()?);
        is_zero(given.reserved)?;
        let mut options = BulkWriter::options().expected_bytes(given.expected_bytes);
        options = match BULK_MODES.get(given.mode as usize) {
            Some(mode) => options.mode(*mode),
            None => return Err(CallFailure::misuse(format!("no pk_bulk_mode is {}", given.mode))),
        };
        if given.budget > 0 {
            options = options.budget(given.budget);
        }
        Ok(Box::new(ExclusiveHandle::new(options.create(path)?)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_bulk_write(bulk: Option<&BulkHandle>, bytes: ArrayPointer<u8>, size: usize) -> Status {
    call(|| {
        let bytes = bytes.slice(size, "the buffer")?;
        Ok(given(bulk, "the output")?.enter()?.write_all(bytes)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_bulk_finish(
    bulk: Option<ClosingHandle<BulkHandle>>,
    report: OutPointer<BulkReport>,
) -> Status {
    call(|| {
        let bulk = bulk.ok_or_else(|| CallFailure::misuse("the output is NULL"))?;
        let checked = if report.is_wanted() { report.check() } else { Ok(()) };
        let bulk = give_up(bulk)?;
        checked?;
        let done = bulk.finish()?;
        if !report.is_wanted() {
            return Ok(());
        }
        report.write(BulkReport {
            struct_size: size_of::<BulkReport>(),
            bytes: done.bytes,
            resident_bytes: done.resident.unwrap_or(u64::MAX),
            took_ns: nanoseconds(done.took),
            waited_ns: nanoseconds(done.waited),
            mode: BULK_MODES
                .iter()
                .position(|mode| *mode == done.mode)
                .and_then(|nth| nth.try_into().ok())
                .unwrap_or(0),
            reserved: 0,
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_bulk_abandon(bulk: Option<ClosingHandle<BulkHandle>>) {
    plain((), || drop(bulk.map(give_up)));
}
