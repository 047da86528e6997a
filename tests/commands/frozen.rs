//! Commands that write, on a frozen file system: each prints that it waits, ends on a signal,
//! and continues after the thaw.
//!
//! Needs root, `mkfs.ext4` and `fsfreeze`; skips with a sentence otherwise.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use pagekeeper_store::{Create, Store};
use pagekeeper_testing::Mounted;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::command::{finish, pagekeeper};
use crate::support::{alone, can_run, scratch};

const WAITS: &str = ": the file system is frozen; waiting\n";

/// A deadline far longer than any step takes. A process that hangs in a write can't be killed: it
/// ends only after the test has given up.
const RUN_TIMEOUT: Duration = Duration::from_secs(100);

/// A command that was started, and the parts of its standard error.
struct StartedCommand {
    child: Child,
    errors: Receiver<String>,
}

impl StartedCommand {
    fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("start it");
        let errors = parts(child.stderr.take().expect("piped"));
        Self { child, errors }
    }

    /// Waits until the command reports that it waits for this path.
    fn until_it_waits(&self, path: &Path) {
        let wanted = format!("pagekeeper: {}{WAITS}", path.display());
        let mut text = String::new();
        while !text.contains(&wanted) {
            text += &self.errors.recv_timeout(RUN_TIMEOUT).unwrap_or_else(|error| panic!("{error}: {text}"));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits until nobody holds its standard error, and returns its exit code, unless a signal has
    /// ended it.
    fn code(&mut self) -> Option<i32> {
        loop {
            match self.errors.recv_timeout(RUN_TIMEOUT) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
            }
        }
        self.child.wait().expect("wait for it").code()
    }
}

/// Returns the parts of a pipe's content as they arrive; the channel closes with the pipe's last
/// writer.
fn parts(mut pipe: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            if sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Makes a store of one page.
fn make_store(dir: &Path) {
    let store = Store::options().create(Create::New).journal_bytes(64 << 10).open(dir).expect("make a store");
    store.close_and_sync().expect("close it");
}

fn command(words: &[&str], path: &Path) -> Command {
    let mut command = pagekeeper();
    command.args(words).arg(path);
    command
}

#[test]
fn commands_that_write_say_that_they_wait_and_end_on_a_signal() {
    if !can_run("commands on a frozen file system", &["mkfs.ext4", "fsfreeze"]) {
        return;
    }
    let _alone = alone();
    let Some(mounted) = Mounted::new("ext4") else { return };
    let elsewhere = scratch();
    let stores = [elsewhere.path(), mounted.path()].map(|place| place.join("store"));
    for dir in &stores {
        make_store(dir);
    }
    let [source, frozen_store] = stores;
    let source = source.to_str().expect("a plain path");
    let new = mounted.path().join("new");
    let report = {
        let mut command = pagekeeper();
        let option = format!("--report={}", new.display());
        command.args(["run", &option, "--", "true"]);
        command
    };
    let cases = [
        (command(&["probe", "--quick"], mounted.path()), mounted.path()),
        (command(&["probe", "--quick", source, "--output"], &new), &new),
        (command(&["snapshot", source, "--output"], &new), &new),
        (command(&["store", "backup", source], &new), &new),
        (command(&["store", "restore", source], &new), &new),
        (command(&["store", "repair", source], &new), &new),
        (command(&["store", "compact"], &frozen_store), &frozen_store),
        (report, &new),
        (command(&["man", "--dir"], mounted.path()), mounted.path()),
        (command(&["demo", "--dir"], mounted.path()), mounted.path()),
    ];
    let frozen = mounted.freeze();
    for ((mut command, path), signal) in
        cases.into_iter().zip([Signal::TERM, Signal::INT].into_iter().cycle())
    {
        eprintln!("{command:?}");
        let mut running = StartedCommand::start(&mut command);
        running.until_it_waits(path);
        running.signal(signal);
        assert_eq!(running.code(), None, "the signal ended it");
    }

    let mut running = StartedCommand::start(&mut command(&["snapshot", source, "--output"], &new));
    running.until_it_waits(&new);
    drop(frozen);
    assert_eq!(running.code(), Some(0), "it goes on after the thaw");
    assert!(finish(&mut command(&["stat"], &new)).expect_success().contains("new"));
}
