//! `miss`: reads that miss the cache: cold reads from the device beside fio at the same depth, and a tenth of reads
//! that the kernel's page cache answers beside pread.
//!
//! No page of a cold sample is read twice, and the kernel's account must show that every read went to the device. All
//! data is verified. fio reports its own rate and CPU time, without its start and end. Fails where a read that should
//! miss does not, or where bytes are wrong.

mod cold;
mod evicting;
mod fio;
mod mix;
mod tasks;

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::Run;
use crate::data::make_cold;
use crate::pattern;
use crate::report::Unit;
use crate::rounds::Samples;

/// Bytes of a page, and of each cold read.
const PAGE_LEN: usize = 4096;

/// The result of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// Reads per second.
    rate: f64,
    /// CPU time of a read in µs, user and system.
    cpu_us: f64,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    run.note(
        "fio's rate and CPU time are its own account, without its start and end, and it verifies nothing",
    );
    let fio = run.peer("fio");
    let sizes = if run.quick { Sizes::QUICK } else { Sizes::FULL };
    run.scratch.require_space(sizes.cold.max(sizes.mixed))?;
    let path = run.scratch.path().join("file");
    let seed = run.random.next_u64();
    run.say("writing the file of the cold reads")?;
    pattern::make_file(&path, sizes.cold, seed)?;
    make_cold(&path)?;
    cold::run(run, fio.as_ref(), &Data { path: &path, seed, size: sizes.cold })?;
    run.say("writing the file of the mixed reads")?;
    pattern::make_file(&path, sizes.mixed, seed)?;
    mix::run(run, &Data { path: &path, seed, size: sizes.mixed })
}

/// The file to read.
#[derive(Debug, Clone, Copy)]
struct Data<'a> {
    path: &'a Path,
    /// Seed of its pattern.
    seed: u64,
    /// Length in bytes, a multiple of a page.
    size: u64,
}

/// Bytes of the files.
struct Sizes {
    cold: u64,
    mixed: u64,
}

impl Sizes {
    const QUICK: Self = Self { cold: 2 << 30, mixed: 512 << 20 };
    const FULL: Self = Self { cold: 8 << 30, mixed: 1 << 30 };
}

/// Returns the length of a sample.
fn duration(run: &Run) -> Duration {
    Duration::from_millis(if run.quick { 700 } else { 2000 })
}

/// The CPU times of the samples in their order, including the uncounted round.
#[derive(Debug, Default)]
struct CpuTimes(RefCell<Vec<f64>>);

impl CpuTimes {
    /// Notes the CPU time and returns the rate.
    fn note(&self, cost: Cost) -> f64 {
        self.0.borrow_mut().push(cost.cpu_us);
        cost.rate
    }

    /// Returns the CPU times of the rounds that count.
    fn samples(&self, rates: &Samples) -> Samples {
        let all = self.0.borrow();
        Samples { subject: rates.subject, values: all[all.len() - rates.values.len()..].to_vec() }
    }
}

/// Adds the rates of a case, and the CPU times beside them, which it returns.
fn add_case(run: &mut Run, name: &str, rates: &[Samples], cpu_times: &[CpuTimes]) -> Vec<Samples> {
    let cpu: Vec<Samples> = cpu_times.iter().zip(rates).map(|(cpu, rates)| cpu.samples(rates)).collect();
    run.report.add_case(name, Unit::ReadsPerSecond, rates);
    run.report.add_case(&format!("{name}: CPU time of a read"), Unit::Microseconds, &cpu);
    cpu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_of_the_first_round_do_not_count() {
        let times = CpuTimes::default();
        let rates = [9.0, 5.0, 6.0].map(|rate| times.note(Cost { rate, cpu_us: rate * 2.0 }));
        let counted = Samples { subject: "a", values: rates[1..].to_vec() };
        assert_eq!(times.samples(&counted), Samples { subject: "a", values: vec![10.0, 12.0] });
    }
}
