//! Tests of SQLite's drivers, each by a program in its own language that does what services do: it
//! loads the VFS, gives a name that is no URI, has a pool, asks for WAL mode, forks, and is killed
//! in a transaction. Its outcome is a row of the table in `docs/src/databases/sqlite.md`.
//!
//! Debian's drivers are part of `make test`. `scripts/fetch-drivers.sh` has the others, for
//! `make test-sqlite`.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pagekeeper_testing::{built_beside, disk_dir, skip};
use tempfile::TempDir;

/// The page that has the table.
const PAGE: &str = include_str!("../../../../docs/src/databases/sqlite.md");
/// Debian's, which its modules are for.
const PYTHON: &str = "/usr/bin/python3";

/// The page's text for an answer that has these words.
const SAID: [(&str, &str); 6] = [
    ("this process alone: ", "works"),
    ("plain: no commits in a log", "works"),
    ("taken for a file's name, not for a URI", "refused"),
    ("WAL mode is refused", "refused"),
    ("disk I/O error", "refused"),
    ("was forked from", "refused"),
];

/// Returns an answer in the page's words; an unexpected one unchanged.
fn cell(answer: &str) -> &str {
    SAID.iter().find(|(words, _)| answer.contains(words)).map_or(answer, |(_, cell)| cell)
}

/// Returns several answers in the page's words.
fn cells(answers: &[String]) -> String {
    let mut cells: Vec<&str> = answers.iter().map(|answer| cell(answer)).collect();
    cells.dedup();
    cells.join(", ")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers").join(name)
}

/// Returns the drivers that `scripts/fetch-drivers.sh` has fetched.
fn fetched(name: &str) -> PathBuf {
    let directory = std::env::var_os("PAGEKEEPER_SQLITE_DRIVERS");
    Path::new(&directory.expect("made by scripts/fetch-drivers.sh")).join(name)
}

/// A driver in a program that is about to use one database.
struct Story {
    /// The command that starts the program.
    words: Vec<OsString>,
    environment: Vec<(&'static str, PathBuf)>,
    directory: TempDir,
}

impl Story {
    fn new(words: &[&dyn AsRef<std::ffi::OsStr>]) -> Self {
        let words = words.iter().map(|word| word.as_ref().to_owned()).collect();
        Self { words, environment: Vec::new(), directory: disk_dir() }
    }

    fn with(mut self, variable: &'static str, value: PathBuf) -> Self {
        self.environment.push((variable, value));
        self
    }

    /// Returns the command of a step on a database of this name. A timeout ends a hung step.
    fn command(&self, database: &str, step: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300"]).args(&self.words);
        command.arg(built_beside("libpagekeeper_sqlite", ".so"));
        command.arg(self.directory.path().join(database)).arg(step);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.directory.path());
        command
    }

    fn output(&self, database: &str, step: &str) -> Output {
        let mut command = self.command(database, step);
        command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Returns the lines that a step prints.
    fn ask(&self, database: &str, step: &str) -> Vec<String> {
        let output = self.output(database, step);
        assert!(output.status.success(), "{step}: {output:?}");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// Returns "works" if there are this many rows and all are right.
    fn rows(&self, wanted: u32) -> String {
        let found = self.ask("a.db", "check").join(", ");
        if found == format!("{wanted}|ok") { "works".to_owned() } else { found }
    }

    /// Forks children after and before their parent opens, and returns their answers. Commits six
    /// rows.
    fn forks(&self) -> String {
        let answers = self.ask("a.db", "fork");
        let (before, after) = answers.split_at(2);
        let workers = if after == ["ended 0"; 4] { "works" } else { "fails" };
        format!("{}; opened after the fork: {workers}", cells(before))
    }

    /// Returns the answer to a second process while the first has the database. Commits two rows.
    fn second_process(&self) -> String {
        let mut first = self.command("a.db", "hold");
        let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let answer = self.ask("a.db", "locked").join(", ");
        first.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(first.wait().unwrap().success());
        let is_locked = answer.contains("database is locked");
        format!("no fork; a second process is {}", if is_locked { "locked out" } else { &answer })
    }

    /// Kills it in a transaction, after one that was committed.
    fn is_killed(&self) {
        let Output { status, stderr, .. } = self.output("a.db", "kill");
        assert!(status.signal() == Some(9) || status.code() == Some(128 + 9), "{status}: {stderr:?}");
        assert!(std::fs::read(self.directory.path().join("a.db")).unwrap().starts_with(b"pgkeeper"));
    }

    /// Returns the row of a driver.
    fn row(&self, name: &str, has_fork: bool) -> String {
        let loads = cells(&self.ask("a.db", "load"));
        let literal = self.ask("unused.db", "literal");
        let [bare, uri] = &literal[..] else { panic!("{literal:?}") };
        let (bare, uri) = (cell(bare), cell(uri));
        let mut answers = self.ask("a.db", "pool");
        answers.push(self.rows(100));
        let pool = cells(&answers);
        let wal = cells(&self.ask("a.db", "wal"));
        let (prefork, rows) = if has_fork { (self.forks(), 106) } else { (self.second_process(), 102) };
        self.is_killed();
        let killed = self.rows(rows + 1);
        let in_wal_mode = self.directory.path().join("wal.db");
        let statements = "PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY);";
        let made = Command::new("sqlite3").arg(in_wal_mode).arg(statements).status().unwrap();
        assert!(made.success());
        let found = cells(&self.ask("wal.db", "check"));
        format!("| {name} | {loads} | {bare} | {uri} | {pool} | {wal} | {found} | {prefork} | {killed} |")
    }

    /// A connection that nobody closed lets others in once its collector has found it.
    fn is_free_once_collected(&self) {
        let answers = self.ask("collected.db", "collect");
        let [before, after] = &answers[..] else { panic!("{answers:?}") };
        assert!(before.contains("database is locked") && after == "0", "{answers:?}");
        assert!(!self.directory.path().join("collected.db-pagekeeper").exists());
    }

    fn is_as_the_page_says(&self, name: &str, has_fork: bool) {
        let row = self.row(name, has_fork);
        assert!(PAGE.contains(&row), "the row in docs/src/databases/sqlite.md is another:\n{row}");
    }
}

/// Returns a driver of Debian's, if it is there with SQLite's shell.
fn python(module: &str) -> Option<Story> {
    let is_there = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !is_there(Command::new("sqlite3").arg("--version"))
        || !is_there(Command::new(PYTHON).args(["-c", &format!("import {module}")]))
    {
        skip(format!("sqlite3 or Python's module {module} is not installed"));
        return None;
    }
    Some(Story::new(&[&PYTHON, &source("story.py"), &module]))
}

#[test]
fn pythons_own() {
    let Some(story) = python("sqlite3") else { return };
    story.is_as_the_page_says("`sqlite3` of Python 3.11 (Debian)", true);
    story.is_free_once_collected();
}

#[test]
fn the_pages_program_in_python_runs() {
    if python("sqlite3").is_none() {
        return;
    }
    let program = PAGE.split("```").find_map(|block| block.strip_prefix("python\n")).unwrap();
    let library = built_beside("libpagekeeper_sqlite", ".so");
    let program = program.replace("target/sqlite/pagekeeper_sqlite", &library.display().to_string());
    let dir = disk_dir();
    let output = Command::new(PYTHON).args(["-c", &program]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("this process alone: 2 commits"), "{output:?}");
    assert!(std::fs::read(dir.path().join("app.db")).unwrap().starts_with(b"SQLite format 3\0"), "marked");
}

#[test]
fn apsw() {
    let Some(story) = python("apsw") else { return };
    story.is_as_the_page_says("apsw 3.40.0 (Debian)", true);
    story.is_free_once_collected();
}

#[test]
#[ignore = "fetches: make test-sqlite"]
fn apsw_with_its_own_sqlite() {
    let story = Story::new(&[&PYTHON, &source("story.py"), &"apsw"]).with("PYTHONPATH", fetched("apsw"));
    story.is_as_the_page_says("apsw 3.54.1 (PyPI)", true);
}

/// Returns a driver of Node's, in a program of version 22.
fn node(driver: &str) -> Story {
    let program = fetched("node/bin/node");
    Story::new(&[&program, &"--no-warnings", &"--expose-gc", &source("story.js"), &driver])
        .with("NODE_PATH", fetched("node_modules"))
}

#[test]
#[ignore = "fetches: make test-sqlite"]
fn better_sqlite3() {
    let story = node("better-sqlite3");
    story.is_as_the_page_says("better-sqlite3 12.6 (npm)", false);
    story.is_free_once_collected();
}

#[test]
#[ignore = "fetches: make test-sqlite"]
fn nodes_own() {
    let story = node("node:sqlite");
    story.is_as_the_page_says("`node:sqlite` of Node 22.21", false);
    story.is_free_once_collected();
}

#[test]
#[ignore = "fetches: make test-sqlite"]
fn jdbc() {
    let story = Story::new(&[&"java", &"-cp", &fetched("jars/*"), &source("Story.java")]);
    story.is_as_the_page_says("sqlite-jdbc 3.54.1 (Maven Central)", false);
}

#[test]
#[ignore = "fetches: make test-sqlite"]
fn go() {
    let story = Story::new(&[&fetched("go/story")]);
    story.is_as_the_page_says("mattn/go-sqlite3 1.14.53", false);
}

/// A VFS is in the list of one copy of SQLite: another one in the process is refused, and keeps its
/// own.
#[test]
#[ignore = "fetches: make test-sqlite"]
fn a_second_copy_of_sqlite_is_refused() {
    let program = "import sys, sqlite3, apsw
first, second = sqlite3.connect(':memory:'), apsw.Connection(':memory:')
first.enable_load_extension(True); first.load_extension(sys.argv[1])
second.enable_load_extension(True); second.load_extension(sys.argv[1])";
    let library = built_beside("libpagekeeper_sqlite", ".so");
    let mut command = Command::new(PYTHON);
    command.args(["-c", program]).arg(library).env("PYTHONPATH", fetched("apsw"));
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(
        said.contains("pagekeeper is loaded by another copy of SQLite in this process already"),
        "{said}"
    );
}
