//! Tests of the bookkeeping for removed logs, without any process.

use super::*;
use pagekeeper_kernel::process::AccessMode;

const DIRECTORY: Inode = Inode { dev: 1, ino: 1 };

/// Makes descriptors of this many files, from this inode number on.
fn open_files(from: u64, count: u64) -> Vec<OpenFile> {
    let file = |number: u64| OpenFile {
        fd: RawFd::try_from(number).unwrap(),
        path: format!("/d/{}/binlog.{number:06}", "x".repeat(4000)).into(),
        deleted: true,
        inode: Inode { dev: 1, ino: number },
        size: 0,
        access: AccessMode::ReadOnly,
        direct: false,
        append: false,
        position: 0,
        mount_id: None,
        shown_inode: Some(number),
    };
    (from..from + count).map(file).collect()
}

#[test]
fn open_files_of_a_hostile_user_take_bounded_memory() {
    let now = Instant::now();
    let mut removed = RemovedFiles::new(now);
    let (hostile, other) = (Party::User(1), Party::User(2));
    // Not in a watched directory, however many there are and however long their paths.
    removed.note(5, (hostile, Some(5)), (open_files(10, 2000), false), |_| None, now);
    removed.note(6, (hostile, None), (open_files(10, 2000), true), |_| Some(DIRECTORY), now);
    assert_eq!((removed.count, removed.files.len(), removed.names.len()), (0, 0, 0));
    assert!(removed.held[&6].is_cut && !removed.held.contains_key(&5));
    removed.note(7, (other, Some(7)), (open_files(10, 3), false), |_| Some(DIRECTORY), now);
    for pid in 100..400 {
        let own = (open_files(u64::from(pid) * 1000, 300), false);
        removed.note(pid, (hostile, Some(pid)), own, |_| Some(DIRECTORY), now);
        assert!(
            removed.count <= 2 * REMOVED_DESCRIPTORS_MAX.1 + REMOVED_DESCRIPTORS_MAX.0
                && removed.files.len() <= removed.count
        );
        assert!(removed.names.len() <= 2 * removed.count);
    }
    removed.share_out();
    assert!(removed.count <= REMOVED_DESCRIPTORS_MAX.1 && removed.files.len() <= removed.count);
    assert!((100..400).all(|pid| removed.held[&pid].is_cut));
    assert!(removed.held[&7].open.len() == 3 && !removed.held[&7].is_cut);
    // Files that nobody has open any more are forgotten at once.
    for pid in 100..400 {
        removed.forget(pid);
    }
    removed.share_out();
    assert_eq!((removed.count, removed.files.len(), removed.names.len()), (3, 3, 3));
    removed.forget(7);
    removed.share_out();
    assert_eq!((removed.count, removed.files.len(), removed.names.len()), (0, 0, 0));
}

#[test]
fn a_hostile_user_with_too_many_open_files_affects_only_its_own() {
    let now = Instant::now();
    let mut listed = ListedSince { anybody: Some(now), own: BTreeMap::new() };
    listed.note(Party::User(1), None);
    listed.note(Party::User(2), Some(now + QUIET_AFTER));
    assert_eq!(listed.since(Party::User(1)), None);
    assert_eq!(listed.since(Party::User(2)), Some(now));
    assert_eq!(listed.since(Party::Container(3)), Some(now));
    // A process that may open anybody's files delays the files of all users.
    listed.note(Party::User(0), None);
    assert_eq!(listed.since(Party::User(2)), None);
}
