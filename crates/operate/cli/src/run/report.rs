//! The report on what the rules did, after the command has ended: for people, or as one JSON object.
//!
//! The processes count in a file that they map, beside the library. Only this user may open it, so that nobody
//! else can truncate it under them; processes that became another user thus can't count. It is removed when this
//! process ends ([`super::counting`]). Never fails: a report is no reason not to start the command, or to end
//! differently from it. Problems in counting or writing are reported.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagekeeper_catalog::units::Size;
use pagekeeper_kernel::text::escaped;
use pagekeeper_preload::counters::{Count, ProcessCounts, RECORDS};
use serde::Serialize;

use super::counting::Counting;
use super::follower::FollowedPages;
use super::left::Left;
use super::report_file::Destination;
use crate::output;

/// The file name that stands for standard error.
pub(crate) const STANDARD_ERROR: &str = "-";

/// The file name that stands for standard error, and for one JSON object.
pub(crate) const JSON: &str = "json";

/// Processes with rules that can't open the report.
const OTHERS: &str = "processes of other users";

/// The name of a line that alone says nothing about what was done.
const INSIDE: &str = "inside";

/// A report that is being counted.
pub(crate) struct Pending {
    /// Whether the library is loaded at all.
    rules: bool,
    /// `None` if nothing is loaded, since there is nothing to count.
    counting: Option<Counting>,
    /// The destination; `None` for standard error.
    to: Option<Destination>,
    json: bool,
}

/// The effects of the rules, in one process or in all.
#[derive(Debug, Default, Serialize)]
struct Sums {
    stream_read_bytes: u64,
    stream_written_bytes: u64,
    stream_uncached_bytes: u64,
    stream_released_bytes: u64,
    stream_kept_bytes: u64,
    stream_left_resident_bytes: u64,
    stream_unobserved_bytes: u64,
    bulk_written_bytes: u64,
    bulk_released_bytes: u64,
    log_written_bytes: u64,
    log_released_bytes: u64,
    logs_kept: u64,
    mixed_released_bytes: u64,
    mixed_kept_opens: u64,
    mixed_writers: u64,
    pauses: u64,
    throttled_seconds: f64,
    inside_seconds: f64,
    files_not_followed: u64,
    files_not_checked: u64,
    failures: u64,
    filtered_processes: u64,
    processes_followed: u64,
    processes_not_reached: u64,
}

/// The counts of one process.
#[derive(Debug, Serialize)]
struct OfProcess {
    pid: u32,
    name: String,
    #[serde(flatten)]
    sums: Sums,
}

/// The whole report.
#[derive(Debug, Serialize)]
struct Summary {
    /// The page totals of the command, if it was followed by events.
    events: Option<FollowedPages>,
    /// Why these are unknown, if it was to be followed.
    no_events: Option<String>,
    /// Whether the library was there at all.
    rules: bool,
    /// Whether the processes could count.
    counted: bool,
    total: Sums,
    processes: Vec<OfProcess>,
    /// Number of processes for which a report has no room.
    processes_not_counted: u64,
    /// Bytes of the streams' files that are resident at the end, and were not before.
    stream_stayed_bytes: u64,
    stayed: Left,
}

/// Returns the file that a report goes to, if it goes to one.
pub(crate) fn file(to: &Path) -> Option<&Path> {
    (to != Path::new(STANDARD_ERROR) && to != Path::new(JSON)).then_some(to)
}

impl Pending {
    /// Creates the counting file, if there is a library, and the destination file.
    pub(crate) fn begin(library: Option<&Path>, to: &Path, json: bool) -> Self {
        let is_json = to == Path::new(JSON);
        let to = file(to).and_then(|to| Destination::open(to).map_err(|error| complain_of(to, &error)).ok());
        let counting = library.map(Counting::begin).and_then(|made| {
            made.map_err(|error| output::complain(format_args!("nothing can be counted ({error})"))).ok()
        });
        Self { rules: library.is_some(), counting, to, json: json || is_json }
    }

    /// Returns the path of the counting file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.counting.as_ref().map(Counting::path)
    }

    /// Prints the report; `events` are the command's page totals, if it was followed, and `no_events` why they are
    /// unknown.
    pub(crate) fn end(mut self, events: Option<FollowedPages>, no_events: Option<String>) {
        let text = match self.text(events, no_events) {
            Ok(text) => text,
            Err(error) => {
                return output::complain(format_args!("what was counted can't be read: {error}"));
            }
        };
        if let Some(to) = self.to.take() {
            let path = to.path.clone();
            match to.write(text.as_bytes()) {
                Ok(()) => return,
                Err(error) => complain_of(&path, &error),
            }
        }
        // If nobody listens there, nothing can be reported.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    fn text(&self, events: Option<FollowedPages>, no_events: Option<String>) -> io::Result<String> {
        let summary = match &self.counting {
            Some(Counting { report, .. }) => {
                Summary::of(&report.processes()?, report.claimed()?).with(Left::now(report.files()?))
            }
            None => Summary { rules: self.rules, counted: false, ..Summary::of(&[], 0) },
        };
        let summary = Summary { events, no_events, ..summary };
        Ok(if self.json { output::json::text(&summary)? + "\n" } else { summary.to_string() })
    }
}

/// Reports a destination error; the report itself is not lost.
fn complain_of(path: &Path, error: &io::Error) {
    let path = escaped(path);
    output::complain(format_args!("can't write {path}: {error}; the report goes to standard error"));
}

impl Summary {
    fn of(processes: &[ProcessCounts], claimed: u64) -> Self {
        let mut total = Sums::default();
        for process in processes {
            total.add(process);
        }
        let each = processes.iter().map(|process| {
            let mut sums = Sums::default();
            sums.add(process);
            OfProcess { pid: process.pid, name: process.comm.clone(), sums }
        });
        Self {
            events: None,
            no_events: None,
            rules: true,
            counted: true,
            total,
            processes: each.collect(),
            processes_not_counted: claimed.saturating_sub(RECORDS as u64),
            stream_stayed_bytes: 0,
            stayed: Left::default(),
        }
    }

    fn with(self, stayed: Left) -> Self {
        Self { stream_stayed_bytes: stayed.bytes(), stayed, ..self }
    }
}

impl Sums {
    fn add(&mut self, process: &ProcessCounts) {
        self.stream_read_bytes += process.get(Count::StreamRead);
        self.stream_written_bytes += process.get(Count::StreamWritten);
        self.stream_uncached_bytes += process.get(Count::StreamUncached);
        self.stream_released_bytes += process.get(Count::StreamReleased);
        self.stream_kept_bytes += process.get(Count::StreamKept);
        self.stream_left_resident_bytes += process.get(Count::StreamWasResident);
        self.stream_unobserved_bytes += process.get(Count::StreamUnobserved);
        self.bulk_written_bytes += process.get(Count::BulkWritten);
        self.bulk_released_bytes += process.get(Count::BulkReleased);
        self.log_written_bytes += process.get(Count::LogWritten);
        self.log_released_bytes += process.get(Count::LogReleased);
        self.logs_kept += process.get(Count::LogsKept);
        self.mixed_released_bytes += process.get(Count::MixedReleased);
        self.mixed_kept_opens += process.get(Count::MixedKeptOpens);
        self.mixed_writers += process.get(Count::MixedWriters);
        self.pauses += process.get(Count::Pauses);
        self.throttled_seconds += seconds(process.get(Count::ThrottledNs));
        self.inside_seconds += seconds(process.get(Count::InsideNs));
        self.files_not_followed += process.get(Count::NotFollowed);
        self.files_not_checked += process.get(Count::NotTracked);
        self.failures += process.get(Count::Failures);
        self.filtered_processes += process.get(Count::Filtered);
        self.processes_followed += process.get(Count::Followed);
        self.processes_not_reached += process.get(Count::NotReached);
    }

    /// Returns a line for each rule that did something.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        let mut line = |name, parts: &[Option<String>]| {
            let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
            if !parts.is_empty() {
                lines.push((name, parts.join(", ")));
            }
        };
        let bytes = |what: &str, bytes: u64| (bytes > 0).then(|| format!("{what} {}", Size(bytes)));
        let times = |number: u64, one: &str, many: &str| {
            (number > 0)
                .then(|| format!("{} {}", output::count(number), if number == 1 { one } else { many }))
        };
        line(
            "streams",
            &[
                bytes("read", self.stream_read_bytes),
                bytes("written", self.stream_written_bytes),
                bytes("past the page cache", self.stream_uncached_bytes),
                bytes("released", self.stream_released_bytes),
                bytes("kept until removed", self.stream_kept_bytes),
                bytes("left as resident before", self.stream_left_resident_bytes),
            ],
        );
        line(
            "bulk",
            &[bytes("written", self.bulk_written_bytes), bytes("released", self.bulk_released_bytes)],
        );
        line(
            "logs",
            &[
                bytes("written", self.log_written_bytes),
                bytes("released", self.log_released_bytes),
                times(
                    self.logs_kept,
                    "kept, overwritten in parts of pages",
                    "kept, overwritten in parts of pages",
                ),
            ],
        );
        line(
            "mixed",
            &[
                bytes("released before direct I/O", self.mixed_released_bytes),
                times(
                    self.mixed_kept_opens,
                    "open for direct I/O of a file whose pages were kept: it uses both on purpose",
                    "opens for direct I/O of files whose pages were kept: it uses both on purpose",
                ),
                times(
                    self.mixed_writers,
                    "writer through the page cache on a file in direct I/O",
                    "writers through the page cache on files in direct I/O",
                ),
            ],
        );
        line(
            "throttled",
            &[times(self.pauses, "pause", "pauses")
                .map(|pauses| format!("{pauses}, {:.3} s in all", self.throttled_seconds))],
        );
        if self.inside_seconds > 0.0 {
            line(INSIDE, &[Some(format!("{:.3} s spent in the rules", self.inside_seconds))]);
        }
        line(
            "events",
            &[times(
                self.processes_followed,
                "process followed, and what it brought in released",
                "processes followed, and what they brought in released",
            )],
        );
        line(
            "not covered",
            &[
                times(
                    self.processes_not_reached,
                    "process started without the rules",
                    "processes started without the rules",
                ),
                bytes("residency not seen of", self.stream_unobserved_bytes),
                times(self.files_not_followed, "file not followed", "files not followed"),
                times(self.files_not_checked, "file not checked at the end", "files not checked at the end"),
                times(self.failures, "call of the rules failed", "calls of the rules failed"),
                times(
                    self.filtered_processes,
                    "process left without rules: its filter of system calls (seccomp) kills who makes theirs",
                    "processes left without rules: their filter of system calls (seccomp) kills who makes theirs",
                ),
            ],
        );
        lines
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(events) = &self.events {
            writeln!(f, "pagekeeper: pages of what was followed by events of the kernel")?;
            return events.fmt(f);
        }
        self.fmt_rules(f)?;
        match &self.no_events {
            Some(why) => {
                let what = if self.rules {
                    "what the library does not see, as io_uring and mappings"
                } else {
                    "what the command brought in"
                };
                writeln!(f, "  not covered {what} ({why})")
            }
            None => Ok(()),
        }
    }
}

impl Summary {
    /// Formats what the rules did in the command's processes.
    fn fmt_rules(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.rules {
            return writeln!(f, "pagekeeper: no rules were applied: the command ran without the library");
        }
        if !self.counted {
            return writeln!(f, "pagekeeper: the rules were applied, but not counted");
        }
        let many = output::count(self.processes.len() as u64);
        let s = if self.processes.len() == 1 { "" } else { "es" };
        let mut lines = self.total.lines();
        lines.extend(self.stayed.lines().into_iter().map(|line| ("stayed", line)));
        if self.processes.is_empty() {
            return writeln!(
                f,
                "pagekeeper: no rule was for any process of it (see --as and --profile; {OTHERS} are not counted)"
            );
        }
        if lines.is_empty() {
            return writeln!(
                f,
                "pagekeeper: no rule was for any file of {many} process{s} ({OTHERS} are not counted)"
            );
        }
        writeln!(f, "pagekeeper: what the rules did in {many} process{s}")?;
        for (name, text) in &lines {
            writeln!(f, "  {name:<11} {text}")?;
        }
        // A program started to become another user, such as su(1), does nothing else.
        if lines.iter().all(|(name, _)| *name == INSIDE) {
            writeln!(f, "  {:<11} {OTHERS}", "not counted")?;
        }
        let active: Vec<(&OfProcess, String)> = self
            .processes
            .iter()
            .filter_map(|process| {
                let mut text = String::new();
                for (name, line) in process.sums.lines() {
                    let separator = if text.is_empty() { "" } else { "; " };
                    // Writing to a String can't fail.
                    let _ = write!(text, "{separator}{name} {line}");
                }
                (!text.is_empty()).then_some((process, text))
            })
            .collect();
        if active.len() > 1 {
            for (process, text) in active {
                writeln!(f, "  {} ({}): {text}", escaped(&process.name), process.pid)?;
            }
        }
        if self.processes_not_counted > 0 {
            writeln!(
                f,
                "  {} more processes counted for themselves alone",
                output::count(self.processes_not_counted)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// Returns the summary of processes with these counts.
    fn summary(processes: &[(&str, &[(Count, u64)])]) -> Summary {
        let file = tempfile::tempfile().unwrap();
        let report = pagekeeper_preload::counters::Report::begin(file.try_clone().unwrap()).unwrap();
        let mapped = pagekeeper_preload::counters::map_report(file.as_raw_fd()).unwrap();
        for (pid, (name, counts)) in (100..).zip(processes) {
            let record = mapped.claim(pid, name.as_bytes()).unwrap();
            for (count, much) in *counts {
                record.add(*count, *much);
            }
        }
        Summary::of(&report.processes().unwrap(), report.claimed().unwrap())
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
            one.to_string(),
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
        let text = several.to_string();
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
    fn where_nothing_was_done_that_is_said() {
        assert!(summary(&[]).to_string().contains("no rule was for any process of it (see"));
        assert!(summary(&[("cp", &[])]).to_string().contains("no rule was for any file of 1 process ("));
        let silent = summary(&[("su", &[(Count::InsideNs, 5)])]).to_string();
        assert!(silent.ends_with("  not counted processes of other users\n"), "{silent}");
        let none = Summary { rules: false, ..summary(&[]) };
        assert!(none.to_string().contains("the command ran without the library"));
        let filtered = summary(&[("cp", &[(Count::Filtered, 1)])]).to_string();
        assert!(filtered.contains("  not covered 1 process left without rules: its filter of"), "{filtered}");
        let uncounted = Summary { counted: false, ..summary(&[]) };
        assert!(uncounted.to_string().contains("applied, but not counted"));
    }
}
