//! Every back-end against the same cases, on all available file systems.

#![expect(unsafe_code, reason = "reads in the background name their memory by address")]

mod support;

use std::io::IoSliceMut;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use pagekeeper_io::{
    Access, Alignment, BatchRead, DirectSupport, Error, Io, IoFile, OwnedRead, ReadTarget, Threads, Uring,
};
use pagekeeper_simdisk::{RandomFaults, SimDisk};
use pagekeeper_testing::{Mounted, disk_dir};
use proptest::prelude::*;
use support::{Memory, aligned, noise};

/// Not a multiple of any unit of a device or file system.
const FILE_LEN: usize = (1 << 20) + 1234;

/// Returns the back-ends for real files, with large and small queues.
fn real() -> Vec<Arc<dyn Io>> {
    vec![
        Arc::new(Uring::new().unwrap()),
        Arc::new(Uring::with_depth(1).unwrap()),
        Arc::new(Uring::with_depth(5).unwrap()),
        Arc::new(Threads::new()),
        Arc::new(Threads::with_threads(1)),
    ]
}

/// A read to test: its offset, and the lengths of its buffers.
type ReadSpec = (u64, Vec<usize>);

/// Returns the reads of a file of [`FILE_LEN`] bytes, aligned to `align`.
fn wanted(align: usize) -> Vec<ReadSpec> {
    let end = FILE_LEN / 4096 * 4096;
    let mut wanted: Vec<ReadSpec> = (0..200).map(|n| ((n * 7919 % 256) * 4096, vec![4096])).collect();
    wanted.extend([
        // Scattered.
        (4096, vec![align, 4096, 2 * align, 8192]),
        (0, vec![align; 1500]),
        // Across the end, at the end, and behind it.
        (end as u64 - 4096, vec![4096, 4096, 4096]),
        (end as u64, vec![16384]),
        (end as u64 + 4096, vec![4096]),
        (1 << 40, vec![4096, 4096]),
        // No bytes.
        (0, vec![]),
        (8192, vec![0]),
        // The whole file.
        (0, vec![2 << 20]),
    ]);
    wanted
}

/// Returns the expected bytes of a read.
fn expected(content: &[u8], offset: u64, len: usize) -> &[u8] {
    let start = usize::try_from(offset).unwrap().min(content.len());
    &content[start..content.len().min(start + len)]
}

fn check(content: &[u8], (offset, lengths): &ReadSpec, result: &Result<usize, Error>, buffers: &[Memory]) {
    let expected = expected(content, *offset, lengths.iter().sum());
    assert_eq!(*result, Ok(expected.len()), "{offset} {lengths:?}");
    let got: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
    assert!(got[..expected.len()] == *expected, "wrong bytes: {offset} {lengths:?}");
}

fn check_batch(io: &dyn Io, file: &dyn IoFile, content: &[u8], wanted: &[ReadSpec]) {
    let mut memory: Vec<Vec<Memory>> =
        wanted.iter().map(|(_, lengths)| lengths.iter().map(|len| aligned(*len)).collect()).collect();
    let mut results: Vec<Option<Result<usize, Error>>> = vec![None; wanted.len()];
    let mut reads: Vec<_> = memory
        .iter_mut()
        .zip(wanted)
        .map(|(buffers, (offset, _))| BatchRead {
            file,
            offset: *offset,
            bufs: buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect(),
        })
        .collect();
    let caller = std::thread::current().id();
    io.read_batch(&mut reads, &mut |index, result| {
        assert_eq!(std::thread::current().id(), caller);
        assert!(results[index].replace(result).is_none(), "completed twice");
    });
    for ((wanted, result), buffers) in wanted.iter().zip(results).zip(&memory) {
        check(content, wanted, &result.expect("completed"), buffers);
    }
}

/// The result of a background read: its index, its result, its memory.
type EndedRead = (usize, Result<usize, Error>, Vec<Memory>);

/// Creates a background read, which sends its result and memory to `ended`.
fn owned(
    file: &Arc<dyn IoFile>,
    index: usize,
    (offset, lengths): &ReadSpec,
    ended: &mpsc::Sender<EndedRead>,
) -> OwnedRead {
    let mut buffers: Vec<Memory> = lengths.iter().map(|len| aligned(*len)).collect();
    // SAFETY: the memory does not move, and `done` keeps it until it is called.
    let targets =
        buffers.iter_mut().map(|b| unsafe { ReadTarget::new(NonNull::from(&mut **b).cast(), b.len()) });
    let targets = targets.collect();
    let ended = ended.clone();
    OwnedRead {
        file: Arc::clone(file),
        offset: *offset,
        targets,
        done: Box::new(move |result| ended.send((index, result, buffers)).unwrap()),
    }
}

/// Replaces the read's `done`, but keeps the memory of the first one until the new one has
/// returned.
fn instead(read: &mut OwnedRead, done: impl FnOnce(Result<usize, Error>) + Send + 'static) {
    let kept = std::mem::replace(&mut read.done, Box::new(|_| ()));
    read.done = Box::new(move |result| {
        let _kept = kept;
        done(result);
    });
}

fn check_background(io: &dyn Io, file: &Arc<dyn IoFile>, content: &[u8], wanted: &[ReadSpec]) {
    let (sender, ended) = mpsc::channel();
    let reads = wanted.iter().enumerate().map(|(index, wanted)| owned(file, index, wanted, &sender));
    io.submit(reads.collect());
    drop(sender);
    let mut seen = vec![false; wanted.len()];
    for (index, result, buffers) in ended {
        check(content, &wanted[index], &result, &buffers);
        assert!(!std::mem::replace(&mut seen[index], true), "done twice");
    }
    assert!(seen.iter().all(|seen| *seen), "not all were done");
}

fn check_alone(file: &dyn IoFile, content: &[u8], wanted: &[ReadSpec]) {
    for (offset, lengths) in wanted {
        let len = lengths.iter().sum();
        let mut buffer = aligned(len);
        let result = file.read_at(*offset, &mut buffer);
        check(content, &(*offset, vec![len]), &result, &[buffer]);
    }
}

/// Tests all ways of reading.
fn check_all(io: &dyn Io, path: &Path, access: Access, content: &[u8], wanted: &[ReadSpec]) {
    let file = io.open(path, access).unwrap();
    assert_eq!((file.access(), file.path()), (access, path));
    assert_eq!(file.stat().unwrap().size, content.len() as u64);
    check_alone(&*file, content, wanted);
    check_batch(io, &*file, content, wanted);
    check_background(io, &file, content, wanted);
}

fn write(directory: &Path, content: &[u8]) -> PathBuf {
    let path = directory.join("file");
    std::fs::write(&path, content).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    path
}

fn check_file_system(directory: &Path) {
    let content = noise(FILE_LEN);
    let path = write(directory, &content);
    for io in real() {
        check_all(&*io, &path, Access::Direct, &content, &wanted(4096));
        check_all(&*io, &path, Access::Buffered, &content, &wanted(1));
        for reads in [vec![], vec![(0, vec![4096])], vec![(4096, vec![4096]), (0, vec![512])]] {
            check_all(&*io, &path, Access::Direct, &content, &reads);
        }
    }
}

#[test]
fn on_the_disk_of_the_build() {
    check_file_system(disk_dir().path());
}

#[test]
fn on_xfs() {
    if let Some(mounted) = Mounted::new("xfs") {
        let support = DirectSupport::probe(mounted.path()).unwrap();
        assert!(
            matches!(support, DirectSupport::Direct(alignment) if alignment.offset <= 4096),
            "{support:?}"
        );
        check_file_system(mounted.path());
    }
}

#[test]
fn on_btrfs() {
    if let Some(mounted) = Mounted::new("btrfs") {
        // btrfs accepts any alignment, and reads through the page cache unless the read is aligned
        // to 4096.
        let support = DirectSupport::probe(mounted.path()).unwrap();
        assert_eq!(support, DirectSupport::Direct(Alignment { memory: 4096, offset: 4096 }));
        check_file_system(mounted.path());
    }
}

#[test]
fn on_tmpfs() {
    if let Some(mounted) = Mounted::new("tmpfs") {
        let support = DirectSupport::probe(mounted.path()).unwrap();
        assert!(matches!(support, DirectSupport::Cached | DirectSupport::Refused { .. }), "{support:?}");
        let content = noise(FILE_LEN);
        let path = write(mounted.path(), &content);
        for io in real() {
            check_all(&*io, &path, Access::Buffered, &content, &wanted(1));
            // Refused before Linux 6.6.
            match io.open(&path, Access::Direct) {
                Ok(_) => check_all(&*io, &path, Access::Direct, &content, &wanted(4096)),
                Err(error) => assert!(matches!(error, Error::NoDirect { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn on_a_simulated_disk() {
    let content = noise(FILE_LEN);
    let path = Path::new("/file");
    let half = RandomFaults { short_per_mille: 300, interrupted_per_mille: 200, failing_per_mille: 0 };
    for faults in [RandomFaults::default(), half] {
        for width in [1, 5, 128] {
            let disk = SimDisk::builder().width(width).random_faults(faults).seed(width as u64).build();
            disk.create(path, content.as_slice()).unwrap();
            check_all(&disk, path, Access::Direct, &content, &wanted(512));
            check_all(&disk, path, Access::Buffered, &content, &wanted(1));
            assert_eq!(disk.stats().faults > 0, faults == half);
            assert_eq!(disk.stats().in_flight, 0);
        }
    }
}

#[test]
fn a_direct_read_leaves_nothing_resident_and_names_misalignment() {
    let directory = disk_dir();
    let path = write(directory.path(), &noise(FILE_LEN));
    let drop_pages = std::fs::File::open(&path).unwrap();
    rustix::fs::fadvise(&drop_pages, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for io in real() {
        let file = io.open(&path, Access::Direct).unwrap();
        file.read_at(0, &mut aligned(FILE_LEN.next_multiple_of(4096))).unwrap();
        for (offset, skip, len) in [(100, 0, 4096), (0, 1, 4096), (0, 0, 100)] {
            let mut memory = aligned(8192);
            let memory = &mut memory[skip..skip + len];
            let unaligned =
                Error::Unaligned { path: path.clone(), range: offset..offset + memory.len() as u64 };
            assert_eq!(file.read_at(offset, memory), Err(unaligned.clone()));
            let mut batch = [0, 1].map(|_| BatchRead { file: &*file, offset, bufs: vec![] });
            batch[0].bufs.push(IoSliceMut::new(memory));
            io.read_batch(&mut batch, &mut |index, result| {
                assert_eq!(result, if index == 0 { Err(unaligned.clone()) } else { Ok(0) });
            });
        }
    }
    let mut byte = [0];
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    let resident = rustix::io::preadv2(&drop_pages, &mut [IoSliceMut::new(&mut byte)], 0, flags);
    assert_eq!(resident, Err(rustix::io::Errno::AGAIN), "a direct read made pages resident");
}

#[test]
fn all_back_ends_report_errors_alike() {
    let directory = disk_dir();
    let path = write(directory.path(), b"content");
    let simulated = SimDisk::new();
    simulated.create("/file", b"content").unwrap();
    let stranger = simulated.open("/file".as_ref(), Access::Buffered).unwrap();
    for io in real() {
        let missing = directory.path().join("missing");
        let error = io.open(&missing, Access::Buffered).err().unwrap();
        assert_eq!((error.errno(), error.path()), (Some(libc::ENOENT), Some(&*missing)));
        let error = io.open(directory.path(), Access::Direct).err().unwrap();
        assert!(matches!(error, Error::NotARegularFile { .. }), "{error}");
        let foreign = Error::Foreign { path: "/file".into() };
        let mut buffers = [[0; 8]; 2];
        let mut reads: Vec<_> = buffers
            .iter_mut()
            .map(|b| BatchRead { file: &*stranger, offset: 0, bufs: vec![IoSliceMut::new(b)] })
            .collect();
        let mut reported = 0;
        io.read_batch(&mut reads, &mut |_, result| {
            assert_eq!(result, Err(foreign.clone()));
            reported += 1;
        });
        assert_eq!(reported, 2);
        let (sender, ended) = mpsc::channel();
        io.submit(vec![owned(&stranger, 0, &(0, vec![8]), &sender)]);
        assert_eq!(ended.recv().unwrap().1, Err(foreign));
        let file = io.open(&path, Access::Buffered).unwrap();
        let error = file.read_at(u64::MAX - 10, &mut [0; 8]).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EINVAL));
        // The other direction as well.
        simulated.submit(vec![owned(&file, 0, &(0, vec![8]), &sender)]);
        assert!(matches!(ended.recv().unwrap().1, Err(Error::Foreign { .. })));
    }
}

#[test]
fn stat_is_the_files_own() {
    let directory = disk_dir();
    let path = write(directory.path(), b"content");
    let metadata = std::fs::metadata(&path).unwrap();
    let stat = Threads::new().open(&path, Access::Buffered).unwrap().stat().unwrap();
    assert_eq!((stat.size, stat.device, stat.inode), (7, metadata.dev(), metadata.ino()));
    assert_eq!(stat.modified, (metadata.mtime(), u32::try_from(metadata.mtime_nsec()).unwrap()));
    assert_eq!(stat.changed, (metadata.ctime(), u32::try_from(metadata.ctime_nsec()).unwrap()));
}

#[test]
fn an_adopted_file_is_read_by_its_descriptor() {
    let directory = disk_dir();
    let content = noise(FILE_LEN);
    let path = write(directory.path(), &content);
    let opened = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for io in real() {
        for access in [Access::Direct, Access::Buffered] {
            let file = io.adopt(opened.try_clone().unwrap(), access).unwrap();
            check_alone(&*file, &content, &wanted(4096));
            check_batch(&*io, &*file, &content, &wanted(4096));
        }
    }
}

/// Returns all back-ends, each with a file of these bytes.
fn beds(directory: &Path, content: &[u8]) -> Vec<(Arc<dyn Io>, PathBuf)> {
    let path = write(directory, content);
    let disk = SimDisk::new();
    disk.create(&path, content).unwrap();
    let mut beds: Vec<_> = real().into_iter().map(|io| (io, path.clone())).collect();
    beds.push((Arc::new(disk), path));
    beds
}

#[test]
fn a_batch_within_a_batch() {
    let directory = disk_dir();
    let content = noise(FILE_LEN);
    for (io, path) in beds(directory.path(), &content) {
        let file = io.open(&path, Access::Direct).unwrap();
        let mut pages: Vec<_> = (0..10).map(|_| aligned(4096)).collect();
        let mut reads: Vec<_> = pages
            .iter_mut()
            .map(|page| BatchRead { file: &*file, offset: 0, bufs: vec![IoSliceMut::new(page)] })
            .collect();
        let mut reported = 0;
        io.read_batch(&mut reads, &mut |_, result| {
            assert_eq!(result, Ok(4096));
            check_batch(&*io, &*file, &content, &wanted(4096)[..20]);
            reported += 1;
        });
        assert_eq!(reported, 10);
    }
}

#[test]
fn a_panic_of_completed_waits_for_the_reads_in_flight() {
    let directory = disk_dir();
    let content = noise(FILE_LEN);
    for (io, path) in beds(directory.path(), &content) {
        let file = io.open(&path, Access::Direct).unwrap();
        for turn in 0..20 {
            let mut pages: Vec<_> = (0..100).map(|_| aligned(4096)).collect();
            let mut reads: Vec<_> = (0..)
                .zip(&mut pages)
                .map(|(n, page)| BatchRead {
                    file: &*file,
                    offset: n * 4096,
                    bufs: vec![IoSliceMut::new(page)],
                })
                .collect();
            let mut reported = 0;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                io.read_batch(&mut reads, &mut |_, _| {
                    reported += 1;
                    // Without the message that a panic prints.
                    if reported == 3 {
                        std::panic::resume_unwind(Box::new("planned"));
                    }
                });
            }));
            assert!(panicked.is_err());
            assert_eq!(reported, 3);
            drop(reads);
            // Nothing writes to the memory any more, so new content stays.
            for page in &mut pages {
                page.fill(turn);
            }
            check_batch(&*io, &*file, &content, &wanted(4096)[..50]);
            assert!(pages.iter().all(|page| page.iter().all(|byte| *byte == turn)));
        }
    }
}

#[test]
fn a_panic_of_done_stops_no_other_read() {
    let directory = disk_dir();
    let content = noise(FILE_LEN);
    for (io, path) in beds(directory.path(), &content) {
        let file = io.open(&path, Access::Direct).unwrap();
        let (sender, _ended) = mpsc::channel();
        let reads = (0..10).map(|index| {
            let mut read = owned(&file, index, &(0, vec![4096]), &sender);
            instead(&mut read, |_| std::panic::resume_unwind(Box::new("planned")));
            read
        });
        io.submit(reads.collect());
        check_background(&*io, &file, &content, &wanted(4096));
    }
}

#[test]
fn reads_in_flight_are_done_when_the_last_handle_has_gone() {
    let directory = disk_dir();
    let content = noise(FILE_LEN);
    for (io, path) in beds(directory.path(), &content) {
        let file = io.open(&path, Access::Direct).unwrap();
        let (sender, ended) = mpsc::channel();
        let wanted = wanted(4096);
        let reads = wanted.iter().enumerate().map(|(index, wanted)| owned(&file, index, wanted, &sender));
        io.submit(reads.collect());
        drop((io, file, sender));
        let ended: Vec<_> = ended.iter().collect();
        assert_eq!(ended.len(), wanted.len());
        for (index, result, buffers) in ended {
            check(&content, &wanted[index], &result, &buffers);
        }
    }
}

#[test]
fn the_last_handle_may_go_within_a_done() {
    let directory = disk_dir();
    for (io, path) in beds(directory.path(), &noise(FILE_LEN)) {
        let file = io.open(&path, Access::Direct).unwrap();
        let (sender, ended) = mpsc::channel();
        let mut read = owned(&file, 0, &(0, vec![4096]), &sender);
        let (gate, opened) = mpsc::channel::<()>();
        let held = Arc::clone(&io);
        instead(&mut read, move |result| {
            opened.recv().unwrap();
            drop(held);
            sender.send((0, result, vec![])).unwrap();
        });
        io.submit(vec![read]);
        drop(io);
        gate.send(()).unwrap();
        assert_eq!(ended.recv().unwrap().1, Ok(4096));
    }
}

#[test]
fn a_done_may_submit() {
    fn follow(io: &Arc<dyn Io>, file: &Arc<dyn IoFile>, left: usize, ended: mpsc::Sender<()>) -> OwnedRead {
        let (sender, _) = mpsc::channel();
        let mut read = owned(file, 0, &(left as u64 * 4096, vec![4096]), &sender);
        let (io, file) = (Arc::clone(io), Arc::clone(file));
        instead(&mut read, move |result| {
            assert_eq!(result, Ok(4096));
            if left > 0 {
                io.submit(vec![follow(&io, &file, left - 1, ended)]);
            } else {
                ended.send(()).unwrap();
            }
        });
        read
    }
    let directory = disk_dir();
    for (io, path) in beds(directory.path(), &noise(FILE_LEN)) {
        let file = io.open(&path, Access::Direct).unwrap();
        let (sender, ended) = mpsc::channel();
        io.submit((0..8).map(|_| follow(&io, &file, 100, sender.clone())).collect());
        drop(sender);
        assert_eq!(ended.iter().count(), 8);
    }
}

#[test]
fn many_threads_read_at_once() {
    let directory = disk_dir();
    let content = noise(FILE_LEN);
    for (io, path) in beds(directory.path(), &content) {
        let file = io.open(&path, Access::Direct).unwrap();
        let turns = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (io, file, content, turns) = (&*io, &file, &content, &turns);
                scope.spawn(move || {
                    let wanted = &wanted(4096)[thread * 20..];
                    while turns.fetch_add(1, Ordering::Relaxed) < 40 {
                        check_batch(io, &**file, content, wanted);
                        check_background(io, file, content, wanted);
                    }
                });
            }
        });
    }
}

#[test]
fn a_file_that_grows_or_shrinks_gives_its_current_bytes() {
    let directory = disk_dir();
    let path = write(directory.path(), &noise(10_000));
    let writer = std::fs::File::options().write(true).open(&path).unwrap();
    for io in real() {
        for access in [Access::Direct, Access::Buffered] {
            writer.set_len(10_000).unwrap();
            let file = io.open(&path, access).unwrap();
            let mut memory = aligned(16_384);
            assert_eq!(file.read_at(0, &mut memory), Ok(10_000));
            writer.set_len(5000).unwrap();
            assert_eq!(file.read_at(0, &mut memory), Ok(5000));
            assert_eq!(file.read_at(8192, &mut memory), Ok(0));
            writer.write_all_at(&noise(12_000), 0).unwrap();
            writer.sync_all().unwrap();
            assert_eq!(file.read_at(0, &mut memory), Ok(12_000));
            assert_eq!(memory[..12_000], noise(12_000));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn random_reads_match_the_file(
        len in 1_usize..200_000,
        reads in prop::collection::vec((0_u64..60, prop::collection::vec(0_usize..5, 0..6)), 1..150),
        odd in 0_u64..5000,
    ) {
        let directory = disk_dir();
        let content = noise(len);
        let aligned: Vec<ReadSpec> =
            reads.iter().map(|(at, lens)| (at * 4096, lens.iter().map(|l| l * 4096).collect())).collect();
        let unaligned: Vec<ReadSpec> =
            reads.iter().map(|(at, lens)| (at * odd, lens.iter().map(|l| l * 997).collect())).collect();
        for (io, path) in beds(directory.path(), &content) {
            check_all(&*io, &path, Access::Direct, &content, &aligned);
            check_all(&*io, &path, Access::Buffered, &content, &unaligned);
        }
    }
}
