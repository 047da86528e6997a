//! `pk_binlog` and `pk_follower`.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

use pagekeeper_io::Process;
use pagekeeper_wal::{BinLog, BinLogOptions, Follower, PurgeMode};

use crate::call::{call, fill, plain};
use crate::exclusive::{ExclusiveHandle, give_up};
use crate::pointers::{
    ArrayPointer, ClosingHandle, OptionsPointer, SizedStruct, TextPointer, given, put, wanted,
};
use crate::queue::timeout;
use crate::redo::log_mode;
use crate::status::{CallFailure, Status};

/// The longest single wait of a follower without a timeout.
const FOLLOWER_WAIT_MAX: Duration = Duration::from_secs(3600);

/// `pk_binlog`.
pub struct BinlogHandle(BinLog, Process);

/// `pk_follower`.
pub type FollowerHandle = ExclusiveHandle<FollowerState>;

pub struct FollowerState {
    follower: Follower,
    /// The record that was returned last.
    bytes: Vec<u8>,
}

/// `pk_position`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BinlogPosition {
    segment: u64,
    offset: u64,
}

impl From<pagekeeper_wal::Position> for BinlogPosition {
    fn from(position: pagekeeper_wal::Position) -> Self {
        Self { segment: position.segment, offset: position.offset }
    }
}

impl From<BinlogPosition> for pagekeeper_wal::Position {
    fn from(position: BinlogPosition) -> Self {
        Self { segment: position.segment, offset: position.offset }
    }
}

/// `pk_record`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BinlogRecord {
    bytes: ArrayPointer<u8>,
    size: usize,
}

/// `pk_is_before`.
type IsBeforeCallback = unsafe extern "C" fn(*mut c_void, *const c_void, size: usize) -> c_int;

/// `pk_event`.
#[repr(C)]
pub struct FollowerEvent {
    bytes: *const u8,
    size: usize,
    position: BinlogPosition,
    next: BinlogPosition,
    ends_group: c_int,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BinlogOptions {
    struct_size: usize,
    max_segment_bytes: u64,
    sync_every: u64,
    mode: u32,
    read_only: u32,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for BinlogOptions {
    const STRUCT_NAME: &'static str = "pk_binlog_options";
}

impl BinlogOptions {
    fn options(&self) -> Result<BinLogOptions, CallFailure> {
        let sync_every = match self.sync_every {
            0 => 1,
            u64::MAX => 0,
            groups => groups,
        };
        let options = BinLog::options()
            .sync_every(sync_every)
            .mode(log_mode(self.mode)?)
            .read_only(self.read_only != 0);
        Ok(if self.max_segment_bytes == 0 {
            options
        } else {
            options.max_segment_bytes(self.max_segment_bytes)
        })
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_open(
    directory: TextPointer,
    options: OptionsPointer<BinlogOptions>,
    binlog: Option<&mut MaybeUninit<Box<BinlogHandle>>>,
) -> Status {
    fill(binlog, "the log", || {
        let opened = options.read()?.options()?.open(directory.path()?)?;
        Ok(Box::new(BinlogHandle(opened, Process::current())))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_append(
    binlog: Option<&BinlogHandle>,
    records: ArrayPointer<BinlogRecord>,
    count: usize,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
) -> Status {
    call(|| {
        let binlog = given(binlog, "the log")?;
        let records = records.slice(count, "the list of records")?.iter();
        let bodies: Vec<&[u8]> =
            records.map(|record| record.bytes.slice(record.size, "a record")).collect::<Result<_, _>>()?;
        put(position, binlog.0.append_group(&bodies)?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_sync(binlog: Option<&BinlogHandle>) -> Status {
    call(|| Ok(given(binlog, "the log")?.0.sync().map(drop)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_rotate(binlog: Option<&BinlogHandle>) -> Status {
    call(|| Ok(given(binlog, "the log")?.0.rotate().map(drop)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_purge(
    binlog: Option<&BinlogHandle>,
    position: BinlogPosition,
    force: c_int,
) -> Status {
    call(|| Ok(given(binlog, "the log")?.0.purge_to(position.into(), purge_mode(force)).map(drop)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_truncate(
    binlog: Option<&BinlogHandle>,
    position: BinlogPosition,
    force: c_int,
) -> Status {
    call(|| Ok(given(binlog, "the log")?.0.truncate_after(position.into(), purge_mode(force))?))
}

fn purge_mode(force: c_int) -> PurgeMode {
    if force == 0 { PurgeMode::UnlessFollowed } else { PurgeMode::Forced }
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_first(
    binlog: Option<&BinlogHandle>,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
) -> Status {
    place(binlog, position, |log| Ok(log.first()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_end(
    binlog: Option<&BinlogHandle>,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
) -> Status {
    place(binlog, position, |log| Ok(log.end()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_durable_end(
    binlog: Option<&BinlogHandle>,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
) -> Status {
    place(binlog, position, |log| Ok(log.durable_end()))
}

fn place(
    binlog: Option<&BinlogHandle>,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
    of: impl FnOnce(&BinLog) -> Result<pagekeeper_wal::Position, CallFailure>,
) -> Status {
    fill(position, "the position", || {
        let BinlogHandle(binlog, process) = given(binlog, "the log")?;
        process.require()?;
        Ok(of(binlog)?.into())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_partition_point(
    binlog: Option<&BinlogHandle>,
    is_before: Option<IsBeforeCallback>,
    arg: *mut c_void,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
) -> Status {
    place(binlog, position, |log| {
        let is_before = is_before.ok_or_else(|| CallFailure::misuse("is_before is NULL"))?;
        // SAFETY: the caller's function is for this argument, and only reads the bytes.
        let point = log
            .partition_point(|record| unsafe { is_before(arg, record.as_ptr().cast(), record.len()) != 0 });
        Ok(point?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_since(
    binlog: Option<&BinlogHandle>,
    unix_seconds: u64,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
) -> Status {
    place(binlog, position, |log| {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(unix_seconds));
        Ok(log.since(time.ok_or_else(|| CallFailure::misuse("there is no such time"))?)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_last_bytes(
    binlog: Option<&BinlogHandle>,
    bytes: u64,
    position: Option<&mut MaybeUninit<BinlogPosition>>,
) -> Status {
    place(binlog, position, |log| Ok(log.last_bytes(bytes)))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_close(binlog: Option<ClosingHandle<BinlogHandle>>) -> Status {
    call(|| binlog.map_or(Ok(()), |binlog| Ok(binlog.open()?.0.close()?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_binlog_follow(
    binlog: Option<&BinlogHandle>,
    from: BinlogPosition,
    durable_only: c_int,
    follower: Option<&mut MaybeUninit<Box<FollowerHandle>>>,
) -> Status {
    fill(follower, "the follower", || {
        let binlog = &given(binlog, "the log")?.0;
        let follow = if durable_only == 0 { BinLog::follow } else { BinLog::follow_durable };
        let follower = follow(binlog, from.into())?;
        Ok(Box::new(ExclusiveHandle::new(FollowerState { follower, bytes: Vec::new() })))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_follower_next(
    follower: Option<&FollowerHandle>,
    timeout_ms: c_int,
    event: Option<&mut MaybeUninit<FollowerEvent>>,
) -> Status {
    call(|| {
        let event = wanted(event, "the event")?;
        let mut state = given(follower, "the follower")?.enter()?;
        let found = loop {
            let wait = timeout(timeout_ms);
            match state.follower.next_timeout(wait.unwrap_or(FOLLOWER_WAIT_MAX))? {
                Some(found) => break found,
                None if state.follower.has_ended() => {
                    return Err(CallFailure::new(Status::End, "the log is closed"));
                }
                None if wait.is_some() => {
                    return Err(CallFailure::new(Status::TimedOut, "no record came in that time"));
                }
                None => {}
            }
        };
        state.bytes = found.bytes;
        event.write(FollowerEvent {
            bytes: state.bytes.as_ptr(),
            size: state.bytes.len(),
            position: found.position.into(),
            next: found.next.into(),
            ends_group: found.ends_group.into(),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_follower_close(follower: Option<ClosingHandle<FollowerHandle>>) {
    plain((), || drop(follower.map(give_up)));
}
