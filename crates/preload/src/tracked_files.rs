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
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::counters::{Count, Mapped};
use crate::process::count;
use crate::residency::ResidencyProbe;
use crate::sys::{self, DescriptorPath};

/// Files tracked at a time.
pub const PLACES: usize = 1024;
/// Bytes of a path that are kept. A longer path is kept without its beginning.
pub const PATH: usize = 448;
/// Places that a file may take, from the one of its hash on.
const NEAR: usize = 32;

/// The place is free.
const FREE: u32 = 0;
/// The place is being filled in.
const BEING_TAKEN: u32 = 1;
/// The place is valid.
pub const TRACKED: u32 = 2;

/// The file's residency cannot be seen.
pub const UNKNOWN: u64 = u64::MAX;

/// Events of a file, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FileEvents {
    /// All of its pages were gone when it was closed.
    Gone = 1,
    /// It was mapped.
    Mapped = 2,
    /// It was used by calls that are not hooked.
    Unseen = 4,
    /// The kernel copied it to something that is not a file: a pipe or a socket, which may hold its pages.
    Sent = 8,
    /// It is open; nobody has closed it since.
    Open = 16,
    /// It was small, and not written yet when its process went on.
    NotWaitedFor = 32,
}

/// The place of a tracked file.
#[repr(C, align(64))]
pub struct TrackedPlace {
    state: AtomicU32,
    seen: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
    before: AtomicU64,
    at_close: AtomicU64,
    unobserved: AtomicU64,
    path: [AtomicU64; PATH / 8],
}

impl TrackedPlace {
    fn is_of(&self, device: u64, inode: u64) -> bool {
        self.state.load(Ordering::Acquire) == TRACKED
            && self.inode.load(Ordering::Relaxed) == inode
            && self.device.load(Ordering::Relaxed) == device
    }

    fn has(&self, what: FileEvents) -> bool {
        self.seen.load(Ordering::Relaxed) & what as u32 != 0
    }

    /// Takes the place if it is free, or not needed any more.
    fn take(&self) -> bool {
        let from = match self.state.load(Ordering::Relaxed) {
            FREE => FREE,
            TRACKED if self.has(FileEvents::Gone) => TRACKED,
            _ => return false,
        };
        self.state.compare_exchange(from, BEING_TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the path; of a long one, only its end.
    fn name(&self, path: &[u8]) {
        let from = path.len().saturating_sub(PATH - 1);
        let mut kept = [0; PATH];
        for (to, &byte) in kept.iter_mut().zip(path.get(from..).unwrap_or_default()) {
            *to = byte;
        }
        for (word, bytes) in self.path.iter().zip(kept.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
    }
}

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

/// A tracked file, as the launcher reads it.
#[cfg(not(feature = "interpose"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedFile {
    /// Its device, as `st_dev` encodes it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its path, as a process saw it; without its beginning if it is too long.
    pub path: std::path::PathBuf,
    /// Bytes resident before a process of the command opened it; `None` if that could not be seen.
    pub before: Option<u64>,
    /// Additional resident bytes at its last close; 0 if it was never closed.
    pub at_close: u64,
    /// Bytes read whose residency could not be seen.
    pub unobserved: u64,
    seen: u32,
}

#[cfg(not(feature = "interpose"))]
impl TrackedFile {
    /// Whether that event was seen.
    pub fn has(&self, what: FileEvents) -> bool {
        self.seen & what as u32 != 0
    }

    /// Reads a place; `None` if it is not valid.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        use core::mem::offset_of;
        use std::os::unix::ffi::OsStringExt as _;

        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let half = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        if half(offset_of!(TrackedPlace, state))? != TRACKED {
            return None;
        }
        let path = bytes.get(offset_of!(TrackedPlace, path)..)?.get(..PATH)?;
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(Self {
            device: word(offset_of!(TrackedPlace, device))?,
            inode: word(offset_of!(TrackedPlace, inode))?,
            path: std::ffi::OsString::from_vec(path.to_vec()).into(),
            before: word(offset_of!(TrackedPlace, before)).filter(|&before| before != UNKNOWN),
            at_close: word(offset_of!(TrackedPlace, at_close))?,
            unobserved: word(offset_of!(TrackedPlace, unobserved))?,
            seen: half(offset_of!(TrackedPlace, seen))?,
        })
    }
}
