//! Finds the kernel's tracing files, and reads the descriptions of tracepoints.
//!
//! Invariants: only reads. Searches the mounts that this process sees: tracefs wherever it is,
//! otherwise the `tracing` directory of a debugfs. If it is not mounted, it gets a mount that is in
//! no directory (`fsmount(2)`, Linux 5.2): nobody else sees that one, and it ends with its last
//! descriptor, whatever becomes of the process. Fails with [`TraceError::NoTracefs`],
//! [`TraceError::NoEvent`] or the refused call.

pub(crate) mod format;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::TraceError;
use super::error::PermissionKind;
use super::event::TracepointKind;
use crate::tracefs::format::{RecordField, RecordFormat};
use pagekeeper_kernel::process::{Mount, ProcRoot};

/// A mounted tracefs.
#[derive(Debug, Clone)]
pub(super) struct Tracefs {
    root: PathBuf,
    /// The mount, if it is in no directory: `root` is valid as long as this is open.
    #[allow(dead_code, reason = "keeps the mount")]
    own: Option<Arc<OwnedFd>>,
}

impl Tracefs {
    /// Finds it, or mounts it for this process alone, which takes `CAP_SYS_ADMIN`.
    pub(super) fn find(proc: &ProcRoot) -> Result<Self, TraceError> {
        if let Some(root) = root_of(&proc.own_mounts()?) {
            return Ok(Self { root, own: None });
        }
        // For a description of another machine nothing can be mounted.
        if *proc != ProcRoot::default() {
            return Err(TraceError::NoTracefs);
        }
        Self::mount().map_err(|_| TraceError::NoTracefs)
    }

    fn mount() -> rustix::io::Result<Self> {
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let own = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(Self { root: format!("/proc/self/fd/{}", own.as_raw_fd()).into(), own: Some(Arc::new(own)) })
    }

    /// Returns the kernel's description of a tracepoint.
    pub(super) fn event(&self, event: TracepointKind) -> Result<Tracepoint, TraceError> {
        Ok(Tracepoint { event, format: self.format(event.category(), event.name())? })
    }

    /// Returns the description of any tracepoint.
    pub(super) fn format(&self, category: &str, name: &str) -> Result<RecordFormat, TraceError> {
        let path = self.root.join("events").join(category).join(name).join("format");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                TraceError::NoEvent { event: format!("{category}:{name}"), path: path.clone() }
            } else {
                TraceError::file(PermissionKind::Reading, "read", &path, &error)
            }
        })?;
        RecordFormat::parse(&text, &path)
    }
}

fn root_of(mounts: &[Mount]) -> Option<PathBuf> {
    let whole = |kind: &'static str| {
        mounts.iter().filter(move |mount| mount.kind == kind && mount.root == Path::new("/"))
    };
    whole("tracefs")
        .map(|mount| mount.point.clone())
        .next()
        .or_else(|| whole("debugfs").map(|mount| mount.point.join("tracing")).find(|point| point.exists()))
}

/// A tracepoint of this kernel.
#[derive(Debug, Clone)]
pub(super) struct Tracepoint {
    pub(super) event: TracepointKind,
    pub(super) format: RecordFormat,
}

impl Tracepoint {
    /// Returns the first of its fields that has one of these names.
    pub(super) fn field(&self, names: &[&'static str]) -> Result<&RecordField, TraceError> {
        names.iter().find_map(|name| self.format.field(name)).ok_or_else(|| self.lacks(names[0]))
    }

    /// Returns the error about a missing field.
    pub(super) fn lacks(&self, field: &'static str) -> TraceError {
        TraceError::NoField { event: self.event.to_string(), field }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn mount(kind: &str, root: &str, point: &Path) -> Mount {
        Mount {
            id: 1,
            dev: 1,
            root: root.into(),
            point: point.into(),
            kind: kind.into(),
            source: kind.into(),
            options: kind.into(),
        }
    }

    #[test]
    fn tracefs_comes_before_debugfs_and_only_as_a_whole() {
        let debug = tempfile::tempdir().unwrap();
        let debugfs = mount("debugfs", "/", debug.path());
        assert_eq!(root_of(std::slice::from_ref(&debugfs)), None);
        std::fs::create_dir(debug.path().join("tracing")).unwrap();
        let part = mount("tracefs", "/events", Path::new("/part"));
        assert_eq!(root_of(&[part.clone(), debugfs.clone()]), Some(debug.path().join("tracing")));
        let whole = mount("tracefs", "/", Path::new("/t"));
        assert_eq!(root_of(&[debugfs, part, whole]), Some(PathBuf::from("/t")));
    }

    /// Regardless of whether it is mounted here.
    #[test]
    fn a_mount_of_its_own_is_in_no_directory() {
        let tracefs = match Tracefs::mount() {
            Err(rustix::io::Errno::PERM) => return crate::testing::skip("only root can mount"),
            mounted => mounted.unwrap(),
        };
        assert!(tracefs.event(TracepointKind::Pause).unwrap().format.field("pause").is_some());
        let own = rustix::fs::fstat(tracefs.own.as_ref().unwrap()).unwrap().st_dev;
        let mounts = ProcRoot::default().own_mounts().unwrap();
        let points = mounts.iter().filter(|mount| mount.kind == "tracefs").map(|mount| &mount.point);
        // If somebody has mounted it, it is the same file system, in that very place.
        assert!(points.clone().all(|point| std::fs::metadata(point).unwrap().dev() == own));
        assert!(points.clone().all(|point| *point != tracefs.root));
    }

    #[test]
    fn a_kernel_without_the_tracepoint_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let tracefs = Tracefs { root: root.path().into(), own: None };
        let error = tracefs.event(TracepointKind::Pause).unwrap_err();
        assert!(error.to_string().contains("no tracepoint writeback:balance_dirty_pages"), "{error}");
    }
}
