//! The thread that holds writing programs: it stops them, and lets them go.
//!
//! Invariants: a hold ends
//! 1. after [`HOLD_MAX`];
//! 2. when its wish has ended ([`HoldWish::lasts`]);
//! 3. when a signal is pending for the process;
//! 4. at once when this process ends, because the kernel releases all processes that the thread
//!    traces.
//!
//! Never held: processes with locks that others wait for, processes that are already stopped or
//! traced, this process, its children, and process 1.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_kernel::Error;
use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::{ProcRoot, ProcessHolds};
use pagekeeper_policy::pacer::nanoseconds;
use pagekeeper_policy::stream_hold::{HOLD_GAP_MIN, HOLD_MAX, HoldCycle, HoldStep};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// A wish to hold a writer lasts for this long if it is not renewed. On a busy machine the
/// requester may be late by some hundred milliseconds, in which a program would write as many
/// megabytes.
pub(crate) const WRITER_WISH_AGE_MAX: Duration = Duration::from_secs(1);
/// The same for a reader.
pub(crate) const READER_WISH_AGE_MAX: Duration = Duration::from_millis(100);
/// Time between two checks for signals to a held process, and for threads that stop late.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A process that was not requested for this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of refusals that are kept until they are reported.
const REFUSALS_MAX: usize = 64;

/// A process that may be held, with its start time: a later process of the same number has another
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HoldTarget {
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
}

/// A process that is to be held after a time, unless the next wish comes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HoldWish {
    pub(crate) target: HoldTarget,
    pub(crate) after: Duration,
    /// Duration of the wish, counted from its beginning.
    pub(crate) lasts: Duration,
}

/// Wishes, and when they were made.
type MadeWishes = (Instant, Vec<HoldWish>);

/// The thread's reports.
#[derive(Default)]
struct HoldRecord {
    held_ns: AtomicU64,
    refused: Mutex<Vec<(HoldTarget, Error)>>,
}

/// The thread, once a process was to be held.
#[derive(Default)]
pub(crate) struct Holds {
    wishes: Option<Sender<MadeWishes>>,
    record: Arc<HoldRecord>,
    is_wishing: bool,
}

impl Holds {
    /// Requests that these processes be held, and no others. To be renewed in time.
    pub(crate) fn wish(&mut self, wishes: Vec<HoldWish>) {
        if wishes.is_empty() && !self.is_wishing {
            return;
        }
        self.is_wishing = !wishes.is_empty();
        if self.wishes.is_none() {
            if let Some(refusal) = wishes.first().and_then(|wish| refusal(wish.target)) {
                // Most writers never have to be held.
                let is_due = wishes.iter().any(|wish| wish.after.is_zero());
                return if is_due {
                    lock(&self.record.refused).push(refusal);
                };
            }
            self.wishes = start(Arc::clone(&self.record));
        }
        if let Some(sender) = &self.wishes {
            // The thread ends only with this value.
            let _ = sender.send((Instant::now(), wishes));
        }
    }

    /// Returns how long processes were held, all together.
    pub(crate) fn held(&self) -> Duration {
        Duration::from_nanos(self.record.held_ns.load(Ordering::Relaxed))
    }

    /// Returns the processes that could not be held since the last call.
    pub(crate) fn refused(&self) -> Vec<(HoldTarget, Error)> {
        std::mem::take(&mut *lock(&self.record.refused))
    }
}

/// Returns why no process may be held: without the capability to trace all processes, a held
/// program that executes a set-user-ID program would not get that program's privileges.
fn refusal(target: HoldTarget) -> Option<(HoldTarget, Error)> {
    let sets = rustix::thread::capabilities(None);
    let may_trace = sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    (!may_trace).then(|| (target, Error::call("ptrace (CAP_SYS_PTRACE)", Path::new("/proc"), Errno::PERM)))
}

/// Starts the thread. Returns `None` if no thread can be started: then no process is held.
fn start(record: Arc<HoldRecord>) -> Option<Sender<MadeWishes>> {
    let (sender, wishes) = channel();
    let run = move || hold_wished(&wishes, record);
    std::thread::Builder::new().name(ProcessHolds::THREAD_NAME.to_owned()).spawn(run).ok().map(|_| sender)
}

fn hold_wished(wishes: &Receiver<MadeWishes>, record: Arc<HoldRecord>) {
    ProcessHolds::run_first();
    let mut holder = Holder::new(record);
    loop {
        let received = match holder.go_on() {
            Some(pause) => wishes.recv_timeout(pause),
            None => wishes.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            // A later wish replaces an earlier one.
            Ok(received) => {
                let (made, newest) = wishes.try_iter().last().unwrap_or(received);
                holder.wish(made, &newest);
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The end of this thread ends all holds.
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// A process that was recently to be held.
struct Subject {
    target: HoldTarget,
    cycle: HoldCycle,
    wished_from: Duration,
    wished_until: Duration,
    /// The time since which it is stopped.
    stopped_at: Option<Duration>,
    is_refused: bool,
}

impl Subject {
    fn is_wished(&self, now: Duration) -> bool {
        (self.wished_from..self.wished_until).contains(&now) && !self.is_refused
    }

    /// Returns the time until it is to be held, unless it is now or never.
    fn time_to_wish(&self, now: Duration) -> Option<Duration> {
        let is_later = now < self.wished_from && self.wished_from < self.wished_until && !self.is_refused;
        is_later.then(|| self.wished_from.saturating_sub(now))
    }
}

struct Holder {
    proc: ProcRoot,
    holds: ProcessHolds,
    subjects: Vec<Subject>,
    started: Instant,
    record: Arc<HoldRecord>,
}

impl Holder {
    fn new(record: Arc<HoldRecord>) -> Self {
        let (proc, holds) = (ProcRoot::default(), ProcessHolds::new());
        Self { proc, holds, subjects: Vec::new(), started: Instant::now(), record }
    }

    fn wish(&mut self, made: Instant, wishes: &[HoldWish]) {
        let now = made.saturating_duration_since(self.started);
        for subject in &mut self.subjects {
            if !wishes.iter().any(|wish| wish.target == subject.target) {
                subject.wished_until = subject.wished_until.min(now);
            }
        }
        for HoldWish { target, after, lasts } in wishes {
            let wished_from = now + *after;
            let wished_until = wished_from + *lasts;
            match self.subjects.iter_mut().find(|subject| subject.target == *target) {
                Some(subject) => (subject.wished_from, subject.wished_until) = (wished_from, wished_until),
                None => self.subjects.push(Subject {
                    target: *target,
                    cycle: HoldCycle::default(),
                    wished_from,
                    wished_until,
                    stopped_at: None,
                    is_refused: false,
                }),
            }
        }
    }

    /// Does what is due now. Returns how long there is nothing to do unless a request comes; `None`
    /// forever: then no thread is traced that may stop or end, since its parent would wait for
    /// that.
    fn go_on(&mut self) -> Option<Duration> {
        self.holds.poll();
        let mut pause: Option<Duration> = None;
        let mut subjects = std::mem::take(&mut self.subjects);
        let begun = Instant::now();
        let mut done = 0;
        for subject in &mut subjects {
            let next = self.go_on_with(subject);
            pause = pause.into_iter().chain(next).min();
            done += 1;
            if begun.elapsed() >= POLL_INTERVAL {
                // Stopped processes are checked before others are stopped.
                pause = Some(HOLD_GAP_MIN);
                break;
            }
        }
        subjects.rotate_left(done);
        let now = self.started.elapsed();
        subjects
            .retain(|subject| subject.stopped_at.is_some() || now < subject.wished_until + FORGOTTEN_AFTER);
        self.subjects = subjects;
        pause.into_iter().chain((!self.holds.is_settled()).then_some(POLL_INTERVAL)).min()
    }

    fn go_on_with(&mut self, subject: &mut Subject) -> Option<Duration> {
        let pid = subject.target.pid;
        let now = self.started.elapsed();
        let is_wished = subject.is_wished(now);
        // The process must take its signals before it is held again. A process that has ended has
        // none.
        let has_signal = || self.holds.has_signal(pid) || self.proc.has_pending_signal(pid).unwrap_or(true);
        let is_wanted = is_wished && !has_signal();
        match subject.cycle.next(is_wanted, now) {
            HoldStep::Stop => {
                if self.may_be_held(subject.target) {
                    self.stop(subject, now);
                }
                Some(POLL_INTERVAL)
            }
            HoldStep::LetGo => {
                self.holds.let_go(pid);
                let held = subject
                    .stopped_at
                    .take()
                    .map_or(Duration::ZERO, |since| self.started.elapsed().saturating_sub(since));
                self.record.held_ns.fetch_add(nanoseconds(held), Ordering::Relaxed);
                is_wished.then_some(HOLD_GAP_MIN).or_else(|| subject.time_to_wish(now))
            }
            HoldStep::Wait(time) => Some(time.min(POLL_INTERVAL)),
            HoldStep::Rest => is_wished.then_some(POLL_INTERVAL).or_else(|| subject.time_to_wish(now)),
        }
    }

    fn stop(&mut self, subject: &mut Subject, now: Duration) {
        match self.holds.hold(subject.target.pid) {
            Ok(()) => subject.stopped_at = self.holds.is_held(subject.target.pid).then_some(now),
            Err(error) if error.is_gone() => {}
            // Another holder has its turn, which may end at once.
            Err(Error::Unsupported { .. }) => subject.cycle.not_held(now),
            Err(error) => {
                subject.is_refused = true;
                let mut refused = lock(&self.record.refused);
                if refused.len() < REFUSALS_MAX {
                    refused.push((subject.target, error));
                }
            }
        }
    }

    /// Returns whether only the program's own user waits longer if it is stopped for a moment.
    fn may_be_held(&self, HoldTarget { pid, start_time }: HoldTarget) -> bool {
        let own = self.proc.own_pid();
        let runs = self.proc.stat(pid).is_ok_and(|stat| {
            stat.start_time == start_time && stat.parent != own && !matches!(stat.state, 'T' | 'Z' | 'X')
        });
        let is_awaited =
            || self.proc.awaited_locks().map_or(true, |awaited| self.proc.is_awaited(pid, &awaited));
        pid != own && pid != 1 && runs && !(self.proc.may_have_locks(pid) && is_awaited())
    }
}

/// A hold by this holder ends within the 100 ms that the documentation promises.
const _: () = assert!(HOLD_MAX.as_millis() + POLL_INTERVAL.as_millis() < 100);

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// A deadline longer than anything takes on a busy machine.
    const FOLLOW_TIMEOUT: Duration = Duration::from_secs(60);

    /// A killed process belongs to its parent once its tracer has seen its end, so the holder never
    /// sleeps before that. A process with much memory takes some time to end.
    #[test]
    fn a_program_killed_while_held_is_left_to_its_parent() {
        let mut shell = Command::new("sh")
            .args(["-c", "dd if=/dev/zero of=/dev/null bs=256M 2>/dev/null & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (pid, proc) = (line.trim().parse().unwrap(), ProcRoot::default());
        let (sender, receiver) = channel();
        let holding = std::thread::spawn(move || {
            let mut holder = Holder::new(Arc::default());
            let target = HoldTarget { pid, start_time: proc.stat(pid).unwrap().start_time };
            let end = Instant::now() + FOLLOW_TIMEOUT;
            // Once all of its memory is there.
            std::thread::sleep(Duration::from_millis(300));
            while !holder.holds.is_held(pid) {
                assert!(Instant::now() < end, "{:?}", lock(&holder.record.refused));
                holder.wish(
                    Instant::now(),
                    &[HoldWish { target, after: Duration::ZERO, lasts: WRITER_WISH_AGE_MAX }],
                );
                holder.go_on();
            }
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            holder.wish(Instant::now(), &[]);
            while let Some(pause) = holder.go_on() {
                std::thread::sleep(pause);
                assert!(Instant::now() < end);
            }
            // Nothing wakes the thread any more.
            receiver.recv_timeout(FOLLOW_TIMEOUT)
        });
        let end = Instant::now() + FOLLOW_TIMEOUT / 2;
        while shell.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it is still its holder's");
            std::thread::sleep(Duration::from_millis(5));
        }
        sender.send(()).unwrap();
        assert_eq!(holding.join().unwrap(), Ok(()));
    }
}
