//! A future that is polled by whoever wakes it, for reads that call back when they are over.
//!
//! Invariants: one thread at a time polls the future. A wake during a poll causes another poll. The
//! task lives until it is done. It never fails; a panic in the future ends it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Nobody polls it.
const STATE_IDLE: u8 = 0;
/// A thread polls it.
const STATE_POLLED: u8 = 1;
/// A thread polls it, and must do so once more.
const STATE_POLL_AGAIN: u8 = 2;

type TaskFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

struct CallbackTask {
    state: AtomicU8,
    /// Removed when the future is done.
    body: Mutex<Option<TaskFuture>>,
}

impl CallbackTask {
    fn poll(self: &Arc<Self>) {
        // The thread that moves the state out of `STATE_IDLE` polls; all others only request
        // another poll.
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            Some(if state == STATE_IDLE { STATE_POLLED } else { STATE_POLL_AGAIN })
        });
        if before != Ok(STATE_IDLE) {
            return;
        }
        let waker = Waker::from(Arc::clone(self));
        let mut body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(future) = body.as_mut() else { return };
            let polled =
                catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
            if !matches!(polled, Ok(Poll::Pending)) {
                *body = None;
                return;
            }
            if self
                .state
                .compare_exchange(STATE_POLLED, STATE_IDLE, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                return;
            }
            self.state.store(STATE_POLLED, Ordering::Release);
        }
    }
}

impl Wake for CallbackTask {
    fn wake(self: Arc<Self>) {
        self.poll();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.poll();
    }
}

/// Polls a future until it is done: first on this thread, then wherever it is woken.
pub(crate) fn run(body: impl Future<Output = ()> + Send + 'static) {
    let task = CallbackTask { state: AtomicU8::new(STATE_IDLE), body: Mutex::new(Some(Box::pin(body))) };
    Arc::new(task).poll();
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_wake_during_the_poll_is_another_poll() {
        let polls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&polls);
        run(poll_fn(move |context| {
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            if nth < 3 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        }));
        assert_eq!(polls.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn wakes_from_many_threads_lose_nothing() {
        for _ in 0..200 {
            let (wakers, woken) = mpsc::channel::<Waker>();
            let (done, is_done) = mpsc::channel();
            let left = Arc::new(AtomicU32::new(8));
            let count = Arc::clone(&left);
            run(async move {
                poll_fn(|context| {
                    if count.load(Ordering::Acquire) == 0 {
                        return Poll::Ready(());
                    }
                    let _ = wakers.send(context.waker().clone());
                    Poll::Pending
                })
                .await;
                done.send(()).unwrap();
            });
            let waker = woken.recv().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    let (waker, left) = (waker.clone(), &left);
                    scope.spawn(move || {
                        left.fetch_sub(1, Ordering::AcqRel);
                        waker.wake();
                    });
                }
            });
            is_done.recv().unwrap();
        }
    }

    #[test]
    fn a_panic_ends_it() {
        let (waker, woken) = mpsc::channel::<Waker>();
        run(async move {
            let mut first = true;
            poll_fn(|context| {
                if std::mem::take(&mut first) {
                    waker.send(context.waker().clone()).unwrap();
                    return Poll::Pending;
                }
                assert!(first, "as planned");
                Poll::Ready(())
            })
            .await;
        });
        let waker = woken.recv().unwrap();
        waker.wake_by_ref();
        waker.wake();
    }
}
