//! The place of a slow disk: its mounts, its loop device, the kernel's settings, and how it is
//! taken down.
//!
//! Invariants: mounts are unmounted in reverse order, at the latest when [`MountList`] is dropped;
//! a mount still in use is detached, so that nothing is left on the machine. Programs do the
//! mounting and unmounting in processes of their own: if a thread of the disk's process waited for
//! the disk, a kill would wait for it forever. Fails with a sentence that says what to do.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagekeeper_kernel::pressure::{MemInfo, SysRoots};
use pagekeeper_text::ByteSize;
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx, unlinkat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// The file on the disk that the loop device uses.
const IMAGE_NAME: &str = "disk.img";
/// The smallest size that mkfs.xfs accepts.
const XFS_BYTES_MIN: u64 = 300 << 20;
/// The time after which a mount in use is detached.
const UNMOUNT_WAIT_MAX: Duration = Duration::from_secs(3);

/// Fails unless this process can serve a disk.
pub(super) fn check_machine() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "a slow disk has to be mounted: run this as root");
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(error).context("can't open /dev/fuse; this needs a kernel with FUSE (modprobe fuse)")
        }
    }
}

/// Returns the absolute path of an empty directory to mount on.
pub(super) fn check_mount_point(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let refusal = |error: std::io::Error| match error.kind() {
        ErrorKind::NotConnected => {
            anyhow::anyhow!("a slow disk was killed and is left at {shown}; take it away: umount -l {shown}")
        }
        _ => anyhow::Error::new(error).context(format!("can't mount on {shown}")),
    };
    ensure!(path.metadata().map_err(refusal)?.is_dir(), "can't mount on {shown}: it is no directory");
    let path = path.canonicalize().map_err(refusal)?;
    // After a disk is gone the kernel may still know its attributes, but not its entries.
    let empty = path.read_dir().map_err(refusal)?.next().is_none();
    let stat = statx(rustix::fs::CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS)
        .map_err(|errno| refusal(errno.into()))?;
    ensure!(
        !stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        "can't mount on {shown}: something is mounted there already"
    );
    ensure!(empty, "can't mount on {shown}: it is not empty");
    Ok(path)
}

/// Fails unless an XFS of this size can be made.
pub(super) fn check_xfs(size: u64) -> Result<()> {
    ensure!(size >= XFS_BYTES_MIN, "an XFS needs a --size of 300M or more, not {}", ByteSize(size));
    for (name, package) in [("losetup", "mount"), ("mkfs.xfs", "xfsprogs"), ("mount", "mount")] {
        let found = Command::new(name).arg("-V").output();
        found.with_context(|| format!("{name} is not installed; it is in the package {package}"))?;
    }
    Ok(())
}

/// Opens the directory of the disk's files: `given`, or the root of a new, nameless file system in
/// memory, which ends with this process.
pub(super) fn backing(given: Option<&Path>, size: u64) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Some(path) = given {
        return rustix::fs::open(path, flags, Mode::empty())
            .with_context(|| format!("can't keep the disk's files in {}", path.display()));
    }
    let available = MemInfo::read(&SysRoots::default()).map_or(0, |memory| memory.available);
    ensure!(
        size <= available,
        "a disk of {} does not fit into memory, of which {} are available; give another --size, or \
             a --backing directory",
        ByteSize(size),
        ByteSize(available)
    );
    let root = || {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // A little more, for the directory itself.
        rustix::mount::fsconfig_set_string(&context, "size", (size + (1 << 20)).to_string())?;
        rustix::mount::fsconfig_create(&context)?;
        let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        openat(&mount, ".", flags, Mode::empty())
    };
    root().context("can't make a file system in memory for the disk's files; name a --backing directory")
}

/// Gives this thread, and threads it will start, precedence over everything that is not urgent,
/// because a disk does not wait for a processor. Programs it starts inherit this; they are short.
pub(super) fn take_precedence() -> Result<()> {
    let id = std::process::id().to_string();
    run(Command::new("chrt").args(["--rr", "--pid", "1", &id])).context("can't take precedence (util-linux)")
}

/// Lets the kernel gather writes for the disk as for any other. FUSE is otherwise held to 1 % of
/// the dirty limit.
pub(super) fn raise_dirty_limits(mount: &Path) -> Result<()> {
    let dev = mount.metadata()?.dev();
    let bdi = format!("/sys/class/bdi/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    for (name, value) in [("strict_limit", "0"), ("max_ratio", "100")] {
        let path = format!("{bdi}/{name}");
        // Not std::fs::write, which would create the file where the setting is missing
        // (strict_limit exists since Linux 6.2).
        let set =
            File::options().write(true).open(&path).and_then(|file| file.write_all_at(value.as_bytes(), 0));
        set.with_context(|| format!("can't set {path} to {value}"))?;
    }
    Ok(())
}

/// The file for the loop device, which is removed with the value.
#[derive(Debug)]
pub(super) struct DiskImage {
    backing: OwnedFd,
}

impl DiskImage {
    pub(super) fn make(backing: &OwnedFd, size: u64) -> Result<Self> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(backing, IMAGE_NAME, flags, Mode::from_raw_mode(0o600))
            .with_context(|| format!("can't make {IMAGE_NAME} in the --backing directory"))?;
        let image = Self { backing: backing.try_clone()? };
        File::from(file).set_len(size).context("can't give the image its size")?;
        Ok(image)
    }
}

impl Drop for DiskImage {
    fn drop(&mut self) {
        if let Err(error) = unlinkat(&self.backing, IMAGE_NAME, AtFlags::empty()) {
            eprintln!("slowdisk: can't remove {IMAGE_NAME}: {error}");
        }
    }
}

/// Creates an XFS on a loop device over the image on the disk at `disk`, and mounts it at `at`.
pub(super) fn mount_xfs(disk: &Path, at: &Path, mounts: &mut MountList) -> Result<()> {
    let found = command("losetup")
        .args(["--find", "--show", "--direct-io=on"])
        .arg(disk.join(IMAGE_NAME))
        .output()
        .context("can't start losetup")?;
    let device = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let said = String::from_utf8_lossy(&found.stderr);
    ensure!(device.starts_with("/dev/"), "losetup ended with {}: {}", found.status, said.trim());
    let made = check_direct(&device).and_then(|()| {
        // The device is empty, so there is nothing to discard.
        run(command("mkfs.xfs").args(["-q", "-f", "-K", &device]))?;
        run(command("mount").args(["-t", "xfs", "-o", "noatime", &device]).arg(at))?;
        mounts.0.push(at.to_path_buf());
        Ok(())
    });
    // While it is mounted, this only marks the device to be detached with the mount.
    let detached = run(command("losetup").args(["--detach", &device]));
    made?;
    detached
}

/// Fails unless the loop device uses direct I/O; losetup does not fail without it.
fn check_direct(device: &str) -> Result<()> {
    let path = format!("/sys/block/{}/loop/dio", device.trim_start_matches("/dev/"));
    let direct = std::fs::read_to_string(&path).with_context(|| format!("can't read {path}"))?;
    ensure!(direct.trim() == "1", "{device} does no direct I/O; what is on it would be cached twice");
    Ok(())
}

/// Runs a program to its end. Fails with its message if it fails.
fn run(command: &mut Command) -> Result<()> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("can't start {shown}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown} ended with {}: {}", output.status, said.trim());
    Ok(())
}

/// Returns a command that a Ctrl-C on the terminal does not end.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

/// The mounts, in order.
#[derive(Debug, Default)]
pub(super) struct MountList(Vec<PathBuf>);

impl MountList {
    pub(super) fn add(&mut self, path: &Path) {
        self.0.push(path.to_path_buf());
    }

    /// Unmounts everything. Fails, after everything is unmounted, if something was still in use.
    pub(super) fn take_down(&mut self) -> Result<()> {
        let mut used = Vec::new();
        while let Some(path) = self.0.pop() {
            if !unmount(&path)? {
                used.push(path.display().to_string());
            }
        }
        if !used.is_empty() {
            bail!("in use, and detached: {}; what is open there fails from now on", used.join(" and "));
        }
        Ok(())
    }
}

impl Drop for MountList {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            if let Err(error) = self.take_down() {
                eprintln!("slowdisk: {error:#}");
            }
        }
    }
}

/// Unmounts; returns false if it was in use and had to be detached.
fn unmount(path: &Path) -> Result<bool> {
    let umount = |lazy: bool| {
        // The path is absolute; resolving it again would wait for a disk that may be gone.
        run(command("umount").arg("--no-canonicalize").args(lazy.then_some("--lazy")).arg(path))
    };
    let until = Instant::now() + UNMOUNT_WAIT_MAX;
    loop {
        match umount(false) {
            Ok(()) => return Ok(true),
            Err(_) if !is_mounted(path) => return Ok(true),
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Err(_) => return umount(true).map(|()| false),
        }
    }
}

/// Whether something is mounted at an absolute path.
pub(super) fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| unescape(at) == path.to_string_lossy()))
}

/// Decodes octal escapes of blanks, line ends and backslashes in mountinfo.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        format!("{:#}", check_mount_point(path).unwrap_err())
    }

    #[test]
    fn a_path_that_is_not_a_mount_point_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check_mount_point(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(refusal(dir.path()).contains("not empty"));
        assert!(refusal(&dir.path().join("file")).contains("no directory"));
        assert!(refusal(&dir.path().join("none")).contains("No such file"));
        assert!(refusal(Path::new("/proc")).contains("already"));
    }

    #[test]
    fn a_file_that_cannot_be_a_disk_is_refused() {
        let error = check_xfs(XFS_BYTES_MIN - 1).unwrap_err().to_string();
        assert!(error.contains("300M"), "{error}");
        let error = backing(None, 1 << 60).unwrap_err().to_string();
        assert!(error.contains("--backing"), "{error}");
        let error = format!("{:#}", backing(Some(Path::new("/none")), 0).unwrap_err());
        assert!(error.contains("/none") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn mounts_are_known_by_their_paths() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/proc/self")));
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
    }
}
