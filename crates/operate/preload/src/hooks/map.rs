//! Hooks of file mappings.

use core::ffi::{c_int, c_void};

use crate::rules::Slot;
use crate::{process, rules};

/// The return value of a failed mmap.
const MAP_FAILED: isize = -1;

fn mapped(slot: &Slot, from: i64, length: usize) {
    if process::is_on()
        && let Ok(from) = u64::try_from(from)
    {
        rules::after_map(slot, from..from.saturating_add(length as u64));
    }
}

hooks! {
    fn [mmap mmap64](at: *mut c_void, length: usize, access: c_int, flags: c_int, fd: c_int, from: i64) -> isize,
    call(libc::SYS_mmap, at, length, access, flags, fd, from), (slot of fd, next) => {
        let address = next(at, length, access, flags, fd, from);
        if flags & libc::MAP_ANONYMOUS == 0 && address != MAP_FAILED {
            mapped(slot, from, length);
        }
        address
    };
}
