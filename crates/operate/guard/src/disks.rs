//! Measurements of the disks that watched files are on.
//!
//! Only the direct-I/O rule depends on them. Leftover pages of a file in direct I/O are released on
//! every disk; whether they cost more than memory differs by file system and kernel. The warning
//! quotes the measurement, and is left out where leftover pages cost nothing but memory. Without a
//! measurement the guard warns. Nothing here fails: a saved profile that can't be read counts as
//! none.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use pagekeeper_policy::DiskProfile;

/// At or above this share of the full rate, the cost of leftover pages is within the noise.
const FREE_SHARE_MIN: f64 = 0.9;

/// Returns the profile of the file system that an open directory is on: one of `given`, else the
/// saved one. May hang if the file system hangs.
pub(crate) fn of(given: &[DiskProfile], directory: impl AsFd) -> Option<DiskProfile> {
    // Through the descriptor: the path may be one of another namespace.
    let link = PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd()));
    pagekeeper_catalog::disks::of(given, &link).ok().flatten()
}

/// The cost of leftover pages of a file in direct I/O.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Leftovers {
    /// Not measured.
    Unknown,
    /// They take memory and nothing else.
    Free,
    /// Direct I/O reaches only this share of its rate.
    Cost(f64),
}

impl Leftovers {
    /// Returns the cost that a profile shows: the worse of reads and writes.
    pub(crate) fn of(disk: Option<&DiskProfile>) -> Self {
        let Some(mixed) = disk.and_then(|disk| disk.mixed) else { return Self::Unknown };
        let ratios = [mixed.leftover_read, mixed.leftover_write];
        match ratios.iter().flatten().copied().min_by(f64::total_cmp) {
            Some(ratio) if ratio < FREE_SHARE_MIN => Self::Cost(ratio),
            // One of the two measurements has no clear result.
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
