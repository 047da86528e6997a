//! Measures the back-ends on a file of one's own: random direct reads of 4 KiB, by batches and in the background.
//!
//!     cargo run --release -p pagekeeper-io --example measure -- FILE [DEPTH] [SECONDS]
//!
//! Prints thousands of reads a second, and the CPU time of the whole process for each read; beside it what fio reaches
//! on the same file, if it is installed.

#![expect(unsafe_code, reason = "reads in the background name their memory by address")]

use std::io::IoSliceMut;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pagekeeper_io::{Access, BatchRead, Io, IoFile, OwnedRead, Target, Threads, Uring};

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give a file, larger than the device's own cache")?;
    let depth: u32 = args.next().map_or(Ok(32), |depth| depth.parse())?;
    let seconds: f64 = args.next().map_or(Ok(2.0), |seconds| seconds.parse())?;
    let time = Duration::from_secs_f64(seconds);
    let uring = Uring::with_depth(depth)?;
    let threads = Threads::with_threads(depth as usize);
    let backends: [&dyn Io; 2] = [&uring, &threads];
    for _ in 0..3 {
        fio(&path, depth, seconds);
        for io in backends {
            let file = io.open(Path::new(&path), Access::Direct)?;
            let pages = file.stat()?.size / PAGE as u64;
            let count = 16 * depth as usize;
            report(io, "batches of 16 x the depth", || batches(io, &*file, pages, count, time));
            report(io, "batches of the depth", || batches(io, &*file, pages, depth as usize, time));
            report(io, "in the background", || background(io, &file, pages, depth as usize, time));
        }
        let file = uring.open(Path::new(&path), Access::Direct)?;
        let pages = file.stat()?.size / PAGE as u64;
        report(&uring, "one by one", || alone(&*file, pages, time));
    }
    Ok(())
}

fn report(io: &dyn Io, what: &str, run: impl FnOnce() -> u64) {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let reads = run() as f64;
    let (elapsed, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let name = io.name();
    println!(
        "{name:9} {what:26} {:7.1} K reads/s {:6.2} us CPU each",
        reads / elapsed / 1e3,
        cpu / reads * 1e6
    );
}

fn batches(io: &dyn Io, file: &dyn IoFile, pages: u64, count: usize, time: Duration) -> u64 {
    let memory = aligned(count);
    let mut random = Random::new();
    let begun = Instant::now();
    let mut reads = 0;
    while begun.elapsed() < time {
        let mut batch: Vec<_> = memory
            .chunks_exact_mut(PAGE)
            .map(|page| BatchRead {
                file,
                offset: random.below(pages) * PAGE as u64,
                bufs: vec![IoSliceMut::new(page)],
            })
            .collect();
        io.read_batch(&mut batch, &mut |_, result| {
            assert_eq!(result, Ok(PAGE));
            reads += 1;
        });
    }
    reads
}

/// Keeps `depth` reads on their way: each that ends is followed by another.
fn background(io: &dyn Io, file: &Arc<dyn IoFile>, pages: u64, depth: usize, time: Duration) -> u64 {
    let (sender, ended) = mpsc::channel();
    let mut random = Random::new();
    let mut submit = |frame: &'static mut [u8]| {
        let sender = sender.clone();
        let start = NonNull::from(&mut *frame).cast();
        io.submit(vec![OwnedRead {
            file: Arc::clone(file),
            offset: random.below(pages) * PAGE as u64,
            // SAFETY: the frame is leaked memory, and goes into `done` itself: no one has it before.
            targets: vec![unsafe { Target::new(start, PAGE) }],
            done: Box::new(move |result| {
                assert_eq!(result, Ok(PAGE));
                let _ = sender.send(frame);
            }),
        }]);
    };
    aligned(depth).chunks_exact_mut(PAGE).for_each(&mut submit);
    let begun = Instant::now();
    let mut reads = 0;
    while begun.elapsed() < time {
        for frame in ended.recv().into_iter().chain(ended.try_iter()) {
            reads += 1;
            submit(frame);
        }
    }
    for _ in 0..depth {
        let _ = ended.recv();
    }
    reads
}

fn alone(file: &dyn IoFile, pages: u64, time: Duration) -> u64 {
    let memory = aligned(1);
    let mut random = Random::new();
    let begun = Instant::now();
    let mut reads = 0;
    while begun.elapsed() < time {
        assert_eq!(file.read_at(random.below(pages) * PAGE as u64, memory), Ok(PAGE));
        reads += 1;
    }
    reads
}

fn fio(path: &str, depth: u32, seconds: f64) {
    let output = Command::new("fio")
        .args(["--name=measure", "--ioengine=io_uring", "--rw=randread", "--bs=4k", "--direct=1", "--thread"])
        .args([
            "--readonly",
            "--norandommap",
            "--time_based",
            "--randrepeat=0",
            "--minimal",
            "--filename",
            path,
        ])
        .args([format!("--iodepth={depth}"), format!("--runtime={seconds}")])
        .output();
    let Ok(output) = output else {
        println!("fio is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<f64> =
        text.split(';').map(|field| field.trim_end_matches('%').parse().unwrap_or(0.0)).collect();
    // The terse format, version 3: reads a second, and the shares of CPU in percent.
    let (Some(iops), Some(user), Some(system)) = (fields.get(7), fields.get(87), fields.get(88)) else {
        println!("fio: {text}");
        return;
    };
    let cpu = (user + system) / 100.0 / iops * 1e6;
    println!("{:9} {:26} {:7.1} K reads/s {cpu:6.2} us CPU each", "fio", "depth", iops / 1e3);
}

/// Leaked memory of so many pages, aligned to pages.
fn aligned(count: usize) -> &'static mut [u8] {
    let memory = vec![1_u8; (count + 1) * PAGE].leak();
    let skip = memory.as_ptr().align_offset(PAGE);
    &mut memory[skip..skip + count * PAGE]
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self(now.map_or(1, |now| u64::from(now.subsec_nanos())) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
