//! A minimal runtime: many tasks on one thread, each polled when it was woken.
//!
//! Fails with the first task that fails; a task must not end otherwise.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use anyhow::{Result, bail};

/// A task, which ends only with an error.
pub(super) type Task<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// The tasks of a thread.
pub(super) struct Tasks<'a> {
    /// The tasks with their wakers.
    all: Vec<(Task<'a>, Waker)>,
    woken: Arc<Woken>,
    /// The tasks to poll, kept for its memory.
    turn: Vec<usize>,
}

/// The woken tasks, and the thread to unpark.
struct Woken {
    indices: Mutex<Vec<usize>>,
    thread: Mutex<Option<Thread>>,
}

/// A waker of one task.
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
        // Later wakers find the thread awake.
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

    /// Waits for work if necessary and polls each woken task once.
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
                // The thread is registered from now on; the next check finds earlier wakeups.
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
                // Every other poll waits for a thread.
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
