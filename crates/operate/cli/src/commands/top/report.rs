//! `top --once`: one sample, as a plain table or as one JSON object. Also the sentences that the
//! screen shares.
//!
//! Invariants: figures in JSON are bytes, bytes per second and seconds; unknown ones are null.

use std::io::{self, Write};
use std::time::Duration;

use pagekeeper_observe::{
    CachedBreakdown, CensusTick, GroupBy, QueryRows, Row, RowKey, RowOwner, VisibilityGap,
};
use pagekeeper_text::{count, escaped, unescaped};
use pagekeeper_trace::{PauseCounts, ReclaimCounts, TaskIdentity};
use serde_json::{Value, json};

use super::choices::heading;
use super::figures::{buffers_line, explained, figure, rate, size};
use crate::output;

/// Waiting threads that a table lists.
const WAITS_MAX: usize = 5;

/// Returns the one object that is printed.
pub(super) fn json(tick: &CensusTick, rows: &QueryRows) -> Value {
    let is_traced = tick.pauses.is_some() || tick.reclaim.is_some();
    let tasks = || {
        json!({
            "throttled": tick.pauses.iter().flatten().map(throttled).collect::<Vec<_>>(),
            "reclaiming": tick.reclaim.iter().flatten().map(reclaiming).collect::<Vec<_>>(),
        })
    };
    json!({
        "seconds": tick.period.as_secs_f64(),
        "memory": memory(tick),
        "cached": cached(&tick.explained),
        "file_systems": tick.file_systems,
        "files_known": tick.files,
        "files_in_memory": tick.files_in_memory,
        "matching": rows.matching,
        "rows": rows.rows.iter().map(row).collect::<Vec<_>>(),
        "tasks": is_traced.then(tasks),
        "visibility_gaps": tick.visibility_gaps,
    })
}

fn memory(tick: &CensusTick) -> Value {
    let marks = &tick.watermarks;
    let mut memory = json!(tick.split);
    memory["available"] = json!(tick.memory.available);
    for (name, mark) in [("min", marks.min), ("low", marks.low), ("high", marks.high)] {
        memory[format!("watermark_{name}")] = json!(mark);
    }
    memory
}

/// Returns the kernel's `Cached`, and what it consists of, unless only the files of some
/// directories are counted.
fn cached(explained: &CachedBreakdown) -> Value {
    json!({
        "bytes": explained.cached,
        "files": explained.files,
        "shmem": explained.shmem,
        "unexplained": (!explained.scoped).then(|| explained.unexplained()),
        "explained_share": (!explained.scoped).then(|| explained.share()),
    })
}

fn row(row: &Row) -> Value {
    let inode = match &row.key {
        RowKey::File(inode) => Some(inode),
        RowKey::Group(_) => None,
    };
    json!({
        "label": row.label,
        "path": row.path.as_ref().map(|path| unescaped(path)),
        "device": inode.map(|inode| inode.dev),
        "inode": inode.map(|inode| inode.ino),
        "deleted": row.deleted,
        "files": row.files,
        "size": row.size,
        "resident": row.resident,
        "dirty": row.dirty,
        "writeback": row.writeback,
        "evicted": row.evicted,
        "recently_evicted": row.recently_evicted,
        "growth": row.growth,
        "came_and_left": row.total_flow,
        "database": row.database,
        "class": row.class.map(|class| class.to_string()),
        "owners": row.owners.iter().map(owner).collect::<Vec<_>>(),
    })
}

fn owner(owner: &RowOwner) -> Value {
    let used = owner.used.unwrap_or_default();
    json!({
        "pid": owner.pid,
        "name": owner.name,
        "cgroup": owner.cgroup,
        "open": owner.used.is_some(),
        "writes": used.writes,
        "direct": used.direct,
        "mapped": used.mapped,
        "brought_in": owner.brought,
    })
}

fn throttled(counts: &PauseCounts) -> Value {
    json!({
        "pid": counts.task.process,
        "thread": counts.task.thread,
        "name": counts.task.name,
        "device": counts.device,
        "pauses": counts.pauses.count(),
        "seconds": counts.pauses.total().as_secs_f64(),
        "over_threshold": counts.levels.over(),
    })
}

fn reclaiming(counts: &ReclaimCounts) -> Value {
    json!({
        "pid": counts.task.process,
        "thread": counts.task.thread,
        "name": counts.task.name,
        "stalls": counts.stalls.count(),
        "seconds": counts.stalls.total().as_secs_f64(),
        "reclaimed": counts.reclaimed,
    })
}

/// Returns a gap as a sentence.
pub(super) fn in_words(gap: &VisibilityGap) -> String {
    let VisibilityGap { what, why, needs } = gap;
    match needs {
        Some(needs) => format!("not seen: {what}: {why}; needs {needs}"),
        None => format!("not seen: {what}: {why}"),
    }
}

/// Writes the sample for people.
pub(super) fn write(
    tick: &CensusTick,
    rows: &QueryRows,
    group: GroupBy,
    out: &mut impl Write,
) -> io::Result<()> {
    memory_lines(tick).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out)?;
    let fifth = if group == GroupBy::File { "SIZE" } else { "FILES" };
    let mut line = |figures: [&str; 5], name: &str| {
        let [resident, growth, dirty, evicted, fifth] = figures;
        writeln!(out, "{resident:>8} {growth:>7} {dirty:>7} {evicted:>7} {fifth:>7}  {name}")
    };
    line(["RESIDENT", "+/s", "DIRTY", "EVICTED", fifth], &heading(group))?;
    for row in &rows.rows {
        let fifth = if group == GroupBy::File { size(row.size) } else { count(row.files) };
        let (resident, growth) = (size(row.resident), rate(row.growth));
        let (dirty, evicted) = (figure(unwritten(row)), figure(row.evicted));
        line([&resident, &growth, &dirty, &evicted, &fifth], &name(row))?;
    }
    let left = rows.matching.saturating_sub(rows.rows.len());
    if left > 0 {
        writeln!(out, "and {} more: --limit N shows N", count(left as u64))?;
    }
    let mut lines = waits(tick).into_iter().flatten().flat_map(|lines| lines.into_iter().take(WAITS_MAX));
    lines.try_for_each(|line| writeln!(out, "{line}"))
}

/// Returns the bytes of a row that are not on disk yet.
pub(super) fn unwritten(row: &Row) -> Option<u64> {
    Some(row.dirty? + row.writeback?)
}

/// Returns the name of a row, safe for a terminal.
pub(super) fn name(row: &Row) -> String {
    format!("{}{}", escaped(&row.label), if row.deleted { " (deleted)" } else { "" })
}

fn memory_lines(tick: &CensusTick) -> Vec<String> {
    let split = &tick.split;
    let mut lines = vec![
        format!(
            "memory {}: processes {}, files {} ({} dirty, {} writeback), shmem {}, buffers {}, slab {}, other {}, \
             free {}",
            size(split.total),
            size(split.processes),
            size(split.files()),
            size(split.dirty),
            size(split.writeback),
            size(split.shmem),
            size(split.buffers),
            size(split.slab),
            size(split.other),
            size(split.free)
        ),
        format!(
            "free {}: background reclaim begins below {}, programs have to reclaim below {}",
            size(split.free),
            size(tick.watermarks.low),
            size(tick.watermarks.min)
        ),
        format!(
            "{} ({} of {} have something in memory)",
            explained(&tick.explained),
            count(tick.files_in_memory),
            output::files(tick.files)
        ),
    ];
    lines.extend(buffers_line(split));
    lines
}

/// Returns the threads that are throttled for dirty pages, and those that have to reclaim memory,
/// each in a line; `None` if neither is seen.
pub(super) fn waits(tick: &CensusTick) -> Option<[Vec<String>; 2]> {
    let of_time = |length: Duration| {
        format!("{:.0} %", length.as_secs_f64() / tick.period.as_secs_f64().max(1e-3) * 100.0)
    };
    let of_task =
        |task: &TaskIdentity, does: String| format!("{} {} {does}", escaped(&task.name), task.process);
    if tick.pauses.is_none() && tick.reclaim.is_none() {
        return None;
    }
    let throttled = tick.pauses.iter().flatten().map(|paused| {
        let (share, device) = (of_time(paused.pauses.total()), escaped(&paused.device));
        of_task(&paused.task, format!("throttled {share} of the time for dirty pages of {device}"))
    });
    let reclaiming = tick.reclaim.iter().flatten().map(|stalled| {
        let (share, bytes) = (of_time(stalled.stalls.total()), size(stalled.reclaimed));
        of_task(&stalled.task, format!("reclaimed {bytes} itself, {share} of the time"))
    });
    Some([throttled.collect(), reclaiming.collect()])
}
