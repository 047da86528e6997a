//! Which files a process holds: by descriptors and by mappings, each with the very file behind it.
//!
//! Invariants: no file is opened; a process that ends meanwhile holds nothing. `O_PATH` descriptors neither read nor
//! write, and are left out.

use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::{Access, Mapping, ProcRoot};
use pagekeeper_kernel::{Inode, Result};

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

/// All that a process holds.
pub(crate) fn held_by(proc: &ProcRoot, pid: u32) -> Result<Vec<Held>> {
    let mut held: Vec<Held> = proc
        .open_files(pid)?
        .into_iter()
        .filter_map(|file| {
            Some(Held {
                kind: kind_of(file.access, file.direct)?,
                inode: file.inode,
                path: proc.as_seen_by(pid, &file.path),
                deleted: file.deleted,
                private: false,
                link: proc.fd_path(pid, file.fd),
                size: file.size,
            })
        })
        .collect();
    for mapping in proc.mappings(pid)? {
        held.extend(mapped(proc, pid, &mapping));
    }
    Ok(held)
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

fn mapped(proc: &ProcRoot, pid: u32, mapping: &Mapping) -> Option<Held> {
    let (link, stat) = behind(proc, pid, mapping)?;
    Some(Held {
        kind: kind_of_mapping(mapping),
        inode: Inode::of(&stat),
        path: proc.as_seen_by(pid, &mapping.path),
        deleted: mapping.deleted,
        private: !mapping.shared,
        link,
        size: u64::try_from(stat.st_size).unwrap_or(0),
    })
}

/// The file behind a mapping, which the kernel shows by the device of the file system, not as stat(2) does.
pub(crate) fn behind(proc: &ProcRoot, pid: u32, mapping: &Mapping) -> Option<(PathBuf, rustix::fs::Stat)> {
    let same = |stat: &rustix::fs::Stat| stat.st_ino == mapping.inode.ino;
    let addresses = &mapping.addresses;
    let directory = proc.path().join(pid.to_string()).join("map_files");
    // Needs CAP_CHECKPOINT_RESTORE (CAP_SYS_ADMIN before Linux 5.9), and finds deleted files as well.
    let magic = directory.join(format!("{:x}-{:x}", addresses.start, addresses.end));
    if let Ok(stat) = rustix::fs::stat(&magic)
        && same(&stat)
    {
        return Some((magic, stat));
    }
    let below = mapping.path.strip_prefix("/").unwrap_or(&mapping.path);
    let named = proc.root(pid).join(below);
    // The kernel's paths hold no links, so this lookup can't leave the process's root.
    rustix::fs::lstat(&named).ok().filter(same).map(|stat| (named, stat))
}

/// The path by which this process can open a file that another one names so.
pub(crate) fn reach(proc: &ProcRoot, pid: u32, path: &Path) -> PathBuf {
    proc.in_namespace(pid, path).unwrap_or_else(|_| path.to_path_buf())
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
