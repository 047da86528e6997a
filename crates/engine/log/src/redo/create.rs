//! Creates a log.
//!
//! The control file comes first and says that the log is being made; then the files, written with zeros from end to end; then the
//! control file says that it is in use. So a directory with ring files but no control file is never overwritten by a new log.
//!
//! A failure leaves what was there before unchanged, and removes what was made except for an empty directory; but of the last step, after
//! which the log is whole, nothing is removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::{
    AlignedBuf, Create, Error as IoError, Io, WriteMode, open_past_cache, open_writable_past_cache,
};
use pagekeeper_kernel::text::escaped;

use super::control::{self, Control, ControlState, DecodedControl, LOCK, Phase};
use super::core::Core;
use super::options::RedoOptions;
use super::{open, own_blocks, ring, salt};
use crate::Error;
use crate::convert::to_usize;
use crate::injected_fault::injected_fault;
use crate::limits::LOST_AND_FOUND;

/// Bytes of zeros written at once.
const ZEROS: usize = 1 << 20;

/// Makes a log in an empty directory.
pub(super) fn create(options: &RedoOptions, directory: &Path) -> Result<Core, Error> {
    let io = options.io_or_best();
    match io.list(directory) {
        Ok(_) => {
            check_empty(&*io, directory)?;
        }
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            io.create_dir(directory)?;
        }
        Err(error) => return Err(error.into()),
    }
    // Whether it was made just now, or before a crash: its name must last.
    if let Some(parent) = directory.parent() {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        sync_names(options, parent, &*io)?;
    }
    let mut made = Made { io: &io, paths: Vec::new() };
    match make(options, directory, &mut made) {
        Ok((lock, state)) => open::open_new(options, directory, lock, state),
        Err(error) => {
            made.remove();
            Err(error)
        }
    }
}

#[cfg_attr(
    not(any(test, feature = "injected-faults")),
    expect(unused_variables, reason = "tests inject faults")
)]
fn sync_names(options: &RedoOptions, directory: &Path, io: &dyn Io) -> Result<(), IoError> {
    if injected_fault!(options, NoSyncOfDirectory) { Ok(()) } else { io.sync_dir(directory) }
}

fn make(
    options: &RedoOptions,
    directory: &Path,
    made: &mut Made<'_>,
) -> Result<(pagekeeper_io::Lock, ControlState), Error> {
    let io = &**made.io;
    let lock = io.lock(&directory.join(LOCK))?;
    made.paths.push(directory.join(LOCK));
    // Again: another may have made a log here meanwhile.
    let (rings, others): (Vec<_>, Vec<_>) =
        check_empty(io, directory)?.into_iter().partition(|name| ring::is_name(name));
    for name in &rings {
        io.remove(&directory.join(name))?;
    }
    if !rings.is_empty() {
        // As in `Made::remove`.
        sync_names(options, directory, io)?;
    }
    for name in others {
        io.remove(&directory.join(name))?;
    }
    let state = ControlState {
        number: 0,
        log_id: salt::random(),
        geometry: options.geometry(),
        max_unsynced: options.max_unsynced,
        phase: Phase::Making,
        checkpoint: 0,
        salt: salt::unlike(0),
        settled: 0,
        longest: 0,
        epochs: Vec::new(),
    };
    let path = directory.join(control::NAME);
    made.paths.push(path.clone());
    let mut control = Control::create(made.io, &path, state)?;
    sync_names(options, directory, io)?;
    let zeros = AlignedBuf::new(ZEROS);
    for index in 0..options.files {
        let path = directory.join(ring::name(index));
        made.paths.push(path.clone());
        make_file(io, &path, options.file_bytes, &zeros)?;
    }
    sync_names(options, directory, io)?;
    // From here on it may be a log, also where the write fails: nothing of it is removed.
    made.paths.clear();
    control.write(ControlState { phase: Phase::Closed, ..control.state().clone() })?;
    Ok((lock, control.state().clone()))
}

/// A file of zeros, durable but for its name: what overwrites it later needs no room and no journal of the file system.
fn make_file(io: &dyn Io, path: &Path, bytes: u64, zeros: &[u8]) -> Result<(), Error> {
    let file = open_writable_past_cache(io, path, Create::New)?;
    own_blocks::exempt_from_copies(&*file);
    match file.allocate(0..bytes) {
        // Then writing it does.
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {}
        allocated => allocated?,
    }
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(zeros.len() as u64);
        file.write_at(at, &zeros[..to_usize(len)], WriteMode::Plain)?;
        at += len;
    }
    file.sync_all()?;
    // Of use where there is no direct I/O only; where pages can't be released they stay.
    let _ = file.release(0..bytes);
    Ok(())
}

/// Fails unless the directory has nothing in it but what a file system has at its root, and what an interrupted making left: gives the names of that.
fn check_empty(io: &dyn Io, directory: &Path) -> Result<Vec<String>, Error> {
    let not_empty = |found: String| Err(Error::NotEmpty { path: directory.to_path_buf(), found });
    let mut left = Vec::new();
    for name in io.list(directory)? {
        match name.to_str() {
            Some(LOCK | LOST_AND_FOUND) => {}
            Some(name) if name == control::NAME || ring::is_name(name) => left.push(name.to_owned()),
            _ => return not_empty(escaped(&name).to_string()),
        }
    }
    if left.is_empty() {
        return Ok(left);
    }
    let has_control = left.iter().any(|name| name == control::NAME);
    let found = if has_control {
        control::read(&*open_past_cache(io, &directory.join(control::NAME))?)?
    } else {
        DecodedControl::Nothing
    };
    match found {
        DecodedControl::State(state, _) if state.phase == Phase::Making => Ok(left),
        // The very first thing to be made was interrupted.
        DecodedControl::Nothing if has_control && left.len() == 1 => Ok(left),
        _ => not_empty(left.swap_remove(0)),
    }
}

/// What was made so far.
struct Made<'a> {
    io: &'a Arc<dyn Io>,
    paths: Vec<PathBuf>,
}

impl Made<'_> {
    /// As far as that works: the error that led here is the one to report. Ring files without a control file are nobody's to write over, so
    /// that goes after they are gone for good.
    fn remove(self) {
        let (rings, others): (Vec<_>, Vec<_>) = self
            .paths
            .iter()
            .rev()
            .partition(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(ring::is_name));
        for path in &rings {
            let _: Result<(), IoError> = self.io.remove(path);
        }
        let directory = rings.first().and_then(|path| path.parent());
        if directory.is_some_and(|directory| self.io.sync_dir(directory).is_err()) {
            return;
        }
        for path in others {
            let _: Result<(), IoError> = self.io.remove(path);
        }
    }
}
