//! Memory shortage: free memory against the kernel's watermarks, tasks that wait for memory, and a
//! database's memory cgroup at its limit.
//!
//! Invariants: a host whose free memory is all in the page cache is not short of memory: without
//! waiting tasks there is no finding about the host. Waits are traced by task if possible, and
//! counted otherwise. The host's pressure stall information includes tasks at the limit of *their
//! cgroup*. It is the host's only if tasks had to reclaim the host's memory (`allocstall`, which
//! excludes reclaim for a cgroup).

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::time::Duration;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{CgroupVersion, MemoryCgroup};
use pagekeeper_observe::Database;
use pagekeeper_policy::FileClass;
use pagekeeper_text::{ByteSize, counted, duration, percent, rate, shell_quoted};
use pagekeeper_trace::{DurationStats, ReclaimKind};

use super::EarlierFindings;
use super::logs::{LogPages, RELEASABLE_MIN, UNWRITTEN_PART, guard_command};
use super::unwritten::{of_unwritten, unwritten};
use crate::advice::step;
use crate::observation::Observation;
use crate::observed::attribution::database_of;
use crate::phrases::{per_second, process};
use crate::texts::{known, text};
use crate::{Advised, Cost, Evidence, Finding, Fix, Goal, Kind, Severity, Streamer};

/// Minimum share of the time that tasks wait for a finding, since tasks of a busy host always wait
/// a little.
const WAITED_LEAST: f64 = 0.01;
/// Share of waits from which the finding is a warning.
const WAITED_WARNING: f64 = 0.05;
/// Share of waits from which the finding is serious.
const WAITED_SERIOUS: f64 = 0.2;
/// A cgroup with less than one part in this many of its limit unused is at it.
const AT_LIMIT_PART: u64 = 20;
/// From this many bytes per second of rereads on, a cgroup's limit has a cost (1 MiB).
const REREADS_RATE_MIN: u64 = 1 << 20;
/// Another limit is a multiple of this, in bytes.
const LIMIT_STEP_BYTES: u64 = 64 << 20;
/// Maximum number of tasks listed.
const LISTED_WAITERS_MAX: usize = 3;

/// Returns findings on the host if it is short of memory, and on each database whose cgroup is at
/// its limit.
pub(super) fn find(observation: &Observation<'_>, earlier: EarlierFindings<'_>) -> Vec<Finding> {
    let cause_of = |index| earlier.of(Kind::Stream, index).or_else(|| earlier.of(Kind::ReadAhead, index));
    let groups = observation
        .databases()
        .filter_map(|(index, database)| group(observation, index, database, cause_of(index)));
    host(observation).into_iter().chain(groups).collect()
}

/// Returns direct reclaim of one kind, by process, longest first.
fn waits(
    observation: &Observation<'_>,
    kind: ReclaimKind,
    wanted: impl Fn(u32) -> bool,
) -> Option<Vec<(String, DurationStats)>> {
    let mut processes: BTreeMap<u32, (String, DurationStats)> = BTreeMap::new();
    for counts in observation.trace()?.reclaim.as_ref()? {
        if counts.kind == kind && wanted(counts.task.process) {
            let pid = counts.task.process;
            let entry = processes
                .entry(pid)
                .or_insert_with(|| (process(&counts.task.name, pid), DurationStats::default()));
            entry.1.merge(&counts.stalls);
        }
    }
    let mut processes: Vec<_> = processes.into_values().collect();
    processes.sort_by_key(|(_, own)| std::cmp::Reverse(own.total()));
    Some(processes)
}

fn together(waits: &[(String, DurationStats)]) -> DurationStats {
    let mut all = DurationStats::default();
    for (_, own) in waits {
        all.merge(own);
    }
    all
}

fn waits_evidence(waits: &[(String, DurationStats)], where_to: &str) -> Evidence {
    let all = together(waits);
    let named: Vec<String> = waits
        .iter()
        .take(LISTED_WAITERS_MAX)
        .map(|(name, own)| {
            let times = counted(own.count(), "time", "times");
            format!("{name} {times}, {} in all, {} at most", duration(own.total()), duration(own.longest()))
        })
        .collect();
    let more = waits.len().saturating_sub(LISTED_WAITERS_MAX);
    Evidence::of("memory.waits")
        .with("stalls", all.count())
        .with("stalled_seconds", all.total().as_secs_f64())
        .with("longest_seconds", all.longest().as_secs_f64())
        .say("what", where_to)
        .say("named", named.join("; "))
        .say("more", known((more > 0).then_some(more)))
}

fn severity_of(share: f64) -> Severity {
    if share >= WAITED_SERIOUS {
        Severity::Serious
    } else if share >= WAITED_WARNING {
        Severity::Warning
    } else {
        Severity::Note
    }
}

fn share_of(time: Duration, period: Duration) -> f64 {
    if period.is_zero() { 0.0 } else { time.as_secs_f64() / period.as_secs_f64() }
}

fn host(observation: &Observation<'_>) -> Option<Finding> {
    let machine = observation.change()?.machine;
    let period = observation.period();
    let waits = waits(observation, ReclaimKind::Machine, |_| true);
    let traced = waits.as_deref().map(together);
    let traced_share = traced.map_or(0.0, |all| share_of(all.total(), period));
    let stalled = machine.memory_stalled.filter(|_| machine.allocation_stalls != Some(0));
    let pressed_share = stalled.map_or(0.0, |stalled| share_of(stalled, period));
    let share = traced_share.max(pressed_share);
    // Without durations at least the number of waits is known, which says little.
    let counted = traced.is_none() && machine.memory_stalled.is_none() && machine.allocation_stalls > Some(0);
    if share < WAITED_LEAST && !counted {
        return None;
    }
    let mut evidence = vec![free(observation)];
    if let Some(stalled) = stalled.filter(|stalled| !stalled.is_zero()) {
        evidence.push(
            Evidence::of("memory.stalled")
                .with("memory_stalled_seconds", stalled.as_secs_f64())
                .with("watched_seconds", period.as_secs_f64()),
        );
    }
    match waits.as_deref() {
        Some([]) => {}
        Some(waits) => evidence.push(waits_evidence(waits, "memory")),
        None => evidence.extend(
            machine
                .allocation_stalls
                .filter(|stalls| *stalls > 0)
                .map(|stalls| Evidence::of("memory.stalls").with("stalls", stalls)),
        ),
    }
    let refaulted = machine.refaulted.filter(|refaulted| *refaulted > 0);
    evidence.extend(refaulted.map(|bytes| Evidence::of("memory.refaulted").with("refaulted_bytes", bytes)));
    let releasable: u64 = observation
        .databases()
        .filter_map(|(index, _)| LogPages::of(observation, index).guard_may_release())
        .sum();
    Some(Finding {
        kind: Kind::MemoryShort,
        severity: severity_of(share),
        database: None,
        title: text("memory.title", &[]),
        evidence,
        cost: Cost::measured(if counted {
            text("memory.cost-counted", &[])
        } else {
            text("memory.cost", &[("share", &percent_of(share))])
        }),
        fixes: vec![step("smaller-cache", &[])],
        remarks: Vec::new(),
        pagekeeper: (releasable >= RELEASABLE_MIN)
            .then(|| text("memory.pagekeeper", &[("releasable", &ByteSize(releasable))])),
    })
}

/// Formats a share, 0 or more, in percent.
fn percent_of(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn free(observation: &Observation<'_>) -> Evidence {
    let (memory, marks) = (&observation.after.host.memory, &observation.after.host.watermarks);
    let state = if memory.free < marks.min {
        "below what makes tasks reclaim for themselves"
    } else if memory.free < marks.low {
        "below what starts background reclaim"
    } else if memory.free < marks.high {
        "below what ends background reclaim"
    } else {
        "above all watermarks"
    };
    Evidence::of("memory.free")
        .with("free_bytes", memory.free)
        .with("watermark_min_bytes", marks.min)
        .with("watermark_low_bytes", marks.low)
        .with("watermark_high_bytes", marks.high)
        .with("page_cache_bytes", memory.cached.saturating_sub(memory.shmem))
        .say("state", state)
        .say("total", ByteSize(memory.total))
}

/// Examines a database's group. `cause` is the finding on what takes its memory, if not the data: a
/// stream, or read-ahead.
fn group(
    observation: &Observation<'_>,
    index: usize,
    database: &Database,
    cause: Option<&Finding>,
) -> Option<Finding> {
    let group = database.cgroup.as_ref()?;
    let limit = group.effective_limit?;
    // The free memory below the limit of a group above it is unknown; its own usage is the minimum
    // that counts there.
    if group.usage < limit - limit / AT_LIMIT_PART {
        return None;
    }
    let waits = waits(observation, ReclaimKind::Group, |pid| database.has_process(pid));
    let waited = waits.as_deref().map(together);
    let share = waited.map_or(0.0, |all| share_of(all.total(), observation.period()));
    let unwritten = unwritten(group);
    let much_unwritten = unwritten >= limit / UNWRITTEN_PART;
    let again = GroupRereads::of(observation, index, database);
    let much_again = again.much();
    let costly = much_unwritten || much_again.is_some();
    let severity = severity_of(share).max(if costly { Severity::Warning } else { Severity::Note });
    let logs = LogPages::of(observation, index);
    let mut evidence = vec![filled(group, limit, unwritten), held(&logs)];
    if let Some(waits) = waits.filter(|waits| !waits.is_empty()) {
        evidence.push(waits_evidence(&waits, "memory of the cgroup"));
    }
    evidence.extend(pressed(observation));
    evidence.extend(again.evidence());
    let mut costs: Vec<String> = Vec::new();
    if much_unwritten {
        costs.push(text("memory.cost-unwritten", &[]));
    }
    let is_traced = again.own.is_some();
    if let Some(again) = much_again {
        let why = match (cause, is_traced) {
            (Some(cause), _) if cause.kind == Kind::Stream => "a stream took its memory",
            (Some(_), _) => "read-ahead took its memory",
            (None, true) => "the data does not fit",
            (None, false) => {
                "the data does not fit, if it is the database that reads them: that was not traced"
            }
        };
        costs.push(text("memory.cost-again", &[("rate", &rate(again)), ("why", &why)]));
    }
    if let Some((others, bytes)) = again.much_of_others() {
        costs.push(GroupNeighbours::of(observation, index, group).cost(others, bytes));
    }
    if costs.is_empty() && share >= WAITED_LEAST {
        costs.push(text("memory.cost-reclaims", &[]));
    }
    if costs.is_empty() {
        costs.push(text("memory.cost-little", &[]));
    }
    let counted = much_again.is_some();
    let Advised { mut fixes, mut remarks } = observation.advise(Goal::LessPageCache, index);
    if much_unwritten {
        let unwritten = of_unwritten(observation, index, group);
        fixes.splice(0..0, unwritten.fixes);
        remarks.extend(unwritten.remarks);
    }
    match (counted, cause) {
        (false, _) => {}
        (true, Some(cause)) => {
            let what = if cause.kind == Kind::Stream { "stream" } else { "read-ahead" };
            remarks.push(text("memory.remark-cause", &[("what", &what), ("title", &cause.title)]));
        }
        (true, None) => {
            fixes.push(more(observation, index, group, limit, again.of_database()));
            remarks.push(text("memory.remark-size", &[("group", &shell_quoted(&group.directory))]));
        }
    }
    let releasable = logs.guard_may_release().filter(|releasable| *releasable >= RELEASABLE_MIN);
    Some(Finding {
        kind: Kind::MemoryShort,
        severity,
        database: Some(observation.subject(index)),
        title: text("memory.group-title", &[("limit", &ByteSize(limit))]),
        evidence,
        cost: if counted { Cost::measured(costs.join(" ")) } else { Cost::estimated(costs.join(" ")) },
        fixes,
        remarks,
        pagekeeper: releasable.map(|releasable| {
            let guard = guard_command(database);
            text("memory.group-pagekeeper", &[("guard", &guard), ("releasable", &ByteSize(releasable))])
        }),
    })
}

/// The bytes read again in a database's memory cgroup after they were reclaimed.
struct GroupRereads {
    /// All bytes, whoever read them; `None` if there were none, or if that was not counted.
    all: Option<u64>,
    /// Upper bound of the database's part; `None` if that was not traced, or not completely.
    own: Option<u64>,
    period: Duration,
}

impl GroupRereads {
    fn of(observation: &Observation<'_>, index: usize, database: &Database) -> Self {
        let all = observation.refaulted_in_group(database).filter(|bytes| *bytes > 0);
        let own = all.and_then(|bytes| Some(bytes.min(brought_in(observation, index)?)));
        Self { all, own, period: observation.period() }
    }

    /// Returns the database's part, as far as known, in bytes.
    fn of_database(&self) -> u64 {
        self.own.or(self.all).unwrap_or(0)
    }

    fn rate_of(&self, bytes: Option<u64>) -> Option<u64> {
        bytes.and_then(|bytes| per_second(bytes, self.period)).filter(|rate| *rate >= REREADS_RATE_MIN)
    }

    /// Returns the rate, if the database rereads enough to matter.
    fn much(&self) -> Option<u64> {
        self.rate_of(self.own.or(self.all))
    }

    /// Returns the rate and the bytes, if enough is reread in its group and next to nothing of it
    /// is the database's.
    fn much_of_others(&self) -> Option<(u64, u64)> {
        let others = self.all.zip(self.own).map(|(all, own)| all - own);
        self.rate_of(others).filter(|_| self.much().is_none()).zip(others)
    }

    fn evidence(&self) -> Option<Evidence> {
        let bytes = self.all?;
        let untraced = if self.own.is_none() { "untraced" } else { "" };
        let evidence = Evidence::of("memory.again")
            .with("refaulted_bytes", bytes)
            .with("refaulted_bytes_per_second", per_second(bytes, self.period))
            .with_known("refaulted_own_bytes", self.own)
            .say("own", known(self.own.filter(|own| *own < bytes).map(ByteSize)));
        Some(evidence.say("untraced", untraced))
    }
}

/// Returns the bytes that came into the page cache during the watch from a database's own files, or
/// from any file by its own processes. This is an upper bound of its rereads: its program and
/// libraries, omitted files and deleted files are in no list. Returns `None` if that was not
/// traced, not completely, or not by task.
fn brought_in(observation: &Observation<'_>, index: usize) -> Option<u64> {
    let trace = observation.trace().filter(|trace| trace.losses.total() == 0)?;
    let files: HashSet<Inode> = observation.files_of(index).map(|file| file.inode).collect();
    let mut bytes = 0;
    for counts in trace.pages.as_ref()?.iter().filter(|counts| counts.flow.added.bytes > 0) {
        let is_own =
            files.contains(&counts.file) || database_of(observation, counts.task.as_ref()?) == Some(index);
        bytes += if is_own { counts.flow.added.bytes } else { 0 };
    }
    Some(bytes)
}

/// Other processes that bring pages in which this database's group pays for, or may pay for.
struct GroupNeighbours {
    /// Processes in the group, with the bytes that each brought in, largest first.
    inside: Vec<String>,
    /// Total bytes that they brought in.
    inside_bytes: u64,
    /// Processes that have ended, whose groups are unknown.
    ended: Vec<String>,
}

impl GroupNeighbours {
    fn of(observation: &Observation<'_>, index: usize, group: &MemoryCgroup) -> Self {
        let pages = observation.trace().and_then(|trace| trace.pages.as_ref());
        let (mut inside, mut ended) = (BTreeMap::new(), BTreeMap::new());
        for counts in pages.into_iter().flatten() {
            let Some(task) = &counts.task else { continue };
            let streamer = observation.streamers.iter().find(|streamer| streamer.pid == task.process);
            let is_in = |other: &MemoryCgroup| other.directory.starts_with(&group.directory);
            let list = match streamer {
                Some(Streamer { cgroup: Some(other), .. }) if is_in(other) => &mut inside,
                Some(Streamer { cgroup: None, title, .. }) if title.is_empty() => &mut ended,
                _ => continue,
            };
            if database_of(observation, task) != Some(index) {
                let (_, bytes) = list.entry(task.process).or_insert((task.name.as_str(), 0));
                *bytes += counts.flow.added.bytes;
            }
        }
        let inside_bytes = inside.values().map(|(_, bytes)| bytes).sum();
        let name =
            |pid, name: &str, bytes| format!("{name} (process {pid}), which brought in {}", ByteSize(bytes));
        let name_ended = |pid, name: &str, bytes| {
            let bytes = ByteSize(bytes);
            format!(
                "{name} (process {pid}) brought in {bytes}, has ended meanwhile, and its cgroup is not known"
            )
        };
        Self { inside: named(inside, name), inside_bytes, ended: named(ended, name_ended) }
    }

    /// Describes the cost of rereads at this rate that are not known to be the database's, `bytes`
    /// in total.
    fn cost(&self, rate_of: u64, bytes: u64) -> String {
        let is_of_others = self.inside_bytes >= bytes;
        let id = if is_of_others { "memory.cost-others" } else { "memory.cost-perhaps-others" };
        let (by, ended) = (self.inside.join(", "), self.ended.join("; "));
        text(id, &[("rate", &rate(rate_of)), ("by", &by), ("ended", &ended)])
    }
}

/// Lists the processes that brought in enough to matter, largest first.
fn named(all: BTreeMap<u32, (&str, u64)>, name: impl Fn(u32, &str, u64) -> String) -> Vec<String> {
    let mut all: Vec<_> = all.into_iter().filter(|(_, (_, bytes))| *bytes >= REREADS_RATE_MIN).collect();
    all.sort_by_key(|(pid, (_, bytes))| (std::cmp::Reverse(*bytes), *pid));
    all.into_iter().take(LISTED_WAITERS_MAX).map(|(pid, (own, bytes))| name(pid, own, bytes)).collect()
}

/// Returns a limit with room for what the database was seen to miss: rereads during the watch, or
/// recently reclaimed pages. The upper bound is all pages that were ever reclaimed and not read
/// back, which include many that nobody needs any more.
fn more(
    observation: &Observation<'_>,
    index: usize,
    group: &MemoryCgroup,
    limit: u64,
    refaulted: u64,
) -> Fix {
    let data = observation.files_of(index).filter(|file| !file.class.is_some_and(FileClass::is_log));
    let (mut recently, mut evicted) = (0, None);
    for residency in data.filter_map(|file| file.residency) {
        recently += residency.recently_evicted.unwrap_or(0);
        if let Some(of_file) = residency.evicted {
            *evicted.get_or_insert(0) += of_file;
        }
    }
    // Pages that come back repeatedly are counted each time.
    let missed = recently.max(refaulted.min(evicted.unwrap_or(u64::MAX)));
    let setting = match group.version {
        CgroupVersion::V1 => "memory.limit_in_bytes",
        CgroupVersion::V2 => "memory.max",
    };
    let enough = limit.saturating_add(missed.max(limit / 4)).next_multiple_of(LIMIT_STEP_BYTES);
    let whose = if group.limit == Some(limit) { "" } else { "; the limit is that of a group above this one" };
    let file = shell_quoted(&group.directory.join(setting)).to_string();
    let before = group.limit.unwrap_or(limit);
    let values: &[(&str, &dyn Display)] = &[
        ("enough", &enough),
        ("enough_in_words", &ByteSize(enough)),
        ("file", &file),
        ("before", &before),
        ("missed", &ByteSize(missed)),
        ("whose", &whose),
    ];
    step("raise-group-limit", values)
}

/// Returns waits for memory that was not the host's.
fn pressed(observation: &Observation<'_>) -> Option<Evidence> {
    let machine = observation.change()?.machine;
    let none_of_host = machine.allocation_stalls == Some(0);
    let stalled = machine.memory_stalled.filter(|_| none_of_host)?;
    if share_of(stalled, observation.period()) < WAITED_LEAST {
        return None;
    }
    let evidence = Evidence::of("memory.pressed").with("memory_stalled_seconds", stalled.as_secs_f64());
    Some(evidence.say("watched", duration(observation.period())))
}

fn filled(group: &MemoryCgroup, limit: u64, unwritten: u64) -> Evidence {
    Evidence::of("memory.filled")
        .with("usage_bytes", group.usage)
        .with("limit_bytes", limit)
        .with("page_cache_bytes", group.file)
        .with("unwritten_bytes", unwritten)
}

/// Returns the logs' part of it; whether it is charged to this very cgroup is unknown.
fn held(logs: &LogPages<'_>) -> Evidence {
    Evidence::of("memory.held")
        .with("log_resident_bytes", logs.resident)
        .with("log_unwritten_bytes", logs.unwritten)
        .with_known("log_releasable_bytes", logs.releasable)
        .say("share", known(logs.releasable.map(|bytes| percent(bytes, logs.resident, 0))))
}

#[cfg(test)]
mod tests;
