//! The place of the demo's files: a temporary directory on a file system whose page cache can be released.
//!
//! Invariants: the directory is new, private, and removed when its value is dropped. Fails with the reason when
//! the file system is unsuitable, or has too little space.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use pagekeeper_kernel::FileSystem;
use pagekeeper_kernel::text::escaped;
use tempfile::TempDir;

use super::config::DISK_BYTES_MAX;
use crate::size::Size;

/// The directory for temporary files on a disk (file-hierarchy(7)).
const ON_DISK: &str = "/var/tmp";

/// Chooses its parent: `wanted`, or else the system's temporary directory, or `/var/tmp` if that is tmpfs.
pub(super) fn parent(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    Ok(match wanted {
        Some(wanted) => wanted.to_path_buf(),
        None if refusal(&std::env::temp_dir())?.is_some() => ON_DISK.into(),
        None => std::env::temp_dir(),
    })
}

/// Makes the directory.
pub(super) fn make(parent: &Path) -> anyhow::Result<TempDir> {
    if let Some(reason) = refusal(parent)? {
        bail!("{}: {reason}; name a directory on a disk with --dir", escaped(parent));
    }
    let space =
        rustix::fs::statvfs(parent).with_context(|| format!("can't ask for space in {}", escaped(parent)))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    ensure!(
        free >= DISK_BYTES_MAX,
        "{}: the demo needs up to {}, only {} are free; name another directory with --dir",
        escaped(parent),
        Size(DISK_BYTES_MAX),
        Size(free)
    );
    tempfile::Builder::new()
        .prefix("pagekeeper-demo-")
        .tempdir_in(parent)
        .with_context(|| format!("can't make a directory in {}", escaped(parent)))
}

fn refusal(dir: &Path) -> anyhow::Result<Option<&'static str>> {
    let open = File::open(dir).with_context(|| format!("can't open {}", escaped(dir)))?;
    Ok(FileSystem::of(open, dir)?.release_refusal())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_is_refused_with_its_reason_when_asked_for() {
        let error = make(Path::new("/dev/shm")).unwrap_err().to_string();
        assert!(error.starts_with("/dev/shm: on tmpfs"), "{error}");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = make(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(error.to_string(), "can't open /nonexistent");
    }
}
