//! `stat`, `evict` and `warm` beside vmtouch and util-linux's fincore, on one tree, on ext4, XFS
//! and btrfs: all three see the same resident pages, none after `evict` and all after `warm`. Our
//! differences: dirty data is evicted, too, and holes are not loaded.

use crate::support;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::MIB;
use crate::support::command::{finish, pagekeeper};
use crate::support::loop_images::LoopImage;

/// Resident bytes of each file.
type ResidentBytes = BTreeMap<PathBuf, u64>;

/// Returns a fresh file system of this kind; `None` if something that it takes is missing.
fn image(test: &str, kind: &str) -> Option<LoopImage> {
    let mut needed: Vec<String> = LoopImage::programs(kind).to_vec();
    needed.extend(["vmtouch".to_owned(), "fincore".to_owned()]);
    let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
    support::can_run(test, &needed).then(|| LoopImage::new(kind, 512 * MIB))
}

fn content(len: u64) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// Returns files of all shapes, synced: their paths with their sizes.
fn make_tree(root: &Path) -> BTreeMap<PathBuf, u64> {
    std::fs::create_dir_all(root.join("sub/deeper")).unwrap();
    let mut tree = BTreeMap::new();
    for (name, size) in [
        ("whole", 6 * MIB),
        ("random", 16 * MIB),
        ("start", 4 * MIB),
        ("none", 3 * MIB),
        ("sub/byte", 1),
        ("sub/odd", 10_001),
        ("sub/empty", 0),
        ("sub/deeper/file", 2 * MIB + 5),
    ] {
        std::fs::write(root.join(name), content(size)).unwrap();
        tree.insert(root.join(name), size);
    }
    let sparse = root.join("sparse");
    let file = std::fs::File::create(&sparse).unwrap();
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&content(MIB), 32 * MIB).unwrap();
    tree.insert(sparse, 64 * MIB);
    for path in tree.keys() {
        std::fs::File::open(path).unwrap().sync_all().unwrap();
    }
    tree
}

/// Loads parts of the tree: whole files, a range, scattered single pages.
fn read_some(root: &Path) {
    for name in ["whole", "sub/byte", "sub/odd", "sub/deeper/file"] {
        std::fs::read(root.join(name)).unwrap();
    }
    for (name, pages) in [
        ("start", (0..256).collect::<Vec<u64>>()),
        ("random", (0..200).map(|index| index * 7919 % 4096).collect()),
        // In the hole, at the edge of the data, and in the data.
        ("sparse", vec![0, 100, 8191, 8192, 8300, 16_383]),
    ] {
        let file = std::fs::File::open(root.join(name)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        for index in pages {
            file.read_at(&mut [0], index * page()).unwrap();
        }
    }
}

fn by_ours(root: &Path) -> ResidentBytes {
    let report = finish(pagekeeper().args(["stat", "--json"]).arg(root)).json();
    assert_eq!(report["errors"], serde_json::json!([]));
    let files = report["files"].as_array().unwrap().iter();
    files.map(|file| (file["path"].as_str().unwrap().into(), file["resident"].as_u64().unwrap())).collect()
}

fn by_fincore(tree: &BTreeMap<PathBuf, u64>) -> ResidentBytes {
    tree.keys().map(|path| (path.clone(), support::resident_bytes(std::slice::from_ref(path)))).collect()
}

/// Runs vmtouch on a file or a tree; further arguments come first.
fn vmtouch(arguments: &[&str], path: &Path) -> u64 {
    let said = finish(Command::new("vmtouch").args(arguments).arg(path));
    assert_eq!(said.code, 0, "{said:?}");
    // "Resident Pages: 1536/1536  6M/6M  100%"; not there after -e and -t.
    let pages = said.stdout.lines().find_map(|line| line.trim().strip_prefix("Resident Pages: "));
    pages.map_or(0, |pages| pages.split('/').next().unwrap().parse::<u64>().unwrap() * page())
}

fn by_vmtouch(tree: &BTreeMap<PathBuf, u64>) -> ResidentBytes {
    // vmtouch passes empty files over in silence.
    let resident = |(path, &size): (&PathBuf, &u64)| if size == 0 { 0 } else { vmtouch(&[], path) };
    tree.iter().map(|file| (file.0.clone(), resident(file))).collect()
}

fn all(tree: &BTreeMap<PathBuf, u64>) -> ResidentBytes {
    tree.iter().map(|(path, size)| (path.clone(), size.next_multiple_of(page()))).collect()
}

fn none(tree: &BTreeMap<PathBuf, u64>) -> ResidentBytes {
    tree.keys().map(|path| (path.clone(), 0)).collect()
}

/// Asserts that both are equal. On a busy machine the kernel may reclaim pages at any moment, so
/// loading and sampling are repeated a few times.
fn assert_same_counts<T: PartialEq + std::fmt::Debug>(mut counts: impl FnMut() -> (T, T)) {
    for _ in 0..4 {
        let (left, right) = counts();
        if left == right {
            return;
        }
    }
    let (left, right) = counts();
    assert_eq!(left, right);
}

/// Runs the whole comparison on one kind of file system.
fn compare_tools_on(test: &str, kind: &str) {
    let Some(image) = image(test, kind) else { return };
    let root = image.path().join("tree");
    let tree = make_tree(&root);

    // Mixed residency.
    vmtouch(&["-e"], &root);
    let mut mixed = none(&tree);
    for (name, pages) in [("whole", 1536), ("random", 200), ("start", 256), ("sparse", 6)] {
        mixed.insert(root.join(name), pages * page());
    }
    for (name, pages) in [("sub/byte", 1), ("sub/odd", 3), ("sub/deeper/file", 513)] {
        mixed.insert(root.join(name), pages * page());
    }
    assert_same_counts(|| {
        read_some(&root);
        (by_ours(&root), mixed.clone())
    });
    assert_same_counts(|| (by_ours(&root), by_fincore(&tree)));
    assert_same_counts(|| (by_ours(&root), by_vmtouch(&tree)));
    assert_same_counts(|| (by_ours(&root).values().sum(), vmtouch(&[], &root)));

    // Loaded by vmtouch, evicted by ours.
    assert_same_counts(|| {
        vmtouch(&["-t"], &root);
        (by_ours(&root), all(&tree))
    });
    let report = finish(pagekeeper().args(["evict", "--json"]).arg(&root)).json();
    assert_eq!(report["total"]["released"], report["total"]["resident_before"], "{report:#}");
    assert_eq!((by_fincore(&tree), vmtouch(&[], &root)), (none(&tree), 0));

    // Loaded by ours, evicted by vmtouch. Holes, which no read goes to the disk for, ours leaves
    // out.
    let mut loaded = all(&tree);
    loaded.insert(root.join("sparse"), MIB);
    assert_same_counts(|| {
        finish(pagekeeper().args(["warm", "--json"]).arg(&root)).expect_success();
        ((by_fincore(&tree), vmtouch(&[], &root)), (loaded.clone(), loaded.values().sum()))
    });
    vmtouch(&["-e"], &root);
    assert_eq!(by_ours(&root), none(&tree));

    check_only_range_changes(&root.join("random"));
    compare_dirty_data(kind, &image.path().join("dirty"));
}

/// Checks with vmtouch that only the range is evicted and loaded.
fn check_only_range_changes(file: &Path) {
    let around = |range: &str| (vmtouch(&["-p", range], file), vmtouch(&[], file));
    assert_same_counts(|| {
        std::fs::read(file).unwrap();
        finish(pagekeeper().args(["evict", "--range", "4M..8M"]).arg(file)).expect_success();
        (around("4M-8M"), (0, 12 * MIB))
    });
    assert_same_counts(|| {
        finish(pagekeeper().args(["warm", "--json", "--range", "4M..6M"]).arg(file)).expect_success();
        (around("4M-6M").0, 2 * MIB)
    });
}

/// Shows the difference to vmtouch, which gives the advice without a check, so that the kernel
/// drops only clean pages. Their number depends on the disk, so it is shown and not asserted.
fn compare_dirty_data(kind: &str, file: &Path) {
    const FILE_BYTES: u64 = 32 * MIB;
    std::fs::write(file, content(FILE_BYTES)).unwrap();
    vmtouch(&["-e"], file);
    let left = support::resident_bytes(&[file.to_path_buf()]);
    println!(
        "{kind}: of {} MiB just written, vmtouch -e left {:.1} MiB",
        FILE_BYTES / MIB,
        left as f64 / MIB as f64
    );

    std::fs::write(file, content(FILE_BYTES)).unwrap();
    finish(pagekeeper().arg("evict").arg(file)).expect_success();
    assert_eq!(support::resident_bytes(&[file.to_path_buf()]), 0);
    assert_eq!(std::fs::read(file).unwrap(), content(FILE_BYTES));
}

#[test]
fn all_tools_agree_on_ext4() {
    compare_tools_on("all_tools_agree_on_ext4", "ext4");
}

#[test]
fn all_tools_agree_on_xfs() {
    compare_tools_on("all_tools_agree_on_xfs", "xfs");
}

#[test]
fn all_tools_agree_on_btrfs() {
    compare_tools_on("all_tools_agree_on_btrfs", "btrfs");
}

/// A program, running: ended when dropped.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.0.kill().expect("kill a child");
        self.0.wait().expect("wait for a child");
    }
}

#[test]
fn mapped_pages_stay_and_evict_reports_them() {
    if !support::can_start("mapped_pages_stay_and_evict_reports_them", &["sleep", "fincore"]) {
        return;
    }
    let dir = support::scratch();
    let copy = dir.path().join("program");
    let path = std::env::var_os("PATH").unwrap();
    let sleep = std::env::split_paths(&path).map(|dir| dir.join("sleep")).find(|path| path.is_file());
    support::copy_program(&sleep.unwrap(), &copy);
    let running = RunningProgram(Command::new(&copy).arg("1000").stdin(Stdio::null()).spawn().unwrap());
    support::eventually("the program sleeps, its pages mapped", Duration::from_secs(60), || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.0.id())).ok()?;
        stat.rsplit_once(") ")?.1.starts_with('S').then_some(())
    });
    let outcome = finish(pagekeeper().arg("evict").arg(&copy));
    let kept = support::resident_bytes(std::slice::from_ref(&copy));
    assert!(kept > 0);
    assert!(outcome.stdout.contains("mapped by a process"), "{outcome:?}");
    outcome.expect_success();
    let report = finish(pagekeeper().args(["evict", "--json"]).arg(&copy)).json();
    assert_eq!(report["total"]["kept_mapped"], kept, "{report:#}");
    drop(running);
    finish(pagekeeper().arg("evict").arg(&copy)).expect_success();
    assert_eq!(support::resident_bytes(&[copy]), 0);
}
