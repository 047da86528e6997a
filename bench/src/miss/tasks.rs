//! As many tasks as are wanted on one thread, polled when they were woken: as little of a runtime as will do.
//!
//! Fails with the first task that fails; a task must not end otherwise.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use anyhow::{Result, bail};

/// A task: it ends with an error only.
pub(super) type Task<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// The tasks of a thread.
pub(super) struct Tasks<'a> {
    /// Each with what wakes it.
    all: Vec<(Task<'a>, Waker)>,
    woken: Arc<Woken>,
    /// Those to poll; kept for its memory.
    turn: Vec<usize>,
}

/// The tasks that were woken, and the thread that is to know.
struct Woken {
    indices: Mutex<Vec<usize>>,
    thread: Mutex<Option<Thread>>,
}

/// Wakes one task.
struct OfTask {
    index: usize,
    woken: Arc<Woken>,
}

impl Wake for OfTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut indices = self.woken.indices.lock().unwrap_or_else(PoisonError::into_inner);
        indices.push(self.index);
        // The others find it awake.
        if indices.len() == 1
            && let Some(thread) = &*self.woken.thread.lock().unwrap_or_else(PoisonError::into_inner)
        {
            thread.unpark();
        }
    }
}

impl<'a> Tasks<'a> {
    /// Takes tasks, none of which has been polled.
    pub(super) fn new(tasks: impl IntoIterator<Item = Task<'a>>) -> Self {
        let woken = Arc::new(Woken { indices: Mutex::default(), thread: Mutex::default() });
        let waker = |index| Waker::from(Arc::new(OfTask { index, woken: Arc::clone(&woken) }));
        let all: Vec<_> = tasks.into_iter().enumerate().map(|(index, task)| (task, waker(index))).collect();
        *woken.indices.lock().unwrap_or_else(PoisonError::into_inner) = (0..all.len()).collect();
        Self { all, woken, turn: Vec::new() }
    }

    /// Waits until there is something to do, if need be, and polls each task that was woken once.
    pub(super) fn step(&mut self) -> Result<()> {
        loop {
            std::mem::swap(
                &mut *self.woken.indices.lock().unwrap_or_else(PoisonError::into_inner),
                &mut self.turn,
            );
            if !self.turn.is_empty() {
                break;
            }
            let mut thread = self.woken.thread.lock().unwrap_or_else(PoisonError::into_inner);
            if thread.is_none() {
                // Known from now on; what was woken before is seen by the next check.
                *thread = Some(std::thread::current());
                continue;
            }
            drop(thread);
            std::thread::park();
        }
        for index in self.turn.drain(..) {
            let (task, waker) = &mut self.all[index];
            match task.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(())) => bail!("a task has ended"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn tasks_go_on_when_they_are_woken_also_by_other_threads() {
        let count = AtomicU64::new(0);
        let task = |fail_at: u64| {
            let (mut asleep, count) = (false, &count);
            Box::pin(std::future::poll_fn(move |context| {
                // Every other poll is one that has waited for a thread.
                asleep = !asleep;
                if asleep {
                    let waker = context.waker().clone();
                    std::thread::spawn(move || waker.wake());
                    return Poll::Pending;
                }
                if count.fetch_add(1, Ordering::Relaxed) >= fail_at {
                    return Poll::Ready(Err(anyhow::anyhow!("enough")));
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })) as Task<'_>
        };
        let mut tasks = Tasks::new([task(u64::MAX), task(u64::MAX), task(100)]);
        let error = loop {
            if let Err(error) = tasks.step() {
                break error;
            }
        };
        assert_eq!(error.to_string(), "enough");
        assert!(count.load(Ordering::Relaxed) > 100);
    }

    #[test]
    fn a_task_may_not_end() {
        let mut tasks = Tasks::new([Box::pin(async { Ok(()) }) as Task<'_>]);
        assert!(tasks.step().is_err());
    }
}
