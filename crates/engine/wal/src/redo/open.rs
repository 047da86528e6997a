//! Opens a log: finds its end, and determines which records are kept.
//!
//! Invariants:
//! 1. Nothing is written: the first append records everything that must be recorded before it
//!    ([`super::begin`]). Opening therefore uses nothing up, whatever its outcome, and needs no
//!    room.
//! 2. Kept records are read from the device, if direct reads work, and synced before anything after
//!    them is acknowledged. After a kill or a failed sync, the page cache may show bytes that the
//!    device does not have.
//!
//! Some files need no sync. A file without kept records holds only bytes before the checkpoint or
//! past the end. The records of a closed log are durable already; only its control file is synced,
//! since a close that was killed may have left a slot that is readable but not durable.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use pagekeeper_io::{Access, Error as IoError, FileLock, Io, IoFile, Process, open_past_cache};

use super::control::{self, ControlFile, ControlState, DecodedControl, LogPhase};
use super::core::Core;
use super::group_commit::GroupCommit;
use super::journal::Journal;
use super::journal::RecoveredRecord;
use super::options::RedoOptions;
use super::release::{ReleaseState, Releaser};
use super::ring::{self, RingSource};
use super::state::{
    CheckpointState, Configuration, DueChange, EpochState, Epochs, EventCounts, Lifecycle, SyncState,
    WriteState,
};
use super::{buffer, metrics};
use crate::injected_fault::injected_fault;
use crate::limits::LOCK_NAME;
use crate::record::{BLOCK, LogEntry, RECORD_HEADER_BYTES, RecordReader};
use crate::{Error, Lsn};

/// Opens an existing log.
pub(super) fn open(options: &RedoOptions, directory: &Path) -> Result<Core, Error> {
    open_and_read(options, directory, None)
}

/// Opens an existing log, and passes its records from an LSN (or the checkpoint) on to `take`: each
/// as soon as it was verified, also those before an error.
pub(super) fn recover(
    options: &RedoOptions,
    directory: &Path,
    from: Option<u64>,
    take: &mut dyn FnMut(RecoveredRecord),
) -> Result<Core, Error> {
    open_and_read(options, directory, Some(WantedRecords { from, take }))
}

/// The records that the caller wants.
struct WantedRecords<'a> {
    from: Option<u64>,
    take: &'a mut dyn FnMut(RecoveredRecord),
}

fn open_and_read(
    options: &RedoOptions,
    directory: &Path,
    wanted: Option<WantedRecords<'_>>,
) -> Result<Core, Error> {
    let io = options.io_or_best();
    let path = directory.join(control::CONTROL_NAME);
    // This comes before the lock, which creates a file.
    let names = match io.list(directory) {
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            return Err(Error::NoLog { path: directory.to_path_buf() });
        }
        names => names?,
    };
    let has = |found: &dyn Fn(&str) -> bool| names.iter().any(|name| name.to_str().is_some_and(found));
    if !has(&|name| name == control::CONTROL_NAME) {
        return Err(Error::NoLog { path });
    }
    let lock_path = directory.join(LOCK_NAME);
    let held = if options.read_only { io.lock_shared(&lock_path)? } else { Some(io.lock(&lock_path)?) };
    let control = open_to_recover(options, &*io, &path)?;
    let (state, slot) = match control::read(&*control)? {
        DecodedControl::State(state, slot) if state.phase != LogPhase::Making => (state, slot),
        DecodedControl::State(..) => return Err(Error::Unfinished { path: directory.to_path_buf() }),
        DecodedControl::Nothing if !has(&ring::is_name) => {
            return Err(Error::Unfinished { path: directory.to_path_buf() });
        }
        DecodedControl::Nothing => return Err(Error::BrokenControl { path }),
        DecodedControl::Version(version) if version < control::CONTROL_VERSION => {
            return Err(Error::OldVersion { path, version: version.into() });
        }
        DecodedControl::Version(version) => {
            return Err(Error::UnknownVersion { path, version: version.into() });
        }
    };
    let sources = open_sources(options, &*io, directory, state.geometry)?;
    let source =
        RingSource::new(Arc::clone(&io), state.geometry, Arc::clone(&sources), wraparound_end(&state));
    let (found, journal) = walk(options, source, &state, wanted)?;
    let was_closed = state.phase == LogPhase::Closed;
    // A closed log was synced before, except for the control file that says so: after a close that
    // was killed, a slot may not be durable.
    let kept = if was_closed {
        0..0
    } else {
        state.checkpoint - state.checkpoint % BLOCK..found.end.next_multiple_of(BLOCK)
    };
    if !(options.read_only || injected_fault!(options, NoSyncAtOpen)) {
        sync_kept(state.geometry, &sources, kept, &*control, options.threads)?;
    }
    // Its reads behind the end need not be waited for before the sync.
    drop(journal);
    start(options, directory, held, state, slot, found, sources)
}

/// Opens a log that was just created.
pub(super) fn open_new(
    options: &RedoOptions,
    directory: &Path,
    held: FileLock,
    state: ControlState,
) -> Result<Core, Error> {
    let io = options.io_or_best();
    let sources = open_sources(options, &*io, directory, state.geometry)?;
    let found = WalkResult { end: 0, salt: state.salt, damaged_paddings: Vec::new() };
    start(options, directory, Some(held), state, 0, found, sources)
}

/// Returns the LSN at which the ring wraps around to the checkpoint's block.
fn wraparound_end(state: &ControlState) -> u64 {
    state.checkpoint - state.checkpoint % BLOCK + state.geometry.capacity()
}

/// The result of reading an existing log.
struct WalkResult {
    end: u64,
    /// The salt in force at the end.
    salt: u32,
    /// The positions of damaged paddings.
    damaged_paddings: Vec<u64>,
}

/// Reads the whole log. The returned journal may still be reading behind the end; its drop waits
/// for that.
fn walk(
    options: &RedoOptions,
    source: RingSource,
    state: &ControlState,
    mut wanted: Option<WantedRecords<'_>>,
) -> Result<(WalkResult, Journal), Error> {
    // The known records, and the range to search behind them.
    let likely = state.settled.saturating_sub(state.checkpoint).saturating_add(2 * state.longest);
    let journal = Journal::new(source, state.checkpoint, likely, options.threads);
    let mut reader = RecordReader::over(journal, state.checkpoint, state.salt)
        .with_epochs(state.epochs.iter().copied())
        .with_longest(state.longest);
    if !injected_fault!(options, SettledNotKept) {
        reader = reader.settled(state.settled);
    }
    if state.phase == LogPhase::Closed && !injected_fault!(options, SettledNotKept) {
        reader = reader.until(state.settled);
    }
    #[cfg(any(test, feature = "injected-faults"))]
    {
        reader.injected_fault = options.injected_fault;
    }
    let from = wanted.as_ref().and_then(|wanted| wanted.from).unwrap_or(state.checkpoint);
    // Whether `from` is a place where a record begins or ends.
    let mut is_boundary = from == state.checkpoint;
    while let Some(LogEntry { lsn, next, body, .. }) = reader.next()? {
        is_boundary |= lsn == from || next == from;
        let len = body.len();
        if let Some(WantedRecords { take, .. }) = &mut wanted
            && lsn >= from
        {
            let body = reader.reach_mut().bytes(lsn + RECORD_HEADER_BYTES as u64, len).unwrap_or_default();
            take(RecoveredRecord { lsn: Lsn::new(lsn), end: Lsn::new(next), body });
        }
    }
    let end = reader.lsn();
    if !(state.checkpoint..=end).contains(&from) {
        return Err(Error::NotInLog {
            lsn: Lsn::new(from),
            from: Lsn::new(state.checkpoint),
            upto: Lsn::new(end),
        });
    }
    if !is_boundary && from != end {
        return Err(Error::NotARecord { lsn: Lsn::new(from) });
    }
    let salt = reader.salt();
    let (journal, damaged_paddings) = reader.into_parts();
    Ok((WalkResult { end, salt, damaged_paddings }, journal))
}

/// Creates the log's state from the control file and the result of reading.
fn start(
    options: &RedoOptions,
    directory: &Path,
    held: Option<FileLock>,
    state: ControlState,
    slot: usize,
    found: WalkResult,
    sources: Arc<[Arc<dyn IoFile>]>,
) -> Result<Core, Error> {
    let io = options.io_or_best();
    let geometry = state.geometry;
    let ring_limit = wraparound_end(&state);
    let due = DueChange { previous_end: found.end, epoch: state.phase != LogPhase::Closed };
    let epochs = Epochs { first: state.salt, later: state.epochs.clone(), due: Some(due) };
    let checkpoint = state.checkpoint;
    let max_unsynced = state.max_unsynced.unwrap_or(u64::MAX);
    let log_id = state.log_id;
    #[cfg_attr(
        not(any(test, feature = "injected-faults")),
        expect(unused_mut, reason = "tests inject faults")
    )]
    let mut control = ControlFile::open(&io, &directory.join(control::CONTROL_NAME), state, slot);
    #[cfg(any(test, feature = "injected-faults"))]
    {
        control.injected_fault = options.injected_fault;
    }
    let start = if injected_fault!(options, AppendIntoTornBlock) {
        found.end - found.end % BLOCK
    } else {
        found.end.next_multiple_of(BLOCK)
    };
    let buffer_bytes = if options.read_only { super::options::MIN_BUFFER } else { options.buffer_bytes };
    // Nothing gets room until appending begins.
    let (buffer, taker) = buffer::LogBuffer::new(buffer_bytes, start, start);
    #[cfg(any(test, feature = "injected-faults"))]
    if injected_fault!(options, AppendIntoTornBlock) {
        go_on_in_block(&buffer, &sources, geometry, found.end)?;
    }
    let core = Core {
        process: Process::current(),
        config: Configuration {
            policy: options.flush_policy,
            directory: directory.to_path_buf(),
            geometry,
            log_id,
            asked_mode: options.mode,
            read_only: options.read_only,
            max_unsynced,
            start,
            damaged_paddings: found.damaged_paddings,
            write_threshold: buffer.capacity().min(1 << 20) / 4,
            releases: options.release,
            has_threads: options.threads && !options.read_only,
            on_backpressure: options.on_backpressure.clone(),
            #[cfg(any(test, feature = "injected-faults"))]
            injected_fault: options.injected_fault,
        },
        write: WriteState::default(),
        sources,
        io,
        buffer,
        writer: Mutex::new(taker),
        sync: SyncState {
            durable: AtomicU64::new(start),
            group_commit: GroupCommit::default(),
            noting: Mutex::new(()),
        },
        checkpoint: CheckpointState { control: Mutex::new(control), lsn: AtomicU64::new(checkpoint) },
        epoch: EpochState {
            epochs: Mutex::new(epochs),
            salt: AtomicU32::new(found.salt),
            begun: AtomicBool::new(false),
            longest: AtomicU64::new(super::begin::FIRST_LONGEST),
            ring_limit: AtomicU64::new(ring_limit),
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
    if injected_fault!(options, AppendIntoTornBlock) && !options.read_only {
        core.begin()?;
    }
    Ok(core)
}

/// Makes the kept records durable: syncs the control file and all files with a part of these LSNs.
/// Syncs them concurrently if threads are allowed.
fn sync_kept(
    geometry: ring::Geometry,
    files: &[Arc<dyn IoFile>],
    lsns: Range<u64>,
    control: &dyn IoFile,
    threads: bool,
) -> Result<(), Error> {
    let mut kept: Vec<usize> = geometry.pieces(lsns).map(|(index, _)| index).collect();
    kept.sort_unstable();
    kept.dedup();
    let sync = |index: usize| Ok::<(), Error>(files[index].sync_all()?);
    if !threads {
        kept.into_iter().try_for_each(sync)?;
        return Ok(control.sync_all()?);
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = kept
            .iter()
            .map(|index| (index, Builder::new().spawn_scoped(scope, move || sync(*index))))
            .collect();
        let synced = control.sync_all().map_err(Error::from);
        others
            .into_iter()
            .map(|(index, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => sync(*index),
            })
            .fold(synced, Result::and)
    })
}

/// Opens a file of the log for recovery.
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

/// Returns the id of a log, from its control file alone.
pub(super) fn read_id(options: &RedoOptions, directory: &Path) -> Result<Option<u64>, Error> {
    let io = options.io_or_best();
    let control = match open_to_recover(options, &*io, &directory.join(control::CONTROL_NAME)) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        opened => opened?,
    };
    Ok(match control::read(&*control)? {
        DecodedControl::State(state, _) if state.phase != LogPhase::Making => Some(state.log_id),
        DecodedControl::State(..) | DecodedControl::Version(_) | DecodedControl::Nothing => None,
    })
}

/// Opens the files for reading, past the page cache, and checks their sizes.
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

/// Injects the fault [`crate::injected_fault::InjectedFault::AppendIntoTornBlock`]: fills the block
/// in which the log ended with its previous content.
#[cfg(any(test, feature = "injected-faults"))]
fn go_on_in_block(
    buffer: &buffer::LogBuffer,
    files: &[Arc<dyn IoFile>],
    geometry: ring::Geometry,
    end: u64,
) -> Result<(), Error> {
    let mut block = pagekeeper_io::AlignedBuf::new(crate::record::BLOCK_LEN);
    let (file, offset) = geometry.locate(end - end % BLOCK);
    files[file].read_at(offset, &mut block)?;
    if let Some(span) = buffer.reserve_beyond_limit(end % BLOCK) {
        let len = crate::convert::to_usize(end % BLOCK);
        buffer.fill(span, [&block[..len], &[]]);
    }
    Ok(())
}
