//! Tests of directories below a named one whose owner tries to have files of others acted on. As
//! root.

use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};

use super::claim_tests::{DATABASE, OTHER, Watch, directory, log, resident, scratch, whole};
use crate::config::Options;

/// Makes two segments of a log, of which the first is no longer needed.
fn segments(directory: &Path, user: u32) -> [PathBuf; 2] {
    [1, 2].map(|number| log(directory.join(format!("00000001000000000000000{number}")), user, 0o600))
}

fn watch(directory: &Path) -> Watch {
    Watch::with(Options { find: false, directories: vec![directory.to_path_buf()], ..Options::default() })
}

fn as_postgresql(directory: &Path) -> Watch {
    Watch::with(Options {
        find: false,
        directories: vec![directory.to_path_buf()],
        profile: Some("postgresql".to_owned()),
        ..Options::default()
    })
}

fn refused(watch: &Watch) -> usize {
    let refused = |line: &&String| line.starts_with("Refused { pid: None") && line.contains("NotOwner");
    watch.reports.iter().filter(refused).count()
}

#[test]
fn a_link_below_a_named_directory_leads_to_its_owners_files_alone() {
    let Some(dir) = scratch("a link below a named directory") else { return };
    let secret = directory(dir.path().join("secret"), 0, 0o700);
    let theirs = segments(&secret, 0);
    let data = directory(dir.path().join("data"), OTHER, 0o755);
    symlink(&secret, data.join("pg_wal")).unwrap();
    // The target of the link does not show which database the directory belongs to.
    let mut none = watch(&data);
    none.tick_past_listing();
    assert!(
        none.reports.iter().any(|line| line.contains("looks like a log of any profile")),
        "{:#?}",
        none.reports
    );
    let mut first = as_postgresql(&data);
    first.tick_past_listing();
    assert_eq!(theirs.each_ref().map(|path| resident(path)), [whole(); 2]);
    assert_eq!(refused(&first), 1, "{:#?}", first.reports);
    // Even in a directory of root's that everybody may write to, the link counts as its maker's.
    let shared = directory(dir.path().join("shared"), 0, 0o1777);
    let link = shared.join("pg_wal");
    symlink(&secret, &link).unwrap();
    lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
    let mut second = watch(&shared);
    second.tick_past_listing();
    assert_eq!(theirs.each_ref().map(|path| resident(path)), [whole(); 2]);
    assert_eq!(refused(&second), 1, "{:#?}", second.reports);
}

#[test]
fn a_replaced_directory_below_a_named_one_is_examined_again() {
    let Some(dir) = scratch("an exchange below a named directory") else { return };
    // Readable by everybody, so that the directory alone would be no obstacle.
    let secret = directory(dir.path().join("secret"), OTHER, 0o755);
    let [theirs, _] = segments(&secret, 0);
    let data = directory(dir.path().join("data"), OTHER, 0o755);
    let wal = directory(data.join("pg_wal"), OTHER, 0o755);
    let [own, _] = segments(&wal, OTHER);
    let mut watch = watch(&data);
    watch.tick_until_released(&own);
    std::fs::rename(&wal, data.join("was")).unwrap();
    symlink(&secret, &wal).unwrap();
    watch.tick_past_listing();
    assert_eq!(resident(&theirs), whole(), "{:#?}", watch.reports);
}

#[test]
fn links_that_root_made_below_a_named_directory_are_followed() {
    let Some(dir) = scratch("a link of root's below a named directory") else { return };
    let disk = directory(dir.path().join("disk"), DATABASE, 0o700);
    let [own, _] = segments(&disk, DATABASE);
    let data = directory(dir.path().join("data"), 0, 0o755);
    symlink(&disk, data.join("pg_wal")).unwrap();
    watch(&data).tick_until_released(&own);
    // The same for a database's own link to another disk.
    let [again, _] = segments(&disk, DATABASE);
    let data = directory(dir.path().join("theirs"), DATABASE, 0o700);
    symlink(&disk, data.join("pg_wal")).unwrap();
    watch(&data).tick_until_released(&again);
}
