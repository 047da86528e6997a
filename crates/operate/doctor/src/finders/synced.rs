//! Logs whose syncs wait for data that others wrote to the same device: how long, in which file,
//! and whose data.
//!
//! A sync is not throttling because of dirty pages. The thread waits in fdatasync(2) for the
//! device's queue, and on ext4 and XFS also for the journal's transaction, which orders others'
//! data before it. Higher limits on dirty pages lengthen that wait; lower ones for the device
//! shorten it.
//!
//! Only logs are considered: a long sync of a checkpoint's tables is normal.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use pagekeeper_policy::FileClass;
use pagekeeper_text::{counted, duration, unescaped};

use super::throttled::{help, whose};
use super::{EarlierFindings, dirty_limits};
use crate::advice::move_log_of;
use crate::observation::called;
use crate::observed::attribution::{self, OutputOwner, database_of};
use crate::observed::syncs::SyncTimes;
use crate::phrases::file_name;
use crate::texts::{known, text};
use crate::{
    Advised, Cost, Evidence, Finding, Fix, Goal, Kind, Observation, SeenSync, Severity, SyncedFile, Syncs,
};

/// Shorter syncs are not reported: a disk with a queue takes this long.
const LONG_SYNC: Duration = Duration::from_millis(100);
/// From this on it is serious, and reported whatever it waited for.
const SERIOUS_SYNC: Duration = Duration::from_secs(1);
/// Less data of others does not delay a sync for long.
const SYNC_FILLER_BYTES_MIN: u64 = 4 << 20;

/// Returns the logs whose syncs wait.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    let mut logs: BTreeMap<(usize, String, FileClass), Vec<&SeenSync>> = BTreeMap::new();
    for (file, calls) in observation.syncs.iter().flat_map(Syncs::by_file) {
        let Some(index) = database_of(observation, &calls[0].task) else { continue };
        let Some(class) = class_of(observation, index, file) else { continue };
        logs.entry((index, observation.device_of(file), class)).or_default().extend(calls);
    }
    let logs = logs.into_iter().map(|((index, device, class), calls)| SyncedLog {
        index,
        times: SyncTimes::of(&calls),
        device,
        class,
        calls,
    });
    logs.filter_map(|log| log.finding(observation)).collect()
}

/// Returns the class of the log that a database's task synced; `None` if it is not a log.
fn class_of(observation: &Observation<'_>, index: usize, file: &SyncedFile) -> Option<FileClass> {
    let known = observation.synced_file(file).and_then(|file| file.class);
    // A log that was created and removed during the watch is in neither snapshot.
    let class = known.or_else(|| observation.after.databases[index].profile.class_of(&file.path))?;
    Some(class).filter(|class| class.is_log())
}

/// The syncs of one database's logs of a class on a device; there is at least one.
struct SyncedLog<'a> {
    index: usize,
    device: String,
    class: FileClass,
    calls: Vec<&'a SeenSync>,
    times: SyncTimes,
}

/// The owner of the data that the syncs waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum QueueFiller {
    /// A program other than the database.
    Program(String),
    /// The database itself, or another one.
    Database(usize),
    /// Somebody who wrote it before the observation.
    Earlier,
    /// Unknown: nobody was seen to write much.
    Unknown,
}

impl SyncedLog<'_> {
    fn finding(&self, observation: &Observation<'_>) -> Option<Finding> {
        let filler = self.filler(observation);
        let least = if filler == QueueFiller::Unknown { SERIOUS_SYNC } else { LONG_SYNC };
        if self.times.longest < least {
            return None;
        }
        let looked = observation.syncs.as_ref()?.looked;
        let is_often = self.times.p99 >= LONG_SYNC && self.times.waited >= looked / 2;
        let is_serious = self.times.longest >= SERIOUS_SYNC || is_often;
        let Advised { fixes, remarks } = self.fixes(observation, &filler);
        let SyncTimes { waited, p99, longest, .. } = self.times;
        let values: &[(&str, &dyn Display)] = &[
            ("class", &self.class),
            ("waited", &duration(waited)),
            ("looked", &duration(looked)),
            ("p99", &duration(p99)),
            ("longest", &duration(longest)),
            ("cause", &self.waits_for(observation, &filler)),
        ];
        Some(Finding {
            kind: Kind::SyncedLog,
            severity: if is_serious { Severity::Serious } else { Severity::Warning },
            database: Some(observation.subject(self.index)),
            title: text("synced.title", values),
            evidence: self.evidence(observation, looked),
            cost: Cost::measured(text("synced.cost", &[("longest", &duration(longest))])),
            fixes,
            remarks,
            pagekeeper: None,
        })
    }

    /// Returns whose data the syncs wait for, in words.
    fn waits_for(&self, observation: &Observation<'_>, filler: &QueueFiller) -> String {
        let by = |name: &str| format!("that {name} wrote to the same device");
        match filler {
            QueueFiller::Program(name) => format!("data {}", by(name)),
            QueueFiller::Database(index) if *index == self.index => format!("other data {}", by("it")),
            QueueFiller::Database(index) => {
                format!("data {}", by(&called(&observation.after.databases[*index])))
            }
            QueueFiller::Earlier => "data that was written to the same device before".to_owned(),
            QueueFiller::Unknown => String::new(),
        }
    }

    /// Returns who wrote most to the device, apart from this log.
    fn filler(&self, observation: &Observation<'_>) -> QueueFiller {
        let all = attribution::on_device(observation, &self.device).unwrap_or_default();
        let is_own = |owner: &OutputOwner| *owner == OutputOwner::Database(self.index);
        let mut owners: BTreeMap<&OutputOwner, u64> = BTreeMap::new();
        for written in all.iter().filter(|written| !(is_own(&written.owner) && written.is_log())) {
            *owners.entry(&written.owner).or_default() += written.bytes;
        }
        let most = owners
            .into_iter()
            .max_by_key(|(_, bytes)| *bytes)
            .filter(|(_, bytes)| *bytes >= SYNC_FILLER_BYTES_MIN);
        match most {
            Some((OutputOwner::Database(index), _)) => QueueFiller::Database(*index),
            Some((OutputOwner::Process(_, name), _)) => QueueFiller::Program(name.clone()),
            None if self
                .unwritten(observation)
                .is_some_and(|(before, after)| before.max(after) >= SYNC_FILLER_BYTES_MIN) =>
            {
                QueueFiller::Earlier
            }
            None => QueueFiller::Unknown,
        }
    }

    /// Returns what was dirty or under writeback for the device at both ends of the observation;
    /// `None` if unknown.
    fn unwritten(&self, observation: &Observation<'_>) -> Option<(u64, u64)> {
        let of = |devices: &[(u64, pagekeeper_kernel::pressure::BackingDevice)]| {
            let stats = devices.iter().find(|(_, device)| device.name == self.device)?.1.stats?;
            Some(stats.dirty + stats.writeback)
        };
        Some((of(&observation.before.host.devices)?, of(&observation.after.host.devices)?))
    }

    fn evidence(&self, observation: &Observation<'_>, looked: Duration) -> Vec<Evidence> {
        let mut evidence = vec![self.of_file(looked)];
        if let Some((before, after)) = self.unwritten(observation) {
            evidence.push(
                Evidence::of("synced.unwritten")
                    .with("device", self.device.as_str())
                    .with("unwritten_before_bytes", before)
                    .with("unwritten_bytes", after),
            );
        }
        evidence.push(whose(observation, &self.device));
        let lost = observation.syncs.as_ref().map_or(0, |syncs| syncs.lost);
        if lost > 0 {
            let found_no_room = Evidence::of("synced.lost").with("lost_syncs", lost);
            evidence.push(found_no_room.say("count", counted(lost, "sync", "syncs")));
        }
        evidence
    }

    /// Returns the file in which most of the time was spent.
    fn of_file(&self, looked: Duration) -> Evidence {
        let slowest = self.calls.iter().max_by_key(|call| call.took);
        let file = slowest.and_then(|call| call.file.as_ref());
        let mut callers: Vec<u32> = self.calls.iter().map(|call| call.task.thread).collect();
        callers.sort_unstable();
        callers.dedup();
        let go_on = Some(self.times.go_on).filter(|many| *many > 0);
        Evidence::of("synced.file")
            .with("device", self.device.as_str())
            .with("syncs", self.times.count)
            .with("synced_seconds", self.times.waited.as_secs_f64())
            .with("watched_seconds", looked.as_secs_f64())
            .with("p99_seconds", self.times.p99.as_secs_f64())
            .with("longest_seconds", self.times.longest.as_secs_f64())
            .with_known("path", file.map(|file| unescaped(&file.path)))
            .say("count", counted(self.times.count, "sync", "syncs"))
            .say("threads", counted(callers.len(), "thread", "threads"))
            .say("call", slowest.map_or("sync", |call| call.call))
            .say("name", file.map_or_else(|| "a file".to_owned(), |file| file_name(&file.path)))
            .say("go_on", known(go_on))
    }

    fn fixes(&self, observation: &Observation<'_>, filler: &QueueFiller) -> Advised {
        let mut advised = Advised::default();
        match filler {
            QueueFiller::Program(_) => {
                let other = help::most_by_another(observation, [self.device.as_str()].into_iter());
                advised.fixes.extend(other.iter().flat_map(|name| help::of_another(name)));
            }
            QueueFiller::Database(index) => advised = observation.advise(Goal::SteadyWriteback, *index),
            QueueFiller::Earlier => advised.remarks.push(text("synced.remark-earlier", &[])),
            QueueFiller::Unknown => advised.remarks.push(text("synced.remark-unknown", &[])),
        }
        if *filler != QueueFiller::Unknown {
            advised.fixes.extend(dirty_limits::cap(observation, &self.device));
        }
        advised.fixes.extend(self.moved(observation));
        advised
    }

    /// Returns the fix that moves the log to another disk.
    fn moved(&self, observation: &Observation<'_>) -> Option<Fix> {
        let file = self.calls.iter().find_map(|call| call.file.as_ref())?;
        move_log_of(observation, self.index, self.class, &file.path)
    }
}

#[cfg(test)]
mod tests;
