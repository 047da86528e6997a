//! Files that their owner writes while they are open: the content that a read returns after the
//! owner has notified the cache, in each relevant order of load and write. Orders of single steps
//! are in `src/model/rewrites.rs`, random ones in `owned_stress.rs`.

mod support;

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use pagekeeper_cache::{Error, InstallAs, OpenOptions, OwnedFile, PageCache, PageNo, ReadRequest};
use pagekeeper_io::{Access, AlignedBuf, Create, Io, IoFile, WriteMode};
use pagekeeper_simdisk::SimDisk;

use support::tasks::block_on;
use support::{PAGE, sim_cache};

/// The file's owner, and the cache's view of it.
struct FileOwner {
    disk: SimDisk,
    cache: PageCache,
    data: Arc<dyn IoFile>,
    file: OwnedFile,
}

impl FileOwner {
    /// Creates a file of `pages` pages, the first filled with 0, the next with 1 ….
    fn new(pages: u64, max_pages: u64, options: OpenOptions) -> Self {
        let disk = SimDisk::new();
        let data = disk.open_writable("/data".as_ref(), Access::Direct, Create::New).unwrap();
        let cache = sim_cache(&disk, 64, PAGE);
        let file = cache.open_owned_with(Arc::clone(&data), max_pages, options).unwrap();
        let owner = Self { disk, cache, data, file };
        for page in 0..pages {
            owner.write(page, u8::try_from(page).unwrap());
        }
        owner
    }

    /// Writes to the device, past the cache.
    fn write(&self, page: u64, byte: u8) {
        self.data.write_at(page * PAGE as u64, &content(byte), WriteMode::Plain).unwrap();
    }

    /// Returns the first byte of a page, which equals all its others.
    fn read(&self, page: u64) -> u8 {
        let guard = self.file.page(PageNo::new(page)).unwrap();
        assert!(guard.iter().all(|byte| *byte == guard[0]), "page {page} is torn");
        guard[0]
    }

    fn loads(&self) -> u64 {
        self.cache.stats().misses
    }
}

fn pages(numbers: Range<u64>) -> Range<PageNo> {
    PageNo::new(numbers.start)..PageNo::new(numbers.end)
}

fn content(byte: u8) -> AlignedBuf {
    let mut page = AlignedBuf::new(PAGE);
    page.fill(byte);
    page
}

/// Creates a verifier that stops the first load after its read, and then returns the verdict that
/// it is sent.
fn stopping() -> (OpenOptions, Receiver<()>, Sender<Result<(), String>>) {
    let (read, has_read) = channel();
    let (answer, answered) = channel();
    let first = Mutex::new(Some((read, answered)));
    let options = OpenOptions::new().verifier(move |_| {
        // In a separate statement, so that the stopped load does not hold the lock.
        let first = first.lock().unwrap().take();
        let Some((read, answered)) = first else { return Ok(()) };
        read.send(()).unwrap();
        answered.recv().unwrap()
    });
    (options, has_read, answer)
}

#[test]
fn a_page_is_old_until_it_is_discarded_or_installed() {
    let owner = FileOwner::new(8, 8, OpenOptions::new());
    for page in 0..8 {
        assert_eq!(owner.read(page), u8::try_from(page).unwrap());
        owner.write(page, 100);
        assert_eq!(owner.read(page), u8::try_from(page).unwrap(), "the cache was not notified");
    }
    owner.file.discard(PageNo::new(0));
    owner.file.discard_many(&[3, 1, 7, 7, 99].map(PageNo::new));
    assert_eq!(owner.file.resident(), [pages(2..3), pages(4..7)]);
    let loads = owner.loads();
    assert!([0, 1, 3, 7].into_iter().all(|page| owner.read(page) == 100));
    assert_eq!(owner.loads(), loads + 4);
    for page in [2, 4, 5, 6] {
        assert!(owner.file.install(PageNo::new(page), &content(100), InstallAs::Read).unwrap());
        assert_eq!(owner.read(page), 100);
    }
    assert_eq!((owner.loads(), owner.cache.stats().installed), (loads + 4, 4));
    assert_eq!(owner.file.resident_pages(), 8);
}

#[test]
fn each_way_to_read_finds_the_new_content() {
    let owner = FileOwner::new(40, 40, OpenOptions::new());
    let file = &owner.file;
    let len = PAGE as u64;
    for (round, byte) in (0_u64..).zip(100..120) {
        for page in 0..40 {
            owner.write(page, byte);
            if (page + round).is_multiple_of(3) {
                file.install(PageNo::new(page), &content(byte), InstallAs::Prefetched).unwrap();
            } else {
                file.discard(PageNo::new(page));
            }
        }
        let mut all = vec![0; 10 * PAGE];
        assert_eq!(file.read_at(5, &mut all).unwrap(), all.len());
        assert!(all.iter().all(|read| *read == byte));
        assert_eq!(block_on(file.read_at_async(10 * len, &mut all)).unwrap(), all.len());
        assert!(all.iter().all(|read| *read == byte));
        let mut bufs = [[0; 100]; 10];
        let mut requests: Vec<_> =
            (20..).zip(&mut bufs).map(|(page, buf)| ReadRequest::new(page * len, buf)).collect();
        file.read_many(&mut requests).unwrap();
        assert!(bufs.iter().flatten().all(|read| *read == byte));
        file.prefetch(30 * len..40 * len);
        for page in 30..40 {
            assert_eq!(file.page_ref(PageNo::new(page)).unwrap()[..], content(byte)[..]);
        }
    }
}

#[test]
fn guards_keep_their_content() {
    let owner = FileOwner::new(2, 2, OpenOptions::new());
    let (short, long) =
        (owner.file.page(PageNo::new(0)).unwrap(), owner.file.page_ref(PageNo::new(1)).unwrap());
    for byte in 50..250 {
        for page in 0..2 {
            owner.write(page, byte);
            assert!(owner.file.install(PageNo::new(page), &content(byte), InstallAs::Read).unwrap());
            assert_eq!(owner.read(page), byte);
        }
        assert_eq!((&short[..], &long[..]), (&content(0)[..], &content(1)[..]));
    }
}

/// Whether the shortest way exists: only if light barriers cost nothing.
fn has_shortest_way() -> bool {
    !cfg!(any(miri, pagekeeper_sanitize))
}

#[test]
fn the_fast_path_finds_hot_pages_and_keeps_them() {
    let owner = FileOwner::new(40, 40, OpenOptions::new());
    let file = &owner.file;
    assert!(file.page_shortest(PageNo::new(0)).is_none(), "it is absent");
    assert!(
        (40..50).chain([u64::MAX]).all(|page| file.page_shortest(PageNo::new(page)).is_none()),
        "there is none"
    );
    for page in 0..20 {
        owner.read(page);
        assert!(file.page_shortest(PageNo::new(page)).is_none(), "it was read once");
        for _ in 0..3 {
            owner.read(page);
        }
    }
    if !has_shortest_way() {
        return;
    }
    let hits = owner.cache.stats().hits;
    // A thread holds as many pages as it can; then releasing one makes room for another.
    let mut held: Vec<_> = (0..16).map(|page| file.page_shortest(PageNo::new(page)).unwrap()).collect();
    assert_eq!(owner.cache.stats().hits, hits + 16);
    assert!(file.page_shortest(PageNo::new(16)).is_none());
    drop(held.remove(7));
    held.push(file.page_shortest(PageNo::new(16)).unwrap());
    for page in 0..40 {
        owner.write(page, 200);
        if page < 8 {
            file.discard(PageNo::new(page));
        } else {
            file.install(PageNo::new(page), &content(200), InstallAs::Read).unwrap();
        }
    }
    // The held pages are evicted, and all other frames are reused.
    let other = owner.cache.open_owned(Arc::clone(&owner.data), 40).unwrap();
    for page in (0..40).cycle().take(400) {
        assert_eq!(other.page(PageNo::new(page)).unwrap()[0], 200);
        assert_eq!(owner.read(page), 200);
    }
    let pages = (0_u8..16).filter(|page| *page != 7).chain([16]);
    for (held, page) in held.iter().zip(pages) {
        assert_eq!(held[..], content(page)[..], "page {page} was held since before it was written");
    }
    drop(held);
    for _ in 0..4 {
        owner.read(3);
    }
    assert_eq!(file.page_shortest(PageNo::new(3)).unwrap()[..], content(200)[..]);
    file.close();
    assert!(file.page_shortest(PageNo::new(3)).is_none());
}

#[test]
fn a_load_in_flight_is_discarded_and_its_waiters_load_again() {
    for install in [false, true] {
        let (options, has_read, answer) = stopping();
        let owner = FileOwner::new(1, 1, options);
        thread::scope(|scope| {
            let loader = scope.spawn(|| owner.read(0));
            has_read.recv().unwrap();
            let waiting = scope.spawn(|| owner.read(0));
            let awaiting = scope.spawn(|| {
                let mut first = [0];
                block_on(owner.file.read_at_async(0, &mut first)).unwrap();
                first[0]
            });
            support::await_coalesced(&owner.cache, 2);
            owner.write(0, 9);
            if install {
                owner.file.install(PageNo::new(0), &content(9), InstallAs::Read).unwrap();
            } else {
                owner.file.discard(PageNo::new(0));
            }
            assert_eq!(owner.read(0), 9, "while the first is under way");
            assert_eq!((waiting.join().unwrap(), awaiting.join().unwrap()), (9, 9));
            answer.send(Ok(())).unwrap();
            assert_eq!(loader.join().unwrap(), 0, "it began before");
        });
        assert_eq!(owner.read(0), 9);
        assert_eq!(owner.file.resident_pages(), 1);
    }
}

/// The failure of a load that met a write in the middle does not concern the page.
#[test]
fn a_load_that_is_rejected_after_a_discard_is_repeated() {
    type OwnerRead = fn(&FileOwner) -> u8;
    let ways: [OwnerRead; 4] = [
        |owner| owner.read(0),
        |owner| {
            let mut pages = vec![0; 3 * PAGE];
            owner.file.read_at(0, &mut pages).unwrap();
            assert_eq!((pages[PAGE], pages[2 * PAGE]), (1, 2));
            pages[0]
        },
        |owner| {
            let mut byte = [0];
            owner.file.read_at(0, &mut byte).unwrap();
            byte[0]
        },
        |owner| {
            let mut byte = [0];
            block_on(owner.file.read_at_async(0, &mut byte)).unwrap();
            byte[0]
        },
    ];
    for (number, read) in ways.into_iter().enumerate() {
        let (options, has_read, answer) = stopping();
        let owner = FileOwner::new(3, 3, options);
        thread::scope(|scope| {
            let loader = scope.spawn(|| read(&owner));
            has_read.recv().unwrap();
            owner.write(0, 9);
            owner.file.discard(PageNo::new(0));
            answer.send(Err("torn".to_owned())).unwrap();
            assert_eq!(loader.join().unwrap(), 9, "way {number}");
        });
        assert_eq!(owner.cache.stats().failures, 0);
    }
}

#[test]
fn a_load_that_is_rejected_is_reported_if_the_cache_was_not() {
    let (options, has_read, answer) = stopping();
    let owner = FileOwner::new(1, 1, options);
    answer.send(Err("rotten".to_owned())).unwrap();
    let error = owner.file.page(PageNo::new(0)).unwrap_err();
    has_read.recv().unwrap();
    assert!(matches!(&error, Error::Rejected { page, .. } if page.get() == 0), "{error}");
    assert_eq!(owner.read(0), 0, "the next caller tries again");
}

#[test]
fn the_file_grows() {
    let owner = FileOwner::new(2, 1 << 20, OpenOptions::new());
    assert_eq!(owner.file.max_pages(), 1 << 20);
    let past_the_end = |page: u64| {
        let error = owner.file.page(PageNo::new(page)).unwrap_err();
        assert_eq!(error.to_string(), format!("/data: ends before the end of page {page}"));
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::UnexpectedEof);
    };
    past_the_end(2);
    owner.data.set_len(2 * PAGE as u64 + 512).unwrap();
    past_the_end(2);
    assert_eq!(owner.file.prefetch(0..10 * PAGE as u64), 10);
    let mut pages = vec![0; 3 * PAGE];
    let past_end = owner.file.read_at(0, &mut pages);
    assert!(matches!(past_end, Err(Error::PastEnd { page, .. }) if page.get() == 2));
    for page in 2..50 {
        owner.write(page, 7);
        assert_eq!(owner.read(page), 7);
        past_the_end(page + 1);
    }
    // Past the maximum length.
    assert!(matches!(owner.file.page(PageNo::new(1 << 20)), Err(Error::NoSuchPage { pages: 0x10_0000, .. })));
    assert_eq!(owner.file.read_at((1 << 20) * PAGE as u64, &mut pages).unwrap(), 0);
    assert_eq!(owner.disk.stats().in_flight, 0);
}

#[test]
fn an_install_without_a_frame_discards() {
    let owner = FileOwner::new(65, 65, OpenOptions::new());
    let kept: Vec<_> = (0..64).map(|page| owner.file.page_ref(PageNo::new(page)).unwrap()).collect();
    for page in 0..65 {
        owner.write(page, 200);
        assert!(!owner.file.install(PageNo::new(page), &content(200), InstallAs::Read).unwrap());
        assert_eq!(owner.read(page), 200, "past the cache");
    }
    drop(kept);
    for page in 0..65 {
        assert!(owner.file.install(PageNo::new(page), &content(201), InstallAs::Read).unwrap());
        assert_eq!(owner.read(page), 201);
    }
}

#[test]
fn installed_pages_stay_as_hot_as_they_were() {
    let owner = FileOwner::new(100, 400, OpenOptions::new());
    for _ in 0..10 {
        assert!((0..8).all(|page| u64::from(owner.read(page)) == page));
    }
    for page in 100..400 {
        // One page is rewritten all the time, and so are pages that nobody reads.
        assert!(owner.file.install(PageNo::new(page % 8), &content(5), InstallAs::Prefetched).unwrap());
        assert!(owner.file.install(PageNo::new(page), &content(5), InstallAs::Prefetched).unwrap());
    }
    let resident = owner.file.resident();
    assert_eq!(resident[0], pages(0..8), "{resident:?}");
    assert!(owner.cache.stats().evictions > 200);
}

#[test]
fn the_owner_may_write_without_being_asked_for_the_file_s_times() {
    let owner = FileOwner::new(64, 64, OpenOptions::new());
    for page in 0..64 {
        owner.write(63 - page, 9);
        assert_eq!(owner.read(page), if page < 32 { u8::try_from(page).unwrap() } else { 9 });
    }
}

#[test]
fn a_closed_file_has_nothing_and_takes_nothing() {
    let owner = FileOwner::new(3, 3, OpenOptions::new());
    assert!((0..3).all(|page| u64::from(owner.read(page)) == page));
    owner.file.close();
    owner.file.discard(PageNo::new(1));
    assert!(!owner.file.install(PageNo::new(2), &content(9), InstallAs::Read).unwrap());
    assert!(matches!(owner.file.page(PageNo::new(0)), Err(Error::Closed { .. })));
    assert_eq!((owner.file.resident(), owner.file.resident_pages()), (vec![], 0));
}

#[test]
fn a_tebibyte_is_opened_within_64_mib() {
    let disk = SimDisk::new();
    disk.create_patterned("/data", 1 << 40, 3).unwrap();
    let cache = PageCache::options().memory(64 << 20).io(Arc::new(disk.clone())).build().unwrap();
    let capacity = cache.capacity_pages();
    let open = || {
        let data = disk.open_writable("/data".as_ref(), Access::Direct, Create::Never).unwrap();
        cache.open_owned(data, 1 << 28).unwrap()
    };
    let file = open();
    assert_eq!((cache.capacity_pages(), file.resident()), (capacity, vec![]), "nothing is taken up");
    for part in 0..40_000 {
        file.page(PageNo::new(part * 6_000)).unwrap();
    }
    let resident = file.resident();
    let pages: u64 = resident.iter().map(|range| range.end - range.start).sum();
    assert_eq!(pages, file.resident_pages());
    // Half of the memory may go to tables, which take up a kernel page for each page that is read
    // here.
    assert!(pages > 7_000 && pages <= cache.capacity_pages(), "{pages}");
    assert!(resident.is_sorted_by(|one, next| one.end < next.start));
    for range in resident {
        support::check(3, range.start.get() * PAGE as u64, &file.page(range.start).unwrap());
    }
    // A thousand opens in a row: their cost does not depend on the maximum length.
    for _ in 0..1000 {
        assert_eq!(open().max_pages(), 1 << 28);
    }
    assert!(matches!(
        cache.open_owned(
            disk.open_writable("/data".as_ref(), Access::Direct, Create::Never).unwrap(),
            1 << 32
        ),
        Err(Error::TooLarge { .. })
    ));
}
