//! One snapshot of the files that processes have open or mapped.
//!
//! [`OpenFilesScan`] goes from process to process, in slices for callers with little time, and ends
//! in [`OpenFiles`]. [`ProcRoot::files_of`] reads one process, and [`ProcRoot::each_file_of`] does
//! so without storing anything. A [`FileSelection`] restricts the files. It is applied as early as
//! possible: a descriptor with an unwanted name costs one readlink, one with an unwanted inode also
//! one stat.
//!
//! Invariants: no file is opened. The cost is linear in the descriptors and mappings of the
//! processes. A process that ends meanwhile has no files and is not an error. A failure to read a
//! process is its [`ProcessFiles::error`], and everything read before is kept.
//!
//! A file is identified by device and inode number, and by its mount's ID. An inode's generation is
//! not included: the kernel shows it only to those who open the file. A caller that keeps an inode
//! beyond one snapshot has to expect reuse.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::fds::inode_of;
use super::{OpenFile, ProcRoot, ProcessMapping};
use crate::{Error, Inode, Result};

/// The selected files of a process. By default all open files, and no mappings.
#[derive(Clone, Copy, Default)]
pub struct FileSelection<'a> {
    /// Only files whose name passes. This is the name that the kernel shows: that of a removed file
    /// ends in ` (deleted)`.
    pub name: Option<&'a dyn Fn(&Path) -> bool>,
    /// Only these files.
    pub inodes: Option<&'a InodeSet>,
    /// The way to treat mappings.
    pub mappings: MappingMode,
}

/// The way in which a snapshot treats mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MappingMode {
    /// They are not read.
    #[default]
    Ignored,
    /// They are listed with the inode that the kernel shows. This is cheap, but the device may
    /// differ from stat's (see [`ProcessMapping`]).
    AsShown,
    /// Each is resolved to the file behind it, by one or two stats; unreachable files are left out.
    Resolved,
}

impl FileSelection<'_> {
    pub(super) fn has_name(&self, name: &Path) -> bool {
        self.name.is_none_or(|wanted| wanted(name))
    }

    pub(super) fn has_inode(&self, inode: Inode) -> bool {
        self.inodes.is_none_or(|wanted| wanted.contains(inode))
    }
}

impl fmt::Debug for FileSelection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSelection")
            .field("name", &self.name.is_some())
            .field("inodes", &self.inodes)
            .field("mappings", &self.mappings)
            .finish()
    }
}

/// A set of files, each with the inode that stat shows and the one that mappings show.
#[derive(Debug, Clone, Default)]
pub struct InodeSet {
    inodes: HashSet<Inode>,
    numbers: HashSet<u64>,
    by_file_system: HashMap<Inode, Inode>,
}

impl InodeSet {
    /// Adds a file: with the inode that stat shows, and with the device of its whole file system
    /// (they differ only on btrfs).
    pub fn insert(&mut self, inode: Inode, on_file_system: Inode) {
        self.inodes.insert(inode);
        self.numbers.insert(inode.ino);
        self.by_file_system.insert(on_file_system, inode);
    }

    /// Whether the set contains a file, with the inode that stat shows.
    pub fn contains(&self, inode: Inode) -> bool {
        self.inodes.contains(&inode)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}

/// A mapped part of a file, and the file's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedFile {
    /// The mapping.
    pub mapping: ProcessMapping,
    /// The file's inode as stat shows it; with [`MappingMode::AsShown`] as the mapping shows it.
    pub inode: Inode,
    /// A path that leads to the very file (see
    /// [`InspectedFile::open_magic_link`](crate::InspectedFile::open_magic_link)), and its size in
    /// bytes. Only with [`MappingMode::Resolved`], unless the file was selected by its inode.
    pub reached: Option<(PathBuf, u64)>,
}

/// The way in which a process holds a selected file.
#[derive(Debug)]
pub enum HeldFile {
    /// By a descriptor.
    Open(OpenFile),
    /// By a mapping.
    Mapped(MappedFile),
}

/// The selected files of one process.
#[derive(Debug)]
pub struct ProcessFiles {
    /// The process.
    pub pid: u32,
    /// Its name (`comm`); empty if that can't be read, or if it has no selected files.
    pub name: OsString,
    /// Files by descriptor, ascending. A file opened twice is listed twice.
    pub open: Vec<OpenFile>,
    /// Files by mapping, in address order.
    pub mapped: Vec<MappedFile>,
    /// The reason why not all of its files are listed. [`Error::is_gone`] if it has ended.
    pub error: Option<Error>,
}

/// The files that processes have open or mapped.
#[derive(Debug, Default)]
pub struct OpenFiles {
    /// The processes with selected files, and those that could not be read, in the requested order.
    pub processes: Vec<ProcessFiles>,
}

impl OpenFiles {
    /// Returns the processes that could not be read, and why.
    pub fn errors(&self) -> impl Iterator<Item = (u32, &Error)> {
        self.processes.iter().filter_map(|process| Some((process.pid, process.error.as_ref()?)))
    }
}

impl ProcRoot {
    /// Returns the selected files of one process.
    pub fn files_of(&self, pid: u32, selection: &FileSelection<'_>) -> ProcessFiles {
        let mut files =
            ProcessFiles { pid, name: OsString::new(), open: Vec::new(), mapped: Vec::new(), error: None };
        let read = self.each_file_of(pid, selection, |file| match file {
            HeldFile::Open(file) => files.open.push(file),
            HeldFile::Mapped(file) => files.mapped.push(file),
        });
        files.error = read.err();
        files.open.sort_unstable_by_key(|file| file.fd);
        if !files.open.is_empty() || !files.mapped.is_empty() {
            files.name = self.name(pid).unwrap_or_default();
        }
        files
    }

    /// Passes each selected file of one process to `each`, descriptors first. Nothing is stored,
    /// however many there are.
    ///
    /// Fails if not all of them could be read; [`Error::is_gone`] if the process has ended.
    pub fn each_file_of(
        &self,
        pid: u32,
        selection: &FileSelection<'_>,
        mut each: impl FnMut(HeldFile),
    ) -> Result<()> {
        self.each_selected_file(pid, selection, |file| each(HeldFile::Open(file)))?;
        if selection.mappings == MappingMode::Ignored {
            return Ok(());
        }
        self.for_each_mapping(pid, |mapping| {
            if let Some(file) = self.selected(pid, mapping, selection) {
                each(HeldFile::Mapped(file));
            }
        })
    }

    fn selected(
        &self,
        pid: u32,
        mapping: ProcessMapping,
        selection: &FileSelection<'_>,
    ) -> Option<MappedFile> {
        if !selection.has_name(&mapping.path) {
            return None;
        }
        if let Some(wanted) = selection.inodes {
            if !wanted.numbers.contains(&mapping.inode.ino) {
                return None;
            }
            if let Some(inode) = wanted.by_file_system.get(&mapping.inode).copied() {
                return Some(MappedFile { mapping, inode, reached: None });
            }
        }
        if selection.mappings == MappingMode::AsShown && selection.inodes.is_none() {
            let inode = mapping.inode;
            return Some(MappedFile { mapping, inode, reached: None });
        }
        let (path, stat) = self.file_behind_mapping(pid, &mapping)?;
        let inode = inode_of(&stat);
        selection.has_inode(inode).then_some(MappedFile {
            mapping,
            inode,
            reached: Some((path, stat.stx_size)),
        })
    }
}

/// A snapshot in progress.
///
/// ```
/// use pagekeeper_kernel::process::{MappingMode, OpenFilesScan, ProcRoot, FileSelection};
/// use std::time::Duration;
///
/// let proc = ProcRoot::default();
/// let logs = |name: &std::path::Path| name.extension().is_some_and(|extension| extension == "log");
/// let selection = FileSelection { name: Some(&logs), mappings: MappingMode::AsShown, ..FileSelection::default() };
/// let mut scan = OpenFilesScan::of_all(&proc, selection)?;
/// while !scan.advance(Duration::from_millis(1)) {
///     // Something else.
/// }
/// for process in scan.finish().processes {
///     println!("{:?} has {} logs open", process.name, process.open.len());
/// }
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
#[derive(Debug)]
pub struct OpenFilesScan<'a> {
    proc: &'a ProcRoot,
    selection: FileSelection<'a>,
    /// The remaining processes, the next one last.
    pids: Vec<u32>,
    found: OpenFiles,
}

impl<'a> OpenFilesScan<'a> {
    /// Creates a snapshot of these processes, in this order.
    pub fn of(proc: &'a ProcRoot, pids: impl IntoIterator<Item = u32>, selection: FileSelection<'a>) -> Self {
        let mut pids: Vec<u32> = pids.into_iter().collect();
        pids.reverse();
        Self { proc, selection, pids, found: OpenFiles::default() }
    }

    /// Creates a snapshot of all existing processes, including this one.
    pub fn of_all(proc: &'a ProcRoot, selection: FileSelection<'a>) -> Result<Self> {
        Ok(Self::of(proc, proc.pids()?, selection))
    }

    /// Reads at least one process, and further ones until the budget is used. Returns whether all
    /// were read. One process takes some microseconds per descriptor, and is not interrupted.
    pub fn advance(&mut self, budget: Duration) -> bool {
        let began = Instant::now();
        while let Some(pid) = self.pids.pop() {
            let files = self.proc.files_of(pid, &self.selection);
            let ended = files.error.as_ref().is_some_and(Error::is_gone);
            let is_empty = files.open.is_empty() && files.mapped.is_empty() && files.error.is_none();
            if !ended && !is_empty {
                self.found.processes.push(files);
            }
            if began.elapsed() >= budget {
                break;
            }
        }
        self.pids.is_empty()
    }

    /// Reads the remaining processes and returns the snapshot.
    pub fn finish(mut self) -> OpenFiles {
        self.advance(Duration::MAX);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::AccessMode;
    use crate::sys::mapping::FileMapping;
    use crate::{InspectedFile, Links, page_size};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    /// Creates a `/proc` with processes that each have these files open, from descriptor 3 on.
    fn fake(processes: &[(u32, &[&Path])]) -> (tempfile::TempDir, ProcRoot) {
        let tree = tempfile::tempdir().unwrap();
        for (pid, files) in processes {
            let process = tree.path().join(pid.to_string());
            for below in ["fd", "fdinfo"] {
                std::fs::create_dir_all(process.join(below)).unwrap();
            }
            symlink("/", process.join("root")).unwrap();
            std::fs::write(process.join("comm"), format!("program-{pid}\n")).unwrap();
            std::fs::write(process.join("maps"), "").unwrap();
            for (fd, file) in (3..).zip(*files) {
                symlink(file, process.join(format!("fd/{fd}"))).unwrap();
                std::fs::write(process.join(format!("fdinfo/{fd}")), "pos:\t5\nflags:\t02\nmnt_id:\t9\n")
                    .unwrap();
            }
        }
        let proc = ProcRoot::at(tree.path());
        (tree, proc)
    }

    fn inode_at(path: &Path) -> Inode {
        Inode::of(&rustix::fs::stat(path).unwrap())
    }

    fn files(names: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = names.iter().map(|name| dir.path().join(name)).collect();
        for path in &paths {
            std::fs::write(path, b"12345").unwrap();
        }
        (dir, paths)
    }

    #[test]
    fn names_and_inodes_select() {
        let (_dir, paths) = files(&["a.log", "b.log", "c.data"]);
        let (_tree, proc) = fake(&[(7, &[&paths[0], &paths[2]]), (8, &[&paths[1]]), (9, &[&paths[2]])]);
        let mut wanted = InodeSet::default();
        assert!(wanted.is_empty());
        wanted.insert(inode_at(&paths[2]), inode_at(&paths[2]));
        let is_log = |path: &Path| path.extension().is_some_and(|extension| extension == "log");
        let open = |selection| {
            let found = OpenFilesScan::of_all(&proc, selection).unwrap().finish();
            assert_eq!(found.errors().count(), 0, "{found:?}");
            let of = |process: ProcessFiles| {
                process
                    .open
                    .into_iter()
                    .map(|file| (file.path, file.position, file.mount_id))
                    .collect::<Vec<_>>()
            };
            found.processes.into_iter().map(|process| (process.pid, of(process))).collect::<Vec<_>>()
        };
        let file = |index: usize| (paths[index].clone(), 5, Some(9));
        let all = [(7, vec![file(0), file(2)]), (8, vec![file(1)]), (9, vec![file(2)])];
        assert_eq!(open(FileSelection::default()), all);
        let logs = FileSelection { name: Some(&is_log), ..FileSelection::default() };
        assert_eq!(open(logs), [(7, vec![file(0)]), (8, vec![file(1)])]);
        let of_inode = FileSelection { inodes: Some(&wanted), ..FileSelection::default() };
        assert_eq!(open(of_inode), [(7, vec![file(2)]), (9, vec![file(2)])]);
        assert_eq!(open(FileSelection { name: Some(&is_log), ..of_inode }), []);
    }

    #[test]
    fn a_scan_goes_in_slices_and_in_order() {
        let (_dir, paths) = files(&["a"]);
        let (_tree, proc) = fake(&[(7, &[&paths[0]]), (8, &[&paths[0]]), (9, &[&paths[0]])]);
        let mut scan = OpenFilesScan::of(&proc, [9, 4, 7, 8], FileSelection::default());
        let slices = (0..4).map(|_| scan.advance(Duration::ZERO)).collect::<Vec<_>>();
        assert_eq!(slices, [false, false, false, true]);
        let pids: Vec<_> = scan.finish().processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [9, 7, 8], "process 4 has ended");
    }

    #[test]
    fn files_read_before_an_error_are_kept() {
        let (_dir, paths) = files(&["a"]);
        let (tree, proc) = fake(&[(7, &[&paths[0]])]);
        std::fs::write(tree.path().join("7/maps"), "odd\n").unwrap();
        let selection = FileSelection { mappings: MappingMode::AsShown, ..FileSelection::default() };
        let found = OpenFilesScan::of(&proc, [7], selection).finish();
        let process = &found.processes[0];
        assert_eq!((process.open.len(), process.mapped.len()), (1, 0));
        assert_eq!(process.name, "program-7");
        assert!(found.errors().all(|(pid, error)| pid == 7 && error.to_string().contains("odd")));
        assert_eq!(found.errors().count(), 1);
    }

    #[test]
    fn mappings_are_resolved_by_their_paths() {
        // As on btrfs: the kernel shows another device than stat.
        let (dir, paths) = files(&["a", "b"]);
        let (tree, proc) = fake(&[(7, &[])]);
        // A separate root: the path to the directory may be on an overlay that contacts the lower
        // layer each time, as over 9p.
        let root = tree.path().join("7/root");
        std::fs::remove_file(&root).unwrap();
        symlink(dir.path(), &root).unwrap();
        let line = |at: u32, index: usize| {
            let (ino, name) = (inode_at(&paths[index]).ino, paths[index].file_name().unwrap().display());
            format!("{at}000-{at}800 r--s 00000000 00:fe {ino} /{name}\n")
        };
        let gone = "9000-9800 r--s 00000000 00:fe 1 /nowhere/c\n";
        std::fs::write(tree.path().join("7/maps"), format!("{}{}{gone}", line(1, 0), line(2, 1))).unwrap();
        let mapped = |selection: &FileSelection<'_>| proc.files_of(7, selection).mapped;
        let by = |mappings| FileSelection { mappings, ..FileSelection::default() };
        assert_eq!(mapped(&by(MappingMode::Ignored)), []);
        let shown = mapped(&by(MappingMode::AsShown));
        assert_eq!(shown.len(), 3);
        assert!(shown.iter().all(|mapped| mapped.inode == mapped.mapping.inode && mapped.reached.is_none()));
        let resolved = mapped(&by(MappingMode::Resolved));
        assert_eq!(resolved.len(), 2);
        assert_eq!(resolved[1].inode, inode_at(&paths[1]));
        assert_eq!(resolved[1].reached.as_ref().unwrap().1, 5);

        let other = Inode { dev: rustix::fs::makedev(0, 0xfe), ino: inode_at(&paths[1]).ino };
        for on_file_system in [other, inode_at(&paths[1])] {
            let mut wanted = InodeSet::default();
            wanted.insert(inode_at(&paths[1]), on_file_system);
            let selection = FileSelection { inodes: Some(&wanted), ..by(MappingMode::Resolved) };
            let found = mapped(&selection);
            assert_eq!(found.iter().map(|mapped| mapped.inode).collect::<Vec<_>>(), [inode_at(&paths[1])]);
        }
    }

    #[test]
    fn this_process_is_seen_with_descriptors_and_mappings() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 100]).unwrap();
        let opened = InspectedFile::open(file.path(), Links::Refuse).unwrap();
        let length = usize::try_from(page_size()).unwrap();
        let mapping = FileMapping::new(opened.file(), 0, length).unwrap();
        let proc = ProcRoot::default();
        assert_eq!(proc.own_pid(), std::process::id());
        let mut wanted = InodeSet::default();
        wanted.insert(opened.inode(), opened.inode());
        let selection = FileSelection {
            inodes: Some(&wanted),
            mappings: MappingMode::Resolved,
            ..FileSelection::default()
        };
        let found = OpenFilesScan::of_all(&proc, selection).unwrap().finish();
        let own = found.processes.iter().find(|process| process.pid == std::process::id()).unwrap();
        let of = |fd: i32| own.open.iter().find(|open| open.fd == fd).unwrap();
        assert_eq!(of(opened.file().as_raw_fd()).access, AccessMode::ReadOnly);
        let writer = of(file.as_raw_fd());
        assert_eq!((writer.access, writer.size, writer.inode), (AccessMode::ReadWrite, 100, opened.inode()));
        assert!(writer.mount_id.is_some());
        assert_eq!((own.mapped.len(), own.mapped[0].inode), (1, opened.inode()));
        assert!(own.mapped[0].mapping.shared && own.error.is_none() && !own.name.is_empty());
        drop(mapping);
        assert_eq!(proc.files_of(std::process::id(), &selection).mapped, []);
    }

    #[test]
    fn a_strangers_process_is_an_error_of_its_own() {
        let denied = || {
            let proc = ProcRoot::default();
            let found = OpenFilesScan::of(&proc, [1, u32::MAX], FileSelection::default()).finish();
            assert_eq!(
                found.errors().map(|(pid, error)| (pid, error.is_denied())).collect::<Vec<_>>(),
                [(1, true)]
            );
        };
        if rustix::process::geteuid().is_root() {
            crate::testing::as_nobody(denied);
        } else {
            denied();
        }
    }
}
