//! `pagekeeper guard` as a child process, which releases behind streaming processes from outside.
//!
//! Ends with its handle, and with the thread that started it. Fails where it ended by itself.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::guard::server::with_parent;
use crate::peers::Program;
use crate::running::Running;

/// The stream is this program, of whose name the kernel keeps 15 bytes.
const CONFIG: &str = "[streams]\nprocesses = [\"pagekeeper-benc*\"]\n";
/// Time until its first scan is done.
const BEGINS: Duration = Duration::from_millis(300);

/// A running guard.
pub(super) struct GuardProcess(Running);

impl GuardProcess {
    /// Starts a guard with a configuration in this directory.
    pub(super) fn start(pagekeeper: &Program, home: &Path) -> Result<Self> {
        let config = home.join("guard.toml");
        std::fs::write(&config, CONFIG).context("can't write the guard's configuration")?;
        let child = with_parent(&pagekeeper.path)
            .args(["guard", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("can't start pagekeeper guard")?;
        std::thread::sleep(BEGINS);
        Ok(Self(child.into()))
    }

    /// Ends it by SIGTERM.
    pub(super) fn stop(mut self) -> Result<()> {
        let ended = self.0.try_wait().context("can't wait for the guard")?;
        ensure!(ended.is_none(), "the guard ended by itself: {ended:?}");
        kill_process(Pid::from_child(&self.0), Signal::TERM).context("can't stop the guard")?;
        self.0.wait().context("can't wait for the guard")?;
        Ok(())
    }
}
