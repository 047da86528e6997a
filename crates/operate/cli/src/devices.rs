//! Block devices that a user named: a message says what a device's file system means for its pages.
//!
//! Invariant: each device is reported once, on standard error.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pagekeeper_kernel::InspectedFile;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::escaped;

use crate::output::warn;

/// The named block devices that have a mounted file system; shared by threads.
#[derive(Debug, Default)]
pub(crate) struct MountedDevices(Mutex<Vec<(PathBuf, PathBuf)>>);

impl MountedDevices {
    /// Whether the file is such a device. Fails if the mounts can't be read.
    pub(crate) fn has(&self, file: &InspectedFile) -> pagekeeper_kernel::Result<bool> {
        let Some(device) = file.device() else { return Ok(false) };
        let Some(point) = ProcRoot::default().mount_points_of(device)?.into_iter().next() else {
            return Ok(false);
        };
        lock(&self.0).push((file.path().to_path_buf(), point));
        Ok(true)
    }

    /// Reports for each device where it is mounted, and what that means.
    pub(crate) fn report(self, meaning: &str) {
        let mut all = ignore_poison(self.0.into_inner());
        all.sort();
        for (device, point) in all {
            warn(in_words(&device, &point, meaning));
        }
    }
}

fn in_words(device: &Path, point: &Path, meaning: &str) -> String {
    format!(
        "{} has the file system at {}, which keeps its metadata in the device's pages: {meaning}",
        escaped(device),
        escaped(point)
    )
}
