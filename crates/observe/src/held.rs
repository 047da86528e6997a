//! Which files a process holds: by descriptors and by mappings, each with the very file behind it.
//!
//! Invariants: no file is opened; a process that ends meanwhile holds nothing. `O_PATH` descriptors neither read nor
//! write, and are left out.

use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::{Access, MappedFile, Mapping, Mappings, ProcRoot, Selection};
use pagekeeper_kernel::{Error, Inode};

use crate::OpenerKind;

/// A file that a process holds, by one descriptor or mapping.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) kind: OpenerKind,
    /// As stat(2) shows it.
    pub(crate) inode: Inode,
    /// As the process names it.
    pub(crate) path: PathBuf,
    /// That name no longer leads to the file.
    pub(crate) deleted: bool,
    /// A mapping that changes don't go to the file through: of a program or a library, most often.
    pub(crate) private: bool,
    /// Leads to the very file, whatever became of its name.
    pub(crate) link: PathBuf,
    pub(crate) size: u64,
}

/// All that a process holds, and why that may not be all.
pub(crate) fn held_by(proc: &ProcRoot, pid: u32) -> (Vec<Held>, Option<Error>) {
    let selection = Selection { mappings: Mappings::Resolved, ..Selection::default() };
    let files = proc.files_of(pid, &selection);
    let opened = files.open.into_iter().filter_map(|file| {
        Some(Held {
            kind: kind_of(file.access, file.direct)?,
            inode: file.inode,
            path: proc.as_seen_by(pid, &file.path),
            deleted: file.deleted,
            private: false,
            link: proc.fd_path(pid, file.fd),
            size: file.size,
        })
    });
    let mapped = files.mapped.into_iter().filter_map(|MappedFile { mapping, inode, reached }| {
        let (link, size) = reached?;
        Some(Held {
            kind: kind_of_mapping(&mapping),
            inode,
            path: proc.as_seen_by(pid, &mapping.path),
            deleted: mapping.deleted,
            private: !mapping.shared,
            link,
            size,
        })
    });
    (opened.chain(mapped).collect(), files.error)
}

/// How a descriptor has its file; `None` for one that neither reads nor writes.
pub(crate) fn kind_of(access: Access, direct: bool) -> Option<OpenerKind> {
    match (access, direct) {
        (Access::Neither, _) => None,
        (access, true) => Some(OpenerKind::Direct(access)),
        (access, false) => Some(OpenerKind::Buffered(access)),
    }
}

/// How a mapping has its file.
pub(crate) fn kind_of_mapping(mapping: &Mapping) -> OpenerKind {
    OpenerKind::Mapped { writable: mapping.shared && mapping.writable }
}

/// The path by which this process can open a file that another one names so.
pub(crate) fn reach(proc: &ProcRoot, pid: u32, path: &Path) -> PathBuf {
    // What can't be seen of the process is no reason to take its path for one of ours.
    proc.in_namespace(pid, path)
        .unwrap_or_else(|_| proc.root(pid).join(path.strip_prefix("/").unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shared_mapping_changes_its_file() {
        let mapping = |shared, writable| Mapping {
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
    fn how_a_descriptor_has_its_file() {
        assert_eq!(kind_of(Access::ReadWrite, true), Some(OpenerKind::Direct(Access::ReadWrite)));
        assert_eq!(kind_of(Access::ReadOnly, false), Some(OpenerKind::Buffered(Access::ReadOnly)));
        assert_eq!(kind_of(Access::Neither, false), None);
    }
}
