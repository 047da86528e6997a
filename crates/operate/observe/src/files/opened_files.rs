//! Files that a process holds, by descriptors and by mappings, each with the very file behind it.
//!
//! Invariants: no file is opened; a process that ends meanwhile holds nothing. `O_PATH` descriptors
//! neither read nor write, and are left out. At most the allowed number is kept, however much a
//! process holds; the rest is counted.

use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::{
    AccessMode, FileSelection, HeldFile, MappedFile, MappingMode, ProcRoot, ProcessMapping,
};
use pagekeeper_kernel::{Error, Inode, stat_of_name};

use crate::OpenerKind;

/// Room for mappings that is requested in addition to a process's descriptors.
const EXTRA_MAPPINGS: usize = 1024;

/// A file that a process holds, through one descriptor or mapping, or through several equal ones in
/// a row.
#[derive(Debug, Clone)]
pub(crate) struct OpenedFile {
    pub(crate) kind: OpenerKind,
    /// The inode in stat(2).
    pub(crate) inode: Inode,
    /// The path as the process names it.
    pub(crate) path: PathBuf,
    /// Whether that name no longer leads to the file.
    pub(crate) deleted: bool,
    /// Whether it is a mapping whose changes do not reach the file, mostly of a program or a
    /// library.
    pub(crate) private: bool,
    /// A path that leads to the very file, whatever became of its name.
    pub(crate) link: PathBuf,
    pub(crate) size: u64,
    /// The number of descriptors or mappings.
    pub(crate) count: usize,
}

impl OpenedFile {
    fn is_like(&self, other: &Self) -> bool {
        (self.inode, self.kind, self.private) == (other.inode, other.kind, other.private)
            && (&self.path, self.deleted) == (&other.path, other.deleted)
    }

    /// Returns the path by which this process opens this very file. That is its name if it leads to
    /// the file. Otherwise, as when another file was renamed or mounted over it, the path through
    /// the descriptor or mapping.
    pub(crate) fn reach(&self, proc: &ProcRoot, pid: u32) -> PathBuf {
        let named = reach(proc, pid, &self.path);
        let leads_to_it = || stat_of_name(&named).is_ok_and(|found| Inode::of(&found) == self.inode);
        if !self.deleted && leads_to_it() { named } else { self.link.clone() }
    }
}

/// The files that a process holds.
#[derive(Debug, Default)]
pub(crate) struct OpenedFiles {
    pub(crate) kept: Vec<OpenedFile>,
    /// The number of descriptors and mappings beyond the limit.
    pub(crate) left_out: usize,
    /// An error if the list may be incomplete.
    pub(crate) error: Option<Error>,
}

/// Returns an upper bound of what a process holds, by the number of its descriptors (since Linux
/// 6.2); `usize::MAX` if that is unknown.
pub(crate) fn may_hold(proc: &ProcRoot, pid: u32) -> usize {
    let descriptors = stat_of_name(&proc.path().join(format!("{pid}/fd"))).map_or(0, |stat| stat.st_size);
    match usize::try_from(descriptors) {
        Ok(descriptors) if descriptors > 0 => descriptors.saturating_add(EXTRA_MAPPINGS),
        _ => usize::MAX,
    }
}

/// Returns the first `most` descriptors and mappings of a process.
pub(crate) fn opened_by(proc: &ProcRoot, pid: u32, most: usize) -> OpenedFiles {
    let selection = FileSelection { mappings: MappingMode::Resolved, ..FileSelection::default() };
    let mut held = OpenedFiles::default();
    let read = proc.each_file_of(pid, &selection, |file| {
        let Some(found) = held_of(proc, pid, file) else { return };
        if held.left_out > 0 {
            held.left_out += 1;
            return;
        }
        let is_full = held.kept.len() == most;
        match held.kept.last_mut().filter(|last| last.is_like(&found)) {
            Some(last) => last.count += 1,
            None if is_full => held.left_out += 1,
            None => held.kept.push(found),
        }
    });
    held.error = read.err();
    held
}

fn held_of(proc: &ProcRoot, pid: u32, file: HeldFile) -> Option<OpenedFile> {
    match file {
        HeldFile::Open(file) => Some(OpenedFile {
            kind: kind_of(file.access, file.direct)?,
            inode: file.inode,
            path: proc.as_seen_by(pid, &file.path),
            deleted: file.deleted,
            private: false,
            link: proc.fd_path(pid, file.fd),
            size: file.size,
            count: 1,
        }),
        HeldFile::Mapped(MappedFile { mapping, inode, reached }) => {
            let (link, size) = reached?;
            Some(OpenedFile {
                kind: kind_of_mapping(&mapping),
                inode,
                path: proc.as_seen_by(pid, &mapping.path),
                deleted: mapping.deleted,
                private: !mapping.shared,
                link,
                size,
                count: 1,
            })
        }
    }
}

/// Returns the kind of a descriptor's use; `None` if it neither reads nor writes.
pub(crate) fn kind_of(access: AccessMode, direct: bool) -> Option<OpenerKind> {
    match (access, direct) {
        (AccessMode::Neither, _) => None,
        (access, true) => Some(OpenerKind::Direct(access)),
        (access, false) => Some(OpenerKind::Buffered(access)),
    }
}

/// Returns the kind of a mapping's use.
pub(crate) fn kind_of_mapping(mapping: &ProcessMapping) -> OpenerKind {
    OpenerKind::Mapped { writable: mapping.shared && mapping.writable }
}

/// Returns the path by which this process can open a file that another one names so.
pub(crate) fn reach(proc: &ProcRoot, pid: u32, path: &Path) -> PathBuf {
    // If the process can't be inspected, its path must not be mistaken for one of ours.
    proc.in_namespace(pid, path)
        .unwrap_or_else(|_| proc.root(pid).join(path.strip_prefix("/").unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shared_mapping_changes_its_file() {
        let mapping = |shared, writable| ProcessMapping {
            path: "/d/data.mdb".into(),
            deleted: false,
            inode: Inode { dev: 1, ino: 2 },
            range: 0..4096,
            addresses: 0x1000..0x2000,
            shared,
            writable,
        };
        for (shared, writable, changes) in
            [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
        {
            assert_eq!(kind_of_mapping(&mapping(shared, writable)), OpenerKind::Mapped { writable: changes });
        }
    }

    #[test]
    fn a_descriptors_use_follows_its_access_mode_and_o_direct() {
        assert_eq!(kind_of(AccessMode::ReadWrite, true), Some(OpenerKind::Direct(AccessMode::ReadWrite)));
        assert_eq!(kind_of(AccessMode::ReadOnly, false), Some(OpenerKind::Buffered(AccessMode::ReadOnly)));
        assert_eq!(kind_of(AccessMode::Neither, false), None);
    }

    #[test]
    fn a_file_renamed_over_a_found_one_is_not_mistaken_for_it() {
        use pagekeeper_kernel::{ExpectedFile, Links, PathHandle};

        let dir = crate::testing::disk_dir();
        let [path, other] = ["0001.log", "other"].map(|name| dir.path().join(name));
        std::fs::write(&path, vec![1; 8192]).unwrap();
        std::fs::write(&other, vec![2; 4096]).unwrap();
        let _open = std::fs::File::open(&path).unwrap();
        let (proc, own) = (ProcRoot::default(), std::process::id());
        let found = opened_by(&proc, own, usize::MAX).kept;
        let held = found.into_iter().find(|held| held.path == path).unwrap();
        assert_eq!(held.reach(&proc, own), path);

        std::fs::rename(&other, &path).unwrap();
        assert!(!held.deleted, "it was listed before");
        let reached = PathHandle::at(held.reach(&proc, own), Links::RefuseAll).unwrap();
        assert_eq!(reached.open(ExpectedFile::Inode(held.inode)).unwrap().size(), 8192);
    }
}
