//! The thread that samples all files of the databases for metrics, and counts waits, at its own
//! pace.
//!
//! Invariants: in the long run it never takes more than a fiftieth of one processor, and it samples
//! every [`SAMPLE_INTERVAL`] if that allows it. Visibility gaps are reported once, in the guard's
//! own output. A failed sample is counted, its figures are removed, and the next one is tried.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Profile;
use pagekeeper_guard::Options;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_observe::{DirectoryFilter, ObserveError, Observer, ObserverOptions, ObserverScope, Snapshot};
use pagekeeper_trace::{TraceLevel, TraceOptions, TraceSource};

use crate::digest::SampleDigest;
use crate::state::MetricsState;

/// Time between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after a sample is at least this many times its duration.
const PAUSE_RATIO: u32 = 50;
/// Maximum time between samples.
const SAMPLE_INTERVAL_MAX: Duration = Duration::from_secs(5 * 60);
/// Maximum number of files kept: some 1 KiB each, of the 256 MiB that the service with metrics may
/// use.
const FILES_MAX: usize = 100_000;
/// Maximum number of message kinds remembered.
const MESSAGE_KINDS_MAX: usize = 200;

/// The scope of the samples.
#[derive(Debug, Clone)]
pub(crate) struct SampleScope {
    observer: ObserverOptions,
    /// Restricts the results to these, if both processes and directories were named.
    only: Option<(Vec<u32>, Vec<PathBuf>)>,
}

impl SampleScope {
    /// Returns the same scope as the guard's.
    pub(crate) fn of(options: &Options) -> Self {
        let (pids, directories) = (options.pids.clone(), options.directories.clone());
        let (scope, only) = match (pids.is_empty(), directories.is_empty()) {
            _ if options.find => (ObserverScope::All, None),
            (false, true) => (ObserverScope::Pids(pids), None),
            (true, false) => (ObserverScope::Directories(directories), None),
            _ => (ObserverScope::All, Some((pids, directories))),
        };
        // Pages are not traced: no metric uses them, and there are very many.
        let trace = TraceOptions { pages: false, entries: 4096, ..TraceOptions::default() };
        let is_named = |profile: &&Profile| options.profile.as_ref().is_none_or(|name| profile.name == *name);
        let observer = ObserverOptions {
            profiles: options.profiles.iter().filter(is_named).cloned().collect(),
            scope,
            selects: selects(options),
            max_files: FILES_MAX,
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
        let is_below = |path: &PathBuf| directories.iter().any(|directory| path.starts_with(directory));
        let mut next = 0..;
        let places: Vec<Option<usize>> = snapshot
            .databases
            .iter()
            .map(|database| {
                database.pid.is_some_and(|pid| pids.contains(&pid))
                    || database.directories.iter().any(is_below)
            })
            .map(|is_named| if is_named { next.next() } else { None })
            .collect();
        for file in &mut snapshot.files {
            file.database = file.database.and_then(|index| places.get(index).copied().flatten());
        }
        let mut places = places.into_iter();
        snapshot.databases.retain(|_| places.next().flatten().is_some());
    }
}

/// Returns the filter by the guard's own lists.
fn selects(options: &Options) -> DirectoryFilter {
    let (targets, proc) = (options.targets.clone(), ProcRoot::default());
    let (pids, directories) = (options.pids.clone(), options.directories.clone());
    DirectoryFilter::new(move |pid, directory| {
        let named = pid.is_none_or(|pid| pids.contains(&pid))
            || directories.iter().any(|named| directory.starts_with(named));
        targets.watches(&proc, pid, directory, named)
    })
}

/// Samples until the sender of `scopes` is dropped; `scopes` delivers new scopes, `reports` takes
/// sentences.
pub(crate) fn watch(
    scope: SampleScope,
    top: usize,
    state: &MetricsState,
    scopes: &Receiver<SampleScope>,
    reports: &Sender<String>,
) {
    let mut sampler = Sampler { scope, top, state, scopes, reports: OncePerKind::new(reports) };
    while let Some(scope) = sampler.sample_until_change() {
        sampler.scope = scope;
    }
}

/// The thread's state.
struct Sampler<'a> {
    scope: SampleScope,
    top: usize,
    state: &'a MetricsState,
    scopes: &'a Receiver<SampleScope>,
    reports: OncePerKind<'a>,
}

impl Sampler<'_> {
    /// Samples until there is a new scope, and returns it; `None` if the sender was dropped.
    fn sample_until_change(&mut self) -> Option<SampleScope> {
        let mut observer = None;
        loop {
            let began = Instant::now();
            if observer.is_none() {
                observer = self.report_failure(Observer::start(self.scope.observer.clone()));
            }
            if let Some(snapshot) =
                observer.as_mut().and_then(|observer| self.report_failure(observer.snapshot()))
            {
                let level = observer.as_ref().and_then(Observer::source).map(TraceSource::level);
                self.record_snapshot(snapshot, began, level);
            }
            let pause = if observer.is_some() { pause_after(began.elapsed()) } else { SAMPLE_INTERVAL_MAX };
            match self.scopes.recv_timeout(pause) {
                Ok(scope) => return Some(scope),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn record_snapshot(&mut self, mut snapshot: Snapshot, began: Instant, level: Option<TraceLevel>) {
        self.scope.restrict(&mut snapshot);
        snapshot.visibility_gaps.retain(|gap| is_of_a_metric(&gap.what));
        let digest = SampleDigest::of(&snapshot, &self.scope.observer.roots.proc, self.top);
        for (gap, sentence) in snapshot.visibility_gaps.iter().zip(&digest.visibility_gaps) {
            // The kind of the gap; after it come an example and a count, which change.
            let kind = gap.what.split(':').next().unwrap_or_default();
            self.reports.report(kind, sentence);
        }
        drop(snapshot);
        self.state.files_sampled(digest, began.elapsed(), level);
    }

    /// Returns a success. Counts and reports a failure.
    fn report_failure<T>(&mut self, result: Result<T, ObserveError>) -> Option<T> {
        let report = |error: ObserveError| {
            self.state.failed();
            let sentence = format!("databases can't be sampled for metrics: {error}");
            self.reports.report(&sentence, &sentence);
        };
        result.map_err(report).ok()
    }
}

/// Whether a metric lacks values because of a gap. The dirty bytes of each device are in no metric.
fn is_of_a_metric(what: &str) -> bool {
    !what.starts_with("the dirty bytes of each device")
}

fn pause_after(took: Duration) -> Duration {
    SAMPLE_INTERVAL.saturating_sub(took).max(took.saturating_mul(PAUSE_RATIO)).min(SAMPLE_INTERVAL_MAX)
}

/// Reports a sentence of each kind once.
struct OncePerKind<'a> {
    reports: &'a Sender<String>,
    kinds: BTreeSet<String>,
}

impl<'a> OncePerKind<'a> {
    fn new(reports: &'a Sender<String>) -> Self {
        Self { reports, kinds: BTreeSet::new() }
    }

    fn report(&mut self, kind: &str, sentence: &str) {
        if self.kinds.len() < MESSAGE_KINDS_MAX && self.kinds.insert(kind.to_owned()) {
            // The receiver may be gone.
            let _ = self.reports.send(sentence.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_databases_of_the_guard_are_sampled() {
        let options = |find, pids: &[u32], directories: &[&str]| Options {
            find,
            pids: pids.to_vec(),
            directories: directories.iter().map(PathBuf::from).collect(),
            ..Options::default()
        };
        let scope = |options: &Options| SampleScope::of(options).observer.scope;
        assert_eq!(scope(&options(true, &[], &["/a"])), ObserverScope::All);
        assert_eq!(scope(&options(false, &[7], &[])), ObserverScope::Pids(vec![7]));
        assert_eq!(scope(&options(false, &[], &["/a"])), ObserverScope::Directories(vec!["/a".into()]));
        let generic = Options { profile: Some("generic".to_owned()), ..Options::default() };
        let profiles = SampleScope::of(&generic).observer.profiles;
        assert_eq!(profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>(), ["generic"]);
        let both = SampleScope::of(&options(false, &[7], &["/a"]));
        assert_eq!(
            (both.observer.scope, both.only),
            (ObserverScope::All, Some((vec![7], vec!["/a".into()])))
        );
    }

    #[test]
    fn databases_excluded_from_watching_are_not_sampled() {
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
                SampleScope::of(&options).observer.selects.selects(Some(own), directory.as_ref())
            };
            assert_eq!((samples(true), samples(false)), (found, named), "{only:?} {never:?} {directory}");
        }
    }

    #[test]
    fn expensive_samples_are_taken_rarely() {
        for (took, pause) in [(0, 5000), (20, 4980), (1000, 50_000), (60_000, 300_000)] {
            assert_eq!(pause_after(Duration::from_millis(took)), Duration::from_millis(pause));
        }
    }

    #[test]
    fn each_kind_of_message_is_printed_once() {
        let (reports, heard) = std::sync::mpsc::channel();
        let mut once = OncePerKind::new(&reports);
        for (kind, sentence) in [("a", "a: 1"), ("b", "b: 1"), ("a", "a: 2")] {
            once.report(kind, sentence);
        }
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["a: 1", "b: 1"]);
    }
}
