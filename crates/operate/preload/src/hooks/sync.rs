//! Hooks that sync files, and hooks of the program's own advice.

use core::ffi::c_int;

use pagekeeper_policy::stream::SAMPLE_AHEAD_BYTES;

use super::read::prefetch;
use crate::rules::Slot;
use crate::{process, rules, sys};

/// Whether the advice is left out. Samples a part that the program asks to bring in.
fn advised(slot: &Slot, fd: c_int, at: i64, length: i64, advice: c_int) -> bool {
    if advice == libc::POSIX_FADV_WILLNEED {
        // Without a length, up to the end of the file; the kernel brings in less at a time.
        let length = if length == 0 { SAMPLE_AHEAD_BYTES as i64 } else { length };
        // The kernel refuses a negative length: nothing is brought in.
        prefetch(slot, fd, at, usize::try_from(length).unwrap_or(0));
    }
    // Advice that the kernel would refuse is passed on.
    length >= 0 && process::is_on() && rules::leaves_out(slot, advice) && sys::flags(fd).is_ok()
}

/// Notifies the rules of a sync, and returns what the call did.
pub(super) fn synced(slot: &Slot, fd: c_int, done: c_int) -> c_int {
    if process::is_on() {
        rules::after_sync(slot, fd, done);
    }
    done
}

hooks! {
    fn [fsync](fd: c_int) -> c_int, call(libc::SYS_fsync, fd), (slot of fd, next) => synced(slot, fd, next(fd));
    fn [fdatasync](fd: c_int) -> c_int, call(libc::SYS_fdatasync, fd), (slot of fd, next) => synced(slot, fd, next(fd));
    fn [posix_fadvise posix_fadvise64](fd: c_int, at: i64, length: i64, advice: c_int) -> c_int, or(libc::ENOSYS),
    (slot of fd, next) => if advised(slot, fd, at, length, advice) { 0 } else { next(fd, at, length, advice) };
}
