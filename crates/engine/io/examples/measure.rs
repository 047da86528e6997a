//! Measures the back-ends on a file: random direct reads of 4 KiB, compared with fio on the same
//! file.
//!
//!     cargo run --release -p pagekeeper-io --example measure -- FILE [DEPTH] [ROUNDS] [SUBJECT]
//!
//! All subjects run in turn, for one second each, in an order that is shuffled in each round. It
//! prints medians and quartiles of reads per second, and the CPU time (user and system) of the
//! whole process per read. SUBJECT, a part of a name, selects the subjects besides fio.

#![expect(unsafe_code, reason = "reads in the background name their memory by address")]

use std::io::IoSliceMut;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pagekeeper_io::{Access, BatchRead, Io, IoFile, OwnedRead, ReadTarget, Threads, Uring};
use pagekeeper_testing::Seed;

const PAGE_BYTES: usize = 4096;
/// Time of one subject in a round.
const ROUND_TIME: Duration = Duration::from_secs(1);

/// The result of a round: reads, seconds, seconds of CPU.
type RoundFigures = (f64, f64, f64);
/// A name, and a function that measures for one round.
type MeasuredSubject<'s> = (String, Box<dyn Fn() -> Option<RoundFigures> + 's>);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give a file that is larger than any cache of the device")?;
    let depth: u32 = args.next().map_or(Ok(32), |depth| depth.parse())?;
    let rounds: usize = args.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let only = args.next().unwrap_or_default();
    let uring = Uring::with_depth(depth)?;
    let threads = Threads::with_threads(depth as usize);
    let file = uring.open(Path::new(&path), Access::Direct)?;
    let pages = file.stat()?.size / PAGE_BYTES as u64;
    let count = depth as usize;
    let backends: [&dyn Io; 2] = [&uring, &threads];
    let mut subjects: Vec<MeasuredSubject<'_>> =
        vec![(format!("fio io_uring, depth {depth}"), Box::new(|| fio(&path, depth)))];
    for io in backends {
        let (name, file) = (io.name(), &file);
        let add: [MeasuredSubject<'_>; 3] = [
            (
                format!("{name}, batches of {count}"),
                Box::new(move || Some(measured(|| batches(io, &**file, pages, count)))),
            ),
            (
                format!("{name}, batches of {}", 16 * count),
                Box::new(move || Some(measured(|| batches(io, &**file, pages, 16 * count)))),
            ),
            (
                format!("{name}, {count} in the background"),
                Box::new(move || Some(measured(|| background(io, file, pages, count)))),
            ),
        ];
        subjects.extend(add);
    }
    subjects.push(("pread, one by one".to_owned(), Box::new(|| Some(measured(|| alone(&*file, pages))))));

    subjects.retain(|(name, _)| name.starts_with("fio") || name.contains(&only));

    let mut rng = Seed::new().rng(0);
    let mut figures: Vec<Vec<RoundFigures>> = vec![Vec::new(); subjects.len()];
    for _ in 0..rounds {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, usize::try_from(rng.of(0..at as u64 + 1))?);
        }
        for at in order {
            figures[at].extend(subjects[at].1());
        }
    }
    for ((name, _), figures) in subjects.iter().zip(figures) {
        if figures.is_empty() {
            println!("{name:32} missing");
            continue;
        }
        let rate = sorted(figures.iter().map(|(reads, seconds, _)| reads / seconds / 1e3));
        let cpu = sorted(figures.iter().map(|(reads, _, cpu)| cpu / reads * 1e6));
        let at = |values: &[f64], quarter: usize| values[(values.len() - 1) * quarter / 4];
        println!(
            "{name:32} {:6.1} K reads/s ({:.1} to {:.1})  {:5.2} us CPU each",
            at(&rate, 2),
            at(&rate, 1),
            at(&rate, 3),
            at(&cpu, 2)
        );
    }
    Ok(())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn measured(run: impl FnOnce() -> u64) -> RoundFigures {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let reads = run() as f64;
    (reads, begun.elapsed().as_secs_f64(), cpu_seconds() - cpu)
}

fn batches(io: &dyn Io, file: &dyn IoFile, pages: u64, count: usize) -> u64 {
    let memory = aligned(count);
    let mut rng = Seed::new().rng(0);
    let begun = Instant::now();
    let mut reads = 0;
    while begun.elapsed() < ROUND_TIME {
        let mut batch: Vec<_> = memory
            .chunks_exact_mut(PAGE_BYTES)
            .map(|page| BatchRead {
                file,
                offset: rng.of(0..pages) * PAGE_BYTES as u64,
                bufs: vec![IoSliceMut::new(page)],
            })
            .collect();
        io.read_batch(&mut batch, &mut |_, result| {
            assert_eq!(result, Ok(PAGE_BYTES));
            reads += 1;
        });
    }
    reads
}

/// Keeps `depth` reads in flight: each one that ends is followed by another.
fn background(io: &dyn Io, file: &Arc<dyn IoFile>, pages: u64, depth: usize) -> u64 {
    let (sender, ended) = mpsc::channel();
    let mut rng = Seed::new().rng(0);
    let mut submit = |frame: &'static mut [u8]| {
        let sender = sender.clone();
        let start = NonNull::from(&mut *frame).cast();
        io.submit(vec![OwnedRead {
            file: Arc::clone(file),
            offset: rng.of(0..pages) * PAGE_BYTES as u64,
            // SAFETY: the frame is leaked memory, and moves into `done` itself: nobody has it
            // before.
            targets: vec![unsafe { ReadTarget::new(start, PAGE_BYTES) }],
            done: Box::new(move |result| {
                assert_eq!(result, Ok(PAGE_BYTES));
                let _ = sender.send(frame);
            }),
        }]);
    };
    aligned(depth).chunks_exact_mut(PAGE_BYTES).for_each(&mut submit);
    let begun = Instant::now();
    let mut reads = 0;
    while begun.elapsed() < ROUND_TIME {
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

fn alone(file: &dyn IoFile, pages: u64) -> u64 {
    let memory = aligned(1);
    let mut rng = Seed::new().rng(0);
    let begun = Instant::now();
    let mut reads = 0;
    while begun.elapsed() < ROUND_TIME {
        assert_eq!(file.read_at(rng.of(0..pages) * PAGE_BYTES as u64, memory), Ok(PAGE_BYTES));
        reads += 1;
    }
    reads
}

fn fio(path: &str, depth: u32) -> Option<RoundFigures> {
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
        .args([format!("--iodepth={depth}"), format!("--runtime={}", ROUND_TIME.as_secs())])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<f64> =
        text.split(';').map(|field| field.trim_end_matches('%').parse().unwrap_or(0.0)).collect();
    // The terse format, version 3: reads per second, and the shares of CPU in percent.
    let (reads, user, system) = (*fields.get(7)?, fields.get(87)?, fields.get(88)?);
    Some((reads, 1.0, (user + system) / 100.0))
}

/// Leaks memory of `count` pages, aligned to pages.
fn aligned(count: usize) -> &'static mut [u8] {
    let memory = vec![1_u8; (count + 1) * PAGE_BYTES].leak();
    let skip = memory.as_ptr().align_offset(PAGE_BYTES);
    &mut memory[skip..skip + count * PAGE_BYTES]
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
