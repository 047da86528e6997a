//! File systems mounted for one test: from an image, or a tmpfs.

use std::fs::{File, Permissions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::{disk_dir, skip};

/// A private file system. It is unmounted when dropped, also during a panic.
#[derive(Debug)]
pub struct Mounted {
    point: PathBuf,
    image: PathBuf,
    /// Contains both.
    _dir: TempDir,
}

impl Mounted {
    /// Creates and mounts an empty file system of this kind: ext4, xfs or btrfs of 1 GiB in a
    /// sparse image, or a tmpfs of 64 MiB. Skips and returns `None` if that is not possible here.
    ///
    /// # Panics
    ///
    /// If a program that it runs fails, and as [`skip`] does.
    pub fn new(kind: &str) -> Option<Self> {
        // Leave the kernel nothing to initialize later.
        let eager: &[&str] =
            if kind == "ext4" { &["-E", "lazy_itable_init=0,lazy_journal_init=0"] } else { &[] };
        let mount = if kind == "tmpfs" { "size=64m" } else { "loop" };
        can_mount(kind).then(|| Self::make(kind, disk_dir(), eager, mount))
    }

    /// Mounts ext4 or xfs with a quota of 64 MiB for the user nobody
    /// ([`as_nobody`](crate::as_nobody)), which the kernel must have.
    ///
    /// # Panics
    ///
    /// As [`Self::new`] does.
    pub fn with_quota(kind: &str) -> Option<Self> {
        let (format, mount): (&[&str], &str) = match kind {
            "ext4" => (&["-O", "quota", "-E", "quotatype=usrquota"], "loop,usrquota"),
            _ => (&[], "loop,uquota"),
        };
        // Nobody must reach it.
        let dir = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir_in("/var/tmp");
        let mounted = can_mount(kind).then(|| Self::make(kind, dir.unwrap(), format, mount))?;
        let point = mounted.path();
        std::os::unix::fs::chown(point, Some(65534), None).unwrap();
        run(Command::new("xfs_quota").args(["-f", "-x", "-c", "limit -u bhard=64m 65534"]).arg(point));
        Some(mounted)
    }

    /// Formats an image in this directory, if the kind has one, and mounts it.
    fn make(kind: &str, dir: TempDir, format: &[&str], mount: &str) -> Self {
        let (point, image) = (dir.path().join("mount"), dir.path().join("image"));
        std::fs::create_dir(&point).unwrap();
        let mounted = Self { point, image, _dir: dir };
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", mount]);
        if kind == "tmpfs" {
            command.arg("none");
        } else {
            File::create(mounted.image()).unwrap().set_len(1 << 30).unwrap();
            run(Command::new(format!("mkfs.{kind}")).arg("-q").args(format).arg(mounted.image()));
            // The loop device goes away with the mount.
            command.arg(mounted.image());
        }
        run(command.arg(mounted.path()));
        mounted
    }

    /// Takes all free space, in a file of this name if there is room for its inode.
    ///
    /// # Panics
    ///
    /// If that fails for another reason than a lack of space.
    pub fn fill(&self, name: &str) {
        let mut filler = match File::create(self.path().join(name)) {
            Err(error) if is_out_of_space(error.raw_os_error()) => return,
            created => created.unwrap(),
        };
        let (mut at, mut step) = (0, 64 << 20);
        while step >= 4096 {
            match rustix::fs::fallocate(&filler, FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(Errno::NOSPC | Errno::DQUOT) => step /= 2,
                Err(errno) => panic!("{errno}"),
            }
        }
        filler.seek(SeekFrom::End(0)).unwrap();
        let more = std::iter::repeat_with(|| filler.write(&[7; 4096])).find_map(Result::err).unwrap();
        assert!(is_out_of_space(more.raw_os_error()), "{more}");
        filler.sync_all().unwrap();
    }

    /// Makes and mounts an XFS of 1 GiB on a device with blocks of this many bytes, larger than the
    /// processor's pages. `None`, and a line that says so, where that can't be done: it takes root,
    /// losetup, mkfs.xfs and Linux 6.15.
    ///
    /// # Panics
    ///
    /// As [`skip`] does.
    pub fn with_blocks(bytes: u32) -> Option<Self> {
        let dir = disk_dir();
        let (point, image) = (dir.path().join("mount"), dir.path().join("image"));
        std::fs::create_dir(&point).unwrap();
        File::create(&image).unwrap().set_len(1 << 30).unwrap();
        let said = |command: &mut Command| {
            let output = command.output().ok().filter(|output| output.status.success())?;
            Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
        };
        let size = bytes.to_string();
        let device =
            said(Command::new("losetup").args(["--find", "--show", "--sector-size", &size]).arg(&image));
        let size = format!("size={size}");
        let is_mounted = device.as_ref().is_some_and(|device| {
            said(Command::new("mkfs.xfs").args(["-q", "-s", &size, "-b", &size, device])).is_some()
                && said(Command::new("mount").arg(device).arg(&point)).is_some()
        });
        // Goes with the mount.
        device.as_ref().map(|device| said(Command::new("losetup").args(["--detach", device])));
        if !is_mounted {
            skip(format_args!(
                "a device with blocks of {bytes} bytes takes root, losetup, mkfs.xfs and Linux 6.15"
            ));
            return None;
        }
        Some(Self { point, image, _dir: dir })
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Freezes the file system: writes wait until the value is dropped, reads continue.
    ///
    /// # Panics
    ///
    /// If `fsfreeze` fails.
    pub fn freeze(&self) -> FrozenFileSystem {
        run(Command::new("fsfreeze").arg("--freeze").arg(&self.point));
        FrozenFileSystem(self.point.clone())
    }

    /// Returns the path of the image file.
    pub fn image(&self) -> &Path {
        &self.image
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let point = self.path();
        if !is_mounted(point) || unmount(point) {
            return;
        }
        let lazily = Command::new("umount").arg("--lazy").arg(point).status();
        eprintln!("{} stayed busy, unmounted lazily: {lazily:?}", point.display());
    }
}

/// A frozen file system, thawed when dropped, also by a panic.
#[derive(Debug)]
pub struct FrozenFileSystem(PathBuf);

impl Drop for FrozenFileSystem {
    fn drop(&mut self) {
        let thawed = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).status();
        let thawed = thawed.is_ok_and(|status| status.success());
        assert!(thawed || std::thread::panicking(), "{} stays frozen", self.0.display());
    }
}

/// Unmounts a file system. Returns false if it stays busy for 10 s. It is busy for a moment while a
/// back-end's thread ends, or while a program that another test started still has this process's
/// descriptors.
pub fn unmount(point: &Path) -> bool {
    for _ in 0..100 {
        let status = Command::new("umount").arg(point).stderr(Stdio::null()).status();
        if status.is_ok_and(|status| status.success()) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

/// Whether an error means that the disk is full or a quota exhausted.
pub fn is_out_of_space(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ENOSPC | libc::EDQUOT))
}

/// Whether a file system of this kind can be mounted here; says so if not.
fn can_mount(kind: &str) -> bool {
    let mkfs = format!("mkfs.{kind}");
    let needs: &[&str] = if kind == "tmpfs" { &["mount"] } else { &[&mkfs, "mount"] };
    if !rustix::process::geteuid().is_root() {
        skip(format_args!("mounting {kind} needs root."));
    } else if let Some(missing) = needs.iter().find(|program| !is_installed(program)) {
        skip(format_args!("the test on {kind} needs {missing}."));
    } else {
        return true;
    }
    false
}

fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == point))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(also).any(|directory| directory.join(program).exists())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
