//! Programs with a database's name that only hold a file open.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program named `mariadbd` that holds a file open.
pub(crate) struct Database(Child);

impl Database {
    pub(crate) fn start(programs: &Path, log: &Path) -> Self {
        let program = mariadbd(programs);
        let log = File::options().append(true).open(log).expect("open a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(program).arg("1000").stdout(log);
        Self(command.stdin(Stdio::null()).spawn().expect("start a program"))
    }

    /// Starts a fake of a user that holds open the first log in each subdirectory once
    /// `gate` exists. Needs bash.
    pub(crate) fn of_many(programs: &Path, directory: &Path, user: u32, gate: &Path) -> Self {
        const HOLD: &str = "ulimit -n 4096; until [ -e \"$2\" ]; do sleep 0.1; done; \
            for log in \"$0\"/*/binlog.000001; do exec {held}<>\"$log\"; done; exec \"$1\" 1000";
        let user = user.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--pdeathsig=KILL", "--"]);
        command.args(["bash", "-c", HOLD]).arg(directory).arg(mariadbd(programs)).arg(gate);
        Self(command.stdin(Stdio::null()).spawn().expect("start a program"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

/// A program with another name that holds a file open.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn holding(file: &Path) -> Self {
        let file = File::open(file).expect("open a file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--", "sleep", "1000"]).stdin(file);
        Self(command.stdout(Stdio::null()).spawn().expect("start a program"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an idle program with the name of MariaDB's server.
fn mariadbd(programs: &Path) -> PathBuf {
    let program = programs.join("mariadbd");
    if !program.exists() {
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("make a link");
    }
    program
}

impl Drop for Database {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
