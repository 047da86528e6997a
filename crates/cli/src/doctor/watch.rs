//! The time between the two snapshots: the guard's own rules are asked, without doing anything, what they would release.
//!
//! Invariants: nothing is released or written; the rules see several samples, since the place of a writer that shows no
//! position is inferred from how its file changes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use pagekeeper_doctor::Releasable;
use pagekeeper_guard::{Action, Decision, Guard, Options};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Inode, InspectedFile, Links, residency};
use pagekeeper_observe::{File, Snapshot};
use pagekeeper_policy::FileClass;
use pagekeeper_policy::ranges::append;

use super::Args;
use crate::signals::Stop;

/// How often the rules are asked.
const TICK: Duration = Duration::from_millis(500);

/// What the guard's rules said while watching.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The files that they were asked about.
    asked: HashSet<Inode>,
    /// What they would release, by file.
    ranges: HashMap<Inode, Vec<Range<u64>>>,
    /// Why they keep a log, by the path of one of its files.
    pub(super) kept: Vec<(PathBuf, String)>,
}

/// Watches for as long as was asked, or until a signal.
pub(super) fn watch(args: &Args, before: &Snapshot, stop: &Stop) -> anyhow::Result<Judged> {
    let options = Options {
        find: false,
        pids: before.databases.iter().filter_map(|database| database.pid).collect(),
        directories: left_directories(before),
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).context("ask the guard's rules")?;
    let mut judged = Judged::default();
    let mut progress = Progress::new(before, args.watch);
    let began = Instant::now();
    let waited = loop {
        let decision = guard.decide(&mut |_| {});
        judged.add(decision, guard.watched_files());
        let left = args.watch.saturating_sub(began.elapsed());
        progress.show(began.elapsed());
        // To the end of the watch rather than into a sample that would come after it.
        let is_last = left <= 2 * TICK;
        match stop.wait(if is_last { left } else { TICK }) {
            Ok(false) if !is_last => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    progress.clear();
    waited.context("wait")?;
    Ok(judged)
}

/// Where the logs are of databases that do not run.
fn left_directories(snapshot: &Snapshot) -> Vec<PathBuf> {
    let rests = |file: &&File| {
        let database = file.database.and_then(|index| snapshot.databases.get(index));
        is_log(file) && database.is_some_and(|database| database.pid.is_none())
    };
    let directories = snapshot.files.iter().filter(rests).filter_map(|file| file.path.parent());
    let directories: BTreeSet<&Path> = directories.collect();
    directories.into_iter().map(Path::to_path_buf).collect()
}

fn is_log(file: &File) -> bool {
    file.class.is_some_and(FileClass::is_log)
}

impl Judged {
    fn add(&mut self, decision: Decision, asked: impl Iterator<Item = Inode>) {
        self.asked.extend(asked);
        for act in decision.acts {
            match act.action {
                // Dirty pages are to be written first, and released then.
                Action::StartWriteback | Action::Release => {
                    self.ranges.entry(act.inode).or_default().push(act.range);
                }
            }
        }
        self.kept.extend(decision.warnings.into_iter().map(|warning| (warning.path, warning.text)));
    }

    /// How much of each log is resident that the rules would release. A file that can't be read is left out.
    pub(super) fn releasable(&self, snapshot: &Snapshot) -> Vec<Releasable> {
        let asked = |file: &&File| is_log(file) && self.asked.contains(&file.inode);
        let releasable = |file: &File| {
            let ranges = self.ranges.get(&file.inode).map_or(&[][..], Vec::as_slice);
            Some(Releasable { file: file.inode, resident: resident(&file.reach, ranges)? })
        };
        snapshot.files.iter().filter(asked).filter_map(releasable).collect()
    }
}

/// Bytes resident in any of the ranges; `None` if that can't be seen.
fn resident(path: &Path, ranges: &[Range<u64>]) -> Option<u64> {
    if ranges.is_empty() {
        return Some(0);
    }
    let file = InspectedFile::open(path, Links::Follow).ok()?;
    let sizes = joined(ranges).into_iter().map(|range| Some(residency(&file, range).ok()?.resident));
    sizes.sum()
}

/// The same bytes in ranges that ascend and don't overlap.
fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut ranges = ranges.to_vec();
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        append(&mut joined, range, 0);
    }
    joined
}

/// One line on standard error while watching, if that is a terminal.
struct Progress {
    shown: bool,
    whom: String,
    length: Duration,
}

impl Progress {
    fn new(before: &Snapshot, length: Duration) -> Self {
        let whom = match before.databases.as_slice() {
            [] => "this host".to_owned(),
            [one] => pagekeeper_doctor::called(one),
            many => format!("{} databases", many.len()),
        };
        Self { shown: io::stderr().is_terminal(), whom, length }
    }

    fn show(&mut self, elapsed: Duration) {
        if self.shown {
            let (at, of) = (elapsed.as_secs_f64(), self.length.as_secs_f64());
            // Progress that can't be shown is no failure.
            let _ =
                write!(io::stderr(), "\r\x1b[Kwatching {}: {at:.0} of {of:.0} s, Ctrl-C ends it", self.whom);
        }
    }

    fn clear(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_count_once() {
        assert_eq!(joined(&[4..6, 0..2, 1..3, 3..4, 9..9]), [0..6, 9..9]);
        assert_eq!(joined(&[]), Vec::<Range<u64>>::new());
    }

    #[test]
    fn what_would_go_is_measured() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let page = pagekeeper_kernel::page_size();
        assert_eq!(resident(&path, &[0..4 * page, 2 * page..8 * page]), Some(8 * page));
        assert_eq!(resident(&path, &[]), Some(0));
        assert_eq!(resident(&dir.path().join("none"), &[0..4096, 8192..12288]), None);
    }
}
