//! `db_bench` putting at a pace into an empty database, and its figures.
//!
//! Invariants: it is killed with its handle, and when the thread that started it ends. The database
//! must have counted as many puts as `db_bench` and no sync of the log, else it is an error. Fails
//! with the program's output.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::db_bench::{DbBenchOutput, last_lines, number_before, number_behind, run};
use crate::peers::InstalledProgram;
use crate::scratch::StopRequest;

/// Bytes put per second.
const PUT_RATE: u64 = 25_000_000;

/// A put that waits for a processor would look like one that waits for the disk, so `db_bench` runs
/// at a higher priority than other programs. A nice value counts only among the processes of a
/// session (`sched_autogroup`), so it gets a session of its own, with a nice value as well.
/// Real-time priority would make the kernel raise the dirty limits for it.
const GO_BEFORE: &str = r#"{ echo -15 >/proc/self/autogroup; } 2>/dev/null; exec nice -n -15 "$@""#;

/// The keys and the duration of a put phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct PutPhase {
    /// Duration of the puts.
    pub(super) seconds: u64,
    /// Seed of the keys, which is the same for all subjects of a round.
    pub(super) seed: u64,
}

/// The figures that `db_bench` reports for its puts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct PutFigures {
    /// Number of puts.
    pub(super) puts: u64,
    /// Puts per second.
    pub(super) per_second: f64,
    /// 99.9th percentile, in µs.
    pub(super) p999_us: f64,
    /// The longest put, in ms.
    pub(super) longest_ms: f64,
}

/// Returns the arguments that make `db_bench` put values of 1 KB with an unsynced log and small
/// levels. Nothing of RocksDB except the rate holds puts back, so a long put is caused below it.
fn arguments(database: &Path, puts: PutPhase, more: &[&str]) -> Vec<String> {
    let fixed = [
        // `stats` is the database's own account, requested after all puts.
        "--benchmarks=fillrandom,stats",
        "--value_size=1000",
        "--num=1000000000",
        "--histogram",
        "--compression_type=none",
        "--write_buffer_size=33554432",
        "--max_write_buffer_number=20",
        "--target_file_size_base=33554432",
        "--max_bytes_for_level_base=134217728",
        "--level0_file_num_compaction_trigger=4",
        "--level0_slowdown_writes_trigger=1000",
        "--level0_stop_writes_trigger=1000",
        "--max_background_jobs=4",
    ];
    let mut arguments: Vec<String> =
        fixed.into_iter().chain(more.iter().copied()).map(str::to_owned).collect();
    arguments.push(format!("--benchmark_write_rate_limit={PUT_RATE}"));
    arguments.push(format!("--duration={}", puts.seconds));
    arguments.push(format!("--seed={}", puts.seed));
    arguments.push(format!("--db={}", database.display()));
    arguments
}

/// Puts into a new database with `db_bench` under `launcher` (empty: directly) and returns the
/// figures.
pub(super) fn put(
    launcher: &[&str],
    db_bench: &InstalledProgram,
    place: (&Path, &Path),
    puts: PutPhase,
    more: &[&str],
    stop: &StopRequest,
) -> Result<PutFigures> {
    let (database, output) = place;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", "setsid", "sh", "-c", GO_BEFORE, "sh"]);
    command.args(launcher).arg(&db_bench.path);
    command.args(arguments(database, puts, more));
    let DbBenchOutput { status, out, err } = run(command, output, Duration::from_millis(100), stop)?;
    ensure!(status.success(), "db_bench ended with {status}: {}", last_lines(&err));
    let measured =
        measured_in(&out).with_context(|| format!("db_bench is not understood: {}", last_lines(&out)))?;
    check(&out, measured)?;
    Ok(measured)
}

fn measured_in(out: &str) -> Option<PutFigures> {
    let (_, behind) = out.split_once("fillrandom   :")?;
    let line = behind.lines().next()?;
    let puts = number_before(line, "operations")?;
    let counted = number_behind(behind, "Count: ")?;
    #[allow(
        clippy::float_cmp,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count, written as a whole number"
    )]
    let puts = (puts == counted).then_some(puts as u64)?;
    Some(PutFigures {
        puts,
        per_second: number_before(line, "ops/sec")?,
        p999_us: number_behind(behind, "P99.9: ")?,
        longest_ms: number_behind(behind, "Max: ")? / 1e3,
    })
}

/// Fails unless the database has counted as many puts (it reports thousands) and has not synced its
/// log.
fn check(out: &str, measured: PutFigures) -> Result<()> {
    let line = |name: &str| out.lines().rev().find_map(|line| line.strip_prefix(name));
    let Some((writes, wal)) = line("Cumulative writes: ").zip(line("Cumulative WAL: ")) else {
        bail!("the database does not say what it has counted");
    };
    let thousands = writes.split('K').next().and_then(|number| number.trim().parse::<u64>().ok());
    let counted = thousands.with_context(|| format!("not a count: {writes}"))?;
    ensure!(
        counted.abs_diff(measured.puts / 1000) <= 1,
        "the database counted {counted} thousand puts, db_bench {}",
        measured.puts
    );
    ensure!(number_before(wal, "syncs") == Some(0.0), "the log was synced: {wal}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: &str = "\
DB path: [/mnt/db]
fillrandom   :      41.816 micros/op 23914 ops/sec 40.060 seconds 957999 operations;   23.2 MB/s
Microseconds per write:
Count: 957999 Average: 6.9  StdDev: 513.02
Min: 2  Median: 4.7494  Max: 208878
Percentiles: P50: 4.75 P75: 6.14 P99: 14.78 P99.9: 67.67 P99.99: 4344.87
------------------------------------------------------
Cumulative writes: 0 writes, 0 keys
Cumulative writes: 957K writes, 957K keys, 957K commit groups, 1.0 writes per commit group, ingest: 0.9 GB
Cumulative WAL: 957K writes, 0 syncs, 957000.00 writes per sync, written: 0.9 GB, 25.12 MB/s
";

    #[test]
    fn the_output_of_db_bench_is_parsed() {
        let measured = measured_in(OUT).unwrap();
        let right = PutFigures { puts: 957_999, per_second: 23914.0, p999_us: 67.67, longest_ms: 208.878 };
        assert_eq!(measured, right);
        check(OUT, measured).unwrap();
    }

    #[test]
    fn puts_that_are_missing_are_an_error() {
        assert_eq!(measured_in(&OUT.replace("Count: 957999", "Count: 957998")), None);
        assert_eq!(measured_in(""), None);
        let measured = measured_in(OUT).unwrap();
        assert!(check(&OUT.replace("957K", "900K"), measured).is_err());
        assert!(check(&OUT.replace(" 0 syncs", " 3 syncs"), measured).is_err());
        assert!(check("", measured).is_err());
    }
}
