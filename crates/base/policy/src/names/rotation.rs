//! The parts of a file name that log rotation changes: dates, times, weekdays, months, and the
//! number of a rotated file.
//!
//! Invariant: numbers of servers, hosts and ports stay, since they tell different logs apart.

/// Minimum digits of a number that counts as a date, a time or a count: `YYMMDD`, `HHMMSS`, seconds
/// since the epoch. Ports have fewer.
const DATE_DIGITS_MIN: usize = 6;

/// Words that stand for a date, in full or by their first three letters, and the suffix of a log
/// that was rotated once.
const DATE_WORDS: [&[u8]; 20] = [
    b"Monday",
    b"Tuesday",
    b"Wednesday",
    b"Thursday",
    b"Friday",
    b"Saturday",
    b"Sunday",
    b"January",
    b"February",
    b"March",
    b"April",
    b"May",
    b"June",
    b"July",
    b"August",
    b"September",
    b"October",
    b"November",
    b"December",
    b"old",
];

/// The endings of compressed rotated files.
const COMPRESSED_SUFFIXES: [&[u8]; 4] = [b".gz", b".xz", b".bz2", b".zst"];

/// Returns a name without the parts that rotation changes and the separators before them.
pub(super) fn without_rotation(name: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(name.len());
    let mut rest = COMPRESSED_SUFFIXES.iter().find_map(|ending| name.strip_suffix(*ending)).unwrap_or(name);
    // Whether the last part other than a separator was dropped: short numbers after it continue the
    // date.
    let mut is_in_date = false;
    while let Some((part, after)) = split_part(rest) {
        let is_count = after.is_empty() && kept.ends_with(b".") && part.iter().all(u8::is_ascii_digit);
        if is_count || is_date(part, is_in_date) {
            while kept.last().is_some_and(|byte| is_separator(*byte)) {
                kept.pop();
            }
            is_in_date = true;
        } else {
            kept.extend_from_slice(part);
            is_in_date &= part.iter().all(|byte| is_separator(*byte));
        }
        rest = after;
    }
    kept
}

/// Splits off the first part: digits, letters, or one other byte.
fn split_part(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = text.first()?;
    let length = if first.is_ascii_digit() {
        text.iter().take_while(|byte| byte.is_ascii_digit()).count()
    } else {
        text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count().max(1)
    };
    text.split_at_checked(length)
}

fn is_date(part: &[u8], is_in_date: bool) -> bool {
    match part {
        [b'0'..=b'9', ..] => {
            let is_year = part.len() == 4 && (part.starts_with(b"19") || part.starts_with(b"20"));
            is_in_date || is_year || part.len() >= DATE_DIGITS_MIN
        }
        b"T" | b"Z" => is_in_date,
        _ => DATE_WORDS.iter().any(|word| *word == part || word.get(..3) == Some(part)),
    }
}

const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'-' | b'_' | b'.' | b':' | b'+')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_that_rotation_changes_is_dropped() {
        for (names, expected) in [
            (
                &["slow.log", "slow.log.1", "slow.log.12", "slow.log.2.gz", "slow.log-20261129"][..],
                "slow.log",
            ),
            (&["slow-20261129.log", "slow-2026-11-29.log", "slow20261129.log", "slow.log.old"], "slow.log"),
            (&["host.err", "host.err-old", "host.err.1"], "host.err"),
            (
                &["mongod.log", "mongod.log.2026-11-29T09-05-11", "mongod.log.2026-11-29T09:05:11Z"],
                "mongod.log",
            ),
            (&["LOG", "LOG.old.1764406800000000"], "LOG"),
            (&["pg-2026-11-29_090511.csv", "pg-Mon.csv", "pg-Wednesday.csv", "pg-Nov-29.csv"], "pg.csv"),
            (&["server_log.1905", "server_log.Sun"], "server_log"),
            // Names with the number of a server, host or port.
            (&["error-3307.log"], "error-3307.log"),
            (&["node2-2026-11-29.log"], "node2.log"),
            (&["10.0.0.5-slow.log"], "10.0.0.5-slow.log"),
            (&["folder.log"], "folder.log"),
            (&[""], ""),
        ] {
            for name in names {
                let kept = String::from_utf8(without_rotation(name.as_bytes())).unwrap();
                assert_eq!(kept, expected, "{name}");
            }
        }
    }
}
