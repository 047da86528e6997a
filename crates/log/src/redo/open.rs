//! Opening a log: where it ends, what of it is kept, and the new epoch.
//!
//! Invariants:
//! 1. Nothing is written before all was found to be in order.
//! 2. What is kept is read from the device, where that can be had, and synced before anything is appended: after a kill, or a
//!    sync that failed, the page cache may show what the device does not have.
//! 3. Nothing is appended before the new epoch is durable: what a crash left behind the end has another salt.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use pagekeeper_io::{Access, Create, Error as IoError, Io, IoFile, Lock};

use super::control::{self, Control, Found, State};
use super::core::{Core, Epochs, lock};
use super::create::LOCK;
use super::planted::planted;
use super::release::Releaser;
use super::ring::{self, Ring, RingSource};
use super::{RedoLog, RedoOptions, buffer, metrics};
use crate::record::{self, BLOCK, EpochAt, Reader};
use crate::{Error, FlushPolicy, LogMode, Syncs, Use};

/// Opens a log that is there.
pub(super) fn open(options: &RedoOptions, directory: &Path) -> Result<RedoLog, Error> {
    let io = options.io_or_best();
    let path = directory.join(control::NAME);
    // Before the lock, which makes a file.
    let names = match io.list(directory) {
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            return Err(Error::NoLog { path: directory.to_path_buf() });
        }
        names => names?,
    };
    let has = |found: &dyn Fn(&str) -> bool| names.iter().any(|name| name.to_str().is_some_and(found));
    if !has(&|name| name == control::NAME) {
        return Err(Error::NoLog { path });
    }
    let held = io.lock(&directory.join(LOCK))?;
    let state = match control::read(&*io, &path)? {
        Found::State(state) if state.in_use => state,
        Found::State(_) => return Err(Error::Unfinished { path: directory.to_path_buf() }),
        Found::Nothing if !has(&ring::is_name) => {
            return Err(Error::Unfinished { path: directory.to_path_buf() });
        }
        Found::Nothing => return Err(Error::BrokenControl { path }),
        Found::Version(version) => return Err(Error::UnknownVersion { path, version }),
    };
    start(options, directory, held, state, None)
}

/// Opens what the control file says. The end is known of a log that was just made.
pub(super) fn start(
    options: &RedoOptions,
    directory: &Path,
    held: Lock,
    state: State,
    end: Option<u64>,
) -> Result<RedoLog, Error> {
    let io = options.io_or_best();
    let geometry = state.geometry;
    let sources = open_sources(&*io, directory, geometry)?;
    let limit = state.checkpoint - state.checkpoint % BLOCK + geometry.capacity();
    let mut epochs = Epochs { first: state.salt, later: Vec::new(), due: None };
    let mut salt = state.salt;
    if end.is_none() {
        let source = RingSource::new(Arc::clone(&io), geometry, Arc::clone(&sources), limit);
        let mut reader = Reader::new(source, state.checkpoint, state.salt);
        while reader.next()?.is_some() {}
        salt = reader.salt();
        epochs.later.extend_from_slice(reader.epochs());
        epochs.due = Some(reader.lsn());
    }

    let syncs =
        if options.flush_policy == FlushPolicy::EachCommit { Syncs::EachCommit } else { Syncs::Seldom };
    let mode = options.mode.choose(&*io, directory, Use::Overwrite, syncs)?.mode;
    let access = if mode == LogMode::Direct { Access::Direct } else { Access::Buffered };
    let files: Result<Vec<_>, IoError> = (0..geometry.files)
        .map(|index| io.open_writable(&directory.join(ring::name(index)), access, Create::Never))
        .collect();
    let ring = Ring { geometry, files: files? };
    #[cfg_attr(not(test), expect(unused_mut, reason = "tests plant bugs in it"))]
    let mut control = Control::open(&*io, &directory.join(control::NAME), state)?;
    #[cfg(test)]
    {
        control.planted = options.planted;
    }
    let start = end.or(epochs.due).unwrap_or(0).next_multiple_of(BLOCK);
    if end.is_none() && !planted!(options, NoSyncAtOpen) {
        for file in &ring.files {
            file.sync_all()?;
        }
        control.sync()?;
    }
    if planted!(options, NoEpoch) {
        epochs.due = None;
    }
    #[cfg(test)]
    let goes_on_at = epochs.due;
    if planted!(options, AppendIntoTornBlock) {
        epochs.due = None;
    }
    // As long as an epoch is due nothing else gets room.
    let open_limit = if epochs.due.is_some() { start } else { limit };
    #[cfg(test)]
    let start = if planted!(options, AppendIntoTornBlock) {
        goes_on_at.map_or(0, |end| end - end % BLOCK)
    } else {
        start
    };
    let (buffer, taker) = buffer::Buffer::new(options.buffer_bytes, start, open_limit);
    #[cfg(test)]
    if planted!(options, AppendIntoTornBlock) {
        super::tests::go_on_in_block(&buffer, &sources, geometry, goes_on_at.unwrap_or(0));
    }
    let core = Core {
        much: buffer.capacity().min(1 << 20) / 4,
        buffer,
        ring,
        sources,
        policy: options.flush_policy,
        mode,
        salt: AtomicU32::new(salt),
        writer: Mutex::new(taker),
        syncer: Mutex::new(()),
        durable: AtomicU64::new(start),
        groups: super::group::Groups::default(),
        room: super::bell::Bell::default(),
        to_write: super::bell::Bell::default(),
        to_flush: super::bell::Bell::default(),
        released: super::bell::Bell::default(),
        hurry: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        poison: OnceLock::new(),
        checkpoint: AtomicU64::new(state.checkpoint),
        control: Mutex::new(control),
        epochs: Mutex::new(epochs),
        releases: options.release,
        releaser: Mutex::new(Releaser::new(start)),
        release_at: AtomicU64::new(start),
        counters: metrics::Counters::default(),
        start,
        on_backpressure: options.on_backpressure.clone(),
        has_threads: options.has_threads(),
        #[cfg(test)]
        planted: options.planted,
        io,
        _lock: held,
    };
    core.begin_epoch_that_is_due(limit)?;
    RedoLog::new(core)
}

impl Core {
    /// Begins the epoch that this opening owes, if there is room for it, and lets appends go up to `limit`.
    pub(super) fn begin_epoch_that_is_due(&self, limit: u64) -> Result<(), Error> {
        let mut epochs = lock(&self.epochs);
        if let Some(previous_end) = epochs.due {
            let start = previous_end.next_multiple_of(BLOCK);
            if start + BLOCK > limit {
                return Ok(());
            }
            let salt_before = self.salt.load(Ordering::Relaxed);
            let salt = if planted!(self, SameSalt) { salt_before } else { salt_unlike(salt_before) };
            let (_, block) = record::encode_epoch(previous_end, salt_before, salt);
            if let Some(span) = self.buffer.reserve_beyond_limit(BLOCK) {
                self.buffer.fill(span, [&block, &[]]);
            }
            self.wait_durable(start + BLOCK)?;
            self.salt.store(salt, Ordering::Relaxed);
            epochs.later.push(EpochAt { previous_end, start, salt });
            epochs.due = None;
        }
        // Releases the salt to all whom it lets in.
        self.buffer.raise_limit(limit);
        self.room.ring();
        Ok(())
    }
}

/// Opens the files to read, past the page cache, and compares their sizes.
fn open_sources(
    io: &dyn Io,
    directory: &Path,
    geometry: ring::Geometry,
) -> Result<Arc<[Arc<dyn IoFile>]>, Error> {
    let mut files = Vec::new();
    for index in 0..geometry.files {
        let path = directory.join(ring::name(index));
        let file = match ring::open_past_cache(io, &path) {
            Err(error) if error.errno() == Some(libc::ENOENT) => return Err(Error::MissingFile { path }),
            opened => opened?,
        };
        let found = file.stat()?.size;
        if found != geometry.file_bytes {
            return Err(Error::WrongSize { path, expected: geometry.file_bytes, found });
        }
        files.push(file);
    }
    Ok(files.into())
}

/// A number that nobody foresees.
pub(super) fn by_chance() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A salt other than this.
pub(super) fn salt_unlike(other: u32) -> u32 {
    let chance = by_chance();
    let salt = (chance ^ (chance >> 32)) & u64::from(u32::MAX);
    let salt = u32::try_from(salt).unwrap_or(1);
    if salt == other { !salt } else { salt }
}
