//! The channel to the helper: a socket pair, over which each message carries the file that it is about.
//!
//! Invariants: a message that is not understood is ignored; sending never blocks, and never reaches a socket other than ours, unless
//! the program reuses our number by a system call of its own between the check and the sending.

use core::sync::atomic::Ordering;

use libc::{c_int, c_void};

use super::forks::Moment;
use super::held::FileHash;
use super::{
    ASKS_NOBODY, AWAITED, DONE, DRAIN_MAX, Job, NONE, ON, SENDER, SENDER_INODE, SENDING, SENT, STATE, STATES,
};
use crate::counters::Count;
use crate::process;
use crate::sys::{self, Errno};
use crate::temporary::Temporary;

/// From this number on, if the process may have so many.
const FROM: u64 = 1000;

const CLOSED: u32 = 1;
const RELEASE: u32 = 2;
const WATCH: u32 = 3;
const DRAIN: u32 = 4;
const LEAVE: u32 = 5;
const DROP: u32 = 6;
const CHECK: u32 = 7;
const AHEAD: u32 = 9;
const FINISH: u32 = 10;
const LATER: u32 = 11;
const KEEP: u32 = 12;

/// What a message can count.
const COUNTED: [Count; 8] = [
    Count::StreamReleased,
    Count::BulkReleased,
    Count::LogReleased,
    Count::MixedReleased,
    Count::StreamRead,
    Count::StreamWritten,
    Count::BulkWritten,
    Count::LogWritten,
];

/// Says that a message is ours.
const MAGIC: u32 = 0x706b_6a31;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    magic: u32,
    kind: u32,
    start: u64,
    end: u64,
    count: u32,
    release: u32,
    fd: c_int,
    flags: c_int,
    number: u32,
    place: u32,
    /// One more than the number of a temporary file's entry.
    kept: u32,
    _pad: u32,
}

/// A job on a file, the number that named it in the program's table, and, for a watch, its size and position, as it was sent.
pub(super) struct OfFile {
    pub(super) job: Job,
    pub(super) file: c_int,
    pub(super) fd: c_int,
    pub(super) size: u64,
    pub(super) position: u64,
    pub(super) place: FileHash,
}

/// What came.
pub(super) enum Received {
    /// A job on a file.
    Job(OfFile),
    /// Everything is to be done now.
    Drain,
    /// Closed files are to be seen to now.
    Finish,
    /// Some file is to be let go of.
    Check,
    /// The helper is to end.
    Leave,
    /// The sending end is closed.
    End,
    /// Nothing that is understood.
    Nothing,
}

/// Room for one descriptor: what `CMSG_SPACE(4)` is on both architectures.
#[repr(C, align(8))]
struct Control {
    length: usize,
    level: c_int,
    kind: c_int,
    fd: c_int,
    _pad: c_int,
}

const CONTROL_LENGTH: usize = 20;

/// A pair: the sending end, and the receiving end.
#[allow(unsafe_code, reason = "a system call")]
pub(super) fn pair() -> Result<(c_int, c_int), Errno> {
    let mut ends = [-1 as c_int; 2];
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: `ends` has room for two descriptors.
    unsafe {
        sys::call(libc::SYS_socketpair, [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr() as usize, 0, 0])?;
    }
    Ok((high(ends[0]), high(ends[1])))
}

/// The same, at a high number where it can be had: the low ones are what programs count on.
fn high(fd: c_int) -> c_int {
    let from = FROM.min(sys::descriptor_limit().saturating_sub(16)) as c_int;
    match sys::duplicate(fd, from) {
        Ok(other) => {
            sys::close(fd);
            other
        }
        Err(_) => fd,
    }
}

/// The inode of a descriptor, if it is a socket.
pub(super) fn socket_inode(fd: c_int) -> Option<u64> {
    let stat = sys::fstat(fd).ok()?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// Gives the sending end another number.
pub(super) fn move_away(fd: c_int) {
    if let Ok(other) = sys::duplicate(fd, fd.saturating_add(1)).or_else(|_| sys::duplicate(fd, 3)) {
        let ours = SENDER.compare_exchange(fd, other, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !ours {
            sys::close(other);
            return;
        }
    } else {
        let _ = SENDER.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed);
    }
    wait_for_senders();
}

/// Who has checked the number has sent to it soon: sending does not block.
fn wait_for_senders() {
    for _ in 0..1000 {
        if SENDING.load(Ordering::Acquire) == 0 {
            break;
        }
        core::hint::spin_loop();
    }
}

/// Closes the sending end: that of a helper that leaves, or that a child of fork was born with.
pub(super) fn close_sender() {
    let fd = SENDER.swap(-1, Ordering::AcqRel);
    wait_for_senders();
    if fd >= 0 && socket_inode(fd) == Some(SENDER_INODE.load(Ordering::Acquire)) {
        sys::close(fd);
    }
}

fn index_of(count: Count) -> u32 {
    COUNTED.iter().position(|&counted| counted == count).unwrap_or(COUNTED.len()) as u32
}

pub(super) fn send_job(fd: c_int, job: &Job) -> bool {
    // What another opener would break, or whose error its close would take, is not opened anew; nor a device that would be busy for
    // longer than the program has it open.
    let ends_with_its_user = matches!(job, Job::Watch { .. } | Job::Ahead { .. });
    if sys::has_lease(fd)
        || sys::close_takes_errors(fd)
        || !ends_with_its_user && sys::fstat(fd).is_ok_and(|stat| sys::is_block_device(&stat))
    {
        return false;
    }
    // A handler that jumps away (siglongjmp) would leave all of this half done.
    let _undisturbed = sys::Undisturbed::begin();
    // Until the file's name is closed.
    let Some(_moment) = Moment::begin() else { return false };
    let file = match sys::name_of(fd) {
        Ok(file) => file,
        Err(error) => {
            super::was_refused(error);
            return false;
        }
    };
    if !may_be_read(file) {
        sys::close(file);
        return false;
    }
    let Ok(stat) = sys::fstat(file) else {
        sys::close(file);
        return false;
    };
    let place = FileHash::of(&stat);
    let mut message = Message { fd, place: place.number(), ..Message::default() };
    match job {
        // Its pages go as it is closed, and need not be written.
        Job::AfterClose { .. } if stat.st_nlink == 0 => {
            sys::close(file);
            return true;
        }
        Job::AfterClose { range, release, count } => {
            (message.kind, message.start, message.end) = (CLOSED, range.start, range.end);
            (message.release, message.count) = (u32::from(*release), index_of(*count));
        }
        Job::Release { range, count } => {
            (message.kind, message.start, message.end) = (RELEASE, range.start, range.end);
            message.count = index_of(*count);
        }
        Job::Later { range, count } => {
            (message.kind, message.start, message.end) = (LATER, range.start, range.end);
            message.count = index_of(*count);
        }
        Job::Drop { range, count, number } => {
            (message.kind, message.start, message.end) = (DROP, range.start, range.end);
            (message.count, message.number) = (index_of(*count), *number);
        }
        Job::Keep { entry } => (message.kind, message.kept) = (KEEP, entry.saturating_add(1)),
        Job::Watch { flags, release, count, used, kept } => {
            (message.kind, message.flags) = (WATCH, *flags);
            message.kept = kept.map_or(0, |kept| kept.saturating_add(1));
            // Of a file without a page all that comes is the program's, also within its size: some are laid out first.
            let is_empty =
                sys::cachestat(fd, 0..u64::MAX).is_ok_and(|seen| seen.cached + seen.writeback == 0);
            // A device that is only named does not show its size.
            let size = sys::fstat(fd).map_or(0, |stat| stat.st_size.max(0) as u64);
            message.start = if is_empty { 0 } else { size };
            message.end = sys::position(fd).unwrap_or(0);
            (message.release, message.count) = (u32::from(*release), index_of(*count));
            message.number = index_of(*used);
        }
        Job::Ahead { index } => (message.kind, message.number) = (AHEAD, *index),
    }
    place.take();
    let sent = send(message, Some(file));
    if !sent {
        place.give_back();
    }
    sys::close(file);
    sent
}

/// Whether this process may open the file anew, for reading. True where that can't be asked: then the helper finds out.
#[allow(unsafe_code, reason = "a system call")]
fn may_be_read(file: c_int) -> bool {
    let flags = (libc::AT_EMPTY_PATH | libc::AT_EACCESS) as usize;
    let args = [file as usize, c"".as_ptr() as usize, libc::R_OK as usize, flags, 0, 0];
    // SAFETY: the path ends in a NUL, and is static.
    match unsafe { sys::call(libc::SYS_faccessat2, args) } {
        Err(Errno(libc::EACCES)) => return false,
        Err(_) => ASKS_NOBODY.store(true, Ordering::Relaxed),
        Ok(_) => {}
    }
    true
}

/// Sends, unless there is no room or no socket of ours.
fn send(message: Message, file: Option<c_int>) -> bool {
    SENDING.fetch_add(1, Ordering::AcqRel);
    SENT.fetch_add(1, Ordering::AcqRel);
    let fd = SENDER.load(Ordering::Acquire);
    let is_ours = fd >= 0 && socket_inode(fd) == Some(SENDER_INODE.load(Ordering::Acquire));
    let sent = is_ours && send_on(fd, message, file).is_ok();
    if !sent {
        SENT.fetch_sub(1, Ordering::AcqRel);
    }
    SENDING.fetch_sub(1, Ordering::AcqRel);
    if !is_ours {
        // The program has closed it behind our back: the helper ends, and is made anew for the next file.
        let state = STATE.load(Ordering::Acquire);
        if state & STATES == ON
            && SENDER.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            let _ = STATE.compare_exchange(state, state - ON + NONE, Ordering::AcqRel, Ordering::Relaxed);
            process::count(Count::Failures, 1);
        }
    }
    sent
}

#[allow(unsafe_code, reason = "a system call")]
fn send_on(fd: c_int, mut message: Message, file: Option<c_int>) -> Result<(), Errno> {
    message.magic = MAGIC;
    let mut data =
        libc::iovec { iov_base: (&raw mut message).cast::<c_void>(), iov_len: size_of::<Message>() };
    let control = Control {
        length: CONTROL_LENGTH,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fd: file.unwrap_or(-1),
        _pad: 0,
    };
    let (control_at, control_length) =
        if file.is_some() { ((&raw const control) as usize, size_of::<Control>()) } else { (0, 0) };
    // The kernel's struct msghdr: name, its length, data, their number, control data, their length, flags.
    let header = [0, 0, (&raw mut data) as usize, 1, control_at, control_length, 0];
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: all that `header` points to lives over the call, and has the lengths that it says.
    unsafe { sys::call(libc::SYS_sendmsg, [fd as usize, header.as_ptr() as usize, flags, 0, 0, 0]) }.map(drop)
}

/// Takes the next message; blocks while there is none.
#[allow(unsafe_code, reason = "a system call")]
pub(super) fn receive(fd: c_int) -> Received {
    let mut message = Message::default();
    let mut control = Control { length: 0, level: 0, kind: 0, fd: -1, _pad: 0 };
    let mut data =
        libc::iovec { iov_base: (&raw mut message).cast::<c_void>(), iov_len: size_of::<Message>() };
    let mut header =
        [0, 0, (&raw mut data) as usize, 1, (&raw mut control) as usize, size_of::<Control>(), 0];
    let flags = libc::MSG_CMSG_CLOEXEC as usize;
    // SAFETY: all that `header` points to lives over the call, and has room for the lengths that it says; all bits are valid in it.
    let got =
        unsafe { sys::call(libc::SYS_recvmsg, [fd as usize, header.as_mut_ptr() as usize, flags, 0, 0, 0]) };
    let named = (control.length >= CONTROL_LENGTH
        && control.level == libc::SOL_SOCKET
        && control.kind == libc::SCM_RIGHTS)
        .then_some(control.fd);
    // Opened here, in a table that owns no record lock which closing it could end.
    let file = named.and_then(|named| {
        let file = sys::reopen(named);
        sys::close(named);
        file.inspect_err(|&error| super::was_refused(error)).ok()
    });
    let understood = match got {
        Ok(length) if length == size_of::<Message>() && message.magic == MAGIC => understand(&message, file),
        Ok(1..) | Err(Errno(libc::EINTR)) => Received::Nothing,
        Ok(_) | Err(_) => return Received::End,
    };
    if let (Received::Nothing, Some(file)) = (&understood, file) {
        sys::close(file);
    }
    understood
}

fn understand(message: &Message, file: Option<c_int>) -> Received {
    let range = message.start..message.end;
    let release = message.release != 0;
    let counted = |index: u32| COUNTED.get(index as usize).copied().unwrap_or(Count::StreamReleased);
    let count = counted(message.count);
    let place = FileHash::from_number(message.place);
    let job = match message.kind {
        CLOSED => Job::AfterClose { range, release, count },
        RELEASE => Job::Release { range, count },
        LATER => Job::Later { range, count },
        DROP => Job::Drop { range, count, number: message.number },
        WATCH => {
            let (flags, used, kept) = (message.flags, counted(message.number), message.kept.checked_sub(1));
            Job::Watch { flags, release, count, used, kept }
        }
        KEEP => Job::Keep { entry: message.kept.wrapping_sub(1) },
        AHEAD => Job::Ahead { index: message.number },
        DRAIN => return Received::Drain,
        CHECK => return Received::Check,
        FINISH => return Received::Finish,
        LEAVE => return Received::Leave,
        _ => return Received::Nothing,
    };
    if let Some(file) = file {
        Received::Job(OfFile { job, file, fd: message.fd, size: message.start, position: message.end, place })
    } else {
        // No room for a descriptor in the helper's table, or no right to open the file anew.
        process::count(Count::Failures, 1);
        place.give_back();
        match job {
            Job::Drop { number, .. } => super::saw_to(number, false),
            Job::Ahead { index } => super::ahead::was_refused(index),
            Job::Watch { kept, .. } => {
                super::closings::was_refused(message.fd);
                drop(kept.and_then(Temporary::from_number));
            }
            Job::Keep { entry } => drop(Temporary::from_number(entry)),
            Job::AfterClose { .. } | Job::Release { .. } | Job::Later { .. } => {}
        }
        Received::Nothing
    }
}

/// Sends the order to end.
pub(super) fn send_leave() -> bool {
    send(Message { kind: LEAVE, ..Message::default() }, None)
}

/// Has the helper see to closed files now.
pub(super) fn send_finish() -> bool {
    send(Message { kind: FINISH, ..Message::default() }, None)
}

/// Has the helper check whether it is to let go of a file.
pub(super) fn send_check() -> bool {
    send(Message { kind: CHECK, ..Message::default() }, None)
}

/// Has all be done, and waits for it.
pub(super) fn drain() {
    let end = sys::now().saturating_add(DRAIN_MAX);
    AWAITED.store(true, Ordering::Release);
    let mut asked = send(Message { kind: DRAIN, ..Message::default() }, None);
    let target = SENT.load(Ordering::Acquire);
    loop {
        let done = DONE.load(Ordering::Acquire);
        // Both wrap: behind, if the difference is small.
        let left = target.wrapping_sub(done);
        let now = sys::now();
        if left == 0 || left > u32::MAX / 2 || now >= end || super::ours().is_none() {
            break;
        }
        // Where there was no room, there is some once a job is done.
        let wait = if asked { end - now } else { 1_000_000 };
        sys::futex_wait(&DONE, done, wait);
        if !asked {
            asked = send(Message { kind: DRAIN, ..Message::default() }, None);
        }
    }
    AWAITED.store(false, Ordering::Release);
}
