//! `pk_redo` and `pk_redo_reader`.

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use pagekeeper_wal::{FlushPolicy, LogMode, Lsn, RedoLog};

use crate::call::{call, fill, plain};
use crate::exclusive::{ExclusiveHandle, give_up};
use crate::pointers::{
    ArrayPointer, ClosingHandle, OptionsPointer, SizedStruct, TextPointer, given, put, wanted,
};
use crate::status::{CallFailure, Status};

/// `pk_redo`.
pub struct RedoHandle(RedoLog);

/// `pk_redo_reader`.
pub type RedoReaderHandle = ExclusiveHandle<RedoReaderState>;

/// A record's body and its end, or why there are no more.
type NextRecord = Result<(Vec<u8>, Lsn), pagekeeper_wal::Error>;

pub struct RedoReaderState {
    records: Box<dyn Iterator<Item = NextRecord> + Send>,
    /// The record that was returned last.
    body: Vec<u8>,
}

impl RedoReaderState {
    fn handle(records: impl Iterator<Item = NextRecord> + Send + 'static) -> RedoReaderHandle {
        ExclusiveHandle::new(Self { records: Box::new(records), body: Vec::new() })
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RedoOptions {
    struct_size: usize,
    files: u32,
    flush_policy: u32,
    file_bytes: u64,
    buffer_bytes: u64,
    flush_interval_ms: u64,
    mode: u32,
    read_only: u32,
}

// SAFETY: only integers, the size first.
unsafe impl SizedStruct for RedoOptions {
    const STRUCT_NAME: &'static str = "pk_redo_options";
}

/// Converts a `pk_log_mode`.
pub(crate) fn log_mode(mode: u32) -> Result<LogMode, CallFailure> {
    Ok(match mode {
        0 => LogMode::Auto,
        1 => LogMode::Buffered,
        2 => LogMode::Uncached,
        3 => LogMode::Direct,
        other => return Err(CallFailure::misuse(format!("no pk_log_mode is {other}"))),
    })
}

impl RedoOptions {
    fn options(&self) -> Result<pagekeeper_wal::RedoOptions, CallFailure> {
        let interval = if self.flush_interval_ms == 0 { 1000 } else { self.flush_interval_ms };
        let policy = match self.flush_policy {
            0 => FlushPolicy::EachCommit,
            1 => FlushPolicy::Every(Duration::from_millis(interval)),
            2 => FlushPolicy::Os,
            other => return Err(CallFailure::misuse(format!("no pk_flush_policy is {other}"))),
        };
        let mut options =
            RedoLog::options().flush_policy(policy).mode(log_mode(self.mode)?).read_only(self.read_only != 0);
        if self.files > 0 {
            options = options.files(self.files);
        }
        if self.file_bytes > 0 {
            options = options.file_bytes(self.file_bytes);
        }
        if self.buffer_bytes > 0 {
            options = options.buffer_bytes(usize::try_from(self.buffer_bytes).unwrap_or(usize::MAX));
        }
        Ok(options)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_create(
    directory: TextPointer,
    options: OptionsPointer<RedoOptions>,
    redo: Option<&mut MaybeUninit<Box<RedoHandle>>>,
) -> Status {
    hand_out(directory, options, redo, |options, path| options.create(path))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_open(
    directory: TextPointer,
    options: OptionsPointer<RedoOptions>,
    redo: Option<&mut MaybeUninit<Box<RedoHandle>>>,
) -> Status {
    hand_out(directory, options, redo, |options, path| options.open(path))
}

/// Creates or opens a log.
fn hand_out(
    directory: TextPointer,
    options: OptionsPointer<RedoOptions>,
    redo: Option<&mut MaybeUninit<Box<RedoHandle>>>,
    log: impl FnOnce(pagekeeper_wal::RedoOptions, &Path) -> Result<RedoLog, pagekeeper_wal::Error>,
) -> Status {
    fill(redo, "the log", || Ok(Box::new(RedoHandle(log(options.read()?.options()?, directory.path()?)?))))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_append(
    redo: Option<&RedoHandle>,
    bytes: ArrayPointer<u8>,
    size: usize,
    lsn: Option<&mut MaybeUninit<u64>>,
) -> Status {
    add(redo, bytes, size, lsn, RedoLog::append)
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_try_append(
    redo: Option<&RedoHandle>,
    bytes: ArrayPointer<u8>,
    size: usize,
    lsn: Option<&mut MaybeUninit<u64>>,
) -> Status {
    add(redo, bytes, size, lsn, RedoLog::try_append)
}

/// Appends a record, waiting or not.
fn add(
    redo: Option<&RedoHandle>,
    bytes: ArrayPointer<u8>,
    size: usize,
    lsn: Option<&mut MaybeUninit<u64>>,
    append: impl FnOnce(&RedoLog, &[u8]) -> Result<Lsn, pagekeeper_wal::Error>,
) -> Status {
    call(|| {
        let end = append(&given(redo, "the log")?.0, bytes.slice(size, "the record")?)?;
        put(lsn, end.get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_wait(redo: Option<&RedoHandle>, lsn: u64) -> Status {
    call(|| Ok(given(redo, "the log")?.0.wait_flushed(Lsn::new(lsn))?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_sync(redo: Option<&RedoHandle>, lsn: u64) -> Status {
    call(|| Ok(given(redo, "the log")?.0.sync_upto(Lsn::new(lsn))?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_checkpoint(redo: Option<&RedoHandle>, lsn: u64) -> Status {
    call(|| Ok(given(redo, "the log")?.0.checkpoint(Lsn::new(lsn))?))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_checkpoint_lsn(redo: Option<&RedoHandle>) -> u64 {
    plain(0, || redo.map_or(0, |redo| redo.0.checkpoint_lsn().get()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_end_lsn(redo: Option<&RedoHandle>) -> u64 {
    plain(0, || redo.map_or(0, |redo| redo.0.end().get()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_durable_lsn(redo: Option<&RedoHandle>) -> u64 {
    plain(0, || redo.map_or(0, |redo| redo.0.durable_lsn().get()))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_longest_record(redo: Option<&RedoHandle>) -> u64 {
    plain(0, || redo.map_or(0, |redo| redo.0.longest_record() as u64))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_close(redo: Option<ClosingHandle<RedoHandle>>) -> Status {
    call(|| redo.map_or(Ok(()), |redo| Ok(redo.open()?.0.close()?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_read(
    redo: Option<&RedoHandle>,
    lsn: u64,
    reader: Option<&mut MaybeUninit<Box<RedoReaderHandle>>>,
) -> Status {
    fill(reader, "the reader", || {
        let records = given(redo, "the log")?.0.read_from(Lsn::new(lsn))?;
        let records = records.map(|record| record.map(|of| (of.body, of.end)));
        Ok(Box::new(RedoReaderState::handle(records)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_salvage(
    directory: TextPointer,
    reader: Option<&mut MaybeUninit<Box<RedoReaderHandle>>>,
) -> Status {
    fill(reader, "the reader", || {
        let found = RedoLog::options().salvage(directory.path()?, None);
        let whole = found.records.into_iter().map(|record| Ok((record.body.to_vec(), record.end)));
        Ok(Box::new(RedoReaderState::handle(whole.chain(found.fault.map(Err)))))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_next(
    reader: Option<&RedoReaderHandle>,
    bytes: Option<&mut MaybeUninit<*const u8>>,
    size: Option<&mut MaybeUninit<usize>>,
    next: Option<&mut MaybeUninit<u64>>,
) -> Status {
    call(|| {
        let (bytes, size) = (wanted(bytes, "the record")?, wanted(size, "its size")?);
        let mut reading = given(reader, "the reader")?.enter()?;
        let Some(record) = reading.records.next() else {
            return Err(CallFailure::new(Status::End, "no more records"));
        };
        let (body, end) = record?;
        reading.body = body;
        bytes.write(reading.body.as_ptr());
        size.write(reading.body.len());
        put(next, end.get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_redo_reader_close(reader: Option<ClosingHandle<RedoReaderHandle>>) {
    plain((), || drop(reader.map(give_up)));
}
