//! `read`: threads that begin to read, read one random page or several, and end, again and again: the page store beside
//! LMDB, fjall, `SQLite`, redb and `RocksDB`.
//!
//! All subjects hold the same values in memory, and nothing is committed meanwhile. Invariants: of each value that is read its page number is
//! compared, and of some all bytes. Fails where a subject fails, or a value is another's.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::content::{self, VALUE};
use super::load::{Load, Pages, Room, draw};
use super::{CHECK_EVERY, Compared, PAGE, best_peer, fill, kinds, note_peers, ours};
use crate::Run;
use crate::data::MIB;
use crate::report::Unit;
use crate::rounds::{self, Plan, Random, Samples, Subject};
use crate::scratch::Stop;

/// The second of a quick run by which the last round ends.
const QUICK_END: u64 = 38;
/// Of so many transactions the first page of one is compared in full.
const FULL_EVERY: u64 = 1024;

/// Runs it.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let bytes = if run.quick { 64 * MIB } else { 256 * MIB };
    let room = Room { pages: bytes / PAGE, memory: 2 * bytes };
    let kinds = kinds();
    note_peers(run);
    // RocksDB may have all twice while it compacts, and logs come on top.
    run.scratch.require_space(3 * bytes * kinds.len() as u64)?;
    run.note(&format!(
        "{} values of {VALUE} bytes, all in memory; a transaction is begun, reads, and is ended; no commits meanwhile",
        room.pages
    ));
    let mut compared = Vec::new();
    for (number, kind) in kinds.into_iter().enumerate() {
        run.say(&format!("filling {}", kind.name))?;
        compared.push(fill(run, kind, number, room).with_context(|| kind.name)?);
    }
    for Compared { kind, pages, ledger, .. } in &compared {
        run.say(&format!("reading all pages: {}", kind.name))?;
        pages.check(0..room.pages, &mut |page, value| ledger.check(page, value)).context(kind.name)?;
    }
    let cases: Vec<(usize, usize)> = if run.quick {
        run.note("left out of a quick run: transactions of 16 pages");
        [1, 8, 32].map(|threads| (1, threads)).into()
    } else {
        [1, 16].into_iter().flat_map(|pages| [1, 8, 32].map(|threads| (pages, threads))).collect()
    };
    for (index, &(pages, threads)) in cases.iter().enumerate() {
        measure(run, &compared, (pages, threads), room, cases.len() - index)?;
    }
    Ok(())
}

/// Measures one case; `left` cases share what a quick run has left.
fn measure(
    run: &mut Run,
    compared: &[Compared],
    (pages, threads): (usize, usize),
    room: Room,
    left: usize,
) -> Result<()> {
    let plural = |count: usize, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
    let name = format!("read transactions of {}, {}", plural(pages, "page"), plural(threads, "thread"));
    run.say(&name)?;
    let window = Duration::from_millis(if run.quick { 250 } else { 1000 });
    let now = Instant::now();
    let share = (run.began + Duration::from_secs(QUICK_END)).saturating_duration_since(now)
        / u32::try_from(left).unwrap_or(1);
    let plan = Plan { rounds: run.rounds, until: run.quick.then(|| now + share), warm_up: true };
    // In a round, all have the same random choices.
    let seed = run.random.next_u64();
    let stop = run.stop.clone();
    let mut subjects: Vec<Subject<'_>> = compared
        .iter()
        .map(|subject| {
            let mut seeds = Random::new(seed);
            let stop = &stop;
            Subject::new(subject.kind.name, move || {
                let load = Load { threads, pages, seed: seeds.next_u64() };
                Ok(read_while(&*subject.pages, room.pages, load, window, stop)? / 1e6)
            })
        })
        .collect();
    let rates = rounds::run(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    run.report.add_case(&name, Unit::MillionReadsPerSecond, &rates);
    add_ratio(run, pages, threads, &rates);
    Ok(())
}

/// Lets threads read for as long as `window`; gives the pages a second that were read.
pub(super) fn read_while(
    subject: &dyn Pages,
    of: u64,
    load: Load,
    window: Duration,
    stop: &Stop,
) -> Result<f64> {
    let (start, over) = (Barrier::new(load.threads + 1), AtomicBool::new(false));
    let (start, over) = (&start, &over);
    let mut seeds = Random::new(load.seed);
    let mut ended = Instant::now();
    let joined: Vec<Result<(u64, Instant)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|_| {
                let random = Random::new(seeds.next_u64());
                scope.spawn(move || {
                    let read = read_until(subject, of, load.pages, random, start, over);
                    read.inspect_err(|_| over.store(true, Ordering::Relaxed))
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let mut stopped = Ok(());
        while stopped.is_ok() && began.elapsed() < window && !over.load(Ordering::Relaxed) {
            stopped = stop.sleep(window.saturating_sub(began.elapsed()).min(CHECK_EVERY));
        }
        over.store(true, Ordering::Relaxed);
        ended = Instant::now();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .chain(stopped.err().map(Err))
            .collect()
    });
    let joined: Vec<(u64, Instant)> = joined.into_iter().collect::<Result<_>>()?;
    // From the first thread's start: where there are more threads than processors, this one may have gone on late.
    let began = joined.iter().map(|(_, began)| *began).min().context("no thread")?;
    let pages: u64 = joined.iter().map(|(pages, _)| pages).sum();
    Ok(pages as f64 / (ended - began).as_secs_f64())
}

/// What one thread does; gives the pages that it read, and when it began.
fn read_until(
    subject: &dyn Pages,
    of: u64,
    each: usize,
    mut random: Random,
    start: &Barrier,
    over: &AtomicBool,
) -> Result<(u64, Instant)> {
    let reader = subject.reader();
    start.wait();
    let began = Instant::now();
    let mut reader = reader?;
    let mut pages = Vec::with_capacity(each);
    let mut read = 0;
    while !over.load(Ordering::Relaxed) {
        draw(&mut random, of, each, &mut pages);
        let full = read % (FULL_EVERY * each as u64) == 0;
        reader.read(&pages, &mut |page, value| {
            let found = value.first_chunk().copied().map(u64::from_le_bytes);
            ensure!(found == Some(page), "page {found:?} where page {page} should be");
            if full { content::check(page, 0, value) } else { Ok(()) }
        })?;
        read += each as u64;
    }
    Ok((read, began))
}

/// The ratios are those of one page.
fn add_ratio(run: &mut Run, pages: usize, threads: usize, rates: &[Samples]) {
    let name = match (pages, threads) {
        (1, 1) => "read_1T_vs_best_peer",
        (1, 8) => "read_8T_vs_best_peer",
        (1, 32) => "read_32T_vs_best_peer",
        _ => return,
    };
    let Some(best) = best_peer(rates) else { return };
    run.report.add_ratio(name, Unit::MillionReadsPerSecond, rates, ours::KIND.name, best);
    run.note(&format!("{name}: transactions of one page, against {best}"));
}
