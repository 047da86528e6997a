//! The limits on dirty pages: which form of each is in force, how full they were, and what other
//! values would change.
//!
//! The effect of another limit is an estimate from the rates during the watch. It holds only if the
//! load continues, and the text says so.

mod device;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::time::Duration;

use pagekeeper_kernel::pressure::{CgroupVersion, DirtyLimit, DirtyParameters, DirtyReport, DirtyThresholds};
use pagekeeper_policy::PAGE_BYTES;
use pagekeeper_text::{ByteSize, duration, rate, unescaped};
use pagekeeper_trace::{PauseCounts, TaskIdentity};

use super::EarlierFindings;
use crate::advice::step;
use crate::observation::called;
use crate::observed::attribution::database_of;
use crate::phrases::per_second;
use crate::texts::{known, text};
use crate::{Advised, Cost, Evidence, Finding, Fix, Kind, Observation, Severity};

pub(crate) use device::{cap, is_own as is_devices_own};

/// A limit above this percentage of dirtyable memory is not advised.
const MAX_PERCENT: u64 = 40;
/// Limits are advised in steps of this many bytes.
const DIRTY_LIMIT_STEP_BYTES: u64 = 64 << 20;
/// A limit that lasts longer than this counts as lasting forever.
const LASTS_FOREVER: Duration = Duration::from_secs(3600);

/// Returns the problems with the limits.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    let report = &observation.after.host.dirty;
    let throttled = database_pauses(observation);
    let fullest = fullest(observation);
    let mut findings = Vec::new();
    if !throttled.is_zero() || fullest >= begins(&in_force(report)) {
        findings.push(full(observation, throttled, fullest));
    }
    findings.extend(device::find(observation));
    findings.extend(odd(&report.parameters, &in_force(report), report.dirtyable));
    findings
}

/// Returns the thresholds that the kernel uses.
fn in_force(report: &DirtyReport) -> DirtyThresholds {
    report.kernel_thresholds.unwrap_or(report.thresholds)
}

/// Returns where throttling starts: halfway between background writeback and the limit.
fn begins(thresholds: &DirtyThresholds) -> u64 {
    thresholds.background.midpoint(thresholds.limit)
}

/// Returns the pauses because of the global limits, without those of a device's own limit.
fn pauses<'a>(observation: &Observation<'a>) -> impl Iterator<Item = &'a PauseCounts> + use<'a> {
    observation.pauses().filter(|pause| !is_devices_own(pause))
}

/// Returns how long the databases' tasks were throttled by them.
fn database_pauses(observation: &Observation<'_>) -> Duration {
    pauses(observation)
        .filter(|pause| database_of(observation, &pause.task).is_some())
        .map(|pause| pause.pauses.total())
        .sum()
}

/// Returns the maximum of dirty and writeback pages seen: at both ends of the watch, and when tasks
/// were throttled.
fn fullest(observation: &Observation<'_>) -> u64 {
    let levels = [observation.before, observation.after]
        .map(|snapshot| snapshot.host.dirty.dirty + snapshot.host.dirty.writeback);
    let pauses = observation.pauses();
    pauses.map(|pause| pause.levels.dirty).chain(levels).max().unwrap_or_default()
}

/// The rates during the watch, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirtyFlow {
    dirtied: u64,
    written: u64,
    /// The rate of dirtying if nobody had been throttled.
    wanted: u64,
}

impl DirtyFlow {
    /// Returns `None` if the kernel does not count it, or if nothing was watched.
    fn watched(observation: &Observation<'_>) -> Option<Self> {
        let change = observation.change()?;
        let period = observation.period();
        let dirtied = per_second(change.machine.dirtied?, period)?;
        let written = per_second(change.machine.written?, period)?;
        Some(Self { dirtied, written, wanted: dirtied + held_back(observation, period) })
    }

    /// Returns by how much pages would be dirtied faster than they are written.
    fn excess(&self) -> u64 {
        self.wanted.saturating_sub(self.written)
    }

    /// Returns how long it takes from `level` to the start of throttling with these thresholds;
    /// `None` if it is never reached.
    fn lasts(&self, level: u64, thresholds: &DirtyThresholds) -> Option<Duration> {
        let room = begins(thresholds).saturating_sub(level);
        let seconds = room.checked_div(self.excess())?;
        Some(Duration::from_secs(seconds))
    }
}

/// Returns what throttled tasks would have written during their pauses, in bytes per second: each
/// at its own rate.
fn held_back(observation: &Observation<'_>, period: Duration) -> u64 {
    let Some(trace) = observation.trace() else { return 0 };
    let mut throttled: HashMap<&TaskIdentity, Duration> = HashMap::new();
    for pause in pauses(observation) {
        *throttled.entry(&pause.task).or_default() += pause.pauses.total();
    }
    let added = trace.by_task();
    let added = added.iter().filter_map(|(task, flow)| Some((throttled.get(task)?, flow.added.bytes)));
    added
        .map(|(throttled, bytes)| {
            // A task that hardly ran says little about its rate.
            let ran = period.saturating_sub(*throttled).max(period / 10);
            let without = per_second(bytes, ran).unwrap_or_default();
            without.saturating_sub(per_second(bytes, period).unwrap_or_default())
        })
        .sum()
}

/// A higher limit, and its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LimitRaise {
    limit: u64,
    /// The duration of the burst that it is calculated for.
    burst: Duration,
    flow: DirtyFlow,
    /// The command that restores the present limit.
    undo: String,
}

impl LimitRaise {
    /// Returns the lowest limit at which the load during the watch would not have throttled
    /// anybody, with a quarter in reserve. Returns `None` if that is more than memory should hold
    /// of dirty pages.
    fn reckon(observation: &Observation<'_>, flow: DirtyFlow, fullest: u64) -> Option<Self> {
        let report = &observation.after.host.dirty;
        let thresholds = in_force(report);
        let before = observation.before.host.dirty.dirty + observation.before.host.dirty.writeback;
        let burst = observation.period();
        let heaped = flow.excess().saturating_mul(burst.as_secs().max(1));
        let level = before.saturating_add(heaped).max(fullest);
        let needed = level.saturating_add(level / 4);
        let limit = needed.saturating_mul(2).saturating_sub(thresholds.background);
        let limit = limit.max(thresholds.limit + 1).checked_next_multiple_of(DIRTY_LIMIT_STEP_BYTES)?;
        (limit <= report.dirtyable / 100 * MAX_PERCENT).then(|| Self {
            limit,
            burst,
            flow,
            undo: undo_of(report.parameters.limit, "dirty"),
        })
    }

    fn fix(&self) -> Fix {
        let DirtyFlow { written, wanted, .. } = self.flow;
        let takes = match written {
            0 => String::new(),
            written => {
                let takes = Duration::from_secs_f64(self.limit as f64 / written as f64);
                format!(", {} at the rate that was watched,", duration(takes))
            }
        };
        let values: &[(&str, &dyn Display)] = &[
            ("limit", &self.limit),
            ("limit_in_words", &ByteSize(self.limit)),
            ("wanted", &rate(wanted)),
            ("written", &rate(written)),
            ("burst", &duration(self.burst)),
            ("takes", &takes),
            ("undo", &self.undo),
        ];
        step("raise-dirty-limit", values)
    }
}

/// Returns a limit high enough for the load during the watch, as a fix. Returns `None` if no
/// sensible one exists, if the rates are unknown, or if somebody syncs: each sync waits behind the
/// dirty data of its device, and longer the more dirty data is allowed.
pub(crate) fn raise(observation: &Observation<'_>) -> Option<Fix> {
    if !synced_devices(observation).is_empty() {
        return None;
    }
    Some(LimitRaise::reckon(observation, DirtyFlow::watched(observation)?, fullest(observation))?.fix())
}

/// Returns the devices with syncs: one limit applies to all of them, and volumes may share a disk.
fn synced_devices(observation: &Observation<'_>) -> BTreeSet<String> {
    let synced = observation.syncs.iter().flat_map(|syncs| &syncs.calls);
    let mut devices: BTreeSet<String> =
        synced.filter_map(|call| Some(observation.device_of(call.file.as_ref()?))).collect();
    devices.retain(|device| observation.is_synced(device));
    devices
}

/// Returns those of them that writers are throttled for, or all if there is none.
fn capped_devices(observation: &Observation<'_>, synced: &BTreeSet<String>) -> BTreeSet<String> {
    let throttled: BTreeSet<String> = pauses(observation).map(|pause| pause.device.clone()).collect();
    let both: BTreeSet<String> = synced.intersection(&throttled).cloned().collect();
    if both.is_empty() { synced.clone() } else { both }
}

/// Returns the databases whose tasks were throttled by the global limits.
fn throttled_databases(observation: &Observation<'_>) -> String {
    let throttled = pauses(observation).filter_map(|pause| database_of(observation, &pause.task));
    let throttled: BTreeSet<usize> = throttled.collect();
    let names = throttled.into_iter().map(|index| called(&observation.after.databases[index]));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the advice for full limits.
fn fixes(observation: &Observation<'_>, flow: Option<&DirtyFlow>) -> Advised {
    let synced = synced_devices(observation);
    if synced.is_empty() {
        let raise = raise(observation).or_else(|| flow.map(no_limit_will_do));
        return Advised { fixes: raise.into_iter().collect(), remarks: Vec::new() };
    }
    let devices = synced.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    Advised {
        fixes: capped_devices(observation, &synced)
            .iter()
            .filter_map(|device| cap(observation, device))
            .collect(),
        remarks: vec![text("dirty-limits.remark-synced", &[("devices", &devices)])],
    }
}

/// Returns the finding that tasks were throttled, or that so much is dirty that they would be.
fn full(observation: &Observation<'_>, throttled: Duration, fullest: u64) -> Finding {
    let report = &observation.after.host.dirty;
    let thresholds = in_force(report);
    let flow = DirtyFlow::watched(observation);
    let over = match fullest.checked_sub(begins(&thresholds)) {
        Some(over) => format!("{} over", ByteSize(over)),
        None => "less than".to_owned(),
    };
    let mut evidence = vec![
        forms(report),
        Evidence::of("dirty-limits.fullest")
            .say("over", over)
            .say("now", ByteSize(report.dirty + report.writeback))
            .with("fullest_bytes", fullest)
            .with("dirty_bytes", report.dirty)
            .with("writeback_bytes", report.writeback),
        ages(&report.parameters),
    ];
    evidence.extend(waited_for_storage(observation));
    evidence.extend(flow.map(|flow| rates(&flow)));
    evidence.extend(devices(observation));
    let Advised { fixes, remarks } = fixes(observation, flow.as_ref());
    if remarks.is_empty() {
        evidence.extend(flow.map(|flow| alternatives(report, &flow)));
    }
    evidence.extend(groups(observation));
    let unknown =
        !traced(observation) && fullest >= begins(&thresholds) && !observation.after.databases.is_empty();
    Finding {
        kind: Kind::DirtyLimits,
        severity: if throttled.is_zero() && !unknown { Severity::Note } else { Severity::Warning },
        database: None,
        title: text(
            "dirty-limits.title",
            &[("begins", &ByteSize(begins(&thresholds))), ("fullest", &ByteSize(fullest))],
        ),
        evidence,
        cost: Cost::measured(if unknown {
            text("dirty-limits.cost-unknown", &[])
        } else if throttled.is_zero() {
            text("dirty-limits.cost-writers", &[])
        } else {
            let (throttled, period) = (duration(throttled), duration(observation.period()));
            let names = throttled_databases(observation);
            text("dirty-limits.cost", &[("names", &names), ("throttled", &throttled), ("period", &period)])
        }),
        fixes,
        remarks,
        pagekeeper: None,
    }
}

/// Whether pauses were traced by task.
fn traced(observation: &Observation<'_>) -> bool {
    observation.trace().is_some_and(|trace| trace.pauses.is_some())
}

/// Returns what is known about waits if they were not traced.
fn waited_for_storage(observation: &Observation<'_>) -> Option<Evidence> {
    let stalled = observation
        .change()?
        .machine
        .io_stalled
        .filter(|stalled| !traced(observation) && !stalled.is_zero())?;
    let evidence = Evidence::of("dirty-limits.waited").with("io_stalled_seconds", stalled.as_secs_f64());
    Some(evidence.say("period", duration(observation.period())))
}

/// Returns the form of each limit in force, and the resulting threshold.
fn forms(report: &DirtyReport) -> Evidence {
    let thresholds = in_force(report);
    Evidence::of("dirty-limits.forms")
        .with("background_bytes", thresholds.background)
        .with("throttling_begins_bytes", begins(&thresholds))
        .with("limit_bytes", thresholds.limit)
        .with("dirtyable_bytes", report.dirtyable)
        .say("background", form(report.parameters.background, "dirty_background"))
        .say("limit", form(report.parameters.limit, "dirty"))
}

fn form(limit: DirtyLimit, name: &str) -> String {
    match limit {
        DirtyLimit::Bytes(bytes) => {
            format!("vm.{name}_bytes={bytes}; vm.{name}_ratio is 0 and without effect")
        }
        DirtyLimit::Ratio(percent) => format!(
            "vm.{name}_ratio={percent}, of free memory and file pages; vm.{name}_bytes is 0 and without effect"
        ),
    }
}

fn ages(parameters: &DirtyParameters) -> Evidence {
    let (expire, writeback) = (parameters.expire_centisecs, parameters.writeback_centisecs);
    let wakes = match writeback {
        0 => "but periodic writeback is off".to_owned(),
        every => format!("by a thread that wakes every {}", centiseconds(every)),
    };
    Evidence::of("dirty-limits.ages")
        .with("dirty_expire_centiseconds", expire)
        .with("dirty_writeback_centiseconds", writeback)
        .say("expire", centiseconds(expire))
        .say("wakes", wakes)
}

fn rates(flow: &DirtyFlow) -> Evidence {
    Evidence::of("dirty-limits.rates")
        .with("dirtied_bytes_per_second", flow.dirtied)
        .with("wanted_bytes_per_second", flow.wanted)
        .with("written_bytes_per_second", flow.written)
        .say("wanted", known((flow.wanted > flow.dirtied).then(|| rate(flow.wanted))))
}

/// Returns the state by device, if the kernel shows it (debugfs).
fn devices(observation: &Observation<'_>) -> Vec<Evidence> {
    let mut found: Vec<Evidence> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (dev, after) in &observation.after.host.devices {
        let before = observation.before.host.devices.iter().find(|(other, _)| other == dev);
        let stats = before.and_then(|(_, before)| Some((before.stats?, after.stats?)));
        let Some((then, now)) = stats.filter(|_| !names.contains(&after.name.as_str())) else { continue };
        names.push(&after.name);
        let between = |then: u64, now: u64| per_second(now.saturating_sub(then), observation.period());
        let rates = between(then.dirtied, now.dirtied).zip(between(then.written, now.written));
        let Some((dirtied, written)) = rates.filter(|(dirtied, _)| *dirtied > 0) else { continue };
        found.push(
            Evidence::of("dirty-limits.device")
                .with("device", after.name.as_str())
                .with("dirtied_bytes_per_second", dirtied)
                .with("written_bytes_per_second", written)
                .with("share_of_limit_bytes", now.dirty_threshold),
        );
    }
    found
}

/// Returns how long other limits would last.
fn alternatives(report: &DirtyReport, flow: &DirtyFlow) -> Evidence {
    let twice = in_force(report).limit.saturating_mul(2);
    let others = [
        (format!("vm.dirty_bytes={twice}"), DirtyLimit::Bytes(twice)),
        ("vm.dirty_ratio=20".to_owned(), DirtyLimit::Ratio(20)),
        ("vm.dirty_ratio=50".to_owned(), DirtyLimit::Ratio(50)),
    ];
    let (mut said, mut alternatives) = (Vec::new(), Vec::new());
    for (name, limit) in others.into_iter().filter(|(_, limit)| *limit != report.parameters.limit) {
        let thresholds = DirtyParameters { limit, ..report.parameters }.thresholds(report.dirtyable);
        // The dirty level stays about where throttling starts now.
        let lasts = flow.lasts(begins(&in_force(report)), &thresholds);
        let when = match lasts.filter(|lasts| *lasts < LASTS_FOREVER) {
            Some(lasts) if lasts.is_zero() => "at once".to_owned(),
            Some(lasts) => format!("after {} s more of this", lasts.as_secs()),
            None => "hardly ever".to_owned(),
        };
        said.push(format!("with {name} ({}) {when}", ByteSize(thresholds.limit)));
        let lasts = lasts.map(|lasts| lasts.as_secs());
        alternatives.push(serde_json::json!({ "setting": name, "lasts_seconds": lasts }));
    }
    Evidence::of("dirty-limits.alternatives").with("alternatives", alternatives).say("said", said.join(", "))
}

/// Returns the databases in memory cgroups with their own dirty limits.
fn groups(observation: &Observation<'_>) -> Vec<Evidence> {
    let groups = observation.databases().filter_map(|(_, database)| {
        let group = database.cgroup.as_ref().filter(|group| group.version == CgroupVersion::V2)?;
        let limit = group.effective_limit?;
        let dirty =
            group.dirty.map_or_else(|| "an unknown number".to_owned(), |dirty| ByteSize(dirty).to_string());
        let evidence = Evidence::of("dirty-limits.group")
            .with("cgroup", unescaped(&group.directory))
            .with("cgroup_limit_bytes", limit);
        Some(evidence.say("database", called(database)).say("dirty", dirty))
    });
    groups.collect()
}

fn no_limit_will_do(flow: &DirtyFlow) -> Fix {
    step("write-less", &[("wanted", &rate(flow.wanted)), ("written", &rate(flow.written))])
}

/// Returns unusual settings of the limits, whether they are full or not.
fn odd(parameters: &DirtyParameters, thresholds: &DirtyThresholds, dirtyable: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let background = match parameters.background {
        DirtyLimit::Bytes(bytes) => bytes,
        DirtyLimit::Ratio(percent) => dirtyable / 100 * percent,
    };
    let note = |id: &str, evidence: Evidence, fix: Fix| Finding {
        kind: Kind::DirtyLimits,
        severity: Severity::Note,
        database: None,
        title: text(&format!("{id}.title"), &[]),
        evidence: vec![evidence],
        cost: Cost::estimated(text(&format!("{id}.cost"), &[])),
        fixes: vec![fix],
        remarks: Vec::new(),
        pagekeeper: None,
    };
    let quarter = thresholds.limit / 4 / PAGE_BYTES * PAGE_BYTES;
    let values: &[(&str, &dyn Display)] = &[
        ("quarter", &quarter),
        ("undo", &undo_of(parameters.background, "dirty_background")),
        ("background", &ByteSize(background)),
        ("limit", &ByteSize(thresholds.limit)),
    ];
    let lower = step("lower-background-limit", values);
    let report = |id: &str| {
        Evidence::of(&format!("{id}.evidence"))
            .with("background_bytes", background)
            .with("limit_bytes", thresholds.limit)
            .say("background", form(parameters.background, "dirty_background"))
            .say("limit", form(parameters.limit, "dirty"))
    };
    let background_id = if background >= thresholds.limit {
        Some("dirty-limits.background-above")
    } else {
        let is_close = thresholds.limit - background < thresholds.limit / 8;
        is_close.then_some("dirty-limits.background-close")
    };
    findings.extend(background_id.map(|id| note(id, report(id), lower)));
    if parameters.writeback_centisecs == 0 {
        let fix = step("periodic-writeback", &[]);
        findings.push(note("dirty-limits.writeback-off", ages(parameters), fix));
    }
    findings
}

/// Returns the command that sets one of a pair of limits to its present value.
fn undo_of(limit: DirtyLimit, name: &str) -> String {
    match limit {
        DirtyLimit::Bytes(bytes) => format!("sysctl -w vm.{name}_bytes={bytes}"),
        DirtyLimit::Ratio(percent) => format!("sysctl -w vm.{name}_ratio={percent}"),
    }
}

/// Formats hundredths of a second: "30 s".
fn centiseconds(time: u64) -> String {
    format!("{} s", time as f64 / 100.0)
}

#[cfg(test)]
mod tests;
