//! SQLite's own shell as a child process: statements in, lines out, killed at any time; and C
//! programs for the rest.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use pagekeeper_testing::skip;

/// Returns the library of this build; `None` if there is no shell to load it.
pub(crate) fn library() -> Option<PathBuf> {
    if !Command::new("sqlite3").arg("--version").output().is_ok_and(|said| said.status.success()) {
        skip("sqlite3 is not installed");
        return None;
    }
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libpagekeeper_sqlite.so");
    assert!(library.exists(), "{} is built with the tests", library.display());
    Some(library)
}

/// Builds a C program that calls SQLite in a directory; `None` if there is no header.
pub(crate) fn built(dir: &Path, text: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/sqlite3.h").exists() {
        skip("SQLite's header is not installed");
        return None;
    }
    let (source, program) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&source, text).unwrap();
    let built =
        Command::new("cc").arg(source).arg("-o").arg(&program).args(["-lsqlite3", "-pthread"]).output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// Returns the commands that open a database with the VFS.
pub(crate) fn open_with_our_vfs(library: &Path, database: &Path) -> String {
    format!(".load {}\n.open 'file:{}?vfs=pagekeeper'\n", library.display(), database.display())
}

/// Returns the command that opens a database with SQLite's default VFS.
pub(crate) fn open_with_default_vfs(database: &Path) -> String {
    format!(".open '{}'\n", database.display())
}

/// Runs statements in a new shell. Returns its output, including errors.
pub(crate) fn said(statements: &str) -> String {
    let mut shell =
        shell().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The shell may end before it has read everything.
    let _ = shell.stdin.take().unwrap().write_all(statements.as_bytes());
    let Output { stdout, stderr, .. } = shell.wait_with_output().unwrap();
    (String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr)).trim().to_owned()
}

fn shell() -> Command {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-noheader"]).env("HOME", "/nonexistent");
    command
}

/// A shell that stays open; killed when dropped.
pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Shell {
    pub(crate) fn open(opening: &str) -> Self {
        let mut command = Command::new("sh");
        // Errors come in order with the other output.
        command.args(["-c", "exec sqlite3 -batch -noheader 2>&1"]).env("HOME", "/nonexistent");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (give, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if give.send(line).is_err() {
                    return;
                }
            }
        });
        let mut shell = Self { input: child.stdin.take().unwrap(), child, lines };
        shell.send(opening);
        shell
    }

    /// Sends statements, without waiting.
    pub(crate) fn send(&mut self, statements: &str) {
        let _ = self.input.write_all(statements.as_bytes());
        let _ = self.input.flush();
    }

    /// Returns the lines that statements print, including errors.
    pub(crate) fn ask(&mut self, statements: &str) -> String {
        self.send(&format!("{statements}\n.print over\n"));
        let mut all = Vec::new();
        loop {
            match self.lines.recv_timeout(Duration::from_secs(120)) {
                Ok(line) if line == "over" => return all.join("\n"),
                Ok(line) => all.push(line),
                Err(error) => panic!("{error} after {all:?}"),
            }
        }
    }

    /// Returns the lines that it has printed so far.
    pub(crate) fn printed(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Kills it, and returns the unread lines.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // Ends when the child's end of the pipe is closed.
        self.lines.iter().collect()
    }

    /// Ends it as a user does.
    pub(crate) fn quit(mut self) {
        self.send(".quit\n");
        self.child.wait().unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
