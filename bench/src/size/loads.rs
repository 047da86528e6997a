//! The loads of `size`: fio, RocksDB, PostgreSQL and LMDB, each in a memory cgroup that holds a
//! part of its data.
//!
//! Invariant: a load ends with its case. One whose program is not installed is left out.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

use super::{LoadCase, PARTS, Phases, ReadCounts, SizedLoad, add_plain, compare, predicted, watch};
use crate::BenchRun;
use crate::data::MIB;
use crate::memory_group::{GroupParent, MemoryGroup};
use crate::peers::run as run_process;
use crate::report::FigureUnit;
use crate::running::RunningChild;
use crate::stream::postgresql::PostgreSql;

/// Longer than any run.
const LOAD_SECONDS: u64 = 7200;
/// Small caches of its own, so that the page cache does the work, and small tables, so that
/// compactions are short.
const ROCKSDB_SETTINGS: [&str; 6] = [
    "--value_size=100",
    "--compression_type=none",
    "--cache_size=8388608",
    "--write_buffer_size=4194304",
    "--target_file_size_base=4194304",
    "--max_bytes_for_level_base=16777216",
];
/// Debian's Python, to which the package belongs.
const PYTHON: &str = "/usr/bin/python3";
/// Random gets of LMDB for as many seconds as a line of the input says.
const LMDB_READER: &str = include_str!("../../../tests/host/lmdb_reader.py");

pub(super) fn fio(run: &mut BenchRun, groups: &GroupParent, phases: &Phases) -> Result<()> {
    let Some(program) = run.peer("fio") else { return Ok(()) };
    let (limit, file_mib) = if run.quick { (272 * MIB, 1024) } else { (1040 * MIB, 4096) };
    let file = run.scratch.path().join("fio");
    let options = |command: &mut Command, more: &[&str]| {
        command.args(["--name=size", "--bs=4k", "--thread", "--eta=never"]).args(more);
        command.arg(format!("--filename={}", file.display())).arg(format!("--size={file_mib}m"));
    };
    let mut write = program.command();
    options(&mut write, &["--rw=write", "--end_fsync=1"]);
    run_process(&mut write)?;
    let group = groups.create(limit)?;
    let mut command = group.command("fio");
    let zipf = ["--rw=randread", "--random_distribution=zipf:0.9", "--norandommap", "--randrepeat=0"];
    options(&mut command, &zipf);
    command.args(["--time_based", &format!("--runtime={LOAD_SECONDS}")]);
    let _load = started(&mut command)?;
    let case = LoadCase {
        name: "fio zipf 0.9, random reads of 4 KiB",
        error: "size_fio_error_percent",
        cost: "size_fio_cost_percent",
        has_whole_pages: true,
    };
    compare(run, &group, phases, &case)
}

pub(super) fn rocksdb(
    run: &mut BenchRun,
    groups: &GroupParent,
    phases: &Phases,
    load: SizedLoad,
) -> Result<()> {
    let Some(program) = run.peer("db_bench") else { return Ok(()) };
    let (limit, keys) = if run.quick { (192 * MIB, "4000000") } else { (560 * MIB, "16000000") };
    let (benchmark, case) = if load == SizedLoad::Readrandom {
        let case = LoadCase {
            name: "RocksDB readrandom",
            error: "size_rocksdb_error_percent",
            cost: "size_rocksdb_cost_percent",
            has_whole_pages: false,
        };
        ("readrandom", case)
    } else {
        let case = LoadCase {
            name: "RocksDB readwhilewriting",
            error: "size_rocksdb_writing_error_percent",
            cost: "size_rocksdb_writing_cost_percent",
            has_whole_pages: false,
        };
        ("readwhilewriting", case)
    };
    let directory = tempfile::tempdir_in(run.scratch.path())?;
    let mut common = vec![format!("--db={}", directory.path().display()), format!("--num={keys}")];
    common.extend(ROCKSDB_SETTINGS.map(str::to_owned));
    let mut fill = program.command();
    run_process(fill.args(["--benchmarks=fillseq", "--disable_wal=1"]).args(&common))?;
    evict(run, directory.path())?;
    let group = groups.create(limit)?;
    let mut command = group.command("db_bench");
    command.arg(format!("--benchmarks={benchmark}")).arg(format!("--duration={LOAD_SECONDS}"));
    // Some keys are read far more often than others; writes are few beside reads.
    command.args(["--use_existing_db=1", "--read_random_exp_range=8", "--threads=2"]).args(&common);
    command.arg("--benchmark_write_rate_limit=2000000");
    let _load = started(&mut command)?;
    compare(run, &group, phases, &case)
}

pub(super) fn postgresql(run: &mut BenchRun, groups: &GroupParent, phases: &Phases) -> Result<()> {
    if !run.has(&["pgbench", "initdb"]) {
        return Ok(());
    }
    let Some(program) = run.peer("postgres") else { return Ok(()) };
    let (limit, scale) = if run.quick { (384 * MIB, 60) } else { (896 * MIB, 200) };
    let group = groups.create(limit)?;
    let server = PostgreSql::start(&program, run.scratch.path(), &group, scale, &run.stop)?;
    let _load = started(&mut server.select_only(LOAD_SECONDS))?;
    let case = LoadCase {
        name: "PostgreSQL, pgbench -S",
        error: "size_pgbench_error_percent",
        cost: "size_pgbench_cost_percent",
        // The disk reads more than it asks for.
        has_whole_pages: false,
    };
    compare(run, &group, phases, &case)
}

/// Evicts data that was written outside the group, so that its pages are the group's from the first
/// read on.
fn evict(run: &BenchRun, directory: &Path) -> Result<()> {
    run_process(run.pagekeeper.command().arg("evict").arg(directory)).map(drop)
}

fn started(command: &mut Command) -> Result<RunningChild> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.map(RunningChild::from).context("can't start a load")
}

/// Random gets of LMDB. Its accesses go through a mapping: hit ratios are not known, and only the
/// bytes that a get reads from the disk, at the present size and above, can be compared.
pub(super) fn lmdb(run: &mut BenchRun, groups: &GroupParent, phases: &Phases) -> Result<()> {
    if run_process(Command::new(PYTHON).args(["-c", "import lmdb"])).is_err() {
        run.note("LMDB is left out: python3-lmdb is not installed");
        return Ok(());
    }
    run.say("LMDB")?;
    let (limit, keys) = if run.quick { (96 * MIB, "100000") } else { (160 * MIB, "200000") };
    let directory = run.scratch.path().join("lmdb");
    let mut fill = Command::new(PYTHON);
    run_process(fill.args(["-c", LMDB_READER]).arg(&directory).args([keys, "random"]))?;
    evict(run, &directory)?;
    let group = groups.create(limit)?;
    let mut command = group.command(PYTHON);
    command.args(["-c", LMDB_READER]).arg(&directory).args([keys, "random"]);
    let mut reader = LmdbReader::start(&mut command)?;
    reader.bytes_a_get(&group, phases.warm.as_secs())?;
    let seconds = phases.watched.as_secs();
    reader.begin(seconds + 2)?;
    let report = watch(run, &group, phases.watched)?;
    let gets_a_second = reader.gets()? / (seconds + 2) as f64;
    let present = report["present"]["page_cache_bytes"].as_f64().context("no present size")?;
    let other = report["other_bytes"].as_u64().context("no other memory")?;
    for (name, part) in PARTS.into_iter().filter(|(_, part)| *part >= 1.0) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of memory")]
        group.set_limit(other + (present * part) as u64)?;
        reader.bytes_a_get(&group, 2 * phases.warm.as_secs())?;
        let real = reader.bytes_a_get(&group, phases.window.as_secs())?;
        let reads = predicted(&report, "read_bytes_per_second", present * part).context("no prediction")?;
        let kib = |bytes: f64| bytes / 1024.0 / 1024.0 * 1000.0;
        let figures = [("predicted", kib(reads / gets_a_second)), ("true", kib(real))];
        let case = format!("LMDB, reads of 1,000 gets: {name} of the page cache");
        add_plain(run, &case, FigureUnit::Mib, &figures);
    }
    Ok(())
}

struct LmdbReader {
    _process: RunningChild,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl LmdbReader {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("can't start python3")?;
        let input = child.stdin.take().context("its input")?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self { _process: child.into(), input, output })
    }

    fn begin(&mut self, seconds: u64) -> Result<()> {
        writeln!(self.input, "{seconds}").context("LMDB's reader has ended")
    }

    /// Waits for the end, and returns the number of gets.
    fn gets(&mut self) -> Result<f64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().context("LMDB's reader has ended")
    }

    /// Returns the bytes that each get reads from the disk.
    fn bytes_a_get(&mut self, group: &MemoryGroup, seconds: u64) -> Result<f64> {
        let before = ReadCounts::now(group)?;
        self.begin(seconds)?;
        let gets = self.gets()?;
        Ok(ReadCounts::now(group)?.since(before).from_disk / gets.max(1.0))
    }
}
