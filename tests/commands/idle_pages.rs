//! `scripts/keep-idle-pages.sh`, which stops DAMON for tests and benchmarks: the last of several
//! runs starts it again.
//!
//! Uses a directory that looks like DAMON's, so that nothing on this machine changes; runs, locks
//! and signals are real.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support;

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A run of the script whose command lasts until its input ends.
struct ScriptRun(Child);

impl ScriptRun {
    fn start(scratch: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/keep-idle-pages.sh");
        let mut command = Command::new(script);
        command.args(["sh", "-c", "echo > \"$BEGUN\"; cat; exit 3"]).stdin(Stdio::piped());
        command.env("KEEP_IDLE_PAGES_DAMON", scratch.join("damon"));
        command.env("KEEP_IDLE_PAGES_STATE", scratch.join("state"));
        let begun = scratch.join("begun");
        let child = command.env("BEGUN", &begun).stderr(Stdio::null()).spawn().expect("start the script");
        support::eventually("its command runs", WAIT_TIMEOUT, || std::fs::remove_file(&begun).ok());
        Self(child)
    }

    /// Lets the command end; the script ends as it does.
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert_eq!(self.0.wait().expect("wait for the script").code(), Some(3));
    }

    /// Kills the script, so that it can't clean up.
    fn kill(mut self) {
        self.0.kill().expect("kill the script");
        self.0.wait().expect("wait for the script");
    }
}

/// Returns a DAMON thread that pages out, and the file of its state.
fn thread(scratch: &Path, name: &str, action: &str, state: &str) -> PathBuf {
    let thread = scratch.join("damon").join(name);
    let scheme = thread.join("contexts/0/schemes/0");
    std::fs::create_dir_all(&scheme).expect("make a directory");
    std::fs::write(scheme.join("action"), format!("{action}\n")).expect("write");
    std::fs::write(thread.join("state"), format!("{state}\n")).expect("write");
    thread.join("state")
}

fn is(state: &Path, expected: &str) -> bool {
    std::fs::read_to_string(state).expect("read").trim() == expected
}

#[test]
fn damon_is_stopped_until_the_last_run_has_ended() {
    let scratch = tempfile::tempdir().expect("make a directory");
    let scratch = scratch.path();
    let paging = thread(scratch, "0", "pageout", "on");
    let watching = thread(scratch, "1", "stat", "on");
    let off = thread(scratch, "2", "pageout", "off");
    let (first, second) = (ScriptRun::start(scratch), ScriptRun::start(scratch));
    assert!(is(&paging, "off") && is(&watching, "on"));
    first.end();
    assert!(is(&paging, "off"), "one of two has ended");
    let third = ScriptRun::start(scratch);
    second.end();
    assert!(is(&paging, "off"), "the third runs");
    third.end();
    assert!(is(&paging, "on") && is(&watching, "on"));
    assert!(is(&off, "off"), "nobody has stopped it");
}

#[test]
fn a_killed_run_no_longer_counts() {
    let scratch = tempfile::tempdir().expect("make a directory");
    let scratch = scratch.path();
    let paging = thread(scratch, "0", "pageout", "on");
    let (killed, other) = (ScriptRun::start(scratch), ScriptRun::start(scratch));
    killed.kill();
    assert!(is(&paging, "off"));
    other.end();
    assert!(is(&paging, "on"), "the remaining run restarts threads that another run stopped");
    ScriptRun::start(scratch).kill();
    assert!(is(&paging, "off"), "nobody is left to let it continue");
    ScriptRun::start(scratch).end();
    assert!(is(&paging, "on"));
}
