//! Events of memory pressure in the error log of `MariaDB`, by which `InnoDB` gives memory of its
//! buffer pool away (pressure stall information, 10.11.7 and later).
//!
//! Invariants: only the end of the log is read, from the last start of the server on, and only
//! lines that are dated yesterday or later count. Clients choose names that the server logs, so a
//! line counts only if the text follows its date, time and thread directly. The log is the file
//! behind the server's standard error; a log that is no file, as the journal, has no events.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use pagekeeper_catalog::settings::{Engine, Settings};
use pagekeeper_kernel::pressure::{CgroupVersion, HeldGroup, SysRoots};
use pagekeeper_text::unescaped_bytes;

use crate::{Database, File, Snapshot};

/// Bytes read from the end of the log.
const TAIL_BYTES: u64 = 256 << 10;
/// Descriptor of standard error, which the server reopens on its log.
const STDERR: i32 = 2;
/// Level of the lines.
const NOTE: &str = "[Note] ";
/// Maximum number of characters of a line that are kept.
const LINE_CHARS_MAX: usize = 200;
/// Maximum number of days between an event's date and today. The log has local time, so the dates
/// may differ by one without that.
const EVENT_DAYS_MAX: i64 = 1;
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// Text that the server writes behind its program's name when it has started.
const STARTED: &str = ": ready for connections.";
/// Texts of events that gave memory away: of 10.11.12, 11.4.6, 11.8.2 and later, and of versions
/// before.
const GIVEN_AWAY: [&str; 2] = [
    "[Note] InnoDB: Memory pressure event shrunk innodb_buffer_pool_size=",
    "[Note] InnoDB: Memory pressure event freed ",
];

/// The events by which a server gave memory of its buffer pool away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPressure {
    /// The log.
    pub log: PathBuf,
    /// Their number since yesterday.
    pub events: usize,
    /// Whether the log may have had more of them: the end that was read shows no start.
    pub may_be_more: bool,
    /// The first 200 characters of the log's line of the last one.
    pub last: String,
    /// `memory.high` of the server's memory cgroup in bytes; `None` if there is none.
    pub high: Option<u64>,
}

impl PoolPressure {
    /// Reads them; `None` if there are none, or if they can't be read.
    pub fn of(
        database: &Database,
        snapshot: &Snapshot,
        settings: &Settings,
        roots: &SysRoots,
    ) -> Option<Self> {
        if settings.engine != Engine::MariaDb {
            return None;
        }
        let inode = roots.proc.inode_behind(database.pid?, STDERR)?;
        let log = snapshot.files.iter().find(|file| file.stat_inode == inode)?;
        let found = events(&tail(log)?, snapshot.at)?;
        Some(Self { log: log.path.clone(), high: high(database), ..found })
    }

    /// Whether the pool stays smaller until somebody sets its size.
    pub fn is_lasting(&self) -> bool {
        LogLine::parse(&self.last).is_some_and(|line| line.text.starts_with(GIVEN_AWAY[0]))
    }
}

/// Returns the last lines of a file; `None` if it can't be read.
fn tail(log: &File) -> Option<String> {
    let file = log.open().ok()?;
    let size = file.size_now().ok()?;
    let mut bytes = vec![0; usize::try_from(size.min(TAIL_BYTES)).ok()?];
    let count = file.file().read_at(&mut bytes, size.saturating_sub(TAIL_BYTES)).ok()?;
    Some(unescaped_bytes(&bytes[..count]).into_owned())
}

/// A line of the log: "2026-11-30  9:00:00 0 [Note] …".
struct LogLine<'a> {
    /// Days since 1970-01-01.
    day: i64,
    /// The text behind date, time and thread.
    text: &'a str,
}

impl<'a> LogLine<'a> {
    /// Parses a line; `None` if it does not begin with a date, a time and a thread.
    fn parse(line: &'a str) -> Option<Self> {
        let (date, rest) = line.split_once(' ')?;
        // The hour has a space instead of a leading zero.
        let (time, rest) = rest.strip_prefix(' ').unwrap_or(rest).split_once(' ')?;
        let (thread, text) = rest.split_once(' ')?;
        let [_, _, _] = numbers(time, ':')?;
        number(thread)?;
        Some(Self { day: days_since_epoch(numbers(date, '-')?)?, text })
    }

    fn is_start(&self) -> bool {
        let program = self.text.strip_prefix(NOTE).and_then(|text| text.strip_suffix(STARTED));
        program.is_some_and(|program| !program.contains([' ', '\'']))
    }

    fn is_event(&self) -> bool {
        GIVEN_AWAY.iter().any(|given_away| self.text.starts_with(given_away))
    }
}

fn number(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns three numbers.
fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let parts: Option<Vec<i64>> = text.split(separator).map(number).collect();
    parts?.try_into().ok()
}

/// Returns the days from 1970-01-01 to a date; `None` if it is none, or before.
fn days_since_epoch([year, month, day]: [i64; 3]) -> Option<i64> {
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that the leap day is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469)
}

/// Returns the recent events since the last start, without log and limit; `None` if there are none.
fn events(text: &str, now: SystemTime) -> Option<PoolPressure> {
    let since_epoch = now.duration_since(UNIX_EPOCH).ok()?;
    let today = i64::try_from(since_epoch.as_secs() / DAY_SECONDS).ok()?;
    let (mut events, mut last, mut has_start) = (0, None, false);
    for line in text.lines() {
        let Some(parsed) = LogLine::parse(line) else { continue };
        if parsed.is_start() {
            (events, last, has_start) = (0, None, true);
        } else if parsed.is_event() && (today - parsed.day).abs() <= EVENT_DAYS_MAX {
            (events, last) = (events + 1, Some(line));
        }
    }
    let last = last?.chars().take(LINE_CHARS_MAX).collect();
    Some(PoolPressure { log: PathBuf::new(), events, may_be_more: !has_start, last, high: None })
}

fn high(database: &Database) -> Option<u64> {
    let group = database.cgroup.as_ref().filter(|group| group.version == CgroupVersion::V2)?;
    HeldGroup::open(group.version, &group.directory).ok()?.high().ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 2026-11-30, 15:00.
    fn now() -> SystemTime {
        UNIX_EPOCH + std::time::Duration::from_secs(20_787 * DAY_SECONDS + 15 * 3600)
    }

    fn found(text: &str) -> Option<(usize, bool, String)> {
        events(text, now()).map(|found| (found.events, found.may_be_more, found.last))
    }

    const FREED: &str = "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event freed 812 pages";
    const STARTED_LINE: &str = "2026-11-30  9:00:00 0 [Note] /usr/sbin/mariadbd: ready for connections.";

    #[test]
    fn events_since_the_last_start_count() {
        let shrunk = "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event shrunk \
                      innodb_buffer_pool_size=96m (6144 pages) from 128m (8192 pages)";
        let none = "2026-11-30 14:00:00 0 [Note] InnoDB: Memory pressure event disregarded; \
                    innodb_buffer_pool_size=128m, innodb_buffer_pool_size_auto_min=128m";
        let text = format!("{FREED}\n{STARTED_LINE}\n{none}\n{shrunk}\n{shrunk}\nmore\n");
        assert_eq!(found(&text), Some((2, false, shrunk.to_owned())));
        let far_back = format!("x\n{FREED}\n");
        assert_eq!(found(&far_back), Some((1, true, FREED.to_owned())), "its start is far back");
        assert_eq!(found(&format!("{shrunk}\n{STARTED_LINE}\n{none}\n")), None);
        assert!(
            events(&text, now()).unwrap().is_lasting() && !events(&far_back, now()).unwrap().is_lasting()
        );
    }

    #[test]
    fn names_that_clients_choose_are_neither_events_nor_starts() {
        let denied = |user: &str| {
            format!("2026-11-30 14:00:00 7 [Warning] Access denied for user '{user}'@'localhost'")
        };
        let event = "[Note] InnoDB: Memory pressure event freed 1 pages";
        assert_eq!(found(&denied(event)), None);
        assert_eq!(found(&format!("{event}\n0 {event}\n2026-11-30 {event}\n")), None);
        let user = denied("x: ready for connections.");
        let note = user.replace("[Warning]", "[Note]");
        for line in [&user, &note, "2026-11-30 14:00:00 7 [Note] user 'x': ready for connections."] {
            assert_eq!(found(&format!("{FREED}\n{line}\n")).unwrap().0, 1, "{line}");
        }
    }

    #[test]
    fn old_and_undated_events_do_not_count_and_long_lines_are_cut() {
        let on = |date: &str| found(&FREED.replace("2026-11-30", date)).map(|found| found.0);
        for (date, count) in [("2026-11-29", 1), ("2026-12-01", 1), ("2026-11-30", 1)] {
            assert_eq!(on(date), Some(count), "{date}");
        }
        for date in ["2026-11-28", "2025-11-30", "2026-12-02", "2026-13-30", "2026-11", "x", "-1-11-30"] {
            assert_eq!(on(date), None, "{date}");
        }
        let long = found(&format!("{FREED}{}", "ä".repeat(1000))).unwrap().2;
        assert_eq!(long.chars().count(), LINE_CHARS_MAX);
    }

    #[test]
    fn days_are_counted_from_1970() {
        for (date, days) in [([1970, 1, 1], 0), ([2000, 2, 29], 11_016), ([2026, 11, 30], 20_787)] {
            assert_eq!(days_since_epoch(date), Some(days), "{date:?}");
        }
    }
}
