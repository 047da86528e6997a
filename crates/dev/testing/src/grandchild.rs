//! A process that is a child of a shell, for tests of what traces it: a waiter in this process
//! would take the stops of a child for its own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// $1: "later" to begin with the first line of the input. With job control, a job can be stopped as
/// from a terminal.
const GRANDCHILD_SCRIPT: &str = "when=$1; shift; set -m; exec 3<&0
{ [ \"$when\" = now ] || read -r _; exec \"$@\"; } <&3 & p=$!
set +m; echo $p; wait $p; echo code $?";

/// A process under a shell, which waits for its end and reports its exit code. Killed when dropped.
pub struct Grandchild {
    shell: Child,
    out: BufReader<ChildStdout>,
    pid: u32,
}

impl Grandchild {
    /// Starts a program, whose standard input is [`Self::input`], and whose standard output comes
    /// before the exit code.
    ///
    /// # Panics
    ///
    /// If there is no bash, or no such program.
    pub fn start(words: &[&str]) -> Self {
        let started = Self::new("now", words);
        // Not while it is still the shell that starts it, which blocks signals.
        while started.status("Name:").starts_with("bash") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        started
    }

    /// Starts the process later: it waits until [`Self::begin`] is called.
    pub fn later(words: &[&str]) -> Self {
        Self::new("later", words)
    }

    fn new(when: &str, words: &[&str]) -> Self {
        let mut shell = Command::new("bash")
            .args(["-c", GRANDCHILD_SCRIPT, "bash", when])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        Self { shell, out, pid: line.trim().parse().unwrap() }
    }

    /// Lets a program start.
    ///
    /// # Panics
    ///
    /// If its process has ended.
    pub fn begin(&mut self) {
        self.input().write_all(b"\n").unwrap();
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the program's standard input.
    ///
    /// # Panics
    ///
    /// Never, before [`Self::end`].
    pub fn input(&mut self) -> &mut ChildStdin {
        self.shell.stdin.as_mut().unwrap()
    }

    /// Returns a line of `/proc/PID/status`: "State:"; empty if it has ended.
    pub fn status(&self, name: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    }

    /// Sends it a signal: "TERM".
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn kill(&self, signal: &str) {
        let pid = self.pid.to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }

    /// Closes its input, waits for its end, and returns what was printed since it began: "code 143"
    /// at the end.
    ///
    /// # Panics
    ///
    /// If it prints bytes that are not text.
    pub fn end(mut self) -> String {
        drop(self.shell.stdin.take());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        self.shell.wait().unwrap();
        rest.trim().to_owned()
    }
}

impl Drop for Grandchild {
    fn drop(&mut self) {
        if self.shell.try_wait().is_ok_and(|end| end.is_none()) {
            let pid = self.pid.to_string();
            let _ = Command::new("kill").args(["-9", &pid]).stderr(Stdio::null()).status();
            let _ = self.shell.wait();
        }
    }
}
