//! The readers that have yet to read PostgreSQL's WAL, as the server itself shows them: in the
//! titles of its processes (`update_process_title`, on by default), and in the files of its data
//! directory ([`DataDirectory`], [`slot`]). PostgreSQL uses pread and pwrite, whose positions
//! `/proc` does not show.
//!
//! A title that can't be parsed is ignored. A user who may name a database role or a cluster can
//! forge one. A forged title holds only pages of that server's own log, within the limits of its
//! rule.

mod data_directory;
pub mod slot;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::FilePosition;
use pagekeeper_policy::names::{SegmentSize, WalSegment};
use pagekeeper_text::unescaped;

pub use data_directory::{ArchiveNote, DataDirectory, ReplicationSlots, known_in_part};

/// Returns the title of a process; empty if it can't be read.
pub fn process_title(proc: &ProcRoot, pid: u32) -> String {
    let line = proc.command_line(pid).unwrap_or_default();
    line.iter().map(|argument| unescaped(argument)).collect::<Vec<_>>().join(" ")
}

/// A PostgreSQL process that reads WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalReader {
    /// The purpose of its reads.
    pub kind: WalReaderKind,
    /// The place from which it still reads, if its title shows one: the sequence of the segment
    /// ([`WalSegment::sequence`]) and the position in it.
    pub place: Option<(u64, FilePosition)>,
}

/// The purpose for which a process reads WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalReaderKind {
    /// A WAL sender: for a standby or `pg_receivewal`.
    Sender,
    /// The archiver. The files in `archive_status` also show what it has yet to archive.
    Archiver,
    /// The startup process: a standby's replay, or recovery.
    Replay,
}

/// Returns the reader that a process's title shows. If the segment size is unknown, PostgreSQL's
/// default is used.
///
/// ```
/// use pagekeeper_catalog::postgresql::{WalReaderKind, wal_reader};
/// use pagekeeper_policy::FilePosition;
///
/// let reader = wal_reader("postgres: archiver archiving 0000000100000000000000B3", None).unwrap();
/// assert_eq!((reader.kind, reader.place), (WalReaderKind::Archiver, Some((0xb3, FilePosition::At(0)))));
/// ```
pub fn wal_reader(title: &str, segment_size: Option<SegmentSize>) -> Option<WalReader> {
    let title = title.trim_end().strip_prefix("postgres: ")?;
    // With cluster_name set the title is "postgres: NAME: walsender …", and that name may contain a
    // colon.
    let after_colons = title.match_indices(": ").filter_map(|(at, colon)| title.get(at + colon.len()..));
    std::iter::once(title).chain(after_colons).find_map(|title| parse_title(title, segment_size))
}

fn parse_title(title: &str, segment_size: Option<SegmentSize>) -> Option<WalReader> {
    let (process, state) = title.split_once(' ').unwrap_or((title, ""));
    let (kind, place) = match process {
        "walsender" => (WalReaderKind::Sender, parse_sent_position(state, segment_size)),
        "archiver" => (WalReaderKind::Archiver, parse_archiver_state(state, segment_size)?),
        "startup" => (WalReaderKind::Replay, parse_startup_state(state, segment_size)?),
        _ => return None,
    };
    Some(WalReader { kind, place })
}

fn parse_sent_position(state: &str, segment_size: Option<SegmentSize>) -> Option<(u64, FilePosition)> {
    let lsn = parse_lsn(state.rsplit_once("streaming ")?.1)?;
    let (sequence, offset) = segment_size.unwrap_or(SegmentSize::DEFAULT).place_of(lsn);
    Some((sequence, FilePosition::At(offset)))
}

/// Parses a state of the archiver. A state without a segment has no place: no file yet, or a file
/// that is not a segment.
#[allow(clippy::option_option, reason = "no state of an archiver, and a state that is no place")]
fn parse_archiver_state(
    state: &str,
    segment_size: Option<SegmentSize>,
) -> Option<Option<(u64, FilePosition)>> {
    let (name, is_done) = match state {
        "" => return Some(None),
        _ => match state.strip_prefix("last was ") {
            Some(name) => (name, true),
            None => (state.strip_prefix("archiving ").or_else(|| state.strip_prefix("failed on "))?, false),
        },
    };
    Some(parse_segment(name).map(|(segment, is_whole)| {
        // After a part of a segment, or its backup label, the segment itself may follow.
        let passed = u64::from(is_done && is_whole);
        (segment.sequence(segment_size) + passed, FilePosition::At(0))
    }))
}

/// Parses a state of the startup process: it is somewhere in the segment that it opened last.
#[allow(clippy::option_option, reason = "as above")]
fn parse_startup_state(
    state: &str,
    segment_size: Option<SegmentSize>,
) -> Option<Option<(u64, FilePosition)>> {
    if state.is_empty() {
        return Some(None);
    }
    let name = state.strip_prefix("recovering ").or_else(|| state.strip_prefix("waiting for "))?;
    Some(parse_segment(name).map(|(segment, _)| (segment.sequence(segment_size), FilePosition::Unknown)))
}

/// Returns the segment of an archived file, `NAME`, `NAME.partial` or `NAME.OFFSET.backup`, and
/// whether the file is the segment itself. Returns `None` for a timeline history file, and for a
/// truncated title.
fn parse_segment(name: &str) -> Option<(WalSegment, bool)> {
    let (segment, suffix) = name.as_bytes().split_at_checked(WalSegment::NAME_DIGITS)?;
    let is_known =
        matches!(suffix, b"" | b".partial") || suffix.starts_with(b".") && suffix.ends_with(b".backup");
    Some((WalSegment::of_name(segment)?, suffix.is_empty())).filter(|_| is_known)
}

/// Parses a position as PostgreSQL writes it: two hexadecimal halves, `16/B374D848`.
fn parse_lsn(text: &str) -> Option<u64> {
    let half = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(text, 16).ok().filter(|_| is_number)
    };
    let (high, low) = text.split_once('/')?;
    Some((u64::from(half(high)?) << 32) | u64::from(half(low)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use WalReaderKind::{Archiver, Replay, Sender};

    const SEGMENT_SIZE: Option<SegmentSize> = SegmentSize::of_file(16 << 20);

    fn read(title: &str) -> Option<(WalReaderKind, Option<(u64, FilePosition)>)> {
        wal_reader(title, SEGMENT_SIZE).map(|reader| (reader.kind, reader.place))
    }

    fn sequence_of(name: &str) -> u64 {
        WalSegment::of_name(name.as_bytes()).unwrap().sequence(SEGMENT_SIZE)
    }

    #[test]
    fn a_wal_sender_is_in_the_segment_of_its_position() {
        let title = "postgres: walsender replicator 10.0.0.7(51234) streaming 16/B374D848";
        let place = (sequence_of("0000000100000016000000B3"), FilePosition::At(0x0074_d848));
        for cluster in ["postgres: ", "postgres: main: ", "postgres: a: b: ", "postgres: archiver last was: "]
        {
            assert_eq!(read(&title.replace("postgres: ", cluster)), Some((Sender, Some(place))), "{cluster}");
        }
        let unknown = wal_reader("postgres: walsender r [local] streaming 0/1000001", None).unwrap();
        assert_eq!(unknown.place, Some((1, FilePosition::At(1))), "as if segments had their default size");
        for state in [
            "idle",
            "START_REPLICATION",
            "streaming 1/zz",
            "streaming 1/+2",
            "streaming 16",
            "streaming 1/2 x",
        ] {
            let title = format!("postgres: walsender replicator 10.0.0.7(51234) {state}");
            assert_eq!(read(&title), Some((Sender, None)), "{title}");
        }
    }

    #[test]
    fn the_archivers_position_is_read_from_its_status_files() {
        let at = |name: &str, after: u64| Some((sequence_of(name) + after, FilePosition::At(0)));
        let (a, ff) = ("00000001000000160000000A", "0000000100000016000000FF");
        assert_eq!(at(ff, 1), at("000000010000001700000000", 0), "the first of the next 4 GiB");
        for (state, place) in [
            ("archiving 00000001000000160000000A", at(a, 0)),
            ("failed on 00000001000000160000000A", at(a, 0)),
            ("last was 00000001000000160000000A", at(a, 1)),
            ("last was 0000000100000016000000FF", at(ff, 1)),
            // The position is the same on another timeline.
            ("archiving 0000000700000016000000FF", at(ff, 0)),
            ("archiving 00000001000000160000000A.partial", at(a, 0)),
            ("last was 00000001000000160000000A.partial", at(a, 0)),
            ("last was 00000001000000160000000A.00000028.backup", at(a, 0)),
            // States that name no segment.
            ("", None),
            ("archiving 00000002.history", None),
            ("failed on 00000002.history", None),
            ("last was 00000002.history", None),
            // Truncated titles.
            ("archiving 00000001000000160000000", None),
            ("last was 00000001000000160000000A.par", None),
        ] {
            for cluster in ["", "main: "] {
                let title = format!("postgres: {cluster}archiver {state}");
                assert_eq!(read(&title), Some((Archiver, place)), "{title}");
            }
        }
    }

    #[test]
    fn segments_of_every_size_follow_each_other() {
        for (bits, last) in [(20, 0xfff_u32), (24, 0xff), (26, 0x3f), (30, 3)] {
            let size = SegmentSize::of_file(1 << bits);
            let place = |title: String| wal_reader(&title, size).unwrap().place.unwrap().0;
            let after = place(format!("postgres: archiver last was 0000000100000000{last:08X}"));
            assert_eq!(
                after,
                place("postgres: archiver archiving 000000010000000100000000".to_owned()),
                "{bits}"
            );
            assert_eq!(
                after,
                place("postgres: startup recovering 000000030000000100000000".to_owned()),
                "{bits}"
            );
            assert_eq!(after, place("postgres: walsender r [local] streaming 1/0".to_owned()), "{bits}");
        }
    }

    #[test]
    fn replay_is_somewhere_in_the_segment_that_it_opened_last() {
        let place = Some((sequence_of("000000020000001600000004"), FilePosition::Unknown));
        for (state, place) in [
            ("recovering 000000020000001600000004", place),
            ("waiting for 000000020000001600000004", place),
            ("waiting for 00000003.history", None),
            ("recovering 0000000200000016", None),
            ("", None),
        ] {
            assert_eq!(
                read(&format!("postgres: standby: startup {state}")),
                Some((Replay, place)),
                "{state}"
            );
        }
    }

    #[test]
    fn other_titles_say_nothing() {
        for title in [
            "postgres: checkpointer ",
            "postgres: walreceiver streaming 0/3000000",
            "postgres: archivers archiving 000000010000000000000001",
            "postgres: archiver app [local] SELECT",
            "postgres: startup app [local] recovering 000000010000000000000001",
            "postgres: app archiver archiving 000000010000000000000001",
            "postgres: app db [local] SELECT streaming 1/2",
            "postgres: ",
            "postgres:",
            "walsender streaming 1/2",
            "",
        ] {
            assert_eq!((wal_reader(title, SEGMENT_SIZE), wal_reader(title, None)), (None, None), "{title}");
        }
    }
}
