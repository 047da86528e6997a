//! `PostgreSQL`'s configuration files, as its `guc-file.l` reads them, and the sizes in them: text
//! in, lines out, no I/O.
//!
//! Never fails: a line that the server would refuse is [`GucEntry::Odd`].

/// One line with content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GucLine {
    /// The line number, from 1.
    pub number: u32,
    /// The content.
    pub entry: GucEntry,
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GucEntry {
    /// `name = value`.
    Set {
        /// The name as written.
        name: String,
        /// The value without its quotes.
        value: String,
    },
    /// `include 'FILE'`: the file must exist.
    Include(String),
    /// `include_if_exists 'FILE'`.
    IncludeIfExists(String),
    /// `include_dir 'DIRECTORY'`.
    IncludeDirectory(String),
    /// A line that the server does not understand: it would not start with it, or not reload the
    /// file.
    Odd,
}

/// Parses a configuration file.
///
/// ```
/// use pagekeeper_catalog::settings::guc::{GucEntry, parse};
///
/// let lines = parse("# memory\nshared_buffers = 128MB # min 128kB\n");
/// assert_eq!(lines[0].number, 2);
/// assert_eq!(lines[0].entry, GucEntry::Set { name: "shared_buffers".into(), value: "128MB".into() });
/// ```
pub fn parse(text: &str) -> Vec<GucLine> {
    lines(text).collect()
}

/// Parses a configuration file line by line, as [`parse`] does.
pub(super) fn lines(text: &str) -> impl Iterator<Item = GucLine> {
    let numbered = (1_u32..).zip(text.lines());
    numbered.filter_map(|(number, line)| Some(GucLine { number, entry: parse_entry(line)? }))
}

fn parse_entry(line: &str) -> Option<GucEntry> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    Some(parse_assignment(line).unwrap_or(GucEntry::Odd))
}

fn parse_assignment(line: &str) -> Option<GucEntry> {
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.') || !c.is_ascii();
    let name_end = line.find(|c| !in_name(c)).unwrap_or(line.len());
    let (name, rest) = line.split_at(name_end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').map_or(rest, str::trim_start);
    let (value, after) =
        if let Some(quoted) = rest.strip_prefix('\'') { quoted_value(quoted)? } else { bare_value(rest)? };
    let after = after.trim_start();
    if !(after.is_empty() || after.starts_with('#')) {
        return None;
    }
    Some(match name.to_ascii_lowercase().as_str() {
        "include" => GucEntry::Include(value),
        "include_if_exists" => GucEntry::IncludeIfExists(value),
        "include_dir" => GucEntry::IncludeDirectory(value),
        _ => GucEntry::Set { name: name.to_owned(), value },
    })
}

fn bare_value(text: &str) -> Option<(String, &str)> {
    let in_value = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | ':' | '/' | '$') || !c.is_ascii()
    };
    let end = text.find(|c| !in_value(c)).unwrap_or(text.len());
    (end > 0).then(|| (text[..end].to_owned(), &text[end..]))
}

/// Returns the quoted text and what follows it. `''` and `\'` are a quote; `\n` and similar
/// escapes, and octal ones, are as in C.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if chars.peek().is_some_and(|&(_, next)| next == '\'') => {
                chars.next();
                out.push('\'');
            }
            '\'' => return Some((out, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                first @ '0'..='7' => {
                    let mut code = first.to_digit(8)?;
                    for _ in 0..2 {
                        let Some(digit) = chars.peek().and_then(|&(_, next)| next.to_digit(8)) else { break };
                        code = code * 8 + digit;
                        chars.next();
                    }
                    out.push(char::from(code.to_le_bytes()[0]));
                }
                other => out.push(other),
            },
            c => out.push(c),
        }
    }
    None
}

/// The settings with a size that are read, with the bytes of the unit that applies if none is
/// written.
const SIZE_UNITS: [(&str, u64); 12] = [
    ("shared_buffers", 8 << 10),
    ("effective_cache_size", 8 << 10),
    ("checkpoint_flush_after", 8 << 10),
    ("bgwriter_flush_after", 8 << 10),
    ("backend_flush_after", 8 << 10),
    ("wal_writer_flush_after", 8 << 10),
    ("wal_buffers", 8 << 10),
    ("max_wal_size", 1 << 20),
    ("min_wal_size", 1 << 20),
    ("wal_keep_size", 1 << 20),
    ("max_slot_wal_keep_size", 1 << 20),
    ("wal_segment_size", 1),
];

/// Returns the size in bytes of `value`, as written for the setting `name`; `None` if it is unknown
/// or not a size.
///
/// A bare number counts in the setting's own unit, mostly blocks of 8 KiB (with the default block
/// size) or MiB.
pub(crate) fn size(name: &str, value: &str) -> Option<u64> {
    let unit = SIZE_UNITS.iter().find(|(known, _)| *known == name)?.1;
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (number, suffix) = value.split_at(digits);
    let unit = match suffix.trim_start() {
        "" => unit,
        "B" => 1,
        "kB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    // "1.5GB", to the KiB.
    let (whole, fraction) = number.split_once('.')?;
    let thousandths: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    whole.checked_mul(unit)?.checked_add(unit.checked_mul(thousandths)? / 1000)
}

/// Returns a duration in seconds; a bare number counts in seconds.
pub(crate) fn seconds(value: &str) -> Option<u64> {
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, suffix) = value.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match suffix.trim_start() {
        "ms" => Some(number / 1000),
        "" | "s" => Some(number),
        "min" => number.checked_mul(60),
        "h" => number.checked_mul(3600),
        "d" => number.checked_mul(86_400),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(line: &str) -> Option<(String, String)> {
        match parse(line).pop()?.entry {
            GucEntry::Set { name, value } => Some((name, value)),
            _ => None,
        }
    }

    #[test]
    fn values_are_read_as_the_server_reads_them() {
        let cases = [
            ("a = 1", "1"),
            ("a 1", "1"),
            ("  a=on#x", "on"),
            ("a = 'it''s' # c", "it's"),
            (r"a = '\'\101\n\x'", "'A\nx"),
            ("a = 5min", "5min"),
            ("a = -1", "-1"),
            ("a = ''", ""),
            ("a = 0.9", "0.9"),
        ];
        for (line, value) in cases {
            assert_eq!(set(line), Some(("a".to_owned(), value.to_owned())), "{line}");
        }
        assert_eq!(set("pg_stat.x = 3").unwrap().0, "pg_stat.x");
        for odd in ["a =", "= 1", "a = 'open", "a = b c", "1a = 2", "a == 2"] {
            assert_eq!(parse(odd)[0].entry, GucEntry::Odd, "{odd}");
        }
        assert_eq!(parse("include_dir 'conf.d'")[0].entry, GucEntry::IncludeDirectory("conf.d".into()));
        assert_eq!(parse("Include = 'x'")[0].entry, GucEntry::Include("x".into()));
        assert_eq!(parse("include_if_exists='x'")[0].entry, GucEntry::IncludeIfExists("x".into()));
    }

    #[test]
    fn sizes_and_times_have_the_servers_units() {
        assert_eq!(size("shared_buffers", "128MB"), Some(128 << 20));
        assert_eq!(size("shared_buffers", "16384"), Some(128 << 20));
        assert_eq!(size("checkpoint_flush_after", "32"), Some(256 << 10));
        assert_eq!(size("max_wal_size", "1.5GB"), Some(1536 << 20));
        assert_eq!(size("max_wal_size", "1 GB"), Some(1 << 30));
        assert_eq!(size("max_slot_wal_keep_size", "-1"), None);
        assert_eq!(size("port", "5432"), None);
        assert_eq!(size("max_wal_size", "99999999999TB"), None);
        assert_eq!(seconds("5min"), Some(300));
        assert_eq!(seconds("30"), Some(30));
        assert_eq!(seconds("1h"), Some(3600));
        assert_eq!(seconds("x"), None);
    }

    #[test]
    fn the_sample_of_debians_package_is_read() {
        // postgresql-15, postgresql.conf.sample, without_long_lines.
        let text = "# -----------------------------\n# PostgreSQL configuration file\n\n\
            #data_directory = 'ConfigDir'\t\t# use data in another directory\nport = 5432\t\t\t\t# (change requires restart)\n\
            shared_buffers = 128MB\t\t\t# min 128kB\n#wal_level = replica\t\t\t# minimal, replica, or logical\n\
            log_timezone = 'Etc/UTC'\ndatestyle = 'iso, mdy'\ninclude_dir = 'conf.d'\n";
        let entries: Vec<(u32, GucEntry)> =
            parse(text).into_iter().map(|line| (line.number, line.entry)).collect();
        let set = |name: &str, value: &str| GucEntry::Set { name: name.into(), value: value.into() };
        assert_eq!(
            entries,
            [
                (5, set("port", "5432")),
                (6, set("shared_buffers", "128MB")),
                (8, set("log_timezone", "Etc/UTC")),
                (9, set("datestyle", "iso, mdy")),
                (10, GucEntry::IncludeDirectory("conf.d".into())),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in r"(?s)(.|[\\'=# \n0-9]|include_dir|shared_buffers){0,200}") {
            for line in parse(&text) {
                if let GucEntry::Set { value, .. } = line.entry {
                    size("shared_buffers", &value);
                    seconds(&value);
                }
            }
        }

        #[test]
        fn quoted_values_parse_back(value in "[ -~]{0,40}") {
            let quoted = value.replace('\\', "\\\\").replace('\'', "''");
            prop_assert_eq!(set(&format!("a = '{quoted}' # x")), Some(("a".to_owned(), value)));
        }
    }
}
