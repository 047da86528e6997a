//! Streams of reads on every back-end: correct bytes, one end per read, and no use of memory after
//! the end.

#![expect(unsafe_code, reason = "reads of a stream name their memory by address")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use pagekeeper_io::{Access, Error, Io, IoFile, ReadStream, ReadTarget, StreamRead, Threads, Uring};
use pagekeeper_simdisk::{Fault, SimDisk, Times};
use pagekeeper_testing::disk_dir;
use support::{Memory, aligned, noise};

/// Not a multiple of any unit of a device or file system.
const FILE_LEN: usize = (1 << 20) + 1234;

/// A back-end and an open file on it.
type OpenedBackend = (Arc<dyn Io>, Arc<dyn IoFile>);

/// Returns the back-ends, each with a file of these bytes.
fn beds(content: &[u8]) -> (tempfile::TempDir, Vec<OpenedBackend>) {
    let directory = disk_dir();
    let path = directory.path().join("file");
    std::fs::write(&path, content).unwrap();
    let disk = SimDisk::new();
    disk.create(&path, content).unwrap();
    let beds: Vec<Arc<dyn Io>> = vec![
        Arc::new(Uring::new().unwrap()),
        Arc::new(Uring::with_depth(1).unwrap()),
        Arc::new(Uring::with_depth(5).unwrap()),
        Arc::new(Threads::new()),
        Arc::new(Threads::with_threads(1)),
        Arc::new(disk),
    ];
    let open = |io: Arc<dyn Io>| {
        let file = io.open(&path, Access::Direct).unwrap();
        (io, file)
    };
    (directory, beds.into_iter().map(open).collect())
}

/// A stream of reads of one file, each of one or two pages.
struct Pages<'a> {
    file: &'a dyn IoFile,
    /// The offset and the memory of each read.
    wanted: Vec<(u64, Vec<Memory>)>,
    next: usize,
    /// Maximum number of reads in flight.
    at_once: usize,
    under_way: usize,
    results: Vec<Option<Result<usize, Error>>>,
    /// Reads that ended since the last turn.
    since_turn: usize,
    /// Panics at the end of this many reads.
    panic_at: Option<usize>,
}

impl<'a> Pages<'a> {
    fn new(file: &'a dyn IoFile, count: usize, at_once: usize) -> Self {
        let wanted = (0..count).map(|n| {
            let offset = (n as u64 * 7919 % 258) * 4096;
            (offset, (0..=n % 2).map(|_| aligned(4096)).collect())
        });
        Self {
            file,
            wanted: wanted.collect(),
            next: 0,
            at_once,
            under_way: 0,
            results: vec![None; count],
            since_turn: 0,
            panic_at: None,
        }
    }

    fn check(&self, content: &[u8]) {
        assert_eq!((self.under_way, self.since_turn), (0, 0));
        for ((offset, memory), result) in self.wanted.iter().zip(&self.results) {
            let start = usize::try_from(*offset).unwrap().min(content.len());
            let expected = &content[start..content.len().min(start + 4096 * memory.len())];
            assert_eq!(*result, Some(Ok(expected.len())), "at {offset}");
            let got: Vec<u8> = memory.iter().flat_map(|page| page.iter().copied()).collect();
            assert!(got[..expected.len()] == *expected, "wrong bytes at {offset}");
        }
    }
}

impl<'a> ReadStream<'a> for Pages<'a> {
    fn next(&mut self) -> Option<StreamRead<'a>> {
        if self.under_way == self.at_once {
            return None;
        }
        let (offset, memory) = self.wanted.get_mut(self.next)?;
        self.under_way += 1;
        self.next += 1;
        // SAFETY: the memory does not move, and is not accessed before `ended`.
        let targets =
            memory.iter_mut().map(|page| unsafe { ReadTarget::new(NonNull::from(&mut **page).cast(), 4096) });
        Some(StreamRead {
            file: self.file,
            offset: *offset,
            targets: targets.collect(),
            token: self.next - 1,
        })
    }

    fn ended(&mut self, token: usize, result: Result<usize, Error>) {
        assert!(self.results[token].replace(result).is_none(), "ended twice");
        self.under_way -= 1;
        self.since_turn += 1;
        if self.panic_at == Some(self.results.iter().flatten().count()) {
            // Without the message that a panic prints.
            std::panic::resume_unwind(Box::new("planned"));
        }
    }

    fn turn(&mut self) {
        self.since_turn = 0;
    }
}

#[test]
fn each_of_many_reads_in_flight_gives_its_bytes() {
    let content = noise(FILE_LEN);
    let (_directory, beds) = beds(&content);
    for (io, file) in &beds {
        for (count, at_once) in [(0, 1), (1, 1), (2, 2), (7, 1), (50, 3), (300, 1000)] {
            let mut pages = Pages::new(&**file, count, at_once);
            io.read_stream(&mut pages);
            pages.check(&content);
        }
    }
}

#[test]
fn a_read_that_fails_ends_alone() {
    let content = noise(64 * 4096);
    let disk = SimDisk::new();
    let path = std::path::Path::new("/file");
    disk.create(path, &content[..]).unwrap();
    // In the range of the first read.
    disk.inject(path, 0..1, Fault::EIO, Times::Always).unwrap();
    let file = disk.open(path, Access::Direct).unwrap();
    let mut pages = Pages::new(&*file, 10, 4);
    disk.read_stream(&mut pages);
    assert_eq!(pages.results.iter().flatten().filter(|result| result.is_err()).count(), 1);
}

#[test]
fn a_file_of_another_back_end_is_refused() {
    let disk = SimDisk::new();
    disk.create("/file", vec![1; 8 * 4096]).unwrap();
    let file = disk.open("/file".as_ref(), Access::Buffered).unwrap();
    let mut pages = Pages::new(&*file, 5, 5);
    Uring::new().unwrap().read_stream(&mut pages);
    assert!(pages.results.iter().all(|result| matches!(result, Some(Err(Error::Foreign { .. })))));
    assert_eq!(pages.since_turn, 0);
}

#[test]
fn after_a_panic_nothing_is_written_any_more() {
    let content = noise(FILE_LEN);
    let (_directory, beds) = beds(&content);
    for (io, file) in &beds {
        for mark in 0..20 {
            let mut pages = Pages::new(&**file, 100, 100);
            pages.panic_at = Some(3);
            assert!(catch_unwind(AssertUnwindSafe(|| io.read_stream(&mut pages))).is_err());
            for page in pages.wanted.iter_mut().flat_map(|(_, memory)| memory) {
                page.fill(mark);
            }
            let mut others = Pages::new(&**file, 50, 50);
            io.read_stream(&mut others);
            others.check(&content);
            let mut memory = pages.wanted.iter().flat_map(|(_, memory)| memory);
            assert!(memory.all(|page| page.iter().all(|byte| *byte == mark)));
        }
    }
}
