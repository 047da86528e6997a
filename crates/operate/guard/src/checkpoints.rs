//! Checkpoints of the watched logs: where crash recovery would start, as the databases state it in
//! files of theirs.
//!
//! Invariants:
//! 1. Nothing of a log is read unless its rule asks for checkpoints and at least
//!    [`RESIDENT_BYTES_MIN`] bytes of it are resident. So a log that is written past the page cache
//!    stays out of it.
//! 2. Only a header of at most 12 KiB is read, without read-ahead, and only after its file has
//!    changed. `pg_control`, which is not watched, is read at most every [`CONTROL_READ_INTERVAL`].
//! 3. A log is read after its residency was sampled, because the policy wants that for a ring.
//! 4. Only [`Checkpoints::read`] does I/O, in a thread that may be left behind.
//!
//! If a checkpoint can't be read, it counts as unknown, and all of its log stays. That is reported
//! at the second failure in a row: a header that is being written may be seen half written.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagekeeper_catalog::CheckpointSpec;
use pagekeeper_catalog::checkpoint::innodb::{RedoFile, RedoHeader, last_checkpoint};
use pagekeeper_catalog::checkpoint::postgresql::ControlFile;
use pagekeeper_catalog::postgresql::DataDirectory;
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::{CheckpointFacts, CheckpointPosition, FileId, LogId, Rule, StepFacts};

use crate::directory::{Directory, Log};
use crate::entry::Entry;

/// A log with less than this resident is left alone.
const RESIDENT_BYTES_MIN: u64 = 2 << 20;
/// Time between two reads of a file whose changes are not watched.
const CONTROL_READ_INTERVAL: Duration = Duration::from_secs(2);
/// Number of failures in a row at which they are reported.
const FAILURES_REPORTED: u32 = 2;

/// The checkpoints of a directory's logs, as far as its database's files state them.
#[derive(Default)]
pub(crate) struct Checkpoints {
    logs: HashMap<LogId, LogCheckpoint>,
    headers: HashMap<FileId, RedoHeaderState>,
}

/// The state of one log.
#[derive(Default)]
struct LogCheckpoint {
    /// The last content of `pg_control`, and when it was read.
    control: Option<(Instant, Result<ControlFile, String>)>,
    failures: u32,
}

/// The header of a file of InnoDB's redo log.
struct RedoHeaderState {
    /// The time of the file's last change when it was read, in nanoseconds of the epoch.
    changed: i128,
    parsed: Result<RedoHeader, String>,
}

impl Checkpoints {
    /// Reads the files that are due; a file system may block that for any time. Calls `begins`
    /// before each file, and says whether it may be on another file system than the directory.
    pub(crate) fn read(
        &mut self,
        directory: &Directory,
        proc: &ProcRoot,
        now: Instant,
        begins: &dyn Fn(bool),
    ) {
        for (log, files) in logs_of(directory) {
            match directory.spec(log).checkpoint {
                CheckpointSpec::PgControl if self.is_control_due(log, now) => {
                    begins(true);
                    let (pid, wal) = (directory.owner, directory.path.as_path());
                    let control = DataDirectory { proc, pid, wal }.control_file();
                    self.logs.entry(log).or_default().control = Some((now, control));
                }
                CheckpointSpec::Innodb => {
                    begins(false);
                    for (name, entry) in files {
                        if !self.is_header_due(entry) {
                            continue;
                        }
                        let parsed = read_redo_header(directory, name, entry.inode, proc);
                        self.headers.insert(entry.id, RedoHeaderState { changed: entry.changed, parsed });
                    }
                }
                _ => {}
            }
        }
    }

    fn is_control_due(&self, log: LogId, now: Instant) -> bool {
        let known = self.logs.get(&log).and_then(|known| known.control.as_ref());
        known.is_none_or(|(read, control)| {
            control.is_err() || now.saturating_duration_since(*read) >= CONTROL_READ_INTERVAL
        })
    }

    fn is_header_due(&self, entry: &Entry) -> bool {
        let known = self.headers.get(&entry.id);
        known.is_none_or(|header| header.changed != entry.changed || header.parsed.is_err())
    }

    /// Adds the checkpoints of the logs in the directory, whose files are among the facts already,
    /// from the content that was read. Calls `problem` for what could not be read.
    pub(crate) fn add(
        &mut self,
        directory: &Directory,
        facts: &mut StepFacts,
        problem: &mut dyn FnMut(PathBuf, String),
    ) {
        self.logs.retain(|log, _| directory.logs.contains_key(log));
        if self.headers.len() > directory.entries.len() {
            self.headers.retain(|file, _| directory.entries.values().any(|entry| entry.id == *file));
        }
        for (log, files) in logs_of(directory) {
            let found = match directory.spec(log).checkpoint {
                CheckpointSpec::Unknown => Err("its profile does not say where its checkpoint is".to_owned()),
                CheckpointSpec::AllFiles => Ok(None),
                CheckpointSpec::NoFile => {
                    Ok(Some(CheckpointPosition::InSeries { sequence: u64::MAX, offset: 0 }))
                }
                CheckpointSpec::LastFile => Ok(last_file(log, facts)),
                CheckpointSpec::PgControl => self.postgresql(directory, log),
                CheckpointSpec::Innodb => self.innodb(&files),
            };
            let failures = &mut self.logs.entry(log).or_default().failures;
            match found {
                Ok(at) => {
                    *failures = 0;
                    facts.checkpoints.extend(at.map(|at| CheckpointFacts { log, at }));
                }
                Err(reason) => {
                    *failures = failures.saturating_add(1);
                    if *failures == FAILURES_REPORTED {
                        let first = files.first().map_or(OsStr::new(""), |(name, _)| name);
                        let said = format!(
                            "where its crash recovery starts is not known, so all of it stays: {reason}"
                        );
                        problem(directory.path_of(first), said);
                    }
                }
            }
        }
    }

    /// Returns the checkpoint in `global/pg_control`; `None` while that could not be read because
    /// its file system does not answer.
    fn postgresql(&self, directory: &Directory, log: LogId) -> Result<Option<CheckpointPosition>, String> {
        let known = self.logs.get(&log).and_then(|known| known.control.as_ref());
        let Some((_, control)) = known else { return Ok(None) };
        let control = control.as_ref().map_err(Clone::clone)?;
        if directory.logs[&log].segment_size != Some(control.segment_size) {
            return Err("pg_control has segments of another size".to_owned());
        }
        let (sequence, offset) = control.place();
        Ok(Some(CheckpointPosition::InSeries { sequence, offset }))
    }

    /// Returns the checkpoint in the headers of InnoDB's redo log files; `None` while these could
    /// not be read because their file system does not answer.
    fn innodb(&self, files: &[(&OsStr, &Entry)]) -> Result<Option<CheckpointPosition>, String> {
        let mut placed = Vec::with_capacity(files.len());
        for &(_, entry) in files {
            let header = self.headers.get(&entry.id).filter(|header| header.changed == entry.changed);
            let Some(header) = header else { return Ok(None) };
            let (sequence, size) = (entry.sequence, entry.size);
            placed.push(RedoFile { header: header.parsed.clone()?, sequence, size });
        }
        last_checkpoint(&placed).map(Some)
    }
}

/// Returns whether a rule for a log of this directory depends on checkpoints.
fn are_asked_for(directory: &Directory) -> bool {
    directory.profile.logs.iter().any(|log| matches!(log.rule, Rule::ReleaseBeforeCheckpoint { .. }))
}

/// Returns those logs of a directory whose rule depends on their checkpoint and of which enough is
/// resident, with their files.
fn logs_of(directory: &Directory) -> Vec<(LogId, Vec<(&OsStr, &Entry)>)> {
    if !are_asked_for(directory) {
        return Vec::new();
    }
    let asked =
        |known: &Log| matches!(directory.profile.logs[known.spec].rule, Rule::ReleaseBeforeCheckpoint { .. });
    let logs = directory.logs.iter().filter(|(_, known)| asked(known));
    let with_files = logs.map(|(&log, _)| {
        let own = directory.entries.iter().filter(|(_, entry)| entry.log == log);
        (log, own.map(|(name, entry)| (name.as_os_str(), entry)).collect::<Vec<_>>())
    });
    with_files
        .filter(|(_, files)| {
            files.iter().map(|(_, entry)| entry.sample.resident).sum::<u64>() >= RESIDENT_BYTES_MIN
        })
        .collect()
}

/// Returns the checkpoint at the start of the newest file.
fn last_file(log: LogId, facts: &StepFacts) -> Option<CheckpointPosition> {
    let files = facts.files.iter().filter(|file| file.log == log && file.writer.is_some());
    let sequence = files.map(|file| file.sequence).max()?;
    Some(CheckpointPosition::InSeries { sequence, offset: 0 })
}

fn read_redo_header(
    directory: &Directory,
    name: &OsStr,
    inode: Inode,
    proc: &ProcRoot,
) -> Result<RedoHeader, String> {
    let path = directory.path_of(name);
    let file = directory.open_file(proc, &path, inode).map_err(|error| error.to_string())?;
    RedoHeader::read(&file.ok_or("it is another file by now")?)
}
