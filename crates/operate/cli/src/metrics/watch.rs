//! The thread that samples all files of the databases for metrics, and counts waits, at its own pace.
//!
//! Invariants: in the long run it never takes more than a fiftieth of one processor, and it samples every
//! [`SAMPLE_EVERY`] if that allows it. Visibility gaps are reported once, in the guard's own output. A failed
//! sample is counted, its figures are removed, and the next one is tried.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Profile;
use pagekeeper_guard::Options;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_observe::{ObserveError, Observer, ObserverOptions, Scope, Selects, Snapshot};
use pagekeeper_trace::TraceOptions;

use super::digest::Digest;
use super::state::MetricsState;

/// Time between samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// The next sample comes at least this many times the duration of the last one later.
const SHARE: u32 = 50;
/// Maximum time between samples.
const SAMPLE_EVERY_MAX: Duration = Duration::from_secs(5 * 60);
/// Maximum number of files kept: some 1 KiB each, of the 256 MiB that the service with metrics may use.
const MAX_FILES: usize = 100_000;
/// Maximum number of message kinds remembered.
const SENTENCES: usize = 200;

/// The scope of the samples.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    observer: ObserverOptions,
    /// Restricts the results to these, if both processes and directories were named.
    only: Option<(Vec<u32>, Vec<PathBuf>)>,
}

impl Wanted {
    /// Returns the same scope as the guard's.
    pub(super) fn of(options: &Options) -> Self {
        let (pids, directories) = (options.pids.clone(), options.directories.clone());
        let (scope, only) = match (pids.is_empty(), directories.is_empty()) {
            _ if options.find => (Scope::All, None),
            (false, true) => (Scope::Pids(pids), None),
            (true, false) => (Scope::Directories(directories), None),
            _ => (Scope::All, Some((pids, directories))),
        };
        // Pages are not traced: no metric uses them, and there are very many.
        let trace =
            TraceOptions { pages: false, entries: 4096, buffer_bytes: 4 << 20, ..TraceOptions::default() };
        let named = |profile: &&Profile| options.profile.as_ref().is_none_or(|name| profile.name == *name);
        let observer = ObserverOptions {
            profiles: options.profiles.iter().filter(named).cloned().collect(),
            scope,
            selects: selects(options),
            max_files: MAX_FILES,
            trace: Some(trace),
            ..ObserverOptions::default()
        };
        Self { observer, only }
    }

    /// Removes the databases that were not named.
    fn restrict(&self, snapshot: &mut Snapshot) {
        let Some((pids, directories)) = &self.only else {
            return;
        };
        let named: Vec<bool> = snapshot
            .databases
            .iter()
            .map(|database| {
                let below = |path: &PathBuf| directories.iter().any(|directory| path.starts_with(directory));
                database.pid.is_some_and(|pid| pids.contains(&pid)) || database.directories.iter().any(below)
            })
            .collect();
        let places: Vec<Option<usize>> = named
            .iter()
            .scan(0, |next, named| {
                let place = named.then_some(*next);
                *next += usize::from(*named);
                Some(place)
            })
            .collect();
        for file in &mut snapshot.files {
            file.database = file.database.and_then(|index| places.get(index).copied().flatten());
        }
        let mut named = named.into_iter();
        snapshot.databases.retain(|_| named.next().unwrap_or(false));
    }
}

/// Returns the filter by the guard's own lists.
fn selects(options: &Options) -> Selects {
    let (targets, proc) = (options.targets.clone(), ProcRoot::default());
    let (pids, directories) = (options.pids.clone(), options.directories.clone());
    Selects::new(move |pid, directory| {
        let named = pid.is_none_or(|pid| pids.contains(&pid))
            || directories.iter().any(|named| directory.starts_with(named));
        targets.watches(&proc, pid, directory, named)
    })
}

/// Samples until nobody wants it any more; `changes` delivers new scopes.
pub(super) fn watch(
    mut wanted: Wanted,
    top: usize,
    state: &Arc<MetricsState>,
    changes: &Receiver<Wanted>,
    said: &Sender<String>,
) {
    let mut sayings = Sayings { said, before: BTreeSet::new() };
    loop {
        let ended = match Observer::start(wanted.observer.clone()) {
            Ok(mut observer) => look_on(&mut observer, &wanted, top, state, changes, &mut sayings),
            Err(error) => {
                state.failed();
                sayings.fail(&error);
                wait(SAMPLE_EVERY_MAX, changes)
            }
        };
        match ended {
            Next::Again => {}
            Next::Changed(new) => wanted = *new,
            Next::End => return,
        }
    }
}

/// The event that ends a wait.
enum Next {
    Again,
    Changed(Box<Wanted>),
    End,
}

fn wait(pause: Duration, changes: &Receiver<Wanted>) -> Next {
    match changes.recv_timeout(pause) {
        Ok(wanted) => Next::Changed(Box::new(wanted)),
        Err(RecvTimeoutError::Timeout) => Next::Again,
        Err(RecvTimeoutError::Disconnected) => Next::End,
    }
}

fn look_on(
    observer: &mut Observer,
    wanted: &Wanted,
    top: usize,
    state: &MetricsState,
    changes: &Receiver<Wanted>,
    sayings: &mut Sayings<'_>,
) -> Next {
    let level = observer.source().map(pagekeeper_trace::TraceSource::level);
    loop {
        let began = Instant::now();
        match observer.snapshot() {
            Ok(mut snapshot) => {
                wanted.restrict(&mut snapshot);
                snapshot.visibility_gaps.retain(|gap| metrics_lack(&gap.what));
                let digest = Digest::of(&snapshot, &wanted.observer.roots.proc, top);
                drop(snapshot);
                for gap in &digest.visibility_gaps {
                    // The kind of the gap; after it come an example and a count, which change.
                    let kind = gap.what.split(':').next().unwrap_or_default();
                    sayings.say(kind, super::sentence(gap));
                }
                state.files_sampled(digest, began.elapsed(), level);
            }
            Err(error) => {
                state.failed();
                sayings.fail(&error);
            }
        }
        match wait(pause_after(began.elapsed()), changes) {
            Next::Again => {}
            next => return next,
        }
    }
}

/// Whether a metric is missing because of that gap: no metric shows what is dirty on each device.
fn metrics_lack(what: &str) -> bool {
    !what.starts_with("how much is dirty on each device")
}

fn pause_after(took: Duration) -> Duration {
    SAMPLE_EVERY.saturating_sub(took).max(took.saturating_mul(SHARE)).min(SAMPLE_EVERY_MAX)
}

/// Reports a message of each kind once.
struct Sayings<'a> {
    said: &'a Sender<String>,
    before: BTreeSet<String>,
}

impl Sayings<'_> {
    fn say(&mut self, kind: &str, sentence: String) {
        if self.before.len() < SENTENCES && self.before.insert(kind.to_owned()) {
            // The receiver may be gone.
            let _ = self.said.send(sentence);
        }
    }

    fn fail(&mut self, error: &ObserveError) {
        let sentence = format!("databases can't be sampled for metrics: {error}");
        self.say(&sentence.clone(), sentence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_samples_what_the_guard_watches() {
        let options = |find, pids: &[u32], directories: &[&str]| Options {
            find,
            pids: pids.to_vec(),
            directories: directories.iter().map(PathBuf::from).collect(),
            ..Options::default()
        };
        let scope = |options: &Options| Wanted::of(options).observer.scope;
        assert_eq!(scope(&options(true, &[], &["/a"])), Scope::All);
        assert_eq!(scope(&options(false, &[7], &[])), Scope::Pids(vec![7]));
        assert_eq!(scope(&options(false, &[], &["/a"])), Scope::Directories(vec!["/a".into()]));
        let generic = Options { profile: Some("generic".to_owned()), ..Options::default() };
        let profiles = Wanted::of(&generic).observer.profiles;
        assert_eq!(profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>(), ["generic"]);
        let both = Wanted::of(&options(false, &[7], &["/a"]));
        assert_eq!((both.observer.scope, both.only), (Scope::All, Some((vec![7], vec!["/a".into()]))));
    }

    #[test]
    fn what_is_never_to_be_watched_is_not_sampled() {
        let targets = |only: &[&str], never: &[&str]| pagekeeper_guard::Targets {
            only: only.iter().map(|text| text.parse().unwrap()).collect(),
            never: never.iter().map(|text| text.parse().unwrap()).collect(),
            canary: None,
        };
        let own = std::process::id();
        for (only, never, directory, found, named) in [
            (&[][..], &[][..], "/d", true, true),
            (&[], &["dir:/d"], "/d/below", false, false),
            (&[], &["dir:/d"], "/e", true, true),
            (&["dir:/d"], &[], "/d", true, true),
            (&["dir:/d"], &[], "/e", false, true),
        ] {
            let samples = |find: bool| {
                let pids = if find { Vec::new() } else { vec![own] };
                let options = Options { find, pids, targets: targets(only, never), ..Options::default() };
                Wanted::of(&options).observer.selects.selects(Some(own), directory.as_ref())
            };
            assert_eq!((samples(true), samples(false)), (found, named), "{only:?} {never:?} {directory}");
        }
    }

    #[test]
    fn dear_samples_are_taken_seldom() {
        for (took, pause) in [(0, 5000), (20, 4980), (1000, 50_000), (60_000, 300_000)] {
            assert_eq!(pause_after(Duration::from_millis(took)), Duration::from_millis(pause));
        }
    }

    #[test]
    fn each_kind_of_thing_is_said_once() {
        let (said, heard) = std::sync::mpsc::channel();
        let mut sayings = Sayings { said: &said, before: BTreeSet::new() };
        for (kind, sentence) in [("a", "a: 1"), ("b", "b: 1"), ("a", "a: 2")] {
            sayings.say(kind, sentence.to_owned());
        }
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["a: 1", "b: 1"]);
    }
}
