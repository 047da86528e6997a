//! JSON that people may look at, on a terminal or in a journal.
//!
//! Names in it come from others: [`json_escaped`] makes them safe.

use std::io::{self, Write};
use std::path::Path;

use pagekeeper_text::{json_escaped, unescaped};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Writes a value on one line, without a line end.
pub(crate) fn write(out: &mut impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Shown))
}

/// Returns the same as text.
pub(crate) fn text(value: &impl Serialize) -> serde_json::Result<String> {
    let mut out = Vec::new();
    write(&mut out, value)?;
    String::from_utf8(out).map_err(|error| serde_json::Error::io(io::Error::other(error)))
}

/// Serializes a path as text, for serde's `serialize_with`.
pub(crate) fn path<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&unescaped(path))
}

/// Escapes more than a parser needs.
struct Shown;

impl Formatter for Shown {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        out.write_all(json_escaped(fragment).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_parse_back() {
        for (name, shown) in [
            ("/srv/données/データ 🐬 \"x\"\\", "\"/srv/données/データ 🐬 \\\"x\\\"\\\\\""),
            ("a\u{9b}31m\u{7f}\u{85}", "\"a\\u009b31m\\u007f\\u0085\""),
            ("\u{202e}gpj\u{2066}\u{2028}", "\"\\u202egpj\\u2066\\u2028\""),
            ("\u{1b}[2J\n\u{e0041}", "\"\\u001b[2J\\n\\udb40\\udc41\""),
        ] {
            assert_eq!(text(&name).unwrap(), shown);
            assert_eq!(serde_json::from_str::<String>(shown).unwrap(), name);
        }
        let keys = std::collections::BTreeMap::from([("k\u{9b}", ["v\u{7f}"])]);
        assert_eq!(text(&keys).unwrap(), "{\"k\\u009b\":[\"v\\u007f\"]}");
    }
}
