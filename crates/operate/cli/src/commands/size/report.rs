//! The report of `pagekeeper size`, for people and for programs.

use std::io::{self, Write};

use pagekeeper_observe::size::{LIMIT_STEP, LeastSize, SizeReport};
use pagekeeper_policy::miss_curve::SizePoint;
use pagekeeper_text::{ByteSize, count, rate, shell_quoted};
use serde::Serialize;

/// Version of the schema, `docs/schemas/size.json`; it changes with each field that is added,
/// removed or changed in meaning.
const SIZE_SCHEMA_VERSION: u32 = 1;
/// The share of faults of mappings above which hits are not known.
const MAPPED_SHARE_MAX: f64 = 0.1;
/// Columns of the longest bar.
const BAR_COLUMNS: f64 = 30.0;

/// A size of page cache, and what it would do; `None` where that can't be known.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct ShownPoint {
    pub(super) page_cache_bytes: u64,
    pub(super) hit_ratio: Option<f64>,
    read_bytes_per_second: Option<f64>,
}

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct SizeOutput {
    schema_version: u32,
    seconds: f64,
    accesses_per_second: f64,
    sampled_one_in: u64,
    lost_events: u64,
    mapped_share: f64,
    counted_hit_ratio: Option<f64>,
    /// Memory of the cgroup that is no page cache.
    other_bytes: u64,
    pub(super) present: ShownPoint,
    pub(super) points: Vec<ShownPoint>,
    least: Option<LeastSize>,
    notes: Vec<String>,
}

impl SizeOutput {
    pub(super) fn new(report: &SizeReport) -> Self {
        let curve = &report.curve;
        let is_mapped = report.mapped_share > MAPPED_SHARE_MAX;
        let shown = |point: SizePoint| ShownPoint {
            page_cache_bytes: point.bytes,
            hit_ratio: (!is_mapped).then_some(point.hit_ratio),
            read_bytes_per_second: (!is_mapped || point.bytes >= curve.present_bytes)
                .then(|| report.a_second(point.read_bytes)),
        };
        let unknown = ShownPoint {
            page_cache_bytes: curve.present_bytes,
            hit_ratio: None,
            read_bytes_per_second: None,
        };
        Self {
            schema_version: SIZE_SCHEMA_VERSION,
            seconds: report.counted.as_secs_f64(),
            accesses_per_second: curve.accesses / report.counted.as_secs_f64().max(f64::MIN_POSITIVE),
            sampled_one_in: report.weight,
            lost_events: report.lost,
            mapped_share: report.mapped_share,
            counted_hit_ratio: (!is_mapped).then_some(curve.counted_hit_ratio),
            other_bytes: report.other_memory(),
            present: curve.at(curve.present_bytes).map_or(unknown, shown),
            points: curve.points.iter().copied().map(shown).collect(),
            least: (!is_mapped && report.is_complete).then(|| report.least()),
            notes: notes(report, is_mapped),
        }
    }

    /// Writes it for people.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{:.0} page accesses a second for {:.0} s, 1 page in {} sampled\n",
            self.accesses_per_second,
            self.seconds,
            count(self.sampled_one_in)
        )?;
        writeln!(out, "  {:>10}  {:>7}  {:>12}", "page cache", "hits", "reads")?;
        let is_before = |point: &&ShownPoint| point.page_cache_bytes < self.present.page_cache_bytes;
        self.points.iter().filter(is_before).try_for_each(|point| write_point(out, point, ' ', ""))?;
        let counted = self.counted_hit_ratio.map(|ratio| format!("  now; counted: {}", percent(ratio)));
        write_point(out, &self.present, '>', counted.as_deref().unwrap_or("  now"))?;
        let is_after = |point: &&ShownPoint| point.page_cache_bytes > self.present.page_cache_bytes;
        self.points.iter().filter(is_after).try_for_each(|point| write_point(out, point, ' ', ""))?;
        writeln!(out)?;
        self.write_difference(out, "At half the page cache", self.present.page_cache_bytes / 2)?;
        self.write_difference(out, "At twice the page cache", self.present.page_cache_bytes * 2)?;
        self.least.iter().try_for_each(|least| write_least(out, least, self.other_bytes))?;
        self.notes.iter().try_for_each(|note| writeln!(out, "Note: {note}."))
    }

    /// Writes how the point nearest to a size differs from the present one.
    fn write_difference(&self, out: &mut impl Write, name: &str, bytes: u64) -> io::Result<()> {
        let distance = |point: &&ShownPoint| point.page_cache_bytes.abs_diff(bytes);
        let Some(point) = self.points.iter().min_by_key(distance) else { return Ok(()) };
        let (Some(hits), Some(hits_now)) = (point.hit_ratio, self.present.hit_ratio) else { return Ok(()) };
        let reads = point.read_bytes_per_second.unwrap_or_default()
            - self.present.read_bytes_per_second.unwrap_or_default();
        let (points, more) = ((hits - hits_now) * 100.0, if hits < hits_now { "fewer" } else { "more" });
        let more_reads = if reads < 0.0 { "fewer" } else { "more" };
        writeln!(
            out,
            "{name}: {:.1} points {more} hits, {} {more_reads} reads.",
            points.abs(),
            shown_rate(reads.abs())
        )
    }
}

/// Writes the size that loses at most a point of hits, beside this much other memory.
fn write_least(out: &mut impl Write, least: &LeastSize, other: u64) -> io::Result<()> {
    let size = ByteSize(least.page_cache_bytes);
    writeln!(out, "Within a point of the present hits: {size} of page cache.")?;
    let Some(limit) = least.limit_bytes else { return Ok(()) };
    writeln!(out, "With the {} of other memory, a limit of {}:", ByteSize(other), ByteSize(limit))?;
    least.commands.iter().try_for_each(|command| writeln!(out, "  {command}"))?;
    writeln!(out, "  resources: {{limits: {{memory: {}}}}}   of a pod", pod_quantity(limit))
}

/// Returns bytes in the notation of Kubernetes.
fn pod_quantity(bytes: u64) -> String {
    if bytes.is_multiple_of(LIMIT_STEP) { format!("{}Mi", bytes / LIMIT_STEP) } else { bytes.to_string() }
}

fn notes(report: &SizeReport, is_mapped: bool) -> Vec<String> {
    let share = percent(report.mapped_share);
    let mut notes = vec![if is_mapped {
        format!(
            "{share} of what was seen are faults of mappings, whose accesses are not seen: only reads at the \
             present size and above are known"
        )
    } else {
        format!("accesses through pages that are mapped already are not seen ({share} were faults)")
    }];
    if !report.is_complete {
        let lost = format!("{} events were lost", count(report.lost));
        let why = if report.lost > 0 { lost } else { "accesses were not counted".to_owned() };
        notes.push(format!("{why}: hits outside the sample are left out, and no size is recommended"));
    }
    notes.extend(shared_group(report));
    if report.has_ended {
        notes.push("the processes ended before the time was over".to_owned());
    }
    if report.is_multi_generational {
        notes.push("this kernel uses its multi-generational LRU, which is not simulated".to_owned());
    }
    notes.extend(report.problems.iter().cloned());
    notes
}

/// Returns a note if others are in the memory cgroup.
fn shared_group(report: &SizeReport) -> Option<String> {
    let group = report.group.as_ref().filter(|_| report.other_members > 0)?;
    let (directory, others) = (shell_quoted(&group.directory), count(report.other_members as u64));
    let others = match report.other_members {
        1 => "another process is".to_owned(),
        _ => format!("{others} other processes are"),
    };
    Some(format!(
        "{others} in the memory cgroup {directory}, which a limit would bind, too; their accesses were not seen"
    ))
}

fn write_point(out: &mut impl Write, point: &ShownPoint, mark: char, remark: &str) -> io::Result<()> {
    let unknown = || "?".to_owned();
    let reads = point.read_bytes_per_second.map_or_else(unknown, shown_rate);
    let hits = point.hit_ratio.map_or_else(unknown, percent);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 30 columns")]
    let bar = "█".repeat((point.hit_ratio.unwrap_or_default() * BAR_COLUMNS).round() as usize);
    let size = ByteSize(point.page_cache_bytes).to_string();
    let line = format!("{mark} {size:>10}  {hits:>7}  {reads:>12}  {bar}{remark}");
    writeln!(out, "{}", line.trim_end())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn shown_rate(bytes_per_second: f64) -> String {
    rate(ByteSize::from_f64(bytes_per_second).0)
}
