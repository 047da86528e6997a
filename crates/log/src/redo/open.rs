//! Opens a log: finds where it ends, what of it is kept, and begins the new epoch.
//!
//! Invariants:
//! 1. Nothing is written before everything was checked.
//! 2. What is kept is read from the device, where direct reads work, and synced before anything is appended: after a kill, or a sync that
//!    failed, the page cache may show what the device does not have. A file of which nothing is kept needs no sync: its content is
//!    before the checkpoint, or past the end, where the new epoch makes it invalid.
//! 3. Nothing is appended before the new epoch is durable: what a crash left past the end has another salt.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use pagekeeper_io::{Access, Create, Error as IoError, Io, IoFile, Lock, open_past_cache};
use pagekeeper_kernel::mutex::lock;

use super::control::{self, Control, ControlState, DecodedControl};
use super::core::Core;
use super::group_commit::GroupCommit;
use super::journal::Journal;
use super::journal::Recovered;
use super::options::RedoOptions;
use super::release::Releaser;
use super::ring::Lsn;
use super::ring::{self, Ring, RingSource};
use super::state::{
    CheckpointState, Configuration, EpochState, Epochs, EventCounts, Lifecycle, ReleaseState, SyncState,
};
use super::{buffer, metrics, salt};
use crate::injected_fault::injected_fault;
use crate::record::{self, BLOCK, Entry, EpochAt, HEADER, Reader};
use crate::{Error, FlushPolicy, LogMode, Syncs, Use};

/// Opens a log that is there.
pub(super) fn open(options: &RedoOptions, directory: &Path) -> Result<Core, Error> {
    open_and_read(options, directory, None)
}

/// Opens a log that is there, and gives its records from an LSN on, or from the checkpoint on.
pub(super) fn recover(
    options: &RedoOptions,
    directory: &Path,
    from: Option<Lsn>,
) -> Result<(Core, Vec<Recovered>), Error> {
    let mut records = Vec::new();
    let core = open_and_read(options, directory, Some(Wanted { from, records: &mut records }))?;
    Ok((core, records))
}

/// The records that somebody wants to have.
struct Wanted<'a> {
    from: Option<Lsn>,
    records: &'a mut Vec<Recovered>,
}

fn open_and_read(options: &RedoOptions, directory: &Path, wanted: Option<Wanted<'_>>) -> Result<Core, Error> {
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
    let held = io.lock(&directory.join(control::LOCK))?;
    let state = match control::read(&*open_to_recover(options, &*io, &path)?)? {
        DecodedControl::State(state) if state.in_use => state,
        DecodedControl::State(_) => return Err(Error::Unfinished { path: directory.to_path_buf() }),
        DecodedControl::Nothing if !has(&ring::is_name) => {
            return Err(Error::Unfinished { path: directory.to_path_buf() });
        }
        DecodedControl::Nothing => return Err(Error::BrokenControl { path }),
        DecodedControl::Version(version) => return Err(Error::UnknownVersion { path, version }),
    };
    let sources = open_sources(options, &*io, directory, state.geometry)?;
    let source =
        RingSource::new(Arc::clone(&io), state.geometry, Arc::clone(&sources), wraparound_end(&state));
    let choose = || choose_mode(options, &*io, directory);
    let (found, mode) = std::thread::scope(|scope| {
        // Trying how the disk can be written takes it some time, too.
        let chosen = options
            .threads
            .then(|| Builder::new().name("log_opener".to_owned()).spawn_scoped(scope, choose).ok())
            .flatten();
        let found = walk(options, source, &state, wanted);
        let mode = match chosen {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => choose(),
        };
        (found, mode)
    });
    start(options, directory, held, state, Some(found?), sources, mode?)
}

/// Opens a log that was just made.
pub(super) fn open_new(
    options: &RedoOptions,
    directory: &Path,
    held: Lock,
    state: ControlState,
) -> Result<Core, Error> {
    let io = options.io_or_best();
    let sources = open_sources(options, &*io, directory, state.geometry)?;
    let mode = choose_mode(options, &*io, directory)?;
    start(options, directory, held, state, None, sources, mode)
}

/// Where the ring wraps around to the checkpoint's block.
fn wraparound_end(state: &ControlState) -> u64 {
    state.checkpoint - state.checkpoint % BLOCK + state.geometry.capacity()
}

fn choose_mode(options: &RedoOptions, io: &dyn Io, directory: &Path) -> Result<LogMode, Error> {
    let syncs =
        if options.flush_policy == FlushPolicy::EachCommit { Syncs::EachCommit } else { Syncs::Seldom };
    Ok(options.mode.choose(io, directory, Use::Overwrite, syncs)?.mode)
}

/// What a log that is there has.
struct Walked {
    end: u64,
    /// In force at the end.
    salt: u32,
    epochs: Vec<EpochAt>,
}

/// Reads all that the log has.
fn walk(
    options: &RedoOptions,
    source: RingSource,
    state: &ControlState,
    mut wanted: Option<Wanted<'_>>,
) -> Result<Walked, Error> {
    let journal = Journal::new(source, state.checkpoint, options.threads);
    let mut reader = Reader::over(journal, state.checkpoint, state.salt);
    if let Some(max) = state.max_unsynced {
        reader = reader.with_max_unsynced(max);
    }
    #[cfg(any(test, feature = "injected-faults"))]
    {
        reader.injected_fault = options.injected_fault;
    }
    let from = wanted.as_ref().and_then(|wanted| wanted.from).unwrap_or(state.checkpoint);
    // Whether `from` is a place where a record begins or ends.
    let mut is_boundary = from == state.checkpoint;
    while let Some(Entry { lsn, next, body, .. }) = reader.next()? {
        is_boundary |= lsn == from || next == from;
        let len = body.len();
        if let Some(Wanted { records, .. }) = &mut wanted
            && lsn >= from
        {
            let body = reader.reach_mut().bytes(lsn + HEADER as u64, len).unwrap_or_default();
            records.push(Recovered { lsn, end: next, body });
        }
    }
    let end = reader.lsn();
    if !(state.checkpoint..=end).contains(&from) {
        return Err(Error::NotInLog { lsn: from, from: state.checkpoint, upto: end });
    }
    if !is_boundary && from != end {
        return Err(Error::NotARecord { lsn: from });
    }
    Ok(Walked { end, salt: reader.salt(), epochs: reader.epochs().to_vec() })
}

/// Opens what the control file says; nothing was found in a log that was just made.
fn start(
    options: &RedoOptions,
    directory: &Path,
    held: Lock,
    state: ControlState,
    found: Option<Walked>,
    sources: Arc<[Arc<dyn IoFile>]>,
    mode: LogMode,
) -> Result<Core, Error> {
    let io = options.io_or_best();
    let geometry = state.geometry;
    let limit = wraparound_end(&state);
    let mut epochs = Epochs { first: state.salt, later: Vec::new(), due: None };
    let mut salt = state.salt;
    if let Some(found) = found {
        salt = found.salt;
        epochs.later = found.epochs;
        epochs.due = Some(found.end);
    }
    let access = if mode == LogMode::Direct { Access::Direct } else { Access::Buffered };
    let files: Result<Vec<_>, IoError> = (0..geometry.files)
        .map(|index| io.open_writable(&directory.join(ring::name(index)), access, Create::Never))
        .collect();
    let ring = Ring { geometry, files: files? };
    #[cfg_attr(
        not(any(test, feature = "injected-faults")),
        expect(unused_mut, reason = "tests inject faults")
    )]
    let mut control = Control::open(&*io, &directory.join(control::NAME), state)?;
    #[cfg(any(test, feature = "injected-faults"))]
    {
        control.injected_fault = options.injected_fault;
    }
    let start = epochs.due.unwrap_or(0).next_multiple_of(BLOCK);
    if epochs.due.is_some() && !injected_fault!(options, NoSyncAtOpen) {
        sync_kept(&ring, state.checkpoint - state.checkpoint % BLOCK..start, &control, options.threads)?;
    }
    if injected_fault!(options, NoEpoch) {
        epochs.due = None;
    }
    #[cfg(any(test, feature = "injected-faults"))]
    let goes_on_at = epochs.due;
    if injected_fault!(options, AppendIntoTornBlock) {
        epochs.due = None;
    }
    // As long as an epoch is due nothing else gets room.
    let open_limit = if epochs.due.is_some() { start } else { limit };
    #[cfg(any(test, feature = "injected-faults"))]
    let start = if injected_fault!(options, AppendIntoTornBlock) {
        goes_on_at.map_or(0, |end| end - end % BLOCK)
    } else {
        start
    };
    let max_unsynced = state.max_unsynced.unwrap_or(u64::MAX);
    let (buffer, taker) =
        buffer::Buffer::new(options.buffer_bytes, start, open_limit.min(start.saturating_add(max_unsynced)));
    #[cfg(any(test, feature = "injected-faults"))]
    if injected_fault!(options, AppendIntoTornBlock) {
        go_on_in_block(&buffer, &sources, geometry, goes_on_at.unwrap_or(0))?;
    }
    let core = Core {
        config: Configuration {
            policy: options.flush_policy,
            mode,
            max_unsynced,
            start,
            write_threshold: buffer.capacity().min(1 << 20) / 4,
            releases: options.release,
            has_threads: options.threads,
            on_backpressure: options.on_backpressure.clone(),
            #[cfg(any(test, feature = "injected-faults"))]
            injected_fault: options.injected_fault,
        },
        ring,
        sources,
        io,
        buffer,
        writer: Mutex::new(taker),
        sync: SyncState {
            leader: Mutex::new(()),
            durable: AtomicU64::new(start),
            group_commit: GroupCommit::default(),
        },
        checkpoint: CheckpointState { control: Mutex::new(control), lsn: AtomicU64::new(state.checkpoint) },
        epoch: EpochState {
            epochs: Mutex::new(epochs),
            salt: AtomicU32::new(salt),
            ring_limit: AtomicU64::new(open_limit),
        },
        release: ReleaseState {
            releaser: Mutex::new(Releaser::new(start)),
            considered_upto: AtomicU64::new(start),
        },
        events: EventCounts::default(),
        lifecycle: Lifecycle::default(),
        counters: metrics::Counters::default(),
        _lock: held,
    };
    core.begin_due_epoch(limit)?;
    Ok(core)
}

impl Core {
    /// Begins the epoch that this opening owes, if there is room for it, and lets appends go up to `limit`.
    pub(super) fn begin_due_epoch(&self, limit: u64) -> Result<(), Error> {
        let mut epochs = lock(&self.epoch.epochs);
        if let Some(previous_end) = epochs.due {
            let start = previous_end.next_multiple_of(BLOCK);
            if start + BLOCK > limit {
                return Ok(());
            }
            let salt_before = self.epoch.salt.load(Ordering::Relaxed);
            let salt =
                if injected_fault!(self.config, SameSalt) { salt_before } else { salt::unlike(salt_before) };
            let (_, block) = record::encode_epoch(previous_end, salt_before, salt);
            if let Some(span) = self.buffer.reserve_beyond_limit(BLOCK) {
                self.buffer.fill(span, [&block, &[]]);
            }
            self.wait_durable(start + BLOCK)?;
            self.epoch.salt.store(salt, Ordering::Relaxed);
            epochs.later.push(EpochAt { previous_end, start, salt });
            epochs.due = None;
        }
        self.epoch.ring_limit.fetch_max(limit, Ordering::SeqCst);
        // Releases the salt to all whom it lets in.
        self.raise_limit();
        self.events.room.notify_all();
        Ok(())
    }
}

/// Makes durable what is kept: the control file, and all files that have a part of these LSNs. At once, if there may be threads.
fn sync_kept(ring: &Ring, lsns: Range<u64>, control: &Control, threads: bool) -> Result<(), Error> {
    let mut kept: Vec<usize> = ring.geometry.pieces(lsns).map(|(index, _)| index).collect();
    kept.sort_unstable();
    kept.dedup();
    let sync = |index: usize| Ok::<(), Error>(ring.files[index].sync_all()?);
    if !threads {
        kept.into_iter().try_for_each(sync)?;
        return control.sync();
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = kept
            .iter()
            .map(|index| (index, Builder::new().spawn_scoped(scope, move || sync(*index))))
            .collect();
        let synced = control.sync();
        others
            .into_iter()
            .map(|(index, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => sync(*index),
            })
            .fold(synced, Result::and)
    })
}

/// Opens a file of the log to find out what it has.
#[cfg_attr(
    not(any(test, feature = "injected-faults")),
    expect(unused_variables, reason = "tests inject faults")
)]
fn open_to_recover(options: &RedoOptions, io: &dyn Io, path: &Path) -> Result<Arc<dyn IoFile>, IoError> {
    if injected_fault!(options, ReadThroughCache) {
        return io.open(path, Access::Buffered);
    }
    open_past_cache(io, path)
}

/// Opens the files to read, past the page cache, and compares their sizes.
fn open_sources(
    options: &RedoOptions,
    io: &dyn Io,
    directory: &Path,
    geometry: ring::Geometry,
) -> Result<Arc<[Arc<dyn IoFile>]>, Error> {
    let mut files = Vec::new();
    for index in 0..geometry.files {
        let path = directory.join(ring::name(index));
        let file = match open_to_recover(options, io, &path) {
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

/// The fault [`crate::injected_fault::InjectedFault::AppendIntoTornBlock`]: the block in which the log ended is filled as it was.
#[cfg(any(test, feature = "injected-faults"))]
fn go_on_in_block(
    buffer: &buffer::Buffer,
    files: &[Arc<dyn IoFile>],
    geometry: ring::Geometry,
    end: u64,
) -> Result<(), Error> {
    let mut block = pagekeeper_io::AlignedBuf::new(record::BLOCK_LEN);
    let (file, offset) = geometry.locate(end - end % BLOCK);
    files[file].read_at(offset, &mut block)?;
    if let Some(span) = buffer.reserve_beyond_limit(end % BLOCK) {
        let len = crate::convert::to_usize(end % BLOCK);
        buffer.fill(span, [&block[..len], &[]]);
    }
    Ok(())
}
