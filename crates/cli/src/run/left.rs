//! What is left in the page cache of the files that the command's streams used: checked by this process as the command has ended.
//!
//! A file is opened by the path at which a process saw it, if that still leads there, and its resident pages are counted. What is more
//! than was resident before the command opened it stayed. Invariants: nothing is changed; a path is the processes' word, and leads to no
//! file but the one that was noted. Where it does not lead there (removed, renamed by a call that is not seen, in another root), what the
//! process saw as it closed the file stands. Never fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagekeeper_catalog::units::Size;
use pagekeeper_kernel::text::{escaped, unescaped};
use pagekeeper_kernel::{Expected, Handle, Inode, Links, residency};
use pagekeeper_preload::tracked_files::{FileEvents, TrackedFile};
use serde::{Serialize, Serializer};

/// Files that are listed for people; what is left of the others is one line.
const LISTED: usize = 8;

/// Why pages stayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Why {
    /// Being written, or in a pipe or a socket that nobody has read yet.
    InFlight,
    /// A process maps them, or has.
    Mapped,
    /// The user may read the file, and not see or release its pages one by one.
    NotPermitted,
    /// Their process ended before it closed the file.
    Killed,
    /// Read or written by calls that no rule sees.
    Unseen,
    /// Small, and written by a disk that took longer than was waited.
    NotWaitedFor,
    /// Somebody else reads them, too.
    AnotherReader,
}

impl Why {
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

/// What stayed of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LeftFile {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    stayed_bytes: u64,
    why: Why,
    /// Whether that was seen now; else as the file was closed.
    checked: bool,
}

fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&unescaped(path))
}

/// What stayed of all, the most first.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Left(Vec<LeftFile>);

impl Left {
    /// Checks the files.
    pub(crate) fn now(noted: Vec<TrackedFile>) -> Self {
        let mut files: BTreeMap<Inode, TrackedFile> = BTreeMap::new();
        for file in noted {
            let inode = Inode { dev: file.device, ino: file.inode };
            // One that was noted twice: what was there first was there before.
            files
                .entry(inode)
                .and_modify(|other| other.before = other.before.min(file.before))
                .or_insert(file);
        }
        let mut left: Vec<LeftFile> =
            files.into_iter().filter_map(|(inode, file)| left_of(inode, &file)).collect();
        left.sort_by(|a, b| b.stayed_bytes.cmp(&a.stayed_bytes).then_with(|| a.path.cmp(&b.path)));
        Self(left)
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|file| file.stayed_bytes).sum()
    }

    /// A line for each file, and one for those beyond [`LISTED`].
    pub(crate) fn lines(&self) -> Vec<String> {
        let listed = self.0.iter().take(LISTED).map(|file| {
            let LeftFile { path, stayed_bytes, why, checked } = file;
            let when = if *checked { "" } else { ", as it was closed" };
            format!("{} of {} ({}{when})", Size(*stayed_bytes), escaped(path), why.sentence())
        });
        let rest = self.0.get(LISTED..).unwrap_or_default();
        let bytes: u64 = rest.iter().map(|file| file.stayed_bytes).sum();
        let rest = (!rest.is_empty()).then(|| format!("{} of {} more files", Size(bytes), rest.len()));
        listed.chain(rest).collect()
    }
}

/// What stayed of a file; `None`: nothing.
fn left_of(inode: Inode, file: &TrackedFile) -> Option<LeftFile> {
    let opened = Handle::at(&file.path, Links::Refuse).and_then(|handle| handle.open(Expected::Inode(inode)));
    let seen = opened.as_ref().ok().map(|opened| residency(opened, 0..u64::MAX));
    let (stayed_bytes, why, checked) = match (seen, file.before) {
        (Some(Ok(now)), Some(before)) => {
            let stayed = now.resident.saturating_sub(before);
            let why = if now.unwritten() > 0 { Why::InFlight } else { why(file, stayed) };
            (stayed, why, true)
        }
        // It was not to be seen by the command, and perhaps not by this process.
        (Some(Ok(now)), None) => (file.unobserved.min(now.resident), Why::NotPermitted, true),
        (Some(Err(_)), _) => (file.unobserved, Why::NotPermitted, false),
        (None, _) => (file.at_close, why(file, file.at_close), false),
    };
    (stayed_bytes > 0).then(|| LeftFile { path: file.path.clone(), stayed_bytes, why, checked })
}

/// Why so many clean pages of a file stayed.
fn why(file: &TrackedFile, stayed: u64) -> Why {
    if file.has(FileEvents::Mapped) {
        Why::Mapped
    } else if file.has(FileEvents::Open) {
        Why::Killed
    } else if stayed > file.at_close && file.at_close == 0 {
        // As it was closed there were none.
        Why::AnotherReader
    } else if file.has(FileEvents::Sent) {
        Why::InFlight
    } else if file.has(FileEvents::NotWaitedFor) {
        Why::NotWaitedFor
    } else if file.has(FileEvents::Unseen) {
        Why::Unseen
    } else {
        Why::AnotherReader
    }
}
