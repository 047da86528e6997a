//! Files whose pages the rules are to release, tracked in the report's file. At the end, the launcher checks there how much of each is still
//! resident.
//!
//! A file is tracked from its first open by a process of the command, with its resident bytes at that time. If all of its pages were gone
//! when it was closed, its place may be reused.
//!
//! Invariants: nobody waits. Whoever takes a place may change it; it counts once it is [`TRACKED`]. One file may have two places if two
//! processes opened it at once; the launcher handles that. Without a free place, [`Count::NotTracked`] counts the file. Without a report
//! nothing is done.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

use crate::counters::{Count, Mapped};
use crate::process::count;
use crate::residency::ResidencyProbe;
use crate::sys::{self, DescriptorPath};
use crate::tracked_place::{FileEvents, PATH, PLACES, TRACKED, TrackedPlace, UNKNOWN};

/// Places that a file may take, from the one of its hash on.
const NEAR: usize = 32;

static REPORT: AtomicPtr<Mapped> = AtomicPtr::new(core::ptr::null_mut());

/// Tracks files in a report from now on.
pub fn track_in(report: &'static Mapped) {
    REPORT.store((&raw const *report).cast_mut(), Ordering::Release);
}

#[allow(unsafe_code, reason = "follows the pointer to the report")]
fn places() -> Option<&'static [TrackedPlace; PLACES]> {
    // SAFETY: null, or the argument of `track_in`, which lives as long as the process.
    unsafe { REPORT.load(Ordering::Acquire).as_ref() }.map(|report| &report.places)
}

/// Returns the places that a file may take.
fn near(
    places: &[TrackedPlace; PLACES],
    device: u64,
    inode: u64,
) -> impl Iterator<Item = &TrackedPlace> + Clone {
    let hash = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (0..NEAR).filter_map(move |nth| places.get((hash as usize + nth) % PLACES))
}

fn find(device: u64, inode: u64) -> Option<&'static TrackedPlace> {
    near(places()?, device, inode).find(|place| place.is_of(device, inode))
}

/// Returns the file's resident bytes; [`UNKNOWN`] if they cannot be seen.
fn resident(fd: c_int, size: u64, has_counts: bool) -> u64 {
    let mut probe = ResidencyProbe::NEW;
    if !probe.can_see(fd, size, has_counts) {
        return UNKNOWN;
    }
    probe.learn(fd);
    probe.resident(fd, &(0..size)).unwrap_or(UNKNOWN)
}

/// Tracks a newly opened file that a rule applies to. `path` is as the program gave it.
#[inline(never)]
pub fn opened(fd: c_int, stat: &libc::stat, path: Option<&CStr>, has_counts: bool) {
    let Some(places) = places() else { return };
    let near = near(places, stat.st_dev, stat.st_ino);
    if let Some(place) = near.clone().find(|place| place.is_of(stat.st_dev, stat.st_ino))
        // Otherwise the resident bytes of now are those from before.
        && !place.has(FileEvents::Gone)
    {
        place.seen.fetch_or(FileEvents::Open as u32, Ordering::Relaxed);
        return;
    }
    // Prefers the file's previous place.
    let own = near.clone().find(|place| place.is_of(stat.st_dev, stat.st_ino) && place.take());
    let Some(place) = own.or_else(|| near.clone().find(|place| place.take())) else {
        return count(Count::NotTracked, 1);
    };
    place.device.store(stat.st_dev, Ordering::Relaxed);
    place.inode.store(stat.st_ino, Ordering::Relaxed);
    place.before.store(resident(fd, stat.st_size.max(0) as u64, has_counts), Ordering::Relaxed);
    for number in [&place.at_close, &place.unobserved] {
        number.store(0, Ordering::Relaxed);
    }
    place.seen.store(FileEvents::Open as u32, Ordering::Relaxed);
    let mut whole = [0; PATH];
    let link = DescriptorPath::new(b"/proc/thread-self/fd/", fd);
    // A path that fills the buffer may be cut off.
    let whole = sys::read_link(link.as_c_str(), &mut whole).ok().filter(|path| path.len() < PATH);
    place.name(whole.or(path.map(CStr::to_bytes)).unwrap_or_default());
    place.state.store(TRACKED, Ordering::Release);
}

/// Records an event of a tracked file.
pub fn saw(device: u64, inode: u64, what: FileEvents) {
    if let Some(place) = find(device, inode) {
        place.seen.fetch_or(what as u32, Ordering::Relaxed);
    }
}

/// Records that a file is about to be closed. `unobserved`: the bytes read whose residency could not be seen.
pub fn closing(fd: c_int, device: u64, inode: u64, unobserved: u64, has_counts: bool) {
    let Some(place) = find(device, inode) else { return };
    place.unobserved.fetch_add(unobserved, Ordering::Relaxed);
    let Ok(stat) = sys::fstat(fd) else { return };
    let resident = resident(fd, stat.st_size.max(0) as u64, has_counts);
    let before = place.before.load(Ordering::Relaxed);
    let is_known = resident != UNKNOWN && before != UNKNOWN;
    place.at_close.store(if is_known { resident.saturating_sub(before) } else { 0 }, Ordering::Relaxed);
    let is_gone = stat.st_nlink == 0 || is_known && resident <= before;
    place.seen.fetch_and(!(FileEvents::Open as u32 | FileEvents::Gone as u32), Ordering::Relaxed);
    place.seen.fetch_or(if is_gone { FileEvents::Gone as u32 } else { 0 }, Ordering::Relaxed);
}

/// Records that a file is about to lose its last name: its pages go with it.
pub fn lost(stat: &libc::stat) {
    if let Some(place) = find(stat.st_dev, stat.st_ino) {
        place.at_close.store(0, Ordering::Relaxed);
    }
}

/// Whether files are tracked.
#[inline]
pub fn is_on() -> bool {
    !REPORT.load(Ordering::Relaxed).is_null()
}

/// Records that a file was released after it was closed.
pub fn released(fd: c_int) {
    if places().is_some()
        && let Ok(stat) = sys::fstat(fd)
    {
        closing(fd, stat.st_dev, stat.st_ino, 0, sys::has_counts(fd));
    }
}

/// Records the new name of a file, relative to the directory `at`. Neither is read unless files are tracked.
#[inline(never)]
pub fn renamed(at: c_int, path: &CStr) {
    let Some(places) = places() else { return };
    let Ok(stat) = sys::stat_at(at, path.as_ptr().addr()) else { return };
    let Some(place) =
        near(places, stat.st_dev, stat.st_ino).find(|place| place.is_of(stat.st_dev, stat.st_ino))
    else {
        return;
    };
    let path = path.to_bytes();
    if path.first() == Some(&b'/') {
        return place.name(path);
    }
    let mut whole = [0; PATH];
    let link = DescriptorPath::new(b"/proc/thread-self/fd/", at);
    let link = if at == libc::AT_FDCWD { c"/proc/thread-self/cwd" } else { link.as_c_str() };
    let length = sys::read_link(link, &mut whole).map_or(0, <[u8]>::len);
    let rest = whole.get_mut(length..).unwrap_or_default();
    // The launcher does not find a file whose path is cut off; it then reports its last known state.
    for (to, &byte) in rest.iter_mut().zip(b"/".iter().chain(path)) {
        *to = byte;
    }
    let end = (length + 1 + path.len()).min(PATH);
    place.name(whole.get(..end).unwrap_or_default());
}
