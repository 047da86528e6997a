//! A report for people: the measured figures, the profile in short, and one sentence.

use std::fmt::{self, Write};

use pagekeeper_policy::DiskProfile;
use pagekeeper_text::{ByteSize, count, escaped, microseconds};

use crate::{
    AtomicReport, BulkOutput, BulkReport, ConcurrentUse, DirectKind, DirectOperation, DirectReport,
    MixedReport, ProbeReport, ReadsReport, UncachedReport, UncachedUse,
};

impl fmt::Display for ProbeReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (found, profile) = (&self.found, &self.profile);
        writeln!(
            out,
            "{}: {} on device {}, Linux {}; measured on a file of {} in {:.0} s",
            escaped(&self.directory),
            profile.file_system,
            profile.device,
            profile.kernel,
            ByteSize(profile.file_bytes),
            self.took_seconds
        )?;
        found.direct.iter().try_for_each(|direct| write_direct(out, direct))?;
        found.uncached.iter().try_for_each(|uncached| write_uncached(out, uncached))?;
        found.atomic.iter().try_for_each(|atomic| line(out, "Atomic writes", &atomic_text(atomic)))?;
        write_small(out, self)?;
        found.reads.iter().try_for_each(|reads| write_reads(out, reads))?;
        found.mixed.iter().try_for_each(|mixed| write_mixed(out, mixed))?;
        found.bulk.iter().try_for_each(|bulk| write_bulk(out, bulk))?;
        if !self.notes.is_empty() {
            writeln!(out)?;
        }
        for note in &self.notes {
            writeln!(out, "Note: {note}.")?;
        }
        writeln!(out, "\nIn short: {}", short(profile))?;
        writeln!(out, "\n{}", self.summary)
    }
}

/// Writes a name and its text.
fn line(out: &mut impl Write, name: &str, text: &str) -> fmt::Result {
    writeln!(out, "{name:<17} {text}")
}

fn write_direct(out: &mut impl Write, direct: &DirectReport) -> fmt::Result {
    writeln!(out)?;
    let what = match direct.kind {
        DirectKind::Real => "real: it goes to the device",
        DirectKind::WritesCopied => "of reads only: writes are copied through the page cache",
        DirectKind::Copied => "not real: copied through the page cache",
        DirectKind::Cached => "not real: answered from the page cache",
        DirectKind::Refused => "refused",
    };
    let why = direct.refused.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    line(out, "Direct I/O", &format!("{what}{why}"))?;
    if direct.kind == DirectKind::Refused {
        return Ok(());
    }
    let pair = |alignment: pagekeeper_policy::DirectProfile| {
        format!("memory {}, offset {}", alignment.memory_alignment, alignment.offset_alignment)
    };
    let reported = direct.reported.map_or_else(|| "not reported by the file system".to_owned(), pair);
    let worked = direct.worked.map(|worked| format!("; what worked: {}", pair(worked))).unwrap_or_default();
    line(out, "  alignment", &format!("{reported}{worked}"))?;
    let pages = |pages| known(pages, count);
    let disk = |requests: Option<u64>| {
        requests.map_or_else(String::new, |number| format!(", {} of the disk", count(number)))
    };
    let (reads, writes) = (direct.disk_requests.map(|both| both.0), direct.disk_requests.map(|both| both.1));
    line(
        out,
        "  events",
        &format!(
            "{} reads: {} pages came to the page cache{}; {} writes: {}{}",
            direct.tried,
            pages(direct.added_by_reads),
            disk(reads),
            direct.tried,
            pages(direct.added_by_writes),
            disk(writes)
        ),
    )?;
    line(
        out,
        "  one block again",
        &format!("{}; from the page cache {}", microseconds(direct.again_us), microseconds(direct.cached_us)),
    )?;
    let dirty = match (direct.dirty_is_seen, direct.stays_dirty) {
        (false, _) => "a direct read does NOT see dirty pages of the page cache",
        (true, Some(true)) => "a direct read sees dirty pages of the page cache, and leaves them dirty",
        (true, Some(false)) => "a direct read sees dirty pages of the page cache, which it has written back",
        (true, None) => "a direct read sees dirty pages of the page cache",
    };
    let written = if direct.write_is_seen { "are seen" } else { "are NOT seen" };
    let left = direct.left_by_write.map_or_else(String::new, |(before, after)| {
        format!(", and one leaves {} of {} resident", ByteSize(after), ByteSize(before))
    });
    line(out, "  over dirty pages", dirty)?;
    line(out, "  over clean pages", &format!("direct writes {written} through the page cache{left}"))
}

fn write_uncached(out: &mut impl Write, uncached: &UncachedReport) -> fmt::Result {
    let text = |used: &UncachedUse| match (&used.refused, used.resident_bytes) {
        (Some(why), _) => format!("refused ({why})"),
        (None, None) => "taken; what stays can't be seen".to_owned(),
        (None, Some(0)) => "nothing stays".to_owned(),
        (None, Some(left)) => format!("{} of {} stay", ByteSize(left), ByteSize(used.written_bytes)),
    };
    let UncachedReport { append, unwritten, overwrite } = uncached;
    let all = [("appending", append), ("into new room", unwritten), ("overwriting", overwrite)];
    let same = all.iter().all(|(_, used)| text(used) == text(append));
    let said = if same {
        text(append)
    } else {
        all.map(|(name, used)| format!("{name}: {}", text(used))).join("; ")
    };
    line(out, "Uncached writes", &said)
}

fn atomic_text(atomic: &AtomicReport) -> String {
    match (atomic.bytes_max(), atomic.in_place_bytes_max()) {
        (None, _) if atomic.reported.is_none() => "none".to_owned(),
        (None, _) => "reported, but refused when tried".to_owned(),
        (Some(most), None) => format!("up to {}, each written elsewhere by the file system", ByteSize(most)),
        (Some(most), Some(in_place)) => {
            format!("up to {}; up to {} by the device itself", ByteSize(most), ByteSize(in_place))
        }
    }
}

/// Writes the results for syncs, read-ahead and releasing.
fn write_small(out: &mut impl Write, report: &ProbeReport) -> fmt::Result {
    let found = &report.found;
    if let Some(sync) = found.sync {
        let one = |times: crate::SyncTimes| {
            format!("{} (99 %: {})", microseconds(times.p50_us), microseconds(times.p99_us))
        };
        let text = format!(
            "after an appended page {}; after an overwritten one {}",
            one(sync.append),
            one(sync.overwrite)
        );
        line(out, "fdatasync", &text)?;
    }
    if let Some(ahead) = found.read_ahead {
        let size = |bytes| known(bytes, |bytes: f64| ByteSize::from_f64(bytes.round()).to_string());
        let setting = known(ahead.setting_bytes, |bytes| ByteSize(bytes).to_string());
        let text = format!(
            "setting {setting}; a cold read of 4 KiB brings in {}, at the start of a file {}",
            size(ahead.random_bytes),
            size(ahead.start_bytes)
        );
        line(out, "Read-ahead", &text)?;
    }
    if let Some(release) = found.release {
        let one = |us| known(us, microseconds);
        let left = match release.left_bytes {
            Some(0) | None => String::new(),
            Some(left) => format!("; {} stayed", ByteSize(left)),
        };
        let text = format!(
            "{} a GiB of pages read in a row; {} of single pages{left}",
            one(release.sequential_us_per_gib),
            one(release.scattered_us_per_gib)
        );
        line(out, "Release", &text)?;
    }
    Ok(())
}

fn write_reads(out: &mut impl Write, reads: &ReadsReport) -> fmt::Result {
    let how = if reads.direct { "past the page cache" } else { "cold, through the page cache" };
    writeln!(out, "\nRandom reads of 4 KiB, {how}, by {}", reads.by)?;
    writeln!(out, "{:>11} {:>12} {:>10} {:>10}", "in flight", "a second", "median", "99 %")?;
    for read in &reads.depths {
        let (p50, p99) = (microseconds(read.p50_us), microseconds(read.p99_us));
        writeln!(out, "{:>11} {:>12} {p50:>10} {p99:>10}", read.depth, rate(read.per_second))?;
    }
    Ok(())
}

fn write_mixed(out: &mut impl Write, mixed: &MixedReport) -> fmt::Result {
    writeln!(
        out,
        "\nDirect I/O of 4 KiB at random places, a second, and as a share of the case it is compared with"
    )?;
    writeln!(
        out,
        "{:<5} {:<31} {:>9} {:>5} {:>9} {:>5}   with 8, a second: pages in/out, disk reads/writes, queue",
        "", "", "1 thread", "", "8 threads", ""
    )?;
    for access in [DirectOperation::Read, DirectOperation::Write] {
        for beside in ConcurrentUse::ALL {
            let (Some(one), Some(eight)) = (mixed.case(access, 1, beside), mixed.case(access, 8, beside))
            else {
                continue;
            };
            let first = match access {
                _ if beside != ConcurrentUse::Nothing => "",
                DirectOperation::Read => "read",
                DirectOperation::Write => "write",
            };
            let name = match beside {
                ConcurrentUse::Nothing => "alone",
                ConcurrentUse::Leftovers => "with a few leftover pages",
                ConcurrentUse::ReaderElsewhere => "beside a reader of another file",
                ConcurrentUse::Reader => "beside a buffered reader",
                ConcurrentUse::WriterElsewhere => "beside a writer of another file",
                ConcurrentUse::Writer => "beside a buffered writer",
            };
            let share = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let pages = |bytes| known(bytes, |bytes| rate(bytes / pagekeeper_kernel::page_size() as f64));
            let number = |number| known(number, rate);
            let events = &eight.events;
            writeln!(
                out,
                "{first:<5} {name:<31} {:>9} {:>5} {:>9} {:>5}   {}/{}, {}/{}, {}",
                rate(one.per_second),
                share(one.ratio),
                rate(eight.per_second),
                share(eight.ratio),
                pages(events.added_bytes_per_second),
                pages(events.removed_bytes_per_second),
                number(events.disk_reads_per_second),
                number(events.disk_writes_per_second),
                known(events.disk_queue, |queue| format!("{queue:.1}"))
            )?;
        }
    }
    writeln!(out, "({}; those of the disk are all programs')", mixed.events)
}

fn write_bulk(out: &mut impl Write, bulk: &BulkReport) -> fmt::Result {
    writeln!(out, "\nAppends of 4 KiB that are never synced, beside a bulk writer")?;
    writeln!(
        out,
        "{:<18} {:>9} {:>9} {:>9} {:>12} {:>9}",
        "bulk output", "median", "99.9 %", "longest", "bulk MiB/s", "pauses"
    )?;
    for case in &bulk.cases {
        let name = match case.beside {
            BulkOutput::Idle => "none",
            BulkOutput::Paced => "paced",
            BulkOutput::Direct => "direct",
            BulkOutput::Uncached => "uncached, paced",
            BulkOutput::Buffered => "buffered",
        };
        let speed =
            case.bytes_per_second.map_or_else(|| "-".to_owned(), |bytes| rate(bytes / f64::from(1 << 20)));
        let pauses = known(case.pauses, count);
        // With fewer than 1000 appends, this would be the longest time.
        let p999 = if case.appends < 1000 { "-".to_owned() } else { microseconds(case.p999_us) };
        let (p50, longest) = (microseconds(case.p50_us), microseconds(case.longest_us));
        writeln!(out, "{name:<18} {p50:>9} {p999:>9} {longest:>9} {speed:>12} {pauses:>9}")?;
    }
    Ok(())
}

/// Returns the profile in a few words.
fn short(profile: &DiskProfile) -> String {
    let mut parts = Vec::new();
    parts.push(profile.direct.map_or_else(
        || "no direct I/O".to_owned(),
        |direct| format!("direct I/O aligned to {}", direct.memory_alignment.max(direct.offset_alignment)),
    ));
    let uncached = match (profile.uncached.append, profile.uncached.overwrite) {
        (true, true) => "uncached writes",
        (true, false) => "uncached appends only",
        (false, true) => "uncached overwrites only",
        (false, false) => "no uncached writes",
    };
    parts.push(uncached.to_owned());
    parts.push(match profile.atomic_in_place_bytes_max {
        Some(bytes) => format!("atomic writes up to {}", ByteSize(bytes)),
        None => "no atomic writes of the device's own".to_owned(),
    });
    if let (Some(us), Some(width)) = (profile.read_us(), profile.width()) {
        parts.push(format!("a read {}, {width} wide", microseconds(us)));
    }
    if let Some(us) = profile.sync_us {
        parts.push(format!("a sync {}", microseconds(us)));
    }
    if let Some(us) = profile.release_us_per_gib {
        parts.push(format!("release {} a GiB", microseconds(us)));
    }
    if let Some(bulk) = profile.bulk {
        parts.push(format!("{} MiB/s of bulk output", rate(bulk.bytes_per_second / f64::from(1 << 20))));
    }
    parts.join(", ")
}

/// Returns a figure, or a question mark.
fn known<T>(figure: Option<T>, text: impl Fn(T) -> String) -> String {
    figure.map_or_else(|| "?".to_owned(), text)
}

/// Returns a rate of whole units.
fn rate(number: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is not negative")]
    count(number.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_people_write_them() {
        assert_eq!(
            (rate(98_765.4), ByteSize::from_f64(16_384.0).to_string()),
            ("98,765".to_owned(), "16 KiB".to_owned())
        );
    }

    #[test]
    fn the_short_profile_lists_missing_features() {
        let text = short(&DiskProfile::default());
        assert_eq!(text, "no direct I/O, no uncached writes, no atomic writes of the device's own");
    }
}
