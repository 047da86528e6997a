//! `db_bench` on a copy of a database inside a memory cgroup, and its figures.
//!
//! Invariants: tables of the copy are links, so the database never changes; none of their pages is in the kernel's page
//! cache when it starts; every get must find its key. It is killed with its handle, and when the thread that started it
//! ends. Fails with the program's output.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::data::make_cold;
use crate::db_bench::{last_lines, number_before, number_behind};
use crate::peers::Program;
use crate::pressure::group::Group;
use crate::scratch::Stop;

/// The figures of one of `db_bench`'s benchmarks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Measured {
    /// Operations per second, of all threads.
    pub(super) per_second: f64,
    /// Median of an operation, in µs.
    pub(super) p50_us: f64,
    /// 99.9th percentile of an operation, in µs.
    pub(super) p999_us: f64,
}

/// Copies the database in `from`; its tables are links to the same files.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("can't copy {} to {}", from.display(), to.display());
    std::fs::create_dir(to).with_context(failed)?;
    for entry in std::fs::read_dir(from).with_context(failed)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        if path.extension().is_some_and(|end| end == "sst") {
            std::fs::hard_link(&path, to.join(name)).with_context(failed)?;
        } else {
            std::fs::copy(&path, to.join(name)).with_context(failed)?;
        }
    }
    Ok(())
}

/// Drops all tables of a database from the page cache.
pub(super) fn cool(database: &Path) -> Result<()> {
    for path in tables(database)? {
        make_cold(&path)?;
    }
    Ok(())
}

/// Returns the bytes of the tables of a database.
pub(super) fn table_bytes(database: &Path) -> Result<u64> {
    tables(database)?.iter().try_fold(0, |sum, path| Ok(sum + path.metadata()?.len()))
}

fn tables(database: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(database)
        .with_context(|| format!("can't list {}", database.display()))?
        .collect::<std::io::Result<Vec<_>>>()?;
    let paths = entries.iter().map(std::fs::DirEntry::path);
    Ok(paths.filter(|path| path.extension().is_some_and(|end| end == "sst")).collect())
}

/// Runs `db_bench` to its end, in the group if there is one, and returns its output.
pub(super) fn run(
    db_bench: &Program,
    group: Option<&Group>,
    library: Option<&Path>,
    arguments: &[String],
    output: &Path,
    stop: &Stop,
) -> Result<String> {
    let mut command = match group {
        Some(group) => group.command("setpriv"),
        None => Command::new("setpriv"),
    };
    // An allocator with an arena per thread needs as much memory again as a block cache has, and db_bench is killed for
    // lack of memory.
    command.env("MALLOC_ARENA_MAX", "1");
    command.args(["--pdeathsig=KILL", "--"]);
    // Set behind the shell that enters the group, which must not load it.
    if let Some(library) = library {
        command.arg("env").arg(format!("LD_PRELOAD={}", library.display()));
    }
    command.arg(&db_bench.path).args(arguments);
    let ended = crate::db_bench::run(command, output, Duration::from_millis(20), stop)?;
    let killed = group.is_some_and(Group::has_killed);
    ensure!(!killed, "db_bench was killed: it needs more memory than the cgroup has");
    ensure!(ended.status.success(), "db_bench ended with {}: {}", ended.status, last_lines(&ended.err));
    Ok(ended.out)
}

/// Returns the figures of the last run of a benchmark; fails where it is missing, or a key was not found.
pub(super) fn measured_in(out: &str, benchmark: &str) -> Result<Measured> {
    let understood = || {
        let title = format!("{benchmark} ");
        let is_title = |line: &&str| line.starts_with(&title) && line.contains("ops/sec");
        let line = out.lines().rfind(is_title)?;
        let (_, behind) = out.rsplit_once(line)?;
        let percentiles = behind.lines().find(|line| line.starts_with("Percentiles:"))?;
        let measured = Measured {
            per_second: number_before(line, "ops/sec")?,
            p50_us: number_behind(percentiles, "P50: ")?,
            p999_us: number_behind(percentiles, "P99.9: ")?,
        };
        Some((measured, found_in(line)))
    };
    let (measured, found) = understood().with_context(|| {
        format!("db_bench says nothing of {benchmark} that is understood: {}", last_lines(out))
    })?;
    if let Some((found, of)) = found {
        ensure!(found == of, "{benchmark}: {found} of {of} keys were found");
    }
    Ok(measured)
}

/// Parses the keys found and looked up: `(7999 of 8000 found)`.
fn found_in(line: &str) -> Option<(u64, u64)> {
    let (found, of) = line.split_once('(')?.1.split_once(" found)")?.0.split_once(" of ")?;
    Some((found.parse().ok()?, of.parse().ok()?))
}

/// Returns the longest put that the database counted, in ms.
pub(super) fn longest_put_ms(out: &str) -> Result<f64> {
    let line = out.lines().rfind(|line| line.starts_with("rocksdb.db.write.micros "));
    let longest = line.and_then(|line| number_behind(line, "P100 : "));
    Ok(longest.context("the database does not say how long its puts took")? / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: &str = "\
readrandom   :      99.000 micros/op 1 ops/sec 1.160 seconds 16998 operations;    5.8 MB/s (7999 of 7999 found)
Microseconds per read:
Percentiles: P50: 1.00 P75: 101.21 P99: 797.86 P99.9: 2.00 P99.99: 46034.47
readrandom   :     133.107 micros/op 14653 ops/sec 1.160 seconds 16998 operations;    5.8 MB/s (7999 of 7999 found)
Microseconds per read:
Percentiles: P50: 79.73 P75: 101.21 P99: 797.86 P99.9: 11018.93 P99.99: 46034.47
seekrandom   :     284.238 micros/op 6765 ops/sec 1.182 seconds 7998 operations;   26.8 MB/s (3999 of 3999 found)
Percentiles: P50: 194.67 P75: 234.61 P99: 2963.12 P99.9: 18803.20 P99.99: 40418.00
rocksdb.db.write.micros P50 : 3.126623 P95 : 8.442155 P99 : 65.036673 P100 : 128128.000000 COUNT : 63514 SUM : 1127368
";

    #[test]
    fn the_last_run_of_a_benchmark_is_understood() {
        let read = Measured { per_second: 14653.0, p50_us: 79.73, p999_us: 11018.93 };
        assert_eq!(measured_in(OUT, "readrandom").unwrap(), read);
        let seek = Measured { per_second: 6765.0, p50_us: 194.67, p999_us: 18803.20 };
        assert_eq!(measured_in(OUT, "seekrandom").unwrap(), seek);
        assert!((longest_put_ms(OUT).unwrap() - 128.128).abs() < 1e-9);
    }

    #[test]
    fn what_is_missing_or_was_not_found_is_an_error() {
        let error = measured_in(OUT, "multireadrandom").unwrap_err();
        assert!(error.to_string().contains("nothing of multireadrandom"), "{error}");
        let error = measured_in(&OUT.replace("(7999 of", "(7998 of"), "readrandom").unwrap_err();
        assert_eq!(error.to_string(), "readrandom: 7998 of 7999 keys were found");
        assert!(longest_put_ms("").is_err());
    }
}
