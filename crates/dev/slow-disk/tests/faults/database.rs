//! SQLite under test: its own shell, through the loadable VFS. Each commit is one row, in a shell
//! that dies with this process.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pagekeeper_sqlite as _;
use pagekeeper_testing::Rng;

use crate::oracle::{Commit, Line};

/// Whether there is a shell.
pub(crate) fn has_shell() -> bool {
    Command::new("sqlite3").arg("--version").output().is_ok_and(|said| said.status.success())
}

struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    fn open(database: &Path) -> Result<Self, String> {
        let library = std::env::current_exe().map_err(text)?.with_file_name("libpagekeeper_sqlite.so");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "sh", "-c", "exec sqlite3 -batch -noheader 2>&1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let input = child.stdin.take().ok_or("no input")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let mut shell = Self { child, input, lines };
        let open = format!(".load {}\n.open 'file:{}?vfs=pagekeeper'", library.display(), database.display());
        shell.ask(&open)?;
        Ok(shell)
    }

    /// Returns the output of statements; fails with the shell's error message.
    fn ask(&mut self, statements: &str) -> Result<Vec<String>, String> {
        self.input.write_all(format!("{statements}\n.print over\n").as_bytes()).map_err(text)?;
        let mut said = Vec::new();
        for line in &mut self.lines {
            match line.map_err(text)? {
                line if line == "over" => return Ok(said),
                line if line.contains("rror") => return Err(line),
                line => said.push(line),
            }
        }
        Err("the shell has ended".to_owned())
    }

    /// Ends it, which closes the database.
    fn quit(mut self) -> Result<(), String> {
        self.input.write_all(b".quit\n").map_err(text)?;
        if self.child.wait().map_err(text)?.success() { Ok(()) } else { Err("the close failed".to_owned()) }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs like the other subjects: opens the database, reports its content, and commits until
/// something fails; or closes it at once.
pub(crate) fn run(dir: &Path, way: u64, cycle: u64, only_look: bool) -> Result<(), String> {
    let mut shell = open(dir, way)?;
    if only_look {
        return shell.ask("PRAGMA pagekeeper_release;").map(drop);
    }
    let mut rng = Rng::from_seed(way ^ cycle << 32);
    for number in 1.. {
        let bytes = if rng.one_in(10) { rng.of(0..20_000) } else { rng.of(0..200) };
        insert(&mut shell, cycle, number, bytes)?;
        // Large transactions use the spill file.
        let beside = match rng.of(0..60) {
            0 => {
                "DROP TABLE IF EXISTS u; CREATE TABLE u AS SELECT hex(randomblob(3000)) FROM generate_series(1, 500); DROP TABLE u;"
            }
            1 => "VACUUM;",
            2 => "UPDATE t SET value=hex(randomblob(100)) WHERE number%5=0;",
            3..6 => "PRAGMA pagekeeper_release;",
            _ => continue,
        };
        shell.ask(beside)?;
    }
    Ok(())
}

/// Opens the database, commits, releases it, commits with a larger log, and closes it.
pub(crate) fn run_short(dir: &Path, way: u64, cycle: u64, only_look: bool) -> Result<(), String> {
    let mut shell = open(dir, way)?;
    if only_look {
        shell.ask("PRAGMA user_version=7;")?;
        shell.quit()?;
        if dir.join("a.db-pagekeeper").exists() {
            Line::Wrong("the log stays after a close".to_owned()).say();
        }
        return Ok(());
    }
    for (number, bytes) in [(1, 100), (2, 400_000), (3, 100)] {
        insert(&mut shell, cycle, number, bytes)?;
        if number == 1 {
            shell.ask("PRAGMA pagekeeper_release;")?;
        }
    }
    shell.quit()
}

fn insert(shell: &mut Shell, cycle: u64, number: u64, bytes: u64) -> Result<(), String> {
    shell.ask(&format!("INSERT INTO t VALUES({cycle}, {number}, hex(randomblob({bytes})));"))?;
    Line::Acknowledged(Commit { thread: 0, cycle, number, place: 1 }).say();
    Ok(())
}

/// Opens the database, and reports its content.
fn open(dir: &Path, way: u64) -> Result<Shell, String> {
    std::fs::create_dir_all(dir).map_err(text)?;
    // Whoever uses a database makes its directory durable.
    let parent = dir.parent().ok_or("a directory without a parent")?;
    std::fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(text)?;
    let mut shell = Shell::open(&dir.join("a.db"))?;
    let mode = ["DELETE", "TRUNCATE", "PERSIST", "MEMORY"][usize::try_from(way % 4).map_err(text)?];
    // Pages shorter than the VFS's blocks, in a database that is shortened all the time.
    let page = [4096, 512, 1024][usize::try_from(way / 4 % 3).map_err(text)?];
    let vacuum = if page < 4096 { "FULL" } else { "NONE" };
    shell.ask(&format!(
        "PRAGMA page_size={page};\nPRAGMA auto_vacuum={vacuum};\nPRAGMA journal_mode={mode};\nPRAGMA cache_size=20;\nCREATE TABLE IF NOT EXISTS t(cycle, number, value);"
    ))?;
    let whole = shell.ask("PRAGMA integrity_check;")?;
    if let Some(unread) = whole.iter().find(|line| line.contains("failed to get page")) {
        // A disk error, as SQLite's check words it: an unreadable block is not damage of ours.
        return Err(unread.clone());
    }
    if whole != ["ok"] {
        Line::Wrong(format!("the database is not whole: {whole:?}")).say();
    }
    for row in shell.ask("SELECT cycle, min(number), max(number), count(*) FROM t GROUP BY cycle;")? {
        let numbers: Vec<u64> = row.split('|').map_while(|number| number.parse().ok()).collect();
        match numbers[..] {
            [cycle, 1, last, count] if count == last => {
                Line::Found { thread: 0, cycle, first: 1, last }.say();
            }
            _ => Line::Wrong(format!("commits are missing, or twice there: {row}")).say(),
        }
    }
    Line::Opened(0).say();
    Ok(shell)
}
