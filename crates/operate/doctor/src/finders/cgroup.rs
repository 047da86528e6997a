//! Memory cgroups (containers, pods, units) near their limit because of page cache: the composition
//! of that cache, the working set without it (the figure that Kubernetes uses), and advice in terms
//! of a pod.
//!
//! kubelet, and everything that reads its figures, counts `usage − inactive_file` as the working
//! set. File pages used twice thus count as needed memory, and kubelet ranks pods for eviction by
//! this figure relative to their requests. The kernel reclaims all of these pages before it kills
//! for the limit.
//!
//! Invariants: one finding per group, however many databases are in it. A group that would be near
//! its limit without page cache, too, is left out. Whether a log's page is on the active list is
//! not visible, so the working set without logs is a range. Its lower end assumes that all of them
//! are active. No advice lowers a limit or affects durability.

use std::collections::BTreeSet;
use std::path::Path;

use pagekeeper_kernel::pressure::{MemInfo, MemoryCgroup, MemoryEvents};
use pagekeeper_policy::FileClass;
use pagekeeper_text::{ByteSize, counted, escaped, percent};

use super::EarlierFindings;
use super::logs::{LogPages, RELEASABLE_MIN, guard_command};
use super::swapped::SWAPPED_BYTES_MIN;
use super::unwritten::{of_unwritten, unwritten};
use crate::advice::step;
use crate::observation::Observation;
use crate::texts::text;
use crate::{Advised, Confidence, Cost, Evidence, Finding, Fix, Kind, Severity};

/// A group with less than one part in this many of its limit unused is near its limit.
const NEAR_PART: u64 = 5;
/// Page cache is the cause if it is at least one part in this many of the limit.
const CACHE_PART: u64 = 4;
/// From one part in this many of the limit in log pages that nobody will read again, it is more
/// than a note.
const WASTED_PART: u64 = 10;
/// A request is a multiple of this, in bytes.
const REQUEST_STEP_BYTES: u64 = 64 << 20;

/// Returns one finding for each group near its limit because of page cache.
pub(super) fn find(observation: &Observation<'_>, earlier: EarlierFindings<'_>) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let groups = observation.databases().filter_map(|(index, database)| {
        let group = database.cgroup.as_ref()?;
        seen.insert(&group.directory).then_some((index, group))
    });
    let found = groups.filter_map(|(index, group)| {
        let mut found = near(observation, index, group)?;
        // The finding about a group at its limit already has these.
        if let Some(short) = earlier.of(Kind::MemoryShort, index) {
            found.fixes.retain(|fix| !short.fixes.contains(fix));
            found.remarks.retain(|remark| !short.remarks.contains(remark));
        }
        Some(found)
    });
    found.collect()
}

/// Returns what kubelet considers the memory that a group needs.
fn working_set(group: &MemoryCgroup) -> u64 {
    group.usage.saturating_sub(group.inactive_file)
}

/// The known composition of a group's page cache, in bytes. A page may be charged to another group,
/// so no sum exceeds the group's own total.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CacheComposition {
    databases: u64,
    logs: u64,
    releasable: Option<u64>,
    data: u64,
    others: u64,
}

impl CacheComposition {
    pub(super) fn of(observation: &Observation<'_>, group: &MemoryCgroup) -> Self {
        let cache = group.page_cache();
        let mut held = Self::default();
        for (index, _) in observation.databases_in(group) {
            held.databases += 1;
            let logs = LogPages::of(observation, index);
            held.logs += logs.resident;
            if let Some(releasable) = logs.guard_may_release() {
                *held.releasable.get_or_insert(0) += releasable;
            }
            let data = observation.files_of(index).filter(|file| !file.class.is_some_and(FileClass::is_log));
            held.data +=
                data.filter_map(|file| file.residency).map(|residency| residency.resident).sum::<u64>();
        }
        held.logs = held.logs.min(cache);
        held.releasable = held.releasable.map(|releasable| releasable.min(held.logs));
        held.data = held.data.min(cache - held.logs);
        held.others = cache - held.logs - held.data;
        held
    }

    fn evidence(&self, cache: u64) -> Evidence {
        Evidence::of("cgroup.held")
            .with("log_resident_bytes", self.logs)
            .with_known("log_releasable_bytes", self.releasable)
            .with("data_resident_bytes", self.data)
            .with("other_resident_bytes", self.others)
            .say("page_cache", ByteSize(cache))
            .say("belongs", if self.databases == 1 { "belongs" } else { "belong" })
            .say("databases", counted(self.databases, "database", "databases"))
    }
}

fn near(observation: &Observation<'_>, index: usize, group: &MemoryCgroup) -> Option<Finding> {
    let limit = group.effective_limit?;
    let cache = group.page_cache();
    let near = limit - limit / NEAR_PART;
    let because = cache >= limit / CACHE_PART && group.usage.saturating_sub(cache) < near;
    if group.usage < near || !because {
        return None;
    }
    let database = &observation.after.databases[index];
    let held = CacheComposition::of(observation, group);
    let wasted = held.releasable.filter(|releasable| *releasable >= RELEASABLE_MIN);
    let is_much = wasted.is_some_and(|wasted| wasted >= limit / WASTED_PART);
    let in_pod = is_pod(&group.directory);
    let evidence = [
        Some(filled(group, limit)),
        Some(group_lists(group)),
        observation.file_lists_before(index).map(|before| lists_change(before, group)),
        in_pod.then(|| node(&observation.after.host.memory)),
        limits(group, observation.limits_hit(database)),
        Some(held.evidence(cache)),
        streams(observation, group),
        without(group, &held),
    ];
    let unwritten = unwritten(group);
    let mostly_unwritten = unwritten >= cache / 2;
    let Advised { mut fixes, mut remarks } =
        if mostly_unwritten { of_unwritten(observation, index, group) } else { Advised::default() };
    remarks.push(text("cgroup.remark", &[]));
    if in_pod {
        fixes.extend(wasted.map(|wasted| daemon_set(group, wasted)));
        fixes.push(request(group, &held));
    }
    Some(Finding {
        kind: Kind::CgroupCache,
        severity: if is_much || mostly_unwritten { Severity::Warning } else { Severity::Note },
        database: Some(observation.subject(index)),
        title: text("cgroup.title", &[("group", &escaped(&group.directory)), ("limit", &ByteSize(limit))]),
        evidence: evidence.into_iter().flatten().collect(),
        cost: Cost::estimated(cost(mostly_unwritten.then_some(unwritten), in_swap(observation, group))),
        fixes,
        remarks,
        pagekeeper: wasted.map(|wasted| {
            text("cgroup.pagekeeper", &[("guard", &guard_command(database)), ("wasted", &ByteSize(wasted))])
        }),
    })
}

/// Returns the bytes in swap of a group; `None` if unknown. Where the kernel does not count the
/// group's, its databases' count if they matter: other programs' are unknown.
fn in_swap(observation: &Observation<'_>, group: &MemoryCgroup) -> Option<u64> {
    if observation.after.host.memory.swap_total == 0 {
        return Some(0);
    }
    let swaps: Vec<_> =
        observation.databases_in(group).filter_map(|(index, _)| observation.swap_of(index)).collect();
    let of_group = swaps.iter().filter_map(|swap| swap.group.as_ref()?.used).max();
    of_group.or_else(|| {
        let of_databases = swaps.iter().map(|swap| swap.swapped).sum();
        (of_databases >= SWAPPED_BYTES_MIN).then_some(of_databases)
    })
}

/// Describes the cost: dirty pages can't be dropped, clean ones can at once, and memory in swap is
/// read back. Swap below the minimum of its own finding does not matter.
fn cost(unwritten: Option<u64>, in_swap: Option<u64>) -> String {
    let (id, bytes) = match (unwritten, in_swap) {
        (Some(unwritten), _) => ("cgroup.cost-unwritten", unwritten),
        (None, Some(in_swap)) if in_swap >= SWAPPED_BYTES_MIN => ("cgroup.cost-swapped", in_swap),
        (None, Some(_)) => ("cgroup.cost-little", 0),
        (None, None) => ("cgroup.cost-unknown", 0),
    };
    format!("{} {}", text(id, &[("bytes", &ByteSize(bytes))]), text("cgroup.monitors", &[]))
}

fn filled(group: &MemoryCgroup, limit: u64) -> Evidence {
    Evidence::of("cgroup.filled")
        .with("usage_bytes", group.usage)
        .with("limit_bytes", limit)
        .say("used", percent(group.usage, limit, 0))
}

/// Describes a group's page cache, and the working set that kubelet computes from it.
pub(super) fn group_lists(group: &MemoryCgroup) -> Evidence {
    Evidence::of("cgroup.lists")
        .with("page_cache_bytes", group.page_cache())
        .with("active_file_bytes", group.active_file)
        .with("inactive_file_bytes", group.inactive_file)
        .with("working_set_bytes", working_set(group))
}

/// Returns the memory that a node has available for kubelet.
pub(super) fn seen_by_kubelet(memory: &MemInfo) -> u64 {
    memory.free.saturating_add(memory.inactive_file)
}

/// Returns both figures for the memory that the node has available.
pub(super) fn node(memory: &MemInfo) -> Evidence {
    Evidence::of("cgroup.node")
        .with("node_available_bytes", seen_by_kubelet(memory))
        .with("mem_available_bytes", memory.available)
        .with("node_active_file_bytes", memory.active_file)
        .say("total", ByteSize(memory.total))
}

/// Describes how the lists of a group's file pages changed during the watch; `before` has those
/// when it began.
pub(super) fn lists_change(before: &MemoryCgroup, now: &MemoryCgroup) -> Evidence {
    Evidence::of("cgroup.lists-change")
        .with("active_file_before_bytes", before.active_file)
        .with("inactive_file_before_bytes", before.inactive_file)
        .say("active", ByteSize(now.active_file))
        .say("inactive", ByteSize(now.inactive_file))
}

/// Returns how often limits took effect since the creation of the group, or of the group above it
/// whose limit is the effective one, and how often during the watch.
pub(super) fn limits(group: &MemoryCgroup, watched: Option<MemoryEvents>) -> Option<Evidence> {
    /// The label of a counter, the counter, and its figures: in total, and during the watch.
    type LimitCounter = (&'static str, fn(&MemoryEvents) -> Option<u64>, FigureSetter, FigureSetter);
    type FigureSetter = fn(Evidence, u64) -> Evidence;
    const LIMIT_COUNTERS: [LimitCounter; 4] = [
        (
            "at its limit",
            |events| events.max,
            |to, times| to.with("limit_hits", times),
            |to, times| to.with("limit_hits_watched", times),
        ),
        (
            "slowed down over memory.high",
            |events| events.high,
            |to, times| to.with("high_hits", times),
            |to, times| to.with("high_hits_watched", times),
        ),
        (
            "out of memory",
            |events| events.oom,
            |to, times| to.with("oom_hits", times),
            |to, times| to.with("oom_hits_watched", times),
        ),
        (
            "rid of a process for it",
            |events| events.oom_kill,
            |to, times| to.with("oom_kills", times),
            |to, times| to.with("oom_kills_watched", times),
        ),
    ];
    let mut evidence = Evidence::new(String::new());
    let mut named = Vec::new();
    for (what, of, figure, figure_watched) in LIMIT_COUNTERS {
        let Some(times) = of(&group.events).filter(|times| *times > 0) else { continue };
        let of_it = watched.as_ref().and_then(of);
        let while_watching = of_it.map_or_else(String::new, |of_it| format!(" ({of_it} while watching)"));
        named.push(format!("{} {what}{while_watching}", counted(times, "time", "times")));
        evidence = figure(evidence, times);
        if let Some(of_it) = of_it {
            evidence = figure_watched(evidence, of_it);
        }
    }
    let since = match &group.limited_by {
        Some(above) => format!("since {} was created, which has the limit", escaped(above)),
        None => "since it was created".to_owned(),
    };
    evidence.text = format!("{since}: {}", named.join(", "));
    (!named.is_empty()).then_some(evidence)
}

/// Returns the working set without the pages that the guard would release.
fn without(group: &MemoryCgroup, held: &CacheComposition) -> Option<Evidence> {
    let releasable = held.releasable.filter(|releasable| *releasable > 0)?;
    let evidence = Evidence::of("cgroup.without")
        .known(Confidence::Estimated)
        .with("usage_without_bytes", group.usage.saturating_sub(releasable))
        .with("working_set_without_least_bytes", least_without(group, releasable));
    Some(evidence.say("most", ByteSize(working_set(group))))
}

/// Returns the minimum of the working set without this much page cache: all of it was active.
fn least_without(group: &MemoryCgroup, releasable: u64) -> u64 {
    working_set(group).saturating_sub(releasable.min(group.active_file))
}

/// Returns what programs in the group other than the databases brought in during the watch.
pub(super) fn streams(observation: &Observation<'_>, group: &MemoryCgroup) -> Option<Evidence> {
    let pages = observation.trace()?.pages.as_ref()?;
    let is_database = |pid| observation.databases().any(|(_, database)| database.has_process(pid));
    let mut named = Vec::new();
    let mut all = 0;
    for streamer in &observation.streamers {
        let here = streamer.cgroup.as_ref().is_some_and(|other| other.directory == group.directory);
        if !here || is_database(streamer.pid) {
            continue;
        }
        let of_it = pages
            .iter()
            .filter(|counts| counts.task.as_ref().is_some_and(|task| task.process == streamer.pid));
        let (mut bytes, mut name) = (0, "");
        for counts in of_it {
            bytes += counts.flow.added.bytes;
            name = counts.task.as_ref().map_or("", |task| &task.name);
        }
        if bytes >= RELEASABLE_MIN {
            all += bytes;
            named.push(format!("{} (process {}) {}", escaped(name), streamer.pid, ByteSize(bytes)));
        }
    }
    (all > 0).then(|| Evidence::of("cgroup.streams").with("stream_bytes", all).say("named", named.join(", ")))
}

/// Whether kubelet created the group, by either of its drivers: `/kubepods.slice/…`, `/kubepods/…`.
pub(super) fn is_pod(directory: &Path) -> bool {
    directory.iter().any(|name| name == "kubepods" || name == "kubepods.slice")
}

fn daemon_set(group: &MemoryCgroup, wasted: u64) -> Fix {
    let least = least_without(group, wasted);
    step("guard-daemon-set", &[("least", &ByteSize(least)), ("wasted", &ByteSize(wasted))])
}

pub(super) fn request(group: &MemoryCgroup, held: &CacheComposition) -> Fix {
    let needed = working_set(group);
    let request = needed.next_multiple_of(REQUEST_STEP_BYTES);
    let after = held
        .releasable
        .map(|releasable| least_without(group, releasable).next_multiple_of(REQUEST_STEP_BYTES));
    let after = after.filter(|after| *after < request);
    let then = after.map_or_else(String::new, |after| {
        format!("; with the guard on its node {}Mi may suffice: check again after a day", after >> 20)
    });
    let mib = request >> 20;
    step("pod-request", &[("mib", &mib), ("then", &then), ("needed", &ByteSize(needed))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Releasable;
    use crate::testing::{GIB, MIB, cgroup, file, pages, sample};
    use crate::{DatabaseSwap, FixKind, Streamer, examine};
    use pagekeeper_kernel::pressure::GroupSwap;
    use pagekeeper_observe::Snapshot;
    use std::path::PathBuf;

    /// Returns a group with `usage` of 1 GiB used, of which 700 MiB are page cache: 400 active, 300
    /// inactive.
    fn group(usage: u64) -> MemoryCgroup {
        MemoryCgroup {
            file: 700 * MIB,
            active_file: 400 * MIB,
            inactive_file: 300 * MIB,
            ..cgroup(usage, GIB)
        }
    }

    fn snapshot(group: MemoryCgroup) -> Snapshot {
        let mut after = sample();
        after.databases[0].cgroup = Some(group);
        after.files = vec![
            file("/var/lib/mysql/binlog.000001", FileClass::Binlog, GIB, 250 * MIB),
            file("/var/lib/mysql/a.ibd", FileClass::Data, GIB, 200 * MIB),
        ];
        after
    }

    fn find_in(after: &Snapshot, releasable: u64) -> Vec<Finding> {
        let before = sample();
        let mut observation = Observation::new(&before, after);
        observation.releasable = vec![Releasable { file: after.files[0].inode, resident: releasable }];
        examine(&observation).into_iter().filter(|finding| finding.kind == Kind::CgroupCache).collect()
    }

    #[test]
    fn a_pod_near_its_limit_because_of_its_logs_is_reported() {
        let mut group = group(900 * MIB);
        group.directory = PathBuf::from("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-1.scope");
        let found = find_in(&snapshot(group), 240 * MIB);
        assert_eq!(found.len(), 1);
        let found = &found[0];
        assert_eq!(found.severity, Severity::Warning);
        assert!(
            found.title.contains("cri-1.scope is near its limit of 1 GiB because of page cache"),
            "{found:?}"
        );
        let figure = |name: &str| {
            let of = |one: &Evidence| one.figures.get(name).and_then(serde_json::Value::as_u64);
            found.evidence.iter().find_map(of)
        };
        assert_eq!(figure("working_set_bytes"), Some(600 * MIB));
        assert_eq!(figure("log_resident_bytes"), Some(250 * MIB));
        assert_eq!(figure("data_resident_bytes"), Some(200 * MIB));
        assert_eq!(figure("other_resident_bytes"), Some(250 * MIB));
        assert_eq!(figure("usage_without_bytes"), Some(660 * MIB));
        assert_eq!(figure("working_set_without_least_bytes"), Some(360 * MIB));
        assert_eq!(found.fixes.len(), 2);
        assert_eq!(found.fixes[0].kind, FixKind::Command);
        assert!(found.fixes[0].terms.undo_is_command);
        assert!(found.fixes[1].act.contains("640Mi"), "{:?}", found.fixes[1]);
        assert!(found.fixes[1].does.contains("384Mi"), "{:?}", found.fixes[1]);
        assert!(
            found.fixes.iter().all(|fix| fix.terms.risk.durability.is_none() && !fix.terms.undo.is_empty())
        );
        assert!(found.pagekeeper.as_ref().unwrap().contains("240 MiB"));
    }

    #[test]
    fn a_group_of_mostly_dirty_pages_is_reported_with_their_writer() {
        let own = MemoryCgroup { dirty: Some(400 * MIB), writeback: Some(50 * MIB), ..group(900 * MIB) };
        let mut after = snapshot(own.clone());
        after.change.as_mut().unwrap().trace.as_mut().unwrap().pages =
            Some(vec![pages(pagekeeper_kernel::Inode { dev: 1, ino: 1 }, 55, "cp", 400 * MIB, 0)]);
        let before = sample();
        let mut observation = Observation::new(&before, &after);
        observation.streamers = vec![Streamer {
            pid: 55,
            title: "cp a b".to_owned(),
            cgroup: Some(own),
            group_beside: None,
            has_ended: false,
            files: Vec::new(),
        }];
        let found =
            examine(&observation).into_iter().find(|finding| finding.kind == Kind::CgroupCache).unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.cost.text.starts_with("450 MiB of it have to be written"), "{found:?}");
        assert_eq!(found.fixes[0].act, "pagekeeper run -- cp ...");
        assert!(found.remarks[0].contains("vm.dirty_ratio"), "{found:?}");
        let clean = find_in(&snapshot(group(900 * MIB)), 0);
        assert!(clean[0].cost.text.starts_with("No throughput by itself"), "{clean:?}");
    }

    #[test]
    fn clean_page_cache_is_called_free_only_if_little_is_in_swap() {
        let (before, mut after) = (sample(), snapshot(group(900 * MIB)));
        after.host.memory.swap_total = GIB;
        let cost = |swap: Option<DatabaseSwap>| {
            let mut observation = Observation::new(&before, &after);
            observation.swaps = vec![swap];
            near(&observation, 0, &group(900 * MIB)).unwrap().cost.text
        };
        let of = |swapped, used| {
            let group = GroupSwap { used, ..GroupSwap::default() };
            cost(Some(DatabaseSwap { swapped, group: Some(group), ..DatabaseSwap::default() }))
        };
        let unknown = "How much memory of its programs is in swap";
        assert!(cost(None).starts_with(unknown), "a process that can't be read");
        assert!(of(4096, None).starts_with(unknown), "that of other programs is not counted");
        assert!(of(4096, Some(4096)).starts_with("No throughput by itself"));
        assert!(of(4096, Some(SWAPPED_BYTES_MIN)).starts_with("16 MiB of the memory of its programs are in"));
        assert!(of(20 * MIB, None).starts_with("20 MiB of the memory of its programs are in swap"));
    }

    #[test]
    fn the_fix_lists_the_permissions_that_the_chart_takes() {
        let mut group = group(900 * MIB);
        group.directory = PathBuf::from("/sys/fs/cgroup/kubepods/pod1");
        let found = find_in(&snapshot(group), 240 * MIB);
        let costs = &found[0].fixes[0].terms.risk.costs;
        let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/helm/pagekeeper");
        let read = |name: &str| std::fs::read_to_string(chart.join(name)).unwrap();
        let after = |text: &str, key: &str| -> Vec<String> {
            let values = text.lines().filter_map(|line| line.trim().strip_prefix(key));
            values.map(|value| value.trim_matches(|c| "[]".contains(c)).to_owned()).collect()
        };
        let (pod, values) = (read("templates/daemonset.yaml"), read("values.yaml"));
        let given = |list: &str| -> BTreeSet<String> {
            list.split(", ").map(|name| format!("CAP_{}", name.trim_matches('"'))).collect()
        };
        let named = |text: &str| -> BTreeSet<String> {
            text.split([' ', ',']).filter(|word| word.starts_with("CAP_")).map(str::to_owned).collect()
        };
        let added = after(&pod, "add: ");
        let [all, without_events] = &added[..] else { panic!("{added:?}") };
        assert!(
            pod.contains("{{- if ne .Values.metrics.events false }}\n              add: ")
                && values.contains("\n  events: true\n")
        );
        let (before, _) = costs.split_once("unless metrics.events=false").expect("it can be set");
        assert_eq!((named(costs), named(before)), (given(all), given(without_events)), "{costs}");
        let unit = after(&read("../../pagekeeper-guard.service"), "AmbientCapabilities=").concat();
        assert_eq!(given(without_events), named(&unit), "those of the unit by itself");
        let (cpu, memory) = (after(&values, "cpu: "), after(&values, "memory: "));
        let resources =
            format!("a request of {} of a core and {}, a limit of {}", cpu[0], memory[0], memory[1]);
        assert_eq!((cpu.len(), memory.len()), (1, 2));
        assert!(costs.contains(&resources), "{costs}");
        assert!(pod.contains("hostPID: true") && costs.contains("hostPID"), "{costs}");
        assert!(pod.contains("runAsUser: 0") && costs.contains("uid 0"), "{costs}");
        for profile in ["seccomp", "appArmor"] {
            assert!(pod.contains(&format!("{profile}Profile:\n              type: Unconfined")), "{profile}");
            assert!(costs.to_lowercase().contains(&profile.to_lowercase()), "{costs}");
        }
    }

    #[test]
    fn events_of_the_groups_limits_are_counted() {
        let events = |high, max| MemoryEvents { high, max, oom: Some(0), ..MemoryEvents::default() };
        let mut before = sample();
        before.databases[0].cgroup = Some(MemoryCgroup { events: events(Some(1), Some(40)), ..group(GIB) });
        let mut now = MemoryCgroup { events: events(Some(1), Some(52)), ..group(900 * MIB) };
        let find = |now: &MemoryCgroup| {
            let after = snapshot(now.clone());
            let found = examine(&Observation::new(&before, &after));
            found.into_iter().find(|finding| finding.kind == Kind::CgroupCache).unwrap()
        };
        let found = find(&now);
        let said = found.evidence.iter().find(|one| one.text.starts_with("since it was created")).unwrap();
        assert_eq!(
            said.text,
            "since it was created: 52 times at its limit (12 while watching), 1 time slowed down \
                 over memory.high (0 while watching)"
        );
        assert_eq!(
            (&said.figures["limit_hits"], &said.figures["limit_hits_watched"]),
            (&52.into(), &12.into())
        );
        // A new group at the same path has lower counts, and one that was never at its limits has
        // no counts to report.
        now.events = events(None, Some(3));
        let found = find(&now);
        assert!(
            found.evidence.iter().any(|one| one.text == "since it was created: 3 times at its limit"),
            "{found:?}"
        );
        // The counts of a group above include other groups, and earlier counts belong to another
        // group.
        now.limited_by = Some(PathBuf::from("/sys/fs/cgroup/pod"));
        let said = "since /sys/fs/cgroup/pod was created, which has the limit: 3 times at its limit";
        let found = find(&now);
        assert!(found.evidence.iter().any(|one| one.text == said), "{found:?}");
        now.limited_by = None;
        now.events = events(Some(0), Some(0));
        assert!(find(&now).evidence.iter().all(|one| !one.text.starts_with("since it was created")));
    }

    #[test]
    fn pods_are_mentioned_only_in_kubernetes() {
        let found = find_in(&snapshot(group(900 * MIB)), 0);
        assert_eq!((found[0].severity, found[0].fixes.len()), (Severity::Note, 0));
        assert_eq!(found[0].pagekeeper, None);
    }

    #[test]
    fn a_group_full_of_other_memory_or_far_from_its_limit_is_no_finding() {
        assert_eq!(find_in(&snapshot(group(700 * MIB)), GIB), []);
        let mut own = group(GIB);
        own.file = 200 * MIB;
        assert_eq!(find_in(&snapshot(own), GIB), [], "it is the program's own memory");
        let mut shared = group(GIB);
        shared.shmem = Some(600 * MIB);
        assert_eq!(find_in(&snapshot(shared), GIB), [], "tmpfs is no page cache that goes");
        let mut unlimited = group(GIB);
        (unlimited.limit, unlimited.effective_limit) = (None, None);
        assert_eq!(find_in(&snapshot(unlimited), GIB), []);
    }

    #[test]
    fn two_databases_in_one_group_are_one_finding_and_their_logs_no_more_than_it_has() {
        let mut after = snapshot(group(900 * MIB));
        after.databases.push(after.databases[0].clone());
        let mut other = file("/var/lib/mysql/binlog.000002", FileClass::Binlog, GIB, 900 * MIB);
        other.database = Some(1);
        after.files.push(other);
        let found = find_in(&after, 900 * MIB);
        assert_eq!(found.len(), 1);
        let held = found[0].evidence.iter().find(|one| one.figures.contains_key("log_resident_bytes"));
        let held = held.unwrap();
        assert_eq!(held.figures["log_resident_bytes"], 700 * MIB, "all that the group has");
        assert_eq!(held.figures["log_releasable_bytes"], 700 * MIB);
        assert_eq!(
            (&held.figures["data_resident_bytes"], &held.figures["other_resident_bytes"]),
            (&0.into(), &0.into())
        );
    }

    #[test]
    fn streams_in_the_group_are_named() {
        let mut after = snapshot(group(900 * MIB));
        let of = |pid, name| pages(after.files[0].inode, pid, name, 100 * MIB, 0);
        let counts = vec![of(7, "tar"), of(8, "cp"), of(100, "mariadbd")];
        after.change.as_mut().unwrap().trace.as_mut().unwrap().pages = Some(counts);
        let before = sample();
        let mut observation = Observation::new(&before, &after);
        let streamer = |pid, cgroup| Streamer {
            pid,
            title: "x".to_owned(),
            cgroup: Some(cgroup),
            group_beside: None,
            has_ended: false,
            files: Vec::new(),
        };
        let elsewhere = MemoryCgroup { directory: PathBuf::from("/sys/fs/cgroup/else"), ..group(GIB) };
        let here = || group(GIB);
        observation.streamers = vec![streamer(7, here()), streamer(8, elsewhere), streamer(100, here())];
        let found = examine(&observation);
        let found = found.iter().find(|finding| finding.kind == Kind::CgroupCache).unwrap();
        let texts: Vec<&str> = found.evidence.iter().map(|one| one.text.as_str()).collect();
        assert!(
            texts.contains(&"streams in it brought in while watching: tar (process 7) 100 MiB"),
            "{texts:?}"
        );
    }
}
