//! Faults around a cache that it survives: wakers that panic, system calls that become forbidden,
//! forks.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;

use crate::support::tasks::block_on;
use crate::support::{PAGE, SEED, await_coalesced, check, sim, sim_cache, write_patterned};
use pagekeeper_cache::{Backend, CacheStats, CachedFile, Error, PageCache, PageNo, ReadRequest};
use pagekeeper_testing::{ChildEnd, Mounted, disk_dir, fork_often, forked, unmount};

/// Bytes of a page.
const PAGE_LEN: u64 = PAGE as u64;

struct PanickingIo;

impl Wake for PanickingIo {
    fn wake(self: Arc<Self>) {
        panic!("a waker's own fault");
    }
}

#[test]
fn a_waker_that_panics_keeps_nobody_else_waiting() {
    let (disk, cache) = sim(4, 100);
    let file = cache.open("/file").unwrap();
    let hold = disk.hold("/file", 0..PAGE_LEN).unwrap();
    let (mut of_panic, mut of_task, mut of_thread) = ([0; 10], [0; 10], [0; 10]);
    let mut panics = Box::pin(file.read_at_async(0, &mut of_panic));
    let waker = Waker::from(Arc::new(PanickingIo));
    assert!(panics.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    thread::scope(|scope| {
        let threads = [
            scope.spawn(|| block_on(file.read_at_async(0, &mut of_task))),
            scope.spawn(|| file.read_at(0, &mut of_thread)),
        ];
        await_coalesced(&cache, 2);
        drop(hold);
        for waiting in threads {
            assert_eq!(waiting.join().unwrap().unwrap(), 10);
        }
    });
    assert_eq!(block_on(panics).unwrap(), 10);
    for buf in [of_panic, of_task, of_thread] {
        check(SEED, 0, &buf);
    }
}

#[test]
fn prefetches_for_a_closed_file_hide_no_misses() {
    let (disk, cache) = sim(100, 64);
    let file = cache.open("/file").unwrap();
    let hold = disk.hold("/file", 0..10 * PAGE_LEN).unwrap();
    assert_eq!(file.prefetch(0..10 * PAGE_LEN), 10);
    file.close();
    drop(hold);
    drop(file);
    disk.create_patterned("/other", 20 * PAGE_LEN, 5).unwrap();
    let file = cache.open("/other").unwrap();
    for page in 0..20 {
        check(5, page * PAGE_LEN, &file.page(PageNo::new(page)).unwrap());
    }
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.prefetched), (20, 0), "{stats:?}");
}

/// Runs again as a child: a filter of system calls can't be removed.
#[test]
fn later_reads_bypass_the_cache_where_barriers_are_forbidden() {
    const FORBIDDEN_VARIABLE: &str = "PAGEKEEPER_BARRIERS_FORBIDDEN";
    if std::env::var_os(FORBIDDEN_VARIABLE).is_none() {
        let name = "others::later_reads_bypass_the_cache_where_barriers_are_forbidden";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(FORBIDDEN_VARIABLE, "1").stdout(Stdio::null());
        assert!(child.status().unwrap().success());
        return;
    }
    let disk = pagekeeper_simdisk::SimDisk::new();
    disk.create_patterned("/file", 500 * PAGE_LEN, SEED).unwrap();
    let cache = sim_cache(&disk, 64, PAGE);
    let file = cache.open("/file").unwrap();
    check(SEED, 0, &file.page(PageNo::new(0)).unwrap());
    forbid_barriers();
    for _ in 0..2 {
        for page in 0..500 {
            let mut buf = [0; PAGE];
            assert_eq!(file.read_at(page * PAGE_LEN, &mut buf).unwrap(), PAGE);
            check(SEED, page * PAGE_LEN, &buf);
        }
    }
    assert!(cache.stats().bypassed > 500, "{}", cache.stats());
}

/// Makes membarrier(2) fail in this thread from now on (seccomp(2)).
#[expect(unsafe_code, reason = "a filter of system calls")]
fn forbid_barriers() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let errno = u32::try_from(libc::EPERM).unwrap();
    let mut steps = [
        // The system call's number is the first field of `seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::try_from(libc::SYS_membarrier).unwrap()),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    // SAFETY: both calls read plain numbers, and the second a program that outlives the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// A child must not use its parent's ring and threads: otherwise both would hang, and reads return
/// wrong bytes.
#[test]
fn a_child_is_refused_all_and_its_parent_notices_nothing() {
    let dir = disk_dir();
    let (path, other) = (dir.path().join("file"), dir.path().join("other"));
    write_patterned(&path, 1, 0..2000 * PAGE_LEN);
    write_patterned(&other, 2, 0..PAGE_LEN);
    for backend in [Backend::Auto, Backend::Threads, Backend::Buffered] {
        let cache = PageCache::options().memory(4 << 20).backend(backend).build().unwrap();
        let file = cache.open(&path).unwrap();
        let mut buf = vec![0; 50 * PAGE];
        // Rings and threads exist, and the threads are busy.
        file.read_at(0, &mut buf).unwrap();
        block_on(file.read_at_async(100 * PAGE_LEN, &mut buf[..PAGE])).unwrap();
        file.prefetch(1000 * PAGE_LEN..1100 * PAGE_LEN);
        let child = forked(|| is_refused_all(&cache, &file, &other));
        for page in (200..900).step_by(10) {
            file.read_at(page * PAGE_LEN, &mut buf).unwrap();
            check(1, page * PAGE_LEN, &buf);
        }
        assert_eq!(child.end(), ChildEnd::Well, "{backend:?}");
        let child_of_child = forked(|| forked(|| is_refused_all(&cache, &file, &other)).ends_well());
        assert_eq!(child_of_child.end(), ChildEnd::Well, "{backend:?}");
        file.read_at(1900 * PAGE_LEN, &mut buf).unwrap();
        check(1, 1900 * PAGE_LEN, &buf);
    }
}

/// Whether each call on the parent's cache fails, for resident pages and others, and a cache of the
/// child's own works.
fn is_refused_all(cache: &PageCache, file: &CachedFile, other: &Path) -> bool {
    let is_forked =
        |result: Result<usize, Error>| matches!(result, Err(Error::Io(pagekeeper_io::Error::Forked)));
    let mut buf = vec![0; 50 * PAGE];
    let is_refused = [0, 500 * PAGE_LEN].into_iter().all(|at| {
        is_forked(file.read_at(at, &mut buf[..10]))
            && is_forked(file.read_at(at, &mut buf))
            && is_forked(block_on(file.read_at_async(at, &mut buf)))
            && is_forked(file.page(PageNo::new(at / PAGE_LEN)).map(|page| page.len()))
            && is_forked(file.page_ref(PageNo::new(at / PAGE_LEN)).map(|page| page.len()))
            && is_forked(file.read_many(&mut [ReadRequest::new(at, &mut buf)]).map(|()| 0))
            && file.prefetch(at..at + 100 * PAGE_LEN) == 0
    });
    let is_nothing_changed = cache.set_memory(1 << 20).is_err() && cache.stats() == CacheStats::default();
    let is_not_opened = is_forked(cache.open(other).map(|_| 0));
    file.close();
    drop((cache.clone(), file.clone()));
    let own = PageCache::options().memory(4 << 20).build().unwrap();
    let read = own.open(other).unwrap().read_at(0, &mut buf).unwrap();
    check(2, 0, &buf[..read]);
    is_refused && is_nothing_changed && is_not_opened && read == PAGE
}

/// Locks that other threads hold at a fork stay locked in the child forever: those of a thread's
/// first read, of counts, closes and opens.
#[test]
fn children_forked_beside_readers_end() {
    let dir = disk_dir();
    let (path, other) = (dir.path().join("file"), dir.path().join("other"));
    write_patterned(&path, 1, 0..2000 * PAGE_LEN);
    write_patterned(&other, 2, 0..PAGE_LEN);
    let cache = PageCache::options().memory(4 << 20).build().unwrap();
    let file = cache.open(&path).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (cache, file, other, done) = (&cache, &file, &other, &done);
            scope.spawn(move || {
                let mut page = reader;
                while !done.load(Ordering::Relaxed) {
                    let mut buf = [0; PAGE];
                    page = (page + 61) % 2000;
                    file.read_at(page * PAGE_LEN, &mut buf).unwrap();
                    check(1, page * PAGE_LEN, &buf);
                    if page % 16 == 0 {
                        cache.stats();
                        cache.open(other).unwrap().close();
                        // Its first read takes a slot.
                        scope.spawn(|| file.read_at(0, &mut [0; 10]).unwrap());
                    }
                }
            });
        }
        let ended = fork_often(200, || {
            // This thread has not read before.
            let is_refused = file.read_at(0, &mut [0; 10]).is_err() && cache.open(&other).is_err();
            cache.stats();
            file.forget(0..u64::MAX);
            file.close();
            drop((cache.clone(), file.clone()));
            is_refused
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(ended, None);
    });
}

#[test]
fn a_file_with_journaled_data_is_reported_as_cached_by_the_kernel() {
    let Some(mounted) = Mounted::new("ext4") else { return };
    assert!(unmount(mounted.path()), "it stays busy");
    let mut mount = Command::new("mount");
    mount.args(["-o", "loop,data=journal"]).arg(mounted.image()).arg(mounted.path());
    assert!(mount.status().unwrap().success());
    let path = mounted.path().join("file");
    write_patterned(&path, 1, 0..20 * PAGE_LEN);
    let cache = PageCache::options().memory(4 << 20).build().unwrap();
    let file = cache.open(&path).unwrap();
    assert!(!file.is_direct());
    check(1, PAGE_LEN, &file.page(PageNo::new(1)).unwrap());
    assert!(!cache.adopt(std::fs::File::open(&path).unwrap()).unwrap().is_direct());
}

#[test]
fn a_compressed_file_on_btrfs_is_reported_as_cached_by_the_kernel() {
    let Some(mounted) = Mounted::new("btrfs") else { return };
    let paths = ["plain", "compressed"].map(|name| mounted.path().join(name));
    for (path, algorithm) in paths.iter().zip(["", "zstd"]) {
        std::fs::File::create(path).unwrap();
        let mut property = Command::new("btrfs");
        property.args(["property", "set"]).arg(path).args(["compression", algorithm]);
        assert!(property.status().unwrap().success());
        std::fs::write(path, vec![7; 1 << 20]).unwrap();
        std::fs::File::open(path).unwrap().sync_all().unwrap();
    }
    let cache = PageCache::options().memory(4 << 20).build().unwrap();
    let files = paths.map(|path| cache.open(path).unwrap());
    assert_eq!(files.each_ref().map(pagekeeper_cache::CachedFile::is_direct), [true, false]);
    assert!(files.iter().all(|file| file.page(PageNo::new(9)).unwrap().iter().all(|byte| *byte == 7)));
}

#[test]
fn a_device_with_blocks_larger_than_a_page_is_read_through_the_kernel() {
    let Some(mounted) = Mounted::with_blocks(16 << 10) else { return };
    let path = mounted.path().join("file");
    write_patterned(&path, 1, 0..100 * PAGE_LEN);
    for (page_size, is_direct) in [(4 << 10, false), (16 << 10, true)] {
        let cache = PageCache::options().memory(4 << 20).page_size(page_size).build().unwrap();
        let file = cache.open(&path).unwrap();
        let mut buf = vec![0; 100 * PAGE];
        assert_eq!(file.read_at(0, &mut buf).unwrap(), buf.len());
        check(1, 0, &buf);
        assert_eq!(file.is_direct(), is_direct, "pages of {page_size}");
    }
}

#[test]
fn a_file_that_grew_is_never_read_short_in_silence() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_patterned(&path, 1, 0..100_000);
    for backend in [Backend::Auto, Backend::Buffered] {
        let cache = PageCache::options().memory(4 << 20).backend(backend).build().unwrap();
        let file = cache.open(&path).unwrap();
        let mut buf = [0; 20];
        assert_eq!(file.read_at(99_990, &mut buf).unwrap(), 10);
        let raw = std::fs::File::options().write(true).open(&path).unwrap();
        raw.set_len(200_000).unwrap();
        let grew = |result: Result<usize, pagekeeper_cache::Error>| {
            assert!(matches!(result, Err(pagekeeper_cache::Error::Grew { .. })), "{result:?}");
        };
        grew(file.read_at(99_990, &mut buf));
        grew(block_on(file.read_at_async(99_990, &mut buf)));
        let mut requests = [pagekeeper_cache::ReadRequest::new(99_990, &mut buf)];
        assert!(file.read_many(&mut requests).is_err());
        grew(requests[0].outcome().clone());
        assert_eq!(file.read_at(99_980, &mut buf).unwrap(), 20, "within what was opened");
        raw.set_len(100_000).unwrap();
    }
}
