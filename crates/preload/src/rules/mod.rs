//! The rules at the calls of a process: what is done before and after a call on a file that one is for.
//!
//! Hooks call in here with a slot that [`crate::table`] found; who decides is `pagekeeper-policy`.
//!
//! Invariants: nothing here changes what the program's call returns, reads or writes; nothing waits for another thread, but for the
//! disk; nothing allocates. A failure of a call of our own is counted, and the rule does nothing more for that file.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::Ordering;

use libc::c_int;
use pagekeeper_policy::read_pace::ReadPace;
use pagekeeper_policy::{BulkPages, names};

use crate::counters::Count;
use crate::helper::{self, Job};
use crate::noted::{self, Seen};
use crate::process::{self, count, plan};
use crate::settings::{Action, Part};
use crate::sys::{self, DescriptorPath};
use crate::table::{FileRole, Fresh, Table};
use crate::temporary::Temporary;
use log::LogRule;
use writer::Output;

/// Bytes of the longest path that is asked for. It lies on the program's stack, which may be a signal handler's.
const PATH_MAX: usize = 1024;

/// What is known of one open file, for the rule that is for it.
pub struct FileState {
    /// Its part that is read.
    pub reader: reader::Reader,
    /// Other parts that other threads read.
    pub more: together::More,
    /// When its reader stands back.
    pub read_pace: ReadPace,
    /// Its part that is written.
    pub writer: writer::Writer,
    /// What of it is a log's.
    pub log: log::Log,
    /// What of it is a data file's.
    pub mixed: mixed::Mixed,
    /// How it is used, where that is to decide what its process is.
    pub usage: undecided::Usage,
    /// Whether the helper checks it from time to time.
    is_watched: bool,
    /// Whether it was read or written by calls that are seen.
    is_used: bool,
}

impl FileState {
    /// Counts what a call read or wrote, unless the helper does, which sees the file's position move.
    fn count(&self, what: Count, at: Option<u64>, done: isize) {
        if !(self.is_watched && at.is_none()) {
            count(what, u64::try_from(done).unwrap_or(0));
        }
    }
}

impl Fresh for FileState {
    #[allow(clippy::declare_interior_mutable_const, reason = "what a slot begins with")]
    const FRESH: Self = Self {
        reader: reader::Reader::NEW,
        more: together::More::NEW,
        read_pace: ReadPace::NEW,
        writer: writer::Writer::NEW,
        log: log::Log::NEW,
        mixed: mixed::Mixed::NEW,
        usage: undecided::Usage::NEW,
        is_watched: false,
        is_used: false,
    };
}

/// The files that rules are for.
pub static FILES: Table<FileState> = Table::new();

/// One of them.
pub type Slot = crate::table::Slot<FileState>;

/// How a read is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As the program asked.
    Plain,
    /// The same, but uncached (`RWF_DONTCACHE`); if that is refused, as the program asked.
    Uncached,
}

/// A descriptor was opened: decides whether a rule is for its file, and follows it then. The caller has forgotten what the number
/// named before. `path` as the program gave it; `None` where there is none (a descriptor that was inherited).
pub fn opened(fd: c_int, path: Option<&CStr>, flags: c_int) {
    if flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 && flags & libc::O_TMPFILE != libc::O_TMPFILE {
        return;
    }
    let is_direct = flags & libc::O_DIRECT != 0;
    let is_written = flags & libc::O_ACCMODE != libc::O_RDONLY;
    match process::part() {
        Part::Stream if !is_direct => follow(fd, path, flags, FileRole::Stream, 0),
        Part::Undecided if !is_direct => follow(fd, path, flags, FileRole::Undecided, 0),
        Part::Bulk if is_written && !is_direct => follow(fd, path, flags, FileRole::BulkKept, 0),
        Part::Logs if is_written && !is_direct => follow(fd, path, flags, FileRole::Log, 0),
        Part::Files => {
            let Some((rule, action)) = rule_for(fd, path) else { return };
            match action {
                Action::Log { .. } if !is_direct => follow(fd, path, flags, FileRole::Log, rule),
                Action::Bulk(BulkPages::Keep) if is_written && !is_direct => {
                    follow(fd, path, flags, FileRole::BulkKept, rule);
                }
                Action::Bulk(BulkPages::Release) if is_written && !is_direct => {
                    follow(fd, path, flags, FileRole::BulkReleased, rule);
                }
                Action::Data { .. } if is_direct => follow(fd, path, flags, FileRole::Direct, rule),
                Action::Data { .. } => follow(fd, path, flags, FileRole::Data, rule),
                Action::Log { .. } | Action::Bulk(_) | Action::Leave => {}
            }
        }
        Part::None | Part::Stream | Part::Bulk | Part::Logs | Part::Undecided => {}
    }
}

/// The first of the plan's rules that is for the file, by its path, and what it says. Never inlined: its path is gone from the stack once
/// the file is followed.
#[inline(never)]
fn rule_for(fd: c_int, path: Option<&CStr>) -> Option<(u16, Action)> {
    let rules = plan().rules();
    let find = |path: &[u8]| {
        let at = rules.iter().position(|rule| names::matches(rule.pattern, path).is_some())?;
        Some((at as u16, rules.get(at)?.action))
    };
    let given = path.map(CStr::to_bytes).unwrap_or_default();
    let directories = rules.iter().map(|rule| names::directories(rule.pattern)).max().unwrap_or(0);
    if given.first() == Some(&b'/') || (!given.is_empty() && names::directories(given) >= directories) {
        return find(given);
    }
    // Relative, and not long enough to be sure.
    let mut whole = [0; PATH_MAX];
    let link = DescriptorPath::new(b"/proc/thread-self/fd/", fd);
    // What fills it has no end that could be known.
    let path = sys::read_link(link.as_c_str(), &mut whole).ok().filter(|path| path.len() < PATH_MAX);
    find(path.unwrap_or(given))
}

/// Follows a regular file, or the block device that is streamed.
fn follow(fd: c_int, path: Option<&CStr>, flags: c_int, file_role: FileRole, rule: u16) {
    let Ok(stat) = sys::fstat(fd) else { return };
    let is_device = sys::is_block_device(&stat) && output_of(file_role).is_some();
    if !is_device && stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return;
    }
    let system = sys::file_system(fd);
    if sys::is_of_the_kernel(system) {
        return;
    }
    let Some(slot) = FILES.enter(fd, file_role, stat.st_dev, stat.st_ino) else {
        if file_role == FileRole::Undecided {
            return;
        }
        return count(Count::NotFollowed, 1);
    };
    slot.rule.store(rule, Ordering::Relaxed);
    slot.set_counts(sys::counts_pages(system));
    let size = stat.st_size as u64;
    match file_role {
        FileRole::Log => return follow_log(slot, fd, flags, size, rule),
        FileRole::Data | FileRole::Direct => return mixed::opened(slot, fd, flags),
        FileRole::Stream | FileRole::BulkReleased => noted::opened(fd, &stat, path, slot.has_counts()),
        FileRole::BulkKept => {}
        FileRole::Undecided => return,
    }
    let kept = (file_role == FileRole::Stream && slot.has_counts())
        .then(|| Temporary::begin(&stat, flags))
        .flatten();
    slot.with(|state| {
        state.reader.open(&stat, flags & libc::O_ACCMODE != libc::O_RDONLY);
        state.writer.open(size, kept);
    });
}

/// Never inlined: a log has its path read, on the stack of that alone.
#[inline(never)]
fn follow_log(slot: &Slot, fd: c_int, flags: c_int, size: u64, rule: u16) {
    let pattern = plan().rules().get(usize::from(rule)).map(|rule| rule.pattern);
    if let Some(rule) = log_rule(rule) {
        log::opened(slot, fd, flags, size, rule, pattern);
    }
}

/// What a log is released by: the rule that names it, or that of any that is written in order and synced. `None`: it stays.
fn log_rule(rule: u16) -> Option<LogRule> {
    match plan().rules().get(usize::from(rule)).map(|rule| rule.action) {
        Some(Action::Log { rule, rewrite }) => LogRule::named(rule, rewrite),
        Some(Action::Bulk(_) | Action::Data { .. } | Action::Leave) | None => Some(LogRule::ANY),
    }
}

/// Whether a file is open for writing whose error somebody's close may take. Only of files that are followed: all, in a stream.
pub fn writes_what_a_close_would_spoil() -> bool {
    FILES.entered(0, FILES.highest()).any(|(fd, _)| {
        sys::close_takes_errors(fd)
            && sys::flags(fd).is_ok_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    })
}

/// Whether readers of some log are waited for.
pub fn has_followers() -> bool {
    (0..plan().rules().len()).any(|rule| log_rule(rule as u16).is_some_and(|rule| rule.near_files > 0))
}

/// How what is written to a file is treated, if it is a stream's or bulk output.
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

/// Before a read of `length` bytes, at `at` or at the file's position.
pub fn before_read(slot: &Slot, fd: c_int, at: Option<u64>, length: u64) -> How {
    if slot.role() == Some(FileRole::Undecided) {
        undecided::convert(slot, fd);
    }
    if slot.role() != Some(FileRole::Stream) {
        return How::Plain;
    }
    together::before_read(slot, fd, at, length)
}

/// An uncached read was refused, or the call can't be made so: it is made as the program asked.
pub fn uncached_refused(slot: &Slot) {
    slot.with(|state| {
        state.reader.uncached_refused();
        state.more.uncached_refused();
    });
}

/// Before the kernel copies `length` bytes at `at` by itself, of a file whose residency isn't seen.
pub fn before_uncached_copy(slot: &Slot, fd: c_int, at: u64, length: u64) {
    slot.with(|state| {
        if !state.reader.before_copy(fd, at, length) {
            state.reader.uncached_refused();
        }
    });
}

/// Before the program has a part of the file be read ahead.
pub fn before_prefetch(slot: &Slot, fd: c_int, at: u64, length: u64) {
    if slot.role() == Some(FileRole::Stream) {
        slot.with(|state| state.reader.before_prefetch(fd, at, length));
    }
}

/// After a read (also by `sendfile`, `splice`, `copy_file_range`), which returned `done`.
pub fn after_read(slot: &Slot, fd: c_int, at: Option<u64>, done: isize) {
    match slot.role() {
        Some(FileRole::Stream) => together::after_read(slot, fd, at, done),
        Some(FileRole::Log) if done > 0 => log::after_read(slot, fd, at, done as u64),
        Some(FileRole::Undecided) if done > 0 => undecided::after_transfer(slot, fd, at, done as u64),
        Some(
            FileRole::Log
            | FileRole::BulkKept
            | FileRole::BulkReleased
            | FileRole::Data
            | FileRole::Direct
            | FileRole::Undecided,
        )
        | None => {}
    }
}

/// Makes a read, and has a stream stand back behind it where others seem to wait for its disk.
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

/// After a write, which returned `done`.
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
            Some(FileRole::Direct | FileRole::Stream | FileRole::BulkKept | FileRole::BulkReleased)
            | None => {}
        }
    }
}

/// After the file was synced, with success or without.
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

/// Whether advice of the program (`posix_fadvise`) is left out, with success: dropping pages that the rule itself sees to. Where the rule can't
/// see what is resident, or the program did nothing else with the file (as one that evicts it), the program's own advice stands.
pub fn leaves_out(slot: &Slot, advice: c_int) -> bool {
    slot.role() == Some(FileRole::Stream)
        && advice == libc::POSIX_FADV_DONTNEED
        && slot.with(|state| state.is_used && is_covered(state) && !state.is_watched) == Some(true)
}

fn is_covered(state: &FileState) -> bool {
    state.reader.is_covered() && state.more.is_covered()
}

/// After the file was truncated or lengthened to `length`.
pub fn after_truncate(slot: &Slot, length: u64) {
    if slot.role().and_then(output_of).is_some() {
        slot.with(|state| state.writer.truncated(length));
    } else if slot.role() == Some(FileRole::Log) {
        log::after_truncate(slot, length);
    }
}

/// After a range of the file was mapped.
pub fn after_map(slot: &Slot, range: Range<u64>) {
    if slot.role() == Some(FileRole::Stream) {
        // What comes in through it stays.
        slot.with(|state| {
            state.reader.mapped();
            state.more.mapped();
        });
        saw(slot, Seen::Mapped);
        count(Count::StreamUnobserved, range.end.saturating_sub(range.start));
    } else if slot.role() == Some(FileRole::Log) {
        log::after_map(slot);
    }
}

/// The file is read or written by calls that are not seen (asynchronous I/O, `io_uring`, a stream of the C library).
pub fn passed_by(slot: &Slot, fd: c_int) {
    saw(slot, Seen::Unseen);
    let released = match slot.role() {
        Some(FileRole::Log) => {
            let may_go = slot.with(|state| state.log.goes_for_its_writer_alone()) == Some(true);
            may_go.then_some(Count::LogReleased)
        }
        Some(role) => output_of(role).and_then(|output| output.released),
        None => None,
    };
    if slot.role() == Some(FileRole::Stream)
        && sys::flags(fd).is_ok_and(|flags| flags & libc::O_ACCMODE == libc::O_RDONLY)
        && slot.with(|state| !state.is_watched && state.reader.is_unseen(fd)) == Some(true)
    {
        return;
    }
    let is_first = slot.with(|state| !core::mem::replace(&mut state.is_watched, true));
    let (Some(true), Some(released), Ok(flags)) = (is_first, released, sys::flags(fd)) else { return };
    helper::prepare();
    let reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
    let kept = slot.with(|state| state.writer.take_kept()).flatten().map(Temporary::into_number);
    let used = match output_of(slot.role().unwrap_or(FileRole::Log)) {
        Some(_) if reads => Count::StreamRead,
        Some(output) => output.written,
        None => Count::LogWritten,
    };
    let inode = slot.inode.load(Ordering::Relaxed);
    helper::closings::expect(fd, inode);
    if !helper::send(fd, &Job::Watch { flags, release: true, count: released, used, kept }) {
        helper::closings::expect_no_more(fd, inode);
        drop(kept.and_then(Temporary::from_number));
    }
}

/// The kernel copied of the file to what is no file.
pub fn sent(slot: &Slot) {
    slot.with(|state| state.reader.sent());
    saw(slot, Seen::Sent);
}

fn saw(slot: &Slot, what: Seen) {
    noted::saw(slot.device.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed), what);
}

/// Before a descriptor is closed; the caller forgets it afterwards.
pub fn before_close(slot: &Slot, fd: c_int) {
    if slot.is_last() {
        end(slot, fd, None);
    }
}

/// A descriptor is closed, or, with the time until which is waited for what it wrote, the process ends.
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
            together::leave(slot, state, fd);
        }
        if let Some(output) = output_of(role)
            && !state.writer.close(fd, output, until)
        {
            saw(slot, Seen::NotWaitedFor);
        }
        state.writer.is_kept()
    }) == Some(true);
    let unobserved = slot.with(|state| state.reader.take_unobserved()).unwrap_or(0);
    let (device, inode) = (slot.device.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed));
    noted::closing(fd, device, inode, unobserved, slot.has_counts());
    if is_kept {
        // Until it is released, it is as if nobody had closed it.
        saw(slot, Seen::Open);
    }
}

/// The process is about to end, in order.
pub fn before_exit() {
    let files = || FILES.entered(0, FILES.highest());
    // All of it is on its way to the disk before any of it is waited for.
    for (fd, slot) in files() {
        if let Some(output) = slot.role().and_then(output_of) {
            slot.with(|state| state.writer.begin_rest(fd, output));
        }
    }
    let until = Some(sys::now().saturating_add(helper::DRAIN_MAX));
    files().for_each(|(fd, slot)| end(slot, fd, until));
    helper::drain();
}

/// This is a child of fork, with the parent's descriptors, and without its threads. What the parent read and wrote is the parent's to
/// finish: the child begins anew, with what it reads and writes itself.
pub fn after_fork() {
    helper::after_fork();
    FILES.after_fork();
    for (_, slot) in FILES.entered(0, FILES.highest()) {
        slot.shared.forget();
        slot.with(|state| {
            state.reader.forget();
            state.more.forget();
            state.writer.forget();
            state.log.forget();
            state.usage = undecided::Usage::NEW;
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
mod pending;
pub mod reader;
pub mod small;
mod together;
mod undecided;
pub mod writer;
