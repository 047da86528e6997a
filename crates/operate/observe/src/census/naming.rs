//! Finds names for files of which tracing reports only the inode number.
//!
//! Sources, in this order: the directory in which the walk found that inode; the open files of the
//! processes that brought the pages in; directories that changed since they were walked (in the
//! background). The last resort is the walk itself.

use std::collections::{HashMap, HashSet};

use pagekeeper_kernel::{Inode, InspectedFile, Links};

use super::sampling::{TickBudget, TickEvents};
use super::table::FileName;
use super::walk::{count, names_in};
use super::{Census, processes};

/// Maximum number of processes whose open files are listed in one tick.
const LISTED_PROCESSES_MAX: usize = 16;
/// Number of searches of changed directories for a file's name.
const NAME_SEARCHES_MAX: u8 = 3;

impl Census {
    /// Finds names for files without one. Files in `unlisted` may lie outside the census, and are
    /// taken in if they do not.
    pub(super) fn find_names(
        &mut self,
        events: &TickEvents,
        unlisted: &HashSet<Inode>,
        budget: &mut TickBudget,
    ) {
        if self.files.nameless.is_empty() && unlisted.is_empty() {
            return;
        }
        self.name_by_directory(budget);
        self.name_by_open_files(events, unlisted, budget);
        let wanted = self.files.nameless.values().any(|searches| *searches < NAME_SEARCHES_MAX)
            || !unlisted.is_empty();
        if let (true, Some(background)) = (wanted, &self.background) {
            background.search();
        }
    }

    fn name_by_directory(&mut self, budget: &mut TickBudget) {
        let mut wanted: HashMap<u32, Vec<u64>> = HashMap::new();
        for id in self.files.nameless.keys() {
            let Some(inode) = self.files.table.get(*id).map(|entry| entry.inode) else { continue };
            if let Some(directory) = self.files.directories.directory(inode) {
                wanted.entry(directory).or_default().push(inode.ino);
            }
        }
        for (number, inodes) in wanted {
            if budget.over() {
                return;
            }
            let path = self.scope.directories().get(number).map(|directory| directory.path.clone());
            let Some(path) = path else { continue };
            for (_, name) in names_in(&path, &inodes) {
                self.set_found_name(FileName::In(number, name));
            }
        }
    }

    fn name_by_open_files(
        &mut self,
        events: &TickEvents,
        unlisted: &HashSet<Inode>,
        budget: &mut TickBudget,
    ) {
        let proc = self.options.roots.proc.clone();
        let mut wanted: HashSet<Inode> = self
            .files
            .nameless
            .keys()
            .filter_map(|id| self.files.table.get(*id).map(|entry| entry.inode))
            .collect();
        wanted.extend(unlisted);
        wanted.retain(|inode| events.contains_key(inode));
        let pids: HashSet<u32> =
            wanted.iter().filter_map(|inode| events.get(inode)).flat_map(|(_, pids)| pids).copied().collect();
        for pid in pids.into_iter().take(LISTED_PROCESSES_MAX) {
            if budget.over() {
                return;
            }
            for file in proc.open_files(pid).unwrap_or_default() {
                let ours = self.own_inode(file.inode).unwrap_or(file.inode);
                if !wanted.contains(&ours) || file.deleted || !self.scope.file_systems.covers(&file.path) {
                    continue;
                }
                if let Some(name) = processes::named(&proc, pid, &file.path, &self.scope) {
                    self.set_found_name(name);
                }
            }
        }
    }

    /// Records the file of that name, in its present state.
    fn set_found_name(&mut self, name: FileName) {
        let FileName::In(number, file) = &name else { return };
        let path = self.scope.directories().get(*number).map(|directory| directory.path.join(file.as_ref()));
        let Some(Ok(file)) = path.map(|path| InspectedFile::open(path, Links::RefuseAll)) else { return };
        let inode = file.inode();
        let Some(file_system) = self.scope.file_system_of(inode.dev) else { return };
        match count(&file, name, file_system) {
            Ok(Some(found)) => {
                self.take_found(found);
            }
            Ok(None) => {
                if let Some(id) = self.files.table.id(inode) {
                    self.files.table.remove(id);
                    self.forget(id);
                }
            }
            Err(_) => {}
        }
    }
}
