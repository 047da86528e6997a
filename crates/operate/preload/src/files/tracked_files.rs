//! Files whose pages the rules are to release, tracked in the report's file. At the end, the
//! launcher checks there how much of each is still resident.
//!
//! A file is tracked from its first open by a process of the command, with its resident bytes at
//! that time. If all of its pages were gone when it was closed, its place may be reused.
//!
//! Invariants: nobody waits. Whoever takes a place may change it; it counts once it is [`TRACKED`].
//! One file may have two places if two processes opened it at once; the launcher handles that.
//! Without a free place, [`Count::NotTracked`] counts the file. Without a report nothing is done.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

use crate::counters::{Count, MappedReport};
use crate::files::identity::FileIdentity;
use crate::files::paths::{join, path_of};
use crate::files::tracked_place::{FileEvents, PATH, PLACES, TRACKED, TrackedPlace, UNKNOWN};
use crate::pages::residency::ResidencyProbe;
use crate::process::count;
use crate::sys;

/// Places that a file may take, from the one of its hash on.
const NEAR_PLACES: usize = 32;

static TRACKING_REPORT: AtomicPtr<MappedReport> = AtomicPtr::new(core::ptr::null_mut());

/// Tracks files in a report from now on.
pub fn track_in(report: &'static MappedReport) {
    TRACKING_REPORT.store((&raw const *report).cast_mut(), Ordering::Release);
}

fn places() -> Option<&'static [TrackedPlace; PLACES]> {
    // SAFETY: null, or the argument of `track_in`, which lives as long as the process.
    unsafe { TRACKING_REPORT.load(Ordering::Acquire).as_ref() }.map(|report| &report.places)
}

/// Returns the places that a file may take.
fn near(places: &[TrackedPlace; PLACES], file: FileIdentity) -> impl Iterator<Item = &TrackedPlace> + Clone {
    let first = (file.hash() >> 48) as usize;
    (0..NEAR_PLACES).filter_map(move |nth| places.get((first + nth) % PLACES))
}

fn find(file: FileIdentity) -> Option<&'static TrackedPlace> {
    near(places()?, file).find(|place| place.is_of(file))
}

/// Returns the file's resident bytes; [`UNKNOWN`] if they cannot be seen.
fn resident(fd: c_int, size: u64, has_counts: bool) -> u64 {
    let mut probe = ResidencyProbe::NEW;
    if !probe.can_see(fd, size, has_counts) {
        return UNKNOWN;
    }
    probe.resident(fd, &(0..size)).unwrap_or(UNKNOWN)
}

/// Tracks a newly opened file that a rule applies to. `path` is as the program gave it.
#[inline(never)]
pub fn opened(fd: c_int, stat: &libc::stat, path: Option<&CStr>, has_counts: bool) {
    let Some(places) = places() else { return };
    let file = FileIdentity::of(stat);
    let near = near(places, file);
    if let Some(place) = near.clone().find(|place| place.is_of(file))
        // Otherwise the resident bytes of now are those from before.
        && !place.has(FileEvents::Gone)
    {
        place.seen.fetch_or(FileEvents::Open as u32, Ordering::Relaxed);
        return;
    }
    // Prefers the file's previous place.
    let own = near.clone().find(|place| place.is_of(file) && place.take());
    let Some(place) = own.or_else(|| near.clone().find(|place| place.take())) else {
        return count(Count::NotTracked, 1);
    };
    place.file.set(file);
    place.before.store(resident(fd, sys::size_in(stat), has_counts), Ordering::Relaxed);
    for number in [&place.at_close, &place.unobserved] {
        number.store(0, Ordering::Relaxed);
    }
    place.seen.store(FileEvents::Open as u32, Ordering::Relaxed);
    let mut whole = [0; PATH];
    // A path that fills the buffer may be cut off.
    let whole = path_of(fd, &mut whole).ok().filter(|path| path.len() < PATH);
    place.name(whole.or(path.map(CStr::to_bytes)).unwrap_or_default());
    place.state.store(TRACKED, Ordering::Release);
}

/// Records an event of a tracked file.
pub fn saw(file: FileIdentity, what: FileEvents) {
    if let Some(place) = find(file) {
        place.seen.fetch_or(what as u32, Ordering::Relaxed);
    }
}

/// Records that a file is about to be closed. `unobserved`: the bytes read whose residency could
/// not be seen.
pub fn closing(fd: c_int, file: FileIdentity, unobserved: u64, has_counts: bool) {
    let Some(place) = find(file) else { return };
    place.unobserved.fetch_add(unobserved, Ordering::Relaxed);
    let Ok(stat) = sys::fstat(fd) else { return };
    let resident = resident(fd, sys::size_in(&stat), has_counts);
    let before = place.before.load(Ordering::Relaxed);
    let is_known = resident != UNKNOWN && before != UNKNOWN;
    place.at_close.store(if is_known { resident.saturating_sub(before) } else { 0 }, Ordering::Relaxed);
    let is_gone = stat.st_nlink == 0 || is_known && resident <= before;
    place.seen.fetch_and(!(FileEvents::Open as u32 | FileEvents::Gone as u32), Ordering::Relaxed);
    place.seen.fetch_or(if is_gone { FileEvents::Gone as u32 } else { 0 }, Ordering::Relaxed);
}

/// Records that a file is about to lose its last name: its pages go with it.
pub fn lost(stat: &libc::stat) {
    if let Some(place) = find(FileIdentity::of(stat)) {
        place.at_close.store(0, Ordering::Relaxed);
    }
}

/// Whether files are tracked.
#[inline]
pub fn is_on() -> bool {
    !TRACKING_REPORT.load(Ordering::Relaxed).is_null()
}

/// Records that a file was released after it was closed.
pub fn released(fd: c_int) {
    if places().is_some()
        && let Ok(stat) = sys::fstat(fd)
    {
        closing(fd, FileIdentity::of(&stat), 0, sys::has_counts(fd));
    }
}

/// Records the new name of a file, relative to the directory `at`. Neither is read unless files are
/// tracked.
#[inline(never)]
pub fn renamed(at: c_int, path: &CStr) {
    if !is_on() {
        return;
    }
    let Ok(stat) = sys::lstat_at(at, path.as_ptr().addr()) else { return };
    let Some(place) = find(FileIdentity::of(&stat)) else { return };
    let path = path.to_bytes();
    if path.first() == Some(&b'/') {
        return place.name(path);
    }
    let (mut directory, mut whole) = ([0; PATH], [0; PATH]);
    let directory = path_of(at, &mut directory).unwrap_or_default();
    // The launcher does not find a file by a path that is too long; it then reports its last known
    // state.
    place.name(join(&mut whole, &[directory, b"/", path]).map_or(path, CStr::to_bytes));
}
