//! Tests of `io_uring` that is forbidden from the start or later, simulated by seccomp filters on
//! single threads.

#![expect(unsafe_code, reason = "seccomp filters and targets")]

use std::io::IoSliceMut;
use std::ptr::NonNull;
use std::sync::mpsc;

use super::*;
use crate::{AlignedBuf, BackendChoice, ReadTarget, StreamRead, WriteMode};
use pagekeeper_testing::disk_dir;

/// Makes a system call fail with `EPERM` for the calling thread and those that it starts, from now
/// on.
fn forbid(call: libc::c_long) {
    let load = u16::try_from(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS).unwrap();
    let equal = u16::try_from(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K).unwrap();
    let answer = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap();
    let eperm = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap();
    let filter = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    // The number of the call is the first field of `struct seccomp_data`.
    let mut program = [
        filter(load, 0, 0),
        filter(equal, u32::try_from(call).unwrap(), 1),
        filter(answer, eperm, 0),
        filter(answer, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: plain numbers, and a program that lives until the call returns.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn in_a_thread(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}

fn file_of(io: &Uring, len: usize) -> (tempfile::TempDir, Arc<dyn IoFile>) {
    let dir = disk_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; len]).unwrap();
    (dir, io.open(&path, Access::Buffered).unwrap())
}

fn read_twenty(io: &Uring, file: &dyn IoFile) -> Vec<Result<usize, Error>> {
    let mut pages = vec![[0; 4096]; 20];
    let mut reads: Vec<_> = (0..)
        .zip(&mut pages)
        .map(|(n, page)| BatchRead { file, offset: n * 4096, bufs: vec![IoSliceMut::new(page)] })
        .collect();
    let mut results = vec![None; reads.len()];
    io.read_batch(&mut reads, &mut |index, result| {
        assert!(results[index].replace(result).is_none(), "completed twice");
    });
    results.into_iter().map(|result| result.expect("completed")).collect()
}

struct Twenty<'a> {
    file: &'a dyn IoFile,
    pages: Vec<[u8; 4096]>,
    next: usize,
    results: Vec<Option<Result<usize, Error>>>,
}

impl<'a> ReadStream<'a> for Twenty<'a> {
    fn next(&mut self) -> Option<StreamRead<'a>> {
        let page = self.pages.get_mut(self.next)?;
        let (token, offset) = (self.next, self.next as u64 * 4096);
        self.next += 1;
        // SAFETY: the pages stay where they are, and are not looked at.
        let targets = vec![unsafe { ReadTarget::new(NonNull::from(page).cast(), 4096) }];
        Some(StreamRead { file: self.file, offset, targets, token })
    }

    fn ended(&mut self, token: usize, result: Result<usize, Error>) {
        assert!(self.results[token].replace(result).is_none(), "ended twice");
    }
}

fn stream_twenty(io: &Uring, file: &dyn IoFile) -> Vec<Result<usize, Error>> {
    let mut twenty = Twenty { file, pages: vec![[0; 4096]; 20], next: 0, results: vec![None; 20] };
    io.read_stream(&mut twenty);
    twenty.results.into_iter().map(|result| result.expect("ended")).collect()
}

fn submit_twenty(io: &Uring, file: &Arc<dyn IoFile>) -> Vec<Result<usize, Error>> {
    let (sender, ended) = mpsc::channel();
    let reads = (0..20).map(|n| {
        let memory = vec![0_u8; 4096].leak();
        let sender = sender.clone();
        OwnedRead {
            file: Arc::clone(file),
            offset: n * 4096,
            // SAFETY: leaked, and known to nobody else.
            targets: vec![unsafe { ReadTarget::new(NonNull::from(memory).cast(), 4096) }],
            done: Box::new(move |result| sender.send(result).unwrap()),
        }
    });
    io.submit(reads.collect());
    drop(sender);
    ended.iter().collect()
}

fn write_twenty(io: &Uring, file: &Arc<dyn IoFile>, byte: u8) -> Vec<(u64, Result<(), Error>)> {
    let (sender, ended) = mpsc::channel();
    let writes = (0..20).map(|n| {
        let (sender, mut buf) = (sender.clone(), AlignedBuf::new(4096));
        buf.fill(byte);
        let done = Box::new(move |_: AlignedBuf, result| sender.send((n, result)).unwrap());
        OwnedWrite { file: Arc::clone(file), offset: n * 4096, buf, mode: WriteMode::Plain, done }
    });
    io.submit_writes(writes.collect());
    drop(sender);
    ended.iter().collect()
}

#[test]
fn a_forbidden_io_uring_is_reported_and_threads_are_chosen() {
    in_a_thread(|| {
        forbid(libc::SYS_io_uring_setup);
        let error = Uring::new().unwrap_err();
        assert_eq!(
            error,
            Error::Unavailable { what: "io_uring", call: "io_uring_setup", errno: libc::EPERM }
        );
        let choice = BackendChoice::new();
        assert_eq!((choice.io.name(), choice.not_uring), ("threads", Some(error)));
    });
}

#[test]
fn valgrind_is_known_by_the_name_of_its_library() {
    let has_core = |list: &str| ring::has_valgrind_core(list.as_bytes());
    let directory = "/usr/libexec/valgrind";
    let libraries =
        format!("{directory}/vgpreload_core-amd64-linux.so:{directory}/vgpreload_memcheck-amd64-linux.so");
    assert!(has_core(&libraries) && has_core(&format!("libjemalloc.so.2 {libraries}")));
    for others in ["", "/usr/lib/libjemalloc.so.2", "/opt/vgpreload_x/lib.so", "/opt/no-vgpreload_core.so"] {
        assert!(!has_core(others), "{others}");
    }
}

#[test]
fn an_io_uring_that_cannot_read_is_reported() {
    in_a_thread(|| {
        forbid(libc::SYS_io_uring_enter);
        let error = Uring::new().unwrap_err();
        assert_eq!(
            error,
            Error::Unavailable { what: "io_uring", call: "IORING_OP_READ", errno: libc::EPERM }
        );
    });
}

#[test]
fn when_no_more_rings_can_be_had_threads_read() {
    let uring = Uring::new().unwrap();
    let (_dir, file) = file_of(&uring, 20 * 4096);
    in_a_thread(|| {
        forbid(libc::SYS_io_uring_setup);
        uring.idle.lock().unwrap().clear();
        assert_eq!(read_twenty(&uring, &*file), vec![Ok(4096); 20]);
        assert_eq!(stream_twenty(&uring, &*file), vec![Ok(4096); 20]);
        assert_eq!(submit_twenty(&uring, &file), vec![Ok(4096); 20]);
        let writable = uring.open_writable(file.path(), Access::Buffered, Create::Never).unwrap();
        assert!(write_twenty(&uring, &writable, 8).iter().all(|(_, result)| *result == Ok(())));
        assert!(std::fs::read(file.path()).unwrap() == vec![8; 20 * 4096]);
    });
}

#[test]
fn a_ring_that_breaks_loses_no_read() {
    type Read = fn(&Uring, &dyn IoFile) -> Vec<Result<usize, Error>>;
    let ways: [Read; 2] = [read_twenty, stream_twenty];
    for (depth, read) in [1, 4, 128].into_iter().flat_map(|depth| ways.map(|read| (depth, read))) {
        let uring = Uring::with_depth(depth).unwrap();
        let (_dir, file) = file_of(&uring, 20 * 4096);
        in_a_thread(|| {
            forbid(libc::SYS_io_uring_enter);
            let results = read(&uring, &*file);
            let failed = |result: &Result<usize, Error>| {
                result.as_ref().is_err_and(|error| error.errno() == Some(libc::EPERM))
            };
            // Only the reads in the ring fail; the others were read without it.
            let lost = results.iter().filter(|result| failed(result)).count();
            assert!((1..=20.min(depth as usize)).contains(&lost), "{lost} of depth {depth}");
            assert!(results.iter().all(|result| failed(result) || *result == Ok(4096)));
            assert!(uring.idle.lock().unwrap().is_empty(), "a broken ring is not kept");
            // The same in the background, whose thread inherits the filter.
            let results = submit_twenty(&uring, &file);
            assert_eq!(results.len(), 20);
            assert!(results.iter().all(|result| failed(result) || *result == Ok(4096)));
            assert_eq!(submit_twenty(&uring, &file), vec![Ok(4096); 20]);
        });
    }
}

#[test]
fn a_write_is_done_or_reported_when_its_ring_breaks() {
    let uring = Uring::with_depth(4).unwrap();
    let (_dir, file) = file_of(&uring, 20 * 4096);
    let file = uring.open_writable(file.path(), Access::Buffered, Create::Never).unwrap();
    in_a_thread(|| {
        forbid(libc::SYS_io_uring_enter);
        for byte in 1..=2 {
            let ended = write_twenty(&uring, &file, byte);
            assert_eq!(ended.len(), 20);
            let content = std::fs::read(file.path()).unwrap();
            for (n, result) in ended {
                let page = &content[usize::try_from(n).unwrap() * 4096..][..4096];
                match result {
                    Ok(()) => assert!(page.iter().all(|found| *found == byte), "write {n}"),
                    Err(Error::Write { errno: libc::EPERM, .. }) if byte == 1 => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
}

#[test]
fn a_ring_is_used_again() {
    let uring = Uring::with_depth(4).unwrap();
    let (_dir, file) = file_of(&uring, 20 * 4096);
    for _ in 0..3 {
        assert_eq!(read_twenty(&uring, &*file), vec![Ok(4096); 20]);
        assert_eq!(uring.idle.lock().unwrap().len(), 1);
    }
    in_a_thread(|| assert_eq!(read_twenty(&uring, &*file), vec![Ok(4096); 20]));
    assert_eq!(uring.idle.lock().unwrap().len(), 1);
}
