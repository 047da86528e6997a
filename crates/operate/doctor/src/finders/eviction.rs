//! Pods that kubelet may evict although the node has memory: kubelet counts the active file pages
//! of the node as needed, and the kernel reclaims them.
//!
//! kubelet takes `capacity − (usage − inactive_file)` for the memory that a node has available. By
//! default it evicts below 100 MiB; operators often set a part of the memory. `MemAvailable` of the
//! kernel has most of the active file pages in it, too.
//!
//! Invariants: one finding per pod's group. There is none if the kernel's figure is as low. It is a
//! warning only if kubelet's figure is near usual thresholds: a large node runs for months with
//! much active page cache.

use std::collections::BTreeSet;

use pagekeeper_kernel::pressure::MemoryCgroup;
use pagekeeper_text::ByteSize;

use super::EarlierFindings;
use super::cgroup::{
    CacheComposition, group_lists, is_pod, lists_change, node, request, seen_by_kubelet, streams,
};
use super::unwritten::largest_stream;
use crate::programs::run_as_stream;
use crate::texts::text;
use crate::{Confidence, Cost, Finding, Kind, Observation, Severity};

/// A node is near eviction if kubelet sees less than one part in this many of its memory available.
const EVICTION_PART: u64 = 10;
/// File pages are the cause if the kernel sees at least one part in this many more available.
const MORE_PART: u64 = 20;
/// The finding is a warning if kubelet sees less than one part in this many available.
const WARNING_PART: u64 = 50;
/// The finding is a warning if kubelet sees less than this available, in bytes.
const NODE_WARNING_BYTES: u64 = 512 << 20;

/// Returns one finding for each pod of a node that is near eviction because of file pages.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    let memory = &observation.after.host.memory;
    let available = seen_by_kubelet(memory);
    let is_near = available < memory.total / EVICTION_PART;
    if !is_near || memory.available < available.saturating_add(memory.total / MORE_PART) {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let pods = observation.databases().filter_map(|(index, database)| {
        let group = database.cgroup.as_ref().filter(|group| is_pod(&group.directory))?;
        seen.insert(&group.directory).then(|| may_be_evicted(observation, index, group))
    });
    pods.collect()
}

fn may_be_evicted(observation: &Observation<'_>, index: usize, group: &MemoryCgroup) -> Finding {
    let memory = &observation.after.host.memory;
    let is_urgent = seen_by_kubelet(memory) < (memory.total / WARNING_PART).max(NODE_WARNING_BYTES);
    let stream = largest_stream(observation, group);
    let evidence = [
        Some(node(memory)),
        Some(group_lists(group)),
        observation.file_lists_before(index).map(|before| lists_change(before, group)),
        streams(observation, group),
    ];
    let active = format!("its group has {} of active file pages", ByteSize(group.active_file));
    let run = stream.and_then(|name| run_as_stream(&name, Confidence::Estimated, active));
    let held = CacheComposition::of(observation, group);
    Finding {
        kind: Kind::NearEviction,
        severity: if is_urgent { Severity::Warning } else { Severity::Note },
        database: Some(observation.subject(index)),
        title: text(
            "eviction.title",
            &[("kubelet", &ByteSize(seen_by_kubelet(memory))), ("kernel", &ByteSize(memory.available))],
        ),
        evidence: evidence.into_iter().flatten().collect(),
        cost: Cost::estimated(text("eviction.cost", &[])),
        fixes: run.into_iter().chain([request(group, &held)]).collect(),
        remarks: vec![text("eviction.remark", &[])],
        pagekeeper: Some(text("eviction.pagekeeper", &[])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GIB, MIB, cgroup, pages, sample};
    use crate::{Streamer, examine};
    use pagekeeper_kernel::Inode;
    use pagekeeper_observe::Snapshot;
    use std::path::PathBuf;

    /// Returns a pod on a node of 24 GiB that has this much free, and 18 GiB of file pages, 17 of
    /// which are active.
    fn pod(directory: &str, free: u64) -> Snapshot {
        let mut after = sample();
        let memory = &mut after.host.memory;
        (memory.free, memory.active_file, memory.inactive_file) = (free, 17 * GIB, GIB / 2);
        memory.available = 16 * GIB;
        let directory = PathBuf::from(directory);
        after.databases[0].cgroup = Some(MemoryCgroup { directory, ..cgroup(900 * MIB, 8 * GIB) });
        after
    }

    const POD: &str = "/sys/fs/cgroup/kubepods.slice/pod1";

    #[test]
    fn a_pod_is_near_eviction_only_by_active_file_pages_of_its_node() {
        let found = |after: &Snapshot| find(&Observation::new(after, after), EarlierFindings(&[]));
        let one = found(&pod(POD, GIB)).pop().unwrap();
        assert_eq!(one.severity, Severity::Note, "far above usual thresholds");
        assert!(
            one.title.ends_with("kubelet sees 1.5 GiB available on the node, the kernel 16 GiB"),
            "{one:?}"
        );
        let figures = &one.evidence[0].figures;
        assert_eq!(figures["node_available_bytes"], GIB + GIB / 2);
        assert_eq!(figures["mem_available_bytes"], 16 * GIB);
        assert!(one.fixes.iter().all(|fix| fix.terms.risk.durability.is_none()));
        assert_eq!(found(&pod(POD, 4 * GIB)), []);
        let mut low = pod(POD, 300 * MIB);
        low.host.memory.inactive_file = 200 * MIB;
        assert_eq!(found(&low)[0].severity, Severity::Warning);
        assert_eq!(found(&pod("/sys/fs/cgroup/system.slice/db", GIB)), [], "no pod");
        let mut full = pod(POD, GIB);
        full.host.memory.available = GIB;
        assert_eq!(found(&full), [], "the memory is needed");
    }

    #[test]
    fn growth_of_the_active_list_by_a_backup_is_reported() {
        let mut after = pod(POD, GIB);
        let mut before = after.clone();
        let group = before.databases[0].cgroup.as_mut().unwrap();
        (group.active_file, group.inactive_file) = (10 * MIB, 20 * MIB);
        let pages = vec![pages(Inode { dev: 1, ino: 1 }, 55, "tar", 600 * MIB, 0)];
        after.change.as_mut().unwrap().trace.as_mut().unwrap().pages = Some(pages);
        let mut observation = Observation::new(&before, &after);
        observation.streamers = vec![Streamer {
            pid: 55,
            title: "tar c /data".to_owned(),
            cgroup: after.databases[0].cgroup.clone(),
            group_beside: None,
            has_ended: false,
            files: Vec::new(),
        }];
        let found = examine(&observation);
        let found = found.iter().find(|finding| finding.kind == Kind::NearEviction).unwrap();
        assert_eq!(found.fixes[0].act, "pagekeeper run -- tar ...");
        assert_eq!(
            found.evidence[2].text,
            "while watching, its active file pages went from 10 MiB to 300 MiB, its inactive ones from 20 MiB to 300 MiB"
        );
        assert!(found.evidence[3].text.contains("tar (process 55) 600 MiB"), "{found:?}");
    }
}
