//! Acting: what the policy wants done, done to the file it was decided for, or told in a dry run.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::ops::Range;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{Error, Flush, ReleaseOptions, release, start_writeback};
use pagekeeper_policy::{Act, FileId, Warning};

use super::Guard;
use crate::disks::{self, Leftovers};
use crate::event::{Done, Event};

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
                if let Some((directory, name)) = places.get(&file)
                    && let Some(text) = self.words_of(warning, *directory)
                {
                    let directory = &self.directories[*directory];
                    let hint = directory.spec(directory.entries[name].log).hint.clone();
                    let warning = hint.map_or_else(|| text.clone(), |hint| format!("{text}; {hint}"));
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

    /// A warning, with what was measured of the disk; nothing where that says that there is nothing to warn of.
    fn words_of(&self, warning: Warning, directory: usize) -> Option<String> {
        if warning != Warning::DirectButResident {
            return Some(warning.to_string());
        }
        let opened = self.directories[directory].open(&self.proc).ok();
        let disk = opened.and_then(|opened| disks::of(&self.options.disk_profiles, opened));
        match Leftovers::of(disk.as_ref()) {
            Leftovers::Unknown => Some(warning.to_string()),
            Leftovers::Free => None,
            Leftovers::Cost(ratio) => Some(format!(
                "{warning}; on this file system such pages leave direct I/O {:.0} % of its rate (measured by pagekeeper probe)",
                ratio * 100.0
            )),
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
            self.note_done(index, name, 0, 0);
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
        self.note_done(index, name, released, kept);
        Ok(released)
    }

    /// Adds an act to those of this tick.
    fn note_done(&mut self, index: usize, name: &OsString, released: u64, kept: u64) {
        let directory = &self.directories[index];
        let class = directory.spec(directory.entries[name].log).class;
        let same = |done: &&mut Done| {
            done.class == class && done.pid == directory.owner && done.directory == directory.path
        };
        if let Some(done) = self.done.iter_mut().find(same) {
            done.acts += 1;
            done.released_bytes += released;
            done.kept_bytes += kept;
            return;
        }
        self.done.push(Done {
            pid: directory.owner,
            profile: directory.profile.name.clone(),
            directory: directory.path.clone(),
            class,
            acts: 1,
            released_bytes: released,
            kept_bytes: kept,
        });
    }
}

/// The file that an act is about.
fn file_of(act: &Act) -> Option<FileId> {
    match act {
        Act::StartWriteback { file, .. } | Act::Release { file, .. } | Act::Warn { file, .. } => Some(*file),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use pagekeeper_kernel::process::ProcRoot;
    use pagekeeper_policy::{DiskProfile, FileClass, MixedProfile};
    use pagekeeper_testing::disk_dir;

    #[test]
    fn what_a_tick_did_is_told_by_directory_and_class() {
        let dir = disk_dir();
        let path = dir.path().canonicalize().unwrap();
        std::fs::write(path.join("binlog.index"), "").unwrap();
        for number in 1..=3 {
            let name = path.join(format!("binlog.{number:06}"));
            std::fs::write(&name, vec![1; 1 << 20]).unwrap();
            std::fs::File::open(&name).unwrap().sync_all().unwrap();
        }
        let options = Options {
            find: false,
            directories: vec![path.clone()],
            profile: Some("generic".to_owned()),
            ..Options::default()
        };
        let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
        assert!(guard.done().is_empty());
        guard.tick(&mut |_| {});
        let released = guard.summary().released_total_bytes;
        assert_eq!(released, 2 << 20, "all but the writer's file");
        let done = Done {
            pid: None,
            profile: "generic".to_owned(),
            directory: path,
            class: FileClass::Binlog,
            acts: 2,
            released_bytes: released,
            kept_bytes: 0,
        };
        assert_eq!(guard.done(), [done]);
        guard.tick(&mut |_| {});
        assert!(guard.done().is_empty(), "the next tick had nothing to do");
    }

    #[test]
    fn leftover_pages_are_released_on_every_disk_and_warned_of_where_they_cost() {
        let dir = disk_dir();
        let path = dir.path().canonicalize().unwrap();
        let name = path.join("redo.1");
        let profile = path.join("own.toml");
        let text = "name = \"own\"\n[[log]]\nclass = \"redo\"\nfiles = \"redo.{n}\"\nrule = \"direct\"\n";
        std::fs::write(&profile, text).unwrap();
        let Some(file_system_id) = pagekeeper_kernel::file_system_id(&path).unwrap() else {
            eprintln!("SKIPPED: this file system has no number");
            return;
        };
        let mounts = ProcRoot::default().own_mounts().unwrap();
        let fits = |mount: &&pagekeeper_kernel::process::Mount| path.starts_with(&mount.point);
        let mount = mounts.iter().filter(fits).max_by_key(|mount| mount.point.as_os_str().len()).unwrap();
        let disk = |leftover_read| DiskProfile {
            file_system: mount.kind.clone(),
            file_system_id: file_system_id.clone(),
            mixed: Some(MixedProfile {
                leftover_read,
                leftover_write: leftover_read,
                ..MixedProfile::default()
            }),
            ..DiskProfile::default()
        };
        let foreign = DiskProfile { file_system_id: "0123456789abcdef".to_owned(), ..disk(Some(1.0)) };
        for (disk, warned) in [
            (disk(None), Some("maps it")),
            (disk(Some(0.2)), Some("20 % of its rate")),
            (disk(Some(1.0)), None),
            // Of another disk: unless this machine has been measured, nothing is known.
            (foreign, Some("maps it")),
        ] {
            if disk.file_system_id != file_system_id
                && disks::of(&[], std::fs::File::open(&path).unwrap()).is_some()
            {
                continue;
            }
            std::fs::write(&name, vec![1; 1 << 20]).unwrap();
            std::fs::File::open(&name).unwrap().sync_all().unwrap();
            let options = Options {
                find: false,
                directories: vec![path.clone()],
                profile: Some("own".to_owned()),
                profiles: vec![pagekeeper_catalog::Profile::read(&profile).unwrap()],
                disk_profiles: vec![disk],
                ..Options::default()
            };
            let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
            let mut warnings = Vec::new();
            guard.tick(&mut |event| {
                if let Event::Warning { warning, .. } = event {
                    warnings.push(warning.clone());
                }
            });
            assert_eq!(guard.summary().released_total_bytes, 1 << 20);
            match warned {
                Some(text) => assert!(warnings.len() == 1 && warnings[0].contains(text), "{warnings:?}"),
                None => assert!(warnings.is_empty(), "{warnings:?}"),
            }
        }
    }
}
