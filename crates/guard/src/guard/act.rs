//! Acting: what the policy wants done, done to the file it was decided for, or told in a dry run.

use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::Range;
use std::time::Duration;

use pagekeeper_kernel::{Error, Flush, ReleaseOptions, release, start_writeback};
use pagekeeper_policy::{Act, FileId};

use super::Guard;
use crate::event::Event;

/// A file: which of the watched directories, and its name in it.
type Place = (usize, OsString);

impl Guard {
    /// Does what the policy wants; the bytes released.
    pub(super) fn act_on_all(&mut self, acts: Vec<Act>) -> u64 {
        if acts.is_empty() {
            return 0;
        }
        let places: HashMap<FileId, Place> = self
            .directories
            .iter()
            .enumerate()
            .flat_map(|(index, directory)| {
                directory.entries.iter().map(move |(name, entry)| (entry.id, (index, name.clone())))
            })
            .collect();
        acts.into_iter().map(|act| self.act(act, &places)).sum()
    }

    fn act(&mut self, act: Act, places: &HashMap<FileId, Place>) -> u64 {
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
        match self.act_on(index, name, range, kind == "release") {
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

    fn act_on(&mut self, index: usize, name: &OsString, range: Range<u64>, drop: bool) -> Result<u64, Error> {
        let Some(file) = self.directories[index].open_file(&self.proc, name)? else {
            self.directories[index].stale = true;
            return Ok(0);
        };
        if !drop {
            start_writeback(&file, range)?;
            return Ok(0);
        }
        let options = ReleaseOptions {
            flush: Flush::Watch,
            // What takes longer is taken up at the next tick, so that a signal is heeded at once.
            patience: self.options.tick,
            retry_pause: Duration::ZERO,
            explain: false,
        };
        let report = release(&file, range, &options)?;
        let directory = &mut self.directories[index];
        directory.take_sample(name, &file)?;
        let class = directory.spec(directory.entries[name].log).class;
        *self.summary.released_bytes.entry(class).or_default() += report.released;
        self.summary.released_total_bytes += report.released;
        self.summary.kept_bytes += report.kept();
        Ok(report.released)
    }
}
