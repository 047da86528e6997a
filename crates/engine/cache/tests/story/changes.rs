//! Changes of an open file whose length and time of the last write stay as they were.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use pagekeeper_cache::{Backend, CachedFile, Error, PageCache, PageNo, ReadRequest};
use pagekeeper_testing::{disk_dir, skip};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::support::tasks::block_on;
use crate::support::{PAGE, SEED, bytes, check, sim, write_patterned};

const PAGE_LEN: u64 = PAGE as u64;
const FILE_PAGES: u64 = 600;

/// Waits for a tick: the times of a file are as coarse as the kernel's tick (before Linux 6.13).
fn await_tick() {
    thread::sleep(Duration::from_millis(20));
}

fn modified(path: &Path) -> Timespec {
    let stat = rustix::fs::stat(path).unwrap();
    Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.try_into().unwrap() }
}

fn set_modified(path: &Path, modified: Timespec) {
    let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps { last_access: omitted, last_modification: modified };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

/// Writes some pages, and sets the time of the write back.
fn rewrite(path: &Path, seed: u64, pages: std::ops::Range<u64>) {
    let before = modified(path);
    await_tick();
    let file = File::options().write(true).open(path).unwrap();
    let len = usize::try_from(pages.end - pages.start).unwrap() * PAGE;
    file.write_all_at(&bytes(seed, pages.start * PAGE_LEN, len), pages.start * PAGE_LEN).unwrap();
    file.sync_all().unwrap();
    set_modified(path, before);
    assert_eq!(modified(path), before);
}

fn cache(backend: Backend) -> PageCache {
    PageCache::options().memory(16 << 20).backend(backend).build().unwrap()
}

#[track_caller]
fn assert_changed<T: std::fmt::Debug>(result: &Result<T, Error>) {
    assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
}

/// Checks that no way of reading loads a page, and that cached pages stay.
fn assert_all_loads_fail(file: &CachedFile) {
    let mut buf = [0; 10];
    assert_changed(&file.page(PageNo::new(500)).map(drop));
    assert_changed(&block_on(file.read_at_async(501 * PAGE_LEN, &mut buf)));
    let mut requests = [ReadRequest::new(502 * PAGE_LEN, &mut buf)];
    assert!(file.read_many(&mut requests).is_err());
    assert_changed(&requests[0].outcome().clone());
    check(1, 0, &file.page(PageNo::new(0)).unwrap());
}

#[test]
fn a_write_with_a_reset_mtime_is_noticed() {
    let dir = disk_dir();
    for backend in [Backend::Auto, Backend::Threads, Backend::Buffered] {
        // The whole file, and only a page far behind the first.
        for rewritten in [0..FILE_PAGES, 400..401] {
            let path = dir.path().join(format!("{backend:?} {rewritten:?}"));
            write_patterned(&path, 1, 0..FILE_PAGES * PAGE_LEN + 5);
            await_tick();
            let cache = cache(backend);
            let file = cache.open(&path).unwrap();
            let mut buf = vec![0; 450 * PAGE];
            file.read_at(0, &mut buf).unwrap();
            check(1, 0, &buf);
            rewrite(&path, 2, rewritten.clone());
            assert_all_loads_fail(&file);
            // A later link does not hide the write.
            std::fs::hard_link(&path, path.with_extension("link")).unwrap();
            assert_all_loads_fail(&file);
            let again = cache.open(&path).unwrap();
            check(2, rewritten.start * PAGE_LEN, &again.page(PageNo::new(rewritten.start)).unwrap());
        }
    }
}

#[test]
fn rsync_in_place_is_seen() {
    let dir = disk_dir();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    write_patterned(&from, 2, 0..FILE_PAGES * PAGE_LEN);
    write_patterned(&to, 1, 0..FILE_PAGES * PAGE_LEN);
    set_modified(&from, modified(&to));
    await_tick();
    let file = cache(Backend::Auto).open(&to).unwrap();
    check(1, 0, &file.page(PageNo::new(0)).unwrap());
    let mut rsync = Command::new("rsync");
    rsync.args(["--inplace", "--times", "--checksum"]).args([&from, &to]);
    let Ok(status) = rsync.status() else { return skip("rsync is not installed.") };
    assert!(status.success());
    assert_eq!(
        (modified(&to), std::fs::read(&to).unwrap()),
        (modified(&from), std::fs::read(&from).unwrap())
    );
    assert_all_loads_fail(&file);
}

/// Each of these acts changes the time of change, and none changes the content.
#[test]
fn changes_of_the_inode_alone_are_no_changes_of_the_file() {
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    let path = at("file");
    let link_and_remove = |path: &Path| {
        std::fs::hard_link(path, at("link")).unwrap();
        std::fs::remove_file(at("link")).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 8] = [
        ("chmod", &|| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap()),
        ("chmod back", &|| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap()),
        ("link", &|| std::fs::hard_link(&path, at("other")).unwrap()),
        ("link and remove", &|| link_and_remove(&path)),
        ("times", &|| set_modified(&path, modified(&path))),
        ("rename", &|| std::fs::rename(&path, at("renamed")).unwrap()),
        ("remove", &|| std::fs::remove_file(at("renamed")).unwrap()),
        ("remove the last", &|| std::fs::remove_file(at("other")).unwrap()),
    ];
    for backend in [Backend::Auto, Backend::Buffered] {
        write_patterned(&path, 1, 0..FILE_PAGES * PAGE_LEN + 5);
        let file = cache(backend).open(&path).unwrap();
        for (nth, (name, change)) in (0..).zip(&changes) {
            let page = nth * 20;
            check(1, page * PAGE_LEN, &file.page(PageNo::new(page)).unwrap());
            await_tick();
            change();
            let loaded = file.page(PageNo::new(page + 10)).unwrap_or_else(|error| panic!("{name}: {error}"));
            check(1, (page + 10) * PAGE_LEN, &loaded);
        }
        let mut rest = vec![0; 100 * PAGE + 5];
        assert_eq!(file.read_at(500 * PAGE_LEN, &mut rest).unwrap(), rest.len());
        check(1, 500 * PAGE_LEN, &rest);
    }
}

#[test]
fn a_file_that_was_removed_is_read_on() {
    let (disk, cache) = sim(100, 64);
    let file = cache.open("/file").unwrap();
    check(SEED, 0, &file.page(PageNo::new(0)).unwrap());
    disk.remove("/file").unwrap();
    for page in 0..100 {
        check(SEED, page * PAGE_LEN, &file.page(PageNo::new(page)).unwrap());
    }
}
