//! Tests of the census against the real kernel.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pagekeeper_kernel::{Links, ReleaseOptions, release};

use super::*;

fn options(dir: &Path) -> CensusOptions {
    CensusOptions { directories: vec![dir.to_path_buf()], threads: 2, ..CensusOptions::default() }
}

fn row_of(census: &mut Census, name: &str) -> Option<Row> {
    census.rows(&RowQuery::default()).rows.into_iter().find(|row| row.label.ends_with(name))
}

/// Ticks until `check` returns something. The kernel and other work on the machine decide how long
/// that takes.
fn eventually<T>(census: &mut Census, mut check: impl FnMut(&mut Census, &CensusTick) -> Option<T>) -> T {
    for _ in 0..300 {
        let tick = census.tick().unwrap();
        if let Some(found) = check(census, &tick) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("not within 300 ticks");
}

fn written(path: &Path, size: usize) {
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&vec![7; size]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn files_come_grow_and_go() {
    let dir = tempfile::tempdir_in(".").unwrap();
    written(&dir.path().join("old"), 1 << 20);
    let mut census = Census::start(options(dir.path())).unwrap();
    let tick = census.tick().unwrap();
    assert_eq!((tick.files, tick.files_in_memory, tick.explained.files), (1, 1, 1 << 20));
    assert_eq!(tick.file_systems[0].files, 1);

    // A new file, closed at once.
    written(&dir.path().join("new"), 2 << 20);
    eventually(&mut census, |census, _| row_of(census, "/new").filter(|row| row.resident == 2 << 20));
    // A file that grows while it is open.
    let mut open = std::fs::OpenOptions::new().append(true).open(dir.path().join("old")).unwrap();
    open.write_all(&vec![1; 3 << 20]).unwrap();
    let held = |row: &Row| row.owners.iter().any(|owner| owner.pid == std::process::id());
    eventually(&mut census, |census, _| {
        row_of(census, "/old").filter(|row| row.resident == 4 << 20 && held(row))
    });
    // Dirty pages are followed until they are clean.
    open.sync_all().unwrap();
    eventually(&mut census, |census, _| row_of(census, "/old").filter(|row| row.dirty == Some(0)));

    std::fs::remove_file(dir.path().join("new")).unwrap();
    eventually(&mut census, |census, _| row_of(census, "/new").is_none().then_some(()));
    let file = pagekeeper_kernel::InspectedFile::open(dir.path().join("old"), Links::Refuse).unwrap();
    release(&file, 0..u64::MAX, &ReleaseOptions::default()).unwrap();
    drop(file);
    eventually(&mut census, |census, tick| {
        (row_of(census, "/old").is_none() && tick.explained.files == 0).then_some(())
    });
}

#[test]
fn a_program_that_has_ended_keeps_its_name() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("read");
    written(&path, 1 << 20);
    let file = pagekeeper_kernel::InspectedFile::open(&path, Links::Refuse).unwrap();
    release(&file, 0..u64::MAX, &ReleaseOptions::default()).unwrap();
    drop(file);
    let mut census = Census::start(options(dir.path())).unwrap();
    census.tick().unwrap();
    if !census.has_events() {
        pagekeeper_testing::skip("a_program_that_has_ended_keeps_its_name: events can't be traced");
        return;
    }
    let reader = std::process::Command::new("cat").arg(&path).stdout(std::process::Stdio::null()).spawn();
    let mut reader = reader.unwrap();
    let pid = reader.id();
    reader.wait().unwrap();
    let name = eventually(&mut census, |census, _| {
        let row = row_of(census, "/read").filter(|row| row.resident == 1 << 20)?;
        row.owners.iter().find(|owner| owner.pid == pid).map(|owner| owner.name.clone())
    });
    assert_eq!(name, "cat");
}

#[test]
fn a_closed_file_that_comes_back_is_named_by_its_directory() {
    let dir = tempfile::tempdir_in(".").unwrap();
    std::fs::create_dir(dir.path().join("deep")).unwrap();
    let path = dir.path().join("deep/closed");
    written(&path, 1 << 20);
    let file = pagekeeper_kernel::InspectedFile::open(&path, Links::Refuse).unwrap();
    release(&file, 0..u64::MAX, &ReleaseOptions::default()).unwrap();
    drop(file);
    let mut census = Census::start(options(dir.path())).unwrap();
    assert_eq!(census.tick().unwrap().files_in_memory, 0);
    assert_eq!(std::fs::read(&path).unwrap().len(), 1 << 20);
    let row = eventually(&mut census, |census, _| {
        row_of(census, "deep/closed").filter(|row| (row.resident, row.size) == (1 << 20, 1 << 20))
    });
    if census.has_events() {
        assert!(row.total_flow.unwrap().added >= 1 << 20, "{row:?}");
        let rows = census.rows(&RowQuery { group: GroupBy::Process, ..RowQuery::default() });
        assert!(rows.rows[0].label.ends_with(&std::process::id().to_string()), "{rows:?}");
    }
}

#[test]
fn without_tracing_open_files_are_followed_and_the_gap_is_reported() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("open");
    written(&path, 1 << 20);
    let mut census = Census::start(CensusOptions { trace: None, ..options(dir.path()) }).unwrap();
    let mut open = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    open.write_all(&vec![1; 1 << 20]).unwrap();
    let row =
        eventually(&mut census, |census, _| row_of(census, "/open").filter(|row| row.resident == 2 << 20));
    assert_eq!(row.flow, None);
}

#[test]
fn a_deleted_file_that_is_open_is_there() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("gone");
    written(&path, 1 << 20);
    let open = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // A directory with a file in it, so that its device is known.
    written(&dir.path().join("kept"), 4096);
    let mut census = Census::start(options(dir.path())).unwrap();
    census.tick().unwrap();
    let row = row_of(&mut census, "/gone").unwrap();
    assert!(row.deleted && row.resident == 1 << 20, "{row:?}");
    assert_eq!(
        row.key,
        RowKey::File(Inode { dev: open.metadata().unwrap().dev(), ino: open.metadata().unwrap().ino() })
    );
}

#[test]
fn filters_sorts_and_groups() {
    let dir = tempfile::tempdir_in(".").unwrap();
    for (name, size) in [("Alpha", 3), ("beta", 2), ("gamma", 1)] {
        written(&dir.path().join(name), size << 20);
    }
    let mut census =
        Census::start(CensusOptions { trace: None, follow: false, ..options(dir.path()) }).unwrap();
    census.tick().unwrap();
    let mut names = |query: &RowQuery| {
        let rows = census.rows(query);
        let name = |row: &Row| row.label.rsplit('/').next().unwrap().to_owned();
        (rows.rows.iter().map(name).collect::<Vec<_>>(), rows.matching, rows.resident >> 20)
    };
    let query = RowQuery::default();
    assert_eq!(names(&query), (vec!["Alpha".to_owned(), "beta".to_owned(), "gamma".to_owned()], 3, 6));
    assert_eq!(names(&RowQuery { limit: 1, ..query.clone() }), (vec!["Alpha".to_owned()], 3, 6));
    assert_eq!(names(&RowQuery { filter: "alp".into(), ..query.clone() }).1, 1);
    assert_eq!(names(&RowQuery { filter: "ALP".into(), ..query.clone() }).1, 0);
    assert_eq!(names(&RowQuery { pids: vec![u32::MAX], ..query.clone() }), (vec![], 0, 0));
    let groups = names(&RowQuery { group: GroupBy::Class, ..query });
    assert_eq!(groups, (vec!["no database's".to_owned()], 1, 6));
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    let error = Census::start(options(Path::new("/nowhere/at/all"))).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}
