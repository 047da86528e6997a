//! Databases whose writes are throttled because of dirty pages, whose pages these are, and whether
//! the waiting log shares a device with the output that fills the limits.
//!
//! A write into the page cache returns at once until too much is dirty. Then the kernel makes every
//! writer wait (`balance_dirty_pages`), whoever dirtied the pages. The owner of the output is
//! derived from page-cache additions ([`attribution`](crate::observed::attribution)).
//!
//! Background threads are reported separately: the limits are meant to throttle them.
//!
//! Without tracing there are no tasks: then [`dirty_limits`] reports that so much is dirty that
//! writers are being throttled.

pub(super) mod help;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use pagekeeper_observe::File;
use pagekeeper_policy::FileClass;
use pagekeeper_text::{ByteSize, counted, duration, escaped, percent, unescaped};
use pagekeeper_trace::{DirtyLevels, PauseCounts, TaskIdentity};

use super::{EarlierFindings, dirty_limits};
use crate::advice::{move_log_of, uncertain};
use crate::observation::called;
use crate::observed::attribution::{self, DeviceOutput, OutputOwner};
use crate::phrases::{file_name, process};
use crate::texts::{known, text};
use crate::{Advised, Cost, Evidence, Finding, Fix, Goal, Kind, Observation, Severity};

/// Maximum number of tasks listed; the others are summed up.
const LISTED_TASKS_MAX: usize = 4;
/// Minimum bytes of bulk output.
const BULK_BYTES_MIN: u64 = 4 << 20;
/// A wait of this length, or of one part in this many of the watch, is serious.
const LONG_WAIT: Duration = Duration::from_millis(50);
const LONG_WAIT_PART: u32 = 100;
/// A log is worth moving if it has at least one part in this many of everything written to logs.
const LOG_WORTH_MOVING_PART: u64 = 10;

/// PostgreSQL's background processes.
const BACKGROUND_PROCESSES: [&str; 4] =
    ["checkpointer", "background writer", "walwriter", "autovacuum worker"];

/// Returns the databases whose writers were throttled, and those whose log shares the device with
/// the cause.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    let Some(pauses) = observation.trace().and_then(|trace| trace.pauses.as_ref()) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (index, _) in observation.databases() {
        let own = pauses.iter().filter(|pause| is_throttled(observation, pause, index));
        let found = ThrottledWriters { index, pauses: own.collect() };
        if !found.pauses.is_empty() {
            let finding = found.finding(observation);
            findings.extend(found.shared(observation, finding.severity));
            findings.push(finding);
        }
    }
    findings
}

fn is_throttled(observation: &Observation<'_>, pause: &PauseCounts, database: usize) -> bool {
    pause.pauses.count() > 0 && attribution::database_of(observation, &pause.task) == Some(database)
}

/// The pauses of one database's tasks; each has at least one.
struct ThrottledWriters<'a> {
    index: usize,
    pauses: Vec<&'a PauseCounts>,
}

impl ThrottledWriters<'_> {
    /// Groups the pauses by device.
    fn devices(&self) -> BTreeMap<&str, Vec<&PauseCounts>> {
        let mut devices: BTreeMap<&str, Vec<&PauseCounts>> = BTreeMap::new();
        for pause in &self.pauses {
            devices.entry(&pause.device).or_default().push(pause);
        }
        devices
    }

    fn finding(&self, observation: &Observation<'_>) -> Finding {
        let (background, own): (Vec<&PauseCounts>, Vec<&PauseCounts>) =
            self.pauses.iter().partition(|pause| is_background(observation, &pause.task));
        let of = if own.is_empty() { &background } else { &own };
        let all = PauseSum::of(of);
        let mut evidence = Vec::new();
        for (device, pauses) in self.devices() {
            evidence.extend(tasks(observation, device, pauses.clone()));
            evidence.push(levels(device, &pauses));
            evidence.push(whose(observation, device));
        }
        evidence.extend(losses(observation));
        let database = &observation.after.databases[self.index];
        let Advised { mut fixes, mut remarks } = observation.advise(Goal::SteadyWriteback, self.index);
        let other = help::most_by_another(observation, self.devices().into_keys());
        fixes.extend(other.iter().flat_map(|name| help::of_another(name)));
        // The command and its effect are in the finding about the limits, which accompanies this
        // one.
        let (own_limit, whole): (Vec<&PauseCounts>, Vec<&PauseCounts>) =
            self.pauses.iter().partition(|pause| dirty_limits::is_devices_own(pause));
        if !own_limit.is_empty() {
            remarks.push(text("throttled.remark-device", &[]));
        }
        if !whole.is_empty() && dirty_limits::raise(observation).is_some() {
            remarks.push(text("throttled.remark-raise", &[]));
        }
        let who = if own.is_empty() { "background threads" } else { "writers" };
        let values: &[(&str, &dyn Display)] = &[
            ("who", &who),
            ("times", &times(all.count)),
            ("throttled", &duration(all.total)),
            ("period", &duration(observation.period())),
        ];
        Finding {
            kind: Kind::WritersThrottled,
            severity: if own.is_empty() { Severity::Note } else { all.severity(observation.period()) },
            database: Some(observation.subject(self.index)),
            title: text("throttled.title", values),
            evidence,
            cost: Cost::measured(self.cost(observation, own.is_empty(), &all)),
            fixes,
            remarks,
            pagekeeper: Some(help::pagekeeper(database, other.as_deref())),
        }
    }

    /// Returns a finding if a device holds the database's log and takes the bulk output that
    /// throttled its writers.
    fn shared(&self, observation: &Observation<'_>, severity: Severity) -> Option<Finding> {
        let devices = self.devices();
        devices.keys().find_map(|device| {
            let logs: Vec<&File> = observation
                .files_of(self.index)
                .filter(|file| file.class.is_some_and(FileClass::is_log) && !file.is_direct_only())
                .filter(|file| attribution::device_name(observation, file.inode.dev) == *device)
                .collect();
            let largest = logs.iter().max_by_key(|file| file.size)?;
            let all = attribution::on_device(observation, device)?;
            let (own, bulk): (Vec<&DeviceOutput<'_>>, Vec<&DeviceOutput<'_>>) = all
                .iter()
                .partition(|written| written.owner == OutputOwner::Database(self.index) && written.is_log());
            let sum = |of: &[&DeviceOutput<'_>]| of.iter().map(|written| written.bytes).sum::<u64>();
            let log = own.iter().find_map(|written| written.path).unwrap_or(&largest.path);
            let fixes = self.moves(observation, &own, largest);
            let (own, output) = (sum(&own), sum(&bulk));
            // A log overwritten in place brings no pages in, but has dirty ones.
            let unwritten: u64 = logs.iter().map(|file| file.unwritten()).sum();
            if output < BULK_BYTES_MIN || output < own / 4 || own.max(unwritten) == 0 {
                return None;
            }
            let log_pages = match own {
                0 => format!("{} of log are dirty, for", ByteSize(unwritten)),
                own => format!("{} of log were written to", ByteSize(own)),
            };
            let mut evidence = vec![
                Evidence::of("shared-device.log")
                    .with("device", *device)
                    .with("log_bytes", own)
                    .with("log_path", unescaped(log))
                    .say("pages", log_pages)
                    .say("where", device_words(observation, device))
                    .say("name", file_name(log)),
            ];
            let worth = bulk.iter().filter(|written| written.bytes >= output / 100);
            evidence.extend(
                worth.take(LISTED_TASKS_MAX).map(|written| output_of(observation, written, own + output)),
            );
            Some(Finding {
                kind: Kind::SharedDevice,
                severity,
                database: Some(observation.subject(self.index)),
                title: text("shared-device.title", &[("device", device)]),
                evidence,
                cost: Cost::estimated(text("shared-device.cost", &[])),
                fixes,
                remarks: self.remarks(observation),
                pagekeeper: None,
            })
        })
    }
}

impl ThrottledWriters<'_> {
    /// Describes the cost. Syncs are separate waits, which are in no pause.
    fn cost(&self, observation: &Observation<'_>, only_background: bool, all: &PauseSum) -> String {
        let syncs = observation.sync_times_of(self.index);
        let waited = syncs.filter(|syncs| syncs.longest >= LONG_WAIT);
        let of_syncs = waited.map(|syncs| {
            let (waited, longest) = (duration(syncs.waited), duration(syncs.longest));
            format!("; apart from that its threads waited in syncs for {waited}, the longest {longest}")
        });
        if only_background {
            let others = match (syncs, of_syncs) {
                (_, Some(of_syncs)) => of_syncs,
                (Some(_), None) => "; none of its other threads had to wait".to_owned(),
                (None, None) => "; whether others waited in syncs was not checked".to_owned(),
            };
            return text("throttled.cost-background", &[("others", &others)]);
        }
        let others = match (syncs, of_syncs) {
            (_, Some(of_syncs)) => of_syncs,
            (Some(_), None) => ", although their data did not have to be on disk".to_owned(),
            (None, None) => String::new(),
        };
        let values: &[(&str, &dyn Display)] = &[
            ("total", &duration(all.total)),
            ("period", &duration(observation.period())),
            ("longest", &duration(all.longest)),
            ("others", &others),
        ];
        text("throttled.cost", values)
    }

    /// Returns why no setting is named that moves a log.
    fn remarks(&self, observation: &Observation<'_>) -> Vec<String> {
        observation.settings_of(self.index).and_then(uncertain).into_iter().collect()
    }

    /// Returns the fixes that move the logs written to the device, or the largest one if none was
    /// seen to be written.
    fn moves(&self, observation: &Observation<'_>, own: &[&DeviceOutput<'_>], largest: &File) -> Vec<Fix> {
        let all: u64 = own.iter().map(|written| written.bytes).sum();
        let mut logs: Vec<(FileClass, &Path)> = own
            .iter()
            .filter(|written| written.bytes >= all / LOG_WORTH_MOVING_PART)
            .filter_map(|written| Some((written.class?, written.path?)))
            .collect();
        if logs.is_empty() {
            logs.extend(largest.class.map(|class| (class, largest.path.as_path())));
        }
        logs.into_iter()
            .filter_map(|(class, path)| move_log_of(observation, self.index, class, path))
            .collect()
    }
}

/// A sum of pauses.
struct PauseSum {
    count: u64,
    total: Duration,
    longest: Duration,
}

impl PauseSum {
    fn of(pauses: &[&PauseCounts]) -> Self {
        Self {
            count: pauses.iter().map(|pause| pause.pauses.count()).sum(),
            total: pauses.iter().map(|pause| pause.pauses.total()).sum(),
            longest: pauses.iter().map(|pause| pause.longest_wait).max().unwrap_or_default(),
        }
    }

    fn severity(&self, period: Duration) -> Severity {
        if self.longest >= LONG_WAIT || self.total >= period / LONG_WAIT_PART {
            Severity::Serious
        } else {
            Severity::Warning
        }
    }
}

/// Whether a thread works in the background, where being slowed is intended. RocksDB names its
/// flushing and merging threads, in every program that embeds it. PostgreSQL has processes, which
/// show it in their titles.
pub(crate) fn is_background(observation: &Observation<'_>, task: &TaskIdentity) -> bool {
    // "postgres: checkpointer", or "postgres: NAME OF THE CLUSTER: checkpointer".
    let work = |title: &str| Some(title.strip_prefix("postgres: ")?.rsplit(": ").next()?.to_owned());
    let streamer = observation.streamers.iter().find(|streamer| streamer.pid == task.process);
    let work = streamer.and_then(|streamer| work(&streamer.title)).unwrap_or_default();
    task.name.starts_with("rocksdb:") || BACKGROUND_PROCESSES.iter().any(|name| work.starts_with(name))
}

/// Lists the tasks throttled for a device, longest first.
fn tasks(observation: &Observation<'_>, device: &str, mut pauses: Vec<&PauseCounts>) -> Vec<Evidence> {
    pauses.sort_by_key(|pause| {
        (is_background(observation, &pause.task), std::cmp::Reverse(pause.pauses.total()), pause.task.thread)
    });
    let (named, others) = pauses.split_at(pauses.len().min(LISTED_TASKS_MAX));
    let on = device_words(observation, device);
    let mut evidence: Vec<Evidence> = named
        .iter()
        .map(|pause| {
            Evidence::of("throttled.task")
                .with("task", pause.task.name.as_str())
                .with("process", pause.task.process)
                .with("thread", pause.task.thread)
                .with("background", is_background(observation, &pause.task))
                .with("device", device)
                .with("pauses", pause.pauses.count())
                .with("waits", pause.waits)
                .with("throttled_seconds", pause.pauses.total().as_secs_f64())
                .with("longest_wait_seconds", pause.longest_wait.as_secs_f64())
                .say("times", times(pause.pauses.count()))
                .say("writes", counted(usize::try_from(pause.waits).unwrap_or(usize::MAX), "write", "writes"))
                .say("on", &on)
        })
        .collect();
    if !others.is_empty() {
        let sum = PauseSum::of(others);
        evidence.push(
            Evidence::of("throttled.more")
                .with("tasks", others.len())
                .with("pauses", sum.count)
                .with("throttled_seconds", sum.total.as_secs_f64())
                .say("times", times(sum.count)),
        );
    }
    evidence
}

/// Describes how full the limits were when tasks were throttled for a device.
fn levels(device: &str, pauses: &[&PauseCounts]) -> Evidence {
    let count = pauses.iter().map(|pause| u128::from(pause.pauses.count())).sum::<u128>().max(1);
    let mean = |of: fn(&DirtyLevels) -> u64| {
        let sum = pauses.iter().map(|pause| u128::from(of(&pause.levels)) * u128::from(pause.pauses.count()));
        u64::try_from(sum.sum::<u128>() / count).unwrap_or(u64::MAX)
    };
    let (dirty, begins, limit) =
        (mean(|levels| levels.dirty), mean(DirtyLevels::threshold), mean(|levels| levels.limit));
    let (on_device, steered) = (mean(|levels| levels.device_dirty), mean(|levels| levels.device_setpoint));
    let id = if dirty > begins { "throttled.levels" } else { "throttled.levels-of-device" };
    Evidence::of(id)
        .with("device", device)
        .with("dirty_bytes", dirty)
        .with("throttling_begins_bytes", begins)
        .with("over_bytes", dirty.saturating_sub(begins))
        .with("limit_bytes", limit)
        .with("device_dirty_bytes", on_device)
        .with("device_setpoint_bytes", steered)
}

/// Describes each owner's share of the output to a device.
pub(super) fn whose(observation: &Observation<'_>, device: &str) -> Evidence {
    let unknown = |id| Evidence::new(text(id, &[("device", &device)]));
    let Some(all) = attribution::on_device(observation, device) else {
        return unknown("throttled.untraced");
    };
    let total: u64 = all.iter().map(|written| written.bytes).sum();
    if total == 0 {
        return unknown("throttled.none-added");
    }
    let parts: Vec<String> = all
        .iter()
        .take(LISTED_TASKS_MAX)
        .filter(|written| written.bytes >= total / 100)
        .map(|written| format!("{} {}", percent(written.bytes, total, 0), owner(observation, written)))
        .collect();
    let shares = all.iter().take(LISTED_TASKS_MAX).map(|written| {
        serde_json::json!({
            "owner": owner(observation, written),
            "class": written.class.map(|class| class.to_string()),
            "bytes": written.bytes,
        })
    });
    Evidence::of("throttled.shares")
        .with("device", device)
        .with("written_bytes", total)
        .with("shares", serde_json::Value::Array(shares.collect()))
        .say("parts", parts.join(", "))
}

/// Formats the owner: "by rocksdb (process 7) to its data files".
fn owner(observation: &Observation<'_>, written: &DeviceOutput<'_>) -> String {
    match &written.owner {
        OutputOwner::Database(index) => {
            let what = match written.class {
                Some(class) if written.is_log() => format!("its log ({class})"),
                Some(class) => format!("its {class} files"),
                None => "other files".to_owned(),
            };
            format!("by {} to {what}", called(&observation.after.databases[*index]))
        }
        OutputOwner::Process(pid, name) => format!("by {}", process(name, *pid)),
    }
}

/// Describes one kind of output to a shared device.
fn output_of(observation: &Observation<'_>, written: &DeviceOutput<'_>, total: u64) -> Evidence {
    Evidence::of("shared-device.output")
        .with("bytes", written.bytes)
        .with_known("path", written.path.map(unescaped))
        .say("written", ByteSize(written.bytes))
        .say("share", percent(written.bytes, total, 0))
        .say("owner", owner(observation, written))
        .say("like", known(written.path.map(file_name)))
}

/// Formats a device: "device 7:0, which holds /var/lib/x".
fn device_words(observation: &Observation<'_>, device: &str) -> String {
    let databases = observation.databases().filter(|(index, _)| {
        observation
            .files_of(*index)
            .any(|file| attribution::device_name(observation, file.inode.dev) == device)
    });
    let mut directories = databases.filter_map(|(_, database)| database.directories.first());
    let directory = directories.next();
    match directory {
        Some(directory) => format!("device {device}, which holds {}", escaped(directory)),
        None => format!("device {device}"),
    }
}

/// Returns the events missing from the counts.
fn losses(observation: &Observation<'_>) -> Option<Evidence> {
    let losses = observation.trace()?.losses;
    (losses.total() > 0).then(|| {
        Evidence::new(format!("the counts are too low: {losses}")).with("lost_events", losses.total())
    })
}

/// Formats a count: "once", "65 times".
fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests;
