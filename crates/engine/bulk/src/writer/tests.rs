//! Bulk writes on real files, and on a simulated disk that fails.

use std::io::Write;
use std::time::Duration;

use super::*;
use pagekeeper_testing::{Mounted, disk_dir};

const ALL_MODES: [BulkMode; 4] = [BulkMode::Direct, BulkMode::Paced, BulkMode::Uncached, BulkMode::Buffered];

/// Returns bytes that depend on their offset.
fn content(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64).flat_map(u64::to_le_bytes).take(len).collect()
}

/// Writes the bytes in pieces of many sizes.
fn write_in_pieces(output: &mut BulkWriter, mut bytes: &[u8]) {
    for piece in [1, 4095, 8, 1 << 20, 3 << 20, 100_000].into_iter().cycle() {
        let (now, rest) = bytes.split_at(bytes.len().min(piece));
        output.write_all(now).unwrap();
        bytes = rest;
        if bytes.is_empty() {
            return;
        }
    }
}

fn check_all_modes(directory: &Path) {
    let bytes = content(21 * (1 << 20) + 4321);
    for (number, mode) in ALL_MODES.into_iter().chain([BulkMode::Auto]).enumerate() {
        for expected in [0, 8 << 20, 30 << 20] {
            let path = directory.join(format!("{number}-{expected}"));
            let mut output = BulkWriter::options().mode(mode).expected_bytes(expected).create(&path).unwrap();
            let used = output.mode();
            write_in_pieces(&mut output, &bytes);
            assert_eq!(output.written(), bytes.len() as u64);
            let report = output.finish().unwrap();
            assert_eq!((report.bytes, report.mode, &report.path), (bytes.len() as u64, used, &path));
            let all = bytes.len().next_multiple_of(4096) as u64;
            // The kernel may hold references to pages while it is advised to drop them, and may
            // reclaim some on its own.
            let left = if used == BulkMode::Buffered { all / 10 * 9..=all } else { 0..=64 << 10 };
            assert!(report.resident.is_none_or(|resident| left.contains(&resident)), "{report:?}");
            assert!(std::fs::read(&path).unwrap() == bytes, "{mode}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn each_mode_writes_all_bytes_and_keeps_its_residency_promise() {
    check_all_modes(disk_dir().path());
    for kind in ["ext4", "xfs", "btrfs"] {
        if let Some(mounted) = Mounted::new(kind) {
            check_all_modes(mounted.path());
        }
    }
}

#[test]
fn in_memory_it_is_buffered() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for mode in ALL_MODES {
        let mut output = BulkWriter::options().mode(mode).create(dir.path().join(mode.to_string())).unwrap();
        assert_eq!(output.mode(), BulkMode::Buffered);
        output.write_all(&content(5 << 20)).unwrap();
        assert_eq!(output.finish().unwrap().bytes, 5 << 20);
    }
}

#[test]
fn it_is_a_writer() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    let mut output = BulkWriter::options().create(&path).unwrap();
    assert!(!output.why().is_empty());
    write!(output, "{}", "line\n".repeat(100)).unwrap();
    output.flush().unwrap();
    assert!(format!("{output:?}").contains("written: 500"), "{output:?}");
    output.finish().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "line\n".repeat(100));
}

#[test]
fn existing_files_are_not_overwritten() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, "precious").unwrap();
    for mode in ALL_MODES {
        let error = BulkWriter::options().mode(mode).expected_bytes(1).create(&path).unwrap_err();
        assert!(error.to_string().contains("file") && error.to_string().contains("exists"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_full_disk_is_reported_with_file_and_range_and_at_once_if_it_can_be() {
    let Some(mounted) = Mounted::new("ext4") else { return };
    for mode in ALL_MODES {
        let path = mounted.path().join("file");
        let error = BulkWriter::options().mode(mode).expected_bytes(2 << 30).create(&path).unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(!path.exists());

        let mut output = BulkWriter::options().mode(mode).create(&path).unwrap();
        let step = content(8 << 20);
        let failed = (0..200).find_map(|_| output.write_all(&step).err()).unwrap();
        let text = failed.to_string();
        assert!(text.contains("mount/file") && text.contains("write of bytes"), "{text}");
        assert!(text.contains("No space left"), "{text}");
        assert_eq!(output.write_all(&[1]).unwrap_err(), failed);
        assert_eq!(output.write(&[1]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(output.finish().unwrap_err(), failed);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_log_on_the_same_disk_is_warned_of_once() {
    let dir = disk_dir();
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    for name in ["a", "b"] {
        let said = Arc::clone(&said);
        BulkWriter::options()
            .log_directory(dir.path().join("log"))
            .log_directory("/dev/shm")
            .on_warning(move |warning| said.lock().unwrap().push(warning.to_owned()))
            .create(dir.path().join(name))
            .unwrap();
    }
    let said = said.lock().unwrap();
    assert!(said.len() == 1 && said[0].contains("/log"), "{said:?}");
}

#[test]
fn a_profile_of_another_file_system_is_not_used() {
    let dir = disk_dir();
    let slow_direct = DiskProfile {
        bulk: Some(pagekeeper_policy::BulkProfile {
            paced_us: 30.0,
            bytes_per_second: 3e7,
            ..pagekeeper_policy::BulkProfile::default()
        }),
        ..DiskProfile::default()
    };
    let create = |disk: Option<&DiskProfile>, name: &str| {
        let options = disk.map_or_else(BulkWriter::options, |disk| BulkWriter::options().disk(disk));
        options.create(dir.path().join(name)).unwrap()
    };
    let without = create(None, "without").mode();
    let foreign = DiskProfile { file_system_id: "0123456789abcdef".to_owned(), ..slow_direct.clone() };
    let output = create(Some(&foreign), "foreign");
    assert_eq!(output.mode(), without);
    assert!(output.why().ends_with("it is of another file system"), "{}", output.why());
    drop(output);
    let Some(file_system_id) = file_system_id(dir.path()).unwrap() else {
        eprintln!("SKIPPED: this file system has no number");
        return;
    };
    let own = DiskProfile { file_system_id, ..slow_direct };
    // The first of a disk's open writers decides about its budget, and other tests have some open.
    let has_own_budget = |attempt: u32| {
        std::thread::sleep(Duration::from_millis(10 * u64::from(attempt.min(1))));
        let output = create(Some(&own), &format!("own{attempt}"));
        if without == BulkMode::Direct {
            assert_eq!(output.mode(), BulkMode::Paced, "{}", output.why());
            assert!(output.why().starts_with("the disk's profile has no direct output"), "{}", output.why());
        }
        let paced = output.mode() == BulkMode::Paced;
        let budget = output.finish().unwrap().budget;
        !paced || budget.unwrap() <= 600_000
    };
    assert!((0..1000).any(has_own_budget), "no writer had the budget of the disk's profile");
}
