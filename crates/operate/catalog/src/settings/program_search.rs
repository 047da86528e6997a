//! Results of searches in programs: each program is searched once, however many databases and lines
//! ask for it.
//!
//! Invariant: at most [`PROGRAM_BYTES_MAX`] bytes of one program are searched, and at most
//! [`ALL_PROGRAMS_BYTES_MAX`] of all. A program that was replaced or changed counts as another one.

use std::collections::HashMap;
use std::path::Path;
use std::time::SystemTime;

use pagekeeper_kernel::{ExpectedFile, Inode, InspectedFile};

/// Limit of bytes searched in one program. The largest servers, including their debug information,
/// are smaller.
pub(super) const PROGRAM_BYTES_MAX: u64 = 512 << 20;
/// Limit of bytes searched in all programs.
pub(super) const ALL_PROGRAMS_BYTES_MAX: u64 = 1 << 30;

/// The results, by program.
#[derive(Debug)]
pub(super) struct ProgramSearch<T> {
    known: HashMap<(Inode, SystemTime), T>,
    /// Bytes that may still be read.
    left: u64,
}

impl<T> Default for ProgramSearch<T> {
    fn default() -> Self {
        Self { known: HashMap::new(), left: ALL_PROGRAMS_BYTES_MAX }
    }
}

impl<T> ProgramSearch<T> {
    /// Returns the result of `search` in a program, which may read at most the given number of
    /// bytes. Returns `None` if the program can't be read.
    pub(super) fn of(&mut self, exe: &Path, search: impl FnOnce(&InspectedFile, u64) -> T) -> Option<&T> {
        let program = InspectedFile::open_magic_link(exe, ExpectedFile::Any, exe.to_path_buf()).ok()?;
        let modified = {
            let _call = program.announce_call().ok()?;
            program.file().metadata().and_then(|metadata| metadata.modified()).ok()?
        };
        let left = &mut self.left;
        let found = self.known.entry((program.inode(), modified)).or_insert_with(|| {
            let most = program.size().min(PROGRAM_BYTES_MAX).min(*left);
            *left -= most;
            search(&program, most)
        });
        Some(found)
    }

    /// Limits the bytes to read from now on.
    pub(super) fn lower(&mut self, most: u64) {
        self.left = self.left.min(most);
    }

    /// Returns the bytes that may still be read.
    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.left
    }
}
