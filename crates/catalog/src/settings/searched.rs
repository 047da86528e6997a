//! What was found in programs: each is searched once, however many databases and lines ask.
//!
//! Invariant: no more than [`LONGEST_PROGRAM`] of one is searched, and no more than [`ALL_PROGRAMS`] of all. A program that was
//! replaced or changed is another one.

use std::collections::HashMap;
use std::path::Path;
use std::time::SystemTime;

use pagekeeper_kernel::{Expected, Inode, InspectedFile};

/// No more of a program is searched, in bytes. The largest servers, with all that debuggers need, are smaller.
pub(super) const LONGEST_PROGRAM: u64 = 512 << 20;
/// No more of all programs, in bytes.
pub(super) const ALL_PROGRAMS: u64 = 1 << 30;

/// What was found, by program.
#[derive(Debug)]
pub(super) struct Searched<T> {
    known: HashMap<(Inode, SystemTime), T>,
    /// So many bytes may still be read.
    left: u64,
}

impl<T> Default for Searched<T> {
    fn default() -> Self {
        Self { known: HashMap::new(), left: ALL_PROGRAMS }
    }
}

impl<T> Searched<T> {
    /// What `search` finds in a program, reading so many bytes of it at most. `None` where the program can't be read.
    pub(super) fn of(&mut self, exe: &Path, search: impl FnOnce(&InspectedFile, u64) -> T) -> Option<&T> {
        let program = InspectedFile::open_magic_link(exe, Expected::Any, exe.to_path_buf()).ok()?;
        let modified = {
            let _asking = program.asking().ok()?;
            program.file().metadata().and_then(|metadata| metadata.modified()).ok()?
        };
        let left = &mut self.left;
        let found = self.known.entry((program.inode(), modified)).or_insert_with(|| {
            let most = program.size().min(LONGEST_PROGRAM).min(*left);
            *left -= most;
            search(&program, most)
        });
        Some(found)
    }

    /// No more than so many bytes are to be read from now on.
    pub(super) fn lower(&mut self, most: u64) {
        self.left = self.left.min(most);
    }

    /// So many bytes may still be read.
    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.left
    }
}
