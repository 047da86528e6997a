//! Acting: what the policy wants done, done to the file it was decided for, or told in a dry run.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::ops::Range;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{Error, Flush, ReleaseOptions, release, start_writeback};
use pagekeeper_policy::{Act, FileId};

use super::Guard;
use crate::event::Event;

/// A tick acts for its own length, and at least so long.
const LEAST_TIME: Duration = Duration::from_millis(250);
/// Longer ranges are released in pieces of this many bytes, between which the time is looked at.
const PIECE: u64 = 1 << 30;

/// A file: which of the watched directories, and its name in it.
type Place = (usize, OsString);

impl Guard {
    /// Does what the policy wants; the bytes released.
    pub(super) fn act_on_all(&mut self, acts: Vec<Act>) -> u64 {
        if acts.is_empty() {
            return 0;
        }
        let files: HashSet<FileId> = acts.iter().filter_map(file_of).collect();
        let places: HashMap<FileId, Place> = self
            .directories
            .iter()
            .enumerate()
            .flat_map(|(index, directory)| {
                let wanted = directory.entries.iter().filter(|(_, entry)| files.contains(&entry.id));
                wanted.map(move |(name, entry)| (entry.id, (index, name.clone())))
            })
            .collect();
        let deadline = Instant::now() + self.options.tick.max(LEAST_TIME);
        let mut released = 0;
        for act in acts {
            if Instant::now() >= deadline {
                // The rest is decided anew at the next tick, so that signals are heeded in between.
                self.retry += 1;
                break;
            }
            released += self.act(act, &places, deadline);
        }
        released
    }

    fn act(&mut self, act: Act, places: &HashMap<FileId, Place>, deadline: Instant) -> u64 {
        let (file, range, kind) = match act {
            Act::StartWriteback { file, range } => (file, range, "start_writeback"),
            Act::Release { file, range } => (file, range, "release"),
            Act::Warn { file, warning } => {
                if let Some((directory, name)) = places.get(&file) {
                    let directory = &self.directories[*directory];
                    let hint = directory.spec(directory.entries[name].log).hint.clone();
                    let warning =
                        hint.map_or_else(|| warning.to_string(), |hint| format!("{warning}; {hint}"));
                    self.events.push(Event::Warning { path: directory.path_of(name), warning });
                }
                return 0;
            }
            _ => return 0,
        };
        let Some(&(index, ref name)) = places.get(&file) else {
            return 0;
        };
        let path = self.directories[index].path_of(name);
        if self.options.dry_run {
            self.events.push(Event::Would { path, act: kind, start: range.start, end: range.end });
            return 0;
        }
        match self.act_on(index, name, range, kind == "release", deadline) {
            Ok(released) => released,
            Err(error) if error.is_gone() => {
                self.directories[index].stale = true;
                0
            }
            Err(error) => {
                self.problem(path, &error);
                0
            }
        }
    }

    fn act_on(
        &mut self,
        index: usize,
        name: &OsString,
        range: Range<u64>,
        drop: bool,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let Some(file) = self.directories[index].open_file(&self.proc, name)? else {
            self.directories[index].stale = true;
            return Ok(0);
        };
        if !drop {
            start_writeback(&file, range)?;
            return Ok(0);
        }
        let (mut released, mut kept) = (0, 0);
        let mut start = range.start;
        while start < range.end {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && start > range.start {
                self.retry += 1;
                break;
            }
            let options = ReleaseOptions {
                flush: Flush::Watch,
                patience: left,
                retry_pause: Duration::ZERO,
                explain: false,
            };
            let end = (start + PIECE).min(range.end);
            let report = release(&file, start..end, &options)?;
            released += report.released;
            kept += report.kept();
            start = end;
        }
        let directory = &mut self.directories[index];
        directory.take_sample(name, &file)?;
        let class = directory.spec(directory.entries[name].log).class;
        *self.summary.released_bytes.entry(class).or_default() += released;
        self.summary.released_total_bytes += released;
        self.summary.kept_bytes += kept;
        Ok(released)
    }
}

/// The file that an act is about.
fn file_of(act: &Act) -> Option<FileId> {
    match act {
        Act::StartWriteback { file, .. } | Act::Release { file, .. } | Act::Warn { file, .. } => Some(*file),
        _ => None,
    }
}
