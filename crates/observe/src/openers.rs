//! Who on the whole host has one of the files open or mapped: one pass over `/proc/*/fd` and `/proc/*/maps`.
//!
//! Invariants: what a process does with other files is not kept; this process is left out unless it is inspected itself;
//! a process that ends meanwhile has nothing open.

use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Inode, Result};

use crate::OpenerKind;
use crate::files::Files;
use crate::held::{behind, kind_of, kind_of_mapping};
use crate::visibility::VisibilityGaps;

/// Finds the openers among all processes but `known`, whose files are recorded already.
pub(crate) fn find(
    proc: &ProcRoot,
    files: &mut Files,
    known: &HashSet<u32>,
    gaps: &mut VisibilityGaps,
) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let wanted = Wanted::of(files);
    let own = own_number(proc);
    for pid in proc.pids()? {
        if known.contains(&pid) || pid == own {
            continue;
        }
        let found = match opened_by(proc, pid, files, &wanted) {
            Ok(found) => found,
            Err(error) => {
                gaps.other_process(pid, &error);
                continue;
            }
        };
        if found.is_empty() {
            continue;
        }
        let name = proc.name(pid).unwrap_or_default().to_string_lossy().into_owned();
        for (inode, kind) in found {
            files.opened(inode, pid, kind, || name.clone());
        }
    }
    Ok(())
}

/// This process, as the mounted `/proc` numbers it: in a container that was given its host's, not as it knows itself.
fn own_number(proc: &ProcRoot) -> u32 {
    let link = std::fs::read_link(proc.path().join("self")).ok();
    let number = link.and_then(|link| link.to_str().and_then(|number| number.parse().ok()));
    number.unwrap_or_else(std::process::id)
}

/// The files in question, as `/proc/PID/maps` names them.
struct Wanted {
    /// By the device of the file system, to what stat(2) shows.
    mapped: HashMap<Inode, Inode>,
    numbers: HashSet<u64>,
}

impl Wanted {
    fn of(files: &Files) -> Self {
        let mapped = files.inodes().map(|(inode, file)| (file.inode, inode)).collect();
        Self { mapped, numbers: files.inodes().map(|(inode, _)| inode.ino).collect() }
    }
}

fn opened_by(proc: &ProcRoot, pid: u32, files: &Files, wanted: &Wanted) -> Result<Vec<(Inode, OpenerKind)>> {
    let mut descriptors: Vec<RawFd> = Vec::new();
    proc.fd_links(pid, |fd, target| {
        if may_be_file(target) {
            descriptors.push(fd);
        }
    })?;
    let mut found = Vec::new();
    for fd in descriptors {
        let Some(inode) = proc.inode_behind(pid, fd).filter(|inode| files.has(*inode)) else { continue };
        let Ok(info) = proc.fd_info(pid, fd) else { continue };
        // Closed meanwhile, and its number reused for another file.
        if info.inode_number.is_none_or(|number| number == inode.ino) {
            found.extend(kind_of(info.access(), info.direct()).map(|kind| (inode, kind)));
        }
    }
    for mapping in proc.mappings(pid)? {
        let inode = if !wanted.numbers.contains(&mapping.inode.ino) {
            None
        } else if let Some(inode) = wanted.mapped.get(&mapping.inode) {
            Some(*inode)
        } else {
            behind(proc, pid, &mapping).map(|(_, stat)| Inode::of(&stat)).filter(|inode| files.has(*inode))
        };
        found.extend(inode.map(|inode| (inode, kind_of_mapping(&mapping))));
    }
    Ok(found)
}

/// Whether a descriptor's link can lead to a regular file.
fn may_be_file(target: &Path) -> bool {
    let text = target.as_os_str().as_bytes();
    text.starts_with(b"/") && (!text.starts_with(b"/dev/") || text.starts_with(b"/dev/shm/"))
}
