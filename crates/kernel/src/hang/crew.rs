//! A thread for jobs that may hang: calls into file systems.
//!
//! A network file system whose server is gone, or one in user space that never answers, holds a thread for as long as it likes.
//! Jobs are done by one worker, in turn. If one does not come back in time the worker is left to it, and the next job gets a
//! new one; what the job gives in the end can still be had.
//!
//! Invariants: nobody waits for a job longer than was said; no lock is held meanwhile. A worker that was left ends with its
//! job, or with the process: a wait in such a file system ends by a kill, unless its request was read by a program that
//! keeps it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

type Task = Box<dyn FnOnce() + Send>;

/// The worker, once there was a job.
#[derive(Debug, Default)]
pub struct Crew {
    tasks: Option<Sender<Task>>,
}

impl Crew {
    /// Whether there is a worker, or one can be had: without one a job is done in the caller's thread.
    pub fn is_ready(&mut self) -> bool {
        if self.tasks.is_none() {
            self.tasks = start();
        }
        self.tasks.is_some()
    }

    /// Does a job, and waits for it so long; then gives what will have its answer.
    ///
    /// # Panics
    ///
    /// If the job does.
    pub fn run<T: Send + 'static>(
        &mut self,
        patience: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Receiver<T>> {
        self.run_while(patience, || false, job)
    }

    /// The same, but asks each time that it has waited so long whether to wait on.
    ///
    /// # Panics
    ///
    /// If the job does.
    pub fn run_while<T: Send + 'static>(
        &mut self,
        pause: Duration,
        mut wait_on: impl FnMut() -> bool,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Receiver<T>> {
        let (give, take) = channel();
        let task: Task = Box::new(move || {
            // Nobody may want it any more.
            let _ = give.send(job());
        });
        self.is_ready();
        let unsent = match &self.tasks {
            Some(tasks) => tasks.send(task).err().map(|error| error.0),
            None => Some(task),
        };
        // No thread to be had: better at some risk than not at all.
        if let Some(task) = unsent {
            task();
        }
        loop {
            match take.recv_timeout(pause) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Timeout) if wait_on() => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.tasks = None;
                    return Err(take);
                }
                Err(RecvTimeoutError::Disconnected) => panic!("a job that may hang panicked"),
            }
        }
    }
}

fn start() -> Option<Sender<Task>> {
    let (tasks, worker) = channel::<Task>();
    let work = move || worker.into_iter().for_each(|task| task());
    std::thread::Builder::new().name("files".to_owned()).spawn(work).ok().map(|_| tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_hangs_keeps_no_other_from_being_done() {
        let mut crew = Crew::default();
        let thread = || std::thread::current().id();
        let first = crew.run(Duration::from_secs(60), thread).unwrap();
        assert_eq!(crew.run(Duration::from_secs(60), thread).unwrap(), first, "one worker does all");
        let (answer, question) = channel::<u32>();
        let hung = crew.run(Duration::from_millis(1), move || question.recv().unwrap()).unwrap_err();
        assert_ne!(crew.run(Duration::from_secs(60), thread).unwrap(), first);
        assert!(hung.try_recv().is_err());
        answer.send(5).unwrap();
        assert_eq!(hung.recv_timeout(Duration::from_secs(60)).unwrap(), 5);
    }
}
