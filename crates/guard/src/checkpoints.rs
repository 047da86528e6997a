//! Checkpoints: where crash recovery of the watched logs would start, as their databases say in files of theirs.
//!
//! Invariants:
//! 1. Nothing is read of a log unless its rule asks for it and [`LEAST`] bytes of it are resident: so a log that is written past the page
//!    cache stays out of it.
//! 2. What is read is a header of at most 12 KiB, without read-ahead, and only once its file has changed; `pg_control`, which nobody
//!    watches, at most every [`AGAIN`].
//! 3. A log is read after its residency was sampled, as the policy wants it of a ring.
//!
//! A checkpoint that can't be had is not known, and all of its log stays. It is reported when it fails for the second time in a row:
//! a header that is written at the same time may be seen half done.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_catalog::CheckpointSpec;
use pagekeeper_catalog::checkpoint::innodb::{Layout, RedoHeader};
use pagekeeper_catalog::checkpoint::postgresql::ControlFile;
use pagekeeper_catalog::checkpoint::{innodb, postgresql};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, Expected, InspectedFile, Links};
use pagekeeper_policy::{Checkpoint, CheckpointFacts, Facts, FileId, LogId, Rule};

use crate::directory::{Directory, Entry};

/// A log of which less is resident is left alone.
const LEAST: u64 = 2 << 20;
/// The time between two looks at a file whose changes are not watched.
const AGAIN: Duration = Duration::from_secs(2);
/// Failures in a row that are reported.
const FAILURES: u32 = 2;

/// What is known of the checkpoints of watched logs.
#[derive(Default)]
pub(crate) struct Checkpoints {
    logs: HashMap<LogId, Known>,
    headers: HashMap<FileId, Header>,
    problems: Vec<(PathBuf, String)>,
}

/// What is known of one log.
#[derive(Default)]
struct Known {
    at: Option<Checkpoint>,
    read: Option<Instant>,
    failures: u32,
}

/// A header that was read.
struct Header {
    /// The time of the file's last change then, in nanoseconds of the epoch.
    changed: i128,
    parsed: Result<RedoHeader, String>,
}

impl Checkpoints {
    /// Adds the checkpoints of the logs in a directory, whose files are among the facts already.
    pub(crate) fn add(&mut self, directory: &Directory, proc: &ProcRoot, now: Instant, facts: &mut Facts) {
        for (&log, known) in &directory.logs {
            let spec = &directory.profile.logs[known.spec];
            if !matches!(spec.rule, Rule::ReleaseBeforeCheckpoint { .. }) {
                continue;
            }
            let files: Vec<(&OsStr, &Entry)> = directory
                .entries
                .iter()
                .filter(|(_, entry)| entry.log == log)
                .map(|(name, entry)| (name.as_os_str(), entry))
                .collect();
            if files.iter().map(|(_, entry)| entry.sample.resident).sum::<u64>() < LEAST {
                continue;
            }
            let found = match spec.checkpoint {
                CheckpointSpec::Unknown => Err("its profile does not say where its checkpoint is".to_owned()),
                CheckpointSpec::AllFiles => Ok(None),
                CheckpointSpec::NoFile => Ok(Some(Checkpoint::InSeries { sequence: u64::MAX, offset: 0 })),
                CheckpointSpec::LastFile => Ok(last_file(log, facts)),
                CheckpointSpec::PgControl => self.postgresql(directory, log, proc, now),
                CheckpointSpec::Innodb => self.innodb(directory, &files, proc),
            };
            let first = files.first().map_or(OsStr::new(""), |(name, _)| name);
            let at = self.note(log, directory.path_of(first), found);
            facts.checkpoints.extend(at.map(|at| CheckpointFacts { log, at }));
        }
    }

    /// Forgets logs and files that are not watched any more; what could not be seen since the last call.
    pub(crate) fn finish(&mut self, directories: &[Directory]) -> Vec<(PathBuf, String)> {
        self.logs.retain(|log, _| directories.iter().any(|directory| directory.logs.contains_key(log)));
        if !self.headers.is_empty() {
            let entries = directories.iter().flat_map(|directory| directory.entries.values());
            let watched: HashSet<FileId> = entries.map(|entry| entry.id).collect();
            self.headers.retain(|file, _| watched.contains(file));
        }
        std::mem::take(&mut self.problems)
    }

    fn note(
        &mut self,
        log: LogId,
        path: PathBuf,
        found: Result<Option<Checkpoint>, String>,
    ) -> Option<Checkpoint> {
        let known = self.logs.entry(log).or_default();
        match found {
            Ok(at) => {
                (known.at, known.failures) = (at, 0);
                at
            }
            Err(reason) => {
                (known.at, known.failures) = (None, known.failures.saturating_add(1));
                if known.failures == FAILURES {
                    let problem =
                        format!("where its crash recovery starts is not known, so all of it stays: {reason}");
                    self.problems.push((path, problem));
                }
                None
            }
        }
    }

    /// By `global/pg_control`, in the directory that the server works in, or beside that of the WAL.
    fn postgresql(
        &mut self,
        directory: &Directory,
        log: LogId,
        proc: &ProcRoot,
        now: Instant,
    ) -> Result<Option<Checkpoint>, String> {
        let known = self.logs.entry(log).or_default();
        let is_fresh = known.read.is_some_and(|read| now.saturating_duration_since(read) < AGAIN);
        if let Some(at) = known.at.filter(|_| is_fresh) {
            return Ok(Some(at));
        }
        known.read = Some(now);
        let file = open_pg_control(directory, proc).map_err(|error| error.to_string())?;
        let mut bytes = [0; postgresql::LEN];
        let len = read_header(&file, &mut bytes)?;
        let control = ControlFile::parse(&bytes[..len]).map_err(|error| format!("pg_control: {error}"))?;
        if directory.logs[&log].segment_size != Some(control.segment_size) {
            return Err("pg_control has segments of another size".to_owned());
        }
        let (sequence, offset) = control.place();
        Ok(Some(Checkpoint::InSeries { sequence, offset }))
    }

    /// By the headers of InnoDB's redo log files.
    fn innodb(
        &mut self,
        directory: &Directory,
        files: &[(&OsStr, &Entry)],
        proc: &ProcRoot,
    ) -> Result<Option<Checkpoint>, String> {
        let mut headers = Vec::with_capacity(files.len());
        for &(name, entry) in files {
            headers.push((self.header(directory, name, entry, proc)?, entry));
        }
        let latest = headers.iter().filter_map(|(header, _)| header.checkpoint).max();
        let latest = latest.ok_or("its files have no checkpoint")?;
        // In a series, the last file that starts before it, whichever has it in its header.
        let holder = headers.iter().filter(|(header, _)| header.start <= latest);
        let (header, entry) =
            holder.max_by_key(|(header, _)| header.start).ok_or("its files start after it")?;
        let offset = header.offset_of(latest, entry.size).ok_or("its files do not have the checkpoint")?;
        match (header.layout, files.len()) {
            (Layout::Series, _) => Ok(Some(Checkpoint::InSeries { sequence: entry.sequence, offset })),
            (Layout::Ring | Layout::OldRing, 1) => Ok(Some(Checkpoint::InRing { offset })),
            (Layout::Ring | Layout::OldRing | Layout::RingOfFiles, _) => {
                Err("it is a ring of several files, or may be one".to_owned())
            }
        }
    }

    fn header(
        &mut self,
        directory: &Directory,
        name: &OsStr,
        entry: &Entry,
        proc: &ProcRoot,
    ) -> Result<RedoHeader, String> {
        let is_current = |header: &&Header| header.changed == entry.changed && header.parsed.is_ok();
        if let Some(header) = self.headers.get(&entry.id).filter(is_current) {
            return header.parsed.clone();
        }
        let parsed = read_redo_header(directory, name, entry, proc);
        self.headers.insert(entry.id, Header { changed: entry.changed, parsed: parsed.clone() });
        parsed
    }
}

/// From the start of the newest file on.
fn last_file(log: LogId, facts: &Facts) -> Option<Checkpoint> {
    let files = facts.files.iter().filter(|file| file.log == log && file.writer.is_some());
    let sequence = files.map(|file| file.sequence).max()?;
    Some(Checkpoint::InSeries { sequence, offset: 0 })
}

fn open_pg_control(directory: &Directory, proc: &ProcRoot) -> Result<InspectedFile, Error> {
    let path = directory.path.parent().unwrap_or(Path::new("/")).join("global/pg_control");
    match directory.owner {
        // WAL may lie elsewhere, behind a link; the server works in its data directory.
        Some(pid) => {
            let global = proc.open_directory_in_namespace(pid, Path::new("global"))?;
            InspectedFile::open_in(global.as_fd(), "pg_control", Expected::Any, path)
        }
        None => InspectedFile::open(&path, Links::Refuse),
    }
}

fn read_redo_header(
    directory: &Directory,
    name: &OsStr,
    entry: &Entry,
    proc: &ProcRoot,
) -> Result<RedoHeader, String> {
    let path = directory.path_of(name);
    let file = directory.open_file(proc, &path, entry.inode).map_err(|error| error.to_string())?;
    let file = file.ok_or("it is another file by now")?;
    let mut bytes = [0; innodb::LEN];
    let len = read_header(&file, &mut bytes)?;
    RedoHeader::parse(&bytes[..len]).map_err(|error| format!("its header: {error}"))
}

/// Reads the start of a file, and no more than that: how many bytes there are.
fn read_header(file: &InspectedFile, bytes: &mut [u8]) -> Result<usize, String> {
    // Of this descriptor alone. Where it is refused, some more pages are read.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    let mut len = 0;
    while len < bytes.len() {
        match file.file().read_at(&mut bytes[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("it can't be read: {error}")),
        }
    }
    Ok(len)
}
