//! `pk_queue`: reads whose completions are collected by threads of the caller, which also copy the
//! data.
//!
//! Invariants: the eventfd is readable while there is a completion or a woken read. Only collecting
//! threads poll a future, except for its first poll by the thread that starts it. When a queue is
//! closed, its futures are dropped before the call returns, so that their buffers are not written
//! any more.
//!
//! While a future is polled, only its own lock is held.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::future::Future;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pagekeeper_io::Process;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use rustix::event::{EventfdFlags, eventfd};

use crate::call::{call, plain};
use crate::file::{FileHandle, read_later};
use crate::pointers::{ClosingHandle, MutArrayPointer, given, wanted};
use crate::status::{CallFailure, Status};

/// `pk_completion`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ReadCompletion {
    user_data: u64,
    read: usize,
    /// A `pk_status`; any value on input.
    status: c_int,
    error_number: c_int,
}

/// `pk_queue`.
pub struct QueueHandle(Arc<SharedQueue>);

struct SharedQueue {
    state: Mutex<QueueState>,
    news: Condvar,
    event: OwnedFd,
    process: Process,
}

#[derive(Default)]
struct QueueState {
    /// All reads in flight, by number.
    tasks: HashMap<u64, Arc<QueuedRead>>,
    next: u64,
    /// The woken ones.
    woken: VecDeque<Arc<QueuedRead>>,
    done: VecDeque<ReadCompletion>,
    /// Whether the eventfd is readable.
    is_signalled: bool,
}

type ReadFuture = Pin<Box<dyn Future<Output = ReadCompletion> + Send>>;

struct QueuedRead {
    number: u64,
    user_data: u64,
    queue: Weak<SharedQueue>,
    /// Removed when the future is done or dropped.
    body: Mutex<Option<ReadFuture>>,
}

impl Wake for QueuedRead {
    fn wake(self: Arc<Self>) {
        if let Some(queue) = self.queue.upgrade() {
            let mut state = lock(&queue.state);
            // Several wakes before a poll count once.
            if !state.woken.iter().any(|woken| woken.number == self.number) {
                state.woken.push_back(self);
            }
            queue.signal(&mut state);
        }
    }
}

impl SharedQueue {
    fn signal(&self, state: &mut QueueState) {
        if !state.is_signalled {
            state.is_signalled = true;
            // Fails only if the counter is at its maximum, and then the eventfd is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
        self.news.notify_all();
    }

    /// Resets the eventfd after something was taken, unless there is more.
    fn quiet(&self, state: &mut QueueState) {
        if state.is_signalled && state.woken.is_empty() && state.done.is_empty() {
            state.is_signalled = false;
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Polls a read. Queues its completion if it is over.
    fn poll(&self, task: &Arc<QueuedRead>) {
        let mut body = lock(&task.body);
        let Some(future) = body.as_mut() else { return };
        let waker = Waker::from(Arc::clone(task));
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        // A panic is a defect: the read has still ended.
        let internal = ReadCompletion {
            user_data: task.user_data,
            read: 0,
            status: Status::Internal as c_int,
            error_number: 0,
        };
        if let Poll::Ready(completion) = polled.unwrap_or(Poll::Ready(internal)) {
            *body = None;
            drop(body);
            let mut state = lock(&self.state);
            if state.tasks.remove(&task.number).is_some() {
                state.done.push_back(completion);
                self.signal(&mut state);
            }
        }
    }

    fn begin(self: &Arc<Self>, user_data: u64, body: ReadFuture) {
        let task = {
            let mut state = lock(&self.state);
            let number = state.next;
            state.next += 1;
            let task = Arc::new(QueuedRead {
                number,
                user_data,
                queue: Arc::downgrade(self),
                body: Mutex::new(Some(body)),
            });
            state.tasks.insert(number, Arc::clone(&task));
            task
        };
        self.poll(&task);
    }

    /// Collects completions, or fails with the reason why there are none.
    fn collect(&self, to: &mut [ReadCompletion], timeout: Option<Duration>) -> Result<usize, CallFailure> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.state);
        loop {
            while let Some(task) = state.woken.pop_front() {
                drop(state);
                self.poll(&task);
                state = lock(&self.state);
            }
            let count = state.done.len().min(to.len());
            for (to, completion) in to.iter_mut().zip(state.done.drain(..count)) {
                *to = completion;
            }
            self.quiet(&mut state);
            if count > 0 {
                return Ok(count);
            }
            if state.tasks.is_empty() {
                return Err(CallFailure::new(Status::End, "no read is in flight"));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(CallFailure::new(Status::TimedOut, "no read was over in that time"));
            }
            state = match left {
                Some(left) => ignore_poison(self.news.wait_timeout(state, left)).0,
                None => ignore_poison(self.news.wait(state)),
            };
        }
    }

    /// Drops all reads in flight.
    fn close(&self) {
        let tasks = std::mem::take(&mut lock(&self.state).tasks);
        for task in tasks.into_values() {
            drop(lock(&task.body).take());
        }
    }
}

/// Converts `timeout_ms` of the header; `None` means without a limit.
pub(crate) fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_queue_open(queue: Option<&mut MaybeUninit<Box<QueueHandle>>>) -> Status {
    call(|| {
        let queue = wanted(queue, "the queue")?;
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| CallFailure {
                errno: errno.raw_os_error(),
                ..CallFailure::new(Status::Io, format!("eventfd: {errno}"))
            })?;
        let shared =
            SharedQueue { state: Mutex::default(), news: Condvar::new(), event, process: Process::current() };
        queue.write(Box::new(QueueHandle(Arc::new(shared))));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_queue_fd(queue: Option<&QueueHandle>) -> c_int {
    queue.map_or(-1, |queue| queue.0.event.as_raw_fd())
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_queue_read(
    queue: Option<&QueueHandle>,
    file: Option<&FileHandle>,
    offset: u64,
    buffer: MutArrayPointer<u8>,
    size: usize,
    user_data: u64,
) -> Status {
    call(|| {
        let (queue, file) = (given(queue, "the queue")?, given(file, "the file")?.cached.clone());
        queue.0.process.require()?;
        buffer.slice(size, "the buffer")?;
        queue.0.begin(
            user_data,
            Box::pin(async move {
                match read_later(&file, offset, buffer, size).await {
                    Ok(read) => {
                        ReadCompletion { user_data, read, status: Status::Ok as c_int, error_number: 0 }
                    }
                    Err(CallFailure { status, errno, .. }) => {
                        ReadCompletion { user_data, read: 0, status: status as c_int, error_number: errno }
                    }
                }
            }),
        );
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_queue_collect(
    queue: Option<&QueueHandle>,
    completions: MutArrayPointer<ReadCompletion>,
    max: usize,
    timeout_ms: c_int,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    call(|| {
        let (queue, count) = (given(queue, "the queue")?, wanted(count, "the count")?);
        queue.0.process.require()?;
        let to = completions.slice(max, "the list of completions")?;
        if to.is_empty() {
            return Err(CallFailure::misuse("there is no room for a completion"));
        }
        count.write(queue.0.collect(to, timeout(timeout_ms))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pk_queue_close(queue: Option<ClosingHandle<QueueHandle>>) {
    plain((), || {
        // In a forked child, its reads and their buffers belong to the parent.
        let is_own =
            |queue: &ClosingHandle<QueueHandle>| queue.get().is_ok_and(|queue| queue.0.process.is_current());
        if let Some(Ok(queue)) = queue.filter(is_own).map(ClosingHandle::open) {
            queue.0.close();
        }
    });
}
