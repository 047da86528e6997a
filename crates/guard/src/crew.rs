//! A thread for what may hang: calls into the file systems of watched databases.
//!
//! A network file system whose server is gone, or one in user space that never answers, holds a thread for as long as it likes.
//! Jobs are done by one worker, in turn. If one does not come back in time the worker is left to it, and the next job gets a
//! new one; what the job gives in the end can still be had.
//!
//! Invariants: nobody waits for a job longer than he said; no lock is held meanwhile. A worker that was left ends with its
//! job, or with the process: a wait in such a file system ends by a kill.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

type Task = Box<dyn FnOnce() + Send>;

/// The worker, once there was a job.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    tasks: Option<Sender<Task>>,
}

impl Crew {
    /// Does a job, and waits for it so long; then gives what will have its answer.
    ///
    /// # Panics
    ///
    /// If the job does.
    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        patience: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Receiver<T>> {
        let (give, take) = channel();
        let task: Task = Box::new(move || {
            // Nobody may want it any more.
            let _ = give.send(job());
        });
        if self.tasks.is_none() {
            self.tasks = start();
        }
        let unsent = match &self.tasks {
            Some(tasks) => tasks.send(task).err().map(|error| error.0),
            None => Some(task),
        };
        // No thread to be had: better at some risk than not at all.
        if let Some(task) = unsent {
            task();
        }
        match take.recv_timeout(patience) {
            Ok(done) => Ok(done),
            Err(RecvTimeoutError::Timeout) => {
                self.tasks = None;
                Err(take)
            }
            Err(RecvTimeoutError::Disconnected) => panic!("a job of the guard's panicked"),
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
