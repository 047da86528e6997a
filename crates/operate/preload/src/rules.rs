//! The rules at the calls of a process: the work before and after a call on a file that a rule
//! applies to.
//!
//! Hooks call these functions with a slot that [`crate::table`] found. `pagekeeper-policy` makes
//! the decisions.
//!
//! Invariants: nothing here changes what the program's call returns, reads or writes. All waits are
//! bounded: for the disk, for the helper, and in `shared_reads` for another thread's read. Nothing
//! allocates. A failure of one of our own calls is counted, and the rule does nothing more for that
//! file.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::Ordering;

use libc::c_int;
use pagekeeper_policy::file_action::FileAction;
use pagekeeper_policy::log_rule::LogRule;
use pagekeeper_policy::output_offset::OutputOffset;
use pagekeeper_policy::read_pace::ReadPace;
use pagekeeper_policy::{BulkPages, names};

use crate::counters::Count;
use crate::files::identity::FileIdentity;
use crate::files::paths::path_of;
use crate::files::table::{FileRole, Fresh, Table};
use crate::files::temporary::Temporary;
use crate::files::tracked_files;
use crate::files::tracked_place::FileEvents;
use crate::helper::{self, HelperRequest};
use crate::process::{self, count, plan};
use crate::settings::Part;
use crate::sys;
use writer::Output;

/// The longest path that is queried, in bytes. It is on the program's stack, which may be a signal
/// handler's.
const PATH_MAX: usize = 1024;

/// The state of one open file, for the rule that applies to it.
pub struct FileState {
    /// Its first reader.
    pub reader: reader::Reader,
    /// Readers of other places of the file, by other threads.
    pub extra_readers: shared_reads::ExtraReaders,
    /// Paces the reader when others need the disk.
    pub read_pace: ReadPace,
    /// Its writer.
    pub writer: writer::Writer,
    /// Its state as a log.
    pub log: log::Log,
    /// Its state as a data file.
    pub mixed: mixed::MixedUse,
    /// Its use, in a process whose part that use decides.
    pub usage: undecided::FileUsage,
    /// Whether the helper checks it from time to time.
    is_watched: bool,
    /// Whether it was read or written by hooked calls.
    is_used: bool,
}

impl FileState {
    /// Counts bytes that a call read or wrote, unless the helper does because it sees the file
    /// offset move.
    fn count(&self, what: Count, at: Option<u64>, done: isize) {
        if !(self.is_watched && at.is_none()) {
            count(what, u64::try_from(done).unwrap_or(0));
        }
    }
}

impl Fresh for FileState {
    const FRESH: Self = Self {
        reader: reader::Reader::NEW,
        extra_readers: shared_reads::ExtraReaders::NEW,
        read_pace: ReadPace::new(),
        writer: writer::Writer::NEW,
        log: log::Log::NEW,
        mixed: mixed::MixedUse::NEW,
        usage: undecided::FileUsage::NEW,
        is_watched: false,
        is_used: false,
    };
}

/// The files that rules apply to.
pub static FILES: Table<FileState> = Table::new();

/// The slot of such a file.
pub type Slot = crate::files::table::FileSlot<FileState>;

/// The mode in which a read is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// As the program asked.
    Plain,
    /// Uncached (`RWF_DONTCACHE`); if that is refused, as the program asked.
    Uncached,
}

/// Decides whether a rule applies to a newly opened file, and if so follows it. The caller has
/// forgotten the number's previous file. `path` is as the program gave it; `None` if there is none
/// (an inherited descriptor).
pub fn opened(fd: c_int, path: Option<&CStr>, flags: c_int) {
    if flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 && flags & libc::O_TMPFILE != libc::O_TMPFILE {
        return;
    }
    let (is_direct, is_written) = (flags & libc::O_DIRECT != 0, sys::may_write(flags));
    let (role, number) = match process::part() {
        Part::Stream => (FileRole::Stream, 0),
        Part::Undecided => (FileRole::Undecided, 0),
        Part::Bulk if is_written => (FileRole::BulkKept, 0),
        Part::Logs if is_written => (FileRole::Log, 0),
        Part::Files => {
            let Some((number, action)) = rule_for(fd, path) else { return };
            let role = match action {
                FileAction::Log { .. } => FileRole::Log,
                FileAction::Bulk(BulkPages::Keep) if is_written => FileRole::BulkKept,
                FileAction::Bulk(BulkPages::Release) if is_written => FileRole::BulkReleased,
                FileAction::Data { .. } if is_direct => FileRole::Direct,
                FileAction::Data { .. } => FileRole::Data,
                FileAction::Bulk(_) | FileAction::Leave => return,
            };
            (role, number)
        }
        Part::None | Part::Bulk | Part::Logs => return,
    };
    if !is_direct || role == FileRole::Direct {
        follow(fd, path, flags, role, number);
    }
}

/// Returns the first of the plan's rules that applies to the file, by its path, and its action.
/// Never inlined, so that the path is gone from the stack once the file is followed.
#[inline(never)]
fn rule_for(fd: c_int, path: Option<&CStr>) -> Option<(u16, FileAction)> {
    let given = path.map(CStr::to_bytes).unwrap_or_default();
    let directories = plan().rules().iter().map(|rule| names::directories(rule.pattern)).max().unwrap_or(0);
    if given.first() == Some(&b'/') || (!given.is_empty() && names::directories(given) >= directories) {
        return plan().rule_for(given);
    }
    // Relative, and too short to be sure.
    let mut whole = [0; PATH_MAX];
    // A path that fills the buffer may be cut off.
    let path = path_of(fd, &mut whole).ok().filter(|path| path.len() < PATH_MAX);
    plan().rule_for(path.unwrap_or(given))
}

/// Follows a regular file, or a block device that is streamed.
fn follow(fd: c_int, path: Option<&CStr>, flags: c_int, file_role: FileRole, rule: u16) {
    let Ok(stat) = sys::fstat(fd) else { return };
    let is_device = sys::is_block_device(&stat) && output_of(file_role).is_some();
    if !is_device && !sys::is_regular(&stat) {
        return;
    }
    let system = sys::file_system(fd);
    if sys::is_of_the_kernel(system) {
        return;
    }
    let Some(slot) = FILES.enter(fd, file_role, FileIdentity::of(&stat)) else {
        if file_role == FileRole::Undecided {
            return;
        }
        return count(Count::NotFollowed, 1);
    };
    slot.rule.store(rule, Ordering::Relaxed);
    slot.set_counts(sys::counts_pages(system));
    let size = sys::size_in(&stat);
    match file_role {
        FileRole::Log => return follow_log(slot, fd, flags, size, rule),
        FileRole::Data | FileRole::Direct => return mixed::opened(slot, fd, flags),
        FileRole::Stream | FileRole::BulkReleased => {
            tracked_files::opened(fd, &stat, path, slot.has_counts());
        }
        FileRole::BulkKept => {}
        FileRole::Undecided => return,
    }
    let kept = (file_role == FileRole::Stream && slot.has_counts())
        .then(|| Temporary::begin(&stat, flags))
        .flatten();
    slot.with(|state| {
        state.reader.open(&stat, sys::may_write(flags));
        state.writer.open(size, kept);
    });
}

/// Begins to follow a log. Never inlined: only this function has the log's path on its stack.
#[inline(never)]
fn follow_log(slot: &Slot, fd: c_int, flags: c_int, size: u64, rule: u16) {
    let pattern = plan().rules().get(usize::from(rule)).map(|rule| rule.pattern);
    if let Some(rule) = log_rule(rule) {
        log::opened(slot, fd, flags, size, rule, pattern);
    }
}

/// Returns the release rule of a log: the rule that names it, or that of any file written in order
/// and synced. `None`: it stays.
fn log_rule(rule: u16) -> Option<LogRule> {
    match plan().rules().get(usize::from(rule)).map(|rule| rule.action) {
        Some(FileAction::Log { rule, rewrite }) => LogRule::named(rule, rewrite),
        Some(FileAction::Bulk(_) | FileAction::Data { .. } | FileAction::Leave) | None => Some(LogRule::ANY),
    }
}

/// Whether a followed file (in a stream, any file) is open for writing whose write error a close
/// might take.
pub fn has_close_error_risk() -> bool {
    FILES
        .entered(0, FILES.highest())
        .any(|(fd, _)| sys::close_takes_errors(fd) && sys::flags(fd).is_ok_and(sys::may_write))
}

/// Whether readers of some log are waited for.
pub fn has_followers() -> bool {
    (0..plan().rules().len()).any(|rule| log_rule(rule as u16).is_some_and(|rule| rule.near_files > 0))
}

/// Returns how writes to a file are treated if it is a stream's or bulk output.
fn output_of(role: FileRole) -> Option<Output> {
    match role {
        FileRole::Stream => {
            Some(Output { written: Count::StreamWritten, released: Some(Count::StreamReleased) })
        }
        FileRole::BulkKept => Some(Output { written: Count::BulkWritten, released: None }),
        FileRole::BulkReleased => {
            Some(Output { written: Count::BulkWritten, released: Some(Count::BulkReleased) })
        }
        FileRole::Log | FileRole::Data | FileRole::Direct | FileRole::Undecided => None,
    }
}

/// Returns where a call moved `done` bytes: at `at`, or at the file offset, with bytes moved there
/// before; `None` while that is not known.
fn placed(offset: &mut OutputOffset, fd: c_int, at: Option<u64>, done: u64) -> Option<Range<u64>> {
    match at {
        Some(at) => Some(at..at.saturating_add(done)),
        None if offset.wrote(done) => place_now(offset, fd, done),
        None => None,
    }
}

/// Queries where the bytes are that were moved at the file offset; the last call moved `last` bytes
/// there, 0: long ago.
fn place_now(offset: &mut OutputOffset, fd: c_int, last: u64) -> Option<Range<u64>> {
    if offset.is_due() { sys::position(fd).ok().map(|end| offset.placed(end, last)) } else { None }
}

/// Runs before a read of `length` bytes, at `at` or at the file offset.
pub fn before_read(slot: &Slot, fd: c_int, at: Option<u64>, length: u64) -> ReadMode {
    if slot.role() == Some(FileRole::Undecided) {
        undecided::convert(slot, fd);
    }
    if slot.role() != Some(FileRole::Stream) {
        return ReadMode::Plain;
    }
    shared_reads::before_read(slot, fd, at, length)
}

/// Records that an uncached read was refused, or that the call cannot be made uncached. The read is
/// made as the program asked.
pub fn uncached_refused(slot: &Slot) {
    slot.with(|state| {
        state.reader.uncached_refused();
        state.extra_readers.uncached_refused();
    });
}

/// Runs before the kernel copies `length` bytes at `at` of a file whose residency cannot be seen.
pub fn before_uncached_copy(slot: &Slot, fd: c_int, at: u64, length: u64) {
    slot.with(|state| {
        if !state.reader.before_copy(fd, at, length) {
            state.reader.uncached_refused();
        }
    });
}

/// Runs before the program prefetches a part of the file.
pub fn before_prefetch(slot: &Slot, fd: c_int, at: u64, length: u64) {
    if slot.role() == Some(FileRole::Stream) {
        slot.with(|state| state.reader.before_prefetch(fd, at, length));
    }
}

/// Runs after a read (also by `sendfile`, `splice`, `copy_file_range`), which returned `done`.
pub fn after_read(slot: &Slot, fd: c_int, at: Option<u64>, done: isize) {
    match slot.role() {
        Some(FileRole::Stream) => shared_reads::after_read(slot, fd, at, done),
        Some(FileRole::Log) if done > 0 => log::after_read(slot, fd, at, done as u64),
        Some(FileRole::Undecided) if done > 0 => undecided::after_transfer(slot, fd, at, done as u64),
        _ => {}
    }
}

/// Makes a read. Then pauses a stream if others seem to wait for its disk.
pub fn pace_read(slot: &Slot, make: impl FnOnce() -> isize) -> isize {
    if slot.role() != Some(FileRole::Stream) {
        return make();
    }
    let start = sys::now();
    let done = make();
    let now = sys::now();
    if let Ok(bytes) = u64::try_from(done)
        && let Some(pause) = slot.with(|state| state.read_pace.read(bytes, now.saturating_sub(start), now))
        && pause > 0
    {
        count(Count::Pauses, 1);
        count(Count::ThrottledNs, pause);
        sys::sleep(pause);
    }
    done
}

/// Runs after a write, which returned `done`.
pub fn after_write(slot: &Slot, fd: c_int, at: Option<u64>, done: isize) {
    if let Some(output) = slot.role().and_then(output_of) {
        slot.with(|state| {
            state.is_used |= done > 0;
            state.count(output.written, at, done);
            state.writer.after(fd, at, done, output);
        });
    } else if done > 0 {
        match slot.role() {
            Some(FileRole::Log) => log::after_write(slot, fd, at, done as u64),
            Some(FileRole::Data) => mixed::after_write(slot),
            Some(FileRole::Undecided) => {
                undecided::after_transfer(slot, fd, at, done as u64);
                undecided::convert(slot, fd);
            }
            _ => {}
        }
    }
}

/// Runs after the file was synced, whether or not with success.
pub fn after_sync(slot: &Slot, fd: c_int, done: c_int) {
    if done != 0 {
        return;
    }
    if let Some(output) = slot.role().and_then(output_of) {
        slot.with(|state| state.writer.synced(fd, output));
    } else if slot.role() == Some(FileRole::Log) {
        log::after_sync(slot, fd);
    }
}

/// Whether the program's advice (`posix_fadvise`) is left out, with success: to drop pages that the
/// rule itself handles. If the rule cannot see what is resident, or the program did nothing else
/// with the file (such as a program that evicts it), the program's own advice is passed on.
pub fn leaves_out(slot: &Slot, advice: c_int) -> bool {
    slot.role() == Some(FileRole::Stream)
        && advice == libc::POSIX_FADV_DONTNEED
        && slot.with(|state| state.is_used && is_covered(state) && !state.is_watched) == Some(true)
}

fn is_covered(state: &FileState) -> bool {
    state.reader.is_covered() && state.extra_readers.is_covered()
}

/// Runs after the file was truncated or lengthened to `length`.
pub fn after_truncate(slot: &Slot, length: u64) {
    if slot.role().and_then(output_of).is_some() {
        slot.with(|state| state.writer.truncated(length));
    } else if slot.role() == Some(FileRole::Log) {
        log::after_truncate(slot, length);
    }
}

/// Runs after a range of the file was mapped.
pub fn after_map(slot: &Slot, range: Range<u64>) {
    if slot.role() == Some(FileRole::Stream) {
        // Pages that come in through the mapping stay.
        slot.with(|state| {
            state.reader.mapped();
            state.extra_readers.mapped();
        });
        saw(slot, FileEvents::Mapped);
        count(Count::StreamUnobserved, range.end.saturating_sub(range.start));
    } else if slot.role() == Some(FileRole::Log) {
        log::after_map(slot);
    }
}

/// Handles a file that is read or written by calls that are not hooked (asynchronous I/O,
/// `io_uring`, a stream of the C library).
pub fn passed_by(slot: &Slot, fd: c_int) {
    saw(slot, FileEvents::Unseen);
    let released = match slot.role() {
        Some(FileRole::Log) => {
            let may_go = slot.with(|state| state.log.is_released_for_writer_only()) == Some(true);
            may_go.then_some(Count::LogReleased)
        }
        Some(role) => output_of(role).and_then(|output| output.released),
        None => None,
    };
    if slot.role() == Some(FileRole::Stream)
        && sys::flags(fd).is_ok_and(|flags| !sys::may_write(flags))
        && slot.with(|state| !state.is_watched && state.reader.is_unseen(fd)) == Some(true)
    {
        return;
    }
    let is_first = slot.with(|state| !core::mem::replace(&mut state.is_watched, true));
    let (Some(true), Some(released), Ok(flags)) = (is_first, released, sys::flags(fd)) else { return };
    helper::prepare();
    let reads = !sys::may_write(flags);
    let kept = slot.with(|state| state.writer.take_kept()).flatten().map(Temporary::into_number);
    let used = match output_of(slot.role().unwrap_or(FileRole::Log)) {
        Some(_) if reads => Count::StreamRead,
        Some(output) => output.written,
        None => Count::LogWritten,
    };
    let inode = slot.file().inode;
    helper::closings::expect(fd, inode);
    if !helper::send(fd, &HelperRequest::Watch { flags, count: released, used, kept }) {
        helper::closings::expect_no_more(fd, inode);
        drop(kept.map(Temporary::from_number));
    }
}

/// Records that the kernel copied from the file to something that is not a file.
pub fn sent(slot: &Slot) {
    slot.with(|state| state.reader.sent());
    saw(slot, FileEvents::Sent);
}

fn saw(slot: &Slot, what: FileEvents) {
    tracked_files::saw(slot.file(), what);
}

/// Runs before a descriptor is closed; the caller forgets it afterwards.
pub fn before_close(slot: &Slot, fd: c_int) {
    if slot.is_last() {
        end(slot, fd, None);
    }
}

/// Ends the work on a file when its descriptor is closed or the process ends. The latter sets
/// `until`, the end of the wait for its writes.
fn end(slot: &Slot, fd: c_int, until: Option<u64>) {
    let Some(role) = slot.role() else { return };
    match role {
        FileRole::Log => return log::before_close(slot, fd),
        FileRole::Data | FileRole::Direct => return mixed::before_close(slot, fd),
        FileRole::Undecided => return undecided::before_close(slot, fd),
        FileRole::Stream | FileRole::BulkKept | FileRole::BulkReleased => {}
    }
    let is_kept = slot.with(|state| {
        if state.is_watched {
            helper::closings::closing(fd);
        }
        if role == FileRole::Stream {
            shared_reads::leave(slot, state, fd);
        }
        if let Some(output) = output_of(role)
            && !state.writer.close(fd, output, until)
        {
            saw(slot, FileEvents::NotWaitedFor);
        }
        state.writer.is_kept()
    }) == Some(true);
    let unobserved = slot.with(|state| core::mem::take(&mut state.reader.unobserved)).unwrap_or(0);
    tracked_files::closing(fd, slot.file(), unobserved, slot.has_counts());
    if is_kept {
        // Until it is released, it counts as open.
        saw(slot, FileEvents::Open);
    }
}

/// Runs before an orderly end of the process.
pub fn before_exit() {
    let files = || FILES.entered(0, FILES.highest());
    // Starts all writeback before waiting for any.
    for (fd, slot) in files() {
        if let Some(output) = slot.role().and_then(output_of) {
            slot.with(|state| state.writer.begin_rest(fd, output));
        }
    }
    let until = Some(sys::now().saturating_add(helper::DRAIN_MAX_NS));
    files().for_each(|(fd, slot)| end(slot, fd, until));
    helper::drain();
}

/// Resets the state in a child of fork, which has the parent's descriptors but not its threads. The
/// parent finishes what it read and wrote; the child starts again with its own reads and writes.
pub fn after_fork() {
    helper::after_fork();
    FILES.after_fork();
    for (_, slot) in FILES.entered(0, FILES.highest()) {
        slot.shared.forget();
        slot.with(|state| {
            state.reader.forget();
            state.extra_readers.forget();
            state.writer.forget();
            state.log.forget();
            state.usage = undecided::FileUsage::NEW;
            state.is_watched = false;
            state.is_used = false;
        });
    }
    writer::after_fork();
    mixed::after_fork();
    undecided::after_fork();
}

pub mod archive;
pub mod log;
pub mod mixed;
pub mod reader;
mod scattered;
mod shared_reads;
pub mod small;
mod uncached;
mod undecided;
pub mod writer;
