//! The residency of a file in the kernel's page cache: counting, releasing, warming.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pagekeeper_kernel::{InspectedFile, Links, ReleaseOptions, WarmOptions, release, residency, warm};

use crate::call::call;
use crate::pointers::{OutPointer, SizedStruct, TextPointer, put};
use crate::queue::timeout;
use crate::status::{CallFailure, Status};

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Residency {
    struct_size: usize,
    resident_bytes: u64,
    dirty_bytes: u64,
    writeback_bytes: u64,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for Residency {
    const STRUCT_NAME: &'static str = "pk_residency";
}

/// Opens a file read-only, as all calls here do. A link is followed.
fn open(path: TextPointer) -> Result<InspectedFile, CallFailure> {
    Ok(InspectedFile::open(path.path()?, Links::Follow)?)
}

fn range(offset: u64, size: u64) -> Range<u64> {
    offset..offset.saturating_add(size)
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_resident(
    path: TextPointer,
    offset: u64,
    size: u64,
    to: OutPointer<Residency>,
) -> Status {
    call(|| {
        let found = residency(&open(path)?, range(offset, size))?;
        to.write(Residency {
            struct_size: size_of::<Residency>(),
            resident_bytes: found.resident,
            dirty_bytes: found.dirty.unwrap_or(u64::MAX),
            writeback_bytes: found.writeback.unwrap_or(u64::MAX),
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_release(
    path: TextPointer,
    offset: u64,
    size: u64,
    timeout_ms: c_int,
    released: Option<&mut MaybeUninit<u64>>,
    kept: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let patience = timeout(timeout_ms).unwrap_or(Duration::from_secs(60));
        let options = ReleaseOptions { patience, explain: false, ..ReleaseOptions::default() };
        let report = release(&open(path)?, range(offset, size), &options)?;
        put(released, report.released);
        put(kept, report.kept());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_warm(
    path: TextPointer,
    offset: u64,
    size: u64,
    loaded: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let never = AtomicBool::new(false);
        let report = warm(&open(path)?, range(offset, size), &WarmOptions::default(), &|_| {}, &never)?;
        put(loaded, report.loaded);
        Ok(())
    })
}
