//! Finds the processes of the whole host that have one of the files open or mapped, in one scan of
//! all processes.
//!
//! Invariants: a process's other files are not kept. This process is left out unless it is
//! inspected itself. If a process ends meanwhile, the part that was seen is kept.

use std::collections::HashSet;

use pagekeeper_catalog::Party;
use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::{FileSelection, HeldFile, MappingMode, ProcRoot};
use pagekeeper_text::unescaped;

use crate::files::opened_files::{kind_of, kind_of_mapping};
use crate::files::{FileSet, OpenerRecord};
use crate::visibility::VisibilityGaps;

/// Finds the openers among all processes except `known`, whose files are recorded already.
pub(crate) fn find(
    proc: &ProcRoot,
    files: &mut FileSet,
    known: &HashSet<u32>,
    gaps: &mut VisibilityGaps,
) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let wanted = files.inode_set();
    let selection =
        FileSelection { inodes: Some(&wanted), mappings: MappingMode::Resolved, ..FileSelection::default() };
    let own = proc.own_pid();
    for pid in proc.pids()?.into_iter().filter(|pid| !known.contains(pid) && *pid != own) {
        let mut who: Option<(Party, String)> = None;
        let read = proc.each_file_of(pid, &selection, |file| {
            let (inode, kind) = match file {
                HeldFile::Open(file) => (file.inode, kind_of(file.access, file.direct)),
                HeldFile::Mapped(file) => (file.inode, Some(kind_of_mapping(&file.mapping))),
            };
            let Some(kind) = kind else { return };
            let (party, name) = who.get_or_insert_with(|| {
                let name = unescaped(&proc.name(pid).unwrap_or_default()).into_owned();
                (Party::of(proc, pid), name)
            });
            files.opened(&OpenerRecord { inode, pid, party: *party, kind, count: 1 }, || name.clone());
        });
        if let Err(error) = read {
            gaps.other_process(pid, &error);
        }
    }
    Ok(())
}
