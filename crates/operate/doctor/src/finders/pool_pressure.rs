//! `MariaDB` that gives memory of its buffer pool away, because its memory cgroup or the host is
//! short of memory for page cache.
//!
//! Invariants: only the server's own log says that it happened. No fix lets the group use more than
//! its limit.

use std::fmt::Display;

use pagekeeper_kernel::pressure::{CgroupVersion, MemoryCgroup};
use pagekeeper_text::{ByteSize, counted, escaped, shell_quoted};

use super::EarlierFindings;
use super::cgroup::{group_lists, limits};
use crate::advice::step;
use crate::texts::text;
use crate::{Cost, Evidence, Finding, Fix, Kind, Observation, PoolPressure, Severity};

/// Returns the servers that gave memory away since yesterday.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    let known = observation.databases().filter_map(|(index, database)| {
        let pressure = observation.pool_pressure.get(index)?.as_ref()?;
        Some(given_away(observation, index, database.cgroup.as_ref(), pressure))
    });
    known.collect()
}

fn given_away(
    observation: &Observation<'_>,
    index: usize,
    group: Option<&MemoryCgroup>,
    pressure: &PoolPressure,
) -> Finding {
    let log = Evidence::new(format!("its error log {}: {}", escaped(&pressure.log), pressure.last));
    let high = pressure.high.map(|high| {
        Evidence::new(format!("memory.high of its memory cgroup is {}", ByteSize(high)))
            .with("high_bytes", high)
    });
    let database = &observation.after.databases[index];
    let of_group =
        group.map(|group| [Some(group_lists(group)), limits(group, observation.limits_hit(database))]);
    Finding {
        kind: Kind::PoolPressure,
        severity: Severity::Warning,
        database: Some(observation.subject(index)),
        title: text(
            "pool-pressure.title",
            &[
                ("least", &if pressure.may_be_more { "at least " } else { "" }),
                ("times", &counted(pressure.events as u64, "time", "times")),
            ],
        ),
        evidence: [Some(log), high].into_iter().chain(of_group.into_iter().flatten()).flatten().collect(),
        cost: Cost::estimated(if pressure.is_lasting() {
            text("pool-pressure.cost-lasting", &[])
        } else {
            text("pool-pressure.cost", &[])
        }),
        fixes: fixes(group, pressure),
        remarks: Vec::new(),
        pagekeeper: None,
    }
}

fn fixes(group: Option<&MemoryCgroup>, pressure: &PoolPressure) -> Vec<Fix> {
    let line: &dyn Display = &pressure.last;
    let group = group.filter(|group| group.version == CgroupVersion::V2);
    let guard = group.map(|_| step("guard-cgroup-share", &[("line", line)]));
    let high = group.zip(pressure.high).map(|(group, high)| {
        let file = shell_quoted(&group.directory.join("memory.high")).to_string();
        step("no-memory-high", &[("file", &file), ("high", &high), ("line", line)])
    });
    let pool = pressure.is_lasting().then(|| step("pool-size-auto-min", &[("line", line)]));
    guard.into_iter().chain(high).chain(pool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GIB, MIB, cgroup, sample};

    const SHRUNK: &str =
        "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event shrunk innodb_buffer_pool_size=96m";
    const FREED: &str = "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event freed 812 pages";

    fn found(version: CgroupVersion, last: &str, high: Option<u64>) -> Finding {
        let mut after = sample();
        after.databases[0].cgroup = Some(MemoryCgroup { version, ..cgroup(GIB, GIB) });
        let mut observation = Observation::new(&after, &after);
        let last = last.to_owned();
        let pressure = PoolPressure { log: "/l".into(), events: 3, may_be_more: true, last, high };
        observation.pool_pressure = vec![Some(pressure)];
        find(&observation, EarlierFindings(&[])).pop().unwrap()
    }

    #[test]
    fn each_fix_fits_the_group_and_the_version_and_can_be_taken_back() {
        let one = found(CgroupVersion::V2, SHRUNK, Some(100 * MIB));
        assert!(one.title.contains("away at least 3 times since yesterday"), "{one:?}");
        assert_eq!(one.evidence[0].text, format!("its error log /l: {SHRUNK}"));
        assert_eq!(one.evidence[1].figures["high_bytes"], 100 * MIB);
        assert!(one.fixes[0].act.starts_with("pagekeeper guard"), "{one:?}");
        assert_eq!(one.fixes[1].act, "echo max >/sys/fs/cgroup/db/memory.high");
        assert_eq!(one.fixes[1].terms.undo, "echo 104857600 >/sys/fs/cgroup/db/memory.high");
        assert!(one.fixes[2].act.starts_with("innodb_buffer_pool_size_auto_min"), "{one:?}");
        assert!(
            one.fixes.iter().all(|fix| fix.terms.risk.durability.is_none() && !fix.terms.undo.is_empty())
        );
        let freed = found(CgroupVersion::V2, FREED, None);
        assert_eq!(freed.fixes.len(), 1, "earlier versions have no setting");
        assert_eq!(found(CgroupVersion::V1, SHRUNK, None).fixes.len(), 1);
    }

    #[test]
    fn a_server_without_events_is_left_alone() {
        let after = sample();
        let mut observation = Observation::new(&after, &after);
        observation.pool_pressure = vec![None];
        assert_eq!(find(&observation, EarlierFindings(&[])), []);
    }
}
