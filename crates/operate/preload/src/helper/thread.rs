//! The helper's loop: does requests as they come, closed files a little later, and watched files
//! from time to time.
//!
//! Invariants: it allocates nothing; it closes each descriptor that it received; it ends when
//! nobody can send any more.

use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void};

use super::ahead::{self, AheadReaders};
use super::channel::{self, FileRequest, HelperOrder, ReceivedMessage};
use super::closed::{self, ClosedFiles};
use super::closings;
use super::drop::drop_as_written;
use super::kept::KeptFiles;
use super::later::DeferredDrops;
use super::watch::FileWatches;
use super::{HAS_LASTING_FILES, HelperRequest, OWN_TABLE, STARTING, STATE};
use crate::files::temporary::Temporary;
use crate::{process, sys};

/// Nanoseconds without a request after which closed files are processed.
const IDLE_NS: u64 = 20_000_000;

/// The kernel's thread id of the helper; 0 until it runs.
static THREAD_NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether the kernel knows the helper's thread, which it may for a little longer than the C
/// library.
pub(super) fn is_there() -> bool {
    let number = THREAD_NUMBER.load(Ordering::Acquire);
    number != 0 && sys::is_thread(number)
}

/// Runs the helper. Its argument has the receiving end's number, and the state in which it is
/// created.
pub(super) extern "C" fn body(argument: *mut c_void) -> *mut c_void {
    let argument = argument.addr();
    let (socket, starting) = (argument as u32 as c_int, (argument >> 32) as u32);
    sys::name_thread(c"pagekeeper");
    THREAD_NUMBER.store(sys::thread_id(), Ordering::Release);
    // Before the creating thread continues: a file that the program closes after that must not stay
    // open here.
    let is_apart = take_own_table(socket);
    let next = starting - STARTING + if is_apart { OWN_TABLE } else { super::OFF };
    let is_wanted = STATE.compare_exchange(starting, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    // From here on the creating thread closes the receiving end in the program's table.
    sys::futex_wake(&STATE);
    if is_apart {
        if is_wanted {
            serve(socket);
        }
        sys::close(socket);
    }
    ptr::null_mut()
}

/// Gives this thread its own descriptor table, which contains only the receiving end.
fn take_own_table(socket: c_int) -> bool {
    let number = socket as u32;
    // Linux 5.9. Descriptors above are not even copied: closing them would make a network file
    // system write everything.
    if sys::close_range(number + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE).is_ok() {
        return number == 0 || sys::close_range(0, number - 1, 0).is_ok();
    }
    if sys::unshare_descriptors().is_err() {
        return false;
    }
    for fd in (0..sys::descriptor_limit().min(1 << 20) as c_int).filter(|&fd| fd != socket) {
        sys::close(fd);
    }
    true
}

/// All files of the helper. The large parts are elsewhere, where they were made.
struct HelperState<'a> {
    closed: ClosedFiles,
    watches: &'a mut FileWatches,
    readers: &'a mut AheadReaders,
    later: DeferredDrops,
    kept: KeptFiles,
}

impl HelperState<'_> {
    /// Returns the nanoseconds until the next work is due (`None` if there is none), and whether
    /// files that the helper has for longer are among it.
    fn due(&self) -> (Option<u64>, bool) {
        let now = sys::now();
        let idle = (!self.closed.is_empty()).then_some(IDLE_NS);
        let lasting = [self.watches.due(now), self.readers.due(now), self.later.due(now)];
        let is_lasting = lasting.iter().any(Option::is_some);
        (lasting.into_iter().chain([idle, self.kept.due(now)]).flatten().min(), is_lasting)
    }

    /// Does the work that is due after a wait.
    fn go_on(&mut self, wait: Option<u64>) {
        self.readers.go_on();
        self.later.check(sys::now());
        self.kept.go_on();
        if wait == Some(0) || self.watches.due(sys::now()) == Some(0) {
            self.watches.check(sys::now(), &mut self.kept);
        }
        // One at a time: a request that comes meanwhile does not wait for all of them.
        self.closed.finish_oldest();
    }

    /// Does a request. Returns whether it is done; otherwise it will be.
    fn take(&mut self, received: FileRequest) -> bool {
        if let HelperRequest::Watch { kept, .. } = received.request {
            self.watches.add(received, kept.map(Temporary::from_number), &mut self.kept);
            return true;
        }
        let FileRequest { request, file, .. } = received;
        match request {
            HelperRequest::AfterClose { range, release, count } if !file.is_lost() => {
                self.closed.add(file, range, release, count);
                return false;
            }
            HelperRequest::AfterClose { .. } | HelperRequest::Watch { .. } => {}
            HelperRequest::Release { range, count } => closed::release(&file, range, count),
            HelperRequest::Drop { range, count, number } => {
                // The file's writer waits for this, whether the file has a name or not.
                let went = drop_as_written(file.fd(), &range, &|| file.is_unwanted());
                process::count(count, went.bytes);
                super::saw_to(number, went.all);
            }
            HelperRequest::Keep { entry } => {
                let entry = Temporary::from_number(entry);
                if !file.is_lost() {
                    self.kept.add(file, entry);
                }
            }
            HelperRequest::DropLater { range, count } => self.later.add(file, range, count),
            HelperRequest::ReadAhead { index } => self.readers.add(index, file),
        }
        true
    }

    /// Lets go of the files that are lost.
    fn let_go(&mut self) {
        self.closed.let_go();
        self.watches.let_go();
        self.readers.let_go();
        self.later.let_go();
        self.kept.let_go();
    }

    /// Processes closed files now.
    fn finish(&mut self) {
        self.closed.finish();
        self.kept.finish();
    }

    /// Does all remaining work.
    fn drain(&mut self) {
        self.closed.finish();
        self.watches.end(&mut self.kept);
        self.readers.go_on();
        self.later.check(u64::MAX);
        self.kept.finish();
    }
}

fn serve(socket: c_int) {
    let (mut watches, mut readers) = (FileWatches::none(), AheadReaders::none());
    let mut helper = HelperState {
        closed: ClosedFiles::NONE,
        watches: &mut watches,
        readers: &mut readers,
        later: DeferredDrops::NONE,
        kept: KeptFiles::NONE,
    };
    let mut sampled_at = sys::now();
    loop {
        // While requests keep coming, files deleted meanwhile would otherwise wait until there are
        // too many.
        if !helper.closed.is_empty() && sys::now().saturating_sub(sampled_at) > IDLE_NS {
            helper.closed.let_go();
            sampled_at = sys::now();
        }
        let (wait, is_lasting) = helper.due();
        HAS_LASTING_FILES.store(u32::from(is_lasting), Ordering::Release);
        if !sys::readable(socket, wait) {
            helper.go_on(wait);
            continue;
        }
        let mut is_done = true;
        match channel::receive(socket) {
            ReceivedMessage::Request(received) => is_done = helper.take(received),
            ReceivedMessage::Refused(request, fd) => refuse(&request, fd),
            ReceivedMessage::HelperOrder(HelperOrder::Leave) => return helper.kept.finish(),
            ReceivedMessage::End => return helper.finish(),
            ReceivedMessage::HelperOrder(HelperOrder::Check) => helper.let_go(),
            ReceivedMessage::HelperOrder(HelperOrder::Finish) => helper.finish(),
            ReceivedMessage::HelperOrder(HelperOrder::Drain) => helper.drain(),
            ReceivedMessage::Nothing => {}
        }
        if is_done {
            super::done();
        }
    }
}

/// Ends what waits for a request on a file that the helper cannot open.
fn refuse(request: &HelperRequest, fd: c_int) {
    match *request {
        HelperRequest::Drop { number, .. } => super::saw_to(number, false),
        HelperRequest::ReadAhead { index } => ahead::was_refused(index),
        HelperRequest::Watch { kept, .. } => {
            closings::was_refused(fd);
            drop(kept.map(Temporary::from_number));
        }
        HelperRequest::Keep { entry } => drop(Temporary::from_number(entry)),
        _ => {}
    }
}
