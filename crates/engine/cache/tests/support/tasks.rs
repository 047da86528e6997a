//! Futures without a runtime: a thread that parks until it is woken.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns a waker that wakes the calling thread.
pub(crate) fn waker() -> Waker {
    Arc::new(UnparkWaker(std::thread::current())).into()
}

/// Polls a future to its end on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    block_on_with(future, std::thread::park)
}

/// Polls a future to its end on this thread; calls `idle` while the future is pending.
pub(crate) fn block_on_with<T>(future: impl Future<Output = T>, mut idle: impl FnMut()) -> T {
    let mut future = pin!(future);
    let waker = waker();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        idle();
    }
}

/// Polls several futures in turn, on this thread, until all have ended.
pub(crate) fn block_on_all<F: Future + Unpin>(futures: &mut [F]) -> Vec<F::Output> {
    let waker = waker();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    loop {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(done) = std::pin::Pin::new(future).poll(&mut Context::from_waker(&waker))
            {
                *output = Some(done);
            }
        }
        if outputs.iter().all(Option::is_some) {
            return outputs.into_iter().flatten().collect();
        }
        std::thread::park();
    }
}
