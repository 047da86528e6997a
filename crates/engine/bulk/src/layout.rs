//! Finds the disks that paths share. Writes to one disk wait in one queue, and the kernel throttles
//! writers by disk, so a log on the disk of bulk output waits for that output.
//!
//! Sources: sysfs (`/sys/dev/block/MAJ:MIN`, `slaves`, `loop/backing_file`), statx(2) and
//! `proc_pid_mountinfo(5)`. A path is followed down to its lowest disks:
//! - a partition to its disk;
//! - a loop device to the disks of its file;
//! - device-mapper, MD RAID and bcache to their parts;
//! - btrfs to all its devices.
//!
//! Invariants: nothing is changed. A path that can't be followed (overlayfs, network, FUSE, ZFS) is
//! unknown, with the reason, and never counts as separate. Fails only if a path can't be examined.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_io::PerProcess;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::process::Mount;
use pagekeeper_kernel::{Error, Result};
use pagekeeper_text::escaped;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, major, makedev, minor};

/// The maximum depth of stacked devices: a loop device can be stacked on itself.
const STACKED_DEVICES_MAX: usize = 16;

/// A disk, or a device that this machine sees as one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Disk {
    /// The kernel's name: `sda`, `nvme0n1`.
    pub name: String,
    /// Its device number, as `st_rdev` encodes it.
    pub dev: u64,
}

/// The devices that hold a path's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// These disks; several under btrfs, RAID and LVM.
    Disks(BTreeSet<Disk>),
    /// No disk at all: tmpfs or ramfs.
    Memory,
    /// Unknown, with the reason in plain words.
    Unknown(String),
}

/// The disks of several paths. It tells which paths share a disk.
///
/// ```
/// use pagekeeper_bulk::DiskLayout;
/// let layout = DiskLayout::of(["/var/tmp", "/dev/shm"])?;
/// if layout.shares_a_disk("/var/tmp", "/dev/shm") == Some(true) {
///     println!("writes to one wait for the other's");
/// }
/// println!("{layout}"); // each path, and what it lies on
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskLayout {
    paths: BTreeMap<PathBuf, PathBacking>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PathBacking {
    /// `st_dev`: the file system, or on btrfs the subvolume.
    dev: u64,
    backing: Backing,
}

impl DiskLayout {
    /// Follows each path. A path that does not exist yet counts as its nearest existing parent
    /// directory.
    pub fn of(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        Self::with_roots(&SysRoots::default(), paths)
    }

    /// Follows each path like [`Self::of`], with `/proc` and `/sys` mounted elsewhere.
    pub fn with_roots(roots: &SysRoots, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let examine = |path: &Path| {
            let mut follow = DiskSearch { roots, disks: BTreeSet::new() };
            let (dev, instead) = follow.path(path, 0)?;
            let backing = instead.unwrap_or(Backing::Disks(follow.disks));
            Ok((path.to_path_buf(), PathBacking { dev, backing }))
        };
        let paths = paths.into_iter().map(|path| examine(path.as_ref())).collect::<Result<_>>()?;
        Ok(Self { paths })
    }

    /// Returns the backing of a path; `None` if it was not among those given.
    pub fn backing(&self, path: impl AsRef<Path>) -> Option<&Backing> {
        self.paths.get(path.as_ref()).map(|path| &path.backing)
    }

    /// Whether two of the paths share a disk; `None` if that can't be determined, or if one was not
    /// among those given.
    pub fn shares_a_disk(&self, a: impl AsRef<Path>, b: impl AsRef<Path>) -> Option<bool> {
        let (a, b) = (self.paths.get(a.as_ref())?, self.paths.get(b.as_ref())?);
        match (&a.backing, &b.backing) {
            (Backing::Memory, _) | (_, Backing::Memory) => Some(false),
            (Backing::Disks(a), Backing::Disks(b)) => Some(!a.is_disjoint(b)),
            // All files of a file system share its device, whatever that is.
            _ => (a.dev == b.dev).then_some(true),
        }
    }

    /// Returns a warning for an operator whose log and bulk output are in these two paths; `None`
    /// unless they are known to share a disk.
    pub fn warning(&self, log: impl AsRef<Path>, bulk: impl AsRef<Path>) -> Option<String> {
        let (log, bulk) = (log.as_ref(), bulk.as_ref());
        if self.shares_a_disk(log, bulk) != Some(true) {
            return None;
        }
        Some(format!(
            "the log in {} and the bulk output in {} share {}: the log's writes wait for the other's; a disk of its own \
             for the log is better",
            escaped(log),
            escaped(bulk),
            match self.backing(log) {
                Some(Backing::Disks(disks)) => format!("the disk {}", names(disks)),
                Some(Backing::Memory | Backing::Unknown(_)) | None => "a file system".to_owned(),
            }
        ))
    }

    /// Returns the key by which the bulk writers of this process find each other. Paths whose
    /// writes meet in one queue have the same key.
    pub(crate) fn key(&self, path: &Path) -> Option<DiskKey> {
        let place = self.paths.get(path)?;
        Some(match &place.backing {
            Backing::Disks(disks) => DiskKey(disks.iter().map(|disk| disk.dev).collect()),
            Backing::Memory | Backing::Unknown(_) => DiskKey(vec![place.dev]),
        })
    }
}

/// The device numbers of the disks in which writes meet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DiskKey(Vec<u64>);

impl DiskKey {
    /// Returns the key of a device without a layout, such as a simulated disk.
    pub(crate) fn of_device(dev: u64) -> Self {
        Self(vec![dev])
    }

    /// Returns the numbers of the disks, as in `st_dev`.
    pub(crate) fn disks(&self) -> &[u64] {
        &self.0
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disks(disks) => f.write_str(&names(disks)),
            Self::Memory => f.write_str("memory"),
            Self::Unknown(why) => write!(f, "unknown ({why})"),
        }
    }
}

impl fmt::Display for DiskLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (path, place) in &self.paths {
            write!(f, "{between}{}: {}", escaped(path), place.backing)?;
            between = "\n";
        }
        Ok(())
    }
}

fn names(disks: &BTreeSet<Disk>) -> String {
    let names: Vec<&str> = disks.iter().map(|disk| disk.name.as_str()).collect();
    names.join(", ")
}

/// Passes the warning on if log and bulk output share a disk, once per process for each pair of
/// directories. Paths that can't be examined are skipped: the log's own calls will report what is
/// wrong.
pub(crate) fn warn_once(log: &Path, bulk: &Path, warn: &dyn Fn(&str)) {
    static WARNED_PAIRS: PerProcess<HashSet<(PathBuf, PathBuf)>> = PerProcess::new();
    let Some(warning) = DiskLayout::of([log, bulk]).ok().and_then(|layout| layout.warning(log, bulk)) else {
        return;
    };
    let pair = (log.to_path_buf(), bulk.to_path_buf());
    if WARNED_PAIRS.lock().insert(pair) {
        warn(&warning);
    }
}

/// The way down from a path to its disks. `depth` counts stacked devices, which ends loops of loop
/// devices.
struct DiskSearch<'a> {
    roots: &'a SysRoots,
    disks: BTreeSet<Disk>,
}

/// `None` if the disks were found, otherwise the other kind of backing.
type OtherBacking = Option<Backing>;

impl DiskSearch<'_> {
    fn path(&mut self, path: &Path, depth: usize) -> Result<(u64, OtherBacking)> {
        let (found, stat) = nearest(path)?;
        let dev = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let instead = match stat.stx_dev_major {
            0 => self.mount(&found, stat.stx_mnt_id, depth)?,
            _ => self.device(dev, depth)?,
        };
        Ok((dev, instead))
    }

    /// Follows a file system without a block device of its own.
    fn mount(&mut self, path: &Path, id: u64, depth: usize) -> Result<OtherBacking> {
        let mounts = self.roots.proc.own_mounts()?;
        let Some(mount) = mounts.iter().find(|mount| mount.id == id) else {
            return Ok(unknown(format!("{} is on no mount that this process sees", escaped(path))));
        };
        Ok(match mount.kind.as_str() {
            "tmpfs" | "ramfs" | "hugetlbfs" => Some(Backing::Memory),
            "btrfs" => self.btrfs(mount, depth)?,
            "overlay" => unknown("overlayfs: its files lie on the file systems below it".to_owned()),
            kind => unknown(format!("{kind} does not report its devices")),
        })
    }

    /// Follows all devices of a btrfs, which is found by the device it was mounted by.
    fn btrfs(&mut self, mount: &Mount, depth: usize) -> Result<OtherBacking> {
        let source = Path::new(&mount.source);
        let number = rustix::fs::stat(source)
            .ok()
            .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
            .map(|stat| stat.st_rdev);
        let directory = number.and_then(|dev| self.directory(dev));
        let name = directory.as_deref().unwrap_or(source).file_name();
        match (name.and_then(|name| self.btrfs_devices(Path::new(name))), number) {
            (Some(devices), _) => self.blocks(&devices, depth),
            (None, Some(dev)) => self.device(dev, depth),
            (None, None) => {
                Ok(unknown(format!("btrfs on {}, which is no block device here", escaped(source))))
            }
        }
    }

    /// Returns the sysfs directories of all devices of the btrfs that includes the device of this
    /// name (`/sys/fs/btrfs/UUID/devices`).
    fn btrfs_devices(&self, name: &Path) -> Option<Vec<PathBuf>> {
        let file_systems = std::fs::read_dir(self.roots.sys.join("fs/btrfs")).ok()?;
        let mut all = file_systems.filter_map(|entry| Some(entry.ok()?.path().join("devices")));
        let devices = all.find(|devices| devices.join(name).symlink_metadata().is_ok())?;
        targets(&devices)
    }

    fn directory(&self, dev: u64) -> Option<PathBuf> {
        let number = format!("dev/block/{}:{}", major(dev), minor(dev));
        std::fs::canonicalize(self.roots.sys.join(number)).ok()
    }

    fn device(&mut self, dev: u64, depth: usize) -> Result<OtherBacking> {
        match self.directory(dev) {
            Some(directory) => self.block(&directory, depth),
            None => Ok(unknown(format!("no block device {}:{} in sysfs", major(dev), minor(dev)))),
        }
    }

    fn blocks(&mut self, directories: &[PathBuf], depth: usize) -> Result<OtherBacking> {
        for directory in directories {
            let instead = self.block(directory, depth)?;
            if instead.is_some() {
                return Ok(instead);
            }
        }
        Ok(None)
    }

    /// Follows a block device, given its directory in sysfs.
    fn block(&mut self, directory: &Path, depth: usize) -> Result<OtherBacking> {
        if depth == STACKED_DEVICES_MAX {
            return Ok(unknown(format!(
                "devices stand upon each other more than {STACKED_DEVICES_MAX} times"
            )));
        }
        // A partition's directory is inside its disk's.
        let disk = match directory.parent() {
            Some(disk) if directory.join("partition").exists() => disk,
            _ => directory,
        };
        if let Ok(mut file) = std::fs::read(disk.join("loop/backing_file")) {
            file.pop_if(|last| *last == b'\n');
            return self.loop_file(Path::new(OsStr::from_bytes(&file)), depth + 1);
        }
        match targets(&disk.join("slaves")) {
            Some(parts) if !parts.is_empty() => self.blocks(&parts, depth + 1),
            _ => Ok(self.leaf(disk)),
        }
    }

    /// Follows a loop device's file. Its name is as seen by whoever set up the device. If it was
    /// deleted, or is in another mount namespace, it is not found.
    fn loop_file(&mut self, path: &Path, depth: usize) -> Result<OtherBacking> {
        if !path.is_absolute() || !path.exists() {
            return Ok(unknown(format!("a loop device whose file {} is not to be found", escaped(path))));
        }
        Ok(self.path(path, depth)?.1)
    }

    fn leaf(&mut self, disk: &Path) -> OtherBacking {
        let name = escaped(disk.file_name().unwrap_or_default()).to_string();
        let number = std::fs::read_to_string(disk.join("dev")).unwrap_or_default();
        let number = number
            .trim()
            .split_once(':')
            .and_then(|(major, minor)| Some(makedev(major.parse().ok()?, minor.parse().ok()?)));
        match number {
            Some(dev) => {
                self.disks.insert(Disk { name, dev });
                None
            }
            None => unknown(format!("sysfs has no device number of {name}")),
        }
    }
}

#[allow(clippy::unnecessary_wraps, reason = "it stands where something else could be found")]
fn unknown(why: String) -> OtherBacking {
    Some(Backing::Unknown(why))
}

/// Returns the targets of the links in a sysfs directory; `None` if there is no such directory.
fn targets(directory: &Path) -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).ok()?;
    let mut found: Vec<PathBuf> =
        entries.filter_map(|entry| std::fs::canonicalize(entry.ok()?.path()).ok()).collect();
    found.sort();
    Some(found)
}

/// Returns the path or its nearest existing parent directory, with its statx(2) result.
fn nearest(path: &Path) -> Result<(PathBuf, rustix::fs::Statx)> {
    let mut at = std::path::absolute(path).map_err(|error| Error::call("getcwd", path, error))?;
    loop {
        match rustix::fs::statx(CWD, &at, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) {
            Ok(stat) => return Ok((at, stat)),
            Err(rustix::io::Errno::NOENT) if at.pop() => {}
            Err(errno) => return Err(Error::call("statx", path, errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;
    use pagekeeper_testing::{Mounted, disk_dir, skip};

    /// A tree that replaces `/proc` and `/sys`.
    struct Machine {
        tree: tempfile::TempDir,
        roots: SysRoots,
    }

    impl Machine {
        fn new() -> Self {
            let tree = tempfile::tempdir().unwrap();
            for directory in ["proc/self", "sys/dev/block", "sys/fs/btrfs"] {
                std::fs::create_dir_all(tree.path().join(directory)).unwrap();
            }
            let roots = SysRoots::at(tree.path());
            Self { tree, roots }
        }

        fn write(&self, name: &str, content: &str) {
            let path = self.tree.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }

        /// Adds a block device at this place below `sys/devices`.
        fn device(&self, place: &str, number: &str) {
            self.write(&format!("sys/devices/{place}/dev"), &format!("{number}\n"));
            let link = self.tree.path().join("sys/dev/block").join(number);
            symlink(format!("../../devices/{place}"), link).unwrap();
        }

        /// Makes `part` a part of the device at `place`.
        fn slave(&self, place: &str, part: &str) {
            let slaves = self.tree.path().join("sys/devices").join(place).join("slaves");
            std::fs::create_dir_all(&slaves).unwrap();
            let target = self.tree.path().join("sys/devices").join(part);
            symlink(target, slaves.join(Path::new(part).file_name().unwrap())).unwrap();
        }

        /// Returns the backing of the device with this number.
        fn below(&self, dev: u64) -> Backing {
            let mut follow = DiskSearch { roots: &self.roots, disks: BTreeSet::new() };
            follow.device(dev, 0).unwrap().unwrap_or(Backing::Disks(follow.disks))
        }
    }

    fn number_of(dev: u64) -> String {
        format!("{}:{}", major(dev), minor(dev))
    }

    fn shown(backing: &Backing) -> String {
        backing.to_string()
    }

    #[test]
    fn partitions_raid_and_loops_are_followed_down() {
        let machine = Machine::new();
        machine.device("sda", "8:0");
        machine.device("sda/sda1", "8:1");
        machine.write("sys/devices/sda/sda1/partition", "1\n");
        machine.device("sdb", "8:16");
        machine.device("dm-0", "253:0");
        machine.slave("dm-0", "sda/sda1");
        machine.device("md0", "9:0");
        machine.slave("md0", "dm-0");
        machine.slave("md0", "sdb");
        assert_eq!(shown(&machine.below(makedev(8, 1))), "sda");
        assert_eq!(shown(&machine.below(makedev(253, 0))), "sda");
        assert_eq!(shown(&machine.below(makedev(9, 0))), "sda, sdb");

        // A loop device on a real file.
        let file = disk_dir();
        let dev = file.path().metadata().unwrap().dev();
        if major(dev) == 0 {
            skip("a loop device's file: the build directory is on no block device of its own");
            return;
        }
        machine.device("vdz", &number_of(dev));
        machine.device("loop7", "7:7");
        machine.write("sys/devices/loop7/loop/backing_file", &format!("{}\n", file.path().display()));
        assert_eq!(shown(&machine.below(makedev(7, 7))), "vdz");
        machine.write("sys/devices/loop7/loop/backing_file", "/gone/file (deleted)\n");
        assert!(shown(&machine.below(makedev(7, 7))).contains("/gone/file (deleted) is not to be found"));
    }

    #[test]
    fn unresolvable_devices_have_an_unknown_layout() {
        let machine = Machine::new();
        machine.device("dm-0", "253:0");
        machine.device("dm-1", "253:1");
        machine.slave("dm-0", "dm-1");
        machine.slave("dm-1", "dm-0");
        assert!(shown(&machine.below(makedev(253, 0))).contains("more than 16 times"));
        assert!(shown(&machine.below(makedev(8, 0))).contains("no block device 8:0"));
        machine.write("sys/devices/dm-1/dev", "?\n");
        std::fs::remove_dir_all(machine.tree.path().join("sys/devices/dm-1/slaves")).unwrap();
        assert!(shown(&machine.below(makedev(253, 0))).contains("no device number of dm-1"));
    }

    #[test]
    fn file_systems_without_a_device_are_known_by_their_mount() {
        let memory = Path::new("/dev/shm");
        let stat = nearest(memory).unwrap().1;
        if stat.stx_dev_major != 0 {
            skip("file systems without a device: /dev/shm is none");
            return;
        }
        let machine = Machine::new();
        machine.device("sdc", "8:32");
        machine.device("sdd", "8:48");
        for name in ["sdc", "sdd"] {
            let devices = machine.tree.path().join("sys/fs/btrfs/00-11/devices");
            std::fs::create_dir_all(&devices).unwrap();
            symlink(machine.tree.path().join("sys/devices").join(name), devices.join(name)).unwrap();
        }
        let on = |kind: &str, source: &str| {
            let line = format!("{} 1 0:99 / /dev/shm rw - {kind} {source} rw\n", stat.stx_mnt_id);
            machine.write("proc/self/mountinfo", &line);
            let layout = DiskLayout::with_roots(&machine.roots, [memory]).unwrap();
            layout.backing(memory).unwrap().clone()
        };
        assert_eq!(on("tmpfs", "tmpfs"), Backing::Memory);
        assert_eq!(shown(&on("btrfs", "/dev/nowhere/sdc")), "sdc, sdd");
        assert!(shown(&on("btrfs", "/dev/nowhere/sde")).contains("no block device here"));
        assert!(shown(&on("overlay", "overlay")).contains("overlayfs"));
        assert_eq!(shown(&on("nfs4", "server:/export")), "unknown (nfs4 does not report its devices)");
        machine.write("proc/self/mountinfo", "");
        let layout = DiskLayout::with_roots(&machine.roots, [memory]).unwrap();
        assert!(shown(layout.backing(memory).unwrap()).contains("no mount"));
        assert_eq!(layout.shares_a_disk(memory, memory), Some(true), "one file system, wherever it lies");
    }

    #[test]
    fn this_machines_disks() {
        let (dir, memory) = (disk_dir(), Path::new("/dev/shm"));
        let (log, bulk) = (dir.path().join("log/not/yet"), dir.path().join("bulk"));
        let layout = DiskLayout::of([&*log, &*bulk, memory]).unwrap();
        assert_eq!(layout.shares_a_disk(&log, &bulk), Some(true), "{layout}");
        assert_eq!(layout.shares_a_disk(&log, memory), Some(false), "{layout}");
        assert_eq!(layout.shares_a_disk(&log, "/elsewhere"), None);
        let warning = layout.warning(&log, &bulk).unwrap();
        assert!(warning.contains("log/not/yet") && warning.contains("share"), "{warning}");
        assert_eq!(layout.warning(&log, memory), None);
        assert_eq!(layout.key(&log), layout.key(&bulk));
        assert_ne!(layout.key(&log), layout.key(memory));
        let error = DiskLayout::of(["/etc/passwd/x"]).unwrap_err();
        assert!(error.to_string().contains("/etc/passwd/x"), "{error}");
    }

    #[test]
    fn a_warning_is_given_once() {
        let dir = disk_dir();
        let said = std::cell::RefCell::new(Vec::new());
        for _ in 0..3 {
            warn_once(&dir.path().join("log"), &dir.path().join("bulk"), &|warning| {
                said.borrow_mut().push(warning.to_owned());
            });
        }
        warn_once(&dir.path().join("log"), Path::new("/dev/shm"), &|warning| panic!("{warning}"));
        assert_eq!(said.borrow().len(), 1);
    }

    #[test]
    fn a_loop_device_shares_the_disk_of_its_file() {
        for kind in ["xfs", "btrfs"] {
            let Some(mounted) = Mounted::new(kind) else { continue };
            let layout = DiskLayout::of([mounted.path(), mounted.image()]).unwrap();
            assert_eq!(layout.shares_a_disk(mounted.path(), mounted.image()), Some(true), "{layout}");
            assert_eq!(layout.backing(mounted.path()), layout.backing(mounted.image()), "{layout}");
        }
    }
}
