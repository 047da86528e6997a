//! A slow disk: a private file system on a loop device that the kernel holds to a rate.
//!
//! The rate is the throttle of the *root* cgroup of the blkio controller (version 1): writeback belongs to no process,
//! so another cgroup's throttle would not limit it.
//!
//! Invariants: the throttle is lifted before the file system is unmounted, and both before the loop device is detached,
//! each by the `Drop` of its value. Fails with a plain message where the controller or the permission is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::image::{Image, Mounted, tell};
use crate::scratch::{Scratch, Setting};

const THROTTLE: &str = "blkio.throttle.write_bps_device";

/// The disk. Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    _throttle: Throttle,
    _shares: Vec<Setting>,
    _controller: Option<Mounted>,
    image: Image,
}

impl SlowDisk {
    /// Creates a disk of `bytes` with a new file system of this kind ("xfs") that writes `rate` bytes per second.
    pub(crate) fn new(scratch: &Scratch, kind: &'static str, bytes: u64, rate: u64) -> Result<Self> {
        let image = Image::new(scratch, kind, bytes)?;
        let (controller, root) = if let Some(root) = blkio_root()? {
            (None, root)
        } else {
            let point = scratch.path().join("blkio");
            let mounted =
                Mounted::new(Command::new("mount").args(["-t", "cgroup", "-o", "blkio", "blkio"]), &point)
                    .context(
                        "no blkio controller of cgroup version 1 is mounted, nor can be; this bench needs it to slow a disk down",
                    )?;
            (Some(mounted), point)
        };
        let number = image.device_number()?;
        let shares = usual_shares(&number)?;
        let throttle = Throttle::new(&root, &number, rate)?;
        Ok(Self { _throttle: throttle, _shares: shares, _controller: controller, image })
    }

    /// Returns the mount point.
    pub(crate) fn path(&self) -> &Path {
        self.image.path()
    }

    /// Returns the device number as the kernel prints it: `7:0`.
    pub(crate) fn device_number(&self) -> Result<String> {
        self.image.device_number()
    }
}

/// Gives the device the full dirty limits, as a new disk has them. A setting made for a loop device stays with its
/// number after the device is gone.
fn usual_shares(number: &str) -> Result<Vec<Setting>> {
    let directory = Path::new("/sys/class/bdi").join(number);
    let usual = [("strict_limit", "0"), ("min_ratio", "0"), ("max_ratio", "100")];
    // `strict_limit` exists since Linux 6.2.
    let there = usual
        .into_iter()
        .map(|(name, value)| (directory.join(name), value))
        .filter(|(path, _)| path.exists());
    there.map(|(path, value)| Setting::change(&path, value)).collect()
}

/// A device's rate in the root cgroup.
#[derive(Debug)]
struct Throttle {
    file: PathBuf,
    number: String,
}

impl Throttle {
    fn new(root: &Path, number: &str, rate: u64) -> Result<Self> {
        let throttle = Self { file: root.join(THROTTLE), number: number.to_owned() };
        let already = std::fs::read_to_string(&throttle.file).with_context(|| {
            format!("can't read {}; has the kernel no blk-throttle?", throttle.file.display())
        })?;
        ensure!(
            !already.lines().any(|line| line.split(' ').next() == Some(number)),
            "device {number} has a throttle already"
        );
        throttle.set(rate)?;
        Ok(throttle)
    }

    /// 0 means no throttle.
    fn set(&self, rate: u64) -> Result<()> {
        std::fs::write(&self.file, format!("{} {rate}", self.number))
            .with_context(|| format!("can't set {} (as root?)", self.file.display()))
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        tell(self.set(0));
    }
}

/// Finds the mount point of the blkio controller's root.
fn blkio_root() -> Result<Option<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("can't read the mounts")?;
    Ok(blkio_root_in(&mounts))
}

/// Parses `proc_pid_mountinfo(5)`: fields 4 and 5 are root and mount point; type, source and options follow the dash.
fn blkio_root_in(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut kind = kind.split(' ');
        let is_root = mount.next()? == "/";
        let point = mount.next()?;
        let is_blkio = kind.next()? == "cgroup" && kind.nth(1)?.split(',').any(|option| option == "blkio");
        (is_root && is_blkio).then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_root_of_the_controller_will_do() {
        let line = |root: &str, options: &str| {
            format!(
                "36 23 0:32 {root} /sys/fs/cgroup/blkio rw,relatime shared:9 - cgroup cgroup rw,{options}\n"
            )
        };
        let found = Some(PathBuf::from("/sys/fs/cgroup/blkio"));
        assert_eq!(blkio_root_in(&line("/", "blkio")), found);
        assert_eq!(blkio_root_in(&line("/", "cpu,blkio")), found);
        assert_eq!(blkio_root_in(&line("/docker/x", "blkio")), None);
        assert_eq!(blkio_root_in(&line("/", "memory")), None);
        assert_eq!(blkio_root_in("31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"), None);
    }

    #[test]
    #[allow(clippy::used_underscore_binding, reason = "the fields are otherwise there to be dropped")]
    fn a_slow_disk_leaves_nothing() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: loop devices need root");
            return;
        }
        let scratch = Scratch::new(Path::new("/var/tmp")).unwrap();
        let disk = match SlowDisk::new(&scratch, "xfs", 512 << 20, 100 << 20) {
            Ok(disk) => disk,
            Err(error) => {
                eprintln!("skipped: {error:#}");
                return;
            }
        };
        let (throttle, node) = (disk._throttle.file.clone(), disk.image.node().to_path_buf());
        let line = format!("{} {}", disk._throttle.number, 100 << 20);
        std::fs::write(disk.path().join("file"), [1; 4096]).unwrap();
        assert!(std::fs::read_to_string(&throttle).unwrap().contains(&line));
        drop(disk);
        assert!(!std::fs::read_to_string(&throttle).unwrap_or_default().contains(&line));
        assert!(
            !std::fs::read_to_string("/proc/self/mountinfo")
                .unwrap()
                .contains(scratch.path().to_str().unwrap())
        );
        let backing = format!("/sys/block/{}/loop/backing_file", node.file_name().unwrap().to_string_lossy());
        let image = scratch.path().join("image");
        // The kernel detaches it once nobody has the device open, including programs that were notified of it and read
        // its content.
        let began = std::time::Instant::now();
        while std::fs::read_to_string(&backing).unwrap_or_default().trim() == image.to_str().unwrap() {
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "{node:?} is left");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
