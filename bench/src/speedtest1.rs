//! `speedtest1`: SQLite's own benchmark with pagekeeper's VFS as the default one, beside SQLite's own VFS with a
//! rollback journal and in WAL mode.
//!
//! All use `synchronous=FULL`, and the source and library of Debian's SQLite. All queries' results must have the same
//! sum, by speedtest1's own hash. The log beside the database proves that our VFS was used. Fails with a plain message
//! where the program is not built.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Run;
use crate::peers;
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, median, run as run_rounds};

const OURS: &str = "pagekeeper's VFS, rollback journal";
const WAL: &str = "SQLite's VFS, WAL";
const ROLLBACK: &str = "SQLite's VFS, rollback journal";

/// A subject: its name, whether it is ours, and its journal mode.
const WAYS: [(&str, bool, &str); 3] =
    [(OURS, true, "delete"), (WAL, false, "wal"), (ROLLBACK, false, "delete")];

/// speedtest1's own measure of its amount of work; the default is 100.
const SIZE: u32 = 100;
const SIZE_QUICK: u32 = 10;
/// A test is shown by itself where it takes this share of the whole for some subject.
const SHOWN: f64 = 0.04;

/// The result of one run.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    /// Name of each test, and its time in ms.
    tests: Vec<(String, f64)>,
    total_ms: f64,
    /// Time from the start of the process to its end, in ms, including the close of the database.
    process_ms: f64,
    /// Hash of the queries' results.
    hash: String,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run, rounds: Option<u16>) -> Result<()> {
    let program = std::env::current_exe().context("can't find this program")?;
    let target = program.parent().and_then(Path::parent).context("this program is in no target directory")?;
    let (speedtest1, library) =
        (target.join("sqlite/speedtest1"), target.join("sqlite/pagekeeper_sqlite.so"));
    for built in [&speedtest1, &library] {
        ensure!(built.is_file(), "there is no {}; build it: make bench-speedtest1", built.display());
    }
    let size = if run.quick { SIZE_QUICK } else { SIZE };
    run.scratch.require_space(1 << 30)?;
    let version =
        peers::run(Command::new(&speedtest1).args(["--memdb", "--size", "1", "--testset", "fp"]))?.stdout;
    let version = version.split_whitespace().skip_while(|word| *word != "SQLite").nth(1).unwrap_or("unknown");
    run.report.machine.versions.insert("SQLite".to_owned(), version.to_owned());
    run.note(&format!("speedtest1 --size {size} --verify --journal MODE, synchronous=FULL, everything else as it is by default"));
    let dir = run.scratch.path().to_path_buf();
    let seen: Vec<RefCell<Vec<Seen>>> = WAYS.iter().map(|_| RefCell::default()).collect();
    let mut subjects: Vec<Subject<'_>> = WAYS
        .iter()
        .zip(&seen)
        .map(|(&(name, is_ours, journal), seen)| {
            let (speedtest1, dir) = (&speedtest1, &dir);
            let library = is_ours.then_some(&library);
            Subject::new(name, move || {
                seen.borrow_mut().push(sample(speedtest1, library, journal, size, dir).context(name)?);
                Ok(0.0)
            })
        })
        .collect();
    let rounds = rounds.map_or(3, usize::from);
    run.say(&format!("{rounds} rounds"))?;
    run_rounds(&mut subjects, Plan { rounds, until: None, warm_up: false }, &mut run.random, &run.stop)?;
    drop(subjects);
    let seen: Vec<Vec<Seen>> = seen.into_iter().map(RefCell::into_inner).collect();
    let mut hashes: Vec<&str> = seen.iter().flatten().map(|seen| &*seen.hash).collect();
    hashes.dedup();
    ensure!(hashes.len() == 1, "queries gave different results: {hashes:?}");
    report(run, size, &seen);
    Ok(())
}

fn sample(
    speedtest1: &Path,
    library: Option<&PathBuf>,
    journal: &str,
    size: u32,
    dir: &Path,
) -> Result<Seen> {
    let dir = tempfile::tempdir_in(dir).context("can't make a directory")?;
    let database = dir.path().join("test.db");
    let mut command = Command::new(speedtest1);
    command.args(["--verify", "--journal", journal, "--size"]).arg(size.to_string()).arg(&database);
    command.envs(library.map(|library| ("VFS", library)));
    let ended = peers::run(&mut command)?;
    let has_log = dir.path().join("test.db-pagekeeper").is_dir();
    ensure!(has_log == library.is_some(), "pagekeeper's VFS was the default one: {has_log}");
    let mut seen = parsed(&ended.stdout).context("speedtest1 says nothing that is understood")?;
    seen.process_ms = ended.seconds * 1e3;
    Ok(seen)
}

/// Parses lines like ` 100 - 50000 INSERTs into table with no index....    0.052s`.
fn parsed(out: &str) -> Option<Seen> {
    let timed = |line: &str| {
        let (name, seconds) = line.trim().rsplit_once(' ')?;
        let seconds: f64 = seconds.strip_suffix('s')?.parse().ok()?;
        Some((name.trim_end_matches([' ', '.']).to_owned(), seconds * 1e3))
    };
    let is_test =
        |name: &str| name.split_once(" - ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    let lines: Vec<(String, f64)> = out.lines().filter_map(timed).collect();
    let total_ms = lines.iter().find(|(name, _)| name == "TOTAL")?.1;
    let hash = out.lines().find_map(|line| line.strip_prefix("Verification Hash: "))?.trim().to_owned();
    let tests = lines.into_iter().filter(|(name, _)| is_test(name)).collect();
    Some(Seen { tests, total_ms, process_ms: 0.0, hash })
}

/// Reports the whole, and the tests with a large share of it.
fn report(run: &mut Run, size: u32, seen: &[Vec<Seen>]) {
    let figures = |of: &dyn Fn(&Seen) -> f64| -> Vec<Samples> {
        let samples = |((name, ..), seen): (&(&'static str, bool, &str), &Vec<Seen>)| Samples {
            subject: name,
            values: seen.iter().map(of).collect(),
        };
        WAYS.iter().zip(seen).map(samples).collect()
    };
    let total = figures(&|seen| seen.total_ms);
    run.report.add_case(&format!("speedtest1 --size {size}, its own total"), Unit::Milliseconds, &total);
    run.report.add_ratio("speedtest1_vs_rollback", Unit::Milliseconds, &total, OURS, ROLLBACK);
    run.report.add_ratio("speedtest1_vs_wal", Unit::Milliseconds, &total, OURS, WAL);
    let process = figures(&|seen| seen.process_ms);
    run.report.add_case("the whole process, the database's close included", Unit::Milliseconds, &process);
    let names: Vec<String> = seen
        .first()
        .and_then(|seen| seen.first())
        .map_or_else(Vec::new, |seen| seen.tests.iter().map(|test| test.0.clone()).collect());
    for (nth, name) in names.iter().enumerate() {
        let of_test = figures(&|seen| seen.tests.get(nth).map_or(0.0, |test| test.1));
        let is_much = of_test.iter().zip(&total).any(|(test, total)| {
            median(&test.values).zip(median(&total.values)).is_some_and(|(test, total)| test > total * SHOWN)
        });
        if is_much {
            run.report.add_case(name, Unit::Milliseconds, &of_test);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: &str = "\
-- Speedtest1 for SQLite 3.40.1 2022-12-28 14:03:47 df5c253c0b3dd24916e4ec7cf77d3db5
 100 - 50000 INSERTs into table with no index......................    0.052s
 190 - DELETE and REFILL one table.................................    1.250s
       TOTAL.......................................................    1.302s
Verification Hash: 4242 00ff
";

    #[test]
    fn what_it_says_is_understood() {
        let seen = parsed(OUT).unwrap();
        let tests = [
            ("100 - 50000 INSERTs into table with no index", 52.0),
            ("190 - DELETE and REFILL one table", 1250.0),
        ];
        assert_eq!(seen.tests, tests.map(|(name, ms)| (name.to_owned(), ms)));
        assert!((seen.total_ms - 1302.0).abs() < 1e-9);
        assert_eq!(seen.hash, "4242 00ff");
    }

    #[test]
    fn what_is_missing_is_not_made_up() {
        assert!(parsed(&OUT.replace("TOTAL", "SUM")).is_none());
        assert!(parsed(&OUT.replace("Verification", "No")).is_none());
    }
}
