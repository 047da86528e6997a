//! The child whose calls are timed: it calls the C library's functions as a database does, with nothing else in the
//! loop.
//!
//! Each line of its standard input is a batch: a call, and how often. It answers with the nanoseconds of the whole
//! batch. The results of calls are checked. Fails where a call does; ends when its input does.

#![expect(unsafe_code, reason = "calls of the C library: those of std and rustix may take another way")]

use std::ffi::{CString, c_int};
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// A call that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Call {
    /// open64(3) of the file.
    Open,
    /// open64(3) of another name of it, which ends nearly as one of a rule's does.
    OpenAlike,
    /// close(2) of it.
    Close,
    /// pread64(3) of a byte of it.
    Pread,
    /// pwrite64(3) of a byte.
    Pwrite,
    /// read(2) of a byte.
    Read,
    /// write(2) of a byte.
    Write,
    /// lseek64(3).
    Lseek,
    /// fsync(2) of a file in memory, which has nothing to do.
    Fsync,
    /// read(2) of /dev/null.
    NullRead,
    /// write(2) of a byte to it.
    NullWrite,
}

impl Call {
    /// All calls.
    pub(super) const ALL: [Self; 11] = [
        Self::Open,
        Self::OpenAlike,
        Self::Close,
        Self::Pread,
        Self::Pwrite,
        Self::Read,
        Self::Write,
        Self::Lseek,
        Self::Fsync,
        Self::NullRead,
        Self::NullWrite,
    ];

    /// Returns its name in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::OpenAlike => "open of a name like a rule's",
            Self::Close => "close",
            Self::Pread => "pread of a byte",
            Self::Pwrite => "pwrite of a byte",
            Self::Read => "read of a byte",
            Self::Write => "write of a byte",
            Self::Lseek => "lseek",
            Self::Fsync => "fsync in memory",
            Self::NullRead => "read of /dev/null",
            Self::NullWrite => "write to /dev/null",
        }
    }

    /// Returns the number of calls in a batch that takes some hundred microseconds. It is at most the file's bytes, and
    /// for opens at most a process's descriptors.
    pub(super) fn batch(self) -> u32 {
        match self {
            Self::Open | Self::OpenAlike | Self::Close => 200,
            _ => 1000,
        }
    }

    /// Returns its name in the child's input.
    pub(super) fn word(self) -> String {
        use clap::ValueEnum;
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A small program to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Small {
    /// The smallest program.
    True,
    /// `cp` of the file, which is a stream.
    Cp,
    /// `gzip` of the file, another stream.
    Gzip,
}

impl Small {
    /// All programs.
    pub(super) const ALL: [Self; 3] = [Self::True, Self::Cp, Self::Gzip];

    /// Returns its name in the child's input.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::True => "start-true",
            Self::Cp => "start-cp",
            Self::Gzip => "start-gzip",
        }
    }

    /// Returns its name in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::True => "starting and ending /bin/true, as a child of a process",
            Self::Cp => "the same of cp of a file of 4 KiB",
            Self::Gzip => "the same of gzip of that file",
        }
    }

    /// Returns the names of the figures of what `run` adds: the median, and the quickest.
    pub(super) fn figures(self) -> (&'static str, &'static str) {
        match self {
            Self::True => ("shim_process_us", "shim_process_least_us"),
            Self::Cp => ("shim_cp_us", "shim_cp_least_us"),
            Self::Gzip => ("shim_gzip_us", "shim_gzip_least_us"),
        }
    }

    /// Starts it this many times, waits for each, and returns the total time.
    fn start(self, number: u32, file: &Path) -> Result<Duration> {
        let made = file.with_extension("gz");
        let mut took = Duration::ZERO;
        for _ in 0..number {
            let mut command = match self {
                Self::True => Command::new("/bin/true"),
                Self::Cp => Command::new("cp"),
                Self::Gzip => Command::new("gzip"),
            };
            match self {
                Self::True => &mut command,
                Self::Cp => command.arg(file).arg(&made),
                // The file has another suffix, which gzip rejects without `--force`.
                Self::Gzip => command.args(["--keep", "--force"]).arg(file),
            };
            let began = Instant::now();
            let status = command.status().with_context(|| format!("can't start {self:?}"))?;
            took += began.elapsed();
            ensure!(status.success(), "{self:?} ended with {status}");
            if self != Self::True {
                std::fs::remove_file(&made).with_context(|| format!("{self:?} made nothing"))?;
            }
        }
        Ok(took)
    }
}

/// Bytes of the file, all of which are 0.
pub(super) const FILE_BYTES: usize = 4096;
/// Bytes of a stream's read.
pub(super) const STREAM_READ: usize = 128 << 10;

/// Takes part in a measurement.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ChildArguments {
    /// A file of 4096 bytes on a disk.
    file: PathBuf,
    /// Another name of it.
    alike: PathBuf,
    /// One in memory.
    memory: PathBuf,
    /// Instead of all else, let the instructions of this call be counted by the parent, which traces this process.
    #[arg(long, value_enum)]
    counted: Option<Call>,
    /// How many of them.
    #[arg(long, default_value_t = 100)]
    calls: u32,
}

/// Runs the batches of the input until it ends.
pub(crate) fn be_timed(arguments: &ChildArguments) -> Result<()> {
    let files = Files::open(arguments)?;
    if let Some(call) = arguments.counted {
        return super::steps::be_counted(|calls| files.batch(call, calls).map(drop), arguments.calls);
    }
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.context("can't read what to do")?;
        let (what, number) = line.split_once(' ').with_context(|| format!("not understood: {line}"))?;
        let took = match what {
            "stream" => read_stream(Path::new(number))?,
            call if let Some(small) = Small::ALL.into_iter().find(|small| small.word() == call) => {
                small.start(number.parse()?, &arguments.file)?
            }
            call => {
                use clap::ValueEnum;
                let call = Call::from_str(call, false).map_err(|error| anyhow::anyhow!("{call}: {error}"))?;
                files.batch(call, number.parse()?)?
            }
        };
        writeln!(answers, "{}", took.as_nanos())
            .and_then(|()| answers.flush())
            .context("the parent has gone")?;
    }
    Ok(())
}

/// Reads a file from start to end as a stream does.
fn read_stream(path: &Path) -> Result<Duration> {
    let path = c_path(path)?;
    let mut buffer = vec![0_u8; STREAM_READ];
    let began = Instant::now();
    // SAFETY: the path ends with a zero byte and lives until the call returns.
    let descriptor = unsafe { libc::open64(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    ensure!(descriptor >= 0, "can't open: {}", std::io::Error::last_os_error());
    let took = loop {
        // SAFETY: the buffer has that many bytes, and nobody else uses it.
        match unsafe { libc::read(descriptor, buffer.as_mut_ptr().cast(), STREAM_READ) } {
            0 => break began.elapsed(),
            ..0 => bail!("can't read: {}", std::io::Error::last_os_error()),
            _ => {}
        }
    };
    // SAFETY: it was opened above, and nothing else uses it.
    unsafe { libc::close(descriptor) };
    Ok(took)
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).context("a path has a zero byte")
}

/// The files that the calls use.
struct Files {
    path: CString,
    alike: CString,
    file: File,
    memory: File,
    null: File,
}

impl Files {
    fn open(arguments: &ChildArguments) -> Result<Self> {
        let open = |path: &Path| {
            let opened = File::options().read(true).write(true).open(path);
            opened.with_context(|| format!("can't open {}", path.display()))
        };
        Ok(Self {
            path: c_path(&arguments.file)?,
            alike: c_path(&arguments.alike)?,
            file: open(&arguments.file)?,
            memory: open(&arguments.memory)?,
            null: open(Path::new("/dev/null"))?,
        })
    }

    /// Returns the time of this many calls.
    fn batch(&self, call: Call, calls: u32) -> Result<Duration> {
        let (file, memory, null) = (self.file.as_raw_fd(), self.memory.as_raw_fd(), self.null.as_raw_fd());
        let mut byte = [0_u8];
        let pointer = byte.as_mut_ptr();
        let (took, returned) = match call {
            Call::Open | Call::OpenAlike | Call::Close => return self.open_and_close(call, calls),
            // SAFETY: `byte` lives until the end of this function, and nobody refers to it meanwhile.
            Call::Pread => timed(calls, || unsafe { libc::pread64(file, pointer.cast(), 1, 17) }),
            // SAFETY: as before.
            Call::Pwrite => timed(calls, || unsafe { libc::pwrite64(file, pointer.cast(), 1, 17) }),
            Call::Read => {
                rewind(file)?;
                // SAFETY: as before.
                timed(calls, || unsafe { libc::read(file, pointer.cast(), 1) })
            }
            Call::Write => {
                rewind(file)?;
                // SAFETY: as before.
                timed(calls, || unsafe { libc::write(file, pointer.cast(), 1) })
            }
            Call::Lseek => {
                // SAFETY: no memory is involved.
                timed(calls, || isize::from(unsafe { libc::lseek64(file, 1, libc::SEEK_SET) } == 1))
            }
            // SAFETY: no memory is involved.
            Call::Fsync => timed(calls, || isize::from(unsafe { libc::fsync(memory) } == 0)),
            // SAFETY: as before.
            Call::NullRead => timed(calls, || unsafe { libc::read(null, pointer.cast(), 1) + 1 }),
            // SAFETY: as before.
            Call::NullWrite => timed(calls, || unsafe { libc::write(null, pointer.cast(), 1) }),
        };
        ensure!(returned == isize::try_from(calls)?, "calls returned {returned} instead of {calls}");
        Ok(took)
    }

    /// Opens the file this many times, then closes all; returns the time of the opens or of the closes, by `call`.
    fn open_and_close(&self, call: Call, calls: u32) -> Result<Duration> {
        let path = if call == Call::OpenAlike { &self.alike } else { &self.path };
        let mut descriptors: Vec<c_int> = Vec::with_capacity(calls as usize);
        let began = Instant::now();
        for _ in 0..calls {
            // SAFETY: the path ends with a zero byte and lives as long as `self`.
            descriptors.push(unsafe { libc::open64(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) });
        }
        let opened = began.elapsed();
        ensure!(!descriptors.contains(&-1), "can't open: {}", std::io::Error::last_os_error());
        let began = Instant::now();
        let mut failed = 0;
        for descriptor in descriptors {
            // SAFETY: it was opened above, and nothing else uses it.
            failed += unsafe { libc::close(descriptor) };
        }
        let closed = began.elapsed();
        ensure!(failed == 0, "can't close");
        Ok(if call == Call::Close { closed } else { opened })
    }
}

fn rewind(file: c_int) -> Result<()> {
    // SAFETY: no memory is involved.
    let at = unsafe { libc::lseek64(file, 0, libc::SEEK_SET) };
    ensure!(at == 0, "can't seek: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Returns the time of this many calls, and the sum of their results.
#[inline]
fn timed(calls: u32, mut call: impl FnMut() -> isize) -> (Duration, isize) {
    let mut returned = 0;
    let began = Instant::now();
    for _ in 0..calls {
        returned += call();
    }
    (began.elapsed(), returned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(dir: &Path) -> ChildArguments {
        let file = dir.join("file");
        std::fs::write(&file, [0; FILE_BYTES]).unwrap();
        ChildArguments { memory: file.clone(), alike: file.clone(), file, counted: None, calls: 1 }
    }

    #[test]
    fn every_call_is_made_and_takes_time() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(&arguments(dir.path())).unwrap();
        for call in Call::ALL {
            assert!(files.batch(call, call.batch()).unwrap() > Duration::ZERO, "{call:?}");
        }
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), [0; FILE_BYTES]);
    }

    #[test]
    fn small_programs_are_started_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = arguments(dir.path());
        let alike = dir.path().join("alike");
        std::fs::hard_link(&arguments.file, &alike).unwrap();
        for small in Small::ALL {
            assert!(small.start(2, &arguments.file).unwrap() > Duration::ZERO, "{small:?}");
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 2);
        assert!(Small::Cp.start(1, &dir.path().join("none")).is_err());
    }

    #[test]
    fn reads_that_come_to_the_end_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(&arguments(dir.path())).unwrap();
        let error = files.batch(Call::Read, u32::try_from(FILE_BYTES).unwrap() + 1).unwrap_err();
        assert!(error.to_string().contains("calls returned 4096 instead of 4097"), "{error}");
    }
}
