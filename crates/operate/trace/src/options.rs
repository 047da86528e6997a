//! Options of tracing.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use super::TraceError;
use super::event::TracepointKind;
use super::tracefs::{Tracefs, Tracepoint};
use crate::bpf::programs::KernelFilter;
use crate::bpf::record::kernel_device;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::{Inode, InspectedFile, Links};

/// Maximum number of files or devices of a [`PageFilter`].
const FILTER_ENTRIES_MAX: usize = 64;

/// The methods of counting events, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TraceLevel {
    /// By programs in the kernel.
    Bpf,
    /// By plain counters, without events.
    Counters,
}

/// The files of which page-cache adds and removals are counted.
///
/// The kernel filters before anything is counted: fewer files cost less. At most 64.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PageFilter {
    /// All.
    #[default]
    Everything,
    /// Files of file systems on these devices, as `dev` of a
    /// [`Mount`](pagekeeper_kernel::process::Mount) names them.
    Devices(Vec<u64>),
    /// These files. Links at the ends of their paths are followed; they have to exist when tracing
    /// starts.
    Files(Vec<PathBuf>),
}

/// What to trace, and how.
///
/// ```
/// use pagekeeper_trace::{PageFilter, TraceOptions};
/// let options = TraceOptions {
///     block: true,
///     filter: PageFilter::Files(vec!["/var/lib/mysql/ibdata1".into()]),
///     ..TraceOptions::default()
/// };
/// # drop(options);
/// ```
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "four things to trace, each of them or not")]
pub struct TraceOptions {
    /// Page-cache adds and removals. By default on.
    pub pages: bool,
    /// Pauses for dirty pages. By default on.
    pub pauses: bool,
    /// Direct reclaim. By default on.
    pub reclaim: bool,
    /// Latency of block devices. By default off: it costs most where I/O is fast.
    pub block: bool,
    /// The files of which pages are counted.
    pub filter: PageFilter,
    /// The best method to try. By default the best there is.
    pub best: TraceLevel,
    /// Maximum number of pairs of file and thread that can be counted between two readings; an
    /// eighth of it for the other kinds. The kernel allocates about 200 bytes for each. By default
    /// 16,384.
    pub entries: u32,
    /// Where `/proc` and `/sys` are.
    pub roots: SysRoots,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            pages: true,
            pauses: true,
            reclaim: true,
            block: false,
            filter: PageFilter::Everything,
            best: TraceLevel::Bpf,
            entries: 16 * 1024,
            roots: SysRoots::default(),
        }
    }
}

impl TraceOptions {
    /// Returns the room in the tables of pauses, stalls and requests.
    pub(super) fn entries_of_time(&self) -> u32 {
        (self.entries / 8).max(16)
    }

    /// Returns the filter, with its files looked up.
    pub(super) fn kernel_filter(&self) -> Result<KernelFilter, TraceError> {
        let within = |given: usize| {
            if given > FILTER_ENTRIES_MAX {
                Err(TraceError::TooMany { given, max: FILTER_ENTRIES_MAX })
            } else {
                Ok(())
            }
        };
        Ok(match &self.filter {
            PageFilter::Everything => KernelFilter::Everything,
            PageFilter::Devices(devices) => {
                within(devices.len())?;
                KernelFilter::Devices(devices.iter().map(|dev| kernel_device(*dev)).collect())
            }
            PageFilter::Files(paths) => {
                within(paths.len())?;
                let file = |path: &PathBuf| -> pagekeeper_kernel::Result<Inode> {
                    let inode = traced_inode(&self.roots, &InspectedFile::open(path, Links::Follow)?, path)?;
                    Ok(Inode { dev: kernel_device(inode.dev), ..inode })
                };
                KernelFilter::Files(paths.iter().map(file).collect::<Result<_, _>>()?)
            }
        })
    }

    /// Returns the tracepoints that are wanted and present.
    pub(super) fn points(&self, tracefs: &Tracefs) -> Result<TracepointSet, TraceError> {
        let mut points = TracepointSet::default();
        for (kind, wanted) in [
            (TracepointGroup::Pages, self.pages),
            (TracepointGroup::Pauses, self.pauses),
            (TracepointGroup::Reclaim, self.reclaim),
            (TracepointGroup::Block, self.block),
        ] {
            if wanted {
                points.add(tracefs, kind)?;
            }
        }
        Ok(points)
    }
}

/// A group of tracepoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TracepointGroup {
    Pages,
    Pauses,
    Reclaim,
    Block,
}

impl TracepointGroup {
    /// Returns the tracepoints of the kind, in pairs where one is useless without the other.
    fn events(self) -> &'static [&'static [TracepointKind]] {
        match self {
            Self::Pages => &[&[TracepointKind::Add, TracepointKind::Delete]],
            Self::Pauses => &[&[TracepointKind::Pause]],
            // Without memory cgroups the kernel lacks the second pair.
            Self::Reclaim => &[
                &[TracepointKind::ReclaimBegin, TracepointKind::ReclaimEnd],
                &[TracepointKind::GroupReclaimBegin, TracepointKind::GroupReclaimEnd],
            ],
            Self::Block => &[&[TracepointKind::Issue, TracepointKind::Complete]],
        }
    }

    pub(super) fn of(event: TracepointKind) -> Self {
        match event {
            TracepointKind::Add | TracepointKind::Delete => Self::Pages,
            TracepointKind::Pause => Self::Pauses,
            TracepointKind::ReclaimBegin
            | TracepointKind::ReclaimEnd
            | TracepointKind::GroupReclaimBegin
            | TracepointKind::GroupReclaimEnd => Self::Reclaim,
            TracepointKind::Issue | TracepointKind::Complete => Self::Block,
        }
    }
}

/// The tracepoints that are present, and the errors for those that are not.
#[derive(Debug, Default)]
pub(super) struct TracepointSet {
    pub(super) there: Vec<Tracepoint>,
    pub(super) missing: Vec<TraceError>,
}

impl TracepointSet {
    fn add(&mut self, tracefs: &Tracefs, kind: TracepointGroup) -> Result<(), TraceError> {
        for together in kind.events() {
            match together.iter().map(|event| tracefs.event(*event)).collect::<Result<Vec<_>, _>>() {
                Ok(points) => self.there.extend(points),
                Err(missing @ TraceError::NoEvent { .. }) => self.missing.push(missing),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the kinds of which any tracepoint is present.
    pub(super) fn kinds(&self) -> Vec<TracepointGroup> {
        let mut kinds: Vec<_> = self.there.iter().map(|point| TracepointGroup::of(point.event)).collect();
        kinds.dedup();
        kinds
    }

    /// Returns whether any tracepoint of the kind is present.
    pub(super) fn has(&self, kind: TracepointGroup) -> bool {
        self.there.iter().any(|point| TracepointGroup::of(point.event) == kind)
    }
}

/// Returns the identity of a file in tracing: by the device of its file system as a whole. That is
/// `st_dev`, except on btrfs, where each subvolume has another one.
///
/// Fails with [`Error::Unsupported`](pagekeeper_kernel::Error::Unsupported) on overlayfs, whose
/// pages belong to a file of the layer below.
pub fn traced_inode(roots: &SysRoots, file: impl AsFd, path: &Path) -> pagekeeper_kernel::Result<Inode> {
    let file = file.as_fd();
    let stat = rustix::fs::fstat(file).map_err(|e| pagekeeper_kernel::Error::call("fstat", path, e))?;
    let inode = Inode::of(&stat);
    let Some(id) = roots.proc.fd_info(std::process::id(), file.as_raw_fd())?.mount_id else {
        return Ok(inode);
    };
    match roots.proc.own_mounts()?.iter().find(|mount| mount.id == id) {
        Some(mount) if mount.kind == "overlay" => Err(pagekeeper_kernel::Error::Unsupported {
            path: path.to_path_buf(),
            reason: "on overlayfs pages belong to a file of the layer below, which tracing can't name from here",
        }),
        Some(mount) => Ok(Inode { dev: mount.dev, ..inode }),
        None => Ok(inode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::file_of;

    #[test]
    fn a_file_is_traced_by_device_and_inode_number() {
        let (_dir, file) = file_of(1);
        let roots = SysRoots::default();
        match traced_inode(&roots, &file, file.path()) {
            Ok(inode) => assert_eq!(inode.ino, file.inode().ino),
            Err(error) => assert!(matches!(error, pagekeeper_kernel::Error::Unsupported { .. }), "{error}"),
        }
    }

    #[test]
    fn a_filter_has_an_end_and_its_files_exist() {
        let of = |filter| TraceOptions { filter, ..TraceOptions::default() }.kernel_filter();
        assert_eq!(of(PageFilter::Everything).unwrap(), KernelFilter::Everything);
        let dev = rustix::fs::makedev(254, 3);
        assert_eq!(of(PageFilter::Devices(vec![dev])).unwrap(), KernelFilter::Devices(vec![254 << 20 | 3]));
        assert!(matches!(
            of(PageFilter::Devices(vec![1; 65])),
            Err(TraceError::TooMany { given: 65, max: 64 })
        ));
        assert!(matches!(of(PageFilter::Files(vec!["/nowhere".into()])), Err(TraceError::Kernel(_))));
    }
}
