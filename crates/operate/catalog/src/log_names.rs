//! Reads the names of the log files in a directory, in slices.
//!
//! A directory may hold any number of names. They are read as long as the caller's turn lasts, and
//! from there on in the next turn. The directory is not held open in between; the kernel's own
//! position of the last name serves to continue. Names that come or go meanwhile may be missed, and
//! are in the next listing.
//!
//! Invariant: fewer than twice `limit` names are kept, and at most `limit` in the end, whatever the
//! directory holds. If there are more, the largest logs lose the names with the lowest numbers, or
//! without numbers the files that changed first. Files that are being written and followed are the
//! last of their log.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagekeeper_kernel::{Error, Result};
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::shares::shares;
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, StatxFlags};

use crate::directories::ownership;
use crate::profile::Profile;

/// A log of a directory: its index in the profile, and the part of its name that its files have in
/// common.
pub type LogKey = (usize, Vec<u8>);

/// A listing in progress.
#[derive(Debug)]
pub struct NameListing {
    limit: usize,
    /// The kernel's position behind the last name that was read.
    position: u64,
    /// The names of each log, each with its number, or with the time of its last change where no
    /// number orders them.
    logs: BTreeMap<LogKey, Vec<(i128, OsString)>>,
    /// The number of these names: less than twice the limit.
    kept: usize,
    /// The newest of the files that say whether logs are recycled, for each log of the profile.
    settings: Vec<Option<(u64, OsString)>>,
    /// A file of each kind of unknown log, by its index among the profile's files.
    unknown: BTreeMap<usize, OsString>,
    /// Names of logs that there was no room for.
    left_out: u64,
}

/// The names that a listing found.
#[derive(Debug, Default)]
pub struct Names {
    /// Names of log files, ascending.
    pub logs: BTreeSet<OsString>,
    /// Names of files that say whether logs are recycled.
    pub settings: Vec<OsString>,
    /// A file of each kind of unknown log, by its index among the profile's files.
    pub unknown: BTreeMap<usize, OsString>,
    /// The number of log files beyond those that may be watched.
    pub left_out: u64,
}

impl NameListing {
    /// Begins a listing of at most `limit` names.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            position: 0,
            logs: BTreeMap::new(),
            kept: 0,
            settings: Vec::new(),
            unknown: BTreeMap::new(),
            left_out: 0,
        }
    }

    /// Continues until `is_over`, which is asked after each name, says that the turn is. Returns
    /// whether the end was reached. `path` is the directory's.
    pub fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        path: &Path,
        profile: &Profile,
        is_over: impl Fn() -> bool,
    ) -> Result<bool> {
        if self.position > 0 {
            let failed = |errno| Error::call("lseek", path, errno);
            rustix::fs::seek(fd, SeekFrom::Start(self.position)).map_err(failed)?;
        }
        self.settings.resize(profile.logs.len(), None);
        // Patterns may name the directory as well.
        let mut whole = path.join("").into_os_string().into_encoded_bytes();
        let above = whole.len();
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut listing = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = entry.map_err(|errno| Error::call("getdents64", path, errno))?;
            self.position = entry.next_entry_cookie();
            if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
                whole.truncate(above);
                whole.extend_from_slice(entry.file_name().to_bytes());
                self.take(fd, Path::new(OsStr::from_bytes(&whole)), profile);
            }
            if is_over() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&mut self, fd: BorrowedFd<'_>, path: &Path, profile: &Profile) {
        let Some(name) = path.file_name() else { return };
        for (log, newest) in profile.logs.iter().zip(&mut self.settings) {
            let Some(recycled) = &log.recycled_if else { continue };
            let Some(matched) = recycled.file.matches_name(name) else { continue };
            let number = matched.number.sequence(None);
            if newest.as_ref().is_none_or(|(other, _)| *other < number) {
                *newest = Some((number, name.to_os_string()));
            }
        }
        if let Some((file, _)) = profile.unknown_log(path) {
            self.unknown.entry(file).or_insert_with(|| name.to_os_string());
            return;
        }
        let Some((spec, matched)) = profile.log_of(path) else { return };
        let order = match matched.number {
            FileNumber::None => last_change(fd, name),
            FileNumber::Counted(_) | FileNumber::WalSegment(_) => matched.number.sequence(None).into(),
        };
        self.logs.entry((spec, matched.log())).or_default().push((order, name.to_os_string()));
        self.kept += 1;
        if self.kept >= self.limit.saturating_mul(2) {
            self.cut();
        }
    }

    /// Cuts the largest logs, so that at most `limit` names are kept.
    fn cut(&mut self) {
        let wanted: Vec<usize> = self.logs.values().map(Vec::len).collect();
        for (names, share) in self.logs.values_mut().zip(shares(self.limit, &wanted)) {
            if names.len() > share {
                names.sort_unstable_by(|one, other| other.cmp(one));
                names.truncate(share);
            }
        }
        self.logs.retain(|_, names| !names.is_empty());
        let kept = self.logs.values().map(Vec::len).sum();
        self.left_out += (self.kept - kept) as u64;
        self.kept = kept;
    }

    /// Returns the names that were found, once the end was reached.
    pub fn finish(mut self) -> Names {
        self.cut();
        Names {
            logs: self.logs.into_values().flatten().map(|(_, name)| name).collect(),
            settings: self.settings.into_iter().flatten().map(|(_, name)| name).collect(),
            unknown: self.unknown,
            left_out: self.left_out,
        }
    }
}

/// Returns when a file was changed last, in nanoseconds of the epoch; the least value if it is
/// gone.
fn last_change(fd: BorrowedFd<'_>, name: &OsStr) -> i128 {
    let stat = rustix::fs::statx(fd, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MTIME);
    stat.map_or(i128::MIN, |stat| ownership::nanoseconds(stat.stx_mtime))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_profile;
    use std::os::fd::AsFd;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_full_listing_keeps_the_text_logs_that_were_changed_last() {
        let dir = tempfile::tempdir().unwrap();
        let rotated = (1..8).map(|number| format!("slow.log.{number}"));
        for (age, name) in (0..).zip(["slow.log".to_owned()].into_iter().chain(rotated)) {
            let file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age)).unwrap();
        }
        let profiles = Profile::built_in();
        let mariadb = find_profile(&profiles, "mariadb").unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let mut listing = NameListing::new(2);
        assert!(listing.read(fd.as_fd(), dir.path(), mariadb, || false).unwrap());
        let names = listing.finish();
        assert_eq!(names.logs.iter().collect::<Vec<_>>(), ["slow.log", "slow.log.1"]);
        assert_eq!(names.left_out, 6);
    }
}
