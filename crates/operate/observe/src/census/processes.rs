//! Processes that have files open or mapped, and the databases among them: one snapshot per
//! process.
//!
//! Invariants: a process's next snapshot replaces the previous one as a whole. Pages that a process
//! brought in stay its own after it has ended. A failure concerns one process: one that ended or
//! may not be inspected has no files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_catalog::{Profile, recognise_by_files};
use pagekeeper_kernel::process::{
    AccessMode, CgroupPath, FileSelection, MappedFile, MappingMode, OpenFile, ProcRoot, ProcessFiles,
};
use pagekeeper_kernel::{ExpectedFile, Inode, InspectedFile};
use pagekeeper_text::{unescaped, unescaped_bytes};

use super::table::{FileName, FoundFile};
use super::walk::{WalkScope, count};

/// The ways in which a process uses a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileUse {
    /// Through a descriptor it may write to, or a shared mapping.
    pub writes: bool,
    /// Through a descriptor with `O_DIRECT`.
    pub direct: bool,
    /// Mapped.
    pub mapped: bool,
}

/// The last state of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pub(super) name: Arc<str>,
    /// The control group that its memory is charged to.
    pub(super) cgroup: Arc<str>,
}

/// A process recognised as a database.
#[derive(Debug, Clone)]
pub(super) struct DatabaseProcess {
    pub(super) pid: u32,
    pub(super) profile: Arc<Profile>,
    /// The directories of its files: its working directory, and those of files it may write to.
    pub(super) directories: Vec<PathBuf>,
}

/// One process, with its open files and mappings.
#[derive(Debug)]
pub(super) struct ProcessSnapshot {
    pub(super) pid: u32,
    pub(super) process: ProcessInfo,
    pub(super) files: Vec<(Inode, FileUse)>,
    /// Files without a name that have pages in memory, and paths through which they can be opened.
    pub(super) deleted: Vec<(FoundFile, PathBuf)>,
    /// Open files with pages in memory, if these were requested.
    pub(super) counted: Vec<FoundFile>,
    pub(super) database: Option<DatabaseProcess>,
    /// Whether permission to inspect its files was denied.
    pub(super) denied: bool,
}

/// Takes a snapshot of one process. With `counts` the pages of its open files are counted as well.
pub(super) fn snapshot(
    proc: &ProcRoot,
    pid: u32,
    profiles: &[Arc<Profile>],
    scope: &WalkScope,
    counts: bool,
) -> Option<ProcessSnapshot> {
    let process = process(proc, pid)?;
    let mut snapshot = ProcessSnapshot {
        pid,
        process,
        files: Vec::new(),
        deleted: Vec::new(),
        counted: Vec::new(),
        database: None,
        denied: false,
    };
    // Mappings as the kernel shows them: resolving each, for all processes of a host, would take
    // more time than the census may. The census's tables of devices translate their devices.
    let selection = FileSelection { mappings: MappingMode::AsShown, ..FileSelection::default() };
    let ProcessFiles { open, mapped, error, .. } = proc.files_of(pid, &selection);
    if let Some(error) = error {
        snapshot.denied = error.is_denied();
        if open.is_empty() {
            return (!error.is_gone()).then_some(snapshot);
        }
    }
    let mut held: HashMap<Inode, FileUse> = HashMap::new();
    let mut nameless = |inode: Inode, expected: ExpectedFile, path: &Path, reach: PathBuf| {
        let file_system = scope.file_system_of(inode.dev).filter(|_| scope.file_systems.covers(path));
        let Some(file_system) = file_system else { return };
        let found = InspectedFile::open_magic_link(&reach, expected, path.to_path_buf())
            .and_then(|file| count(&file, FileName::Deleted(path.into()), file_system));
        if let Ok(Some(found)) = found {
            snapshot.deleted.push((found, reach));
        }
    };
    for file in &open {
        let known = held.contains_key(&file.inode);
        let used = held.entry(file.inode).or_default();
        used.writes |= file.access.writes();
        used.direct |= file.direct;
        if file.deleted && !known {
            nameless(file.inode, ExpectedFile::Inode(file.inode), &file.path, proc.fd_path(pid, file.fd));
        } else if counts && !known {
            snapshot.counted.extend(count_open_file(proc, pid, file, scope));
        }
    }
    for MappedFile { mapping, .. } in mapped {
        let known = held.contains_key(&mapping.inode);
        let used = held.entry(mapping.inode).or_default();
        used.mapped = true;
        used.writes |= mapping.shared && mapping.writable;
        if mapping.deleted && !known {
            // The inode as the kernel shows it, which on some file systems differs from stat(2).
            nameless(
                mapping.inode,
                ExpectedFile::Any,
                &mapping.path,
                proc.mapping_path(pid, &mapping.addresses),
            );
        }
    }
    snapshot.files = held.into_iter().collect();
    let names = open.iter().map(|file| file.path.as_path());
    let name = OsStr::new(&*snapshot.process.name);
    snapshot.database = recognise_by_files(proc, pid, name, names, profiles).map(|found| DatabaseProcess {
        pid,
        profile: found.profile,
        directories: find_directories(proc, pid, &open),
    });
    Some(snapshot)
}

/// Returns the directories of a database's files: its working directory, and those of files it may
/// read and write.
fn find_directories(proc: &ProcRoot, pid: u32, open: &[OpenFile]) -> Vec<PathBuf> {
    const SHARED_DIRECTORIES: [&str; 7] = ["/", "/tmp", "/var/tmp", "/var/log", "/dev/shm", "/root", "/run"];
    let mut homes: Vec<PathBuf> = proc.working_directory(pid).into_iter().collect();
    let written = open.iter().filter(|file| file.access == AccessMode::ReadWrite);
    homes.extend(written.filter_map(|file| file.path.parent().map(Path::to_path_buf)));
    homes.retain(|home| {
        !SHARED_DIRECTORIES.iter().any(|shared| home == Path::new(shared)) && !home.starts_with("/proc")
    });
    // A directory that can't be located is left out.
    homes = homes.iter().filter_map(|home| proc.in_namespace(pid, home).ok()).collect();
    homes.sort();
    homes.dedup();
    homes
}

/// Counts the pages of an open file that has a name, through its descriptor.
fn count_open_file(proc: &ProcRoot, pid: u32, file: &OpenFile, scope: &WalkScope) -> Option<FoundFile> {
    let file_system =
        scope.file_system_of(file.inode.dev).filter(|_| scope.file_systems.covers(&file.path))?;
    let name = named(proc, pid, &file.path, scope)?;
    let (link, expected) = (proc.fd_path(pid, file.fd), ExpectedFile::Inode(file.inode));
    let opened = InspectedFile::open_magic_link(&link, expected, file.path.clone()).ok()?;
    count(&opened, name, file_system).ok()?
}

/// Returns the name of a file that a process has open, as this process can open it.
pub(super) fn named(proc: &ProcRoot, pid: u32, path: &Path, scope: &WalkScope) -> Option<FileName> {
    let reach = proc.in_namespace(pid, path).ok()?;
    let (number, _) = scope.number(reach.parent()?);
    Some(FileName::In(number, reach.file_name()?.into()))
}

/// Returns the name and control group of a process; `None` if it has ended.
pub(super) fn process(proc: &ProcRoot, pid: u32) -> Option<ProcessInfo> {
    let name = proc.name(pid).ok()?;
    let cgroup = proc.cgroup_paths(pid).map(|paths| charged_group(&paths)).unwrap_or_default();
    Some(ProcessInfo { name: unescaped(&name).into(), cgroup: cgroup.into() })
}

/// Returns the group that memory is charged to: that of the memory controller, or of version 2.
fn charged_group(paths: &[CgroupPath]) -> String {
    CgroupPath::charged(paths).map_or_else(|| "/".to_owned(), |path| unescaped(&path.path).into_owned())
}

/// The users of each file, over all processes.
#[derive(Debug, Default)]
pub(super) struct OpenerIndex {
    by_process: HashMap<u32, Vec<Inode>>,
    by_file: HashMap<Inode, Vec<(u32, FileUse)>>,
}

impl OpenerIndex {
    /// Replaces the files of a process.
    pub(super) fn set(&mut self, pid: u32, files: &[(Inode, FileUse)]) {
        self.forget(pid);
        for (inode, used) in files {
            self.by_file.entry(*inode).or_default().push((pid, *used));
        }
        self.by_process.insert(pid, files.iter().map(|(inode, _)| *inode).collect());
    }

    pub(super) fn forget(&mut self, pid: u32) {
        for inode in self.by_process.remove(&pid).into_iter().flatten() {
            if let Some(users) = self.by_file.get_mut(&inode) {
                users.retain(|(user, _)| *user != pid);
                if users.is_empty() {
                    self.by_file.remove(&inode);
                }
            }
        }
    }

    pub(super) fn of(&self, inode: Inode) -> &[(u32, FileUse)] {
        self.by_file.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// Returns the files that a process may write to.
    pub(super) fn written(&self) -> impl Iterator<Item = Inode> {
        let writes = |users: &Vec<(u32, FileUse)>| users.iter().any(|(_, used)| used.writes);
        self.by_file.iter().filter(move |(_, users)| writes(users)).map(|(inode, _)| *inode)
    }

    /// Returns all files that a process uses.
    pub(super) fn files(&self) -> impl Iterator<Item = Inode> {
        self.by_file.keys().copied()
    }
}

/// Returns the readable name of a control group: for a container its kind and short id, otherwise
/// the whole path.
pub(super) fn shown_cgroup(path: &str) -> String {
    let last = path.rsplit('/').next().unwrap_or(path);
    let name = last.strip_suffix(".scope").unwrap_or(last);
    let (kind, id) = match name.rsplit_once(['-', ':']) {
        Some((kind, id)) if is_id(id) => (kind.rsplit('-').next().unwrap_or(kind), id),
        _ if is_id(name) => {
            let above = path.trim_end_matches(last).trim_end_matches('/').rsplit('/').next().unwrap_or("");
            (if above.starts_with("pod") || above.starts_with("kubepods") { "pod" } else { above }, name)
        }
        _ => return if path.is_empty() { "/".to_owned() } else { path.to_owned() },
    };
    let kind = if kind.is_empty() { "container" } else { kind };
    format!("{kind} {}", unescaped_bytes(&id.as_bytes()[..12]))
}

/// Returns whether a name is a container's id: 32 or more hexadecimal digits.
fn is_id(name: &str) -> bool {
    name.len() >= 32 && OsStr::new(name).as_bytes().iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use super::super::file_systems::FileSystems;
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn own_files_are_listed_and_deleted_ones_counted() {
        let mut kept = tempfile::NamedTempFile::new_in(".").unwrap();
        kept.write_all(&[1; 4096]).unwrap();
        let mut gone = tempfile::tempfile_in(".").unwrap();
        gone.write_all(&[1; 8192]).unwrap();
        let own = std::process::id();
        let proc = ProcRoot::default();
        let scope = WalkScope::new(FileSystems::of_host(&proc, false).unwrap());
        let meta = kept.as_file().metadata().unwrap();
        scope.devices().insert(meta.dev(), 3);
        let snapshot = snapshot(&proc, own, &[], &scope, true).unwrap();
        let stat = |file: &std::fs::File| {
            let meta = file.metadata().unwrap();
            Inode { dev: meta.dev(), ino: meta.ino() }
        };
        let used = snapshot.files.iter().find(|(inode, _)| *inode == stat(kept.as_file())).unwrap().1;
        assert_eq!(used, FileUse { writes: true, direct: false, mapped: false });
        let (found, reach) = snapshot.deleted.iter().find(|(found, _)| found.inode == stat(&gone)).unwrap();
        assert_eq!((found.residency.resident, found.file_system), (8192, 3));
        assert!(snapshot.counted.iter().any(|found| found.inode == stat(kept.as_file())));
        assert!(reach.starts_with(format!("/proc/{own}/fd")));
        assert!(snapshot.files.iter().any(|(_, used)| used.mapped));
    }

    #[test]
    fn openers_are_replaced_as_a_whole() {
        let inode = |ino| Inode { dev: 1, ino };
        let writes = FileUse { writes: true, ..FileUse::default() };
        let mut openers = OpenerIndex::default();
        openers.set(7, &[(inode(1), FileUse::default()), (inode(2), writes)]);
        openers.set(8, &[(inode(1), writes)]);
        assert_eq!(openers.of(inode(1)).len(), 2);
        openers.set(8, &[]);
        assert_eq!(openers.of(inode(1)), [(7, FileUse::default())]);
        assert_eq!(openers.written().collect::<Vec<_>>(), [inode(2)]);
        openers.forget(7);
        assert_eq!(openers.files().count(), 0);
    }

    #[test]
    fn containers_have_short_names() {
        for (path, shown) in [
            (format!("/docker/{ID}"), "docker 0123456789ab"),
            (format!("/system.slice/docker-{ID}.scope"), "docker 0123456789ab"),
            (format!("/kubepods/besteffort/pod12/{ID}"), "pod 0123456789ab"),
            (format!("/kubepods.slice/x.slice/cri-containerd-{ID}.scope"), "containerd 0123456789ab"),
            ("/system.slice/mariadb.service".to_owned(), "/system.slice/mariadb.service"),
            (String::new(), "/"),
        ] {
            assert_eq!(shown_cgroup(&path), shown);
        }
    }
}
