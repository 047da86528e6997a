//! Models of thread interaction: loom runs each in every order of its threads. With three or more
//! threads, at most [`PREEMPTIONS_MAX`] preemptions are tried.
//!
//! A model fails by an assertion, or by loom's "deadlock" if threads wait forever: after a lost
//! wake-up, or if a job runs with the lock held. Nothing in it is random, so a failure repeats
//! without a seed. `LOOM_LOG=trace` prints the steps.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::{Arc, Condvar, Mutex};

use work::WorkQueue;

/// Replaces `crate::sync`.
mod sync {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

#[path = "work.rs"]
#[expect(clippy::duplicate_mod, reason = "the very source that the crate runs, with loom's locks")]
mod work;

/// Maximum number of preemptions: three threads have too many orders without one. Two threads are
/// tried without a limit.
const PREEMPTIONS_MAX: usize = 3;

/// The jobs of a model by their numbers: each entry has the numbers of the jobs that this one adds.
type JobGraph = &'static [&'static [usize]];

/// The state that the threads of one execution share. The counts are not loom's: they are not under
/// test, and each step of a modelled atomic would multiply the orders.
struct ModelState {
    queue: WorkQueue<usize>,
    jobs: JobGraph,
    runs: Vec<AtomicUsize>,
    met: Mutex<usize>,
    all_met: Condvar,
    behaviour: JobBehaviour,
}

/// The behaviour of a model's jobs besides adding others.
#[derive(Clone, Copy)]
enum JobBehaviour {
    Plain,
    /// This job panics after it has added its own jobs.
    Panics(usize),
    /// Each job waits, after it has added its own jobs, until all of them are running.
    Meet,
}

impl ModelState {
    fn run(&self, job: usize) {
        if !self.jobs[job].is_empty() {
            self.queue.push(self.jobs[job].to_vec());
        }
        self.runs[job].fetch_add(1, Ordering::Relaxed);
        match self.behaviour {
            // Without the message that a panic prints, since thousands of orders are tried.
            JobBehaviour::Panics(panics) if panics == job => resume_unwind(Box::new("planned")),
            JobBehaviour::Meet => self.meet(),
            _ => {}
        }
    }

    fn meet(&self) {
        let mut met = self.met.lock().unwrap();
        *met += 1;
        if *met == self.jobs.len() {
            self.all_met.notify_all();
        }
        while *met < self.jobs.len() {
            met = self.all_met.wait(met).unwrap();
        }
    }

    /// Works as one thread. Returns true if a job's panic ended it.
    fn work(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.queue.work(|job| self.run(job)))).is_err()
    }
}

/// Runs the jobs, starting with those of `first`, by `workers` threads in every order. Returns the
/// number of orders.
fn check(workers: usize, first: &'static [usize], jobs: JobGraph, behaviour: JobBehaviour) -> usize {
    let orders = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&orders);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = (workers > 2).then_some(PREEMPTIONS_MAX);
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let runs = jobs.iter().map(|_| AtomicUsize::new(0)).collect();
        let queue = WorkQueue::new(first.to_vec());
        let (met, all_met) = (Mutex::new(0), Condvar::new());
        let state = Arc::new(ModelState { queue, jobs, runs, met, all_met, behaviour });
        let others: Vec<_> = (1..workers)
            .map(|_| {
                let state = Arc::clone(&state);
                loom::thread::spawn(move || state.work())
            })
            .collect();
        let mut panicked = usize::from(state.work());
        for other in others {
            panicked += usize::from(other.join().unwrap());
        }
        assert_eq!(panicked, usize::from(matches!(behaviour, JobBehaviour::Panics(_))));
        let runs: Vec<_> = state.runs.iter().map(|runs| runs.load(Ordering::Relaxed)).collect();
        assert_eq!(runs, vec![1; jobs.len()], "runs of each job");
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{workers} workers, {} jobs: {orders} orders", jobs.len());
    orders
}

#[test]
fn one_worker_runs_all_jobs() {
    assert_eq!(check(1, &[0], &[&[1, 2], &[3], &[], &[]], JobBehaviour::Plain), 1);
}

#[test]
fn two_workers_run_each_job_once_and_return() {
    assert!(check(2, &[], &[], JobBehaviour::Plain) > 1);
    assert!(check(2, &[0, 1, 2], &[&[], &[], &[]], JobBehaviour::Plain) > 1);
    assert!(check(2, &[0], &[&[1, 2], &[3], &[], &[]], JobBehaviour::Plain) > 1);
}

#[test]
fn three_workers_run_each_job_once_and_return() {
    // Two wait while the first job runs, and both must learn of the jobs it adds, and of the end.
    assert!(check(3, &[0], &[&[1, 2], &[], &[]], JobBehaviour::Plain) > 1);
    assert!(check(3, &[0, 1], &[&[], &[]], JobBehaviour::Plain) > 1);
}

#[test]
fn no_worker_is_left_waiting_while_there_are_jobs() {
    assert!(check(2, &[0], &[&[1], &[]], JobBehaviour::Meet) > 1);
    assert!(check(3, &[0], &[&[1, 2], &[], &[]], JobBehaviour::Meet) > 1);
}

#[test]
fn a_panic_ends_its_worker_only() {
    // A panicking job with its own jobs left to others; one that others wait for; one among three
    // workers.
    assert!(check(2, &[0], &[&[1, 2], &[], &[]], JobBehaviour::Panics(0)) > 1);
    assert!(check(2, &[0], &[&[1], &[]], JobBehaviour::Panics(1)) > 1);
    assert!(check(3, &[0], &[&[1], &[]], JobBehaviour::Panics(1)) > 1);
}
