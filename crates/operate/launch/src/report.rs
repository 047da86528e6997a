//! The report on what the rules did, after the command has ended.
//!
//! The processes count in a file that they map, beside the library ([`crate::counting`]). Only this
//! user may open it, so that nobody else can truncate it under them; processes that became another
//! user thus can't count.

pub(crate) mod file;
pub(crate) mod text;

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagekeeper_preload::counters::{COUNTS, Count, MappedReport, RECORDS, Record};
use serde::{Serialize, Serializer};

use crate::follower::FollowedPages;
use crate::left::LeftPages;

/// The fields of a sum in JSON, with what they count.
const JSON_FIELDS: [(&str, Count); COUNTS] = [
    ("stream_read_bytes", Count::StreamRead),
    ("stream_written_bytes", Count::StreamWritten),
    ("stream_uncached_bytes", Count::StreamUncached),
    ("stream_released_bytes", Count::StreamReleased),
    ("stream_kept_bytes", Count::StreamKept),
    ("stream_left_resident_bytes", Count::StreamWasResident),
    ("stream_unobserved_bytes", Count::StreamUnobserved),
    ("bulk_written_bytes", Count::BulkWritten),
    ("bulk_released_bytes", Count::BulkReleased),
    ("log_written_bytes", Count::LogWritten),
    ("log_released_bytes", Count::LogReleased),
    ("logs_kept", Count::LogsKept),
    ("mixed_released_bytes", Count::MixedReleased),
    ("mixed_kept_opens", Count::MixedKeptOpens),
    ("mixed_writers", Count::MixedWriters),
    ("pauses", Count::Pauses),
    ("throttled_seconds", Count::ThrottledNs),
    ("inside_seconds", Count::InsideNs),
    ("files_not_followed", Count::NotFollowed),
    ("files_not_checked", Count::NotTracked),
    ("failures", Count::Failures),
    ("filtered_processes", Count::Filtered),
    ("processes_followed", Count::Followed),
    ("processes_not_reached", Count::NotReached),
];

/// The effects of the rules, in one process or in all.
#[derive(Debug, Clone, Copy, Default)]
pub struct RuleSums([u64; COUNTS]);

/// The effects of the rules in one process.
#[derive(Debug, Serialize)]
pub struct ProcessReport {
    /// Its process ID.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The effects.
    #[serde(flatten)]
    pub sums: RuleSums,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub struct LaunchReport {
    /// The page totals of the command, if it was followed by events.
    pub events: Option<FollowedPages>,
    /// The reason why these are unknown, if it was to be followed.
    pub no_events: Option<String>,
    /// Whether the library was there at all.
    pub rules: bool,
    /// Whether the processes could count.
    pub counted: bool,
    /// The effects in all processes.
    pub total: RuleSums,
    /// The effects in each process.
    pub processes: Vec<ProcessReport>,
    /// Number of processes for which a report has no room.
    pub processes_not_counted: u64,
    /// Bytes of the streams' files that are resident at the end, and were not before.
    pub stream_stayed_bytes: u64,
    /// The files of these bytes.
    pub stayed: LeftPages,
}

impl RuleSums {
    /// Returns a count.
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    /// Returns a count of nanoseconds, in seconds.
    pub fn seconds(&self, count: Count) -> f64 {
        Duration::from_nanos(self.get(count)).as_secs_f64()
    }

    fn add(&mut self, process: &Record) {
        for (_, count) in JSON_FIELDS {
            self.0[count as usize] += process.get(count);
        }
    }
}

impl Serialize for RuleSums {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(JSON_FIELDS.map(|(name, count)| {
            let is_time = matches!(count, Count::ThrottledNs | Count::InsideNs);
            let value: serde_json::Value =
                if is_time { self.seconds(count).into() } else { self.get(count).into() };
            (name, value)
        }))
    }
}

impl LaunchReport {
    /// Returns a report without counts; `rules` says whether the library was there.
    pub fn uncounted(rules: bool) -> Self {
        Self { rules, counted: false, ..Self::of(&[], 0) }
    }

    /// Reads the counts, and checks what stayed of the streams' files.
    pub(crate) fn counted(report: &MappedReport) -> Self {
        let stayed = LeftPages::now(&report.places);
        let claimed = report.header.claimed.load(Ordering::Relaxed);
        let summary = Self::of(report.claimed(), claimed);
        Self { stream_stayed_bytes: stayed.bytes(), stayed, ..summary }
    }

    /// Sums up the processes; `claimed` is the number of those that asked for room.
    pub fn of(processes: &[Record], claimed: u64) -> Self {
        let sums = |processes: &[Record]| {
            let mut sums = RuleSums::default();
            for process in processes {
                sums.add(process);
            }
            sums
        };
        #[allow(clippy::disallowed_methods, reason = "the command that prints it makes it safe")]
        let each = processes.iter().map(|process| ProcessReport {
            pid: process.pid.load(Ordering::Acquire),
            name: String::from_utf8_lossy(&process.name()).trim_end_matches('\0').to_owned(),
            sums: sums(std::slice::from_ref(process)),
        });
        Self {
            events: None,
            no_events: None,
            rules: true,
            counted: true,
            total: sums(processes),
            processes: each.collect(),
            processes_not_counted: claimed.saturating_sub(RECORDS as u64),
            stream_stayed_bytes: 0,
            stayed: LeftPages::default(),
        }
    }
}
