//! Hooks of copies by the kernel: sendfile, `copy_file_range`, splice.
//!
//! Large copies between files are made in parts, so that the rules can act in between. This is safe
//! because the kernel holds neither file's offset during such a call, as it does during a read or a
//! write. All other copies remain one call, which a signal interrupts as usual: a signal between
//! two parts would interrupt nothing, and the second part might block forever.

use core::ffi::{c_int, c_long, c_uint};

use super::read::follow_copy;
use crate::files::identity::FileIdentity;
use crate::files::table::FileRole;
use crate::parts::{self, MAX_TRANSFER, PART_BYTES};
use crate::rules::{FILES, Slot};
use crate::{introspection, process, real, rules, sys};

/// Keeps the `errno` of a success during a copy of several parts, and keeps the copy one
/// cancellation point, at its start.
struct ErrnoGuard {
    errno: c_int,
    cancellable: c_int,
}

impl ErrnoGuard {
    const CANCEL_DISABLE: c_int = 1;

    fn begin() -> Self {
        Self { errno: real::errno(), cancellable: real::set_cancellable(Self::CANCEL_DISABLE) }
    }
}

impl Drop for ErrnoGuard {
    fn drop(&mut self) {
        real::set_cancellable(self.cancellable);
        real::set_errno(self.errno);
    }
}

/// Returns `at` moved by this many bytes.
fn moved(at: Option<u64>, by: usize) -> Option<u64> {
    at.map(|at| at.saturating_add(by as u64))
}

/// The address that stands for the file offset.
const NO_OFFSET: *mut i64 = core::ptr::null_mut();

/// One end of a copy: its descriptor, the address of the program's offset (null: the file offset),
/// and its slot.
struct CopyEnd {
    fd: c_int,
    given: *mut i64,
    slot: Option<&'static Slot>,
}

impl CopyEnd {
    fn new((fd, given): (c_int, *mut i64)) -> Self {
        Self { fd, given, slot: FILES.slot_of(fd) }
    }

    /// Returns its start offset; `None` if it has none that can be known (a pipe, a bad address).
    fn position(&self) -> Option<u64> {
        introspection::position(self.fd, self.given)
    }
}

/// Makes a copy that a rule may apply to. `plain` copies this many bytes.
#[cold]
#[inline(never)]
fn follow(
    from: &CopyEnd,
    to: &CopyEnd,
    length: usize,
    parted: bool,
    plain: &dyn Fn(usize) -> isize,
) -> isize {
    if !process::is_on() || isize::try_from(length).is_err() {
        return plain(length);
    }
    let (from_at, to_at) = (from.position(), to.position());
    let one = |done: usize, asked: usize| {
        let (from_at, to_at) = (moved(from_at, done), moved(to_at, done));
        let from_slot = from.slot.filter(|_| from_at.is_some());
        let result = follow_copy(from_slot, from.fd, from_at, asked, || plain(asked));
        if let (Some(slot), None) = (from_slot, to.slot) {
            rules::sent(slot);
        }
        if let (Some(slot), Some(_)) = (to.slot, to_at) {
            rules::after_write(slot, to.fd, to_at, result);
        }
        result
    };
    if !parted || length <= PART_BYTES || !are_parted(from, to) {
        return one(0, length);
    }
    let length = length.min(MAX_TRANSFER);
    let first = one(0, PART_BYTES);
    if usize::try_from(first) != Ok(PART_BYTES) {
        return first;
    }
    let _guard = ErrnoGuard::begin();
    let rest = length.saturating_sub(PART_BYTES);
    let more = if is_shared(from, from_at) && is_shared(to, to_at) {
        // The file system shares blocks instead of copying them: the rest in one call.
        one(PART_BYTES, rest)
    } else {
        parts::in_parts(rest, |done, asked| one(PART_BYTES.saturating_add(done), asked))
    };
    first.saturating_add(more.max(0))
}

/// Whether the copied part has no resident page, because its blocks are shared.
fn is_shared(end: &CopyEnd, at: Option<u64>) -> bool {
    at.filter(|_| sys::has_counts(end.fd))
        .and_then(|at| sys::cachestat(end.fd, at..at.saturating_add(PART_BYTES as u64)).ok())
        .is_some_and(|seen| seen.cached == 0)
}

/// Whether a copy is made in parts: it belongs to a stream or bulk output, between two files, and
/// its parts do what the whole would.
fn are_parted(from: &CopyEnd, to: &CopyEnd) -> bool {
    let is = |end: &CopyEnd, roles: &[FileRole]| {
        end.slot.and_then(Slot::role).is_some_and(|role| roles.contains(&role))
    };
    if !is(from, &[FileRole::Stream])
        && !is(to, &[FileRole::Stream, FileRole::BulkKept, FileRole::BulkReleased])
    {
        return false;
    }
    let (Ok(a), Ok(b)) = (sys::fstat(from.fd), sys::fstat(to.fd)) else { return false };
    // Overlapping ranges of one file are refused as a whole.
    sys::is_regular(&a)
        && sys::is_regular(&b)
        && FileIdentity::of(&a) != FileIdentity::of(&b)
        && sys::flags(to.fd).is_ok_and(|flags| flags & libc::O_APPEND == 0)
        && !sys::has_size_limit()
}

/// Makes a copy between two ends, each a descriptor and the address of its offset; `plain` copies
/// this many bytes. `parted`: whether it may be made in parts.
#[inline]
fn copied(
    from: (c_int, *mut i64),
    to: (c_int, *mut i64),
    length: usize,
    parted: bool,
    plain: &dyn Fn(usize) -> isize,
) -> isize {
    if FILES.is_followed(from.0) || FILES.is_followed(to.0) {
        follow(&CopyEnd::new(from), &CopyEnd::new(to), length, parted, plain)
    } else {
        plain(length)
    }
}

// A shorter length changes nothing else: the kernel moves both offsets. A pipe holds little, so
// that splice is not made in parts.
hooks! {
    fn [sendfile sendfile64](to: c_int, from: c_int, at: *mut i64, length: usize) -> isize,
    call(libc::SYS_sendfile, to, from, at, length),
    (next) => copied((from, at), (to, NO_OFFSET), length, true, &|length| next(to, from, at, length));
    fn [copy_file_range](
        from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: usize, flags: c_uint
    ) -> isize, call(libc::SYS_copy_file_range, from, from_at, to, to_at, length, flags), (next) => {
        let plain = |length| next(from, from_at, to, to_at, length, flags);
        copied((from, from_at), (to, to_at), length, true, &plain)
    };
    fn [splice](
        from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: usize, flags: c_uint
    ) -> isize, call(libc::SYS_splice, from, from_at, to, to_at, length, flags), (next) => {
        let plain = |length| next(from, from_at, to, to_at, length, flags);
        copied((from, from_at), (to, to_at), length, false, &plain)
    };
}

/// Makes the same calls by their numbers (`syscall(2)`), with the arguments as they came; `plain`
/// copies this many bytes. `None`: another call.
pub(super) fn by_number(
    number: c_long,
    [a, b, c, d, length]: [c_long; 5],
    plain: &dyn Fn(c_long) -> c_long,
) -> Option<c_long> {
    let given = |address: c_long| core::ptr::with_exposed_provenance_mut::<i64>(address as usize);
    let ((from, from_at), (to, to_at), length, in_parts) = match number {
        libc::SYS_sendfile => ((b, given(c)), (a, NO_OFFSET), d, true),
        libc::SYS_copy_file_range => ((a, given(b)), (c, given(d)), length, true),
        libc::SYS_splice => ((a, given(b)), (c, given(d)), length, false),
        _ => return None,
    };
    let one = |length: usize| plain(length as c_long) as isize;
    let (from, to) = ((from as c_int, from_at), (to as c_int, to_at));
    Some(copied(from, to, length as usize, in_parts, &one) as c_long)
}
