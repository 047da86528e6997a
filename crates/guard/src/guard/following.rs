//! Following streams where a file system may hang: each pass is a job that takes the streams along and brings them back.
//!
//! While a pass does not come back no stream is followed, and nothing else waits for it: neither the databases nor the end of
//! the guard. It is reported once it has taken [`REPORTED`]. Where no thread can be had, streams are not followed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pagekeeper_kernel::hang::Crew;

use super::report::Report;
use super::watched::Watched;
use crate::config::Settings;
use crate::event::Event;
use crate::streams::{StreamContext, StreamWatch};

/// How long a tick waits for a pass.
const PATIENCE: Duration = Duration::from_secs(2);
/// From when on it is reported that it does not come back.
const REPORTED: Duration = Duration::from_secs(5);

/// What comes back of a pass.
struct Passed {
    streams: StreamWatch,
    released: u64,
    events: Vec<Event>,
    problems: Vec<(PathBuf, String)>,
}

/// The streams, and the pass that is under way.
pub(super) struct Following {
    crew: Crew,
    /// None while a pass does not come back, since when.
    streams: Result<Box<StreamWatch>, (Receiver<Passed>, Instant)>,
    /// Whether the names of all processes are to be read again.
    names_anew: bool,
    released: BTreeMap<String, u64>,
    kept: u64,
}

impl Following {
    pub(super) fn new(now: Instant) -> Self {
        let streams = Ok(Box::new(StreamWatch::new(now)));
        Self { crew: Crew::default(), streams, names_anew: false, released: BTreeMap::new(), kept: 0 }
    }

    /// Reads the names of all processes again at the next pass.
    pub(super) fn forget_names(&mut self) {
        self.names_anew = true;
    }

    /// The time until the next pass; as long as one does not come back, that of a tick.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        self.streams.as_ref().map_or(Duration::MAX, |streams| streams.pause(now))
    }

    /// Released so far, in bytes, by program.
    pub(super) fn released(&self) -> &BTreeMap<String, u64> {
        &self.released
    }

    /// What resisted at the time so far, in bytes.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// Samples all streams once, and acts.
    pub(super) fn follow(&mut self, watched: &Watched, settings: &Settings, report: &mut Report) {
        let now = Instant::now();
        if let Err((pass, since)) = &self.streams {
            match pass.try_recv() {
                Ok(passed) => self.take_back(passed, report),
                Err(TryRecvError::Disconnected) => self.streams = Ok(Box::new(StreamWatch::new(now))),
                Err(TryRecvError::Empty) => {
                    if since.elapsed() >= REPORTED {
                        let problem = "a file of a streaming program does not answer: no stream is followed until it does";
                        report.problem(watched.proc.path().to_path_buf(), &problem);
                    }
                    return;
                }
            }
        }
        if !self.crew.is_ready() {
            let problem =
                "no thread can be started (RLIMIT_NPROC, TasksMax or memory): streams are not followed";
            report.problem(watched.proc.path().to_path_buf(), &problem);
            return;
        }
        let streams = std::mem::replace(&mut self.streams, Ok(Box::new(StreamWatch::new(now))));
        let Ok(mut streams) = streams else { return };
        if std::mem::take(&mut self.names_anew) {
            streams.forget_names(now);
        }
        let databases = watched.databases.iter();
        let databases: Vec<_> =
            databases.map(|database| (database.pid, Arc::clone(&database.profile))).collect();
        let (proc, options) = (watched.proc.clone(), &settings.options);
        let (of_streams, targets, dry_run) =
            (options.streams.clone(), options.targets.clone(), options.dry_run);
        let pass = self.crew.run(PATIENCE, move || {
            let (mut events, mut problems) = (Vec::new(), Vec::new());
            let released = streams.follow(&mut StreamContext {
                proc: &proc,
                options: &of_streams,
                dry_run,
                targets: &targets,
                databases: &databases,
                events: &mut events,
                problems: &mut problems,
            });
            Passed { streams: *streams, released, events, problems }
        });
        match pass {
            Ok(passed) => self.take_back(passed, report),
            Err(pass) => self.streams = Err((pass, now)),
        }
    }

    fn take_back(&mut self, passed: Passed, report: &mut Report) {
        let Passed { streams, released, events, problems } = passed;
        self.released.clone_from(streams.released());
        self.kept = streams.kept();
        self.streams = Ok(Box::new(streams));
        report.events.extend(events);
        for (path, problem) in problems {
            report.problem(path, &problem);
        }
        report.behind_streams(released);
    }
}
