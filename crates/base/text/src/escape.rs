//! The only output path for foreign text: paths, names and titles of processes, options, names of
//! devices and groups.
//!
//! Any local user may put line feeds, terminal sequences or shell syntax into such a name, so none
//! is printed verbatim. [`escaped`] is for people and logs; [`shell_quoted`](crate::shell_quoted)
//! is for commands that are offered for pasting. [`unescaped`] is for comparisons and for JSON,
//! which [`json_escaped`] makes safe as a whole. Clippy's `disallowed_methods` refuses the ways of
//! the standard library. Nothing here fails.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter, Write as _};
use std::os::unix::ffi::OsStrExt;

/// Escapes foreign text for messages, tables and logs, on one line whatever it contains.
///
/// Printable text stays as it is, including spaces and all scripts. Anything else is written as
/// follows, and in such a text a backslash becomes `\\`:
///
/// * `\n`, `\r` and `\t`;
/// * `\x1b`: other ASCII control characters, and bytes that are not UTF-8;
/// * `\u{202e}`: other control characters, and characters that are invisible or change the text
///   direction.
///
/// A name without any of these keeps its backslashes, which systemd's units have. So escaping twice
/// changes nothing, and a name that spells out `\x1b` looks like one with that byte. JSON is exact.
///
/// Accepts paths, strings and the kernel's texts; for bytes see [`escaped_bytes`].
///
/// ```
/// use pagekeeper_text::escaped;
/// # use std::path::Path;
/// assert_eq!(escaped("/srv/données/db 1").to_string(), "/srv/données/db 1");
/// assert_eq!(escaped(Path::new("a\n\x1b[2J")).to_string(), r"a\n\x1b[2J");
/// ```
pub fn escaped<T: AsRef<OsStr> + ?Sized>(text: &T) -> EscapedText<'_> {
    EscapedText(text.as_ref().as_bytes())
}

/// Escapes bytes as [`escaped`] does.
pub fn escaped_bytes(text: &[u8]) -> EscapedText<'_> {
    EscapedText(text)
}

/// Text that is printed escaped: see [`escaped`]. Width, alignment and precision apply as for a
/// string.
#[derive(Debug, Clone, Copy)]
pub struct EscapedText<'a>(&'a [u8]);

impl<'a> EscapedText<'a> {
    /// Returns the text, without a copy if nothing had to be escaped.
    pub fn into_cow(self) -> Cow<'a, str> {
        if let Some(plain) = self.plain() {
            return plain.into();
        }
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = self.write_to(&mut text);
        text.into()
    }

    /// Returns the text if there is nothing to escape.
    #[allow(clippy::disallowed_methods, reason = "bytes that are not UTF-8 are escaped then")]
    pub(crate) fn plain(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok().filter(|text| text.chars().all(is_plain))
    }

    fn write_to(self, out: &mut impl fmt::Write) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' => out.write_str(r"\\")?,
                    '\n' => out.write_str(r"\n")?,
                    '\r' => out.write_str(r"\r")?,
                    '\t' => out.write_str(r"\t")?,
                    _ if is_plain(c) => out.write_char(c)?,
                    _ if c.is_ascii() => write!(out, r"\x{:02x}", u32::from(c))?,
                    _ => write!(out, r"\u{{{:x}}}", u32::from(c))?,
                }
            }
            for byte in chunk.invalid() {
                write!(out, r"\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl Display for EscapedText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.plain() {
            Some(plain) => f.pad(plain),
            None if f.width().is_none() && f.precision().is_none() => self.write_to(f),
            None => f.pad(&self.into_cow()),
        }
    }
}

/// Whether a character is shown as it is: it is visible and does not move other text.
///
/// ```
/// use pagekeeper_text::is_plain;
/// assert!(is_plain('é') && is_plain(' ') && !is_plain('\u{9b}') && !is_plain('\u{202e}'));
/// ```
pub fn is_plain(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    !c.is_control()
        && !is_ignorable(c)
        && !matches!(
            c,
            '\u{2028}' | '\u{2029}'           // line and paragraph separator
            | '\u{2800}'                      // a Braille pattern without dots
            | '\u{fff9}'..='\u{fffb}' // annotations
        )
}

/// Whether a character is drawn as nothing where it has no effect: two names may differ in such
/// characters alone, and look the same. This is the property `Default_Ignorable_Code_Point` of
/// Unicode 14 (`DerivedCoreProperties.txt`), including its reserved code points.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}'      // soft hyphen, grapheme joiner, Arabic letter mark
        | '\u{115f}'..='\u{1160}'             // Hangul fillers
        | '\u{17b4}'..='\u{17b5}'             // Khmer inherent vowels
        | '\u{180b}'..='\u{180f}'             // Mongolian variation selectors and vowel separator
        | '\u{200b}'..='\u{200f}'             // zero width, marks of direction
        | '\u{202a}'..='\u{202e}'             // embeddings and overrides
        | '\u{2060}'..='\u{206f}'             // word joiner, invisible operators, isolates
        | '\u{3164}'                          // Hangul filler
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' // variation selectors, byte order mark
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' // halfwidth Hangul filler, reserved
        | '\u{1bca0}'..='\u{1bca3}'           // controls of shorthand
        | '\u{1d173}'..='\u{1d17a}'           // controls of musical notation
        | '\u{e0000}'..='\u{e0fff}'           // tags, variation selectors, reserved
    )
}

/// Escapes what is not [`is_plain`] in JSON on one line. JSON's own rules escape only the control
/// characters of ASCII except DEL. A parser reads the same strings.
///
/// ```
/// use pagekeeper_text::json_escaped;
/// assert_eq!(json_escaped("[\"é\", \"a\u{9b}31m\"]"), r#"["é", "a\u009b31m"]"#);
/// ```
pub fn json_escaped(json: &str) -> Cow<'_, str> {
    if json.chars().all(is_plain) {
        return json.into();
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_plain(c) {
            text.push(c);
            continue;
        }
        // A character that does not fit into 16 bits becomes two escapes.
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String can't fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text.into()
}

/// Returns foreign text as it is, with U+FFFD for invalid UTF-8: for JSON strings, whose writer
/// escapes it, and for comparing and parsing. Never use it for a message, or for a label of
/// metrics, whose writer escapes only line ends and quotes.
#[allow(clippy::disallowed_methods, reason = "the one place that may")]
pub fn unescaped<T: AsRef<OsStr> + ?Sized>(text: &T) -> Cow<'_, str> {
    text.as_ref().to_string_lossy()
}

/// Returns bytes as [`unescaped`] does.
pub fn unescaped_bytes(text: &[u8]) -> Cow<'_, str> {
    unescaped(OsStr::from_bytes(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{is_safe, nasty};

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in [
            "/var/lib/mysql",
            "",
            "with space",
            r"dev-disk\x2dby.slice",
            "données",
            "データ",
            "e\u{301}",
            "🐬",
        ] {
            assert_eq!(escaped(name).to_string(), name);
            assert!(matches!(escaped(name).into_cow(), Cow::Borrowed(_)));
        }
    }

    #[test]
    fn control_characters_and_line_breaks_are_spelled_out() {
        for (bytes, shown) in [
            (&b"a\nb\r\tc"[..], r"a\nb\r\tc"),
            (b"\x1b[2J\x07\x00\x7f", r"\x1b[2J\x07\x00\x7f"),
            (b"\xff\xfe.ibd", r"\xff\xfe.ibd"),
            ("\u{9b}31m \u{85}".as_bytes(), r"\u{9b}31m \u{85}"),
            ("gpj.\u{202e}x\u{2069}\u{2028}\u{200b}".as_bytes(), r"gpj.\u{202e}x\u{2069}\u{2028}\u{200b}"),
            (b"C:\\dir\n", r"C:\\dir\n"),
        ] {
            assert_eq!(escaped_bytes(bytes).to_string(), shown);
        }
    }

    #[test]
    fn width_counts_visible_columns() {
        assert_eq!(format!("{:<6}|", escaped("a\n")), r"a\n   |");
        assert_eq!(format!("{:>4}|", escaped("ab")), "  ab|");
    }

    /// Two names that look the same on a terminal have to differ in the output.
    #[test]
    fn invisible_characters_are_spelled_out() {
        let ranges = [
            0xad..=0xad,
            0x34f..=0x34f,
            0x61c..=0x61c,
            0x115f..=0x1160,
            0x17b4..=0x17b5,
            0x180b..=0x180f,
            0x200b..=0x200f,
            0x2028..=0x202e,
            0x2060..=0x206f,
            0x2800..=0x2800,
            0x3164..=0x3164,
            0xfe00..=0xfe0f,
            0xfeff..=0xfeff,
            0xffa0..=0xffa0,
            0xfff0..=0xfffb,
            0x1bca0..=0x1bca3,
            0x1d173..=0x1d17a,
            0xe0000..=0xe0fff,
        ];
        for code in ranges.into_iter().flatten() {
            let name = format!("ib{}log", char::from_u32(code).unwrap());
            assert_eq!(escaped(&name).to_string(), format!(r"ib\u{{{code:x}}}log"));
            assert!(crate::shell_quoted(&name).to_string().is_ascii(), "{code:x}");
        }
    }

    proptest! {
        #[test]
        fn escaped_text_is_one_safe_line_and_escaping_it_again_changes_nothing(bytes in nasty()) {
            let once = escaped_bytes(&bytes).to_string();
            prop_assert!(is_safe(&once), "{once:?}");
            prop_assert_eq!(escaped(&once).to_string(), &*once);
            prop_assert_eq!(escaped_bytes(&bytes).into_cow(), &*once);
        }

        #[test]
        fn names_that_need_escapes_are_distinguished(a in nasty(), b in nasty()) {
            let needs = |bytes: &[u8]| escaped_bytes(bytes).plain().is_none();
            if needs(&a) && needs(&b) && a != b {
                prop_assert_ne!(escaped_bytes(&a).to_string(), escaped_bytes(&b).to_string());
            }
        }
    }
}
