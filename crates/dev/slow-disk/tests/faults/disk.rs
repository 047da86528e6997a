//! A disk whose power can be cut and that fails on request: a file system in user space over a
//! [`Medium`], served by threads of this process.
//!
//! Invariants: this process never touches the mount, so that it never waits for itself; users are
//! processes of their own. Once the power is cut every request fails, so a process that needs the
//! disk acknowledges nothing more. The mount is removed with the value.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use pagekeeper_testing::Rng;
use rustix::io::Errno;

use crate::file::CutOutcome;
use crate::medium::{Medium, ROOT};
use crate::serve::ServedDisk;

/// Threads that take requests.
const SERVING_THREADS: usize = 4;

/// The faults, counted from when they were set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// The power is cut at this change or sync; the first is 1.
    pub(crate) cut_at: Option<u64>,
    /// The power is cut this many changes after the first sync that lied.
    pub(crate) cut_after_lie: Option<u64>,
    /// One sync in this many reports success and loses its data.
    pub(crate) lies_one_in: Option<u64>,
    /// This sync fails.
    pub(crate) failing_sync: Option<u64>,
    /// Whether a failing sync loses its data; otherwise that may still become durable.
    pub(crate) failing_sync_drops: bool,
    /// This write fails and is not made.
    pub(crate) failing_write: Option<u64>,
    /// Number of blocks of the disk.
    pub(crate) room: Option<u64>,
    /// Blocks of files that cannot be read until they are written.
    pub(crate) unreadable: HashSet<(u64, u64)>,
}

/// The kind of a request, as far as faults matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Write,
    Sync,
    Name,
}

/// The disk's state.
#[derive(Debug)]
pub(crate) struct DiskState {
    pub(crate) medium: Medium,
    pub(crate) faults: Faults,
    /// Changes since the faults were set.
    changes: u64,
    writes: u64,
    syncs: u64,
    lies: u64,
    failed_syncs: u64,
    pub(crate) is_off: bool,
    rng: Rng,
}

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    /// It is made, but nobody learns of it: the power is cut.
    Last,
    /// It is not made, and the power is cut.
    Never,
    Lie,
    Fail,
    FailAndDrop,
}

impl DiskState {
    pub(crate) fn check_power(&self) -> Result<(), Errno> {
        if self.is_off { Err(Errno::IO) } else { Ok(()) }
    }

    /// Counts a request and decides on it.
    pub(crate) fn judge(&mut self, request: Request) -> Result<Verdict, Errno> {
        self.check_power()?;
        self.changes += 1;
        if self.faults.cut_at.is_some_and(|at| self.changes >= at) {
            self.is_off = true;
            return Ok(if self.rng.one_in(2) { Verdict::Last } else { Verdict::Never });
        }
        match request {
            Request::Name => Ok(Verdict::Good),
            Request::Write => {
                self.writes += 1;
                Ok(if self.faults.failing_write == Some(self.writes) { Verdict::Fail } else { Verdict::Good })
            }
            Request::Sync => {
                self.syncs += 1;
                Ok(self.judge_sync())
            }
        }
    }

    fn judge_sync(&mut self) -> Verdict {
        if self.faults.failing_sync == Some(self.syncs) {
            self.failed_syncs += 1;
            return if self.faults.failing_sync_drops { Verdict::FailAndDrop } else { Verdict::Fail };
        }
        if self.faults.lies_one_in.is_some_and(|times| self.rng.one_in(times)) {
            self.lies += 1;
            if let Some(after) = self.faults.cut_after_lie.take() {
                self.faults.cut_at = Some(self.changes + 1 + after);
            }
            return Verdict::Lie;
        }
        Verdict::Good
    }

    /// Fails where there is no room for more blocks.
    pub(crate) fn check_room(&self, node: u64, offset: u64, length: u64) -> Result<(), Errno> {
        let Some(room) = self.faults.room else { return Ok(()) };
        let new = self.medium.new_blocks(node, offset, length);
        if new > 0 && self.medium.used_blocks() + new > room { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

/// The state shared by serving threads.
#[derive(Debug)]
pub(crate) struct ServedState {
    world: Mutex<DiskState>,
    /// Signals a power cut.
    off: Condvar,
}

impl ServedState {
    pub(crate) fn world(&self) -> MutexGuard<'_, DiskState> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify(&self, world: &DiskState) {
        if world.is_off {
            self.off.notify_all();
        }
    }
}

/// A disk, and its mount while it has power.
pub(crate) struct Disk {
    shared: Arc<ServedState>,
    point: PathBuf,
    session: Option<BackgroundSession>,
    _dir: tempfile::TempDir,
}

impl Disk {
    /// Creates a disk on which a power cut leaves sectors of this many bytes whole.
    pub(crate) fn new(sector: usize, rng: Rng) -> Self {
        let dir = mount_point();
        let world = DiskState {
            medium: Medium::new(sector),
            faults: Faults::default(),
            changes: 0,
            writes: 0,
            syncs: 0,
            lies: 0,
            failed_syncs: 0,
            is_off: true,
            rng,
        };
        let shared = Arc::new(ServedState { world: Mutex::new(world), off: Condvar::new() });
        Self { shared, point: dir.path().to_path_buf(), session: None, _dir: dir }
    }

    /// Returns the mount point.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// Turns the power on, without faults.
    pub(crate) fn start(&mut self) {
        let mut world = self.shared.world();
        world.is_off = false;
        drop(world);
        self.set(Faults::default());
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("pagekeeper-faults".to_owned()),
            MountOption::Subtype("faults".to_owned()),
            MountOption::NoAtime,
        ];
        config.acl = SessionACL::Owner;
        config.n_threads = Some(SERVING_THREADS);
        config.clone_fd = true;
        let served = ServedDisk(Arc::clone(&self.shared));
        let session = Session::new(served, &self.point, &config).and_then(Session::spawn);
        self.session = Some(session.unwrap_or_else(|error| panic!("can't mount: {error}")));
    }

    /// Sets the faults from now on.
    pub(crate) fn set(&self, faults: Faults) {
        let mut world = self.shared.world();
        world.faults = faults;
        (world.writes, world.changes, world.syncs) = (0, 0, 0);
        (world.lies, world.failed_syncs) = (0, 0);
    }

    /// Gives access to the medium, for choosing faults.
    pub(crate) fn with_medium<T>(&self, what: impl FnOnce(&mut Medium) -> T) -> T {
        what(&mut self.shared.world().medium)
    }

    /// Waits for a power cut until `until` returns true or `patience` is over; returns whether it
    /// came.
    pub(crate) fn wait_off(&self, patience: Duration, mut until: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + patience;
        let mut world = self.shared.world();
        while !world.is_off && !until() && Instant::now() < end {
            let waited = self.shared.off.wait_timeout(world, Duration::from_millis(5));
            world = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        world.is_off
    }

    /// Cuts the power, unless it is cut; returns the numbers of syncs, lies and failing syncs.
    pub(crate) fn turn_off(&self) -> (u64, u64, u64) {
        let mut world = self.shared.world();
        world.is_off = true;
        (world.syncs, world.lies, world.failed_syncs)
    }

    /// Removes the mount. The power is off, or everything that counts was synced.
    pub(crate) fn stop(&mut self) {
        if let Some(session) = self.session.take() {
            unmount(&self.point);
            session.join().unwrap();
        }
    }

    /// Decides what a restart finds. Must not be called while it is mounted.
    pub(crate) fn lose_unsynced(&self, cut: CutOutcome, rng: &mut Rng) {
        assert!(self.session.is_none());
        self.shared.world().medium.cut(cut, rng);
    }

    /// Creates a file of this many bytes, durably.
    pub(crate) fn make_file(&self, name: &str, size: u64) {
        let mut world = self.shared.world();
        let file = world.medium.make(ROOT, name.as_ref(), false).unwrap();
        world.medium.resize(file, size);
        world.medium.sync(file);
        world.medium.sync(ROOT);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.turn_off();
        self.stop();
    }
}

/// Creates a directory.
pub(crate) fn mount_point() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("pagekeeper-faults-").tempdir().unwrap()
}

/// Unmounts with a program, because a thread of this process that waited for this disk could not be
/// killed. A mount that stays busy is detached.
pub(crate) fn unmount(point: &Path) {
    for _ in 0..100 {
        let done = Command::new("umount").arg("--no-canonicalize").arg(point).stderr(Stdio::null()).status();
        if done.is_ok_and(|status| status.success()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("{} stayed busy", point.display());
    let _ = Command::new("umount").args(["--no-canonicalize", "--lazy"]).arg(point).status();
}
