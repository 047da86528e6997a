//! Files whose pages the rules are to release, noted in the report's file: the launcher checks there at the end what is left of each.
//!
//! A file is noted as a process of the command first opens it, with what was resident of it then. What was seen to be all gone as it was
//! closed leaves its place to others.
//!
//! Invariants: nobody waits; a place is changed by whoever takes it, and counts once it is [`NOTED`]; one file in two places (two processes
//! opened it at once) is the launcher's to see. Where there is no place, [`Count::NotNoted`] says so. Without a report nothing is done.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::counters::{Count, Mapped};
use crate::process::count;
use crate::residency::ResidencyProbe;
use crate::sys::{self, DescriptorPath};

/// Files that have a place at a time.
pub const PLACES: usize = 1024;
/// Bytes of a path that are kept. A longer one is kept without its beginning.
pub const PATH: usize = 448;
/// Places that a file may have: from the one of its hash on.
const NEAR: usize = 32;

/// The place is free.
const FREE: u32 = 0;
/// It is being taken.
const BEING_TAKEN: u32 = 1;
/// It says what it says.
pub const NOTED: u32 = 2;

/// Nothing can be seen of the file's residency.
pub const UNKNOWN: u64 = u64::MAX;

/// What was seen to happen to a file: bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Seen {
    /// It was all gone as it was closed.
    Gone = 1,
    /// It was mapped.
    Mapped = 2,
    /// It was used by calls that no rule sees.
    Unseen = 4,
    /// The kernel copied it to what is no file: a pipe or a socket, which may hold its pages.
    Sent = 8,
    /// It was closed by none of those who opened it since.
    Open = 16,
    /// It was small, and not written yet as its process went on.
    NotWaitedFor = 32,
}

/// A place.
#[repr(C, align(64))]
pub struct Place {
    state: AtomicU32,
    seen: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
    before: AtomicU64,
    at_close: AtomicU64,
    unobserved: AtomicU64,
    path: [AtomicU64; PATH / 8],
}

impl Place {
    fn is_of(&self, device: u64, inode: u64) -> bool {
        self.state.load(Ordering::Acquire) == NOTED
            && self.inode.load(Ordering::Relaxed) == inode
            && self.device.load(Ordering::Relaxed) == device
    }

    fn has(&self, what: Seen) -> bool {
        self.seen.load(Ordering::Relaxed) & what as u32 != 0
    }

    /// Takes it, if it is free, or nobody needs it any more.
    fn take(&self) -> bool {
        let from = match self.state.load(Ordering::Relaxed) {
            FREE => FREE,
            NOTED if self.has(Seen::Gone) => NOTED,
            _ => return false,
        };
        self.state.compare_exchange(from, BEING_TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the path: the end of one that is too long.
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

/// Notes files in a report from now on.
pub fn note_in(report: &'static Mapped) {
    REPORT.store((&raw const *report).cast_mut(), Ordering::Release);
}

#[allow(unsafe_code, reason = "follows the pointer to the report")]
fn places() -> Option<&'static [Place; PLACES]> {
    // SAFETY: null, or what `note_in` was given, which lives as long as the process.
    unsafe { REPORT.load(Ordering::Acquire).as_ref() }.map(|report| &report.places)
}

/// The places that a file may have.
fn near(places: &[Place; PLACES], device: u64, inode: u64) -> impl Iterator<Item = &Place> + Clone {
    let hash = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (0..NEAR).filter_map(move |nth| places.get((hash as usize + nth) % PLACES))
}

fn find(device: u64, inode: u64) -> Option<&'static Place> {
    near(places()?, device, inode).find(|place| place.is_of(device, inode))
}

/// Bytes of the file that are resident; [`UNKNOWN`] where that can't be seen.
fn resident(fd: c_int, size: u64, has_counts: bool) -> u64 {
    let mut probe = ResidencyProbe::NEW;
    if !probe.can_see(fd, size, has_counts) {
        return UNKNOWN;
    }
    probe.learn(fd);
    probe.resident(fd, &(0..size)).unwrap_or(UNKNOWN)
}

/// A file was opened, which a rule is for. `path` as the program gave it.
#[inline(never)]
pub fn opened(fd: c_int, stat: &libc::stat, path: Option<&CStr>, has_counts: bool) {
    let Some(places) = places() else { return };
    let near = near(places, stat.st_dev, stat.st_ino);
    if let Some(place) = near.clone().find(|place| place.is_of(stat.st_dev, stat.st_ino))
        // Else what is resident now is what was there before.
        && !place.has(Seen::Gone)
    {
        place.seen.fetch_or(Seen::Open as u32, Ordering::Relaxed);
        return;
    }
    // One that is gone keeps its place.
    let own = near.clone().find(|place| place.is_of(stat.st_dev, stat.st_ino) && place.take());
    let Some(place) = own.or_else(|| near.clone().find(|place| place.take())) else {
        return count(Count::NotNoted, 1);
    };
    place.device.store(stat.st_dev, Ordering::Relaxed);
    place.inode.store(stat.st_ino, Ordering::Relaxed);
    place.before.store(resident(fd, stat.st_size.max(0) as u64, has_counts), Ordering::Relaxed);
    for number in [&place.at_close, &place.unobserved] {
        number.store(0, Ordering::Relaxed);
    }
    place.seen.store(Seen::Open as u32, Ordering::Relaxed);
    let mut whole = [0; PATH];
    let link = DescriptorPath::new(b"/proc/thread-self/fd/", fd);
    // What fills it has no end that could be known.
    let whole = sys::read_link(link.as_c_str(), &mut whole).ok().filter(|path| path.len() < PATH);
    place.name(whole.or(path.map(CStr::to_bytes)).unwrap_or_default());
    place.state.store(NOTED, Ordering::Release);
}

/// Something was seen of a file that is noted.
pub fn saw(device: u64, inode: u64, what: Seen) {
    if let Some(place) = find(device, inode) {
        place.seen.fetch_or(what as u32, Ordering::Relaxed);
    }
}

/// A file is about to be closed, of which nothing was known of so many bytes that were read.
pub fn closing(fd: c_int, device: u64, inode: u64, unobserved: u64, has_counts: bool) {
    let Some(place) = find(device, inode) else { return };
    place.unobserved.fetch_add(unobserved, Ordering::Relaxed);
    let Ok(stat) = sys::fstat(fd) else { return };
    let resident = resident(fd, stat.st_size.max(0) as u64, has_counts);
    let before = place.before.load(Ordering::Relaxed);
    let is_known = resident != UNKNOWN && before != UNKNOWN;
    place.at_close.store(if is_known { resident.saturating_sub(before) } else { 0 }, Ordering::Relaxed);
    let is_gone = stat.st_nlink == 0 || is_known && resident <= before;
    place.seen.fetch_and(!(Seen::Open as u32 | Seen::Gone as u32), Ordering::Relaxed);
    place.seen.fetch_or(if is_gone { Seen::Gone as u32 } else { 0 }, Ordering::Relaxed);
}

/// A file is about to lose its last name: its pages go with it.
pub fn lost(stat: &libc::stat) {
    if let Some(place) = find(stat.st_dev, stat.st_ino) {
        place.at_close.store(0, Ordering::Relaxed);
    }
}

/// Whether files are noted.
#[inline]
pub fn is_on() -> bool {
    !REPORT.load(Ordering::Relaxed).is_null()
}

/// A file was released after it was closed.
pub fn released(fd: c_int) {
    if places().is_some()
        && let Ok(stat) = sys::fstat(fd)
    {
        closing(fd, stat.st_dev, stat.st_ino, 0, sys::has_counts(fd));
    }
}

/// A file has the name `path` now, relative to the directory of `at`: neither is read unless it is noted.
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
    // One that has no room is not found by the launcher, which then says what was seen last.
    for (to, &byte) in rest.iter_mut().zip(b"/".iter().chain(path)) {
        *to = byte;
    }
    let end = (length + 1 + path.len()).min(PATH);
    place.name(whole.get(..end).unwrap_or_default());
}

/// One that the launcher reads.
#[cfg(not(feature = "interpose"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedFile {
    /// Its device, as `st_dev` encodes it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its path, as a process saw it; without its beginning where that is too long.
    pub path: std::path::PathBuf,
    /// Bytes that were resident before a process of the command opened it; `None` where that could not be seen.
    pub before: Option<u64>,
    /// Bytes more that were so as it was closed last; 0 where it never was.
    pub at_close: u64,
    /// Bytes that were read of which nothing could be seen.
    pub unobserved: u64,
    seen: u32,
}

#[cfg(not(feature = "interpose"))]
impl NotedFile {
    /// Whether that was seen.
    pub fn has(&self, what: Seen) -> bool {
        self.seen & what as u32 != 0
    }

    /// What a place's bytes say; `None`: nothing yet.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        use core::mem::offset_of;
        use std::os::unix::ffi::OsStringExt as _;

        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let half = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        if half(offset_of!(Place, state))? != NOTED {
            return None;
        }
        let path = bytes.get(offset_of!(Place, path)..)?.get(..PATH)?;
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(Self {
            device: word(offset_of!(Place, device))?,
            inode: word(offset_of!(Place, inode))?,
            path: std::ffi::OsString::from_vec(path.to_vec()).into(),
            before: word(offset_of!(Place, before)).filter(|&before| before != UNKNOWN),
            at_close: word(offset_of!(Place, at_close))?,
            unobserved: word(offset_of!(Place, unobserved))?,
            seen: half(offset_of!(Place, seen))?,
        })
    }
}
