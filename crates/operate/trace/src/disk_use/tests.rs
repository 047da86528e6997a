use super::*;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagekeeper_testing::{Mounted, skip};

use crate::page_events::FollowedNames;

const MIB: u64 = 1 << 20;

fn opened() -> Option<(PageEvents, DiskUse)> {
    if !rustix::process::geteuid().is_root() {
        skip("counting requests to disks needs root");
        return None;
    }
    let events = PageEvents::open(&FollowedNames::default()).unwrap();
    let disks = DiskUse::open(&events).unwrap();
    Some((events, disks))
}

/// Returns the device's own counts (`stat` of `sysfs-block`): bytes read, and bytes written.
fn bytes_of(disk: u64) -> (u64, u64) {
    let (major, minor) = (rustix::fs::major(disk), rustix::fs::minor(disk));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap();
    let field = |nth: usize| text.split_whitespace().nth(nth).unwrap().parse::<u64>().unwrap() * 512;
    (field(2), field(6))
}

/// Runs `dd` behind a shell that waits until `begin` was called with its number.
fn dd(arguments: &[String], begin: impl FnOnce(u32)) {
    let mut shell = Command::new("sh")
        .args(["-c", "read go; exec dd status=none \"$@\"", "sh"])
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    begin(shell.id());
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(shell.wait().unwrap().success());
}

fn read_of(path: &Path) -> Vec<String> {
    ["iflag=direct", "bs=64k", "of=/dev/null", &format!("if={}", path.display())].map(String::from).to_vec()
}

/// Makes a file of 4 MiB on a file system of its own. Returns that one's device as well.
fn file_on_own_disk() -> Option<(Mounted, std::path::PathBuf, u64)> {
    let mounted = Mounted::new("ext4")?;
    let path = mounted.path().join("file");
    std::fs::write(&path, vec![7; 4 << 20]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let disk = std::fs::metadata(&path).unwrap().dev();
    Some((mounted, path, disk))
}

#[test]
fn requests_of_others_add_up_to_the_disks_count() {
    let Some((_events, mut disks)) = opened() else { return };
    let Some((mounted, path, disk)) = file_on_own_disk() else { return };
    disks.take().unwrap();
    let before = bytes_of(disk);
    dd(&read_of(&path), |_| {});
    let written = mounted.path().join("written");
    let write = ["if=/dev/zero", "bs=64k", "count=32", "oflag=direct", &format!("of={}", written.display())];
    dd(&write.map(String::from), |_| {});
    let window = disks.take().unwrap();
    let after = bytes_of(disk);
    let asked = window.others[&disk];
    assert_eq!(asked.reads.bytes, after.0 - before.0, "{asked:?}");
    assert!(asked.reads.bytes >= 4 * MIB && asked.reads.done >= 64, "{asked:?}");
    // The journal's thread writes as well.
    assert!((2 * MIB..=after.1 - before.1).contains(&asked.syncs.bytes), "{asked:?} {before:?} {after:?}");
    assert!(asked.reads.waited > Duration::ZERO && asked.syncs.waited > Duration::ZERO, "{asked:?}");
    assert_eq!((asked.reads.in_flight, asked.syncs.in_flight, window.lost), (0, 0, 0), "{asked:?}");
    assert_eq!(asked.reads.begun, asked.reads.done, "{asked:?}");
    let next = disks.take().unwrap();
    assert_eq!(next.others[&disk].reads, RequestCounts::default());
}

#[test]
fn followed_processes_and_this_one_are_not_others() {
    let Some((events, mut disks)) = opened() else { return };
    let Some((_mounted, path, disk)) = file_on_own_disk() else { return };
    let mut followed = 0;
    dd(&read_of(&path), |pid| {
        followed = pid;
        events.follow(pid).unwrap();
        disks.take().unwrap();
    });
    let file = std::fs::File::open(&path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    std::fs::read(&path).unwrap();
    let window = disks.take().unwrap();
    assert!(window.reads[&(followed, disk)] >= 4 * MIB, "{window:?}");
    let others = window.others.get(&disk).copied().unwrap_or_default();
    // A daemon that inspects new devices may read from it.
    assert!(others.reads.bytes < MIB, "{window:?}");
    assert!(!window.reads.contains_key(&(std::process::id(), disk)), "{window:?}");
    assert_eq!(disks.take().unwrap().reads, BTreeMap::new());
}

#[test]
fn syncs_that_have_no_data_of_their_own_are_seen() {
    let Some((_events, mut disks)) = opened() else { return };
    let Some((_mounted, path, disk)) = file_on_own_disk() else { return };
    disks.take().unwrap();
    // Eight bytes in place, each synced.
    let arguments = ["if=/dev/zero", "bs=8", "count=20", "conv=notrunc", "oflag=dsync"];
    let mut write = arguments.map(String::from).to_vec();
    write.push(format!("of={}", path.display()));
    dd(&write, |_| {});
    let asked = disks.take().unwrap().others[&disk];
    assert!(asked.syncs.done >= 20, "{asked:?}");
}

#[test]
fn a_partition_is_its_disk() {
    let Some((_events, mut disks)) = opened() else { return };
    let Some(partition) = Partition::new() else { return skip("no partition can be made on a loop device") };
    disks.take().unwrap();
    let read = ["iflag=direct", "bs=64k", "count=16", "of=/dev/null"].map(String::from).to_vec();
    dd(&[read, vec![format!("if={}", partition.node.display())]].concat(), |_| {});
    let window = disks.take().unwrap();
    let disk = std::fs::metadata(&partition.disk).unwrap().rdev();
    assert!(window.others[&disk].reads.bytes >= MIB, "{window:?}");
    let number = std::fs::metadata(&partition.node).unwrap().rdev();
    assert!(number != disk && !window.others.contains_key(&number));
}

/// A loop device with a partition; removed when dropped.
struct Partition {
    disk: String,
    node: PathBuf,
    #[allow(dead_code, reason = "holds the image and the partition's node")]
    dir: tempfile::TempDir,
}

impl Partition {
    /// Returns `None` if the kernel finds none.
    fn new() -> Option<Self> {
        let dir = pagekeeper_testing::disk_dir();
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
        let looped =
            Command::new("losetup").args(["--find", "--show", "--partscan"]).arg(&image).output().ok()?;
        if !looped.status.success() {
            return None;
        }
        let disk = String::from_utf8_lossy(&looped.stdout).trim().to_owned();
        let this = Self { node: dir.path().join("partition"), disk, dir };
        // By number: the kernel may know no kind of partition table.
        let added = Command::new("addpart").args([&this.disk, "1", "2048", "65536"]).status().ok()?;
        if !added.success() {
            return None;
        }
        // There may be nobody who makes its node in /dev.
        let name = this.disk.strip_prefix("/dev/")?;
        let number = std::fs::read_to_string(format!("/sys/block/{name}/{name}p1/dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        let mut mknod = Command::new("mknod");
        let made = mknod.arg(&this.node).args(["b", major, minor]).status().ok()?;
        made.success().then_some(this)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.disk]).status();
    }
}

#[test]
fn throttled_requests_count_as_others() {
    let Some((_events, mut disks)) = opened() else { return };
    let Some((_mounted, path, disk)) = file_on_own_disk() else { return };
    let throttle = Path::new("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device");
    let number = format!("{}:{}", rustix::fs::major(disk), rustix::fs::minor(disk));
    if std::fs::write(throttle, format!("{number} 2000000")).is_err() {
        return skip("a throttle needs cgroup v1's blkio");
    }
    disks.take().unwrap();
    dd(&read_of(&path), |_| {});
    let asked = disks.take().unwrap().others[&disk];
    std::fs::write(throttle, format!("{number} 0")).unwrap();
    assert!(asked.workers.done > 0 && asked.waited_for().bytes >= 4 * MIB, "{asked:?}");
}
