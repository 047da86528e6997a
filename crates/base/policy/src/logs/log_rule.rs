//! The release rule of a log inside its writer, and the place of a log in its series.
//!
//! Invariant: logs of one series differ in their number alone, whatever their writer calls them.

use crate::names::{self, SegmentSize};
use crate::{DEFAULT_SLACK, RewriteSource, Rule};

/// The release rule of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRule {
    /// Bytes behind the writer that stay.
    pub slack: u64,
    /// A reader at most this many files behind is waited for; 0 for none.
    pub near_files: u64,
    /// The way in which its writer overwrites pages.
    pub rewrite: RewriteSource,
    /// Whether a profile names the file. Then it is a log from the start, and gaps were written by
    /// other processes.
    pub is_named: bool,
}

impl LogRule {
    /// The rule of any file that is written in order and synced.
    pub const ANY: Self = Self { slack: 0, near_files: 0, rewrite: RewriteSource::Detect, is_named: false };

    /// Converts a profile's rule for use inside the writer. `None`: the file stays.
    pub const fn named(rule: Rule, rewrite: RewriteSource) -> Option<Self> {
        let (slack, near_files) = match rule {
            Rule::ReleaseBehindWriter { slack } => (slack, 0),
            Rule::ReleaseBehindFollowers { near_files, slack } => (slack, near_files),
            Rule::Budget { bytes, .. } => (bytes, 0),
            // Waiting for the rotation has no benefit: the helper releases while the writer goes
            // on.
            Rule::ReleaseOnRotation => (DEFAULT_SLACK, 0),
            // The checkpoint's position cannot be seen from inside a write.
            Rule::Keep | Rule::ReleaseBeforeCheckpoint { .. } | Rule::Direct => return None,
        };
        Some(Self { slack, near_files, rewrite, is_named: true })
    }

    /// Whether the writes have to show how the writer overwrites pages, or how large the device's
    /// blocks are.
    pub const fn detects(&self) -> bool {
        matches!(self.rewrite, RewriteSource::Detect | RewriteSource::DeviceBlocks)
    }
}

/// Returns the series of a log by its path, and the file's number in it: by the pattern that names
/// it, or else by its last number. `size` is the file's, in bytes.
pub fn series_number(path: &[u8], pattern: Option<&[u8]>, size: u64) -> (u64, u64) {
    let name = names::last_name(path);
    let by_pattern = pattern.and_then(|pattern| names::matches_name(names::last_name(pattern), name));
    let matched = by_pattern.unwrap_or_else(|| names::by_last_number(name));
    // FNV-1a over all but the digits.
    let directory = path.get(..path.len().saturating_sub(name.len())).unwrap_or_default();
    let [first, second, third] = matched.stem();
    let kept = [directory, first, second, third].into_iter().flatten();
    let series = kept.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (series.max(1), matched.number.sequence(SegmentSize::of_file(size)))
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::logs::allowance::{is_near, needed_from};
    use crate::{RewriteKind, WINDOW};

    #[test]
    fn a_named_rule_becomes_its_equivalent_inside_the_writer() {
        let figures = |rule| {
            LogRule::named(rule, RewriteSource::Known(RewriteKind::Never))
                .map(|rule| (rule.slack, rule.near_files))
        };
        assert_eq!(figures(Rule::ReleaseBehindWriter { slack: 7 }), Some((7, 0)));
        assert_eq!(figures(Rule::ReleaseBehindFollowers { near_files: 3, slack: 7 }), Some((7, 3)));
        assert_eq!(figures(Rule::Budget { bytes: 9, total: 9 }), Some((9, 0)));
        assert_eq!(figures(Rule::ReleaseOnRotation), Some((DEFAULT_SLACK, 0)));
        assert_eq!((figures(Rule::Keep), figures(Rule::Direct)), (None, None));
        let before_checkpoint = Rule::ReleaseBeforeCheckpoint { near_files: 3, slack: 7 };
        assert_eq!(figures(before_checkpoint), None, "nobody knows the checkpoint");
    }

    #[test]
    fn files_of_a_series_are_numbered() {
        let of = |path: &[u8]| series_number(path, None, 16 << 20);
        let (binlog, seven) = of(b"/d/binlog.000007");
        assert_eq!((of(b"/d/binlog.000123"), seven), ((binlog, 123), 7));
        assert_ne!(of(b"/e/binlog.000123").0, binlog);
        assert_ne!(of(b"/d/relay.000123").0, binlog);
        assert_eq!(of(b"/d/000012.log").1, 12);
        assert_eq!(of(b"/d/#ib_redo31").1, 31);
        let (wal, number) = of(b"/d/pg_wal/0000000100000002000000FE");
        assert_eq!(number, 2 * 256 + 254);
        assert_eq!(of(b"/d/pg_wal/000000020000000300000000"), (wal, 3 * 256));
        assert_eq!(of(b"").1, 0);
        assert_eq!(of(b"/d2/log").1, 0);
    }

    #[test]
    fn the_pattern_decides_which_number_orders() {
        let of = |path: &[u8]| series_number(path, Some(b"wal/{h}-{_}.wal"), 64_000_000);
        let (wal, one) = of(b"/d/wal/0000000000000001-0000000000002f4a.wal");
        assert_eq!(one, 1);
        assert_eq!(of(b"/d/wal/000000000000000a-0000000000010000.wal"), (wal, 10));
        assert_eq!(of(b"/d/wal/x7").1, 7, "a name that the pattern is not for, behind a link");
    }

    #[test]
    fn a_reader_one_segment_behind_is_near_across_4_gib_and_timelines() {
        for (size, read, written) in [
            (1 << 20, b"/d/pg_wal/000000010000000000000FFF", b"/d/pg_wal/000000010000000100000000"),
            (16 << 20, b"/d/pg_wal/0000000100000000000000FF", b"/d/pg_wal/000000020000000100000000"),
            (64 << 20, b"/d/pg_wal/00000001000000000000003F", b"/d/pg_wal/000000010000000100000000"),
            (1 << 30, b"/d/pg_wal/000000010000000000000003", b"/d/pg_wal/000000020000000100000000"),
        ] {
            for pattern in [None, Some(&b"pg_wal/{x}"[..])] {
                let (reader, writer) =
                    (series_number(read, pattern, size), series_number(written, pattern, size));
                assert_eq!(reader.0, writer.0, "one series");
                assert!(is_near(writer.1, reader.1, 1) && !is_near(writer.1, reader.1, 0), "{size}");
                // Pages that it has yet to read stay.
                assert_eq!(needed_from(reader.1, [(reader.1, 3 * WINDOW)].into_iter()), 3 * WINDOW);
                assert_eq!(needed_from(writer.1, [(reader.1, 3 * WINDOW)].into_iter()), 0);
            }
        }
    }
}
