//! Creates a log.
//!
//! The control file comes first and says that the log is being created. Then come the files,
//! written with zeros from end to end. Last, the control file records that the log is closed, and
//! so complete. A directory with ring files but without a control file is therefore never
//! overwritten by a new log.
//!
//! A failure leaves existing files unchanged and removes the created ones. After a failure of the
//! last step nothing is removed, since the log may be complete.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::{
    AlignedBuf, Create, Error as IoError, Io, WriteMode, open_past_cache, open_writable_past_cache,
};
use pagekeeper_text::escaped;

use super::control::{self, ControlFile, ControlState, DecodedControl, LogPhase};
use super::core::Core;
use super::options::RedoOptions;
use super::{open, own_blocks, ring, salt};
use crate::Error;
use crate::convert::to_usize;
use crate::injected_fault::injected_fault;
use crate::limits::{LOCK_NAME, LOST_AND_FOUND};

/// Bytes of zeros written at once.
const ZERO_WRITE_BYTES: usize = 1 << 20;

/// Creates a log in an empty directory.
pub(super) fn create(options: &RedoOptions, directory: &Path) -> Result<Core, Error> {
    let io = options.io_or_best();
    let is_new_directory = match io.list(directory) {
        Ok(_) => {
            check_empty(&*io, directory)?;
            false
        }
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            io.create_dir(directory)?;
            true
        }
        Err(error) => return Err(error.into()),
    };
    // The directory may have been created just now or before a crash: its name must be durable.
    if let Some(parent) = directory.parent() {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        sync_names(options, parent, &*io)?;
    }
    let mut made = CreatedFiles { io: &io, paths: Vec::new() };
    match make(options, directory, &mut made) {
        Ok((lock, state)) => open::open_new(options, directory, lock, state),
        Err(error) => {
            made.remove();
            if is_new_directory {
                // It stays if anything else is in it.
                let _ = io.remove_dir(directory);
            }
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
    made: &mut CreatedFiles<'_>,
) -> Result<(pagekeeper_io::FileLock, ControlState), Error> {
    let io = &**made.io;
    let lock = io.lock(&directory.join(LOCK_NAME))?;
    made.paths.push(directory.join(LOCK_NAME));
    // Checked again: another process may have created a log here meanwhile.
    let (rings, others): (Vec<_>, Vec<_>) =
        check_empty(io, directory)?.into_iter().partition(|name| ring::is_name(name));
    for name in &rings {
        io.remove(&directory.join(name))?;
    }
    if !rings.is_empty() {
        // In the same order as in `CreatedFiles::remove`.
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
        phase: LogPhase::Making,
        checkpoint: 0,
        salt: salt::unlike(0),
        settled: 0,
        longest: 0,
        epochs: Vec::new(),
    };
    let path = directory.join(control::CONTROL_NAME);
    made.paths.push(path.clone());
    let mut control = ControlFile::create(made.io, &path, state)?;
    sync_names(options, directory, io)?;
    let zeros = AlignedBuf::new(ZERO_WRITE_BYTES);
    for index in 0..options.files {
        let path = directory.join(ring::name(index));
        made.paths.push(path.clone());
        make_file(io, &path, options.file_bytes, &zeros)?;
    }
    sync_names(options, directory, io)?;
    // From here on it may be a log, even if the write fails: nothing is removed.
    made.paths.clear();
    control.write(ControlState { phase: LogPhase::Closed, ..control.state().clone() })?;
    Ok((lock, control.state().clone()))
}

/// Creates a file of zeros, durable except for its name. Later overwrites need neither space nor
/// the file system's journal.
fn make_file(io: &dyn Io, path: &Path, bytes: u64, zeros: &[u8]) -> Result<(), Error> {
    let file = open_writable_past_cache(io, path, Create::New)?;
    own_blocks::exempt_from_copies(&*file);
    match file.allocate(0..bytes) {
        // The writes allocate the space instead.
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
    // Only useful without direct I/O. Pages that can't be released stay.
    let _ = file.release(0..bytes);
    Ok(())
}

/// Fails unless the directory holds only the names at the root of a file system and the remains of
/// an interrupted creation. Returns the names of the remains.
fn check_empty(io: &dyn Io, directory: &Path) -> Result<Vec<String>, Error> {
    let not_empty = |found: String| Err(Error::NotEmpty { path: directory.to_path_buf(), found });
    let mut left = Vec::new();
    for name in io.list(directory)? {
        match name.to_str() {
            Some(LOCK_NAME | LOST_AND_FOUND) => {}
            Some(name) if name == control::CONTROL_NAME || ring::is_name(name) => left.push(name.to_owned()),
            _ => return not_empty(escaped(&name).to_string()),
        }
    }
    if left.is_empty() {
        return Ok(left);
    }
    let has_control = left.iter().any(|name| name == control::CONTROL_NAME);
    let found = if has_control {
        control::read(&*open_past_cache(io, directory.join(control::CONTROL_NAME))?)?
    } else {
        DecodedControl::Nothing
    };
    match found {
        DecodedControl::State(state, _) if state.phase == LogPhase::Making => Ok(left),
        // The very first step of a creation was interrupted.
        DecodedControl::Nothing if has_control && left.len() == 1 => Ok(left),
        _ => not_empty(left.swap_remove(0)),
    }
}

/// The files created so far.
struct CreatedFiles<'a> {
    io: &'a Arc<dyn Io>,
    paths: Vec<PathBuf>,
}

impl CreatedFiles<'_> {
    /// Removes the files as far as possible: the error that led here is the one to report. Nobody
    /// may overwrite ring files without a control file, so the control file is removed after their
    /// removal is durable.
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
