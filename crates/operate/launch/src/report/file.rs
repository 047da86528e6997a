//! The destination file of a report.
//!
//! Invariant: before the command runs, only a frozen file system delays it; afterwards, only a
//! reader that takes the data. A pipe that nobody reads is opened once more at the end, and then
//! abandoned.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Maximum wait for a full pipe.
const READER_MAX: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A destination file, or a pipe that nobody reads yet.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    file: Option<File>,
}

impl ReportFile {
    /// Creates or truncates the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = match open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => None,
            file => Some(file?),
        };
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Writes all bytes.
    pub fn write(self, mut bytes: &[u8]) -> io::Result<()> {
        let mut file = match self.file {
            Some(file) => file,
            None => {
                open(&self.path).map_err(|error| if is_pipe(&self.path) { nobody_reads() } else { error })?
            }
        };
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for_reader(&file)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe would block until somebody reads it.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
}

fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo())
}

fn nobody_reads() -> io::Error {
    io::Error::other("nobody reads the pipe")
}

fn wait_for_reader(file: &File) -> io::Result<()> {
    let ready = poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&READER_MAX))?;
    if ready == 0 { Err(nobody_reads()) } else { Ok(()) }
}
