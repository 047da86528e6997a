//! A file system in user space that can be kept from answering: `bindfs`, whose process is stopped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A directory seen through a file system in user space, whose process can be stopped.
pub struct Hanging {
    server: Child,
    point: PathBuf,
}

impl Hanging {
    /// `shown` is a name in the directory. Needs root and bindfs.
    ///
    /// # Panics
    ///
    /// Where it can't be mounted.
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

    /// Does not answer from now on.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Answers again.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.server);
        rustix::process::kill_process(pid, signal).expect("signal bindfs");
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // With its process every call into it ends.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("umount").args(["--lazy"]).arg(&self.point).status();
    }
}
