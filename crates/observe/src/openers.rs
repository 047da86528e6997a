//! Who on the whole host has one of the files open or mapped: one scan of all processes.
//!
//! Invariants: what a process does with other files is not kept; this process is left out unless it is inspected itself;
//! a process that ends meanwhile has nothing open.

use std::collections::HashSet;

use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::{Mappings, OpenFilesScan, ProcRoot, Selection};
use pagekeeper_kernel::text::unescaped;

use crate::files::Files;
use crate::held::{kind_of, kind_of_mapping};
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
    let wanted = files.inode_set();
    let selection = Selection { inodes: Some(&wanted), mappings: Mappings::Resolved, ..Selection::default() };
    let own = proc.own_pid();
    let others = proc.pids()?.into_iter().filter(|pid| !known.contains(pid) && *pid != own);
    for process in OpenFilesScan::of(proc, others, selection).finish().processes {
        if let Some(error) = &process.error {
            gaps.other_process(process.pid, error);
        }
        let name = || unescaped(&process.name).into_owned();
        for file in &process.open {
            if let Some(kind) = kind_of(file.access, file.direct) {
                files.opened(file.inode, process.pid, kind, name);
            }
        }
        for file in &process.mapped {
            files.opened(file.inode, process.pid, kind_of_mapping(&file.mapping), name);
        }
    }
    Ok(())
}
