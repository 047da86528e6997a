//! Names of files and programs against patterns, without allocation.
//!
//! The patterns are those of profiles: in a name, `*` stands for any characters, `{n}` for a decimal number, `{x}` for 24
//! hexadecimal digits; names of directories may stand before it, parted by `/`, in which `*` has the same meaning.
//!
//! Invariants: matching ends, after steps by the name's length to the power of the `*` in it at most; nothing panics.

/// Whether the last components of a path are as the pattern says.
///
/// ```
/// use pagekeeper_preload::name::matches;
///
/// assert!(matches(b"pg_wal/{x}", b"/d/pg_wal/00000001000000000000000A"));
/// assert!(matches(b"*.sst", b"000012.sst"));
/// assert!(!matches(b"{n}.log", b"/d/LOG"));
/// ```
pub fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut pattern, mut path) = (pattern, path);
    loop {
        let (above, last) = split_last(pattern);
        let (path_above, path_last) = split_last(path);
        if path_last.is_empty() || !matches_name(last, path_last) {
            return false;
        }
        match (above, path_above) {
            (None, _) => return true,
            (Some(_), None) => return false,
            (Some(above), Some(path_above)) => (pattern, path) = (above, path_above),
        }
    }
}

/// What every path ends with that the pattern matches: its end, as far as it is plain text of the last name.
pub fn tail(pattern: &[u8]) -> &[u8] {
    let start = pattern.iter().rposition(|byte| matches!(byte, b'/' | b'*' | b'}')).map_or(0, |at| at + 1);
    pattern.get(start..).unwrap_or_default()
}

/// How many names of directories a pattern has.
#[allow(clippy::naive_bytecount, reason = "a few bytes")]
pub fn directories(pattern: &[u8]) -> usize {
    pattern.iter().filter(|&&byte| byte == b'/').count()
}

/// The last component, and what stands before its `/`.
fn split_last(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => {
            let mut above = &path[..at];
            while let [rest @ .., b'/'] = above {
                above = rest;
            }
            (Some(above), &path[at + 1..])
        }
        None => (None, path),
    }
}

/// Whether one name is as the pattern says.
pub fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    match pattern {
        [] => name.is_empty(),
        [b'*', later @ ..] => {
            // Most have no other way to match than one.
            if tail(later).len() == later.len() {
                return name.ends_with(later);
            }
            (0..=name.len()).any(|length| name.get(length..).is_some_and(|rest| matches_name(later, rest)))
        }
        [b'{', b'n', b'}', later @ ..] => {
            let length = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
            length > 0 && name.get(length..).is_some_and(|rest| matches_name(later, rest))
        }
        [b'{', b'x', b'}', later @ ..] => {
            const DIGITS: usize = 24;
            name.len() >= DIGITS
                && name[..DIGITS].iter().all(u8::is_ascii_hexdigit)
                && matches_name(later, &name[DIGITS..])
        }
        [literal, later @ ..] => name.first() == Some(literal) && matches_name(later, &name[1..]),
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn names_and_directories_are_matched_from_the_end() {
        for (pattern, path, expected) in [
            ("*.sst", "/d/000012.sst", true),
            ("*.sst", "/d/000012.sst.tmp", false),
            ("{n}.log", "/d/000004.log", true),
            ("{n}.log", "/d/.log", false),
            ("base/*/{n}*", "base/5/16384.1", true),
            ("base/*/{n}*", "/d/base//5/16384_vm", true),
            ("base/*/{n}*", "5/16384", false),
            ("base/*/{n}*", "/global/5/16384", false),
            ("pg_wal/{x}", "pg_wal/00000001000000000000000A", true),
            ("pg_wal/{x}", "pg_wal/00000001000000000000000A.backup", false),
            ("#ib_redo{n}", "/d/#ib_redo7", true),
            ("*relay*.{n}", "/d/host-relay-bin.000002", true),
            ("a", "a/", false),
            ("a", "", false),
            ("*", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), path.as_bytes()), expected, "{pattern} {path}");
        }
        assert_eq!(directories(b"base/*/{n}*"), 2);
        for (pattern, expected) in [
            ("*.sst", ".sst"),
            ("{n}.log", ".log"),
            ("pg_wal/{x}", ""),
            ("a/b", "b"),
            ("ibtmp{n}", ""),
            ("", ""),
        ] {
            assert_eq!(tail(pattern.as_bytes()), expected.as_bytes(), "{pattern}");
        }
    }
}
