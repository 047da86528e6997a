//! The time between the two snapshots: the guard's own rules say what they would release, and
//! nothing is released.
//!
//! Invariants: nothing is released or written; the rules see several samples, since the position of
//! a writer that does not show it is inferred from the changes of its file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::ProgressBar;
use pagekeeper_doctor::Releasable;
use pagekeeper_guard::{Action, Decision, Guard, Options};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Inode, InspectedFile, residency};
use pagekeeper_observe::saved_pages::joined;
use pagekeeper_observe::{File, Snapshot};
use pagekeeper_policy::FileClass;
use pagekeeper_text::escaped;

use super::args::DoctorArgs;
use crate::output;
use crate::signals::Stop;

/// Interval at which the rules are asked.
const TICK: Duration = Duration::from_millis(500);

/// The answers of the guard's rules during the watch.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The files that the rules were asked about.
    asked: HashSet<Inode>,
    /// The ranges that they would release, by file.
    ranges: HashMap<Inode, Vec<Range<u64>>>,
    /// The reason why they keep a log, by the path of one of its files.
    pub(super) kept: Vec<(PathBuf, String)>,
}

/// Watches for the requested time, or until a signal; calls `beside` at each tick.
pub(super) fn watch(
    args: &DoctorArgs,
    before: &Snapshot,
    stop: &Stop,
    mut beside: impl FnMut(),
) -> anyhow::Result<Judged> {
    let options = Options {
        find: false,
        pids: before.databases.iter().filter_map(|database| database.pid).collect(),
        directories: left_directories(before),
        ..Options::default()
    };
    let mut guard = Guard::new(options, ProcRoot::default()).context("ask the guard's rules")?;
    let mut judged = Judged::default();
    let progress = progress(before, args.duration);
    let began = Instant::now();
    let waited = loop {
        let decision = guard.decide(&mut |_| {});
        judged.add(decision, guard.watched_files());
        beside();
        let left = args.duration.saturating_sub(began.elapsed());
        progress.set_position(began.elapsed().as_secs());
        // Waits to the end of the watch, because another sample would come after it.
        let is_last = left <= 2 * TICK;
        match stop.wait(if is_last { left } else { TICK }) {
            Ok(false) if !is_last => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    progress.finish_and_clear();
    waited.context("wait")?;
    Ok(judged)
}

/// Returns the directories with the logs of databases that do not run.
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
                // Dirty pages would be written first, and then released.
                Action::StartWriteback | Action::Release => {
                    self.ranges.entry(act.inode).or_default().push(act.range);
                }
            }
        }
        self.kept.extend(decision.warnings.into_iter().map(|warning| (warning.path, warning.text)));
    }

    /// Returns for each log the resident bytes that the rules would release. A file that can't be
    /// read is left out.
    pub(super) fn releasable(&self, snapshot: &Snapshot) -> Vec<Releasable> {
        snapshot
            .files
            .iter()
            .filter(|file| is_log(file))
            .filter_map(|file| self.releasable_of(file))
            .collect()
    }

    /// Returns this for one log; `None` if the guard does not watch it, or it can't be read.
    ///
    /// The guard identifies a file by the device in stat(2), findings by the device in trace
    /// events: on btrfs these differ.
    fn releasable_of(&self, file: &File) -> Option<Releasable> {
        if !self.asked.contains(&file.stat_inode) {
            return None;
        }
        let ranges = self.ranges.get(&file.stat_inode).map_or(&[][..], Vec::as_slice);
        Some(Releasable { file: file.inode, resident: resident(&file.open().ok()?, ranges)? })
    }
}

/// Returns the bytes resident in any of the ranges; `None` if that can't be seen.
fn resident(file: &InspectedFile, ranges: &[Range<u64>]) -> Option<u64> {
    let sizes = joined(ranges.to_vec()).into_iter().map(|range| Some(residency(file, range).ok()?.resident));
    sizes.sum()
}

/// Returns a line on standard error during the watch, if that is a terminal.
fn progress(before: &Snapshot, length: Duration) -> ProgressBar {
    let whom = match before.databases.as_slice() {
        [] => "this host".to_owned(),
        [one] => escaped(&pagekeeper_doctor::called(one)).to_string(),
        many => format!("{} databases", many.len()),
    };
    let line = "watching {msg}: {pos} of {len} s, Ctrl-C ends it";
    output::progress_bar(length.as_secs(), line).with_message(whom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::Links;

    #[test]
    fn ranges_count_once() {
        assert_eq!(joined(vec![4..6, 0..2, 1..3, 3..4, 9..9]), [0..6, 9..9]);
        assert_eq!(joined(Vec::new()), Vec::<Range<u64>>::new());
    }

    #[test]
    fn releasable_pages_are_measured() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let page = pagekeeper_kernel::page_size();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        assert_eq!(resident(&file, &[0..4 * page, 2 * page..8 * page]), Some(8 * page));
        assert_eq!(resident(&file, &[]), Some(0));
    }

    #[test]
    fn a_file_with_another_device_to_tracing_is_found() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let reach = dir.path().join("binlog.000001");
        std::fs::write(&reach, vec![1; 1 << 20]).unwrap();
        let stat = InspectedFile::open(&reach, Links::Refuse).unwrap().inode();
        let traced = Inode { dev: stat.dev + 1, ino: stat.ino };
        let file = |reach: PathBuf| File {
            inode: traced,
            stat_inode: stat,
            path: reach.clone(),
            reach,
            size: 1 << 20,
            database: None,
            class: Some(FileClass::Binlog),
            residency: None,
            openers: Vec::new(),
        };
        let mut judged = Judged::default();
        assert_eq!(judged.releasable_of(&file(reach.clone())), None, "the guard does not watch it");
        judged.asked.insert(stat);
        judged.ranges.entry(stat).or_default().push(0..1 << 20);
        let found = judged.releasable_of(&file(reach)).unwrap();
        assert_eq!((found.file, found.resident), (traced, 1 << 20));
        assert_eq!(judged.releasable_of(&file(dir.path().join("none"))), None);
    }
}
