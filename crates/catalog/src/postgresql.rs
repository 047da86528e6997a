//! Positions that PostgreSQL's processes show in their titles (`update_process_title`, on by default): where
//! each WAL sender is, and what the archiver did last. PostgreSQL uses pread and pwrite, whose positions
//! `/proc` does not show.
//!
//! A title that is not understood says nothing.

use pagekeeper_policy::Position;

use crate::pattern::segment_number;

/// Where in the WAL a process still reads, by its title: a segment's number, as the profile's patterns order them, and
/// where in it. `None` for a title that says nothing of it.
pub fn follower(title: &str, segment_bytes: u64) -> Option<(u64, Position)> {
    let title = title.strip_prefix("postgres: ")?;
    // With cluster_name set the title is "postgres: NAME: walsender …".
    if title.contains("walsender ") {
        let position = title.rsplit_once("streaming ")?.1;
        return place(lsn(position.split_whitespace().next()?)?, segment_bytes);
    }
    if title.contains("archiver") {
        let last = title.rsplit_once("last was ")?.1;
        let done = segment_number(last.get(..24)?.as_bytes())?;
        return Some((done.saturating_add(1), Position::At(0)));
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

/// The segment that holds a position: its name's last 16 digits are the high half and the segment in that half.
fn place(lsn: u64, segment_bytes: u64) -> Option<(u64, Position)> {
    let within_half = lsn & 0xffff_ffff;
    let segment = within_half.checked_div(segment_bytes)?;
    Some((((lsn >> 32) << 32) | segment, Position::At(within_half % segment_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 16 << 20;

    #[test]
    fn a_wal_sender_is_in_the_segment_of_its_position() {
        let title = "postgres: walsender replicator 10.0.0.7(51234) streaming 16/B374D848";
        let (sequence, position) = follower(title, SEGMENT).unwrap();
        assert_eq!(Some(sequence), segment_number(b"0000000100000016000000B3"));
        assert_eq!(position, Position::At(0x0074_d848));
        assert_eq!(
            follower(&title.replace("postgres: ", "postgres: main: "), SEGMENT),
            Some((sequence, position))
        );
    }

    #[test]
    fn the_archiver_is_after_what_it_did() {
        let title = "postgres: archiver last was 00000001000000160000000A";
        let next = segment_number(b"00000001000000160000000B").unwrap();
        assert_eq!(follower(title, SEGMENT), Some((next, Position::At(0))));
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
            assert_eq!(follower(title, SEGMENT), None, "{title}");
        }
        assert_eq!(follower("postgres: walsender r [local] streaming 0/1", 0), None);
    }
}
