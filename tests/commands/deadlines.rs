//! Guarantees that all tests need: a hung child is killed, and signals reach children however this
//! program was started.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{command, deadline, scratch};

/// The child's child holds the pipe open, too.
#[test]
fn a_child_that_hangs_is_ended_with_all_that_it_started() {
    deadline::renew_for(Duration::from_millis(100));
    let mut child =
        Command::new("sh").args(["-c", "sleep 1000; :"]).stdout(Stdio::piped()).spawn().expect("start sh");
    let said = std::io::read_to_string(child.stdout.take().expect("piped")).expect("read what it says");
    assert_eq!(said, "");
    let status = child.wait().expect("wait for sh");
    assert_eq!(status.signal(), Some(rustix::process::Signal::KILL.as_raw()));
}

const INNER: &str = "deadlines::a_shell_traps_ignored_signals";

#[test]
fn a_shell_traps_ignored_signals() {
    let _scratch = scratch();
    let commands = "for name in HUP INT QUIT; do trap \"echo $name\" $name; kill -$name $$; done";
    let outcome = command::finish(Command::new("sh").args(["-c", commands]));
    assert_eq!(outcome.expect_success(), "HUP\nINT\nQUIT\n");
}

/// As `nohup` and a shell without job control start it.
#[test]
fn signals_reach_children_of_tests_that_are_started_with_signals_ignored() {
    let this = std::env::current_exe().expect("proc(5) is mounted");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP INT QUIT; exec \"$0\" \"$@\""]).arg(this).args(["--exact", INNER]);
    let outcome = command::finish(shell.process_group(0));
    assert!(outcome.code == 0 && outcome.stdout.contains("1 passed"), "{outcome:#?}");
}
