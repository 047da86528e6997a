//! Waiting, before and after the outcome is known. `model` checks it in every order of threads.

use std::task::{Context, Poll, Waker};

use crate::Error;
use crate::waiter::LoadWaiter;

fn failure() -> Error {
    Error::Closed { path: "a".into() }
}

#[test]
fn a_thread_waits_for_the_outcome() {
    let waiter = LoadWaiter::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.wait());
        waiter.settle(Err(failure()));
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed { .. })));
    });
    assert!(waiter.wait().is_err(), "a later waiter sees it, too");
}

#[test]
fn a_task_is_woken() {
    struct Count(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let count = std::sync::Arc::new(Count(std::sync::atomic::AtomicUsize::new(0)));
    let waker = Waker::from(std::sync::Arc::clone(&count));
    let context = Context::from_waker(&waker);
    let waiter = LoadWaiter::new();
    assert!(waiter.poll(&context).is_pending());
    assert!(waiter.poll(&context).is_pending());
    waiter.settle(Ok(()));
    assert_eq!(count.0.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert!(matches!(waiter.poll(&context), Poll::Ready(Ok(()))));
}
