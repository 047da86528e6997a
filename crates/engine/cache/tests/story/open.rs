//! Opening: one open for all callers, always the file that the name currently refers to, regular
//! files only, and no kernel pages left behind.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;

use pagekeeper_cache::{Backend, CacheOptions, PageCache, PageNo};
use pagekeeper_io::{Access, BatchRead, Io, IoFile, OwnedRead, Threads};
use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_simdisk::SimDisk;

use crate::support::{PAGE, SEED, bytes, check, sim, sim_cache, write_patterned};
use pagekeeper_testing::{disk_dir, skip};

const PAGE_LEN: u64 = PAGE as u64;

/// A back-end that counts opens for reading, and can make them wait. A check of the file that a
/// path names does not count: it opens for metadata only, buffered.
struct CountingBackend {
    inner: Arc<dyn Io>,
    opens: AtomicU64,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl CountingBackend {
    fn new(inner: Arc<dyn Io>, closed: bool) -> Arc<Self> {
        Arc::new(Self { inner, opens: AtomicU64::new(0), gate: Mutex::new(closed), opened: Condvar::new() })
    }

    fn opens(&self) -> u64 {
        self.opens.load(Ordering::SeqCst)
    }

    fn let_through(&self) {
        *self.gate.lock().unwrap() = false;
        self.opened.notify_all();
    }
}

impl Io for CountingBackend {
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn IoFile>, pagekeeper_io::Error> {
        if access == Access::Direct {
            self.opens.fetch_add(1, Ordering::SeqCst);
            drop(self.opened.wait_while(self.gate.lock().unwrap(), |closed| *closed).unwrap());
        }
        self.inner.open(path, access)
    }

    fn adopt(&self, file: std::fs::File, access: Access) -> Result<Arc<dyn IoFile>, pagekeeper_io::Error> {
        self.inner.adopt(file, access)
    }

    fn read_batch(
        &self,
        reads: &mut [BatchRead<'_>],
        completed: &mut dyn FnMut(usize, Result<usize, pagekeeper_io::Error>),
    ) {
        self.inner.read_batch(reads, completed);
    }

    fn submit(&self, reads: Vec<OwnedRead>) {
        self.inner.submit(reads);
    }

    fn name(&self) -> &'static str {
        "a counting disk"
    }
}

fn counting(disk: &SimDisk, closed: bool) -> (Arc<CountingBackend>, PageCache) {
    let io = CountingBackend::new(Arc::new(disk.clone()), closed);
    let cache =
        PageCache::options().memory(CacheOptions::memory_for(100, PAGE)).io(io.clone()).build().unwrap();
    (io, cache)
}

#[test]
fn eighty_threads_that_open_a_file_open_it_once() {
    let disk = SimDisk::new();
    disk.create_patterned("/file", 10 * PAGE_LEN, SEED).unwrap();
    let (io, cache) = counting(&disk, true);
    assert_eq!(cache.backend(), "a counting disk");
    let together = Barrier::new(81);
    let files: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..80)
            .map(|_| {
                scope.spawn(|| {
                    together.wait();
                    cache.open("/file").unwrap()
                })
            })
            .collect();
        together.wait();
        io.let_through();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(io.opens(), 1);
    assert!(files.iter().all(|file| file.id() == files[0].id()));
    files[3].page(PageNo::new(7)).unwrap();
    assert_eq!(files[77].resident_pages(), 1);
    // As long as one handle is open, opens return that file.
    let last = files.into_iter().next_back().unwrap();
    assert_eq!((cache.open("/file").unwrap().id(), io.opens()), (last.id(), 1));
    let id = last.id();
    drop(last);
    let again = cache.open("/file").unwrap();
    assert_ne!(again.id(), id);
    assert_eq!((again.resident_pages(), io.opens()), (0, 2));
}

#[test]
fn a_failed_open_is_reported_to_all_waiters_and_retried_by_the_next() {
    let disk = SimDisk::new();
    let (io, cache) = counting(&disk, true);
    let asked = AtomicU64::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    cache.open("/file").map(drop)
                })
            })
            .collect();
        while asked.load(Ordering::SeqCst) < 20 || io.opens() == 0 {
            thread::yield_now();
        }
        io.let_through();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert_eq!(error.to_string(), "open /file: No such file or directory (os error 2)");
        }
    });
    disk.create_patterned("/file", PAGE_LEN, SEED).unwrap();
    check(SEED, 0, &cache.open("/file").unwrap().page(PageNo::new(0)).unwrap());
}

/// Opens by name and by descriptor find the file that a real path names now.
#[test]
fn a_path_that_was_replaced_gives_the_new_file() {
    let dir = disk_dir();
    let path = dir.path().join("000012.sst");
    let io = CountingBackend::new(Arc::new(Threads::new()), false);
    let cache = PageCache::options().memory(4 << 20).io(io.clone()).build().unwrap();
    write_patterned(&path, 1, 0..10 * PAGE_LEN);
    let old = cache.open(&path).unwrap();
    check(1, 0, &old.page(PageNo::new(0)).unwrap());
    for seed in 2..6 {
        let new = dir.path().join("new");
        write_patterned(&new, seed, 0..10 * PAGE_LEN);
        std::fs::rename(&new, &path).unwrap();
        let file = cache.open(&path).unwrap();
        assert_ne!(file.id(), old.id());
        assert_eq!(cache.open(&path).unwrap().id(), file.id());
        for page in 0..10 {
            check(seed, page * PAGE_LEN, &file.page(PageNo::new(page)).unwrap());
            check(1, page * PAGE_LEN, &old.page(PageNo::new(page)).unwrap());
        }
    }
    assert_eq!(io.opens(), 5);
    // Written in place: open handles get an error or the previous content, and a new open gets the
    // present content.
    let file = cache.open(&path).unwrap();
    let before = file.page_ref(PageNo::new(2)).unwrap();
    let written = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&written, &bytes(7, 0, 10 * PAGE), 0).unwrap();
    written.sync_all().unwrap();
    let again = cache.open(&path).unwrap();
    assert_ne!(again.id(), file.id());
    for page in 0..10 {
        check(7, page * PAGE_LEN, &again.page(PageNo::new(page)).unwrap());
    }
    check(5, 2 * PAGE_LEN, &before);
    file.close();
    // By descriptor.
    let adopted = cache.adopt(std::fs::File::open(&path).unwrap()).unwrap();
    assert_eq!((adopted.len(), adopted.is_direct()), (10 * PAGE_LEN, again.is_direct()));
    check(7, 5 * PAGE_LEN, &adopted.page(PageNo::new(5)).unwrap());
}

/// Changes an open file, on each file system that this machine has.
#[test]
fn a_file_that_was_written_to_is_not_read_as_if_it_were_the_old_one() {
    let dir = disk_dir();
    let cache = PageCache::options().memory(4 << 20).build().unwrap();
    for change in ["cut", "grown", "written"] {
        let path = dir.path().join(change);
        write_patterned(&path, 1, 0..10 * PAGE_LEN + 5);
        // The time of change is as coarse as the kernel's tick (before Linux 6.13).
        thread::sleep(std::time::Duration::from_millis(20));
        let file = cache.open(&path).unwrap();
        check(1, 0, &file.page(PageNo::new(0)).unwrap());
        let raw = std::fs::File::options().write(true).open(&path).unwrap();
        match change {
            "cut" => raw.set_len(3 * PAGE_LEN).unwrap(),
            "grown" => write_patterned(&path, 1, 10 * PAGE_LEN + 5..12 * PAGE_LEN),
            _ => std::os::unix::fs::FileExt::write_all_at(&raw, &bytes(7, 4 * PAGE_LEN, PAGE), 4 * PAGE_LEN)
                .unwrap(),
        }
        check(1, 0, &file.page(PageNo::new(0)).unwrap());
        let error = file.page(PageNo::new(5)).unwrap_err().to_string();
        let name = path.display();
        let expected = match change {
            "cut" => format!(
                "{name}: cut to 12288 bytes since it was opened with 40965, found by a read of bytes 20480..24576: open it again"
            ),
            "grown" => format!("{name}: grew to 49152 bytes since it was opened with 40965: open it again"),
            _ => format!("{name}: written to since it was opened: open it again"),
        };
        assert_eq!(error, expected);
        let past = file.read_at(file.len(), &mut [0; 9]);
        assert_eq!(past.is_err(), change == "grown", "{past:?}");
    }
}

#[test]
fn a_file_that_is_not_regular_is_refused_with_its_kind() {
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    write_patterned(&at("file"), 1, 0..10);
    symlink("file", at("link")).unwrap();
    let cache = PageCache::options().memory(4 << 20).build().unwrap();
    for (name, cause) in [
        ("fifo", "a FIFO, not a regular file"),
        ("socket", "a socket, not a regular file"),
        ("directory", "a directory, not a regular file"),
        ("dangling", "No such file or directory (os error 2)"),
        ("missing", "No such file or directory (os error 2)"),
        ("loop", "Too many levels of symbolic links (os error 40)"),
        ("file/within", "Not a directory (os error 20)"),
    ] {
        let path = at(name);
        let error = cache.open(&path).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(&*path.to_string_lossy()) && message.ends_with(cause), "{message}");
        assert_eq!(error.path(), Some(&*path));
    }
    let error = cache.open("/dev/null").unwrap_err();
    assert_eq!(error.to_string(), "/dev/null: a character device, not a regular file");
    // A link is followed.
    check(1, 0, &cache.open(at("link")).unwrap().page(PageNo::new(0)).unwrap());
    // A failed open leaves nothing behind.
    std::fs::remove_file(at("fifo")).unwrap();
    write_patterned(&at("fifo"), 2, 0..10);
    check(2, 0, &cache.open(at("fifo")).unwrap().page(PageNo::new(0)).unwrap());
}

#[test]
fn a_file_that_may_not_be_read_is_an_error() {
    if !rustix::process::geteuid().is_root() {
        skip("reading as another user needs root");
        return;
    }
    let dir = disk_dir();
    let path = dir.path().join("secret");
    write_patterned(&path, 1, 0..PAGE_LEN);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    let cache = PageCache::options().memory(4 << 20).backend(Backend::Threads).build().unwrap();
    let nobody = rustix::process::Uid::from_raw(65534);
    let error = thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            cache.open(&path).unwrap_err()
        });
        stranger.join().unwrap()
    });
    assert!(error.to_string().ends_with("Permission denied (os error 13)"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn pages_others_left_in_the_kernels_page_cache_are_dropped() {
    let dir = disk_dir();
    let path = dir.path().join("left");
    write_patterned(&path, 1, 0..300 * PAGE_LEN + 77);
    assert_eq!(std::fs::read(&path).unwrap(), bytes(1, 0, 300 * PAGE + 77));
    let resident = || {
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        residency(&file, 0..u64::MAX).unwrap().resident
    };
    let before = resident();
    assert!(before >= 300 * PAGE_LEN, "{before} bytes are resident");
    let cache = PageCache::options().memory(4 << 20).build().unwrap();
    let file = cache.open(&path).unwrap();
    if !file.is_direct() {
        skip("no direct I/O in the target directory");
        return;
    }
    assert_eq!((file.found_resident(), resident()), (before, 0));
    // Reading, and inspecting the file again, leave nothing there either.
    let mut whole = vec![0; 300 * PAGE + 77];
    assert_eq!(file.read_at(0, &mut whole).unwrap(), whole.len());
    check(1, 0, &whole);
    file.close();
    drop(file);
    assert_eq!(cache.open(&path).unwrap().found_resident(), 0);
    assert_eq!(resident(), 0);

    // A buffered cache reads through the kernel's cache.
    let cache = PageCache::options().memory(4 << 20).backend(Backend::Buffered).build().unwrap();
    let file = cache.open(&path).unwrap();
    assert_eq!(file.read_at(0, &mut whole).unwrap(), whole.len());
    check(1, 0, &whole);
    assert!(!file.is_direct() && resident() > 0);
}

#[test]
fn a_file_system_without_direct_reads_is_read_through_the_kernel() {
    let disk = SimDisk::builder().without_direct().build();
    disk.create_patterned("/file", 10 * PAGE_LEN, SEED).unwrap();
    let cache = sim_cache(&disk, 100, PAGE);
    let file = cache.open("/file").unwrap();
    assert!(!file.is_direct());
    check(SEED, PAGE_LEN, &file.page(PageNo::new(1)).unwrap());
    assert_eq!(cache.open("/file").unwrap().id(), file.id());

    // A real tmpfs: it has no device for direct reads.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        skip("there is no tmpfs at /dev/shm");
        return;
    };
    let path = dir.path().join("file");
    write_patterned(&path, 1, 0..10 * PAGE_LEN + 5);
    let cache = PageCache::options().memory(4 << 20).build().unwrap();
    let file = cache.open(&path).unwrap();
    let mut whole = vec![0; 10 * PAGE + 5];
    assert_eq!(file.read_at(0, &mut whole).unwrap(), whole.len());
    check(1, 0, &whole);
    assert!(!file.is_direct(), "on tmpfs all is read through the kernel's page cache");
    assert_eq!(file.found_resident(), 0, "memory-only pages can't be dropped");
}

#[test]
fn files_of_all_lengths_are_read_to_their_end() {
    let disk = SimDisk::new();
    for shift in 12..=16 {
        let page_size = 1 << shift;
        let cache = sim_cache(&disk, 100, page_size);
        for (n, len) in
            [0, 1, 511, page_size - 1, page_size, page_size + 1, 5 * page_size].into_iter().enumerate()
        {
            let path = format!("/{shift}-{n}");
            disk.create_patterned(&path, len as u64, 9).unwrap();
            let file = cache.open(&path).unwrap();
            assert_eq!((file.len(), file.is_empty()), (len as u64, len == 0));
            assert_eq!((file.pages(), file.page_size()), (len.div_ceil(page_size) as u64, page_size));
            let mut buf = vec![0; len + 10];
            assert_eq!(file.read_at(0, &mut buf).unwrap(), len);
            check(9, 0, &buf[..len]);
            assert_eq!(file.read_at(len as u64, &mut buf).unwrap(), 0);
            assert_eq!(file.read_at(u64::MAX, &mut buf).unwrap(), 0);
            assert_eq!(file.read_at(u64::MAX, &mut []).unwrap(), 0);
            let error = file.page(PageNo::new(file.pages())).unwrap_err().to_string();
            assert_eq!(error, format!("{path}: no page {0}: it has {0}", file.pages()));
        }
    }
}

#[test]
fn a_file_of_too_many_pages_is_an_error_that_tells_the_way_out() {
    let disk = SimDisk::new();
    disk.create_patterned("/huge", 1 << 46, SEED).unwrap();
    let error = sim_cache(&disk, 100, PAGE).open("/huge").unwrap_err();
    assert_eq!(
        error.to_string(),
        "/huge: 70368744177664 bytes are too many for pages of 4096: choose a larger page size"
    );
    let file = sim_cache(&disk, 100, 65536).open("/huge").unwrap();
    check(SEED, (1 << 46) - 65536, &file.page(PageNo::new((1 << 30) - 1)).unwrap());
}

/// The budget holds however many threads open and close at once.
#[test]
fn opens_and_closes_of_many_threads_leave_the_capacity_as_it_was() {
    let (disk, cache) = sim(2000, 400);
    for n in 0..8 {
        disk.create_patterned(format!("/{n}"), 500 * PAGE_LEN * (n + 1), n).unwrap();
    }
    thread::scope(|scope| {
        for n in 0..8 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..50 {
                    let file = cache.open(format!("/{n}")).unwrap();
                    for page in 0..20 {
                        let page = page * 37 * (round + 1) % file.pages();
                        check(n, page * PAGE_LEN, &file.page(PageNo::new(page)).unwrap());
                    }
                    if round % 2 == 0 {
                        file.close();
                    }
                }
            });
        }
    });
    let file = cache.open("/file").unwrap();
    let mut page = [0; PAGE];
    for n in 0..2000 {
        file.read_at(n * PAGE_LEN, &mut page).unwrap();
        check(SEED, n * PAGE_LEN, &page);
    }
    let stats = cache.stats();
    // 2000 pages are two parts of a table.
    assert_eq!((stats.capacity_pages, file.resident_pages()), (398, stats.resident_pages), "{stats}");
    assert!(stats.resident_pages + 8 >= 398, "{stats}");
}
