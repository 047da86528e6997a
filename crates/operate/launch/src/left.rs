//! The pages left in the page cache of the files that the command's streams used: checked by this
//! process after the command has ended.
//!
//! A file is opened by the path at which a process saw it, if that still leads there, and its
//! resident pages are counted. The excess over those resident before the command opened it has
//! stayed. Invariants: nothing is changed. A path comes from the processes, and leads to no file
//! but the recorded one. If it does not lead there (removed, renamed by an unseen call, in another
//! root), the state at the file's close counts. Never fails.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use pagekeeper_kernel::{ExpectedFile, Inode, Links, PathHandle, residency};
use pagekeeper_preload::tracked_place::{FileEvents, TrackedPlace, UNKNOWN};
use pagekeeper_text::{ByteSize, escaped, unescaped};
use serde::{Serialize, Serializer};

/// Maximum number of files listed for people; the others are summed up in one line.
const LISTED_FILES_MAX: usize = 8;

/// The reason why pages stayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StayCause {
    /// Being written, or in a pipe or a socket that nobody has read yet.
    InFlight,
    /// A process maps them, or did.
    Mapped,
    /// The user may read the file, but may not query or release its pages individually.
    NotPermitted,
    /// Their process ended before it closed the file.
    Killed,
    /// Read or written by calls that no rule sees.
    Unseen,
    /// Small, on a disk that took longer than the wait.
    NotWaitedFor,
    /// Somebody else reads them, too.
    AnotherReader,
}

impl StayCause {
    const fn sentence(self) -> &'static str {
        match self {
            Self::InFlight => "in flight: being written or sent",
            Self::Mapped => "mapped",
            Self::NotPermitted => "not permitted: this user may only read the file",
            Self::Killed => "its process was killed",
            Self::Unseen => "used by calls that no rule sees",
            Self::NotWaitedFor => "small, and not waited for",
            Self::AnotherReader => "another reader has them",
        }
    }
}

/// A tracked file, as the command's processes left it.
#[derive(Clone, Copy)]
struct TrackedFile<'a> {
    place: &'a TrackedPlace,
    /// Bytes resident before a process of the command opened it; `None` if that could not be seen.
    before: Option<u64>,
    at_close: u64,
    unobserved: u64,
}

impl<'a> TrackedFile<'a> {
    fn of(place: &'a TrackedPlace) -> Self {
        let [before, at_close, unobserved] =
            [&place.before, &place.at_close, &place.unobserved].map(|bytes| bytes.load(Ordering::Relaxed));
        Self { place, before: Some(before).filter(|before| *before != UNKNOWN), at_close, unobserved }
    }

    fn path(&self) -> PathBuf {
        OsString::from_vec(self.place.path().collect()).into()
    }
}

/// The pages of one file that stayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftFileReport {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    stayed_bytes: u64,
    why: StayCause,
    /// Whether this was checked now; otherwise it is the state at close.
    checked: bool,
}

fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&unescaped(path))
}

/// All pages that stayed, largest first.
#[derive(Debug, Default, Serialize)]
pub struct LeftPages(Vec<LeftFileReport>);

impl LeftPages {
    /// Checks the files.
    pub(crate) fn now(places: &[TrackedPlace]) -> Self {
        // Two processes that opened a file at once may have recorded it twice.
        let mut files: BTreeMap<Inode, TrackedFile<'_>> = BTreeMap::new();
        for place in places.iter().filter(|place| place.is_tracked()) {
            let (file, known) = (place.file.get(), TrackedFile::of(place));
            let first = files.entry(Inode { dev: file.device, ino: file.inode }).or_insert(known);
            first.before = first.before.min(known.before);
        }
        let mut left: Vec<LeftFileReport> =
            files.into_iter().filter_map(|(inode, file)| check_left_pages(inode, &file)).collect();
        left.sort_by(|a, b| b.stayed_bytes.cmp(&a.stayed_bytes).then_with(|| a.path.cmp(&b.path)));
        Self(left)
    }

    /// Returns the total bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|file| file.stayed_bytes).sum()
    }

    /// Returns a line for each file, and one for those beyond `LISTED_FILES_MAX`.
    pub fn lines(&self) -> Vec<String> {
        let listed = self.0.iter().take(LISTED_FILES_MAX).map(|file| {
            let LeftFileReport { path, stayed_bytes, why, checked } = file;
            let when = if *checked { "" } else { ", as it was closed" };
            format!("{} of {} ({}{when})", ByteSize(*stayed_bytes), escaped(path), why.sentence())
        });
        let rest = self.0.get(LISTED_FILES_MAX..).unwrap_or_default();
        let bytes: u64 = rest.iter().map(|file| file.stayed_bytes).sum();
        let rest = (!rest.is_empty()).then(|| format!("{} of {} more files", ByteSize(bytes), rest.len()));
        listed.chain(rest).collect()
    }
}

/// Returns what stayed of a file; `None` if nothing did.
fn check_left_pages(inode: Inode, file: &TrackedFile<'_>) -> Option<LeftFileReport> {
    let path = file.path();
    let opened =
        PathHandle::at(&path, Links::Refuse).and_then(|handle| handle.open(ExpectedFile::Inode(inode)));
    let seen = opened.as_ref().ok().map(|opened| residency(opened, 0..u64::MAX));
    let (stayed_bytes, why, checked) = match (seen, file.before) {
        (Some(Ok(now)), Some(before)) => {
            let stayed = now.resident.saturating_sub(before);
            let why = if now.unwritten() > 0 { StayCause::InFlight } else { stay_cause(file, stayed) };
            (stayed, why, true)
        }
        // The command could not see it, and perhaps this process can't either.
        (Some(Ok(now)), None) => (file.unobserved.min(now.resident), StayCause::NotPermitted, true),
        (Some(Err(_)), _) => (file.unobserved, StayCause::NotPermitted, false),
        (None, _) => (file.at_close, stay_cause(file, file.at_close), false),
    };
    (stayed_bytes > 0).then_some(LeftFileReport { path, stayed_bytes, why, checked })
}

/// Returns why clean pages of a file stayed.
fn stay_cause(file: &TrackedFile<'_>, stayed: u64) -> StayCause {
    if file.place.has(FileEvents::Mapped) {
        StayCause::Mapped
    } else if file.place.has(FileEvents::Open) {
        StayCause::Killed
    } else if stayed > file.at_close && file.at_close == 0 {
        // There were none when it was closed.
        StayCause::AnotherReader
    } else if file.place.has(FileEvents::Sent) {
        StayCause::InFlight
    } else if file.place.has(FileEvents::NotWaitedFor) {
        StayCause::NotWaitedFor
    } else if file.place.has(FileEvents::Unseen) {
        StayCause::Unseen
    } else {
        StayCause::AnotherReader
    }
}
