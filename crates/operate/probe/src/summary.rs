//! A disk in words: one sentence for people, and notes for readers of the figures.

use std::fmt::Write as _;

use pagekeeper_policy::{DiskProfile, MixedProfile};
use pagekeeper_text::microseconds;

use crate::bulk::BulkReport;
use crate::direct::{DirectKind, DirectReport};
use crate::run::ProbeContext;

/// A disk is wide if many reads in flight reach at least this many times the rate of one.
const WIDE_FACTOR: f64 = 4.0;
/// A single read is slow from this time on, in microseconds.
const SLOW_READ_US: f64 = 500.0;
/// Below this share, something counts as a cost.
const COST_SHARE: f64 = 0.8;

/// Describes the disk in one sentence: its character, and what follows from it.
///
/// ```
/// use pagekeeper_policy::{DepthProfile, DiskProfile};
/// let read = |depth, per_second, p50_us| DepthProfile { depth, per_second, p50_us, p99_us: p50_us };
/// let disk = DiskProfile {
///     reads: vec![read(1, 500.0, 2000.0), read(64, 30_000.0, 2100.0)],
///     ..DiskProfile::default()
/// };
/// assert!(pagekeeper_probe::summary(&disk).starts_with("Wide but slow: "));
/// ```
pub fn summary(profile: &DiskProfile) -> String {
    let mut text = reads(profile).unwrap_or_else(|| "Its reads were not measured".to_owned());
    let mut more = Vec::new();
    if let Some(mixed) = profile.mixed {
        let worst = |ratios: &[Option<f64>]| ratios.iter().flatten().copied().min_by(f64::total_cmp);
        let leftover =
            worst(&[mixed.leftover_read, mixed.leftover_write]).filter(|ratio| *ratio < COST_SHARE);
        let writer = worst(&[mixed.buffered_writer_read, mixed.buffered_writer_write])
            .filter(|ratio| *ratio < COST_SHARE);
        if let Some(ratio) = leftover {
            more.push(format!(
                "leftover pages take {} of direct I/O's rate: evict them",
                percent(1.0 - ratio)
            ));
        }
        if let Some(ratio) = writer {
            let share = percent(1.0 - ratio);
            more.push(format!(
                "a buffered writer takes {share} of the rate of direct I/O on its file: never mix them"
            ));
        }
    }
    if profile.file_bytes > 0 && profile.direct.is_none() && !profile.reads.is_empty() {
        more.push("direct I/O is not available: write in bulk with pacing".to_owned());
    }
    for clause in more {
        let _ = write!(text, "; {clause}");
    }
    text.push('.');
    text
}

fn reads(profile: &DiskProfile) -> Option<String> {
    let alone = profile.reads.first()?;
    let best = profile.reads.iter().map(|read| read.per_second).fold(0.0, f64::max);
    let (times, width) = (best / alone.per_second.max(1e-9), profile.width()?);
    let one = microseconds(alone.p50_us);
    Some(match (alone.p50_us >= SLOW_READ_US, times >= WIDE_FACTOR) {
        (true, true) => format!(
            "Wide but slow: a read takes {one}, but {width} at once are served {times:.0} times as fast, so read ahead and \
             write with many in flight, never one after the other"
        ),
        (true, false) => format!(
            "Slow and narrow: a read takes {one}, and many at once are served only {times:.1} times as fast, so keep hot data in memory and write in long rows"
        ),
        (false, true) => format!(
            "Fast and wide: a read takes {one}, and {width} at once are served {times:.0} times as fast, so reads past the page \
             cache pay, with as many in flight"
        ),
        (false, false) => format!(
            "Fast and narrow: a read takes {one}, and many at once are served at most {times:.1} times as fast, so few in flight \
             are enough"
        ),
    })
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Returns notes for readers of the figures.
pub(crate) fn notes(
    direct: Option<&DirectReport>,
    bulk: Option<&BulkReport>,
    profile: &DiskProfile,
    wanted: u64,
    work: &ProbeContext<'_>,
) -> Vec<String> {
    let mut notes = Vec::new();
    if profile.file_bytes < wanted {
        notes.push(format!(
            "the disk wrote {} MiB in the time there was, not the {} MiB asked for: a cache of the device may hold so much",
            profile.file_bytes >> 20,
            wanted >> 20
        ));
    }
    if let Some(why) = &work.not_uring {
        notes.push(format!("reads were in flight by threads: {why}"));
    }
    match direct.map(|direct| direct.kind) {
        Some(DirectKind::Real) if loops_through_cache(work) => notes.push(
            "the disk is a loop device over a file that goes through the page cache of the file system below: its figures are \
             of memory, too (losetup --direct-io=on)"
                .to_owned(),
        ),
        Some(DirectKind::WritesCopied) => notes.push(
            "direct reads go to the device, but direct writes are copied through the page cache: they are taken for buffered ones"
                .to_owned(),
        ),
        Some(DirectKind::Copied) => {
            notes.push("the file system takes O_DIRECT and copies through the page cache all the same".to_owned());
        }
        Some(DirectKind::Cached) => {
            notes.push("the file system takes O_DIRECT and answers from the page cache".to_owned());
        }
        Some(DirectKind::Real | DirectKind::Refused) | None => {}
    }
    if let Some(direct) = direct
        && direct.kind != DirectKind::Refused
        && !(direct.dirty_is_seen && direct.write_is_seen)
    {
        notes.push(
            "direct and buffered I/O on one file do NOT see each other's writes here: never mix them"
                .to_owned(),
        );
    }
    if let Some(mixed) = profile.mixed
        && let Some(doubt) = doubts(mixed)
    {
        notes.push(doubt);
    }
    if bulk.is_some_and(|bulk| !bulk.buffered_reached_limits()) {
        notes.push(limits_not_reached(bulk));
    }
    notes
}

/// Returns a note about questions that remain open because of other load on the disk or the
/// processors.
fn doubts(mixed: MixedProfile) -> Option<String> {
    let open: Vec<&str> = [
        (mixed.leftover_read, "leftover pages cost direct reads"),
        (mixed.leftover_write, "leftover pages cost direct writes"),
        (mixed.buffered_reader_read, "a buffered reader costs direct reads"),
        (mixed.buffered_writer_read, "a buffered writer costs direct reads"),
        (mixed.buffered_writer_write, "a buffered writer costs direct writes"),
    ]
    .into_iter()
    .filter(|(share, _)| share.is_none())
    .map(|(_, what)| what)
    .collect();
    (!open.is_empty()).then(|| {
        format!(
            "whether {} can't be decided: the rounds do not agree, for other work on the disk or the processors; measure again \
             at rest",
            open.join(", whether ")
        )
    })
}

fn limits_not_reached(bulk: Option<&BulkReport>) -> String {
    let from = bulk.and_then(|bulk| bulk.slows_from_bytes).map_or_else(String::new, |from| {
        format!(" ({} MiB dirty, from which the kernel slows writers down)", from >> 20)
    });
    format!(
        "buffered bulk output did not reach the kernel's limits{from}: past them small writes wait for it, which this did not measure"
    )
}

/// Whether the disk is a loop device that accesses its file through the page cache.
fn loops_through_cache(work: &ProbeContext<'_>) -> bool {
    let Some(disk) = work.directory.disk else { return false };
    let number = format!("{}:{}", rustix::fs::major(disk), rustix::fs::minor(disk));
    let flag = work.directory.roots.sys.join("dev/block").join(number).join("loop/dio");
    std::fs::read_to_string(flag).is_ok_and(|text| text.trim() == "0")
}

#[cfg(test)]
mod tests {
    use pagekeeper_policy::{DepthProfile, DirectProfile};

    use super::*;

    fn of(reads: &[(u32, f64, f64)]) -> DiskProfile {
        let read = |&(depth, per_second, p50_us)| DepthProfile { depth, per_second, p50_us, p99_us: p50_us };
        DiskProfile {
            reads: reads.iter().map(read).collect(),
            direct: Some(DirectProfile { memory_alignment: 512, offset_alignment: 512 }),
            file_bytes: 1 << 30,
            ..DiskProfile::default()
        }
    }

    #[test]
    fn the_four_kinds_of_disks_are_distinguished() {
        for (reads, start) in [
            (
                &[(1, 500.0, 2000.0), (64, 30_000.0, 2100.0)][..],
                "Wide but slow: a read takes 2.0 ms, but 64 at once",
            ),
            (&[(1, 100.0, 10_000.0), (64, 250.0, 200_000.0)], "Slow and narrow: a read takes 10.0 ms"),
            (
                &[(1, 20_000.0, 50.0), (64, 200_000.0, 300.0)],
                "Fast and wide: a read takes 50 \u{b5}s, and 64 at once",
            ),
            (
                &[(1, 30_000.0, 30.0), (4, 60_000.0, 60.0), (16, 61_000.0, 250.0)],
                "Fast and narrow: a read takes 30",
            ),
            (&[], "Its reads were not measured."),
        ] {
            let text = summary(&of(reads));
            assert!(text.starts_with(start), "{text}");
            assert!(text.ends_with('.') && text.matches(". ").count() == 0, "one sentence: {text}");
        }
    }

    #[test]
    fn disagreement_of_rounds_is_reported() {
        let sure = MixedProfile {
            leftover_read: Some(1.0),
            leftover_write: Some(1.0),
            buffered_reader_read: Some(1.0),
            buffered_writer_read: Some(0.5),
            buffered_writer_write: Some(0.5),
        };
        assert_eq!(doubts(sure), None);
        let doubt =
            doubts(MixedProfile { leftover_write: None, buffered_writer_read: None, ..sure }).unwrap();
        let said =
            "whether leftover pages cost direct writes, whether a buffered writer costs direct reads can't";
        assert!(doubt.starts_with(said), "{doubt}");
    }

    #[test]
    fn costly_features_are_reported_and_others_not() {
        let reads = [(1, 30_000.0, 30.0), (4, 60_000.0, 60.0)];
        let mixed = |leftover, writer| {
            let mixed = MixedProfile {
                leftover_read: Some(leftover),
                buffered_writer_write: Some(writer),
                ..MixedProfile::default()
            };
            summary(&DiskProfile { mixed: Some(mixed), ..of(&reads) })
        };
        assert!(!mixed(0.99, 0.95).contains("direct I/O"), "{}", mixed(0.99, 0.95));
        assert!(mixed(0.2, 1.0).contains("leftover pages take 80 %"));
        assert!(mixed(1.0, 0.5).contains("a buffered writer takes 50 %"));
        let without = summary(&DiskProfile { direct: None, ..of(&reads) });
        assert!(without.contains("direct I/O is not available"), "{without}");
    }
}
