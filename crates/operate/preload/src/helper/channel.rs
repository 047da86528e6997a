//! The channel to the helper: a socket pair. Each message carries the file that it is about.
//!
//! Invariants: a message without our number and length is ignored; sending never blocks. Sending
//! reaches no socket other than ours, unless the program reuses our descriptor number by its own
//! system call between the check and the sending.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use libc::{c_int, c_void};

use super::forks::ForkGuard;
use super::helper_files::{FileHash, HeldFile};
use super::{
    AWAITED, DRAIN_MAX_NS, HelperRequest, NO_ACCESS_PRECHECK, NONE, ON, REQUESTS_DONE, REQUESTS_SENT, SENDER,
    SENDER_INODE, SENDING, STATE, STATES,
};
use crate::counters::Count;
use crate::files::paths::{name_of, reopen};
use crate::process;
use crate::sys::{self, Errno, OwnedDescriptor};

/// The lowest descriptor number for our sockets, if the process's limit allows it.
const NUMBER_MIN: u64 = 1000;

/// An order, which is about no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HelperOrder {
    /// Finish all work now.
    Drain,
    /// End the helper.
    Leave,
    /// Check for files to let go of.
    Check,
    /// Finish the work on closed files now.
    Finish,
}

/// The content of a message.
enum MessageContent {
    HelperOrder(HelperOrder),
    Request(HelperRequest),
}

/// Nanoseconds after which a thread that waits for the helper looks again.
const DRAIN_POLL_NS: u64 = 1_000_000;
/// The magic number of our messages.
const MESSAGE_MAGIC: u64 = u64::from_le_bytes(*b"pkhelper");

/// A message, which stays within this process. It holds no pointer.
#[repr(C)]
struct HelperMessage {
    magic: u64,
    /// The number that names the file in the program's table, and the file's hash.
    fd: c_int,
    hash: FileHash,
    /// For a watch: the file's size and offset at the time of sending.
    size: u64,
    position: u64,
    content: MessageContent,
}

/// A request on a file: the helper's own file, the number that named it in the program's table,
/// and, for a watch, the file's size and position at the time of sending.
pub(super) struct FileRequest {
    pub(super) request: HelperRequest,
    pub(super) file: HeldFile,
    pub(super) fd: c_int,
    pub(super) size: u64,
    pub(super) position: u64,
}

/// A received message.
pub(super) enum ReceivedMessage {
    /// A request on a file.
    Request(FileRequest),
    /// A request on a file that the helper cannot open, and the number that named it in the
    /// program's table.
    Refused(HelperRequest, c_int),
    /// An order.
    HelperOrder(HelperOrder),
    /// The sending end is closed.
    End,
    /// The message is not understood.
    Nothing,
}

/// Space for one descriptor: `CMSG_SPACE(4)` on both architectures.
#[repr(C, align(8))]
struct ControlMessage {
    length: usize,
    level: c_int,
    kind: c_int,
    fd: c_int,
    _pad: c_int,
}

const CONTROL_LENGTH: usize = 20;

/// Creates a socket pair and returns the sending and the receiving end.
pub(super) fn pair() -> Result<(c_int, c_int), Errno> {
    let mut ends = [-1 as c_int; 2];
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: `ends` has room for two descriptors.
    unsafe {
        sys::call(libc::SYS_socketpair, [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr() as usize])
    }?;
    Ok((high(ends[0]), high(ends[1])))
}

/// Moves a descriptor to a high number if possible: programs rely on the low ones.
fn high(fd: c_int) -> c_int {
    let from = NUMBER_MIN.min(sys::descriptor_limit().saturating_sub(16)) as c_int;
    match sys::duplicate(fd, from) {
        Ok(other) => {
            sys::close(fd);
            other
        }
        Err(_) => fd,
    }
}

/// Returns the inode of a descriptor if it is a socket.
pub(super) fn socket_inode(fd: c_int) -> Option<u64> {
    let stat = sys::fstat(fd).ok()?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// Moves the sending end to another number.
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

/// Waits for threads that have checked the old number and are about to send to it. That is short:
/// sending does not block.
fn wait_for_senders() {
    for _ in 0..1000 {
        if SENDING.load(Ordering::Acquire) == 0 {
            break;
        }
        core::hint::spin_loop();
    }
}

/// Closes the sending end, of a helper that leaves or one inherited by a child of fork.
pub(super) fn close_sender() {
    let fd = SENDER.swap(-1, Ordering::AcqRel);
    wait_for_senders();
    if fd >= 0 && socket_inode(fd) == Some(SENDER_INODE.load(Ordering::Acquire)) {
        sys::close(fd);
    }
}

pub(super) fn send_request(fd: c_int, request: &HelperRequest) -> bool {
    // A file is not reopened if another opener would break its lease, or if closing it would
    // take its errors. Nor is a block device, which would stay busy after the program has closed
    // it.
    let ends_with_its_user = matches!(request, HelperRequest::Watch { .. } | HelperRequest::ReadAhead { .. });
    if sys::has_lease(fd)
        || sys::close_takes_errors(fd)
        || !ends_with_its_user && sys::fstat(fd).is_ok_and(|stat| sys::is_block_device(&stat))
    {
        return false;
    }
    // A handler that jumps away (siglongjmp) would leave all of this half done.
    let _blocked = sys::SignalsBlocked::begin();
    // Held until the descriptor that names the file is closed.
    let Some(_guard) = ForkGuard::begin() else { return false };
    let file = match name_of(fd) {
        Ok(file) => OwnedDescriptor(file),
        Err(error) => {
            super::was_refused(error);
            return false;
        }
    };
    let Ok(stat) = sys::fstat(file.0) else { return false };
    if !may_be_read(file.0) {
        return false;
    }
    // The pages of a file without a name go when it is closed, and need not be written.
    if stat.st_nlink == 0 && matches!(request, HelperRequest::AfterClose { .. }) {
        return true;
    }
    let hash = FileHash::of(&stat);
    hash.take();
    let is_sent = send_message(HelperMessage::about(fd, hash, request), Some(file.0));
    if !is_sent {
        hash.give_back();
    }
    is_sent
}

impl HelperMessage {
    const fn of(content: MessageContent) -> Self {
        Self { magic: MESSAGE_MAGIC, fd: -1, hash: FileHash::NONE, size: 0, position: 0, content }
    }

    /// Returns the message for a request on the file that `fd` names.
    fn about(fd: c_int, hash: FileHash, request: &HelperRequest) -> Self {
        let mut message = Self { fd, hash, ..Self::of(MessageContent::Request(request.clone())) };
        if matches!(request, HelperRequest::Watch { .. }) {
            // In a file without resident pages, all pages that come are the program's, even within
            // its size: some programs lay files out first.
            let is_empty =
                sys::cachestat(fd, 0..u64::MAX).is_ok_and(|seen| seen.cached + seen.writeback == 0);
            // A descriptor opened with O_PATH does not show a device's size.
            message.size = if is_empty { 0 } else { sys::size(fd) };
            message.position = sys::position(fd).unwrap_or(0);
        }
        message
    }
}

/// Whether this process may open the file again for reading. Also true where the kernel cannot say
/// so: then the helper finds out.
fn may_be_read(file: c_int) -> bool {
    let flags = (libc::AT_EMPTY_PATH | libc::AT_EACCESS) as usize;
    let args = [file as usize, c"".as_ptr() as usize, libc::R_OK as usize, flags];
    // SAFETY: the path ends in a NUL, and is static.
    match unsafe { sys::call(libc::SYS_faccessat2, args) } {
        Err(Errno(libc::EACCES)) => return false,
        Err(_) => NO_ACCESS_PRECHECK.store(true, Ordering::Relaxed),
        Ok(_) => {}
    }
    true
}

/// Sends an order. Fails as a request does.
pub(super) fn send(order: HelperOrder) -> bool {
    send_message(HelperMessage::of(MessageContent::HelperOrder(order)), None)
}

/// Sends a message. Fails if the queue is full or the socket is not ours.
fn send_message(message: HelperMessage, file: Option<c_int>) -> bool {
    SENDING.fetch_add(1, Ordering::AcqRel);
    REQUESTS_SENT.fetch_add(1, Ordering::AcqRel);
    let fd = SENDER.load(Ordering::Acquire);
    let is_ours = fd >= 0 && socket_inode(fd) == Some(SENDER_INODE.load(Ordering::Acquire));
    let sent = is_ours && send_on(fd, message, file).is_ok();
    if !sent {
        REQUESTS_SENT.fetch_sub(1, Ordering::AcqRel);
    }
    SENDING.fetch_sub(1, Ordering::AcqRel);
    if !is_ours {
        // The program has closed it by a call we do not see: the helper ends, and the next file
        // starts a new one.
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

fn send_on(fd: c_int, mut message: HelperMessage, file: Option<c_int>) -> Result<(), Errno> {
    let mut data =
        libc::iovec { iov_base: (&raw mut message).cast::<c_void>(), iov_len: size_of::<HelperMessage>() };
    let control = ControlMessage {
        length: CONTROL_LENGTH,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fd: file.unwrap_or(-1),
        _pad: 0,
    };
    let (control_at, control_length) =
        if file.is_some() { ((&raw const control) as usize, size_of::<ControlMessage>()) } else { (0, 0) };
    // The kernel's struct msghdr: name, its length, data, their number, control data, their length,
    // flags.
    let header = [0, 0, (&raw mut data) as usize, 1, control_at, control_length, 0];
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: all that `header` points to lives for the call, and has the lengths that it says.
    unsafe { sys::call(libc::SYS_sendmsg, [fd as usize, header.as_ptr() as usize, flags]) }.map(drop)
}

/// Receives the next message; blocks until there is one.
pub(super) fn receive(fd: c_int) -> ReceivedMessage {
    let mut message = MaybeUninit::<HelperMessage>::zeroed();
    let mut control = ControlMessage { length: 0, level: 0, kind: 0, fd: -1, _pad: 0 };
    let mut data = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: size_of::<HelperMessage>() };
    let mut header =
        [0, 0, (&raw mut data) as usize, 1, (&raw mut control) as usize, size_of::<ControlMessage>(), 0];
    let flags = libc::MSG_CMSG_CLOEXEC as usize;
    // SAFETY: all that `header` points to lives for the call, and has room for the lengths that it
    // says; all bits are valid in it.
    let got = unsafe { sys::call(libc::SYS_recvmsg, [fd as usize, header.as_mut_ptr() as usize, flags]) };
    let named = (control.length >= CONTROL_LENGTH
        && control.level == libc::SOL_SOCKET
        && control.kind == libc::SCM_RIGHTS)
        .then_some(control.fd);
    // Opened here: this descriptor table owns no record lock that closing the file could release.
    let file = named.map(OwnedDescriptor).and_then(|named| {
        reopen(named.0).inspect_err(|&error| super::was_refused(error)).map(OwnedDescriptor).ok()
    });
    // SAFETY: all bits are valid in the first field.
    let magic = unsafe { *message.as_ptr().cast::<u64>() };
    match got {
        Ok(length) if length == size_of::<HelperMessage>() && magic == MESSAGE_MAGIC => {
            // SAFETY: a copy of a message that this code in this process made: nobody else writes
            // to the socket, and none of its length with this number.
            understand(unsafe { message.assume_init() }, file)
        }
        Ok(1..) | Err(Errno(libc::EINTR)) => ReceivedMessage::Nothing,
        Ok(_) | Err(_) => ReceivedMessage::End,
    }
}

fn understand(message: HelperMessage, file: Option<OwnedDescriptor>) -> ReceivedMessage {
    let HelperMessage { fd, hash, size, position, content, .. } = message;
    let request = match content {
        MessageContent::HelperOrder(order) => return ReceivedMessage::HelperOrder(order),
        MessageContent::Request(request) => request,
    };
    let Some(file) = file else {
        // The helper's table has no room for a descriptor, or the process may not open the file
        // again.
        process::count(Count::Failures, 1);
        hash.give_back();
        return ReceivedMessage::Refused(request, fd);
    };
    let file = HeldFile::of(file.into_number(), hash);
    ReceivedMessage::Request(FileRequest { request, file, fd, size, position })
}

/// Tells the helper to finish all work, and waits for that.
pub(super) fn drain() {
    AWAITED.store(true, Ordering::Release);
    let mut is_asked = send(HelperOrder::Drain);
    let target = REQUESTS_SENT.load(Ordering::Acquire);
    sys::wait_until(&REQUESTS_DONE, DRAIN_POLL_NS, DRAIN_MAX_NS, |done| {
        // A full queue has room again once the helper has done a request.
        is_asked = is_asked || send(HelperOrder::Drain);
        // Both counters wrap: the helper is behind if the difference is small.
        let left = target.wrapping_sub(done);
        (left == 0 || left > u32::MAX / 2 || super::ours().is_none()).then_some(())
    });
    AWAITED.store(false, Ordering::Release);
}
