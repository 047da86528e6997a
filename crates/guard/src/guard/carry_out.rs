//! Acting: what the policy wants done, done to the file it was decided for, or told in a dry run.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{Error, Flush, InspectedFile, ReleaseOptions, release, start_writeback};
use pagekeeper_policy::{Act, Facts, FileId, Warning, step};

use super::Guard;
use crate::decision::{Action, Decision, FileAct, FileWarning};
use crate::directory::{Directory, Entry};
use crate::disks::{self, Leftovers};
use crate::event::{Done, Event};

/// A tick acts for its own length, and at least so long.
const LEAST_TIME: Duration = Duration::from_millis(250);
/// Longer ranges are released in pieces of this many bytes, between which the time is looked at.
const PIECE: u64 = 1 << 30;

impl Guard {
    /// What is to be done with what was seen, by the rules of the policy.
    pub(super) fn ask_policy(&mut self, facts: &Facts) -> Decision {
        let acts = step(&mut self.state, facts);
        if acts.is_empty() {
            return Decision::default();
        }
        let wanted: HashSet<FileId> = acts.iter().map(file_of).collect();
        let directories = self.directories.iter().enumerate();
        let entries = directories.flat_map(|(index, directory)| {
            directory.entries.iter().map(move |(name, entry)| (index, name, entry))
        });
        let files: HashMap<FileId, (usize, &OsString, &Entry)> = entries
            .filter(|(_, _, entry)| wanted.contains(&entry.id))
            .map(|(index, name, entry)| (entry.id, (index, name, entry)))
            .collect();
        let mut decision = Decision::default();
        for act in acts {
            let Some(&(index, name, entry)) = files.get(&file_of(&act)) else { continue };
            let directory = &self.directories[index];
            let (path, inode, spec) = (directory.path_of(name), entry.inode, directory.spec(entry.log));
            let (range, action) = match act {
                Act::StartWriteback { range, .. } => (range, Action::StartWriteback),
                Act::Release { range, .. } => (range, Action::Release),
                Act::Warn { warning, .. } => {
                    if let Some(text) = self.text_of(warning, directory) {
                        let text =
                            spec.hint.as_ref().map_or_else(|| text.clone(), |hint| format!("{text}; {hint}"));
                        decision.warnings.push(FileWarning { path, inode, warning, text });
                    }
                    continue;
                }
            };
            let (class, rule) = (spec.class, spec.rule);
            decision.acts.push(FileAct { path, inode, range, action, class, rule, directory: index });
        }
        decision
    }

    /// Carries out what was decided, or reports it in a dry run; the bytes released.
    pub(super) fn carry_out(&mut self, decision: Decision) -> u64 {
        let warnings = decision.warnings.into_iter();
        self.events
            .extend(warnings.map(|warning| Event::Warning { path: warning.path, warning: warning.text }));
        if self.options.dry_run {
            self.events.extend(decision.acts.into_iter().map(|act| Event::Would {
                path: act.path,
                action: act.action,
                start: act.range.start,
                end: act.range.end,
            }));
            return 0;
        }
        let deadline = Instant::now() + self.options.tick.max(LEAST_TIME);
        let mut released = 0;
        for act in decision.acts {
            if Instant::now() >= deadline {
                // The rest is decided anew at the next tick, so that signals are heeded in between.
                self.retry += 1;
                break;
            }
            match self.act(&act, deadline) {
                Ok(bytes) => released += bytes,
                Err(error) if error.is_gone() => self.directories[act.directory].stale = true,
                Err(error) => self.problem(act.path, &error),
            }
        }
        released
    }

    /// A warning, with what was measured of the disk; nothing where that says that there is nothing to warn of.
    fn text_of(&self, warning: Warning, directory: &Directory) -> Option<String> {
        match warning {
            Warning::RecycledSubPages => return Some(warning.to_string()),
            Warning::DirectButResident => {}
        }
        let opened = directory.open(&self.proc).ok();
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

    /// Does one thing to one file; the bytes released.
    fn act(&mut self, act: &FileAct, deadline: Instant) -> Result<u64, Error> {
        let directory = &mut self.directories[act.directory];
        let Some(file) = directory.open_file(&self.proc, &act.path, act.inode)? else {
            directory.stale = true;
            return Ok(0);
        };
        let (released, kept) = match act.action {
            Action::StartWriteback => {
                start_writeback(&file, act.range.clone())?;
                (0, 0)
            }
            Action::Release => self.release(act, &file, deadline)?,
        };
        self.note_done(act, released, kept);
        Ok(released)
    }

    /// Releases a range, as far as there is time; the bytes released and those that resisted.
    fn release(
        &mut self,
        act: &FileAct,
        file: &InspectedFile,
        deadline: Instant,
    ) -> Result<(u64, u64), Error> {
        let range = &act.range;
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
            let report = release(file, start..end, &options)?;
            released += report.released;
            kept += report.kept();
            start = end;
        }
        self.directories[act.directory].take_sample(&act.path, file)?;
        *self.summary.released_bytes.entry(act.class).or_default() += released;
        self.summary.released_total_bytes += released;
        self.summary.kept_bytes += kept;
        Ok((released, kept))
    }

    /// Adds an act to those of this tick.
    fn note_done(&mut self, act: &FileAct, released: u64, kept: u64) {
        let class = act.class;
        let directory = &self.directories[act.directory];
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
fn file_of(act: &Act) -> FileId {
    match *act {
        Act::StartWriteback { file, .. } | Act::Release { file, .. } | Act::Warn { file, .. } => file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use pagekeeper_kernel::process::ProcRoot;
    use pagekeeper_kernel::{Links, residency};
    use pagekeeper_policy::{DiskProfile, FileClass, MixedProfile, Rule};
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
    fn what_is_decided_is_left_to_the_caller() {
        let dir = disk_dir();
        let path = dir.path().canonicalize().unwrap();
        let name = |number: u64| path.join(format!("binlog.{number:06}"));
        std::fs::write(path.join("binlog.index"), "").unwrap();
        for number in 1..=2 {
            std::fs::write(name(number), vec![1; 1 << 20]).unwrap();
            std::fs::File::open(name(number)).unwrap().sync_all().unwrap();
        }
        let options = Options {
            find: false,
            directories: vec![path.clone()],
            profile: Some("generic".to_owned()),
            ..Options::default()
        };
        let mut guard = Guard::new(options, ProcRoot::default()).unwrap();
        let first = InspectedFile::open(&name(1), Links::Refuse).unwrap();
        let mut found = Vec::new();
        let decision = guard.decide(&mut |event| {
            if let Event::Found { directories, .. } = event {
                found.extend(directories.clone());
            }
        });
        assert_eq!((found, guard.watched_files().count()), (vec![path.clone()], 2));
        let [act] = &decision.acts[..] else { panic!("{decision:?}") };
        assert_eq!((&act.path, act.inode, act.action), (&name(1), first.inode(), Action::Release));
        assert_eq!((act.range.clone(), act.class), (0..1 << 20, FileClass::Binlog));
        assert!(matches!(act.rule, Rule::ReleaseBehindFollowers { .. }), "{act:?}");
        assert_eq!(residency(&first, 0..u64::MAX).unwrap().resident, 1 << 20);
        assert_eq!(guard.decide(&mut |_| {}), Decision::default(), "it is taken to be done");
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
