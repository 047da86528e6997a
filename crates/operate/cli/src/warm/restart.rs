//! `warm --learn NAME -- COMMAND` and `warm --learned NAME`: what the last start of a service read,
//! loaded ahead of the next one.
//!
//! `--learn` becomes the command, or watches the next start of a systemd unit. A process beside it
//! loads what the recording of that name has, in its order, records what this start reads, and
//! replaces the recording once the start is over.
//!
//! Invariants: the command is started whatever fails here. Entries that could not be judged stay in
//! the recording: those whose pages were resident before, and all if the start was cut short. A
//! process that is killed leaves the older recording.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use pagekeeper_catalog::{Profile, disks};
use pagekeeper_guard::Selector;
use pagekeeper_kernel::pressure::{MemInfo, SysRoots};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{InspectedFile, Links, WarmMethod, WarmOptions, WarmReport, warm_extents};
use pagekeeper_launch::{CommandWatcher, StartState, WatchedCommand};
use pagekeeper_observe::saved_pages::{RecordingName, Recordings, SavedFile, SavedPages, kept_of, renewed};
use pagekeeper_streams::{IsMember, RecordedReads, StartReads};
use pagekeeper_text::{ByteSize, escaped};

use crate::output;
use crate::service::Manager;
use crate::signals::Stop;

/// A start that has read nothing worth mentioning for this long is over.
const QUIET_TIME: Duration = Duration::from_secs(5);
/// Interval of taking events.
const EVENT_INTERVAL: Duration = Duration::from_millis(10);
/// A recording of less is not loaded: the command reads it in a moment.
const WORTH_BYTES: u64 = 4 << 20;
/// Requests in flight on a disk that was not measured: enough for a slow disk, and not too many for
/// a narrow one.
const WIDTH_UNKNOWN: u16 = 32;
/// The most requests in flight, each by a thread.
const WIDTH_MAX: u16 = 128;
/// The directory in which programs see mounts of other containers: such a path says nothing after a
/// restart.
const OTHERS_MOUNTS: &str = "/proc";

/// The start to learn.
#[derive(Debug)]
pub(super) struct Learning<'a> {
    pub(super) name: &'a RecordingName,
    pub(super) recordings: Recordings,
    /// Whether a unit is watched, rather than a command.
    pub(super) is_unit: bool,
    /// When it ends at the latest.
    pub(super) duration: Duration,
}

impl Learning<'_> {
    /// Watches the next start of a unit.
    pub(super) fn of_unit(&self, unit: Selector) -> anyhow::Result<ExitCode> {
        let (stop, mut manager) = (Stop::on_signals()?, Manager::of_this_process()?);
        let old = self.old();
        let proc = ProcRoot::default();
        let is_member: IsMember = Box::new(move |pid| unit.has_member(&proc, pid));
        let reads = StartReads::start(Some(is_member), described);
        manager.ready();
        let mut reads = match reads {
            Ok(reads) => reads,
            Err(why) => {
                output::complain(self.not_learned(&why));
                load_ahead(old, stop.flag());
                return Ok(ExitCode::FAILURE);
            }
        };
        reads.expect_own_additions()?;
        let (is_over, loaded) = self.record(&mut reads, old, &stop);
        Ok(output::code(self.save(reads.end(), loaded, is_over)))
    }

    /// Becomes the command; returns only if that fails.
    pub(super) fn become_command(&self, command: &[PathBuf]) -> ExitCode {
        let words: Vec<OsString> = command.iter().map(OsString::from).collect();
        let mut command = match WatchedCommand::new(&words, StartState::now()) {
            Ok(command) => command,
            Err(why) => return refuse(&why),
        };
        let old = self.old();
        if let Err(why) = command.watch(|watcher| self.watch(watcher, old)) {
            output::complain(self.not_learned(&why));
        }
        refuse(&command.exec())
    }

    /// Returns the older recording, if it can be used.
    fn old(&self) -> Option<SavedPages> {
        let old = self.recordings.read(self.name).unwrap_or_else(|error| {
            output::complain(format_args!("the recording of {} is not used: {error}", self.name.as_str()));
            None
        });
        // Another kernel's pages may have another size.
        old.filter(|old| old.page_size == pagekeeper_kernel::page_size())
    }

    fn not_learned(&self, why: &impl Display) -> String {
        format!("what a start of {} reads is not learned: {why}", self.name.as_str())
    }

    /// Watches the command from the process beside it.
    fn watch(&self, watcher: &CommandWatcher<'_>, old: Option<SavedPages>) {
        let Ok(stop) = Stop::on_signals() else { return watcher.refuse("signals can't be caught") };
        let mut reads = match StartReads::start(None, described) {
            Ok(reads) => reads,
            Err(why) => {
                watcher.refuse(&why.to_string());
                return drop(load_ahead(old, stop.flag()));
            }
        };
        let Some(pid) = watcher.wait_for_command() else { return };
        let followed = reads.follow(pid).and_then(|()| reads.expect_own_additions());
        watcher.let_start();
        if let Err(why) = followed {
            return output::complain(self.not_learned(&why));
        }
        let (is_over, loaded) = self.record(&mut reads, old, &stop);
        self.save(reads.end(), loaded, is_over);
    }

    /// Loads the old recording and records until the start is over. Returns whether that was seen,
    /// and what was loaded.
    fn record(
        &self,
        reads: &mut StartReads<SavedFile>,
        old: Option<SavedPages>,
        stop: &Stop,
    ) -> (bool, LoadedAhead) {
        let (began, is_done) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| load_ahead(old, &is_done));
            let is_over = loop {
                reads.step();
                if reads.quiet_for() >= QUIET_TIME || began.elapsed() >= self.duration {
                    break reads.is_running();
                }
                // Before its start, and between its processes, a unit has none.
                if stop.requested() || (!self.is_unit && !reads.is_running()) {
                    break false;
                }
                std::thread::sleep(EVENT_INTERVAL);
            };
            is_done.store(true, Ordering::Relaxed);
            (is_over, loading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Replaces the recording; returns whether that succeeded.
    fn save(&self, recorded: RecordedReads<SavedFile>, loaded: LoadedAhead, is_over: bool) -> bool {
        let mut new = SavedPages::begin();
        let page = new.page_size;
        let in_pages = |(file, ranges): (SavedFile, Vec<std::ops::Range<u64>>)| SavedFile {
            extents: ranges.into_iter().map(|range| range.start / page..range.end / page).collect(),
            ..file
        };
        new.files = recorded.steps.into_iter().map(in_pages).collect();
        let read_bytes = bytes_of(&new.files);
        let is_exact = is_over && recorded.is_exact;
        let entries = loaded.files.into_iter().zip(loaded.judged);
        let unjudged = entries.filter(|(_, is_judged)| !is_exact || !is_judged).map(|(file, _)| file);
        let kept = kept_of(unjudged.collect(), &new.files);
        new.files.extend(kept);
        let name = self.name.as_str();
        if let Err(error) = self.recordings.write(self.name, &new) {
            let path = self.recordings.path(self.name);
            output::complain(format_args!("can't write {}: {error}", escaped(&path)));
            return false;
        }
        let ahead = match loaded.bytes {
            0 => String::new(),
            bytes => format!("; {} was loaded ahead of it", ByteSize(bytes)),
        };
        output::complain(format_args!("this start of {name} read {}{ahead}", ByteSize(read_bytes)));
        if bytes_of(&new.files) < WORTH_BYTES {
            output::complain(nothing_to_gain(name, recorded.direct_bytes));
        }
        true
    }
}

/// Returns the items of a recording in their order, and how they are read; `None`, with a sentence
/// printed, where there is nothing to gain.
pub(super) fn learned(
    recordings: &Recordings,
    name: &RecordingName,
) -> anyhow::Result<Option<(SavedPages, WarmOptions)>> {
    let text = name.as_str();
    let context = || format!("can't use the recording of {text}");
    let Some(recording) = recordings.read(name).with_context(context)? else {
        output::complain(format_args!(
            "no start of {text} was recorded yet: pagekeeper warm --learn {text} -- COMMAND"
        ));
        return Ok(None);
    };
    if bytes_of(&recording.files) < WORTH_BYTES {
        output::complain(nothing_to_gain(text, 0));
        return Ok(None);
    }
    let recording = renewed(recording, &Profile::built_in());
    let options = wide(&recording.files);
    Ok(Some((recording, options)))
}

/// Returns why a recording is not loaded.
fn nothing_to_gain(name: &str, direct_bytes: u64) -> String {
    let past = match direct_bytes {
        ..WORTH_BYTES => String::new(),
        bytes => format!(", and {} past it (direct I/O)", ByteSize(bytes)),
    };
    format!(
        "a start of {name} reads less than {} through the page cache{past}: there is nothing to load ahead of it",
        ByteSize(WORTH_BYTES)
    )
}

fn refuse(why: &pagekeeper_launch::StartError) -> ExitCode {
    output::complain(&why.sentence);
    ExitCode::from(why.code)
}

/// Describes a file that a start reads, unless its path means nothing after a restart.
fn described(file: &InspectedFile) -> Option<SavedFile> {
    if file.path().starts_with(OTHERS_MOUNTS) {
        return None;
    }
    SavedFile::without_pages(file).ok()
}

fn bytes_of(files: &[SavedFile]) -> u64 {
    files
        .iter()
        .map(SavedFile::resident_pages)
        .fold(0, u64::saturating_add)
        .saturating_mul(pagekeeper_kernel::page_size())
}

/// The pages that were loaded ahead of a command.
#[derive(Debug, Default)]
struct LoadedAhead {
    bytes: u64,
    /// The entries of the older recording, with today's files.
    files: Vec<SavedFile>,
    /// For each entry, whether this process has brought in all pages of it that exist: whoever
    /// reads them was seen.
    judged: Vec<bool>,
}

/// Loads the entries of an older recording in their order, many at once, until that is cancelled or
/// half of the available memory is filled. Files that can't be read are left to the command.
fn load_ahead(old: Option<SavedPages>, cancel: &AtomicBool) -> LoadedAhead {
    let files = old.map_or_else(Vec::new, |old| renewed(old, &Profile::built_in()).files);
    let bytes = AtomicU64::new(0);
    let judged: Vec<AtomicBool> = files.iter().map(|_| AtomicBool::new(false)).collect();
    let options = wide(&files);
    let room = MemInfo::read(&SysRoots::default()).map_or(u64::MAX, |memory| memory.available / 2);
    let width = if bytes_of(&files) < WORTH_BYTES { 0 } else { options.width.min(files.len()) };
    let (next, narrow) = (AtomicUsize::new(0), WarmOptions { width: 1, ..options });
    let work = || {
        while !cancel.load(Ordering::Relaxed) && bytes.load(Ordering::Relaxed) < room {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(file), Some(judged)) = (files.get(index), judged.get(index)) else { break };
            if let Some(report) = load(file, &narrow, cancel) {
                bytes.fetch_add(report.loaded, Ordering::Relaxed);
                judged.store(!report.cancelled && report.resident_before == Some(0), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| (0..width).for_each(|_| drop(scope.spawn(work))));
    let judged = judged.into_iter().map(AtomicBool::into_inner).collect();
    LoadedAhead { bytes: bytes.into_inner(), files, judged }
}

fn load(file: &SavedFile, options: &WarmOptions, cancel: &AtomicBool) -> Option<WarmReport> {
    let open = InspectedFile::open(&file.path, Links::RefuseAll).ok()?;
    warm_extents(&open, &file.ranges(pagekeeper_kernel::page_size()), options, &|_| {}, cancel).ok()
}

/// Returns options that keep the disk of these files busy: its measured width, exactly these pages.
fn wide(files: &[SavedFile]) -> WarmOptions {
    let largest = files.iter().max_by_key(|file| file.size).and_then(|file| file.path.parent());
    let width = largest.and_then(measured_width).unwrap_or(WIDTH_UNKNOWN).clamp(1, WIDTH_MAX);
    WarmOptions { width: width.into(), method: WarmMethod::ReadAhead, ..WarmOptions::default() }
}

fn measured_width(directory: &Path) -> Option<u16> {
    let width = disks::saved(directory).ok()??.width()?;
    u16::try_from(width).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_to_be_gained_the_reason_is_said() {
        assert_eq!(
            nothing_to_gain("mariadb", 0),
            "a start of mariadb reads less than 4 MiB through the page cache: there is nothing to load ahead of it"
        );
        assert!(nothing_to_gain("mariadb", 1 << 30).contains(", and 1 GiB past it (direct I/O): there"));
    }
}
