//! A memory cgroup of the command's own: for what no library can be loaded into, and what a library does not see (Go, static programs,
//! programs under sudo, `io_uring`, mappings).
//!
//! Page cache is charged to the group that brings it in, and what was resident stays charged to whom it was (`memory.rst`, "Shared
//! Page Accounting"). So the file pages of this group are those that the command brought in: a process beside it, the [`governor`], has
//! the kernel reclaim all but some of them again and again.
//!
//! Invariants: the command is never killed or swapped for it. A limit, the one way to have version 1 reclaim, holds for as long as it
//! takes to lift it again. Only while much of what it wrote waits for the disk, or more comes in than can be reclaimed, its processes
//! are held up by a limit, which leaves room for those pages and follows its other memory; whoever outruns it waits, and is not killed
//! (`memory.oom_control`). What the command starts stays in the group, and the group goes when all of that has ended. Fails, before
//! anything is started, where no group can be made ([`Refusal`]). If both governors are killed, a limit that holds just then stays.

mod governor;
mod place;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pagekeeper_kernel::pressure::{CgroupVersion, MemoryCgroup};

pub(crate) use governor::{Governed, Governor, GroupEnd, KEPT, KEPT_BESIDE_LIBRARY};
pub(crate) use place::Refusal;

/// The file of a group's limit.
const LIMIT: &str = "memory.limit_in_bytes";

/// A memory cgroup that this process made.
pub(crate) struct Group {
    directory: PathBuf,
    /// Bytes of file pages that are left to it.
    kept: u64,
    /// The limit that holds, in bytes.
    held: Cell<Option<u64>>,
}

/// What is charged to a group, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    /// File pages that can be reclaimed, sooner or later.
    pages: u64,
    /// Those of them that wait for the disk.
    unwritten: u64,
    /// All else: anonymous memory, tmpfs, the kernel's.
    others: u64,
}

impl Group {
    /// Makes a group below this process's own, of which so many bytes of file pages are left alone.
    ///
    /// # Errors
    ///
    /// Where this process may not, or the host has no memory cgroups of version 1.
    pub(crate) fn make(kept: u64) -> Result<Self, Refusal> {
        let group = Self { directory: place::make()?, kept, held: Cell::new(None) };
        // Only pages of files are to go; and whoever outruns the governor waits for it.
        for (name, value) in [("memory.swappiness", "0"), ("memory.oom_control", "1")] {
            if let Err(error) = group.write(name, value) {
                group.remove();
                return Err(Refusal::Denied(error));
            }
        }
        Ok(group)
    }

    /// Has this process join it, and whatever it starts from now on.
    ///
    /// # Errors
    ///
    /// Where the kernel refuses it.
    pub(crate) fn join(&self) -> io::Result<()> {
        join(&self.directory)
    }

    /// Removes it again, before the command is in it.
    pub(crate) fn abandon(self) {
        self.remove();
    }

    /// What is charged to it.
    fn figures(&self) -> io::Result<Figures> {
        let group = MemoryCgroup::at(CgroupVersion::V1, &self.directory).map_err(io::Error::other)?;
        let pages = group.inactive_file + group.active_file;
        let unwritten = group.dirty.unwrap_or_default() + group.writeback.unwrap_or_default();
        Ok(Figures { pages, unwritten, others: group.usage.saturating_sub(pages) })
    }

    /// Bytes of file pages that are charged to it; none where it can't be read any more.
    fn file_bytes(&self) -> u64 {
        self.figures().map_or(0, |figures| figures.pages)
    }

    /// Has those who bring in file pages wait, beyond so many bytes of all kinds, until some are written and reclaimed.
    fn hold(&self, bytes: u64) {
        if self.held.replace(Some(bytes)) != Some(bytes) {
            self.limit_again();
        }
    }

    /// Takes its limit back.
    fn lift(&self) {
        if self.held.take().is_some() {
            self.limit_again();
        }
    }

    /// Sets the limit that is to hold: none, most of the time.
    fn limit_again(&self) {
        let _ = match self.held.get() {
            Some(bytes) => self.write(LIMIT, &bytes.to_string()),
            None => self.write(LIMIT, "-1"),
        };
    }

    /// Has the kernel reclaim about so many bytes of it. That fewer could be reclaimed is no error: they are dirty, or mapped and in use.
    fn reclaim(&self, bytes: u64) {
        // Setting a limit reclaims in this process, until the limit holds (`mem_cgroup_resize_max` of `mm/memcontrol-v1.c`): so the
        // group's own processes are not held up, and the limit can be lifted at once.
        if let Ok(usage) = self.read_number("memory.usage_in_bytes") {
            let _ = self.write(LIMIT, &usage.saturating_sub(bytes).to_string());
        }
        self.limit_again();
    }

    /// Has the kernel reclaim all that it can.
    fn empty(&self) {
        let _ = self.write("memory.force_empty", "1");
    }

    /// Whether no process is in it `besides` that one, nor in groups below it, which the command may have made.
    fn is_unused(&self, besides: Option<u32>) -> bool {
        is_unused(&self.directory, besides)
    }

    /// Removes it: `false` where that can't be done yet.
    fn remove(&self) -> bool {
        remove(&self.directory)
    }

    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        File::options().write(true).open(self.directory.join(name))?.write_all(value.as_bytes())
    }

    fn read_number(&self, name: &str) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.directory.join(name))?;
        text.trim().parse().map_err(io::Error::other)
    }
}

/// Has this process join the group of this directory.
fn join(directory: &Path) -> io::Result<()> {
    // 0 stands for the process that writes.
    File::options().write(true).open(directory.join("cgroup.procs"))?.write_all(b"0")
}

fn is_unused(directory: &Path, besides: Option<u32>) -> bool {
    let is_other = |pid: &str| pid.parse::<u32>().ok() != besides;
    match std::fs::read_to_string(directory.join("cgroup.procs")) {
        Ok(processes) if processes.lines().any(is_other) => false,
        Err(error) if error.kind() != io::ErrorKind::NotFound => false,
        Ok(_) | Err(_) => below(directory).all(|group| is_unused(&group, besides)),
    }
}

/// Groups below can be removed only before it.
fn remove(directory: &Path) -> bool {
    below(directory).for_each(|group| {
        remove(&group);
    });
    match std::fs::remove_dir(directory) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn below(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}
