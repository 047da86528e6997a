//! `preload`: the cost that `pagekeeper run` adds to calls that no rule concerns, to the start of a process, and to a
//! stream's read.
//!
//! Children of this program, one under `run` and two plain ones, call the C library's functions in a loop. They take
//! turns batch by batch on one processor, and are started anew in each round, because a process's memory layout has an
//! effect of the same size. The difference of the two plain children is the precision of the figures.
//!
//! Invariants: batches take turns in an order that is shuffled anew; the results of all calls are checked; pages that
//! were resident before a stream read them are resident afterwards. Fails where `run` or a child does.

mod child;
mod steps;
mod timed;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::Run;
use crate::data::{MIB, make_cold, read_through, require_resident, resident, write_synced};
use crate::peers::{Program, run as run_process};
use crate::report::{Row, Unit};
use crate::rounds::{Random, Samples, extremes, median};
pub(crate) use child::{Call, ChildArguments, be_timed};
use child::{FILE_BYTES, STREAM_READ, Small};
use timed::Timed;

const UNDER_RUN: &str = "under pagekeeper run";
const PLAIN: &str = "plain";
const AGAIN: &str = "plain, again";
/// The subjects, in the order of the table.
const SUBJECTS: [&str; 3] = [UNDER_RUN, PLAIN, AGAIN];

/// Rules that concern none of the files here.
const NO_RULE: [&str; 4] = ["run", "--profile", "rocksdb", "--"];
/// A rule that concerns all reads.
const STREAM: [&str; 4] = ["run", "--as", "stream", "--"];
/// Bytes that a stream reads.
const STREAM_BYTES: u64 = 64 * MIB;
/// Calls whose instructions are counted.
const COUNTED: u32 = 100;
/// Starts of processes in a round, one per batch: in a larger batch, one that lost its processor would count for all.
const STARTS: u32 = 30;

/// The files, and the subjects measured on them.
struct Fixture<'a> {
    pagekeeper: &'a Program,
    this: PathBuf,
    file: PathBuf,
    alike: PathBuf,
    memory: PathBuf,
    stream: PathBuf,
}

/// A value for each round, per subject.
type Values = [Vec<f64>; SUBJECTS.len()];

/// Times of a call in nanoseconds, or of a process in microseconds: the median and the smallest of the batches of each
/// round.
#[derive(Default)]
struct Times {
    medians: Values,
    leasts: Values,
}

/// Runs the benchmark; `rounds` comes from the command line.
pub(crate) fn run(run: &mut Run, rounds: Option<u16>) -> Result<()> {
    let (usual, batches) = if run.quick { (10, 40) } else { (40, 100) };
    let rounds = rounds.unwrap_or(usual);
    run_process(run.pagekeeper.command().args(NO_RULE).arg("true"))
        .context("pagekeeper run does not work")?;
    let memory = tempfile::tempdir_in("/dev/shm").context("can't make a directory in /dev/shm")?;
    let pagekeeper = run.pagekeeper.clone();
    let place = Fixture {
        pagekeeper: &pagekeeper,
        this: std::env::current_exe().context("can't find this program")?,
        file: run.scratch.path().join("CURRENT"),
        // The rules have `*.sst`.
        alike: run.scratch.path().join("000012.lst"),
        memory: memory.path().join("file"),
        stream: run.scratch.path().join("stream"),
    };
    for path in [&place.file, &place.memory] {
        std::fs::write(path, [0; FILE_BYTES]).with_context(|| format!("can't write {}", path.display()))?;
    }
    std::fs::hard_link(&place.file, &place.alike).context("can't link a file")?;
    write_synced(&place.stream, STREAM_BYTES)?;
    run.note("rules of the profile rocksdb, which concern none of the files; children take turns batch by batch on one processor");

    run.say("counting instructions")?;
    count_instructions(run, &place);
    run.say("timing calls")?;
    let mut times: Vec<Times> = Call::ALL.iter().map(|_| Times::default()).collect();
    let mut starts = Small::ALL.map(|_| Times::default());
    let mut launches = Values::default();
    let mut streams = [(); 2].map(|()| Values::default());
    for _ in 0..rounds {
        run.stop.check()?;
        let (random, stop) = (&mut run.random, &run.stop);
        let mut children = place.children()?;
        let mut calls: Vec<usize> = (0..Call::ALL.len()).collect();
        random.shuffle(&mut calls);
        for index in calls {
            stop.check()?;
            let call = Call::ALL[index];
            let (word, number) = (call.word(), call.batch().to_string());
            let ask = |subject: usize| Ok(children[subject].ask(&word, &number)? / f64::from(call.batch()));
            times[index].add(&in_turn(&SUBJECTS, batches, random, ask)?);
        }
        for (small, times) in Small::ALL.iter().zip(&mut starts) {
            let ask = |subject: usize| Ok(children[subject].ask(small.word(), "1")? / 1e3);
            times.add(&in_turn(&SUBJECTS, STARTS, random, ask)?);
        }
        drop(children);
        let launch = |subject: usize| place.launch(subject == 0);
        add_medians(&mut launches, &in_turn(&SUBJECTS[..2], 5, random, launch)?);
        let mut readers = [place.child(&STREAM)?, place.child(&[])?];
        for (values, cold) in streams.iter_mut().zip([false, true]) {
            let read = |subject: usize| place.read_stream(&mut readers[subject], cold);
            add_medians(values, &in_turn(&SUBJECTS[..2], 5, random, read)?);
        }
    }
    report_calls(run, &times);
    for (small, times) in Small::ALL.iter().zip(&starts) {
        let (figure, least) = small.figures();
        plain_figure(run, small.title(), &times.medians, figure);
        plain_figure(run, &format!("{}, the quickest of a round", small.title()), &times.leasts, least);
    }
    plain_figure(run, "starting and ending /bin/true by the command itself", &launches, "shim_launch_us");
    let [warm, cold] = streams;
    plain_figure(run, "a stream's read of 128 KiB that were resident", &warm, "shim_stream_read_us");
    plain_figure(run, "a stream's read of 128 KiB of a cold file", &cold, "shim_stream_cold_read_us");
    Ok(())
}

/// Lets each subject run this many times, in turns, and returns each one's values.
fn in_turn(
    subjects: &[&str],
    times: u32,
    random: &mut Random,
    mut ask: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let mut values = vec![Vec::new(); subjects.len()];
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    for time in 0..=times {
        random.shuffle(&mut order);
        for &subject in &order {
            let value = ask(subject).with_context(|| subjects[subject].to_owned())?;
            // The first one does not count.
            if time > 0 {
                values[subject].push(value);
            }
        }
    }
    Ok(values)
}

fn add_medians(to: &mut Values, round: &[Vec<f64>]) {
    for (to, batches) in to.iter_mut().zip(round) {
        to.extend(median(batches));
    }
}

impl Times {
    fn add(&mut self, round: &[Vec<f64>]) {
        add_medians(&mut self.medians, round);
        for (to, batches) in self.leasts.iter_mut().zip(round) {
            to.extend(extremes(batches).map(|(least, _)| least));
        }
    }
}

impl Fixture<'_> {
    /// Returns a command that runs this program as a child to time, under `pagekeeper` with these arguments if any.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]);
        if !arguments.is_empty() {
            command.arg(&self.pagekeeper.path).args(arguments);
        }
        command.arg(&self.this).arg("preload-child").args([&self.file, &self.alike, &self.memory]);
        command
    }

    fn child(&self, arguments: &[&str]) -> Result<Timed> {
        Timed::start(&mut self.command(arguments))
    }

    /// Starts one child per subject.
    fn children(&self) -> Result<[Timed; 3]> {
        Ok([self.child(&NO_RULE)?, self.child(&[])?, self.child(&[])?])
    }

    /// Returns the time of `/bin/true` from start to end, in µs.
    fn launch(&self, under_run: bool) -> Result<f64> {
        let mut command = if under_run {
            let mut command = self.pagekeeper.command();
            command.args(NO_RULE).arg("/bin/true");
            command
        } else {
            Command::new("/bin/true")
        };
        let began = Instant::now();
        let status = command.status().context("can't start a process")?;
        let took = began.elapsed();
        ensure!(status.success(), "/bin/true ended with {status}");
        Ok(took.as_secs_f64() * 1e6)
    }

    /// Returns the average time of a read, in µs. Resident pages stay resident.
    fn read_stream(&self, reader: &mut Timed, cold: bool) -> Result<f64> {
        if cold {
            make_cold(&self.stream)?;
        } else {
            read_through(&crate::data::open(&self.stream)?, 0..STREAM_BYTES)?;
        }
        let path = self.stream.to_str().context("the directory's name is not UTF-8")?;
        let reads = STREAM_BYTES as f64 / STREAM_READ as f64;
        let took = reader.ask("stream", path)? / reads / 1e3;
        if !cold {
            require_resident(resident(&self.stream)?, STREAM_BYTES).context("of what was resident before")?;
        }
        Ok(took)
    }
}

/// Adds a table of one value per call, without ratios.
fn list(run: &mut Run, case: &str, unit: Unit, of_calls: &[(&'static str, Vec<f64>)]) {
    for (subject, values) in of_calls {
        if let (Some(value), Some(range)) = (median(values), extremes(values)) {
            run.report.rows.push(Row {
                case: case.to_owned(),
                subject: (*subject).to_owned(),
                value,
                unit,
                range,
                samples: values.len(),
                against: None,
            });
        }
    }
}

/// Returns the largest of the medians.
fn worst(of_calls: &[(&'static str, Vec<f64>)]) -> Option<f64> {
    of_calls.iter().filter_map(|(_, values)| median(values)).max_by(f64::total_cmp)
}

fn differences(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one - other).collect()
}

fn report_calls(run: &mut Run, times: &[Times]) {
    for (call, times) in Call::ALL.iter().zip(times) {
        let of = |(subject, values): (&&'static str, &Vec<f64>)| Samples { subject, values: values.clone() };
        let samples: Vec<Samples> = SUBJECTS.iter().zip(&times.medians).map(of).collect();
        run.report.add_case(call.title(), Unit::Nanoseconds, &samples);
    }
    let between = |of: fn(&Times) -> &Values, one: usize, other: usize| -> Vec<(&'static str, Vec<f64>)> {
        let each = Call::ALL.iter().zip(times);
        each.map(|(call, times)| (call.title(), differences(&of(times)[one], &of(times)[other]))).collect()
    };
    let cases = [
        ("a call under run less a plain one", between(|times| &times.medians, 0, 1), "shim_call_ns"),
        ("the same of the least batches", between(|times| &times.leasts, 0, 1), "shim_call_least_ns"),
        ("a plain one less another plain one", between(|times| &times.medians, 2, 1), "shim_plain_call_ns"),
    ];
    for (case, of_calls, name) in cases {
        list(run, case, Unit::Nanoseconds, &of_calls);
        if let Some(worst) = worst(&of_calls) {
            run.report.ratios.insert(name, worst);
        }
    }
}

/// Adds a case in whole microseconds, and the figure of what `run` adds.
fn plain_figure(run: &mut Run, case: &str, values: &Values, name: &'static str) {
    let of = |(subject, values): (&&'static str, &Vec<f64>)| Samples { subject, values: values.clone() };
    let samples: Vec<Samples> = SUBJECTS.iter().zip(values).map(of).collect();
    run.report.add_case(case, Unit::Microseconds, &samples);
    if let Some(more) = median(&differences(&values[0], &values[1])) {
        run.report.ratios.insert(name, more);
    }
}

/// Counts instructions; notes it where ptrace is not allowed.
fn count_instructions(run: &mut Run, place: &Fixture) {
    let count = |arguments: &[&str], call: Call| {
        let mut command = place.command(arguments);
        command.args(["--counted", &call.word(), "--calls", &COUNTED.to_string()]);
        steps::count(&mut command, COUNTED)
    };
    let mut more = Vec::new();
    for call in Call::ALL {
        match count(&NO_RULE, call).and_then(|ours| Ok(ours - count(&[], call)?)) {
            Ok(instructions) => more.push((call.title(), vec![instructions])),
            Err(error) => {
                run.note(&format!("instructions are not counted: {error:#}"));
                return;
            }
        }
    }
    list(run, "instructions of a call under run, more than of a plain one", Unit::Count, &more);
    if let Some(worst) = worst(&more) {
        run.report.ratios.insert("shim_call_instructions", worst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_turn_does_not_count_and_all_have_as_many() {
        let mut asked = Vec::new();
        let ask = |subject: usize| {
            asked.push(subject);
            Ok(asked.len() as f64)
        };
        let values = in_turn(&SUBJECTS, 4, &mut Random::new(5), ask).unwrap();
        assert!(values.iter().all(|values| values.len() == 4 && values.iter().all(|value| *value > 3.0)));
        assert_eq!(asked.len(), 15);
        assert!(asked.chunks(3).all(|turn| turn.iter().sum::<usize>() == 3));
    }

    #[test]
    fn the_worst_call_is_reported_by_its_median() {
        let of_calls = [("a", vec![1.0, 2.0, 90.0]), ("b", vec![4.0, 3.0, 5.0])];
        assert_eq!(worst(&of_calls), Some(4.0));
        assert_eq!(differences(&[5.0, 7.0], &[1.0, 2.0]), [4.0, 5.0]);
    }
}
