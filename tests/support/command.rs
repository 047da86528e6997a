//! Runs of the program under test as a user runs it, each with a deadline: nothing here may hang.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A deadline far longer than any run should take, also one that reads and writes some hundred MiB
/// on a disk of 3 MB/s.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Exit code, or 128 + signal as in a shell.
    pub(crate) code: i32,
    /// Standard output, broken UTF-8 replaced.
    pub(crate) stdout: String,
    /// Standard error, broken UTF-8 replaced.
    pub(crate) stderr: String,
}

impl Outcome {
    /// Asserts success and an empty standard error; returns standard output.
    pub(crate) fn expect_success(self) -> String {
        assert!(self.code == 0 && self.stderr.is_empty(), "{self:#?}");
        self.stdout
    }

    /// Returns standard output as one JSON value.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self:#?}"))
    }
}

/// Returns the program under test.
pub(crate) fn pagekeeper() -> Command {
    let mut command = Command::new(program());
    command.env_remove("NO_COLOR").env_remove("COLUMNS");
    command
}

/// Returns the program under test with root's permissions in most containers: it may not load BPF
/// programs, so `run` uses the library for streams, too.
pub(crate) fn pagekeeper_by_library() -> Command {
    if !rustix::process::geteuid().is_root() {
        return pagekeeper();
    }
    let mut command = contained(&program());
    command.env_remove("NO_COLOR").env_remove("COLUMNS");
    command
}

/// Returns a command that runs a program with root's permissions in most containers.
pub(crate) fn contained(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin,-bpf,-perfmon", "--"]).arg(program);
    command
}

/// Returns the words of [`pagekeeper_by_library`].
pub(crate) fn words_by_library() -> Vec<OsString> {
    let command = pagekeeper_by_library();
    [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_owned).collect()
}

/// Returns the path of the program under test.
pub(crate) fn program() -> PathBuf {
    super::begin();
    PathBuf::from(env!("CARGO_BIN_EXE_pagekeeper"))
}

/// Runs the program under test with these arguments.
pub(crate) fn run(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Outcome {
    finish(pagekeeper().args(arguments))
}

/// Runs a command to its end, and asserts success; returns standard output without white space around
/// it.
pub(crate) fn stdout_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [said, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{command:?}: {}: {said}{error}", output.status);
    said.trim().to_owned()
}

/// Runs any command to its end; kills it and panics if it takes longer than [`RUN_TIMEOUT`].
pub(crate) fn finish(command: &mut Command) -> Outcome {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = read_aside(child.stdout.take().expect("piped"));
    let stderr = read_aside(child.stderr.take().expect("piped"));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for a child") {
            break status;
        }
        if start.elapsed() > RUN_TIMEOUT {
            child.kill().expect("kill a child");
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Outcome {
        code: status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal))
            .expect("a code or a signal"),
        stdout: stdout.join().expect("read standard output"),
        stderr: stderr.join().expect("read standard error"),
    }
}

fn read_aside(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("read what a child says");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
