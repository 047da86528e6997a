//! `pressure`: random reads of four times the memory of a cgroup: pagekeeper beside mmap and beside pread, and the cost
//! of each for a bystander in the same cgroup that allocates memory in a loop.
//!
//! Invariants: each sample has its own process and cgroup and begins with a cold file; the process first reads until
//! its memory is full. The limit, which includes the bystander's memory, is the same for all. Bytes are verified. Fails
//! with a plain message where no memory cgroup can be created, or where a process runs out of memory.

mod bystander;
pub(crate) mod group;
mod helper;
mod map;
mod reader;
mod reclaim;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::Run;
use crate::data::{MIB, make_cold};
use crate::drive::PAGE;
use crate::pattern;
use crate::peers::this_program;
use crate::report::{Curve, Unit};
use crate::rounds::{Plan, Samples, Subject, median, run as run_rounds};
use crate::scratch::Stop;
use bystander::Took;
use group::{Group, Groups};
use helper::{Helper, Part};
use reader::{Measured, Way};
use reclaim::Reclaim;

pub(crate) use bystander::{Arguments as BystanderArguments, run as take_memory};
pub(crate) use reader::{Arguments as ReaderArguments, run as read};

const OURS: &str = "pagekeeper";
const MMAP: &str = "mmap, MADV_RANDOM";
const PREAD: &str = "pread, FADV_RANDOM";
const ALONE: &str = "nothing else";
const READERS: [(&str, Way); 3] = [(OURS, Way::Pagekeeper), (MMAP, Way::Mmap), (PREAD, Way::Pread)];

/// The data's size in multiples of the limit.
const TIMES: u64 = 4;

/// The size and duration of a run.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// Limit of the cgroup, in bytes.
    limit: u64,
    window: Duration,
    rounds: usize,
}

impl Setting {
    /// Returns pagekeeper's budget, seven eighths of the limit. The rest is for the process itself and the bystander.
    fn budget(self) -> u64 {
        self.limit / 8 * 7
    }

    /// Returns the number of reads that fill the memory: random reads over four times the memory need 1.15 times its
    /// pages.
    fn fill(self) -> u64 {
        self.limit / PAGE * 3 / 2
    }
}

/// A case.
#[derive(Debug, Clone, Copy)]
struct Case {
    bytes: u64,
    threads: u64,
}

/// The case of the ratios.
const MAIN: Case = Case { bytes: 500, threads: 32 };
const CASES: [Case; 4] = [
    MAIN,
    Case { bytes: 500, threads: 2 },
    Case { bytes: PAGE, threads: 32 },
    Case { bytes: PAGE, threads: 2 },
];

impl Case {
    fn name(self) -> String {
        let size = if self.bytes == PAGE { "4 KiB".to_owned() } else { format!("{} B", self.bytes) };
        format!("{size}, {} threads", self.threads)
    }
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    let groups = Groups::find()?;
    let setting = if run.quick {
        Setting { limit: 256 * MIB, window: Duration::from_millis(1500), rounds: run.rounds.min(3) }
    } else {
        Setting { limit: 1024 * MIB, window: Duration::from_secs(4), rounds: run.rounds }
    };
    let size = TIMES * setting.limit;
    run.note(&format!(
        "data of {} MiB in a memory cgroup (version {}) of {} MiB; pagekeeper's cache has {} MiB of them; the bystander is in the same cgroup",
        size / MIB,
        groups.version(),
        setting.limit / MIB,
        setting.budget() / MIB
    ));
    run.note("inside a cgroup those who want memory reclaim it themselves; kswapd wakes only when the machine itself is short");
    run.scratch.require_space(size)?;
    let path = run.scratch.path().join("file");
    let pattern = run.random.next_u64();
    run.say("writing the file")?;
    pattern::make_file(&path, size, pattern)?;
    let cases = if run.quick { &CASES[..1] } else { &CASES };
    let place = SampleSetup { groups, setting, path, pattern };
    for &case in cases {
        run.say(&case.name())?;
        measure(run, &place, case)?;
    }
    Ok(())
}

/// The surroundings of all samples.
struct SampleSetup {
    groups: Groups,
    setting: Setting,
    path: PathBuf,
    pattern: u64,
}

/// One sample of a reader.
#[derive(Debug, Clone, Copy)]
struct Sample {
    measured: Measured,
    took: Took,
    reclaim: Reclaim,
    /// Number of allocations that found the cgroup at its limit.
    limit_hits: u64,
}

fn measure(run: &mut Run, place: &SampleSetup, case: Case) -> Result<()> {
    let seen: [RefCell<Vec<Sample>>; 3] = Default::default();
    let alone = RefCell::new(Vec::new());
    let seeds: Vec<u64> = (0..run.rounds.max(1)).map(|_| run.random.next_u64()).collect();
    let stop = run.stop.clone();
    let mut subjects: Vec<Subject<'_>> = READERS
        .iter()
        .zip(&seen)
        .map(|(&(name, way), seen)| {
            let (stop, seeds) = (&stop, &seeds);
            Subject::new(name, move || {
                // All subjects of a round get the same random choices.
                let done = seen.borrow().len();
                let sample = place.sample(way, case, seeds[done % seeds.len()], stop)?;
                seen.borrow_mut().push(sample);
                Ok(sample.measured.rate)
            })
        })
        .collect();
    subjects.push(Subject::new(ALONE, || {
        let took = place.alone(&stop)?;
        alone.borrow_mut().push(took);
        Ok(took.mib_per_second)
    }));
    // Every sample fills its memory first, so no uncounted round is needed.
    let until = run.quick.then(|| run.began + Duration::from_secs(43));
    let plan = Plan { rounds: place.setting.rounds, until, warm_up: false };
    let mut rates = run_rounds(&mut subjects, plan, &mut run.random, &run.stop)?;
    drop(subjects);
    rates.pop();
    report(run, case, &rates, &seen.map(RefCell::into_inner), &alone.into_inner());
    Ok(())
}

impl SampleSetup {
    fn sample(&self, way: Way, case: Case, seed: u64, stop: &Stop) -> Result<Sample> {
        make_cold(&self.path)?;
        let group = self.groups.create(self.setting.limit)?;
        let outcome = self.sample_in(&group, way, case, seed, stop);
        if group.has_killed() {
            return outcome.context("the kernel killed a process for want of memory in the cgroup");
        }
        outcome
    }

    fn sample_in(&self, group: &Group, way: Way, case: Case, seed: u64, stop: &Stop) -> Result<Sample> {
        let setting = self.setting;
        let way = way.to_possible_value().context("not a way to read")?;
        let mut command = this_program()?;
        command
            .arg("pressure-reader")
            .args(Part::arguments(&group.entrance(), setting.window))
            .arg(format!("--way={}", way.get_name()))
            .arg(format!("--file={}", self.path.display()))
            .arg(format!("--pattern={}", self.pattern))
            .arg(format!("--seed={seed}"))
            .arg(format!("--bytes={}", case.bytes))
            .arg(format!("--threads={}", case.threads))
            .arg(format!("--budget={}", setting.budget()))
            .arg(format!("--fill={}", setting.fill()));
        let mut reader = Helper::start(&mut command)?;
        reader.wait_ready(stop)?;
        let mut bystander = self.bystander(&group.entrance(), stop)?;
        let hits_before = group.limit_hits()?;
        let before = Reclaim::now();
        reader.go()?;
        bystander.go()?;
        let measured = reader.result(stop)?;
        let took = bystander.result(stop)?;
        let limit_hits = group.limit_hits()? - hits_before;
        Ok(Sample { measured, took, reclaim: Reclaim::now().since(before), limit_hits })
    }

    /// Measures the bystander alone, with the whole limit.
    fn alone(&self, stop: &Stop) -> Result<Took> {
        let group = self.groups.create(self.setting.limit)?;
        let mut bystander = self.bystander(&group.entrance(), stop)?;
        bystander.go()?;
        bystander.result(stop)
    }

    fn bystander(&self, entrance: &Path, stop: &Stop) -> Result<Helper> {
        let mut command = this_program()?;
        command.arg("pressure-bystander").args(Part::arguments(entrance, self.setting.window));
        let mut bystander = Helper::start(&mut command)?;
        bystander.wait_ready(stop)?;
        Ok(bystander)
    }
}

/// A figure of the readers' samples: its name, its unit, and how to get it.
type Figure = (&'static str, Unit, fn(&Sample) -> f64);

const FIGURES: [Figure; 10] = [
    ("latency p50", Unit::Microseconds, |sample| sample.measured.latency.p50),
    ("latency p99", Unit::Microseconds, |sample| sample.measured.latency.p99),
    ("latency p99.9", Unit::Microseconds, |sample| sample.measured.latency.p999),
    ("longest latency", Unit::Microseconds, |sample| sample.measured.latency.longest),
    ("CPU time of a read", Unit::Microseconds, |sample| sample.measured.cpu_us),
    ("times at the cgroup's limit", Unit::PerRead, |sample| sample.limit_hits as f64 / sample.reads()),
    ("pages scanned by reclaim, the cgroup's too", Unit::PerRead, |sample| {
        sample.reclaim.scanned as f64 / sample.reads()
    }),
    ("pages scanned by kswapd", Unit::PerRead, |sample| sample.reclaim.by_kswapd as f64 / sample.reads()),
    ("pages scanned by direct reclaim of the machine", Unit::PerRead, |sample| {
        sample.reclaim.direct as f64 / sample.reads()
    }),
    ("time in which a task waited for memory", Unit::PercentOfTime, Sample::stalled_percent),
];

impl Sample {
    fn reads(&self) -> f64 {
        (self.measured.reads as f64).max(1.0)
    }

    fn stalled_percent(&self) -> f64 {
        let seconds = self.measured.reads as f64 / self.measured.rate;
        self.reclaim.stalled_us.map_or(0.0, |us| us as f64 / 1e4 / seconds)
    }
}

fn report(run: &mut Run, case: Case, rates: &[Samples], seen: &[Vec<Sample>], alone: &[Took]) {
    let name = case.name();
    let figure = |of: fn(&Sample) -> f64| -> Vec<Samples> {
        let of_reader = |((subject, _), seen): (&(&'static str, Way), &Vec<Sample>)| Samples {
            subject,
            values: seen.iter().map(of).collect(),
        };
        READERS.iter().zip(seen).map(of_reader).collect()
    };
    let report = &mut run.report;
    report.add_case(&name, Unit::ReadsPerSecond, rates);
    for (what, unit, of) in FIGURES {
        report.add_case(&format!("{name}: {what}"), unit, &figure(of));
    }

    let mut beside = figure(|sample| sample.took.mib_per_second);
    let within = |rates: &Samples| Samples {
        subject: rates.subject,
        values: rates.values.iter().zip(alone).map(|(rate, alone)| alone.mib_per_second / rate).collect(),
    };
    let slowdown: Vec<Samples> = beside.iter().map(within).collect();
    let of_alone = |of: fn(&Took) -> f64| Samples { subject: ALONE, values: alone.iter().map(of).collect() };
    beside.push(of_alone(|took| took.mib_per_second));
    let mut longest = figure(|sample| sample.took.longest_ms);
    longest.push(of_alone(|took| took.longest_ms));
    report.add_case(&format!("{name}: bystander takes memory beside"), Unit::MibPerSecond, &beside);
    report.add_case(&format!("{name}: bystander is slower than alone"), Unit::Times, &slowdown);
    report.add_case(&format!("{name}: bystander's longest stall"), Unit::Milliseconds, &longest);

    for ((subject, _), seen) in READERS.iter().zip(seen) {
        report.curves.push(curve(&name, subject, seen));
    }
    if (case.bytes, case.threads) == (MAIN.bytes, MAIN.threads) {
        let per_second = Unit::ReadsPerSecond;
        report.add_ratio("pressure_500B_32T_vs_mmap", per_second, rates, OURS, MMAP);
        report.add_ratio("pressure_500B_32T_vs_pread", per_second, rates, OURS, PREAD);
        let p999 = figure(|sample| sample.measured.latency.p999);
        report.add_ratio("pressure_p999_vs_mmap", Unit::Microseconds, &p999, OURS, MMAP);
        report.add_ratio("pressure_p999_vs_pread", Unit::Microseconds, &p999, OURS, PREAD);
        report.add_ratio("pressure_bystander_vs_mmap", Unit::MibPerSecond, &beside, OURS, MMAP);
        report.add_ratio("pressure_bystander_vs_pread", Unit::MibPerSecond, &beside, OURS, PREAD);
    }
}

/// A percentile: its label, and how to get it.
type Step = (&'static str, fn(&Sample) -> f64);

/// Returns the medians of a subject's percentiles.
fn curve(case: &str, subject: &str, seen: &[Sample]) -> Curve {
    let points: [Step; 5] = [
        ("p50", |sample| sample.measured.latency.p50),
        ("p90", |sample| sample.measured.latency.p90),
        ("p99", |sample| sample.measured.latency.p99),
        ("p99.9", |sample| sample.measured.latency.p999),
        ("max", |sample| sample.measured.latency.longest),
    ];
    let middle = |of: fn(&Sample) -> f64| median(&seen.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0);
    Curve {
        case: format!("{case}: latency in us"),
        subject: subject.to_owned(),
        points: points.map(|(label, of)| (label, middle(of))).to_vec(),
    }
}
