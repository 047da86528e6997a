//! `sqlite`: SQLite with pagekeeper's VFS and a rollback journal, against its own VFS in WAL mode
//! and with a rollback journal: commits of one row, and reads by key.
//!
//! All use `synchronous=FULL`, one connection, and the same rows. Each sample checks the committed
//! rows. The library is loaded as users load it. Fails with a plain message without it, and where
//! SQLite fails.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OpenFlags, params};

use crate::BenchRun;
use crate::report::FigureUnit;
use crate::rounds::{SplitMix, SubjectSamples};

/// Rows that commits and reads choose from.
const TABLE_ROWS: u32 = 100_000;
/// Bytes of each of them.
const TABLE_ROW_BYTES: usize = 500;
/// Duration of a sample of commits or reads.
const SAMPLE_DURATION: Duration = Duration::from_millis(700);
/// Names in tables.
const OUR_VFS_NAME: &str = "pagekeeper's VFS, rollback journal";
const WAL_VFS_NAME: &str = "SQLite's VFS, WAL";
const ROLLBACK_VFS_NAME: &str = "SQLite's VFS, rollback journal";

/// A subject.
#[derive(Debug, Clone, Copy)]
struct VfsSubject {
    name: &'static str,
    /// Its name in files.
    word: &'static str,
    vfs: &'static str,
    journal: &'static str,
}

const VFS_SUBJECTS: [VfsSubject; 3] = [
    VfsSubject { name: OUR_VFS_NAME, word: "ours", vfs: "pagekeeper", journal: "DELETE" },
    VfsSubject { name: WAL_VFS_NAME, word: "wal", vfs: "unix", journal: "WAL" },
    VfsSubject { name: ROLLBACK_VFS_NAME, word: "rollback", vfs: "unix", journal: "DELETE" },
];

/// Returns the path of the library, where `make sqlite-plugin` puts it.
fn library() -> Result<PathBuf> {
    let program = std::env::current_exe().context("can't find this program")?;
    let target = program.parent().and_then(Path::parent).context("this program is in no target directory")?;
    let path = target.join("sqlite/pagekeeper_sqlite.so");
    ensure!(path.is_file(), "there is no {}; build it: make sqlite-plugin", path.display());
    Ok(path)
}

/// Loads the VFS into this process.
fn load(library: &Path) -> Result<()> {
    let connection = Connection::open_in_memory()?;
    // SAFETY: the library was built with this program; its entry point is what SQLite expects.
    #[expect(unsafe_code, reason = "code of a library is run")]
    unsafe {
        let _enabled = rusqlite::LoadExtensionGuard::new(&connection)?;
        connection.load_extension(library, None::<&str>)?;
    }
    Ok(())
}

impl VfsSubject {
    fn database(self, dir: &Path, what: &str) -> PathBuf {
        dir.join(format!("{}-{what}.db", self.word))
    }

    fn open(self, database: &Path) -> Result<Connection> {
        let connection = Connection::open_with_flags_and_vfs(database, OpenFlags::default(), self.vfs)
            .with_context(|| format!("{}: {}", self.name, database.display()))?;
        connection.pragma_update(None, "page_size", 4096)?;
        let mode: String =
            connection.query_row(&format!("PRAGMA journal_mode={}", self.journal), [], |row| row.get(0))?;
        ensure!(mode.eq_ignore_ascii_case(self.journal), "{}: the journal's mode is {mode}", self.name);
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(connection)
    }

    /// Creates a table with this many rows.
    fn fill(self, database: &Path, rows: u32, bytes: usize) -> Result<Connection> {
        let mut connection = self.open(database)?;
        connection
            .execute_batch("CREATE TABLE t (a INTEGER PRIMARY KEY, n INTEGER NOT NULL, b BLOB NOT NULL)")?;
        let txn = connection.transaction()?;
        {
            let mut insert = txn.prepare("INSERT INTO t VALUES (?, 0, ?)")?;
            for row in 0..rows {
                insert.execute(params![row, content(row, bytes)])?;
            }
        }
        txn.commit()?;
        Ok(connection)
    }
}

/// Returns the bytes of a row.
fn content(row: u32, bytes: usize) -> Vec<u8> {
    row.to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    let library = library()?;
    load(&library)?;
    run.report.machine.versions.insert("SQLite".to_owned(), rusqlite::version().to_owned());
    run.note("synchronous=FULL, one connection, pages of 4 KiB, SQLite's cache as it is by default (2 MiB)");
    commits_and_reads(run)
}

fn commits_and_reads(run: &mut BenchRun) -> Result<()> {
    run.say("filling tables")?;
    let dir = run.scratch.path().to_path_buf();
    let mut connections = Vec::new();
    for way in VFS_SUBJECTS {
        connections.push((way, way.fill(&way.database(&dir, "rows"), TABLE_ROWS, TABLE_ROW_BYTES)?));
    }
    let case = format!("commits of one of {TABLE_ROWS} rows of {TABLE_ROW_BYTES} bytes");
    let samples = compare(run, &connections, &case, FigureUnit::CommitsPerSecond, 16, commit_for)?;
    run.report.add_ratio(
        "sqlite_commits_vs_wal",
        FigureUnit::CommitsPerSecond,
        &samples,
        OUR_VFS_NAME,
        WAL_VFS_NAME,
    );
    run.report.add_ratio(
        "sqlite_commits_vs_rollback",
        FigureUnit::CommitsPerSecond,
        &samples,
        OUR_VFS_NAME,
        ROLLBACK_VFS_NAME,
    );
    let case = format!("reads of one of {TABLE_ROWS} rows by its key");
    let samples = compare(run, &connections, &case, FigureUnit::ReadsPerSecond, 28, read_for)?;
    run.report.add_ratio(
        "sqlite_reads_vs_wal",
        FigureUnit::ReadsPerSecond,
        &samples,
        OUR_VFS_NAME,
        WAL_VFS_NAME,
    );
    run.report.add_ratio(
        "sqlite_reads_vs_rollback",
        FigureUnit::ReadsPerSecond,
        &samples,
        OUR_VFS_NAME,
        ROLLBACK_VFS_NAME,
    );
    for (way, connection) in connections {
        connection.close().map_err(|(_, error)| error).context(way.name)?;
    }
    Ok(())
}

/// Takes samples of each connection in turn; all use the same random rows.
fn compare(
    run: &mut BenchRun,
    connections: &[(VfsSubject, Connection)],
    case: &str,
    unit: FigureUnit,
    quick_end: u64,
    measure: fn(&Connection, &mut SplitMix) -> Result<f64>,
) -> Result<Vec<SubjectSamples>> {
    run.say(case)?;
    let seed = run.random.next_u64();
    let names: Vec<&'static str> = connections.iter().map(|(way, _)| way.name).collect();
    let measured = run.measure(&names, run.plan(quick_end), |turn| {
        measure(&connections[turn.subject].1, &mut SplitMix::new(seed ^ turn.round as u64))
    })?;
    let samples = measured.figure(|rate| *rate);
    run.report.add_case(case, unit, &samples);
    Ok(samples)
}

fn row(random: &mut SplitMix) -> u32 {
    u32::try_from(random.below(u64::from(TABLE_ROWS))).unwrap_or(0)
}

/// Returns commits per second, each of which is counted in its row.
fn commit_for(connection: &Connection, random: &mut SplitMix) -> Result<f64> {
    let sum = || connection.query_row("SELECT sum(n) FROM t", [], |row| row.get::<_, i64>(0));
    let before = sum()?;
    let mut update = connection.prepare_cached("UPDATE t SET n = n + 1 WHERE a = ?")?;
    let (began, mut commits) = (Instant::now(), 0_u32);
    while began.elapsed() < SAMPLE_DURATION {
        update.execute([row(random)])?;
        commits += 1;
    }
    let took = began.elapsed().as_secs_f64();
    ensure!(sum()? == before + i64::from(commits), "not all that was committed is there");
    Ok(f64::from(commits) / took)
}

fn read_for(connection: &Connection, random: &mut SplitMix) -> Result<f64> {
    let mut select = connection.prepare_cached("SELECT b FROM t WHERE a = ?")?;
    let (began, mut reads) = (Instant::now(), 0_u32);
    while began.elapsed() < SAMPLE_DURATION {
        for _ in 0..100 {
            let wanted = row(random);
            let is_right = select.query_row([wanted], |found| {
                let bytes = found.get_ref(0)?.as_blob()?;
                Ok(bytes.len() == TABLE_ROW_BYTES && bytes[..4] == wanted.to_le_bytes())
            })?;
            ensure!(is_right, "row {wanted} is wrong");
        }
        reads += 100;
    }
    Ok(f64::from(reads) / began.elapsed().as_secs_f64())
}
