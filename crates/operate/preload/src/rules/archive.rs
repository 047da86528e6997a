//! Logs that another program archives, started by the server. `PostgreSQL`'s archiver has a command
//! copy a segment, and then renames a status file beside it from `.ready` to `.done`.
//!
//! From the first such rename on, the archiver counts as a reader of the series
//! ([`crate::followers`]). If it is not too far behind, files stay until they are archived, and are
//! then released if no reader is behind it.
//!
//! Invariant: the files are opened read-only, and closed at once. Fails by doing nothing.

use core::ffi::CStr;

use libc::c_int;
use pagekeeper_policy::allowance::needed_from;
use pagekeeper_policy::names;

use super::log;
use super::{log_rule, rule_for};
use crate::counters::Count;
use crate::files::paths::join;
use crate::process::{count, plan};
use crate::{followers, helper, sys};

/// The directory of status files, beside the logs.
const STATUS_DIRECTORY: &[u8] = b"archive_status/";
/// Bytes of a path, including the terminating null.
const ARCHIVE_PATH_BYTES: usize = 1024;

/// Releases a file if this rename means that it was archived.
pub fn renamed(from: &CStr, to: &CStr) {
    let Some(stem) = from.to_bytes().strip_suffix(b".ready") else { return };
    if to.to_bytes().strip_suffix(b".done") != Some(stem) {
        return;
    }
    let name = names::last_name(stem);
    let directory = stem.get(..stem.len().saturating_sub(name.len())).unwrap_or_default();
    let Some(directory) = directory.strip_suffix(STATUS_DIRECTORY) else { return };
    let mut path = [0; ARCHIVE_PATH_BYTES];
    let Some(path) = join(&mut path, &[directory, name]) else { return };
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOATIME;
    if let Ok(fd) = sys::open(path, flags) {
        archived(fd, path);
        sys::close(fd);
    }
}

/// Records that the file was archived, and releases it if no reader needs it.
fn archived(fd: c_int, path: &CStr) {
    let Some((rule, _)) = rule_for(fd, Some(path)) else { return };
    let pattern = plan().rules().get(usize::from(rule)).map(|rule| rule.pattern);
    let Some(rule) = log_rule(rule).filter(|rule| rule.near_files > 0) else { return };
    let Ok(stat) = sys::fstat(fd) else { return };
    let (series, sequence) = log::number_at(fd, pattern, sys::size_in(&stat));
    let followers = followers::all();
    followers.archived(series, sequence);
    if needed_from(sequence, followers.near(series, sequence, rule.near_files)) == u64::MAX {
        followers.pays(stat.st_ino);
        count(Count::LogReleased, helper::drop_written(fd, 0..sys::size_in(&stat)));
    } else {
        followers.owes(stat.st_ino);
    }
}
