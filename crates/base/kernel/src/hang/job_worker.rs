//! A worker thread for jobs that may hang: calls into file systems.
//!
//! A network file system whose server is gone, or a user-space one that never answers, can block a
//! thread indefinitely. One worker runs the jobs in turn. If a job does not return in time, the
//! worker is abandoned to it, and the next job gets a new one. The abandoned job's result can still
//! be received later.
//!
//! Invariants: nobody waits for a job longer than specified, and no lock is held meanwhile. An
//! abandoned worker ends with its job, or with the process. A kill ends a wait in such a file
//! system, unless a program has read the request and keeps it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

type BoxedJob = Box<dyn FnOnce() + Send>;

/// The worker, created for the first job.
#[derive(Debug, Default)]
pub struct JobWorker {
    tasks: Option<Sender<BoxedJob>>,
}

impl JobWorker {
    /// Whether there is a worker, or one can be created. Without a worker, jobs run in the caller's
    /// thread.
    pub fn is_ready(&mut self) -> bool {
        if self.tasks.is_none() {
            self.tasks = start();
        }
        self.tasks.is_some()
    }

    /// Runs a job and waits for it up to `patience`. If it takes longer, returns the receiver of
    /// its result.
    ///
    /// # Panics
    ///
    /// If the job panics.
    pub fn run<T: Send + 'static>(
        &mut self,
        patience: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Receiver<T>> {
        self.run_while(patience, || false, job)
    }

    /// Runs a job as [`Self::run`] does, but asks `wait_on` after each `pause` whether to continue
    /// waiting.
    ///
    /// # Panics
    ///
    /// If the job panics.
    pub fn run_while<T: Send + 'static>(
        &mut self,
        pause: Duration,
        mut wait_on: impl FnMut() -> bool,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Receiver<T>> {
        let (give, take) = channel();
        let task: BoxedJob = Box::new(move || {
            // The receiver may be gone.
            let _ = give.send(job());
        });
        self.is_ready();
        let unsent = match &self.tasks {
            Some(tasks) => tasks.send(task).err().map(|error| error.0),
            None => Some(task),
        };
        // No thread could be created: running the job here is risky, but better than not running
        // it.
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

fn start() -> Option<Sender<BoxedJob>> {
    let (tasks, worker) = channel::<BoxedJob>();
    let work = move || worker.into_iter().for_each(|task| task());
    std::thread::Builder::new().name("files".to_owned()).spawn(work).ok().map(|_| tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_hangs_keeps_no_other_from_being_done() {
        let mut worker = JobWorker::default();
        let thread = || std::thread::current().id();
        let first = worker.run(Duration::from_secs(60), thread).unwrap();
        assert_eq!(worker.run(Duration::from_secs(60), thread).unwrap(), first, "one worker does all");
        let (answer, question) = channel::<u32>();
        let hung = worker.run(Duration::from_millis(1), move || question.recv().unwrap()).unwrap_err();
        assert_ne!(worker.run(Duration::from_secs(60), thread).unwrap(), first);
        assert!(hung.try_recv().is_err());
        answer.send(5).unwrap();
        assert_eq!(hung.recv_timeout(Duration::from_secs(60)).unwrap(), 5);
    }
}
