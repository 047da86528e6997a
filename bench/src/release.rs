//! `release`: the cost of dropping clean pages of a file: the library's call beside the bare system call, and
//! `pagekeeper evict` beside `vmtouch -e` as whole processes.
//!
//! Before each sample the file is made resident and clean anew; after each it must be gone from the page cache (a
//! peer's leftovers are noted). The library's call and the system call are timed within this process on an open file.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_kernel::{Advice, ReleaseOptions, advise, release, residency};

use crate::Run;
use crate::data::{GIB, MIB, make_cold, open, require_resident, resident, touch_pages, write_synced};
use crate::peers::{Program, run as run_process};
use crate::report::Unit;
use crate::rounds::{Random, Samples, Subject};

const LIBRARY: &str = "release()";
const BARE: &str = "posix_fadvise";
const EVICT: &str = "pagekeeper evict";
const VMTOUCH: &str = "vmtouch -e";

/// The way in which the file becomes resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Written in calls of 1 MiB and synced.
    Written,
    /// Read in single pages in random order, from several threads.
    RandomReads,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    run.note("in process: the call alone, on an open file; the others are whole processes from start to end");
    let vmtouch = run.peer("vmtouch");
    let cases: &[(&str, u64, Load, u64)] = if run.quick {
        &[
            ("1 GiB written in 1 MiB calls", GIB, Load::Written, 32),
            ("128 MiB read in random 4 KiB", 128 * MIB, Load::RandomReads, 42),
        ]
    } else {
        &[
            ("1 GiB written in 1 MiB calls", GIB, Load::Written, 0),
            ("4 GiB written in 1 MiB calls", 4 * GIB, Load::Written, 0),
            ("1 GiB read in random 4 KiB", GIB, Load::RandomReads, 0),
        ]
    };
    for (index, &(name, size, load, quick_end)) in cases.iter().enumerate() {
        run.say(name)?;
        let (samples, cpu) = measure(run, vmtouch.as_ref(), size, load, quick_end)?;
        let (calls, processes) = samples.split_at(2);
        for (kind, samples) in [("in process", calls), ("whole processes", processes)] {
            run.report.add_case(&format!("{name}, {kind}"), Unit::Milliseconds, samples);
            run.report.add_case(&format!("{name}, {kind}"), Unit::SecondsPerGib, &per_gib(samples, size));
        }
        run.report.add_case(&format!("{name}, in process, CPU time"), Unit::Milliseconds, &cpu);
        if index == 0 {
            run.report.add_ratio("release_vs_fadvise", Unit::Milliseconds, &samples, LIBRARY, BARE);
            run.report.add_ratio("release_vs_vmtouch", Unit::Milliseconds, &samples, EVICT, VMTOUCH);
        }
    }
    Ok(())
}

fn per_gib(times: &[Samples], size: u64) -> Vec<Samples> {
    let seconds = |ms: &f64| ms / 1000.0 * GIB as f64 / size as f64;
    times
        .iter()
        .map(|of_subject| Samples {
            subject: of_subject.subject,
            values: of_subject.values.iter().map(seconds).collect(),
        })
        .collect()
}

/// Returns the samples of each subject, the two calls first, and the CPU times of those calls.
fn measure(
    run: &mut Run,
    vmtouch: Option<&Program>,
    size: u64,
    load: Load,
    quick_end: u64,
) -> Result<(Vec<Samples>, [Samples; 2])> {
    let path = run.scratch.path().join("file");
    run.scratch.require_space(size)?;
    write_synced(&path, size)?;
    let pagekeeper = run.pagekeeper.clone();
    let random = Cell::new(run.random.next_u64());
    let left_by_peers = Cell::new(0);
    let prepare = || {
        random.set(random.get().wrapping_add(1));
        prepare(&path, size, load, &mut Random::new(random.get()))
    };
    let nothing_left = || {
        let left = resident(&path)?;
        ensure!(left == 0, "{left} bytes of {} stayed in the page cache", path.display());
        Ok(())
    };
    let (library_cpu, bare_cpu) = (RefCell::default(), RefCell::default());
    let mut subjects = vec![
        Subject::new(LIBRARY, || {
            prepare()?;
            let file = open(&path)?;
            let options = ReleaseOptions::default();
            let clock = Clock::start();
            let report = release(&file, 0..u64::MAX, &options)?;
            let time = clock.stop(&library_cpu);
            ensure!(report.kept() == 0, "{report:?}");
            nothing_left()?;
            Ok(time)
        }),
        Subject::new(BARE, || {
            prepare()?;
            let file = open(&path)?;
            let clock = Clock::start();
            advise(&file, Advice::DontNeed, 0..u64::MAX, &path)?;
            let time = clock.stop(&bare_cpu);
            left_by_peers.set(left_by_peers.get().max(residency(&file, 0..u64::MAX)?.resident));
            Ok(time)
        }),
        Subject::new(EVICT, || {
            prepare()?;
            let time = run_process(pagekeeper.command().arg("evict").arg(&path))?.seconds;
            nothing_left()?;
            Ok(time * 1000.0)
        }),
    ];
    if let Some(vmtouch) = vmtouch {
        subjects.push(Subject::new(VMTOUCH, || {
            prepare()?;
            let time = run_process(vmtouch.command().args(["-q", "-e"]).arg(&path))?.seconds;
            left_by_peers.set(left_by_peers.get().max(resident(&path)?));
            Ok(time * 1000.0)
        }));
    }
    let samples = run.rounds(&mut subjects, quick_end)?;
    drop(subjects);
    run.note(&match left_by_peers.get() {
        0 => "0 bytes were resident after every release".to_owned(),
        left => format!("0 bytes were resident after ours, at most {} MiB after the others", left / MIB),
    });
    std::fs::remove_file(&path).context("can't remove the file")?;
    // The first sample is from the uncounted round.
    let of_call = |subject, cpu: RefCell<Vec<f64>>| Samples {
        subject,
        values: cpu.into_inner().into_iter().skip(1).collect(),
    };
    Ok((samples, [of_call(LIBRARY, library_cpu), of_call(BARE, bare_cpu)]))
}

/// A clock of wall time and this thread's CPU time.
struct Clock {
    wall: Instant,
    cpu: Duration,
}

impl Clock {
    fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu_time() }
    }

    /// Returns milliseconds of wall time; those of CPU time go to `cpu_ms`.
    fn stop(&self, cpu_ms: &RefCell<Vec<f64>>) -> f64 {
        let wall = self.wall.elapsed();
        cpu_ms.borrow_mut().push(cpu_time().saturating_sub(self.cpu).as_secs_f64() * 1000.0);
        wall.as_secs_f64() * 1000.0
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Makes the file resident and clean.
fn prepare(path: &Path, size: u64, load: Load, random: &mut Random) -> Result<()> {
    match load {
        Load::Written => write_synced(path, size)?,
        Load::RandomReads => {
            const READERS: usize = 8;
            make_cold(path)?;
            let mut pages: Vec<u64> = (0..size / pagekeeper_kernel::page_size()).collect();
            random.shuffle(&mut pages);
            let share = pages.len().div_ceil(READERS).max(1);
            std::thread::scope(|scope| {
                let readers: Vec<_> = pages
                    .chunks(share)
                    .map(|pages| scope.spawn(|| touch_pages(&open(path)?, pages.iter().copied())))
                    .collect();
                readers.into_iter().try_for_each(|reader| {
                    reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
            })?;
        }
    }
    let counts = residency(&open(path)?, 0..u64::MAX)?;
    ensure!(counts.unwritten() == 0, "{} is not clean after an fsync: {counts:?}", path.display());
    require_resident(counts.resident, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_make_a_file_resident_and_clean() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        for load in [Load::Written, Load::RandomReads] {
            prepare(&path, 4 * MIB, load, &mut Random::new(1)).unwrap();
            assert_eq!(resident(&path).unwrap(), 4 * MIB);
        }
    }
}
