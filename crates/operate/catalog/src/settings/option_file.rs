//! The option files of `MariaDB` and `MySQL`, as their `mysys/my_default.c` reads them: text in,
//! lines out, no I/O.
//!
//! Never fails: a line that a server would refuse is [`OptionFileEntry::Odd`].

/// One line with content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionFileLine {
    /// The line number, from 1.
    pub number: u32,
    /// The content.
    pub entry: OptionFileEntry,
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionFileEntry {
    /// `[group]`.
    Group(String),
    /// `name=value`, or `name` alone. The value has no quotes or escapes.
    Set {
        /// The name as written.
        name: String,
        /// `None` without `=`.
        value: Option<String>,
    },
    /// `!include FILE`.
    Include(String),
    /// `!includedir DIRECTORY`.
    IncludeDirectory(String),
    /// A line that no server understands; a server would refuse to start with it.
    Odd,
}

/// Parses an option file.
///
/// ```
/// use pagekeeper_catalog::settings::option_file::{OptionFileEntry, parse};
///
/// let lines = parse("[mysqld]\nsync-binlog = \"1\" # each commit\n");
/// assert_eq!(lines[0].entry, OptionFileEntry::Group("mysqld".into()));
/// assert_eq!(lines[1].number, 2);
/// assert_eq!(lines[1].entry, OptionFileEntry::Set { name: "sync-binlog".into(), value: Some("1".into()) });
/// ```
pub fn parse(text: &str) -> Vec<OptionFileLine> {
    lines(text).collect()
}

/// Parses an option file line by line, as [`parse`] does.
pub(super) fn lines(text: &str) -> impl Iterator<Item = OptionFileLine> {
    // Files from Windows begin with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut in_group = false;
    (1_u32..).zip(text.lines()).filter_map(move |(number, line)| {
        let entry = parse_entry(line.trim(), in_group)?;
        in_group |= matches!(entry, OptionFileEntry::Group(_));
        Some(OptionFileLine { number, entry })
    })
}

fn parse_entry(line: &str, in_group: bool) -> Option<OptionFileEntry> {
    match line.chars().next()? {
        '#' | ';' => return None,
        '!' => return Some(parse_directive(&line[1..])),
        '[' => {
            let group = line[1..].split_once(']').map(|(group, _)| group.trim_end().to_owned());
            return Some(group.map_or(OptionFileEntry::Odd, OptionFileEntry::Group));
        }
        _ => {}
    }
    if !in_group {
        return Some(OptionFileEntry::Odd);
    }
    let said = without_comment(line).trim_end();
    let (name, value) = match said.split_once('=') {
        Some((name, value)) => (name.trim_end(), Some(unquote(value.trim()))),
        None => (said, None),
    };
    Some(if name.is_empty() {
        OptionFileEntry::Odd
    } else {
        OptionFileEntry::Set { name: name.to_owned(), value }
    })
}

fn parse_directive(words: &str) -> OptionFileEntry {
    let argument = |name: &str| {
        let rest = words.strip_prefix(name)?;
        rest.starts_with(char::is_whitespace).then(|| rest.trim().to_owned()).filter(|path| !path.is_empty())
    };
    // `!includedir` comes first, since it begins with `!include`.
    if let Some(directory) = argument("includedir") {
        return OptionFileEntry::IncludeDirectory(directory);
    }
    argument("include").map_or(OptionFileEntry::Odd, OptionFileEntry::Include)
}

/// Cuts off a comment in the line: a `#` outside quotes.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match (c, quote) {
            ('\'' | '"', None) if !escaped => quote = Some(c),
            (_, Some(open)) if c == open && !escaped => quote = None,
            ('#', None) => return &line[..at],
            _ => {}
        }
        escaped = quote.is_some() && c == '\\' && !escaped;
    }
    line
}

/// Returns a value without its surrounding quotes and with its escapes resolved.
fn unquote(value: &str) -> String {
    let inner = ['"', '\''].into_iter().find_map(|quote| {
        let inner = value.strip_prefix(quote)?.strip_suffix(quote);
        inner.filter(|_| value.len() >= 2)
    });
    let mut out = String::with_capacity(value.len());
    let mut chars = inner.unwrap_or(value).chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('b') => out.push('\u{8}'),
            Some('s') => out.push(' '),
            Some(same @ ('"' | '\'' | '\\')) => out.push(same),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

/// Returns an option as a server understands it: its full name and its value.
///
/// `loose-` is removed, `skip-X` and `disable-X` also mean `X=OFF`, `enable-X` means `X=ON`, and an
/// option without a value is `ON`. Names are in small letters with `_`. Returns nothing for an
/// option of another kind (`maximum-X`).
pub(crate) fn option(name: &str, value: Option<&str>) -> Vec<(String, String)> {
    let name = super::normalized(name);
    let name = name.strip_prefix("loose_").unwrap_or(&name);
    if name.is_empty() || name.starts_with("maximum_") {
        return Vec::new();
    }
    let mut out = vec![(name.to_owned(), value.unwrap_or("ON").to_owned())];
    for (prefix, means) in [("skip_", "OFF"), ("disable_", "OFF"), ("enable_", "ON")] {
        if let Some(rest) = name.strip_prefix(prefix)
            && !rest.is_empty()
        {
            out.push((rest.to_owned(), means.to_owned()));
        }
    }
    out
}

/// Parses a size as these servers write it: a number with `K`, `M`, `G`, `T`, `P` or `E`, in powers
/// of 1024.
pub fn size(value: &str) -> Option<u64> {
    let value = value.trim();
    let (number, power) = match value.char_indices().last()? {
        (at, c) if c.is_ascii_alphabetic() => {
            (&value[..at], u32::try_from("KMGTPE".find(c.to_ascii_uppercase())?).ok()? + 1)
        }
        _ => (value, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1024_u64.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sets(text: &str) -> Vec<(u32, String, Option<String>)> {
        parse(text)
            .into_iter()
            .filter_map(|line| match line.entry {
                OptionFileEntry::Set { name, value } => Some((line.number, name, value)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn values_are_read_as_the_server_reads_them() {
        let cases = [
            ("x=1", Some("1")),
            ("x = 1 # one", Some("1")),
            ("x", None),
            ("x=", Some("")),
            ("x='a # b' # c", Some("a # b")),
            (r#"x="a \"b\" \\ \s""#, Some(r#"a "b" \  "#)),
            (r"x=C:\new", Some("C:\new")),
            (r"x=a\qb\", Some(r"a\qb\")),
            ("x=\"", Some("\"")),
            ("x='a\"", Some("'a\"")),
            ("x=a=b", Some("a=b")),
        ];
        for (line, value) in cases {
            let found = sets(&format!("[mysqld]\n{line}\n"));
            assert_eq!(found, [(2, "x".to_owned(), value.map(str::to_owned))], "{line}");
        }
    }

    #[test]
    fn directives_groups_and_odd_lines_are_distinguished() {
        let text = "\u{feff}stray=1\n[mysqld ]  \n; note\n!includedir /a b/\n  !include\t/c.cnf\n!load x\n[open\n=1\n";
        let entries: Vec<OptionFileEntry> = parse(text).into_iter().map(|line| line.entry).collect();
        assert_eq!(
            entries,
            [
                OptionFileEntry::Odd,
                OptionFileEntry::Group("mysqld".into()),
                OptionFileEntry::IncludeDirectory("/a b/".into()),
                OptionFileEntry::Include("/c.cnf".into()),
                OptionFileEntry::Odd,
                OptionFileEntry::Odd,
                OptionFileEntry::Odd,
            ]
        );
    }

    #[test]
    fn prefixes_of_option_names_are_resolved() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(option("loose-Innodb-X", Some("3")), [pair("innodb_x", "3")]);
        assert_eq!(option("skip-log-bin", None), [pair("skip_log_bin", "ON"), pair("log_bin", "OFF")]);
        assert_eq!(option("loose_disable-x", None), [pair("disable_x", "ON"), pair("x", "OFF")]);
        assert_eq!(option("enable-x", None)[1], pair("x", "ON"));
        assert_eq!(option("maximum-x", Some("1")), []);
        assert_eq!(option("skip_", None), [pair("skip_", "ON")]);
    }

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(size("96M"), Some(96 << 20));
        assert_eq!(size(" 1g "), Some(1 << 30));
        assert_eq!(size("12"), Some(12));
        for bad in ["", "M", "1X", "-1", "99999999999E", "1 M", "é"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_of_debians_package_is_read() {
        // mariadb-server 10.11, /etc/mysql/mariadb.conf.d/50-server.cnf, without_long_lines.
        let text = "# this is read by the standalone daemon and embedded servers\n[server]\n\n[mysqld]\n\n\
            pid-file                = /run/mysqld/mysqld.pid\nbasedir                 = /usr\n\
            #datadir                 = /var/lib/mysql\n\n# slow down\n#skip-name-resolve\n\
            bind-address            = 127.0.0.1\n\nexpire_logs_days        = 10\n\n[mariadb-10.11]\n";
        assert_eq!(
            sets(text),
            [
                (6, "pid-file".to_owned(), Some("/run/mysqld/mysqld.pid".to_owned())),
                (7, "basedir".to_owned(), Some("/usr".to_owned())),
                (12, "bind-address".to_owned(), Some("127.0.0.1".to_owned())),
                (14, "expire_logs_days".to_owned(), Some("10".to_owned())),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(?s).{0,400}") {
            for line in parse(&text) {
                if let OptionFileEntry::Set { name, value } = line.entry {
                    option(&name, value.as_deref());
                    size(value.as_deref().unwrap_or_default());
                }
            }
        }

        #[test]
        fn text_like_option_files_is_read(text in r#"([\[\]!#;='"\\ \n]|include|includedir|mysqld|x){0,80}"#) {
            let lines = parse(&text);
            prop_assert!(lines.is_sorted_by(|a, b| a.number < b.number));
        }

        #[test]
        fn quoted_values_parse_back(value in "[ -~]{0,40}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let found = sets(&format!("[g]\nx=\"{quoted}\"\n"));
            prop_assert_eq!(found[0].2.as_deref(), Some(value.as_str()));
        }
    }
}
