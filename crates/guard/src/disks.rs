//! What was measured of the disks that watched files are on.
//!
//! Only the direct-I/O rule depends on it. Leftover pages of a file in direct I/O are released on every disk; whether they cost more than
//! memory differs by file system and kernel. The warning quotes the measurement, and is left out where they cost nothing else. Without
//! a measurement the guard warns. Nothing fails: a saved profile that can't be read counts as none.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use pagekeeper_policy::DiskProfile;

/// From this share of the rate on what leftovers cost is within the noise.
const FREE: f64 = 0.9;

/// The profile of the file system that an open directory is on: one of those given, else the saved one. It may hang with
/// that.
pub(crate) fn of(given: &[DiskProfile], directory: impl AsFd) -> Option<DiskProfile> {
    // By its descriptor: the path may be one of another namespace.
    let link = PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd()));
    pagekeeper_catalog::disks::of(given, &link).ok().flatten()
}

/// What leftover pages of a file in direct I/O come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Leftovers {
    /// Nobody measured it.
    Unknown,
    /// They take memory and nothing else.
    Free,
    /// Direct I/O comes to this share of its rate.
    Cost(f64),
}

impl Leftovers {
    /// By a profile: the worse of reads and writes.
    pub(crate) fn of(disk: Option<&DiskProfile>) -> Self {
        let Some(mixed) = disk.and_then(|disk| disk.mixed) else { return Self::Unknown };
        let ratios = [mixed.leftover_read, mixed.leftover_write];
        match ratios.iter().flatten().copied().min_by(f64::total_cmp) {
            Some(ratio) if ratio < FREE => Self::Cost(ratio),
            // One of them has no clear answer.
            _ if ratios.iter().any(Option::is_none) => Self::Unknown,
            _ => Self::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_policy::MixedProfile;

    use super::*;

    #[test]
    fn leftovers_are_judged_by_what_was_measured() {
        let of = |leftover_read, leftover_write| {
            let mixed = MixedProfile { leftover_read, leftover_write, ..MixedProfile::default() };
            Leftovers::of(Some(&DiskProfile { mixed: Some(mixed), ..DiskProfile::default() }))
        };
        assert_eq!(Leftovers::of(None), Leftovers::Unknown);
        assert_eq!(Leftovers::of(Some(&DiskProfile::default())), Leftovers::Unknown);
        assert_eq!(of(None, None), Leftovers::Unknown);
        assert_eq!((of(Some(0.95), Some(1.2)), of(Some(1.0), None)), (Leftovers::Free, Leftovers::Unknown));
        assert_eq!(of(None, Some(0.3)), Leftovers::Cost(0.3));
        assert_eq!(of(Some(1.0), Some(0.2)), Leftovers::Cost(0.2));
    }
}
