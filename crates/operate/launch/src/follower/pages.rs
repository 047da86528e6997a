//! The page totals of a followed command: sent as JSON by the process beside it, and shown in the
//! report.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use pagekeeper_streams::stream_request::StreamSums;
use pagekeeper_streams::{FileReport, StayReason, StreamReport};
use pagekeeper_text::{ByteSize, duration, escaped, unescaped};
use serde::{Deserialize, Serialize};

/// Maximum number of files listed: their paths fit into a socket's buffer.
const LEFT_FILES_MAX: usize = 16;
/// Shorter holds are not worth a line.
const REPORTED_HOLD_MIN: Duration = Duration::from_secs(1);

/// The page totals in bytes: added pages were released, used by others, have gone or are left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedPages {
    /// Whether the guard's service followed the command, rather than a process beside it.
    pub by_guard: bool,
    /// Brought in; a page that comes twice counts twice.
    pub added_bytes: u64,
    /// Released.
    pub released_bytes: u64,
    /// Used by other processes since, and left to them.
    pub used_by_others_bytes: u64,
    /// Dropped by the kernel, or with their file.
    pub gone_bytes: u64,
    /// Still in the page cache.
    pub left_bytes: u64,
    /// Brought in unseen: the kernel's buffer had no room.
    pub lost_bytes: u64,
    /// Milliseconds that its processes were held, all together, for their pace.
    pub held_ms: u64,
    /// Whether some of the command's processes still run, and are followed.
    pub goes_on: bool,
    /// The files with the most pages left.
    pub left: Vec<FollowedFileReport>,
}

/// The pages left of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedFileReport {
    path: String,
    left_bytes: u64,
    why: LeftReason,
}

/// The reason why pages of a file are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LeftReason {
    Unwritten,
    Mapped,
    NotOpened,
    Hung,
    InUse,
}

impl LeftReason {
    const fn sentence(self) -> &'static str {
        match self {
            Self::Unwritten => "being written",
            Self::Mapped => "mapped",
            Self::NotOpened => "the file can't be opened",
            Self::Hung => "its file system does not answer",
            Self::InUse => "in use or in flight",
        }
    }
}

impl FollowedPages {
    /// Converts the state so far; `goes_on` says whether some of the processes still run.
    pub(crate) fn of(report: &StreamReport, goes_on: bool) -> Self {
        Self {
            lost_bytes: report.lost_bytes,
            held_ms: u64::try_from(report.held.as_millis()).unwrap_or(u64::MAX),
            left: report.stayed.iter().take(LEFT_FILES_MAX).map(FollowedFileReport::of).collect(),
            ..Self::of_sums(StreamSums::of(report.totals, goes_on))
        }
    }

    /// Converts sums, which name no files.
    pub(super) fn of_sums(sums: StreamSums) -> Self {
        Self {
            by_guard: false,
            added_bytes: sums.added_bytes,
            released_bytes: sums.released_bytes,
            used_by_others_bytes: sums.used_by_others_bytes,
            gone_bytes: sums.gone_bytes,
            left_bytes: sums.left_bytes,
            lost_bytes: 0,
            held_ms: 0,
            goes_on: sums.goes_on,
            left: Vec::new(),
        }
    }
}

impl FollowedFileReport {
    fn of(FileReport { path, totals, why }: &FileReport) -> Self {
        let why = match why {
            Some(StayReason::Unwritten) => LeftReason::Unwritten,
            Some(StayReason::Mapped) => LeftReason::Mapped,
            Some(StayReason::NotOpened) => LeftReason::NotOpened,
            Some(StayReason::Hung) => LeftReason::Hung,
            Some(StayReason::Left | StayReason::Other) | None => LeftReason::InUse,
        };
        Self { path: unescaped(path).into_owned(), left_bytes: totals.resident, why }
    }
}

impl fmt::Display for FollowedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("added", self.added_bytes),
            ("released", self.released_bytes),
            ("used by others", self.used_by_others_bytes),
            ("gone by themselves", self.gone_bytes),
            ("left", self.left_bytes),
            ("not seen", self.lost_bytes),
        ];
        let parts: Vec<String> = counts
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(what, bytes)| format!("{what} {}", ByteSize(*bytes)))
            .collect();
        let text = if parts.is_empty() { "nothing was brought in".to_owned() } else { parts.join(", ") };
        let by = if self.by_guard { " (by the guard)" } else { "" };
        writeln!(f, "  events      {text}{by}")?;
        let held = Duration::from_millis(self.held_ms);
        if held >= REPORTED_HOLD_MIN {
            writeln!(f, "  held        {} in all, for its pace", duration(held))?;
        }
        for FollowedFileReport { path, left_bytes, why } in &self.left {
            let path = escaped(Path::new(path));
            writeln!(f, "  left        {} of {path} ({})", ByteSize(*left_bytes), why.sentence())?;
        }
        if self.goes_on {
            writeln!(f, "  goes on     some of its processes run, and are followed")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_counts_are_not_reported() {
        let pages =
            FollowedPages { added_bytes: 9 << 20, released_bytes: 9 << 20, ..FollowedPages::default() };
        assert_eq!(pages.to_string(), "  events      added 9 MiB, released 9 MiB\n");
        assert_eq!(FollowedPages::default().to_string(), "  events      nothing was brought in\n");
    }

    #[test]
    fn remaining_pages_are_reported_with_their_reason() {
        let left =
            FollowedFileReport { path: "/b/a\n".to_owned(), left_bytes: 1 << 20, why: LeftReason::Unwritten };
        let pages = FollowedPages {
            added_bytes: 2 << 20,
            used_by_others_bytes: 1 << 20,
            left_bytes: 1 << 20,
            held_ms: 12_300,
            goes_on: true,
            left: vec![left],
            ..FollowedPages::default()
        };
        assert_eq!(
            pages.to_string(),
            "  events      added 2 MiB, used by others 1 MiB, left 1 MiB\n\
             \x20 held        12.3 s in all, for its pace\n\
             \x20 left        1 MiB of /b/a\\n (being written)\n\
             \x20 goes on     some of its processes run, and are followed\n"
        );
        let text = serde_json::to_string(&pages).unwrap();
        assert_eq!(serde_json::from_str::<FollowedPages>(&text).unwrap(), pages);
    }
}
