//! A process that changes pages and is killed with SIGKILL, before it syncs anything that it can
//! defer.
//!
//! Invariants: it is killed with everything still open, after the last change was acknowledged; it
//! ends with its parent. Fails where it dies earlier.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::changes::ChangeLoad;
use super::ours;
use crate::peers::this_program;
use crate::scratch::StopRequest;

const CHILD_READY: &str = "ready";

/// The task of the child.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArguments {
    /// The store's directory.
    dir: PathBuf,
    #[command(flatten)]
    load: ChangeLoad,
}

/// Runs in the child: makes all changes of a round, and waits for its end.
pub(crate) fn run(arguments: &ChildArguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("can't be tied to the parent's life")?;
    let _open = ours::prepare(&arguments.dir, &arguments.load)?;
    println!("{CHILD_READY}");
    std::io::stdin().read_to_end(&mut Vec::new()).context("the parent has gone")?;
    bail!("nobody killed this process")
}

/// Changes pages of the store in `dir`, and kills the process.
pub(super) fn change_and_kill(dir: &Path, load: &ChangeLoad, stop: &StopRequest) -> Result<()> {
    let mut child = this_program()?
        .arg("recovery-child")
        .arg(dir)
        .args(load.arguments())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("can't start this program again")?;
    let stdout = child.stdout.take().context("it has no output")?;
    let (send, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
    });
    let ready = loop {
        if let Err(interrupted) = stop.check() {
            break Err(interrupted);
        }
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => break Ok(line == CHILD_READY),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Ok(false),
        }
    };
    // `kill` is SIGKILL. It fails only if the child has ended already.
    let _ = child.kill();
    let status = child.wait().context("can't wait for a child process")?;
    ensure!(ready?, "the process that was to be killed ended with {status}");
    Ok(())
}
