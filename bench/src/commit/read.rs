//! `read`: read transactions of one or several random pages, by several threads: the page store's ordered map beside
//! LMDB, fjall, `SQLite`, redb and `RocksDB`; and bare pages of the store. Then scans of consecutive values from a
//! random one on.
//!
//! All subjects hold the same values in memory, and nothing is committed meanwhile. Invariants: each value's page
//! number is compared when it is read, and in some all bytes. Fails where a subject fails, or a value belongs to
//! another page.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::content::{self, VALUE};
use super::load::{Gate, Load, Pages, Room, draw, wait, work_while};
use super::{Case, Compared, PAGE, add_ratios, fill, kinds, note_peers, sample_all};
use crate::Run;
use crate::data::MIB;
use crate::report::Unit;
use crate::rounds::Random;
use crate::scratch::Stop;

/// The second of a quick run by which the last round ends.
const QUICK_END: u64 = 38;
/// Values of a scan.
const SCANNED: usize = 100;
/// One in this many transactions compares all bytes of its first page.
const FULL_EVERY: u64 = 1024;

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let bytes = if run.quick { 64 * MIB } else { 256 * MIB };
    let room = Room { pages: bytes / PAGE, memory: 2 * bytes };
    let kinds = kinds();
    note_peers(run);
    // RocksDB may hold all data twice while it compacts, and logs come on top.
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
    let scans: &[usize] = if run.quick { &[1] } else { &[1, 8, 32] };
    let in_all = cases.len() + scans.len();
    for (index, &(pages, threads)) in cases.iter().enumerate() {
        let case = Case { pages, threads, left: in_all - index, quick_end: QUICK_END };
        measure(run, &compared, case, room)?;
    }
    for (index, &threads) in scans.iter().enumerate() {
        let case = Case { pages: SCANNED, threads, left: scans.len() - index, quick_end: QUICK_END };
        measure_scans(run, &compared, case, room)?;
    }
    Ok(())
}

fn measure_scans(run: &mut Run, compared: &[Compared], case: Case, room: Room) -> Result<()> {
    let name = case.name("scans");
    run.say(&name)?;
    let one = move |subject: &Compared, load: Load, window: Duration, stop: &Stop| {
        Ok(scan_while(&*subject.pages, room.pages, load, window, stop)? / 1e6)
    };
    let rates = sample_all(run, compared, case, &one, |_| None)?;
    run.report.add_case(&name, Unit::MillionReadsPerSecond, &rates);
    if case.threads == 1 {
        let ratios = ["scan_1T_vs_best_peer", "scan_1T_pages_vs_best_peer"];
        add_ratios(run, ratios, &format!("scans of {SCANNED} values"), Unit::MillionReadsPerSecond, &rates);
    }
    Ok(())
}

/// Like [`read_while`], with consecutive values in each transaction.
pub(super) fn scan_while(
    subject: &dyn Pages,
    of: u64,
    load: Load,
    window: Duration,
    stop: &Stop,
) -> Result<f64> {
    let work = |gate: &Gate, random: Random| scan_until(subject, of, load.pages as u64, random, gate);
    let (read, worked) = work_while(load, work, |over| wait(window, over, stop))?;
    Ok(read.iter().sum::<u64>() as f64 / worked.as_secs_f64())
}

/// Scans in one thread and returns the number of values it read in time.
fn scan_until(subject: &dyn Pages, of: u64, each: u64, mut random: Random, gate: &Gate) -> Result<u64> {
    let mut first = Vec::with_capacity(1);
    let mut read = 0;
    gate.pass();
    loop {
        draw(&mut random, of - each, 1, &mut first);
        let (first, full) = (first[0], read % (FULL_EVERY * each) == 0);
        let mut due = first;
        subject.check(first..first + each, &mut |page, value| {
            let found = value.first_chunk().copied().map(u64::from_le_bytes);
            ensure!(
                page == due && found == Some(page),
                "page {found:?} at {page}, where page {due} should be"
            );
            due += 1;
            if full { content::check(page, 0, value) } else { Ok(()) }
        })?;
        ensure!(due == first + each, "a scan from {first} on ends before {due}");
        if gate.is_over() {
            return Ok(read);
        }
        read += each;
    }
}

fn measure(run: &mut Run, compared: &[Compared], case: Case, room: Room) -> Result<()> {
    let name = case.name("read transactions");
    run.say(&name)?;
    let one = move |subject: &Compared, load: Load, window: Duration, stop: &Stop| {
        Ok(read_while(&*subject.pages, room.pages, load, window, stop)? / 1e6)
    };
    let rates = sample_all(run, compared, case, &one, |_| None)?;
    run.report.add_case(&name, Unit::MillionReadsPerSecond, &rates);
    let ratios = match (case.pages, case.threads) {
        (1, 1) => ["read_1T_vs_best_peer", "read_1T_pages_vs_best_peer"],
        (1, 8) => ["read_8T_vs_best_peer", "read_8T_pages_vs_best_peer"],
        (1, 32) => ["read_32T_vs_best_peer", "read_32T_pages_vs_best_peer"],
        _ => return Ok(()),
    };
    add_ratios(run, ratios, "transactions of one page", Unit::MillionReadsPerSecond, &rates);
    Ok(())
}

/// Runs reading threads for `window` and returns pages read per second.
pub(super) fn read_while(
    subject: &dyn Pages,
    of: u64,
    load: Load,
    window: Duration,
    stop: &Stop,
) -> Result<f64> {
    let work = |gate: &Gate, random: Random| read_until(subject, of, load.pages, random, gate);
    let (read, worked) = work_while(load, work, |over| wait(window, over, stop))?;
    Ok(read.iter().sum::<u64>() as f64 / worked.as_secs_f64())
}

/// Reads in one thread and returns the number of pages it read in time.
fn read_until(subject: &dyn Pages, of: u64, each: usize, mut random: Random, gate: &Gate) -> Result<u64> {
    let reader = subject.reader();
    gate.pass();
    let mut reader = reader?;
    let mut pages = Vec::with_capacity(each);
    let mut read = 0;
    loop {
        draw(&mut random, of, each, &mut pages);
        let full = read % (FULL_EVERY * each as u64) == 0;
        reader.read(&pages, &mut |page, value| {
            let found = value.first_chunk().copied().map(u64::from_le_bytes);
            ensure!(found == Some(page), "page {found:?} where page {page} should be");
            if full { content::check(page, 0, value) } else { Ok(()) }
        })?;
        if gate.is_over() {
            return Ok(read);
        }
        read += each as u64;
    }
}
