//! `warm --learn NAME -- COMMAND` and `warm --learned NAME`: what the last start of a service read,
//! loaded ahead of the next one.
//!
//! `--learn` becomes the command, or watches the next start of a systemd unit. A process beside it
//! loads what the recording of that name has, in its order, records what this start reads, and
//! replaces the recording once the start is over.
//!
//! Invariants: the command is started whatever fails here. Entries that could not be judged stay in
//! the recording: those whose pages were resident before. If the start was cut short, all entries
//! of the older recording stay as they are. Where no process was seen, and where this process is
//! killed, the older recording stays.

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use pagekeeper_catalog::Profile;
use pagekeeper_guard::Selector;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{InspectedFile, WarmOptions};
use pagekeeper_launch::{CommandWatcher, StartState, WatchedCommand};
use pagekeeper_observe::saved_pages::{
    LoadedAhead, RecordingName, Recordings, SavedFile, SavedPages, THREADS_BESIDE_MAX, THREADS_MAX,
    UsedAhead, WORTH_BYTES, bytes_of, exact_options, kept_of, load_ahead, renewed, width_of,
};
use pagekeeper_streams::{IsMember, ReadStep, RecordedReads, StartReads};
use pagekeeper_text::{ByteSize, escaped};

use crate::commands::run::refuse;
use crate::output;
use crate::service::Manager;
use crate::signals::Stop;

/// A start that has read nothing worth mentioning for this long is over.
const QUIET_TIME: Duration = Duration::from_secs(5);
/// A unit without processes for this long has ended: between those of one start there is less.
const UNIT_GONE_TIME: Duration = Duration::from_secs(2);
/// Interval of taking events.
const EVENT_INTERVAL: Duration = Duration::from_millis(10);
/// The most entries that stay of an older recording if starts are cut short again and again.
const KEPT_ENTRIES_MAX: usize = 128 << 10;
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
    /// The time after its first process at which it ends at the latest.
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
        let reads = match reads {
            Ok(reads) => reads,
            Err(why) => {
                output::complain(self.not_learned(&why));
                self.load_alone(old, &stop, &|| false);
                return Ok(ExitCode::FAILURE);
            }
        };
        reads.expect_own_additions()?;
        Ok(output::code(self.learn(reads, old, &stop)))
    }

    /// Becomes the command; returns only if that fails.
    pub(super) fn become_command(&self, words: &[OsString]) -> ExitCode {
        let mut command = match WatchedCommand::new(words, StartState::now()) {
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
        format!("the reads of a start of {} are not learned: {why}", self.name.as_str())
    }

    /// Watches the command from the process beside it.
    fn watch(&self, watcher: &CommandWatcher<'_>, old: Option<SavedPages>) {
        let Ok(stop) = Stop::on_signals() else { return watcher.refuse("signals can't be caught") };
        let mut reads = match StartReads::start(None, described) {
            Ok(reads) => reads,
            Err(why) => {
                watcher.refuse(&why.to_string());
                return self.load_alone(old, &stop, &|| watcher.is_gone());
            }
        };
        let Some(pid) = watcher.wait_for_command() else { return };
        let followed = reads.follow(pid).and_then(|()| reads.expect_own_additions());
        watcher.let_start();
        if let Err(why) = followed {
            output::complain(self.not_learned(&why));
            watcher.leave_stderr();
            return self.load_alone(old, &stop, &|| watcher.is_gone());
        }
        self.learn(reads, old, &stop);
    }

    /// Loads the old recording ahead of a start whose reads can't be seen.
    fn load_alone(&self, old: Option<SavedPages>, stop: &Stop, is_gone: &dyn Fn() -> bool) {
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let load = || load_ahead(old, self.threads_max(), None, &is_over);
            let Ok(loading) = Builder::new().spawn_scoped(scope, load) else { return };
            while !loading.is_finished() && began.elapsed() < self.duration {
                if stop.requested() || is_gone() {
                    break;
                }
                std::thread::sleep(EVENT_INTERVAL);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    fn threads_max(&self) -> u16 {
        if self.is_unit { THREADS_MAX } else { THREADS_BESIDE_MAX }
    }

    /// Records a start while the old recording is loaded, and replaces that; returns whether that
    /// succeeded.
    fn learn(&self, mut reads: StartReads<SavedFile>, old: Option<SavedPages>, stop: &Stop) -> bool {
        let (is_over, loaded) = self.record(&mut reads, old.clone(), stop);
        if reads.begun_for().is_none() {
            let name = self.name.as_str();
            output::complain(format_args!("no start of {name} was seen: its recording stays as it is"));
            return true;
        }
        self.save(reads.end(), Earlier { old, loaded, is_over })
    }

    /// Loads the old recording and records until the start is over. Returns whether that was seen,
    /// and what was loaded.
    fn record(
        &self,
        reads: &mut StartReads<SavedFile>,
        old: Option<SavedPages>,
        stop: &Stop,
    ) -> (bool, LoadedAhead) {
        let (is_done, used) = (AtomicBool::new(false), UsedAhead::default());
        let seen = reads.sees_use().then_some(&used);
        std::thread::scope(|scope| {
            let load = || load_ahead(old, self.threads_max(), seen, &is_done);
            let loading = Builder::new().spawn_scoped(scope, load);
            let end = SetAtEnd(&is_done);
            let is_over = self.until_over(reads, &used, stop);
            drop(end);
            (is_over, loading.map_or_else(|_| LoadedAhead::default(), joined))
        })
    }

    /// Records until the start is over; returns false if it was cut short.
    fn until_over(&self, reads: &mut StartReads<SavedFile>, used: &UsedAhead, stop: &Stop) -> bool {
        // Between its processes, a unit has none.
        let gone_time = if self.is_unit { UNIT_GONE_TIME } else { Duration::ZERO };
        loop {
            reads.step();
            reads.take_used(|file, bytes| used.add(file.inode, bytes));
            let is_late = reads.begun_for().is_some_and(|begun| begun >= self.duration);
            if reads.quiet_for() >= QUIET_TIME || is_late {
                return reads.is_running();
            }
            if stop.requested() || reads.gone_for().is_some_and(|gone| gone >= gone_time) {
                return false;
            }
            std::thread::sleep(EVENT_INTERVAL);
        }
    }

    /// Replaces the recording; returns whether that succeeded.
    fn save(&self, recorded: RecordedReads<SavedFile>, earlier: Earlier) -> bool {
        let (direct_bytes, loaded_bytes) = (recorded.direct_bytes, earlier.loaded.bytes);
        let mut new = recording_of(recorded.steps);
        let read_bytes = bytes_of(&new.files);
        earlier.add_to(&mut new, recorded.is_exact);
        let name = self.name.as_str();
        if let Err(error) = self.recordings.write(self.name, &new) {
            let path = self.recordings.path(self.name);
            output::complain(format_args!("can't write {}: {error}", escaped(&path)));
            return false;
        }
        let ahead = match loaded_bytes {
            0 => String::new(),
            bytes => format!("; {} was loaded ahead of it", ByteSize(bytes)),
        };
        output::complain(format_args!("this start of {name} read {}{ahead}", ByteSize(read_bytes)));
        if bytes_of(&new.files) < WORTH_BYTES {
            output::complain(nothing_to_gain(name, direct_bytes));
        }
        true
    }
}

/// Sets a flag when it is dropped: also by a panic, which would wait for the loading threads.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The older recording of a service, at the end of a start.
#[derive(Debug)]
struct Earlier {
    /// The older recording.
    old: Option<SavedPages>,
    /// Its entries with the files of this start.
    loaded: LoadedAhead,
    /// Whether the end of this start was seen.
    is_over: bool,
}

impl Earlier {
    /// Adds the entries that this start says nothing about to its recording. `is_exact` says
    /// whether all reads of loaded pages were seen.
    fn add_to(self, new: &mut SavedPages, is_exact: bool) {
        let mut kept = match (self.is_over, self.old) {
            (true, _) if self.loaded.was_begun => {
                let entries = self.loaded.files.into_iter().zip(self.loaded.judged);
                entries.filter(|(_, is_judged)| !is_exact || !is_judged).map(|(file, _)| file).collect()
            }
            (_, Some(old)) => {
                // Files that replaced those of the older recording were written since that one.
                new.created = new.created.min(old.created);
                old.files
            }
            (_, None) => Vec::new(),
        };
        kept = kept_of(kept, &new.files);
        kept.truncate(KEPT_ENTRIES_MAX);
        new.files.extend(kept);
    }
}

/// Returns a recording of these steps.
fn recording_of(steps: Vec<ReadStep<SavedFile>>) -> SavedPages {
    let mut recording = SavedPages::begin();
    let page = recording.page_size;
    let in_pages = |(file, ranges): ReadStep<SavedFile>| SavedFile {
        extents: ranges.into_iter().map(|range| range.start / page..range.end / page).collect(),
        ..file
    };
    recording.files = steps.into_iter().map(in_pages).collect();
    recording
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
    let options =
        WarmOptions { width: width_of(&recording.files).min(THREADS_MAX).into(), ..exact_options() };
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

/// Describes a file that a start reads, unless its path means nothing after a restart.
fn described(file: &InspectedFile) -> Option<SavedFile> {
    if file.path().starts_with(OTHERS_MOUNTS) {
        return None;
    }
    SavedFile::without_pages(file).ok()
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]

    use std::ops::Range;

    use pagekeeper_kernel::Inode;
    use pagekeeper_observe::saved_pages::SavedTime;

    use super::*;

    #[test]
    fn a_start_with_nothing_to_load_is_reported_with_the_reason() {
        assert_eq!(
            nothing_to_gain("mariadb", 0),
            "a start of mariadb reads less than 4 MiB through the page cache: there is nothing to load ahead of it"
        );
        assert!(nothing_to_gain("mariadb", 1 << 30).contains(", and 1 GiB past it (direct I/O): there"));
    }

    fn entry<const N: usize>(path: &str, extents: [Range<u64>; N]) -> SavedFile {
        let time = SavedTime { seconds: 1, nanos: 0 };
        SavedFile {
            path: path.into(),
            inode: Inode { dev: 1, ino: 1 },
            size: 1 << 20,
            changed: time,
            last_used: time,
            extents: extents.into(),
        }
    }

    /// Returns the recording of a start that read two pages of "/a", and the time it is from.
    fn completed(is_over: bool, is_exact: bool, was_begun: bool) -> (i64, Vec<SavedFile>) {
        let created = |seconds| SavedTime { seconds, nanos: 0 };
        let old = SavedPages {
            created: created(10),
            page_size: 4096,
            files: vec![entry("/a", [0..4]), entry("/gone", [0..1])],
        };
        let files = vec![entry("/a", [0..4]), entry("/new", [0..1]), entry("/warm", [0..1])];
        let loaded = LoadedAhead { was_begun, bytes: 1, files, judged: vec![true, true, false] };
        let mut new = SavedPages { created: created(20), page_size: 4096, files: vec![entry("/a", [1..3])] };
        Earlier { old: Some(old), loaded, is_over }.add_to(&mut new, is_exact);
        (new.created.seconds, new.files)
    }

    #[test]
    fn entries_that_a_start_does_not_decide_stay() {
        let (read, rest) = (entry("/a", [1..3]), entry("/a", [0..1, 3..4]));
        let [new, warm, gone] = ["/new", "/warm", "/gone"].map(|path| entry(path, [0..1]));
        assert_eq!(completed(true, true, true), (20, vec![read.clone(), warm.clone()]));
        assert_eq!(completed(true, false, true), (20, vec![read.clone(), rest.clone(), new, warm]));
        // Cut short, or not loaded: the older recording stays, and files since then are new.
        for is_over in [true, false] {
            let older = (10, vec![read.clone(), rest.clone(), gone.clone()]);
            assert_eq!(completed(is_over, true, !is_over), older);
        }
    }
}
