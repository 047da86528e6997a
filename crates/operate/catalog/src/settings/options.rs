//! The `OPTIONS-NNNNNN` files that `RocksDB` writes beside its data when it opens and when an
//! option changes: text in, settings out, no I/O.
//!
//! Never fails: a line that can't be parsed is left out. So is a column family whose name has more
//! than 256 bytes.

use super::limits::SETTING_NAME_BYTES_MAX;

/// One option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RocksDbOption {
    /// The line number, from 1.
    pub line: u32,
    /// The column family it belongs to; `None` for the database.
    pub family: Option<String>,
    /// The name as written.
    pub name: String,
    /// The value as written.
    pub value: String,
}

/// Parses an options file: its sections `[Version]`, `[DBOptions]` and `[CFOptions "…"]`.
///
/// ```
/// use pagekeeper_catalog::settings::options::parse;
///
/// let found = parse("[DBOptions]\n  bytes_per_sync=0\n[CFOptions \"a\"]\n  num_levels=7\n");
/// assert_eq!((found[0].name.as_str(), found[0].value.as_str(), found[0].line), ("bytes_per_sync", "0", 2));
/// assert_eq!(found[1].family.as_deref(), Some("a"));
/// ```
pub fn parse(text: &str) -> Vec<RocksDbOption> {
    entries(text).collect()
}

/// Parses an options file line by line, as [`parse`] does.
pub(super) fn entries(text: &str) -> impl Iterator<Item = RocksDbOption> {
    let mut section = OptionsSection::Other;
    (1_u32..).zip(text.lines()).filter_map(move |(line, text)| {
        let text = without_comment(text).trim();
        if let Some(title) = text.strip_prefix('[') {
            section = title.strip_suffix(']').map_or(OptionsSection::Other, parse_title);
            return None;
        }
        let (name, value) = text.split_once('=')?;
        let family = match &section {
            OptionsSection::Database => None,
            OptionsSection::Family(name) => Some(name.clone()),
            OptionsSection::Other => return None,
        };
        Some(RocksDbOption { line, family, name: name.trim().to_owned(), value: value.trim().to_owned() })
    })
}

/// The subject of a section.
enum OptionsSection {
    /// The database, or its version.
    Database,
    /// A column family.
    Family(String),
    /// Anything else.
    Other,
}

fn parse_title(title: &str) -> OptionsSection {
    let (kind, argument) = title.trim().split_once(char::is_whitespace).unwrap_or((title.trim(), ""));
    match kind {
        "Version" | "DBOptions" => OptionsSection::Database,
        "CFOptions" => {
            let name = argument.trim().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            // Each of the family's options carries its name.
            let name = name.filter(|name| name.len() <= SETTING_NAME_BYTES_MAX);
            name.map_or(OptionsSection::Other, |name| OptionsSection::Family(name.to_owned()))
        }
        _ => OptionsSection::Other,
    }
}

/// Returns a line up to its comment: an unescaped `#`.
fn without_comment(line: &str) -> &str {
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        if c == '#' && before != '\\' {
            return &line[..at];
        }
        before = c;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_of_rocksdb_7_8_is_read() {
        // Written by db_bench of Debian's rocksdb-tools 7.8.3, without_long_lines.
        let text = "# This is a RocksDB option file.\n#\n# For detailed file format spec, please refer to\n\n\
            [Version]\n  rocksdb_version=7.8.3\n  options_file_version=1.1\n\n[DBOptions]\n  \
            max_background_flushes=-1\n  bytes_per_sync=0\n  wal_dir=/var/lib/db\n\n\n[CFOptions \"default\"]\n  \
            bottommost_compression=kDisableCompressionOption\n  \
            compression_opts={max_dict_buffer_bytes=0;level=32767;}\n[TableOptions/BlockBasedTable \"default\"]\n  \
            block_size=4096\n";
        let found = parse(text);
        let get = |name: &str| found.iter().find(|entry| entry.name == name);
        assert_eq!(get("rocksdb_version").unwrap().value, "7.8.3");
        assert_eq!(
            (get("bytes_per_sync").unwrap().line, &get("bytes_per_sync").unwrap().family),
            (11, &None)
        );
        assert_eq!(get("compression_opts").unwrap().family.as_deref(), Some("default"));
        assert_eq!(get("compression_opts").unwrap().value, "{max_dict_buffer_bytes=0;level=32767;}");
        assert_eq!(get("block_size"), None);
    }

    #[test]
    fn odd_lines_are_left_out() {
        let found =
            parse("x=1\n[DBOptions\ny=2\n[CFOptions default]\nz=3\n[DBOptions]\nnothing\na=b\\#c#d\n");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].value.as_str()), ("a", "b\\#c"));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in r##"(?s)(.|[\[\]="# \n]|DBOptions|CFOptions){0,200}"##) {
            let lines = parse(&text);
            prop_assert!(lines.is_sorted_by(|a, b| a.line < b.line));
        }
    }
}
