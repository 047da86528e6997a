//! The report for people.

use std::fmt;

use pagekeeper_preload::counters::Count;
use pagekeeper_text::{ByteSize, count, counted, escaped};

use crate::report::{LaunchReport, ProcessReport, RuleSums};

/// Processes with rules that can't open the report.
const OTHERS: &str = "processes of other users";

/// The name of a line that alone says nothing about what was done.
const INSIDE: &str = "inside";

/// The words for a count that is not 0.
enum CountWords {
    /// Words before a size.
    Size(&'static str),
    /// Words behind 1, and behind other numbers.
    Number(&'static str, &'static str),
    /// Words behind a time.
    Time(&'static str),
}

/// The parts of each line, in their order. A line begins with the first word of its parts.
const PARTS: [(&str, Count, CountWords); 24] = {
    use CountWords::{Number, Size, Time};
    [
        ("streams", Count::StreamRead, Size("read")),
        ("streams", Count::StreamWritten, Size("written")),
        ("streams", Count::StreamUncached, Size("past the page cache")),
        ("streams", Count::StreamReleased, Size("released")),
        ("streams", Count::StreamKept, Size("kept until removed")),
        ("streams", Count::StreamWasResident, Size("left as resident before")),
        ("bulk", Count::BulkWritten, Size("written")),
        ("bulk", Count::BulkReleased, Size("released")),
        ("logs", Count::LogWritten, Size("written")),
        ("logs", Count::LogReleased, Size("released")),
        ("logs", Count::LogsKept, Number(LOGS_KEPT, LOGS_KEPT)),
        ("mixed", Count::MixedReleased, Size("released before direct I/O")),
        ("mixed", Count::MixedKeptOpens, Number(KEPT_OPEN, KEPT_OPENS)),
        (
            "mixed",
            Count::MixedWriters,
            Number(
                "writer through the page cache on a file in direct I/O",
                "writers through the page cache on files in direct I/O",
            ),
        ),
        ("throttled", Count::Pauses, Number("pause", "pauses")),
        ("throttled", Count::ThrottledNs, Time("in all")),
        (INSIDE, Count::InsideNs, Time("spent in the rules")),
        (
            "events",
            Count::Followed,
            Number(
                "process followed, and its pages released",
                "processes followed, and their pages released",
            ),
        ),
        (
            "not covered",
            Count::NotReached,
            Number("process started without the rules", "processes started without the rules"),
        ),
        ("not covered", Count::StreamUnobserved, Size("residency not seen of")),
        ("not covered", Count::NotFollowed, Number("file not followed", "files not followed")),
        (
            "not covered",
            Count::NotTracked,
            Number("file not checked at the end", "files not checked at the end"),
        ),
        ("not covered", Count::Failures, Number("call of the rules failed", "calls of the rules failed")),
        ("not covered", Count::Filtered, Number(FILTERED_ONE, FILTERED_MANY)),
    ]
};
const LOGS_KEPT: &str = "kept, overwritten in parts of pages";
const KEPT_OPEN: &str = "open for direct I/O of a file whose pages were kept: it uses both on purpose";
const KEPT_OPENS: &str = "opens for direct I/O of files whose pages were kept: it uses both on purpose";
const FILTERED_ONE: &str =
    "process left without rules: its seccomp filter would kill it for the rules' system calls";
const FILTERED_MANY: &str =
    "processes left without rules: their seccomp filter would kill them for the rules' system calls";

/// Returns a line for each rule that did something, as its name and its text.
fn rule_lines(sums: &RuleSums) -> Vec<(&'static str, String)> {
    let mut lines: Vec<(&str, String)> = Vec::new();
    for (rule, count, words) in PARTS.iter().filter(|(_, count, _)| sums.get(*count) > 0) {
        let number = sums.get(*count);
        let part = match words {
            CountWords::Size(words) => format!("{words} {}", ByteSize(number)),
            CountWords::Number(one, many) => counted(number, one, many),
            CountWords::Time(words) => format!("{:.3} s {words}", sums.seconds(*count)),
        };
        match lines.last_mut().filter(|(last, _)| last == rule) {
            Some((_, line)) => *line = format!("{line}, {part}"),
            None => lines.push((rule, part)),
        }
    }
    lines
}

impl fmt::Display for LaunchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(events) = &self.events {
            writeln!(f, "pagekeeper: pages of programs followed by kernel events")?;
            return events.fmt(f);
        }
        write_rules(self, f)?;
        let Some(why) = &self.no_events else { return Ok(()) };
        let what = if self.rules {
            "calls that the library does not see, such as io_uring and mappings"
        } else {
            "pages that the command brought in"
        };
        writeln!(f, "  not covered {what} ({why})")
    }
}

/// Writes what the rules did in the command's processes.
fn write_rules(report: &LaunchReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = report.processes.len() as u64;
    let processes = counted(number, "process", "processes");
    let mut lines = rule_lines(&report.total);
    lines.extend(report.stayed.lines().into_iter().map(|line| ("stayed", line)));
    f.write_str("pagekeeper: ")?;
    match () {
        () if !report.rules => writeln!(f, "no rules were applied: the command ran without the library"),
        () if !report.counted => writeln!(f, "the rules were applied, but not counted"),
        () if number == 0 => writeln!(
            f,
            "no rule was for any process of it (see --as and --profile; {OTHERS} are not counted)"
        ),
        () if lines.is_empty() => {
            writeln!(f, "no rule was for any file of {processes} ({OTHERS} are not counted)")
        }
        () => {
            writeln!(f, "what the rules did in {processes}")?;
            write_lines(report, &lines, f)
        }
    }
}

fn write_lines(report: &LaunchReport, lines: &[(&str, String)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    lines.iter().try_for_each(|(name, text)| writeln!(f, "  {name:<11} {text}"))?;
    // A program started to become another user, such as su(1), does nothing else.
    if lines.iter().all(|(name, _)| *name == INSIDE) {
        writeln!(f, "  {:<11} {OTHERS}", "not counted")?;
    }
    let of_process = |process: &ProcessReport| {
        let lines = rule_lines(&process.sums).into_iter().map(|(name, line)| format!("{name} {line}"));
        let text = lines.collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then(|| format!("  {} ({}): {text}", escaped(&process.name), process.pid))
    };
    let active: Vec<String> = report.processes.iter().filter_map(of_process).collect();
    if active.len() > 1 {
        active.iter().try_for_each(|line| writeln!(f, "{line}"))?;
    }
    if report.processes_not_counted > 0 {
        let more = count(report.processes_not_counted);
        writeln!(f, "  {more} more processes counted for themselves alone")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn text(report: &LaunchReport) -> String {
        report.to_string()
    }

    /// Returns the summary of processes with these counts.
    fn summary(processes: &[(&str, &[(Count, u64)])]) -> LaunchReport {
        let file = tempfile::tempfile().unwrap();
        pagekeeper_preload::counters::begin_report(&file).unwrap();
        let mapped = pagekeeper_preload::counters::map_report(file.as_raw_fd()).unwrap();
        for (pid, (name, counts)) in (100..).zip(processes) {
            let record = mapped.claim(pid, name.as_bytes()).unwrap();
            for (count, much) in *counts {
                record.add(*count, *much);
            }
        }
        LaunchReport::of(mapped.claimed(), processes.len() as u64)
    }

    #[test]
    fn each_rule_that_did_something_has_its_line() {
        let one = summary(&[(
            "tar",
            &[
                (Count::StreamRead, 64 << 20),
                (Count::StreamWritten, 32 << 20),
                (Count::StreamUncached, 4096),
                (Count::StreamReleased, 96 << 20),
                (Count::StreamWasResident, 1 << 20),
                (Count::StreamUnobserved, 2 << 20),
                (Count::BulkWritten, 3 << 20),
                (Count::LogsKept, 1),
                (Count::MixedKeptOpens, 3),
                (Count::MixedWriters, 2),
                (Count::Pauses, 1),
                (Count::ThrottledNs, 1_500_000_000),
                (Count::InsideNs, 2_000_000_000),
                (Count::NotFollowed, 1),
            ],
        )]);
        assert_eq!(
            text(&one),
            "pagekeeper: what the rules did in 1 process\n\
             \x20 streams     read 64 MiB, written 32 MiB, past the page cache 4 KiB, released 96 MiB, \
             left as resident before 1 MiB\n\
             \x20 bulk        written 3 MiB\n\
             \x20 logs        1 kept, overwritten in parts of pages\n\
             \x20 mixed       3 opens for direct I/O of files whose pages were kept: it uses both on purpose, 2 writers through the page cache on files in direct I/O\n\
             \x20 throttled   1 pause, 1.500 s in all\n\
             \x20 inside      2.000 s spent in the rules\n\
             \x20 not covered residency not seen of 2 MiB, 1 file not followed\n"
        );
    }

    #[test]
    fn several_processes_are_summed_and_listed_apart() {
        let several = summary(&[
            ("cp", &[(Count::StreamRead, 1 << 20)]),
            ("sh", &[]),
            ("dd", &[(Count::StreamRead, 2 << 20), (Count::Failures, 1)]),
        ]);
        let text = text(&several);
        for line in [
            "pagekeeper: what the rules did in 3 processes\n",
            "  streams     read 3 MiB\n",
            "  cp (100): streams read 1 MiB\n",
            "  dd (102): streams read 2 MiB; not covered 1 call of the rules failed\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("sh ("), "{text}");
        let json = serde_json::to_value(&several).unwrap();
        assert_eq!((&json["rules"], &json["total"]["stream_read_bytes"]), (&true.into(), &(3 << 20).into()));
        assert_eq!(
            (&json["processes"][2]["name"], &json["processes"][2]["failures"]),
            (&"dd".into(), &1.into())
        );
    }

    #[test]
    fn a_report_without_releases_is_one_sentence() {
        assert!(text(&summary(&[])).contains("no rule was for any process of it (see"));
        assert!(text(&summary(&[("cp", &[])])).contains("no rule was for any file of 1 process ("));
        let silent = text(&summary(&[("su", &[(Count::InsideNs, 5)])]));
        assert!(silent.ends_with("  not counted processes of other users\n"), "{silent}");
        let none = LaunchReport { rules: false, ..summary(&[]) };
        assert!(text(&none).contains("the command ran without the library"));
        let filtered = text(&summary(&[("cp", &[(Count::Filtered, 1)])]));
        assert!(
            filtered.contains("  not covered 1 process left without rules: its seccomp filter"),
            "{filtered}"
        );
        let uncounted = LaunchReport { counted: false, ..summary(&[]) };
        assert!(text(&uncounted).contains("applied, but not counted"));
    }
}
