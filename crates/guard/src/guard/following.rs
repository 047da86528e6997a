//! Following streams where a file system may hang: the pass over each is a job that takes it along and brings it back.
//!
//! A stream whose pass does not come back is *hung*: it is away, all others are followed, and once the pass comes back it is
//! followed again. Streams that were last seen to have a file on the device that it hangs at are left alone until then.
//! Streaming processes are found by their names in the loop's own thread, which reads `/proc` alone for that.
//!
//! A stream's owner may be hostile, too: thousands of processes that are called as a backup, or one with as many files. Each has
//! an account of processor time, and each user so many places; what is over it is followed more slowly, or not at all.
//!
//! Invariants: a stream has at most one pass at a time; while [`MOST_HUNG`] of its user hang no pass over a stream begins.
//! What hangs is reported with seconds. Where no thread can be had, streams are not followed. No more than [`STREAMS`] are.
//! In the long run they take no more than [`STREAM_TIME`], beside what releasing earns.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::hang::Crew;

use super::report::Report;
use super::silence::{PATIENCE, Silence, are_too_many};
use super::watched::Watched;
use crate::budget::{Credit, Purse, STREAM_TIME, STREAMS};
use crate::config::Settings;
use crate::event::Event;
use crate::streams::{Finder, Pass, Stream, StreamPlace, StreamSetting};

/// Hung streams of one user from which on no stream of that user is followed, and of all together.
const MOST_HUNG: (usize, usize) = (8, 32);
/// Programs that are counted by name; those beyond are counted together.
const MAX_NAMES: usize = 64;

/// Passes that a stream has had to wait for time before that is reported.
const WAITED: u32 = 8;

/// Where one more stream can be followed.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// In the place of one of these, who have most.
    Of(Party),
    None,
}

/// The place for one of `party` beside those that are followed.
fn place_for(party: Party, followed: impl Iterator<Item = Party>) -> Place {
    let (of_party, of_all) = STREAMS;
    let mut counts: BTreeMap<Party, usize> = BTreeMap::new();
    followed.for_each(|party| *counts.entry(party).or_default() += 1);
    let own = counts.get(&party).copied().unwrap_or(0);
    let most = counts.iter().max_by_key(|(_, count)| **count);
    match most {
        _ if own >= of_party => Place::None,
        _ if counts.values().sum::<usize>() < of_all => Place::Free,
        Some((most, count)) if *count > own + 1 => Place::Of(*most),
        Some(_) | None => Place::None,
    }
}

/// A stream that is here.
struct Followed {
    stream: Stream,
    credit: Credit,
    /// Passes since it last had time.
    waited: u32,
}

/// A stream whose pass has not come back.
struct Hung {
    credit: Credit,
    pid: u32,
    program: String,
    party: Party,
    place: StreamPlace,
    /// Where it was when it was reported.
    path: PathBuf,
    silence: Silence,
    back: Receiver<(Stream, Pass)>,
}

/// The streams, and the passes that are under way.
pub(super) struct Following {
    crew: Crew,
    finder: Finder,
    streams: Vec<Followed>,
    hung: Vec<Hung>,
    purse: Purse,
    due: Instant,
    released: BTreeMap<String, u64>,
    kept: u64,
}

impl Following {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            crew: Crew::default(),
            finder: Finder::new(now),
            streams: Vec::new(),
            hung: Vec::new(),
            purse: Purse::new(STREAM_TIME, now),
            due: now,
            released: BTreeMap::new(),
            kept: 0,
        }
    }

    /// Reads the names of all processes again at the next pass.
    pub(super) fn forget_names(&mut self, now: Instant) {
        self.finder = Finder::new(now);
    }

    /// The time until the next pass.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Released so far, in bytes, by program.
    pub(super) fn released(&self) -> &BTreeMap<String, u64> {
        &self.released
    }

    /// What resisted at the time so far, in bytes.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// Samples all streams once, and acts, if it is time for that.
    pub(super) fn follow(&mut self, watched: &Watched, settings: &Settings, report: &mut Report) {
        let began = Instant::now();
        if began < self.due {
            return;
        }
        self.take_back(report);
        self.find(watched, settings, report, began);
        if !self.streams.is_empty() {
            self.pass_over_all(watched, settings, report);
        }
        let is_busy = !self.streams.is_empty() || !self.hung.is_empty();
        let next = began + settings.options.streams.tick;
        self.due = if is_busy { next } else { next.max(self.finder.due()) };
    }

    /// Takes up streams that are not known yet.
    fn find(&mut self, watched: &Watched, settings: &Settings, report: &mut Report, now: Instant) {
        let is_known = |pid| {
            self.streams.iter().any(|Followed { stream, .. }| stream.pid() == pid && stream.runs())
                || self.hung.iter().any(|hung| hung.pid == pid)
        };
        match self.finder.find(&watched.proc, &settings.options.streams, is_known, now) {
            Ok(found) => found.into_iter().for_each(|stream| self.take_up(stream, watched, report)),
            Err(error) => report.problem(error.path().to_path_buf(), &error),
        }
    }

    /// Takes up one stream, if there is a place for it, or another user has more of them.
    fn take_up(&mut self, stream: Stream, watched: &Watched, report: &mut Report) {
        let here = self.streams.iter().map(|followed| followed.stream.party());
        let parties = here.chain(self.hung.iter().map(|hung| hung.party));
        let place = place_for(stream.party(), parties);
        if place != Place::Free {
            let problem = "more streaming programs than the guard follows of one user, or of all: some are not followed";
            report.problem(watched.proc.path().to_path_buf(), &problem);
        }
        if let Place::Of(party) = place {
            let last = self.streams.iter().rposition(|followed| followed.stream.party() == party);
            // What hangs can't be let go.
            let Some(last) = last else { return };
            self.streams.remove(last);
        }
        if place != Place::None {
            self.streams.push(Followed { stream, credit: self.purse.open(), waited: 0 });
        }
    }

    /// Has each stream followed once, but for those that would hang.
    fn pass_over_all(&mut self, watched: &Watched, settings: &Settings, report: &mut Report) {
        let databases = watched.databases.iter();
        let setting = Arc::new(StreamSetting {
            proc: watched.proc.clone(),
            tick: settings.options.streams.tick,
            dry_run: settings.options.dry_run,
            targets: settings.options.targets.clone(),
            databases: databases.map(|database| (database.pid, Arc::clone(&database.profile))).collect(),
        });
        let credits = self.streams.iter_mut().map(|followed| (followed.stream.party(), &mut followed.credit));
        self.purse.fill(credits, Instant::now());
        for mut followed in std::mem::take(&mut self.streams) {
            let stream = &followed.stream;
            if followed.credit.slice(Duration::ZERO).is_none() {
                followed.waited += 1;
                if followed.waited == WAITED {
                    let problem = "the files of a streaming program take more time than the guard gives to one, or to those of one user: it is followed more slowly";
                    report.problem(watched.proc.path().to_path_buf(), &problem);
                }
                self.streams.push(followed);
                continue;
            }
            followed.waited = 0;
            if !self.crew.is_ready() {
                let problem =
                    "no thread can be started (RLIMIT_NPROC, TasksMax or memory): streams are not followed";
                report.problem(watched.proc.path().to_path_buf(), &problem);
                self.streams.push(followed);
                continue;
            }
            let parties = self.hung.iter().map(|hung| hung.party);
            if are_too_many(parties, stream.party(), MOST_HUNG) {
                let problem = "too many streaming programs do not answer: no other of that user is followed until one does";
                report.problem(watched.proc.path().to_path_buf(), &problem);
                self.streams.push(followed);
                continue;
            }
            let mut devices = self.hung.iter().filter_map(|hung| hung.place.get()?.1);
            if devices.any(|dev| stream.is_on(dev)) {
                self.streams.push(followed);
                continue;
            }
            self.pass_over(followed, &setting, report);
        }
    }

    /// Has one stream followed.
    fn pass_over(&mut self, followed: Followed, setting: &Arc<StreamSetting>, report: &mut Report) {
        let Followed { mut stream, credit, .. } = followed;
        let (pid, program, party) = (stream.pid(), stream.name().to_owned(), stream.party());
        let (place, since) = (StreamPlace::default(), Instant::now());
        let (of_pass, setting_of_pass) = (place.clone(), Arc::clone(setting));
        let outcome = self.crew.run(PATIENCE, move || {
            let pass = stream.follow(&setting_of_pass, &of_pass);
            (stream, pass)
        });
        match outcome {
            Ok((stream, pass)) => self.passed(stream, credit, pass, report),
            Err(back) => {
                let (path, silence) = (setting.proc.root(pid), Silence::new(since));
                self.hung.push(Hung { credit, pid, program, party, place, path, silence, back });
            }
        }
    }

    /// Takes back the streams that answer again, and reports those that do not.
    fn take_back(&mut self, report: &mut Report) {
        for mut hung in std::mem::take(&mut self.hung) {
            match hung.back.try_recv() {
                Ok((stream, pass)) => {
                    if hung.silence.was_reported() {
                        report.events.push(Event::Answers {
                            pid: Some(hung.pid),
                            profile: None,
                            program: Some(hung.program),
                            path: hung.path,
                            seconds: hung.silence.time().as_secs_f64(),
                        });
                    }
                    self.passed(stream, hung.credit, pass, report);
                }
                // Its process is found again.
                Err(TryRecvError::Disconnected) => {
                    let problem = "the guard failed at its files: it is examined anew";
                    report.problem(hung.path, &problem);
                }
                Err(TryRecvError::Empty) => {
                    if hung.silence.is_due() {
                        if let Some((path, _)) = hung.place.get() {
                            hung.path = path;
                        }
                        report.events.push(Event::Hung {
                            pid: Some(hung.pid),
                            profile: None,
                            program: Some(hung.program.clone()),
                            path: hung.path.clone(),
                            seconds: hung.silence.time().as_secs_f64(),
                        });
                    }
                    self.hung.push(hung);
                }
            }
        }
    }

    /// Takes in what came of a pass.
    fn passed(&mut self, stream: Stream, mut credit: Credit, pass: Pass, report: &mut Report) {
        let Pass { released, kept, events, problems, ended, cpu } = pass;
        credit.spend(self.purse.unpaid(cpu, released));
        if released > 0 {
            let name = stream.name();
            let is_counted = self.released.contains_key(name) || self.released.len() < MAX_NAMES;
            let name = if is_counted { name } else { "other" };
            *self.released.entry(name.to_owned()).or_default() += released;
        }
        self.kept += kept;
        report.events.extend(events);
        for (path, problem) in problems {
            report.problem(path, &problem);
        }
        report.behind_streams(released);
        if !ended {
            self.streams.push(Followed { stream, credit, waited: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_places_of_streams_gives_some_to_others() {
        let (of_party, of_all) = STREAMS;
        let full = |user: u32| std::iter::repeat_n(Party::User(user), of_party);
        let users = u32::try_from(of_all / of_party).unwrap();
        let mut followed: Vec<Party> = (1..=users).flat_map(full).collect();
        assert_eq!(place_for(Party::User(1), full(1)), Place::None);
        assert_eq!(place_for(Party::User(2), full(1)), Place::Free);
        // Who comes late gets as many as the others, and no more.
        let late = Party::Container(7);
        while let Place::Of(most) = place_for(late, followed.iter().copied()) {
            let last = followed.iter().rposition(|party| *party == most).unwrap();
            followed[last] = late;
        }
        let count = |party: Party| followed.iter().filter(|other| **other == party).count();
        assert_eq!(followed.len(), of_all);
        assert!(count(late) >= of_all / 5 && (1..=users).all(|user| count(Party::User(user)) >= of_all / 5));
        assert_eq!(place_for(Party::User(1), followed.iter().copied()), Place::None);
    }
}
