//! Named block devices: their pages are counted, evicted and loaded like those of files, and no
//! byte changes. Other programs check it: mincore(2) by Python, `e2fsck`.
//!
//! Needs root and loop devices; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::command::{Outcome, finish, pagekeeper, program};
use crate::support::loop_images::{Device, LoopImage};
use crate::support::{self, MIB, can_run};
use pagekeeper_testing::skip;

const FILE_BYTES: u64 = 48 * MIB;

fn run(command: &str, options: &[&str], path: &Path) -> Outcome {
    finish(pagekeeper().arg(command).args(options).arg(path))
}

/// Returns a device with bytes on it that are not zeros, all of them resident.
fn written() -> Option<(Device, Vec<u8>)> {
    let Some(device) = Device::new(FILE_BYTES) else {
        skip("block devices: no loop device is available");
        return None;
    };
    let mut bytes = vec![0x5a; usize::try_from(FILE_BYTES).expect("small")];
    bytes[7] = 1;
    let file = std::fs::OpenOptions::new().write(true).open(device.path()).expect("open the device");
    file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).expect("write to it");
    assert_eq!(device.resident(), FILE_BYTES);
    Some((device, bytes))
}

#[test]
fn a_device_is_counted_evicted_and_loaded() {
    if !can_run("block devices", &["losetup", "mount", "python3", "setpriv"]) {
        return;
    }
    let Some((mut device, bytes)) = written() else { return };
    let counted = || run("stat", &["--json"], device.path()).json()["total"].clone();
    assert_eq!((&counted()["resident"], &counted()["size"]), (&FILE_BYTES.into(), &FILE_BYTES.into()));

    let part = run("evict", &["--json", "--range", "0..16M"], device.path()).json();
    assert_eq!(part["total"]["released"], 16 * MIB, "{part:#}");
    assert_eq!((&counted()["resident"], device.resident()), (&(32 * MIB).into(), 32 * MIB));
    let text = run("evict", &[], device.path()).expect_success();
    assert_eq!(text, "evicted 32 MiB of 32 MiB resident in 1 file\n");
    assert_eq!(device.resident(), 0);

    let text = run("warm", &["--range", "..8M"], device.path()).expect_success();
    assert!(text.ends_with("all 8 MiB of 1 file is resident now\n"), "{text}");
    // This includes the kernel's read-ahead.
    let part = device.resident();
    assert!((8 * MIB..FILE_BYTES).contains(&part), "{part} bytes are resident");
    let text = run("warm", &[], device.path()).expect_success();
    assert!(text.ends_with("all 48 MiB of 1 file is resident now\n"), "{text}");
    assert_eq!(device.resident(), FILE_BYTES);
    run("evict", &[], device.path()).expect_success();
    assert!(std::fs::read(device.path()).expect("read it") == bytes, "the device has the written bytes");

    // A user who may not read it.
    let copy = support::scratch();
    let copy = copy.path().join("pagekeeper");
    support::copy_program(&program(), &copy);
    for command in ["stat", "evict", "warm"] {
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy).arg(command);
        let outcome = finish(other.arg(device.path()));
        assert_eq!(outcome.code, 1, "{outcome:#?}");
        assert!(outcome.stderr.contains(": permission denied: run as root"), "{outcome:#?}");
        assert!(!outcome.stdout.contains("all "), "{outcome:#?}");
    }

    // The kernel drops a device's pages when its last opener closes it.
    device.close();
    assert_eq!(run("stat", &["--json"], device.path()).json()["total"]["resident"], 0);
    let outcome = run("warm", &[], device.path());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, "no file was read\n"), "{outcome:#?}");
    assert!(outcome.stderr.contains("nobody else has the device open"), "{outcome:#?}");
}

#[test]
fn a_device_below_a_directory_is_passed_over() {
    if !can_run("block devices below a directory", &["losetup", "mount", "python3", "mknod"]) {
        return;
    }
    let Some((device, _)) = written() else { return };
    let scratch = support::scratch();
    let number = rustix::fs::stat(device.path()).expect("it is there").st_rdev;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let node = scratch.path().join("node");
    finish(Command::new("mknod").arg(&node).args(["b", &major.to_string(), &minor.to_string()]))
        .expect_success();
    std::os::unix::fs::symlink(device.path(), scratch.path().join("link")).expect("link to it");
    let text = run("evict", &["-L"], scratch.path()).expect_success();
    assert_eq!(text, "evicted 0 B of 0 B resident in 0 files\n");
    assert_eq!(device.resident(), FILE_BYTES);
    let list = scratch.path().join("list");
    std::fs::write(&list, node.as_os_str().as_encoded_bytes()).expect("write a list");
    let outcome = finish(pagekeeper().args(["evict", "--files-from"]).arg(&list));
    assert!(outcome.code == 1 && outcome.stderr.contains("named on the command line"), "{outcome:#?}");
    assert_eq!(device.resident(), FILE_BYTES);
    // A device is accepted by its own name, and by a link that is named.
    run("evict", &[], &scratch.path().join("link")).expect_success();
    assert_eq!(device.resident(), 0);
    let outcome =
        finish(pagekeeper().args(["snapshot", "-o"]).arg(scratch.path().join("snapshot")).arg(&node));
    assert!(outcome.stderr.contains("a block device: only stat, evict and warm take one, "), "{outcome:#?}");
}

#[test]
fn only_clean_pages_of_a_mounted_device_go() {
    let programs = LoopImage::programs("ext4");
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["findmnt", "e2fsck"]).collect();
    if !can_run("a mounted block device", &programs) {
        return;
    }
    let mut image = LoopImage::new("ext4", 128 * MIB);
    let source =
        finish(Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(image.path())).expect_success();
    let device = Path::new(source.trim());
    let says = format!("{} has the file system at {}", device.display(), image.path().display());
    let resident = || run("stat", &["--json"], device).json()["total"]["resident"].as_u64().expect("bytes");
    let at_first = resident();
    assert!(at_first > 0, "its metadata is there");
    // Metadata changes all the time, and its dirty pages stay.
    let writes = |round: u64| {
        for nth in 0..200 {
            let directory = image.path().join(format!("{}", (round + nth) % 40));
            std::fs::create_dir_all(&directory).expect("make a directory");
            std::fs::write(directory.join(format!("{round}-{nth}")), vec![7; 5000]).expect("write a file");
        }
    };
    for round in 0..5 {
        writes(round);
        let outcome = run("evict", &["--json"], device);
        assert_eq!(outcome.code, 0, "{outcome:#?}");
        assert!(
            outcome.stderr.contains(&says) && outcome.stderr.contains("clean pages alone"),
            "{outcome:#?}"
        );
    }
    std::fs::File::open(image.path()).and_then(|root| root.sync_all()).expect("sync it");
    let evicted = run("evict", &["--json"], device).json();
    assert!(evicted["total"]["released"].as_u64() > Some(0), "{evicted:#}");
    let seen = run("stat", &[], device);
    assert!(seen.code == 0 && seen.stderr.contains(&says), "{seen:#?}");
    for nth in 0..200 {
        let file = image.path().join(format!("{}/4-{nth}", (4 + nth) % 40));
        assert_eq!(std::fs::read(&file).expect("read it").len(), 5000);
    }
    // The file system is intact when read again from the disk.
    image.unmount();
    let checked = finish(Command::new("e2fsck").args(["-f", "-n"]).arg(image.outside().join("image")));
    assert_eq!(checked.code, 0, "{checked:#?}");
}
