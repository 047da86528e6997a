//! Chooses the mode and states the reason, from the request and the result of a probe.

use std::path::Path;

use pagekeeper_io::{Error, ProbeResult, WriteSupport};
use pagekeeper_policy::{BulkProfile, DiskProfile};

use crate::mode::BulkMode;

/// A mode, never `Auto`, with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModeChoice {
    pub(crate) mode: BulkMode,
    pub(crate) why: String,
}

/// Chooses the mode. Probes the directory's file system if that matters; a disk's profile decides
/// among the modes that work there.
pub(crate) fn choose(
    requested: BulkMode,
    is_real: bool,
    directory: &Path,
    disk: Option<&DiskProfile>,
) -> Result<ModeChoice, Error> {
    let choice = |mode, why: &str| Ok(ModeChoice { mode, why: why.to_owned() });
    let measured = || if requested == BulkMode::Auto { disk.and_then(by_profile) } else { None };
    match requested {
        BulkMode::Buffered => choice(requested, "as asked for"),
        BulkMode::Auto if !is_real => {
            measured().map_or_else(|| choice(BulkMode::Direct, "a simulated disk, which is not probed"), Ok)
        }
        BulkMode::Direct | BulkMode::Paced | BulkMode::Uncached if !is_real => {
            choice(requested, "as asked for, on a simulated disk, which is not probed")
        }
        BulkMode::Auto | BulkMode::Direct | BulkMode::Paced | BulkMode::Uncached => {
            let probed = WriteSupport::probe(directory)?;
            match (of_probed(requested, probed), measured()) {
                // A probe that finds no direct I/O, or no alternative, overrides the profile.
                (now, Some(measured)) if now.mode == BulkMode::Direct && is_there(measured.mode, probed) => {
                    Ok(measured)
                }
                (now, _) => Ok(now),
            }
        }
    }
}

/// Whether a mode works according to the current probe.
fn is_there(mode: BulkMode, probed: WriteSupport) -> bool {
    match mode {
        BulkMode::Uncached => probed.uncached_append == ProbeResult::NoPages,
        BulkMode::Paced => probed.release == ProbeResult::NoPages,
        BulkMode::Auto | BulkMode::Direct | BulkMode::Buffered => true,
    }
}

/// Small writes beside bulk output may wait this long, in microseconds, without any harm.
const HARMLESS_WAIT_US: f64 = 1000.0;
/// A mode is better than another if it is better by this factor; less is chance.
const BETTER_FACTOR: f64 = 1.5;

/// Returns the mode that did best when the disk was measured; `None` if that was not measured, or
/// makes no difference.
fn by_profile(disk: &DiskProfile) -> Option<ModeChoice> {
    let bulk = disk.bulk?;
    let through_pages = through_pages_by_profile(disk, &bulk);
    let (Some(_), Some(us), Some(rate)) = (disk.direct, bulk.direct_us, bulk.direct_bytes_per_second) else {
        let why = format!("the disk's profile has no direct output; {}", through_pages.why);
        return Some(ModeChoice { why, ..through_pages });
    };
    let paced_rate = bulk.paced_bytes_per_second.unwrap_or(0.0);
    if us > HARMLESS_WAIT_US && us > BETTER_FACTOR * bulk.paced_us {
        let why = format!(
            "by the disk's profile small writes wait {:.1} ms beside direct output, {:.1} ms beside paced; {}",
            us / 1e3,
            bulk.paced_us / 1e3,
            through_pages.why
        );
        return Some(ModeChoice { why, ..through_pages });
    }
    let is_slow = paced_rate > BETTER_FACTOR * rate;
    let is_harmless = bulk.paced_us <= HARMLESS_WAIT_US.max(BETTER_FACTOR * us);
    if is_slow && is_harmless {
        let why = format!(
            "by the disk's profile direct output comes to {:.0} MB/s, paced to {:.0}; {}",
            rate / 1e6,
            paced_rate / 1e6,
            through_pages.why
        );
        return Some(ModeChoice { why, ..through_pages });
    }
    let why = format!(
        "by the disk's profile direct output comes to {:.0} MB/s, and small writes beside it take up to {:.1} ms",
        rate / 1e6,
        us / 1e3
    );
    Some(ModeChoice { mode: BulkMode::Direct, why })
}

/// Returns paced, or uncached if that was measured to be better.
fn through_pages_by_profile(disk: &DiskProfile, bulk: &BulkProfile) -> ModeChoice {
    if let (true, Some(us), Some(rate)) =
        (disk.uncached.append, bulk.uncached_us, bulk.uncached_bytes_per_second)
        && us <= HARMLESS_WAIT_US.max(bulk.paced_us)
        && rate > BETTER_FACTOR * bulk.paced_bytes_per_second.unwrap_or(f64::INFINITY)
    {
        let why = format!("uncached output comes to {:.0} MB/s", rate / 1e6);
        return ModeChoice { mode: BulkMode::Uncached, why };
    }
    ModeChoice { mode: BulkMode::Paced, why: "paced output waits for its own writeback".to_owned() }
}

/// A budget that keeps the disk busy holds what the disk writes in this many milliseconds.
const BUDGET_MS: f64 = 20.0;

/// Returns the budget in bytes that keeps the disk busy; `None` if the disk's rate was not
/// measured.
pub(crate) fn budget(disk: &DiskProfile) -> Option<u64> {
    let rate = disk.bulk?.bytes_per_second;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is not negative")]
    (rate > 0.0).then_some((rate * BUDGET_MS / 1e3) as u64)
}

fn of_probed(requested: BulkMode, probed: WriteSupport) -> ModeChoice {
    let choice = |mode, why: &str| ModeChoice { mode, why: why.to_owned() };
    match (requested, probed.direct, probed.uncached_append) {
        (BulkMode::Auto, ProbeResult::NoPages, _) => {
            choice(BulkMode::Direct, "direct I/O is real here: no page is made that others could wait for")
        }
        (BulkMode::Direct, ProbeResult::NoPages | ProbeResult::Unconfirmed, _)
        | (BulkMode::Uncached, _, ProbeResult::NoPages) => {
            choice(requested, "as asked for, and no page stays here")
        }
        (BulkMode::Paced, ..) => through_pages(probed.release, "as asked for"),
        (BulkMode::Uncached, _, offer) => through_pages(
            probed.release,
            &format!("uncached writing {}", offer.why_not().unwrap_or_default()),
        ),
        (BulkMode::Auto | BulkMode::Direct | BulkMode::Buffered, offer, _) => {
            through_pages(probed.release, &format!("direct I/O {}", offer.why_not().unwrap_or_default()))
        }
    }
}

/// Returns paced, unless pages can't be released at all.
fn through_pages(release: ProbeResult, why: &str) -> ModeChoice {
    match release {
        ProbeResult::PagesStay => ModeChoice {
            mode: BulkMode::Buffered,
            why: "the page cache is the file itself here: there is nothing to wait for, nor to release"
                .to_owned(),
        },
        _ => ModeChoice { mode: BulkMode::Paced, why: why.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_policy::{DirectProfile, UncachedProfile};

    use super::*;

    const ALL: WriteSupport = WriteSupport {
        direct: ProbeResult::NoPages,
        uncached_append: ProbeResult::NoPages,
        uncached_overwrite: ProbeResult::NoPages,
        release: ProbeResult::NoPages,
    };

    #[test]
    fn the_next_best_is_taken_and_the_reason_given() {
        let refused = ProbeResult::Refused(libc::EOPNOTSUPP);
        let btrfs = WriteSupport { direct: ProbeResult::Unconfirmed, uncached_append: refused, ..ALL };
        let memory = WriteSupport {
            direct: ProbeResult::PagesStay,
            uncached_append: refused,
            release: ProbeResult::PagesStay,
            ..ALL
        };
        for (requested, probed, mode, why) in [
            (BulkMode::Auto, ALL, BulkMode::Direct, "direct I/O is real"),
            (BulkMode::Auto, btrfs, BulkMode::Paced, "direct I/O is not vouched for"),
            (BulkMode::Auto, memory, BulkMode::Buffered, "the page cache is the file"),
            (BulkMode::Direct, ALL, BulkMode::Direct, "as asked for"),
            (BulkMode::Direct, btrfs, BulkMode::Direct, "as asked for"),
            (
                BulkMode::Direct,
                WriteSupport { direct: refused, ..ALL },
                BulkMode::Paced,
                "direct I/O is refused",
            ),
            (BulkMode::Uncached, ALL, BulkMode::Uncached, "as asked for"),
            (BulkMode::Uncached, btrfs, BulkMode::Paced, "uncached writing is refused"),
            (BulkMode::Uncached, memory, BulkMode::Buffered, "the page cache is the file"),
            (BulkMode::Paced, btrfs, BulkMode::Paced, "as asked for"),
            (BulkMode::Paced, memory, BulkMode::Buffered, "the page cache is the file"),
        ] {
            let chosen = of_probed(requested, probed);
            assert_eq!(chosen.mode, mode, "{requested} of {probed:?}");
            assert!(chosen.why.starts_with(why), "{chosen:?}");
        }
    }

    #[test]
    fn buffered_and_simulated_files_are_not_probed() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(choose(BulkMode::Buffered, true, nowhere, None).unwrap().mode, BulkMode::Buffered);
        assert_eq!(choose(BulkMode::Auto, false, nowhere, None).unwrap().mode, BulkMode::Direct);
        assert_eq!(choose(BulkMode::Paced, false, nowhere, None).unwrap().mode, BulkMode::Paced);
        assert!(choose(BulkMode::Paced, true, nowhere, None).is_err());
    }

    /// Returns a profile. Each pair has the rate of the output in MB/s, and the latency of small
    /// writes beside it in microseconds.
    fn measured(direct: Option<(f64, f64)>, paced: (f64, f64), uncached: Option<(f64, f64)>) -> DiskProfile {
        let rate = |(mbps, _): (f64, f64)| mbps * 1e6;
        let us = |(_, us): (f64, f64)| us;
        DiskProfile {
            direct: Some(DirectProfile { memory_alignment: 512, offset_alignment: 512 }),
            uncached: UncachedProfile { append: true, overwrite: true },
            bulk: Some(BulkProfile {
                direct_us: direct.map(us),
                direct_bytes_per_second: direct.map(rate),
                paced_us: us(paced),
                paced_bytes_per_second: Some(rate(paced)),
                uncached_us: uncached.map(us),
                uncached_bytes_per_second: uncached.map(rate),
                bytes_per_second: 1e8,
                ..BulkProfile::default()
            }),
            ..DiskProfile::default()
        }
    }

    #[test]
    fn the_disks_profile_decides_among_the_working_modes() {
        let fine = 50.0;
        for (disk, mode, why) in [
            // An empty profile changes nothing.
            (DiskProfile::default(), BulkMode::Direct, "a simulated disk"),
            (measured(Some((100.0, fine)), (100.0, fine), None), BulkMode::Direct, "100 MB/s"),
            // A small difference is chance.
            (measured(Some((100.0, 90.0)), (120.0, fine), None), BulkMode::Direct, "100 MB/s"),
            (
                measured(Some((100.0, fine)), (200.0, fine), None),
                BulkMode::Paced,
                "direct output comes to 100 MB/s, paced to 200",
            ),
            (
                measured(Some((100.0, fine)), (200.0, 30_000.0), None),
                BulkMode::Direct,
                "beside it take up to 0.1 ms",
            ),
            (
                measured(Some((100.0, 9000.0)), (90.0, fine), None),
                BulkMode::Paced,
                "wait 9.0 ms beside direct output",
            ),
            (measured(None, (90.0, fine), None), BulkMode::Paced, "has no direct output"),
            (measured(None, (90.0, fine), Some((100.0, fine))), BulkMode::Paced, "has no direct output"),
            (
                measured(None, (90.0, fine), Some((200.0, fine))),
                BulkMode::Uncached,
                "uncached output comes to 200 MB/s",
            ),
            (measured(None, (90.0, fine), Some((200.0, 9000.0))), BulkMode::Paced, "paced output waits"),
        ] {
            let chosen = choose(BulkMode::Auto, false, Path::new("/nowhere"), Some(&disk)).unwrap();
            assert_eq!(chosen.mode, mode, "{disk:?}: {chosen:?}");
            assert!(chosen.why.contains(why), "{chosen:?}");
            // A caller that asks for a mode gets it.
            let asked = choose(BulkMode::Direct, false, Path::new("/nowhere"), Some(&disk)).unwrap();
            assert_eq!(asked.mode, BulkMode::Direct);
        }
    }

    #[test]
    fn a_budget_follows_the_disk() {
        let disk = measured(None, (90.0, 50.0), None);
        assert_eq!(budget(&disk), Some(2_000_000));
        assert_eq!(budget(&DiskProfile::default()), None);
    }
}
