//! `rocksdb`: Debian's `db_bench` with its tables in pagekeeper's page cache, in the kernel's (buffered, mapped), and
//! in RocksDB's own block caches over direct reads, with the same memory for all.
//!
//! Invariants: one size of memory cgroup holds process and page cache of every sample; each sample begins with an
//! uncached copy of one database, which is read once before the count. Caches with a size get all of the group's memory
//! that the process does not need. Fails with a plain message without root or the library; a missing `db_bench` is
//! named.

mod program;
mod subjects;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::Run;
use crate::data::MIB;
use crate::peers::Program;
use crate::pressure::group::Groups;
use crate::report::Unit;
use crate::rounds::{Plan, Samples, Subject, median, run as run_rounds};
use crate::scratch::Stop;
use program::Measured;
use subjects::{BUFFERED, BUFFERED_ALONE, DIRECT_CLOCK, DIRECT_LRU, MMAP, OURS, WAYS, Way};

/// Memory of a process that only reads, beside its caches: code, filters, stacks. 4 to 12 MiB are needed.
const READING_BYTES: u64 = 24 * MIB;
/// The same with memtables, and with a merge's input and output: with 24 MiB `db_bench` was killed.
const WRITING_BYTES: u64 = 48 * MIB;
const VALUE_BYTES: u64 = 400;
const KEY_BYTES: u64 = 16;
/// Keys of a batch of multireadrandom. `db_bench` fills in whole batches.
const BATCH: u64 = 32;

/// The benchmarks whose gets or seeks are counted, by `db_bench`'s names.
const READS: [&str; 3] = ["readrandom", "multireadrandom", "seekrandom"];
/// Gets beside one thread that puts, with flushes and compactions.
const BESIDE_PUTS: &str = "readwhilewriting";

/// What to measure: all of it takes many minutes, each part of it a few.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Choice {
    /// One size of the data only, in halves of the memory: 1, 2 or 8
    #[arg(long, value_name = "N")]
    halves: Option<u64>,
    /// One compression only, by RocksDB's name: none or lz4
    #[arg(long, value_name = "KIND")]
    compression: Option<String>,
    /// Reads only, or gets beside puts only
    #[arg(long, value_enum)]
    part: Option<Part>,
    /// Seconds of a benchmark [default: 2, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Reads,
    BesidePuts,
}

impl Choice {
    /// Returns the rest of a case; `None` if nothing is left.
    fn of(&self, mut case: Case) -> Option<Case> {
        let is_wanted = self.halves.is_none_or(|halves| halves == case.halves)
            && self.compression.as_deref().is_none_or(|kind| kind == case.compression);
        if self.part == Some(Part::BesidePuts) {
            case.reads = &[];
        }
        case.beside_puts &= self.part != Some(Part::Reads);
        (is_wanted && (case.beside_puts || !case.reads.is_empty())).then_some(case)
    }
}

/// The size of a run.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Limit of the cgroup, in bytes.
    limit: u64,
    /// Seconds of a benchmark.
    seconds: u64,
    rounds: usize,
}

/// A database and the benchmarks on it.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// Bytes of keys and values, in halves of the memory.
    halves: u64,
    /// Compression, by RocksDB's name.
    compression: &'static str,
    reads: &'static [&'static str],
    /// Whether it is also read beside puts.
    beside_puts: bool,
}

const FULL: [Case; 6] = [
    Case { halves: 1, compression: "none", reads: &READS, beside_puts: true },
    Case { halves: 2, compression: "none", reads: &READS, beside_puts: true },
    Case { halves: 8, compression: "none", reads: &READS, beside_puts: true },
    Case { halves: 1, compression: "lz4", reads: &READS, beside_puts: true },
    Case { halves: 2, compression: "lz4", reads: &READS, beside_puts: true },
    Case { halves: 8, compression: "lz4", reads: &READS, beside_puts: true },
];
const QUICK: [Case; 2] = [
    Case { halves: 1, compression: "none", reads: &["readrandom"], beside_puts: false },
    Case { halves: 8, compression: "none", reads: &["readrandom"], beside_puts: false },
];

impl Case {
    fn name(self) -> String {
        let compression = if self.compression == "none" { "uncompressed" } else { "LZ4" };
        format!("data {} x the memory, {compression}", self.halves as f64 / 2.0)
    }

    fn keys(self, limit: u64) -> u64 {
        (limit * self.halves / 2 / (KEY_BYTES + VALUE_BYTES)).next_multiple_of(BATCH)
    }
}

/// Runs the benchmark; `rounds` comes from the command line.
pub(crate) fn run(run: &mut Run, choice: &Choice, rounds: Option<u16>) -> Result<()> {
    let mut scale = if run.quick {
        Scale { limit: 192 * MIB, seconds: 1, rounds: 3 }
    } else {
        Scale { limit: 256 * MIB, seconds: 2, rounds: 3 }
    };
    scale.rounds = rounds.map_or(scale.rounds, usize::from);
    scale.seconds = choice.seconds.unwrap_or(scale.seconds);
    let Some(db_bench) = run.peer("db_bench") else {
        // Everything here needs it.
        return Ok(());
    };
    let plugin = plugin()?;
    let groups = Groups::find()?;
    let all: &[Case] = if run.quick { &QUICK } else { &FULL };
    let cases: Vec<Case> = all.iter().filter_map(|case| choice.of(*case)).collect();
    ensure!(!cases.is_empty(), "there is no such case: --halves 1, 2 or 8, --compression none or lz4");
    let ways: Vec<Way> = WAYS.into_iter().filter(|way| way.in_quick || !run.quick).collect();
    note(run, scale, &groups, &ways);
    let largest = cases.iter().map(|case| case.halves).max().unwrap_or(0);
    // Filling needs room for one merge.
    run.scratch.require_space(scale.limit * largest / 2 * 3)?;
    let stop = run.stop.clone();
    let place = SampleSetup {
        groups,
        scale,
        db_bench,
        plugin,
        scratch: run.scratch.path().to_path_buf(),
        stop,
        first_seed: run.random.next_u64() >> 32,
    };
    for case in cases {
        run.say(&format!("{}: filling it", case.name()))?;
        let database = place.fill(case)?;
        run.say(&format!("{}: {} MiB of tables", case.name(), program::table_bytes(&database)? / MIB))?;
        if !case.reads.is_empty() {
            read(run, &place, &ways, case, &database)?;
        }
        if case.beside_puts {
            run.say(&format!("{}: beside puts", case.name()))?;
            beside_puts(run, &place, &ways, case, &database)?;
        }
        std::fs::remove_dir_all(&database).context("can't remove the database")?;
    }
    Ok(())
}

/// Returns the path of the library, where `make rocksdb-plugin` puts it.
fn plugin() -> Result<PathBuf> {
    let program = std::env::current_exe().context("can't find this program")?;
    let target = program.parent().and_then(Path::parent).context("this program is in no target directory")?;
    let path = target.join("rocksdb/librocksdb_pagekeeper.so");
    ensure!(path.is_file(), "there is no {}; build it: make rocksdb-plugin", path.display());
    Ok(path)
}

fn note(run: &mut Run, scale: Scale, groups: &Groups, ways: &[Way]) {
    let (reading, writing) = (budget(scale, ""), budget(scale, BESIDE_PUTS));
    run.note(&format!(
        "a memory cgroup (version {}) of {} MiB for process and page cache together; caches have {} MiB of them, {} beside puts, block caches seven eighths of that and the allocator's overhead",
        groups.version(),
        scale.limit / MIB,
        reading / MIB,
        writing / MIB
    ));
    if run.quick {
        run.note("quick: readrandom alone, two sizes, uncompressed, fewer subjects; without --quick also multireadrandom, seekrandom, readwhilewriting, LZ4, mmap");
    }
    run.note("Debian's db_bench has RocksDB's assertions, for all subjects alike, and no io_uring; another one may differ");
    let all = "KIND".to_owned();
    run.note(&format!("all: db_bench {}", common(1, "DATABASE", &all, scale.seconds).join(" ")));
    for way in ways {
        let preload = if way.is_ours { "LD_PRELOAD=librocksdb_pagekeeper.so " } else { "" };
        run.note(&format!("{}: {preload}… {}", way.name, way.options(reading).join(" ")));
    }
}

/// Returns the bytes of caches, beside what the process itself needs for these benchmarks.
fn budget(scale: Scale, benchmarks: &str) -> u64 {
    scale.limit - if benchmarks.contains(BESIDE_PUTS) { WRITING_BYTES } else { READING_BYTES }
}

/// Returns the options of all subjects.
fn common(keys: u64, database: &str, compression: &str, seconds: u64) -> Vec<String> {
    let mut options = vec![
        format!("--db={database}"),
        format!("--num={keys}"),
        format!("--key_size={KEY_BYTES}"),
        format!("--value_size={VALUE_BYTES}"),
        format!("--compression_type={compression}"),
        format!("--duration={seconds}"),
        format!("--batch_size={BATCH}"),
    ];
    let fixed = [
        "--bloom_bits=10",
        "--threads=4",
        "--seek_nexts=10",
        "--multiread_batched=true",
        "--write_buffer_size=4194304",
        "--max_bytes_for_level_base=33554432",
        "--benchmark_write_rate_limit=8000000",
        "--histogram=true",
    ];
    options.extend(fixed.map(str::to_owned));
    options
}

/// The surroundings of all samples.
struct SampleSetup {
    groups: Groups,
    scale: Scale,
    db_bench: Program,
    plugin: PathBuf,
    scratch: PathBuf,
    stop: Stop,
    first_seed: u64,
}

impl SampleSetup {
    /// Creates a database with all its keys in its last level, by RocksDB's own file system.
    fn fill(&self, case: Case) -> Result<PathBuf> {
        let database = self.scratch.join("database");
        let path = database.to_str().context("the path is not UTF-8")?;
        let mut arguments = common(case.keys(self.scale.limit), path, case.compression, 0);
        let filled = ["--threads=1", "--disable_wal=true", "--benchmark_write_rate_limit=0"];
        arguments.extend(filled.map(str::to_owned));
        arguments.push("--write_buffer_size=33554432".to_owned());
        arguments.push("--benchmarks=fillseq,compact".to_owned());
        program::run(&self.db_bench, None, None, &arguments, &self.scratch.join("fill"), &self.stop)?;
        // Dirty pages cannot be dropped. Syncs this file system alone, because sync(2) would wait for another one that
        // hangs.
        let directory = std::fs::File::open(&database).context("can't open the database")?;
        rustix::fs::syncfs(&directory).context("can't sync the file system")?;
        Ok(database)
    }

    /// Takes one sample: returns `db_bench`'s output for these benchmarks.
    fn sample(&self, way: &Way, case: Case, database: &Path, round: u64, benchmarks: &str) -> Result<String> {
        let copy = self.scratch.join("copy");
        program::copy(database, &copy)?;
        program::cool(&copy)?;
        let keys = case.keys(self.scale.limit);
        let path = copy.to_str().context("the path is not UTF-8")?;
        let mut arguments = common(keys, path, case.compression, self.scale.seconds);
        arguments.extend(way.options(budget(self.scale, benchmarks)));
        // All subjects of a round use the same keys; 0 would mean the clock.
        arguments.push(format!("--seed={}", self.first_seed + round + 1));
        arguments.push("--use_existing_db=true".to_owned());
        arguments.push(format!("--benchmarks={benchmarks}"));
        if benchmarks.contains(BESIDE_PUTS) {
            arguments.push("--statistics=true".to_owned());
        }
        let group = self.groups.create(self.scale.limit)?;
        let plugin = way.is_ours.then_some(self.plugin.as_path());
        let output = self.scratch.join("db_bench");
        let out = program::run(&self.db_bench, Some(&group), plugin, &arguments, &output, &self.stop)?;
        drop(group);
        std::fs::remove_dir_all(&copy).context("can't remove the copy")?;
        Ok(out)
    }
}

/// Measures reads: all data is read once, then the first benchmark runs without being counted.
fn read(run: &mut Run, place: &SampleSetup, ways: &[Way], case: Case, database: &Path) -> Result<()> {
    let first = case.reads.first().copied().unwrap_or_default();
    let benchmarks = format!("readseq,{first},{}", case.reads.join(","));
    let parse = |out: &str| case.reads.iter().map(|name| program::measured_in(out, name)).collect();
    let seen = samples(run, place, ways, case, database, &benchmarks, parse)?;
    for (nth, name) in case.reads.iter().enumerate() {
        let figure =
            |of: fn(&Measured) -> f64| figures(ways, &seen, |sample: &Vec<Measured>| of(&sample[nth]));
        let title = format!("{name}, {}", case.name());
        let rates = figure(|measured| measured.per_second);
        run.report.add_case(&title, Unit::OperationsPerSecond, &rates);
        let of_one = if *name == "multireadrandom" { "a batch, p50" } else { "p50" };
        let title = format!("{title}: {of_one}");
        run.report.add_case(&title, Unit::Microseconds, &figure(|measured| measured.p50_us));
        if let Some(ratio) = ratio_name(name, case) {
            let best = best(&rates, &[BUFFERED, BUFFERED_ALONE, DIRECT_LRU, DIRECT_CLOCK]);
            run.report.add_ratio(ratio, Unit::OperationsPerSecond, &rates, OURS, best);
        }
        if let Some(ratio) = mmap_ratio_name(name, case) {
            run.report.add_ratio(ratio, Unit::OperationsPerSecond, &rates, OURS, MMAP);
        }
    }
    Ok(())
}

/// Measures gets beside puts that make the database flush and merge.
fn beside_puts(run: &mut Run, place: &SampleSetup, ways: &[Way], case: Case, database: &Path) -> Result<()> {
    let benchmarks = format!("readseq,{BESIDE_PUTS}");
    let parse = |out: &str| Ok((program::measured_in(out, BESIDE_PUTS)?, program::longest_put_ms(out)?));
    let seen = samples(run, place, ways, case, database, &benchmarks, parse)?;
    let title = format!("{BESIDE_PUTS}, {}", case.name());
    let rates = figures(ways, &seen, |(measured, _)| measured.per_second);
    let p999 = figures(ways, &seen, |(measured, _)| measured.p999_us);
    let longest = figures(ways, &seen, |(_, put)| *put);
    let report = &mut run.report;
    report.add_case(&title, Unit::OperationsPerSecond, &rates);
    report.add_case(&format!("{title}: get p99.9"), Unit::Microseconds, &p999);
    report.add_case(&format!("{title}: the longest put"), Unit::Milliseconds, &longest);
    if case.halves > 2 {
        report.add_ratio("rocksdb_p999_vs_buffered", Unit::Microseconds, &p999, OURS, BUFFERED);
        report.add_ratio("rocksdb_max_put_vs_direct", Unit::Milliseconds, &longest, OURS, DIRECT_LRU);
    }
    Ok(())
}

/// Runs all ways in turn, round by round, and returns each way's samples.
fn samples<T>(
    run: &mut Run,
    place: &SampleSetup,
    ways: &[Way],
    case: Case,
    database: &Path,
    benchmarks: &str,
    parse: impl Fn(&str) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let seen: Vec<RefCell<Vec<T>>> = ways.iter().map(|_| RefCell::default()).collect();
    let (began, parse) = (run.began, &parse);
    let mut subjects: Vec<Subject> = ways
        .iter()
        .zip(&seen)
        .map(|(way, seen)| {
            Subject::new(way.name, move || {
                eprintln!("{:>5.1} s  {}", began.elapsed().as_secs_f64(), way.name);
                let round = seen.borrow().len() as u64;
                let out = place.sample(way, case, database, round, benchmarks)?;
                seen.borrow_mut().push(parse(&out)?);
                Ok(0.0)
            })
        })
        .collect();
    let plan = Plan { rounds: place.scale.rounds, until: None, warm_up: false };
    run_rounds(&mut subjects, plan, &mut run.random, &place.stop)?;
    drop(subjects);
    Ok(seen.into_iter().map(RefCell::into_inner).collect())
}

fn figures<T>(ways: &[Way], seen: &[Vec<T>], of: impl Fn(&T) -> f64) -> Vec<Samples> {
    let of_way =
        |(way, seen): (&Way, &Vec<T>)| Samples { subject: way.name, values: seen.iter().map(&of).collect() };
    ways.iter().zip(seen).map(of_way).collect()
}

/// Returns the fastest of these subjects, by its median.
fn best(rates: &[Samples], of: &[&'static str]) -> &'static str {
    let peers = rates.iter().filter(|samples| of.contains(&samples.subject));
    let rate = |samples: &&Samples| median(&samples.values).unwrap_or(0.0);
    peers.max_by(|a, b| rate(a).total_cmp(&rate(b))).map_or("", |samples| samples.subject)
}

fn ratio_name(benchmark: &str, case: Case) -> Option<&'static str> {
    match (benchmark, case.halves, case.compression) {
        ("readrandom", 1, "none") => Some("rocksdb_fits_vs_best_peer"),
        ("readrandom", 1, "lz4") => Some("rocksdb_fits_lz4_vs_best_peer"),
        ("readrandom", 2, "none") => Some("rocksdb_1x_vs_best_peer"),
        ("readrandom", 8, "none") => Some("rocksdb_4x_vs_best_peer"),
        ("readrandom", 8, "lz4") => Some("rocksdb_4x_lz4_vs_best_peer"),
        ("multireadrandom", 1, "none") => Some("rocksdb_fits_multi_vs_best_peer"),
        ("multireadrandom", 8, "none") => Some("rocksdb_4x_multi_vs_best_peer"),
        ("seekrandom", 1, "none") => Some("rocksdb_fits_seek_vs_best_peer"),
        ("seekrandom", 8, "none") => Some("rocksdb_4x_seek_vs_best_peer"),
        _ => None,
    }
}

fn mmap_ratio_name(benchmark: &str, case: Case) -> Option<&'static str> {
    match (benchmark, case.halves, case.compression) {
        ("readrandom", 1, "none") => Some("rocksdb_fits_vs_mmap"),
        ("readrandom", 8, "none") => Some("rocksdb_4x_vs_mmap"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_the_peers_is_the_one_with_the_greatest_median() {
        let of = |subject, values: &[f64]| Samples { subject, values: values.to_vec() };
        let rates = [
            of(OURS, &[9.0, 9.0, 9.0]),
            of(BUFFERED, &[1.0, 2.0, 8.0]),
            of(DIRECT_LRU, &[3.0, 3.0, 1.0]),
            of(MMAP, &[5.0, 5.0, 5.0]),
        ];
        assert_eq!(best(&rates, &[BUFFERED, DIRECT_LRU]), DIRECT_LRU);
        assert_eq!(best(&rates, &[]), "");
    }

    #[test]
    fn all_subjects_have_the_same_memory() {
        for way in WAYS {
            let sizes: u64 = way
                .options(64 * MIB)
                .iter()
                .filter_map(|option| option.rsplit_once('=')?.1.parse::<u64>().ok())
                .sum();
            let by_kernel = [BUFFERED, BUFFERED_ALONE, MMAP].contains(&way.name);
            assert_eq!(sizes <= 8 * MIB, by_kernel, "{}: {sizes}", way.name);
            assert!(by_kernel || (48 * MIB..=64 * MIB).contains(&sizes), "{}: {sizes}", way.name);
        }
    }
}
