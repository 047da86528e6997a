//! Positions that PostgreSQL's processes show in their titles (`update_process_title`, on by default): where
//! each WAL sender is, and what the archiver did last. PostgreSQL uses pread and pwrite, whose positions
//! `/proc` does not show.
//!
//! A title that is not understood says nothing.

use pagekeeper_policy::Position;
use pagekeeper_policy::names::{SegmentSize, WalSegment};

/// Where in the WAL a process still reads, by its title: which segment of the log ([`WalSegment::sequence`]), and where in it.
/// `None` for a title that says nothing of it. A size that is not known is taken to be PostgreSQL's default.
pub fn follower(title: &str, segment_size: Option<SegmentSize>) -> Option<(u64, Position)> {
    let title = title.strip_prefix("postgres: ")?;
    // With cluster_name set the title is "postgres: NAME: walsender …".
    if title.contains("walsender ") {
        let position = title.rsplit_once("streaming ")?.1;
        let lsn = lsn(position.split_whitespace().next()?)?;
        let (sequence, offset) = segment_size.unwrap_or(SegmentSize::DEFAULT).place_of(lsn);
        return Some((sequence, Position::At(offset)));
    }
    if title.contains("archiver") {
        let last = title.rsplit_once("last was ")?.1;
        let done = WalSegment::of_name(last.as_bytes().get(..WalSegment::DIGITS)?)?;
        return Some((done.sequence(segment_size) + 1, Position::At(0)));
    }
    None
}

/// Reads a position as PostgreSQL writes it: two hexadecimal halves, `16/B374D848`.
fn lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    Some(
        (u64::from(u32::from_str_radix(high, 16).ok()?) << 32)
            | u64::from(u32::from_str_radix(low, 16).ok()?),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: Option<SegmentSize> = SegmentSize::of_file(16 << 20);

    fn sequence_of(name: &str) -> Option<u64> {
        WalSegment::of_name(name.as_bytes()).map(|segment| segment.sequence(SEGMENT))
    }

    #[test]
    fn a_wal_sender_is_in_the_segment_of_its_position() {
        let title = "postgres: walsender replicator 10.0.0.7(51234) streaming 16/B374D848";
        let (sequence, position) = follower(title, SEGMENT).unwrap();
        assert_eq!(Some(sequence), sequence_of("0000000100000016000000B3"));
        assert_eq!(position, Position::At(0x0074_d848));
        assert_eq!(
            follower(&title.replace("postgres: ", "postgres: main: "), SEGMENT),
            Some((sequence, position))
        );
    }

    #[test]
    fn the_archiver_is_after_what_it_did() {
        let title = "postgres: archiver last was 00000001000000160000000A";
        let next = sequence_of("00000001000000160000000B").unwrap();
        assert_eq!(follower(title, SEGMENT), Some((next, Position::At(0))));
        let title = "postgres: archiver last was 0000000100000016000000FF";
        let next = sequence_of("000000010000001700000000").unwrap();
        assert_eq!(follower(title, SEGMENT), Some((next, Position::At(0))), "the first of the next 4 GiB");
    }

    #[test]
    fn other_titles_say_nothing() {
        for title in [
            "postgres: walsender replicator 10.0.0.7(51234) idle",
            "postgres: checkpointer ",
            "postgres: archiver ",
            "postgres: archiver failed on 000000010000000000000001",
            "postgres: app db [local] SELECT streaming 1/2",
            "walsender streaming 1/2",
            "postgres: walsender x streaming 1/zz",
            "",
        ] {
            assert_eq!((follower(title, SEGMENT), follower(title, None)), (None, None), "{title}");
        }
        let unknown = follower("postgres: walsender r [local] streaming 0/1000001", None);
        assert_eq!(unknown, Some((1, Position::At(1))), "as if segments had their default size");
    }
}
