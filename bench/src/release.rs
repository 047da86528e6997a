//! `release`: what it costs to drop clean pages of a file, the library's call beside the bare system call, and
//! `pagekeeper evict` beside `vmtouch -e` as whole processes.
//!
//! Before each sample the file is made resident and clean anew; after each it must be gone from the page cache (of a
//! peer: what it leaves is noted). The library's call and the system call are timed within this process on an open file.

use std::cell::Cell;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pagekeeper_kernel::{Advice, ReleaseOptions, advise, release, residency};

use crate::Run;
use crate::data::{GIB, MIB, make_cold, open, resident, touch_pages, write_synced};
use crate::peers::{Program, run as run_process};
use crate::report::Unit;
use crate::rounds::{Random, Samples, Subject};

const LIBRARY: &str = "release(), in process";
const BARE: &str = "posix_fadvise, in process";
const EVICT: &str = "pagekeeper evict";
const VMTOUCH: &str = "vmtouch -e";

/// How the file becomes resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Written in calls of 1 MiB and synced.
    Written,
    /// Read in single pages in random order, from several threads.
    RandomReads,
}

/// Runs it.
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
        let samples = measure(run, vmtouch.as_ref(), size, load, quick_end)?;
        run.report.add_case(name, Unit::Milliseconds, &samples);
        let per_gib: Vec<Samples> = samples
            .iter()
            .map(|samples| Samples {
                subject: samples.subject,
                values: samples.values.iter().map(|ms| ms / 1000.0 * GIB as f64 / size as f64).collect(),
            })
            .collect();
        run.report.add_case(name, Unit::SecondsPerGib, &per_gib);
        if index == 0 {
            run.report.add_ratio("release_vs_fadvise", Unit::Milliseconds, &samples, LIBRARY, BARE);
            run.report.add_ratio("release_vs_vmtouch", Unit::Milliseconds, &samples, EVICT, VMTOUCH);
        }
    }
    Ok(())
}

fn measure(
    run: &mut Run,
    vmtouch: Option<&Program>,
    size: u64,
    load: Load,
    quick_end: u64,
) -> Result<Vec<Samples>> {
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
    let mut subjects = vec![
        Subject::new(LIBRARY, || {
            prepare()?;
            let file = open(&path)?;
            let options = ReleaseOptions::default();
            let began = Instant::now();
            let report = release(&file, 0..u64::MAX, &options)?;
            let time = began.elapsed();
            ensure!(report.released == size && report.kept() == 0, "{report:?}");
            nothing_left()?;
            Ok(time.as_secs_f64() * 1000.0)
        }),
        Subject::new(BARE, || {
            prepare()?;
            let file = open(&path)?;
            let began = Instant::now();
            advise(&file, Advice::DontNeed, 0..u64::MAX, &path)?;
            let time = began.elapsed();
            left_by_peers.set(left_by_peers.get().max(residency(&file, 0..u64::MAX)?.resident));
            Ok(time.as_secs_f64() * 1000.0)
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
    Ok(samples)
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
    ensure!(
        counts.resident == size && counts.unwritten() == 0,
        "{} can't be made resident and clean: {counts:?}; is memory short on this machine?",
        path.display()
    );
    Ok(())
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
