//! The cache on a disk, and the model beside it: each file's seed and length, each handle's state
//! at its open, and the possible faults. The model alone decides whether the result of a read is
//! right.

use std::ops::Range;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use pagekeeper_cache::{CacheOptions, CachedFile, Error, PageCache, PageNo, PageRef, ReadRequest};
use pagekeeper_simdisk::{Fault, Times};

use crate::disk::Disk;
use crate::op::{FilePosition, FileSize, ModelOp, ReadLength};
use crate::support::{check, tasks};

/// Number of files; over time, several inodes have each name.
const FILE_COUNT: usize = 4;

/// Maximum length of a read.
const READ_MAX: u64 = 4 << 20;

/// A file that has, or had, a name.
#[derive(Debug)]
struct ModelInode {
    seed: u64,
    len: u64,
    /// Number of changes.
    version: u64,
    /// Error numbers that reads of these bytes may return.
    failing: Vec<(Range<u64>, i32)>,
    /// The length to which a fault may truncate it; the least if there are several.
    cut: Option<u64>,
}

/// An open file, and its state at the open.
struct OpenedFile {
    cached: CachedFile,
    inode: usize,
    file: usize,
    len: u64,
    version: u64,
    closed: bool,
}

/// A kept page.
struct KeptPage {
    page: PageRef,
    seed: u64,
    offset: u64,
    len: usize,
}

pub(crate) struct ModelWorld<D> {
    disk: D,
    cache: PageCache,
    page_size: u64,
    inodes: Vec<ModelInode>,
    /// The inode that has the name of each file.
    names: [Option<usize>; FILE_COUNT],
    opened: Vec<OpenedFile>,
    /// The result of the last open of each file.
    last: [Option<u64>; FILE_COUNT],
    kept: Vec<KeptPage>,
}

impl<D: Disk> ModelWorld<D> {
    pub(crate) fn new(disk: D, frames: u32, page_size: usize) -> Self {
        let options =
            PageCache::options().memory(CacheOptions::memory_for(frames, page_size)).page_size(page_size);
        let cache = disk.set_up(options).build().unwrap();
        let mut world = Self {
            disk,
            cache,
            page_size: page_size as u64,
            inodes: Vec::new(),
            names: [None; FILE_COUNT],
            opened: Vec::new(),
            last: [None; FILE_COUNT],
            kept: Vec::new(),
        };
        // A file that fits, one that does not, an empty one, and a name without a file.
        let pages = |pages: u64| pages * page_size as u64 + 77;
        for (file, len) in [(0, pages(30)), (1, pages(u64::from(frames) + 100)), (2, 0)] {
            world.replace(file, len);
        }
        world.open(0);
        world.open(1);
        world
    }

    pub(crate) fn apply(&mut self, op: &ModelOp) {
        match op {
            ModelOp::Open(file) => self.open(usize::from(*file) % FILE_COUNT),
            ModelOp::Read { handle, at, len } => self.with(*handle, |world, opened| {
                let range = world.range(opened, at, len);
                let mut buf = vec![0xee; len_of(&range)];
                let result = world.while_stepping(|| opened.cached.read_at(range.start, &mut buf));
                world.judge(opened, &range, &result, &buf);
            }),
            ModelOp::ReadMany { handle, reads } => {
                self.with(*handle, |world, opened| world.read_many(opened, reads));
            }
            ModelOp::ReadAsync { handle, at, len, dropped } => self.with(*handle, |world, opened| {
                world.read_async(opened, &world.range(opened, at, len), *dropped);
            }),
            ModelOp::Prefetch { handle, at, len } => {
                // Not awaited: later operations overlap with it.
                self.with(*handle, |world, opened| {
                    let begun = opened.cached.prefetch(world.range(opened, at, len));
                    assert!(!opened.closed || begun == 0, "a closed file is prefetched");
                });
                return;
            }
            ModelOp::Guards { handle, pages, meanwhile } => self.with(*handle, |world, opened| {
                world.guards(opened, pages, *meanwhile);
            }),
            ModelOp::PageBeyond { handle, by } => self.with(*handle, |world, opened| {
                let pages = opened.len.div_ceil(world.page_size);
                assert_eq!(opened.cached.pages(), pages);
                let beyond = PageNo::new(pages + by);
                for result in [opened.cached.page(beyond).map(drop), opened.cached.page_ref(beyond).map(drop)]
                {
                    assert!(
                        matches!(result, Err(Error::NoSuchPage { page, .. }) if page == beyond),
                        "{result:?}"
                    );
                }
            }),
            ModelOp::Keep { handle, page } => self.keep(*handle, *page),
            ModelOp::LetGo(which) => {
                if !self.kept.is_empty() {
                    let kept = self.kept.swap_remove(usize::from(*which) % self.kept.len());
                    check(kept.seed, kept.offset, &kept.page);
                }
            }
            ModelOp::Close(handle) => self.with(*handle, |world, opened| {
                opened.cached.close();
                opened.closed = true;
                // For all handles of the file.
                for other in &mut world.opened {
                    other.closed |= other.cached.id() == opened.cached.id();
                }
            }),
            ModelOp::DropHandle(handle) => {
                if !self.opened.is_empty() {
                    self.opened.swap_remove(usize::from(*handle) % self.opened.len());
                }
            }
            ModelOp::Replace { file, size } => {
                self.replace(usize::from(*file) % FILE_COUNT, self.len_of(size));
            }
            ModelOp::Grow { file, size } => {
                self.resize(usize::from(*file) % FILE_COUNT, u64::max, size);
            }
            ModelOp::Cut { file, size } => {
                self.resize(usize::from(*file) % FILE_COUNT, u64::min, size);
            }
            ModelOp::Remove(file) => {
                let file = usize::from(*file) % FILE_COUNT;
                if self.names[file].take().is_some() {
                    self.disk.remove(&self.disk.path(file));
                }
            }
            ModelOp::Fault { file, at, len, fault, times } => {
                self.fault(usize::from(*file) % FILE_COUNT, at, len, *fault, *times);
            }
            ModelOp::Heal(file) => self.heal(usize::from(*file) % FILE_COUNT),
        }
        while self.disk.step() {}
    }

    /// Lifts all faults, and reads all files as they are.
    pub(crate) fn finish(mut self) {
        while self.disk.step() {}
        self.check_kept();
        for file in 0..FILE_COUNT {
            self.heal(file);
        }
        self.opened.clear();
        for file in 0..FILE_COUNT {
            self.open(file);
            let Some(opened) = self.opened.pop() else { continue };
            let mut whole = vec![0; usize::try_from(opened.len).unwrap()];
            assert_eq!(opened.cached.read_at(0, &mut whole).unwrap() as u64, opened.len);
            check(self.inodes[opened.inode].seed, 0, &whole);
        }
        self.check_kept();
        let stats = self.cache.stats();
        // The memory of tables is settled at a miss, or when room is made.
        assert!(stats.resident_pages <= stats.capacity_pages + self.kept.len() as u64 + 8, "{stats}");
    }

    fn check_kept(&self) {
        for KeptPage { page, seed, offset, len } in &self.kept {
            assert_eq!(page.len(), *len);
            check(*seed, *offset, page);
        }
    }

    /// Does something with one of the open handles, if there is one.
    fn with(&mut self, handle: u8, act: impl FnOnce(&mut Self, &mut OpenedFile)) {
        if self.opened.is_empty() {
            return;
        }
        let at = usize::from(handle) % self.opened.len();
        let mut opened = self.opened.swap_remove(at);
        act(self, &mut opened);
        self.opened.push(opened);
    }

    fn place(&self, len: u64, place: &FilePosition) -> u64 {
        match place {
            FilePosition::Part(part) => u64::try_from((u128::from(len) * u128::from(*part)) >> 32).unwrap(),
            FilePosition::Edge(page, delta) => {
                (u64::from(*page) * self.page_size).saturating_add_signed((*delta).into())
            }
            FilePosition::End(delta) => len.saturating_add_signed((*delta).into()),
            FilePosition::Max => u64::MAX,
        }
    }

    fn length(&self, length: &ReadLength) -> u64 {
        match length {
            ReadLength::Bytes(bytes) => u64::from(*bytes),
            ReadLength::Pages(pages, more) => {
                (u64::from(*pages) * self.page_size + u64::from(*more)).min(READ_MAX)
            }
        }
    }

    fn len_of(&self, size: &FileSize) -> u64 {
        (u64::from(size.pages) * self.page_size).saturating_add_signed(size.bytes.into()).min(48 << 20)
    }

    /// Returns the range to read, which may lie past the end of the file, up to the largest offset.
    fn range(&self, opened: &OpenedFile, at: &FilePosition, len: &ReadLength) -> Range<u64> {
        let start = self.place(opened.len, at);
        start..start.saturating_add(self.length(len))
    }

    /// Runs an action that may wait for background reads, while another thread does those.
    fn while_stepping<T>(&self, act: impl FnOnce() -> T) -> T {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if self.disk.step() {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        if !self.disk.step() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let _done = DoneSignal(&done);
            act()
        })
    }

    fn open(&mut self, file: usize) {
        let path = self.disk.path(file);
        let result = self.cache.open(&path);
        let Some(inode) = self.names[file] else {
            let error = result.unwrap_err();
            assert!(matches!(&error, Error::Io(error) if error.errno() == Some(libc::ENOENT)), "{error}");
            return;
        };
        let cached = result.unwrap();
        self.learn_of_cut(inode, cached.len());
        let ModelInode { len, version, .. } = self.inodes[inode];
        assert_eq!((cached.len(), cached.path()), (len, path.as_path()));
        let same = |opened: &OpenedFile| opened.cached.id() == cached.id();
        for opened in self.opened.iter().filter(|opened| same(opened)) {
            assert!(!opened.closed, "a closed file was given again");
            assert_eq!((opened.inode, opened.version), (inode, version), "a file of before was given again");
        }
        let good = |opened: &&OpenedFile| {
            Some(opened.cached.id()) == self.last[file]
                && !opened.closed
                && (opened.inode, opened.version) == (inode, version)
                && self.inodes[inode].cut.is_none()
        };
        if let Some(open) = self.opened.iter().find(good) {
            assert!(same(open), "an open file was opened again");
        }
        self.last[file] = Some(cached.id());
        self.opened.push(OpenedFile { cached, inode, file, len, version, closed: false });
    }

    /// Records that an open file was truncated by a fault, if the read shows it.
    fn learn_of_cut(&mut self, inode: usize, seen: u64) {
        let inode = &mut self.inodes[inode];
        if seen != inode.len {
            assert!(inode.cut.is_some_and(|cut| cut <= seen), "{seen} bytes, not {}", inode.len);
            inode.len = seen;
            inode.version += 1;
        }
    }

    /// Checks an answer.
    fn judge(&self, opened: &OpenedFile, range: &Range<u64>, result: &Result<usize, Error>, buf: &[u8]) {
        let expected = range.start.min(opened.len)..range.end.min(opened.len);
        match result {
            Ok(count) => {
                let inode = &self.inodes[opened.inode];
                assert_eq!(*count as u64, expected.end - expected.start, "{range:?} of {}", opened.len);
                check(inode.seed, range.start, &buf[..*count]);
                assert!(!opened.closed || range.is_empty(), "a closed file was read");
                let beyond = range.start >= opened.len && !range.is_empty();
                assert!(
                    !beyond || inode.len <= opened.len || inode.cut.is_some(),
                    "appended bytes are not there"
                );
            }
            Err(error) => self.judge_error(opened, range, error),
        }
    }

    fn judge_error(&self, opened: &OpenedFile, range: &Range<u64>, error: &Error) {
        assert_eq!(error.path(), Some(self.disk.path(opened.file).as_path()), "{error}");
        assert!(!range.is_empty(), "reading nothing failed: {error}");
        let inode = &self.inodes[opened.inode];
        let changed = inode.version != opened.version;
        let cut = inode.cut.is_some_and(|cut| cut < opened.len);
        let right = match error {
            Error::Closed { .. } => opened.closed,
            Error::Cut { opened: was, now, .. } => {
                *was == opened.len && *now < opened.len && (cut || *now == inode.len && changed)
            }
            Error::Grew { opened: was, now, .. } => {
                *was == opened.len && *now > opened.len && *now == inode.len && changed
            }
            Error::Changed { .. } => changed || cut,
            Error::Io(error) => {
                // Whole pages are read, up to the end of the last page even if the file is shorter.
                let pages = range.start / self.page_size * self.page_size
                    ..range.end.min(opened.len).next_multiple_of(self.page_size);
                let meets = |failing: &Range<u64>| failing.start < pages.end && pages.start < failing.end;
                inode.failing.iter().any(|(failing, errno)| meets(failing) && error.errno() == Some(*errno))
            }
            _ => false,
        };
        assert!(right, "{range:?} of {} bytes, inode {inode:?} at {}: {error}", opened.len, opened.version);
    }

    fn read_many(&self, opened: &OpenedFile, reads: &[(FilePosition, ReadLength)]) {
        let ranges: Vec<_> = reads.iter().map(|(at, len)| self.range(opened, at, len)).collect();
        let mut bufs: Vec<_> = ranges.iter().map(|range| vec![0xee; len_of(range)]).collect();
        let mut requests: Vec<_> =
            ranges.iter().zip(&mut bufs).map(|(range, buf)| ReadRequest::new(range.start, buf)).collect();
        let result = self.while_stepping(|| opened.cached.read_many(&mut requests));
        let failed = requests.iter().any(|request| request.outcome().is_err());
        assert_eq!(result.is_err(), failed, "{result:?}");
        for (range, request) in ranges.iter().zip(&requests) {
            self.judge(opened, range, request.outcome(), request.bytes());
        }
    }

    fn read_async(&self, opened: &OpenedFile, range: &Range<u64>, dropped: bool) {
        let mut buf = vec![0xee; len_of(range)];
        let reading = opened.cached.read_at_async(range.start, &mut buf);
        if dropped {
            // The read that the future has begun continues without it.
            let _ = pin!(reading).poll(&mut Context::from_waker(&tasks::waker()));
            return;
        }
        let mut idle = 0;
        let result = tasks::block_on_with(reading, || {
            // Other threads take part only on a real disk.
            idle = if self.disk.step() { 0 } else { idle + 1 };
            assert!(idle < 10_000, "a future of {range:?} waits for nothing");
            if idle > 0 {
                std::thread::park_timeout(std::time::Duration::from_millis(1));
            }
        });
        self.judge(opened, range, &result, &buf);
    }

    /// Holds guards of several pages at once, and meanwhile reads all of another file.
    fn guards(&self, opened: &OpenedFile, pages: &[u16], meanwhile: u8) {
        let count = opened.len.div_ceil(self.page_size);
        if count == 0 {
            return;
        }
        let mut guards = Vec::new();
        for page in pages.iter().map(|page| u64::from(*page) % count) {
            let offset = page * self.page_size;
            let range = offset..(offset + self.page_size).min(opened.len);
            match self.while_stepping(|| opened.cached.page(PageNo::new(page))) {
                Ok(guard) => guards.push((range, guard)),
                Err(error) => self.judge_error(opened, &range, &error),
            }
        }
        if !self.opened.is_empty() {
            let other = &self.opened[usize::from(meanwhile) % self.opened.len()];
            let range = 0..other.len.min(READ_MAX);
            let mut buf = vec![0xee; len_of(&range)];
            let result = self.while_stepping(|| other.cached.read_at(0, &mut buf));
            self.judge(other, &range, &result, &buf);
        }
        // Released in another order than taken.
        let middle = guards.len() / 2;
        guards.rotate_left(middle);
        for (range, guard) in guards {
            assert_eq!(guard.len(), len_of(&range));
            check(self.inodes[opened.inode].seed, range.start, &guard);
        }
    }

    fn keep(&mut self, handle: u8, page: u16) {
        self.with(handle, |world, opened| {
            let pages = opened.len.div_ceil(world.page_size);
            if pages == 0 {
                return;
            }
            let page = u64::from(page) % pages;
            let offset = page * world.page_size;
            let range = offset..(offset + world.page_size).min(opened.len);
            match world.while_stepping(|| opened.cached.page_ref(PageNo::new(page))) {
                Ok(page) => {
                    let seed = world.inodes[opened.inode].seed;
                    world.kept.push(KeptPage { page, seed, offset, len: len_of(&range) });
                }
                Err(error) => world.judge_error(opened, &range, &error),
            }
        });
        self.check_kept();
    }

    fn path_of(&self, file: usize) -> Option<(PathBuf, usize)> {
        self.names[file].map(|inode| (self.disk.path(file), inode))
    }

    fn replace(&mut self, file: usize, len: u64) {
        let seed = self.inodes.len() as u64;
        self.disk.replace(&self.disk.path(file), seed, len);
        self.names[file] = Some(self.inodes.len());
        self.inodes.push(ModelInode { seed, len, version: 0, failing: Vec::new(), cut: None });
    }

    fn resize(&mut self, file: usize, to: impl FnOnce(u64, u64) -> u64, size: &FileSize) {
        let wanted = self.len_of(size);
        let Some((path, number)) = self.path_of(file) else { return };
        // A fault may have truncated it.
        while self.disk.step() {}
        if self.inodes[number].cut.is_some() {
            return;
        }
        let inode = &mut self.inodes[number];
        let lengths = (inode.len, to(inode.len, wanted));
        if lengths.0 != lengths.1 {
            self.disk.resize(&path, inode.seed, lengths);
            inode.len = lengths.1;
            inode.version += 1;
        }
    }

    fn fault(&mut self, file: usize, at: &FilePosition, len: &ReadLength, fault: Fault, times: Times) {
        let Some((path, number)) = self.path_of(file) else { return };
        let start = self.place(self.inodes[number].len, at);
        let range = start..start.saturating_add(self.length(len));
        if !self.disk.inject(&path, range.clone(), fault, times) {
            return;
        }
        let inode = &mut self.inodes[number];
        match fault {
            Fault::Error(libc::EINTR) if times == Times::Once => {}
            Fault::Error(errno) => inode.failing.push((range, errno)),
            // If reads are always short, the cache retries a bounded number of times.
            Fault::Short(_) if times == Times::Always => inode.failing.push((range, libc::EAGAIN)),
            Fault::Cut(len) => inode.cut = Some(inode.cut.map_or(len, |cut| cut.min(len))),
            _ => {}
        }
    }

    fn heal(&mut self, file: usize) {
        let Some((path, number)) = self.path_of(file) else { return };
        // Reads that began earlier may still meet the fault.
        while self.disk.step() {}
        self.disk.heal(&path);
        self.inodes[number].failing.clear();
    }
}

/// Signals the end of an action, even if it panics.
struct DoneSignal<'a>(&'a AtomicBool);

impl Drop for DoneSignal<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn len_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap()
}
