//! Helpers for this crate's own tests: real files and processes.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) use pagekeeper_testing::{as_nobody, disk_dir, skip};

/// A process that does nothing but hold files; it ends with the test.
pub(crate) struct HoldingProcess(Child);

impl HoldingProcess {
    /// Holds the files as its standard input and output, and maps the program that it runs: a copy
    /// of `sleep` at `program`, which gives it its name.
    pub(crate) fn start(program: &Path, input: File, output: File) -> Self {
        if !program.exists() {
            // Copied by another program: a child of another thread would inherit the open copy
            // ("text file busy").
            assert!(Command::new("cp").arg("/bin/sleep").arg(program).status().unwrap().success());
        }
        let mut command = Command::new(program);
        command.arg("1000").stdin(Stdio::from(input)).stdout(Stdio::from(output));
        Self(command.spawn().unwrap())
    }

    /// Wraps a process that holds files already.
    pub(crate) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for HoldingProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens a file for reading, past the page cache. Returns `None`, with a message, if the file
/// system can't.
pub(crate) fn open_direct(path: &Path) -> Option<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => Some(file),
        Err(error) => {
            skip(format_args!("no direct I/O on this file system: {error}"));
            None
        }
    }
}
