//! `top --once`: one sample, as a plain table or as one JSON object.
//!
//! Invariants: figures in JSON are bytes, bytes per second and seconds; unknown ones are null.

use std::io::{self, Write};

use pagekeeper_observe::{
    CensusTick, Explained, FileSystemSum, Flow, Group, Owner, Row, RowKey, Rows, Split, VisibilityGap,
};
use pagekeeper_text::{count, escaped, unescaped};
use pagekeeper_trace::{PauseCounts, ReclaimCounts};
use serde::Serialize;

use super::figures::{explained, figure, rate, share, size, time, without_rows};
use crate::output;

/// The one object that is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    seconds: f64,
    memory: Memory,
    cached: Cached,
    file_systems: Vec<FileSystem>,
    files_known: u64,
    files_in_memory: u64,
    matching: usize,
    rows: Vec<Line>,
    tasks: Option<Tasks>,
    visibility_gaps: Vec<VisibilityGap>,
}

#[derive(Debug, Serialize)]
struct Memory {
    total: u64,
    processes: u64,
    files_clean: u64,
    files_dirty: u64,
    files_writeback: u64,
    shmem: u64,
    buffers: u64,
    slab: u64,
    free: u64,
    other: u64,
    available: u64,
    watermark_min: u64,
    watermark_low: u64,
    watermark_high: u64,
}

/// The kernel's `Cached`, and what it consists of.
#[derive(Debug, Serialize)]
struct Cached {
    bytes: u64,
    files: u64,
    shmem: u64,
    /// Like the share, null if only the files of some directories are counted.
    unexplained: Option<i64>,
    explained_share: Option<f64>,
}

#[derive(Debug, Serialize)]
struct FileSystem {
    point: String,
    kind: String,
    source: String,
    files: u64,
    resident: u64,
    dirty: u64,
    writeback: u64,
}

/// A file or a group.
#[derive(Debug, Serialize)]
struct Line {
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    deleted: bool,
    files: u64,
    size: u64,
    resident: u64,
    dirty: Option<u64>,
    writeback: Option<u64>,
    evicted: Option<u64>,
    recently_evicted: Option<u64>,
    growth: i64,
    came_and_left: Option<Moved>,
    database: Option<String>,
    class: Option<String>,
    owners: Vec<Holder>,
}

/// Bytes that entered and left a file's page cache during the sample.
#[derive(Debug, Serialize)]
struct Moved {
    added: u64,
    reclaimed: u64,
    dropped: u64,
}

#[derive(Debug, Serialize)]
#[allow(clippy::struct_excessive_bools, reason = "what is true of a process and a file")]
struct Holder {
    pid: u32,
    name: String,
    cgroup: String,
    open: bool,
    writes: bool,
    direct: bool,
    mapped: bool,
    brought_in: u64,
}

/// Threads that had to wait.
#[derive(Debug, Serialize)]
struct Tasks {
    throttled: Vec<Throttled>,
    reclaiming: Vec<Reclaiming>,
}

#[derive(Debug, Serialize)]
struct Throttled {
    pid: u32,
    thread: u32,
    name: String,
    device: String,
    pauses: u64,
    seconds: f64,
    over_threshold: u64,
}

#[derive(Debug, Serialize)]
struct Reclaiming {
    pid: u32,
    thread: u32,
    name: String,
    stalls: u64,
    seconds: f64,
    reclaimed: u64,
}

impl Report {
    pub(super) fn new(tick: &CensusTick, rows: &Rows) -> Self {
        let tasks = |pauses: &[PauseCounts], reclaim: &[ReclaimCounts]| Tasks {
            throttled: pauses.iter().map(Throttled::new).collect(),
            reclaiming: reclaim.iter().map(Reclaiming::new).collect(),
        };
        Self {
            seconds: tick.period.as_secs_f64(),
            memory: Memory::new(tick),
            cached: Cached::new(&tick.explained),
            file_systems: tick.file_systems.iter().map(FileSystem::new).collect(),
            files_known: tick.files,
            files_in_memory: tick.files_in_memory,
            matching: rows.matching,
            rows: rows.rows.iter().map(Line::new).collect(),
            tasks: match (&tick.pauses, &tick.reclaim) {
                (None, None) => None,
                (pauses, reclaim) => {
                    Some(tasks(pauses.as_deref().unwrap_or_default(), reclaim.as_deref().unwrap_or_default()))
                }
            },
            visibility_gaps: tick.visibility_gaps.clone(),
        }
    }
}

impl Memory {
    fn new(tick: &CensusTick) -> Self {
        let Split { total, processes, clean, dirty, writeback, shmem, buffers, slab, free, other } =
            tick.split;
        Self {
            total,
            processes,
            files_clean: clean,
            files_dirty: dirty,
            files_writeback: writeback,
            shmem,
            buffers,
            slab,
            free,
            other,
            available: tick.memory.available,
            watermark_min: tick.watermarks.min,
            watermark_low: tick.watermarks.low,
            watermark_high: tick.watermarks.high,
        }
    }
}

impl Cached {
    fn new(explained: &Explained) -> Self {
        Self {
            bytes: explained.cached,
            files: explained.files,
            shmem: explained.shmem,
            unexplained: (!explained.scoped).then(|| explained.unexplained()),
            explained_share: (!explained.scoped).then(|| explained.share()),
        }
    }
}

impl FileSystem {
    fn new(sum: &FileSystemSum) -> Self {
        Self {
            point: unescaped(&sum.point).into_owned(),
            kind: sum.kind.clone(),
            source: sum.source.clone(),
            files: sum.files,
            resident: sum.resident,
            dirty: sum.dirty,
            writeback: sum.writeback,
        }
    }
}

impl Line {
    fn new(row: &Row) -> Self {
        let inode = match &row.key {
            RowKey::File(inode) => Some(inode),
            RowKey::Group(_) => None,
        };
        Self {
            label: row.label.clone(),
            path: row.path.as_ref().map(|path| unescaped(path).into_owned()),
            device: inode.map(|inode| inode.dev),
            inode: inode.map(|inode| inode.ino),
            deleted: row.deleted,
            files: row.files,
            size: row.size,
            resident: row.resident,
            dirty: row.dirty,
            writeback: row.writeback,
            evicted: row.evicted,
            recently_evicted: row.recently_evicted,
            growth: row.growth,
            came_and_left: row.total_flow.map(|Flow { added, reclaimed, dropped }| Moved {
                added,
                reclaimed,
                dropped,
            }),
            database: row.database.clone(),
            class: row.class.map(|class| class.to_string()),
            owners: row.owners.iter().map(Holder::new).collect(),
        }
    }
}

impl Holder {
    fn new(owner: &Owner) -> Self {
        let used = owner.used.unwrap_or_default();
        Self {
            pid: owner.pid,
            name: owner.name.clone(),
            cgroup: owner.cgroup.clone(),
            open: owner.used.is_some(),
            writes: used.writes,
            direct: used.direct,
            mapped: used.mapped,
            brought_in: owner.brought,
        }
    }
}

impl Throttled {
    fn new(counts: &PauseCounts) -> Self {
        Self {
            pid: counts.task.process,
            thread: counts.task.thread,
            name: counts.task.name.clone(),
            device: counts.device.clone(),
            pauses: counts.pauses.count(),
            seconds: counts.pauses.total().as_secs_f64(),
            over_threshold: counts.levels.over(),
        }
    }
}

impl Reclaiming {
    fn new(counts: &ReclaimCounts) -> Self {
        Self {
            pid: counts.task.process,
            thread: counts.task.thread,
            name: counts.task.name.clone(),
            stalls: counts.stalls.count(),
            seconds: counts.stalls.total().as_secs_f64(),
            reclaimed: counts.reclaimed,
        }
    }
}

/// Returns a gap as a sentence.
pub(super) fn in_words(gap: &VisibilityGap) -> String {
    let VisibilityGap { what, why, needs } = gap;
    match needs {
        Some(needs) => format!("not seen: {what}: {why}; needs {needs}"),
        None => format!("not seen: {what}: {why}"),
    }
}

/// Prints the sample for people.
pub(super) fn print(tick: &CensusTick, rows: &Rows, group: Group) -> io::Result<()> {
    let mut out = output::stdout();
    for line in memory_lines(tick) {
        writeln!(out, "{line}")?;
    }
    writeln!(
        out,
        "\n{:>8} {:>7} {:>7} {:>7} {:>7}  {}",
        "RESIDENT",
        "+/s",
        "DIRTY",
        "EVICTED",
        if group == Group::File { "SIZE" } else { "FILES" },
        heading(group)
    )?;
    for row in &rows.rows {
        let unwritten = row.dirty.zip(row.writeback).map(|(dirty, writeback)| dirty + writeback);
        let fifth = if group == Group::File { size(row.size) } else { count(row.files) };
        write!(
            out,
            "{:>8} {:>7} {:>7} {:>7} {:>7}  ",
            size(row.resident),
            rate(row.growth),
            figure(unwritten),
            figure(row.evicted),
            fifth
        )?;
        write!(out, "{}", escaped(&row.label))?;
        writeln!(out, "{}", if row.deleted { " (deleted)" } else { "" })?;
    }
    let left = rows.matching.saturating_sub(rows.rows.len());
    if left > 0 {
        writeln!(out, "and {} more: --top N shows N", count(left as u64))?;
    }
    for line in task_lines(tick) {
        writeln!(out, "{}", escaped(&line))?;
    }
    out.flush()
}

/// Returns the heading of the column of names.
pub(super) fn heading(group: Group) -> &'static str {
    match group {
        Group::File => "FILE",
        Group::Class => "CLASS",
        Group::Process => "PROCESS",
        Group::Cgroup => "CGROUP",
    }
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
    lines.extend(without_rows(split));
    lines
}

/// Returns the threads that had to wait, one a line.
fn task_lines(tick: &CensusTick) -> Vec<String> {
    let mut lines = Vec::new();
    for throttled in tick.pauses.iter().flatten().take(5) {
        let seconds = tick.period.as_secs_f64().max(1e-3);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a length of time, positive"
        )]
        let of_time = share((throttled.pauses.total().as_secs_f64() * 1e6) as u64, (seconds * 1e6) as u64);
        lines.push(format!(
            "throttled for dirty pages: {} ({}) {} times, {} ({of_time:.0} % of the time), for device {}",
            throttled.task.name,
            throttled.task.process,
            throttled.pauses.count(),
            time(throttled.pauses.total()),
            throttled.device
        ));
    }
    for stalled in tick.reclaim.iter().flatten().take(5) {
        lines.push(format!(
            "had to reclaim memory: {} ({}) {} times, {}, {}",
            stalled.task.name,
            stalled.task.process,
            stalled.stalls.count(),
            time(stalled.stalls.total()),
            size(stalled.reclaimed)
        ));
    }
    lines
}
