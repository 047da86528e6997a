//! Programs that only hold a file open, under a database's name.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A program by the name of `mariadbd` that holds a file open.
pub(crate) struct Database(Child);

impl Database {
    pub(crate) fn start(programs: &Path, log: &Path) -> Self {
        let program = programs.join("mariadbd");
        if !program.exists() {
            std::os::unix::fs::symlink("/bin/sleep", &program).expect("make a link");
        }
        let log = File::options().append(true).open(log).expect("open a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(program).arg("1000").stdout(log);
        Self(command.stdin(Stdio::null()).spawn().expect("start a program"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
