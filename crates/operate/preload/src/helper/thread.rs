//! The helper's loop: does requests as they come, closed files a little later, and watched files from time to time.
//!
//! Invariants: it allocates nothing; it closes each descriptor that it received; it ends when nobody can send any more.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void};
use pagekeeper_policy::pacer::PIECE_MIN;

use super::ahead::Readers;
use super::channel::{self, FileRequest, Received};
use super::drop::{begin, drop_as_written, write_and_drop};
use super::helper_files::{FileHash, is_lost};
use super::kept::Kept;
use super::later::DeferredDrops;
use super::watch::{Subject, Watches};
use super::{HelperRequest, LASTING, OWN_TABLE, STARTING, STATE};
use crate::counters::Count;
use crate::disks::Share;
use crate::temporary::Temporary;
use crate::writeback::{can_count, write_in_pieces};
use crate::{process, sys, tracked_files};

/// Closed files waiting at a time.
const CLOSED_MAX: usize = 64;
/// Nanoseconds without a request after which closed files are processed.
const IDLE: u64 = 20_000_000;

/// The kernel's thread id of the helper; 0 until it runs.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether the kernel knows the helper's thread, which it may for a little longer than the C library.
#[allow(unsafe_code, reason = "a system call")]
pub(super) fn is_there() -> bool {
    let number = NUMBER.load(Ordering::Acquire) as usize;
    // SAFETY: no pointers; signal 0 is sent to nobody.
    number != 0
        && unsafe { sys::call(libc::SYS_tgkill, [sys::getpid() as usize, number, 0, 0, 0, 0]) }.is_ok()
}

/// Stores the id of this thread.
#[allow(unsafe_code, reason = "a system call")]
fn store_number() {
    // SAFETY: no arguments.
    let number = unsafe { sys::call(libc::SYS_gettid, [0; 6]) };
    NUMBER.store(number.map_or(0, |number| number as u32), Ordering::Release);
}

/// The helper's body. Its argument has the receiving end's number, and the state in which it is created.
pub(super) extern "C" fn body(argument: *mut c_void) -> *mut c_void {
    let argument = argument.addr();
    let (socket, starting) = (argument as u32 as c_int, (argument >> 32) as u32);
    sys::name_thread(c"pagekeeper");
    store_number();
    // Before the creating thread goes on: a file that the program closes after that must not stay open here.
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
    // Linux 5.9. Descriptors above are not even copied: closing them would make a network file system write everything.
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

/// A closed file that is to be written, and whose pages are then dropped unless they are kept.
#[derive(Clone, Copy)]
struct Closed {
    file: c_int,
    start: u64,
    end: u64,
    is_kept: bool,
    /// Bytes that were begun to be written as it was added.
    begun: u64,
    count: Count,
    place: FileHash,
}

impl Closed {
    const NONE: Self = Self {
        file: -1,
        start: 0,
        end: 0,
        is_kept: false,
        begun: 0,
        count: Count::StreamReleased,
        place: FileHash::NONE,
    };

    /// Starts to write it if that and all earlier starts (`begun` bytes) stay within a piece.
    fn begin(&mut self, begun: u64) {
        let range = self.start..self.end;
        let has_counts = sys::has_counts(self.file);
        if !has_counts || !can_count(self.file) {
            let _ = begin(self.file, &range, has_counts, !self.is_kept);
        } else if let Ok(seen) = sys::cachestat(self.file, range.clone()) {
            let bytes = seen.dirty.saturating_mul(sys::page_size());
            if begun.saturating_add(bytes) <= PIECE_MIN
                && begin(self.file, &range, true, !self.is_kept).is_ok()
            {
                self.begun = bytes;
            }
        }
    }

    /// Writes it, drops its pages unless they are kept, and gives it up.
    fn finish(self) {
        let Self { file, start, end, is_kept, count, place, .. } = self;
        if !is_kept {
            return release(file, start..end, count, place);
        }
        if sys::has_counts(file)
            && let Ok(stat) = sys::fstat(file)
        {
            write_in_pieces(file, &(start..end), &Share::of(stat.st_dev), &|| is_lost(file, place));
        }
        give_up(file, place);
    }
}

/// The waiting closed files, oldest first.
struct Queue {
    files: [Closed; CLOSED_MAX],
    first: usize,
    length: usize,
}

impl Queue {
    fn push(&mut self, mut closed: Closed) {
        closed
            .begin(self.files.iter().cycle().skip(self.first).take(self.length).map(|file| file.begun).sum());
        if self.length == CLOSED_MAX {
            self.finish_oldest();
        }
        if let Some(free) = self.files.get_mut((self.first + self.length) % CLOSED_MAX) {
            *free = closed;
            self.length += 1;
        }
    }

    fn finish_oldest(&mut self) {
        if self.length > 0
            && let Some(&closed) = self.files.get(self.first)
        {
            self.first = (self.first + 1) % CLOSED_MAX;
            self.length -= 1;
            closed.finish();
        }
    }

    fn finish(&mut self) {
        while self.length > 0 {
            self.finish_oldest();
        }
    }

    /// Lets go of the files that are lost.
    fn let_go(&mut self) {
        let length = core::mem::take(&mut self.length);
        for at in self.first..self.first + length {
            let Some(&closed) = self.files.get(at % CLOSED_MAX) else { continue };
            if is_lost(closed.file, closed.place) {
                give_up(closed.file, closed.place);
            } else if let Some(free) = self.files.get_mut((self.first + self.length) % CLOSED_MAX) {
                *free = closed;
                self.length += 1;
            }
        }
    }
}

/// All files of the helper. The large parts are elsewhere, where they were made.
struct HelperState<'a> {
    queue: Queue,
    watches: &'a mut Watches,
    readers: &'a mut Readers,
    later: DeferredDrops,
    kept: Kept,
}

impl HelperState<'_> {
    /// Returns the nanoseconds until the next work is due (`None` if there is none), and whether files that the helper has for longer are
    /// among it.
    fn due(&self) -> (Option<u64>, bool) {
        let now = sys::now();
        let idle = (self.queue.length > 0).then_some(IDLE);
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
        self.queue.finish_oldest();
    }

    /// Does a request.
    fn take(&mut self, received: FileRequest) {
        let FileRequest { request, file, fd, size, position, place } = received;
        match request {
            // These are done once their file is given up.
            HelperRequest::AfterClose { .. } if is_lost(file, place) => return give_up(file, place),
            HelperRequest::AfterClose { range, release, count } => {
                let Range { start, end } = range;
                return self.queue.push(Closed {
                    file,
                    start,
                    end,
                    is_kept: !release,
                    begun: 0,
                    count,
                    place,
                });
            }
            HelperRequest::Release { range, count } => return release(file, range, count, place),
            HelperRequest::Drop { range, count, number } => {
                // Its writer waits, and needs this whether the file has a name or not.
                let went = drop_as_written(file, &range, &|| place.is_unwanted());
                process::count(count, went.bytes);
                super::saw_to(number, went.all);
                return give_up(file, place);
            }
            HelperRequest::Watch { flags, release, count, used, kept } => {
                let subject = Subject { file, fd, flags, size, position, release, count, used, place };
                let entry = kept.and_then(Temporary::from_number);
                self.watches.add(subject, entry, sys::now(), &mut self.kept);
            }
            // A thread that removes the file waits until the request is given back. Once the file is kept, it waits on the file's entry.
            HelperRequest::Keep { entry } => match Temporary::from_number(entry) {
                Some(entry) if !is_lost(file, place) => {
                    self.kept.add(file, entry);
                    if place.is_unwanted() {
                        self.kept.let_go_of(file);
                    }
                    place.give_back();
                }
                entry => {
                    drop(entry);
                    sys::close(file);
                    place.give_back();
                }
            },
            HelperRequest::DropLater { range, count } => self.later.add(file, range, count, place),
            HelperRequest::ReadAhead { index } => self.readers.add(index, file, place),
        }
        super::done();
    }

    /// Lets go of the files that are lost.
    fn let_go(&mut self) {
        self.queue.let_go();
        self.watches.let_go();
        self.readers.let_go();
        self.later.let_go();
        self.kept.let_go();
    }

    /// Processes closed files now.
    fn finish(&mut self) {
        self.queue.finish();
        self.kept.finish();
    }

    /// Does all remaining work.
    fn drain(&mut self) {
        self.queue.finish();
        self.watches.end(&mut self.kept);
        self.readers.go_on();
        self.later.check(u64::MAX);
        self.kept.finish();
    }
}

fn serve(socket: c_int) {
    let (mut watches, mut readers) = (Watches::none(), Readers::none());
    let mut helper = HelperState {
        queue: Queue { files: [Closed::NONE; CLOSED_MAX], first: 0, length: 0 },
        watches: &mut watches,
        readers: &mut readers,
        later: DeferredDrops::NONE,
        kept: Kept::NONE,
    };
    let mut sampled_at = sys::now();
    loop {
        // While requests keep coming, files deleted meanwhile would otherwise wait until the queue is full.
        if helper.queue.length > 0 && sys::now().saturating_sub(sampled_at) > IDLE {
            helper.queue.let_go();
            sampled_at = sys::now();
        }
        let (wait, is_lasting) = helper.due();
        LASTING.store(u32::from(is_lasting), Ordering::Release);
        if !sys::readable(socket, wait) {
            helper.go_on(wait);
            continue;
        }
        match channel::receive(socket) {
            Received::Request(received) => helper.take(received),
            Received::Check => {
                helper.let_go();
                super::done();
            }
            Received::Finish => {
                helper.finish();
                super::done();
            }
            Received::Drain => {
                helper.drain();
                super::done();
            }
            Received::Nothing => super::done(),
            Received::Leave => {
                helper.kept.finish();
                break;
            }
            Received::End => {
                helper.finish();
                break;
            }
        }
    }
}

/// Writes the range, drops its pages, and gives the file up.
fn release(file: c_int, range: Range<u64>, count: Count, place: FileHash) {
    process::count(count, write_and_drop(file, range, &|| is_lost(file, place)));
    tracked_files::released(file);
    give_up(file, place);
}

/// Gives up a file that needs no more work.
fn give_up(file: c_int, place: FileHash) {
    sys::close(file);
    place.give_back();
    super::done();
}
