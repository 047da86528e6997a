//! A memory cgroup of the command's own: for what no library can be loaded into, and what a library does not see (Go, static programs,
//! programs under sudo, `io_uring`, mappings).
//!
//! Page cache is charged to the group that brings it in, and what was resident stays charged to whom it was (`memory.rst`, "Shared
//! Page Accounting"). So the file pages of this group are those that the command brought in: a process beside it, the [`governor`], has
//! the kernel reclaim all but some of them again and again.
//!
//! Invariants: the command is never killed, swapped or held up for it, and no call of it fails: the group has no limit, not for a
//! moment. Where a group of version 1 is at its limit and nothing can be reclaimed, a write(2) in it fails with ENOMEM, even if nobody
//! may be killed (`mem_cgroup_oom` of `mm/memcontrol.c`). So who writes faster than the disk is slowed down as without a group, by the
//! host's dirty limits. What the command starts stays in the group, and the group goes when all of that has ended. Fails, before
//! anything is started, where no group can be made ([`Refusal`]).

mod governor;
mod place;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagekeeper_kernel::pressure::{CgroupVersion, MemoryCgroup};

pub(crate) use governor::{Governed, Governor, GroupEnd, KEPT, KEPT_BESIDE_LIBRARY};
pub(crate) use place::Refusal;
use place::{Parted, Place};

use crate::run::sys;

/// How long the kernel reclaims before the figures are read again: it takes 5 to 20 MiB meanwhile.
const SLICE_MIN: Duration = Duration::from_micros(500);
/// Where processors are busy, all of a short one goes by before the first page is looked at.
const SLICE_MAX: Duration = Duration::from_millis(20);

/// A memory cgroup that this process made.
pub(crate) struct Group {
    version: CgroupVersion,
    directory: PathBuf,
    parted: Option<Parted>,
    /// Bytes of file pages that are left to it.
    kept: u64,
}

/// What is charged to a group, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    /// File pages that can be reclaimed, sooner or later.
    pages: u64,
    /// Those of them that wait for the disk.
    unwritten: u64,
}

impl Group {
    /// Makes a group, of which so many bytes of file pages are left alone.
    ///
    /// # Errors
    ///
    /// Where this process may not, or there is no place for one.
    pub(crate) fn make(kept: u64) -> Result<Self, Refusal> {
        let Place { version, group, parted } = place::make()?;
        let group = Self { version, directory: group, parted, kept };
        // Only pages of files are to go.
        if version == CgroupVersion::V1
            && let Err(error) = group.write("memory.swappiness", "0")
        {
            group.remove();
            return Err(Refusal::Denied(error));
        }
        Ok(group)
    }

    /// Has this process go where the governor is to be, which is then started.
    ///
    /// # Errors
    ///
    /// Where the kernel refuses it.
    pub(crate) fn step_aside(&self) -> io::Result<()> {
        self.parted.as_ref().map_or(Ok(()), Parted::step_aside)
    }

    /// Has this process join it, and whatever it starts from now on.
    ///
    /// # Errors
    ///
    /// Where the kernel refuses it.
    pub(crate) fn join(&self) -> io::Result<()> {
        join(&self.directory)?;
        self.parted.as_ref().map_or(Ok(()), Parted::hand_on)
    }

    /// Removes it again, before the command is in it. A governor that was started finds nobody in it.
    pub(crate) fn abandon(self) {
        if let Some(parted) = &self.parted {
            parted.unite();
        }
        self.remove();
    }

    /// What is charged to it.
    fn figures(&self) -> io::Result<Figures> {
        let group = MemoryCgroup::at(self.version, &self.directory).map_err(io::Error::other)?;
        let pages = group.inactive_file + group.active_file;
        let unwritten = group.dirty.unwrap_or_default() + group.writeback.unwrap_or_default();
        Ok(Figures { pages, unwritten })
    }

    /// Bytes of file pages that are charged to it; none where it can't be read any more.
    fn file_bytes(&self) -> u64 {
        self.figures().map_or(0, |figures| figures.pages)
    }

    /// Has the kernel reclaim about so many bytes of file pages, the ones used longest ago first, and start to write those that are dirty.
    /// That fewer could be reclaimed is no error: they are dirty, or mapped and in use.
    fn reclaim(&self, bytes: u64) {
        match self.version {
            CgroupVersion::V1 => self.reclaim_v1(bytes),
            CgroupVersion::V2 => self.reclaim_v2(bytes),
        }
    }

    fn reclaim_v1(&self, bytes: u64) {
        let mut left = self.file_bytes();
        let enough = left.saturating_sub(bytes);
        let mut slice = SLICE_MIN;
        while left > enough && slice <= SLICE_MAX && sys::interrupted_after(slice, || self.empty_v1()) {
            let now = self.file_bytes();
            if now >= left {
                slice *= 2;
            }
            left = now;
        }
    }

    fn reclaim_v2(&self, bytes: u64) {
        // The swappiness can be given from Linux 6.9 on.
        let refused = self.write("memory.reclaim", &format!("{bytes} swappiness=0"));
        if refused.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput) {
            // What can't be swapped is not reclaimed, and nothing is brought back by it (`swap_max_write` of `mm/memcontrol.c`).
            let _ = self.write("memory.swap.max", "0");
            let _ = self.write("memory.reclaim", &bytes.to_string());
            let _ = self.write("memory.swap.max", "max");
        }
    }

    /// Has the kernel reclaim all that it can, until a signal comes.
    fn empty_v1(&self) -> io::Result<()> {
        // No limit takes part in it: `mem_cgroup_force_empty` of `mm/memcontrol-v1.c` reclaims until nothing is left, or nothing goes.
        self.write("memory.force_empty", "1")
    }

    /// Whether no process is in it `besides` that one, nor in groups below it, which the command may have made.
    fn is_unused(&self, besides: Option<u32>) -> bool {
        is_unused(&self.directory, besides)
    }

    /// Removes it: `false` where that can't be done yet.
    fn remove(&self) -> bool {
        remove(&self.directory)
    }

    /// Has this process, the last that is there, leave all as it was found.
    fn leave(&self) {
        if let Some(parted) = &self.parted {
            parted.unite();
        }
    }

    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        // `write_all` would begin anew where a signal came.
        File::options().write(true).open(self.directory.join(name))?.write(value.as_bytes()).map(drop)
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
