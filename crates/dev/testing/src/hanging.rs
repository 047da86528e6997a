//! A file system in user space that can stop answering: `bindfs`, whose process is stopped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A directory that is mounted elsewhere by a file system in user space, whose process can be
/// stopped.
pub struct HangingMount {
    server: Child,
    point: PathBuf,
}

impl HangingMount {
    /// Mounts `below` at `point`. `shown` names an entry of the directory. Needs root and bindfs.
    ///
    /// # Panics
    ///
    /// If it cannot be mounted.
    pub fn mount(below: &Path, point: &Path, shown: &str) -> Self {
        std::fs::create_dir_all(point).expect("make a mount point");
        let mut command = Command::new("bindfs");
        let server = command.args(["-f", "-o", "attr_timeout=0,entry_timeout=0"]).arg(below).arg(point);
        let server = server.spawn().expect("start bindfs");
        let mounted = Self { server, point: point.to_owned() };
        let began = Instant::now();
        while !point.join(shown).exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "it is not mounted");
            std::thread::sleep(Duration::from_millis(100));
        }
        mounted
    }

    /// Stops the file system: it does not answer until [`Self::go_on`].
    ///
    /// # Panics
    ///
    /// If its process has ended.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets the file system answer again.
    ///
    /// # Panics
    ///
    /// If its process has ended.
    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.server);
        rustix::process::kill_process(pid, signal).expect("signal bindfs");
    }
}

impl Drop for HangingMount {
    fn drop(&mut self) {
        // The end of the process ends every call into the file system.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("umount").args(["--lazy"]).arg(&self.point).status();
    }
}
