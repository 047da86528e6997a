//! The only output path for foreign text: paths, names and titles of processes, options, names of devices and
//! groups.
//!
//! Any local user may put line feeds, terminal sequences or shell syntax into such a name, so none is printed
//! verbatim. [`escaped`] is for people and logs, and [`shell_quoted`] for commands that are offered for pasting.
//! [`unescaped`] is for JSON, whose writer escapes by [`is_plain`], and for comparisons. Clippy's
//! `disallowed_methods` refuses the ways of the standard library. Nothing here fails.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter, Write as _};
use std::os::unix::ffi::OsStrExt;

/// Escapes foreign text for messages, tables and logs, on one line whatever it contains.
///
/// Printable text stays as it is, including spaces and all scripts. Anything else is written as follows, and in
/// such a text a backslash becomes `\\`:
///
/// * `\n`, `\r` and `\t`;
/// * `\x1b`: other ASCII control characters, and bytes that are not UTF-8;
/// * `\u{202e}`: other control characters, and characters that are invisible or change the text direction.
///
/// A name without any of these keeps its backslashes, which systemd's units have. So escaping twice changes
/// nothing, and a name that spells out `\x1b` looks like one with that byte. JSON is exact.
///
/// Accepts paths, strings and the kernel's texts; for bytes see [`escaped_bytes`].
///
/// ```
/// use pagekeeper_kernel::text::escaped;
/// # use std::path::Path;
/// assert_eq!(escaped("/srv/données/db 1").to_string(), "/srv/données/db 1");
/// assert_eq!(escaped(Path::new("a\n\x1b[2J")).to_string(), r"a\n\x1b[2J");
/// ```
pub fn escaped<T: AsRef<OsStr> + ?Sized>(text: &T) -> Escaped<'_> {
    Escaped(text.as_ref().as_bytes())
}

/// Escapes bytes as [`escaped`] does.
pub fn escaped_bytes(text: &[u8]) -> Escaped<'_> {
    Escaped(text)
}

/// See [`escaped`]. Width, alignment and precision apply as for a string.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(&'a [u8]);

impl<'a> Escaped<'a> {
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
    #[allow(clippy::disallowed_methods, reason = "what is not UTF-8 is escaped then")]
    fn plain(self) -> Option<&'a str> {
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

impl Display for Escaped<'_> {
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
/// use pagekeeper_kernel::text::is_plain;
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

/// Whether a character is drawn as nothing where it has no effect: two names may differ in such characters alone,
/// and look the same. This is the property `Default_Ignorable_Code_Point` of Unicode 14
/// (`DerivedCoreProperties.txt`), including its reserved code points.
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

/// Quotes foreign text as one word of a command line that is offered for pasting.
///
/// A word of letters, digits and `_./:@%+=,-#` that starts with neither `#` nor `=` stays as it is; others are put
/// in POSIX single quotes. Text that [`escaped`] would change can't be pasted or read safely either. Such a word
/// becomes `$'…'` with octal escapes, which POSIX has since 2024. bash, zsh, ksh and busybox know them; dash
/// (0.5.12) and fish do not. To those it is a word with a dollar sign and backslashes: the wrong name, but nothing
/// is executed.
///
/// ```
/// use pagekeeper_kernel::text::shell_quoted;
/// assert_eq!(shell_quoted("/var/lib/mysql").to_string(), "/var/lib/mysql");
/// assert_eq!(shell_quoted("/srv/db$(id>x)").to_string(), "'/srv/db$(id>x)'");
/// assert_eq!(shell_quoted("it's\n").to_string(), r"$'it\047s\012'");
/// ```
pub fn shell_quoted<T: AsRef<OsStr> + ?Sized>(word: &T) -> ShellQuoted<'_> {
    ShellQuoted(word.as_ref().as_bytes())
}

/// See [`shell_quoted`].
#[derive(Debug, Clone, Copy)]
pub struct ShellQuoted<'a>(&'a [u8]);

impl Display for ShellQuoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bare = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-#".contains(c);
        let starts_bare = |word: &str| !word.starts_with(['#', '=']);
        match escaped_bytes(self.0).plain() {
            Some(word) if !word.is_empty() && starts_bare(word) && word.chars().all(bare) => {
                f.write_str(word)
            }
            Some(word) => write!(f, "'{}'", word.replace('\'', r"'\''")),
            None => {
                f.write_str("$'")?;
                for chunk in self.0.utf8_chunks() {
                    for c in chunk.valid().chars() {
                        // `\'` would end the quotes for the history of an interactive bash, which then expands
                        // text after an exclamation mark.
                        match c {
                            '\\' => f.write_str(r"\\")?,
                            _ if is_plain(c) && c != '\'' && c != '!' => f.write_char(c)?,
                            _ => octal(f, c.encode_utf8(&mut [0; 4]).as_bytes())?,
                        }
                    }
                    octal(f, chunk.invalid())?;
                }
                f.write_str("'")
            }
        }
    }
}

fn octal(f: &mut Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, r"\{byte:03o}"))
}

/// Returns foreign text as it is, with U+FFFD for invalid UTF-8: for JSON strings, whose writer escapes it, and
/// for comparing and parsing. Never use it for a message, or for a label of metrics, whose writer escapes only
/// line ends and quotes.
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
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// Byte strings with many special cases: control characters, quotes, shell syntax, unusual Unicode.
    fn nasty() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<u8>().prop_map(|byte| vec![byte]),
            (0_u8..0x20).prop_map(|byte| vec![byte]),
            prop::sample::select(vec![
                "'", "\"", "\\", "$(id>x)", "`id`", "!!", " ", "*", "~", "#", "a", "\\'", "x1b"
            ])
            .prop_map(|text| text.as_bytes().to_vec()),
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            prop::sample::select(vec![
                '\u{85}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{200b}', 'é'
            ])
            .prop_map(|c| c.to_string().into_bytes()),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    fn is_safe(text: &str) -> bool {
        !text.chars().any(|c| {
            c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
        })
    }

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
    fn what_steers_a_terminal_or_forges_a_line_is_spelled_out() {
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
    fn width_counts_what_is_shown() {
        assert_eq!(format!("{:<6}|", escaped("a\n")), r"a\n   |");
        assert_eq!(format!("{:>4}|", escaped("ab")), "  ab|");
    }

    #[test]
    fn words_without_syntax_are_not_quoted() {
        for (word, quoted) in [
            ("/var/lib/mysql-8.0", "/var/lib/mysql-8.0"),
            ("", "''"),
            ("~root", "'~root'"),
            ("#redo", "'#redo'"),
            ("/d/#redo", "/d/#redo"),
            ("it's", r"'it'\''s'"),
            ("a b", "'a b'"),
            ("\u{202e}!", r"$'\342\200\256\041'"),
        ] {
            assert_eq!(shell_quoted(word).to_string(), quoted);
        }
    }

    /// Two names that look the same on a terminal have to differ in the output.
    #[test]
    fn what_cannot_be_seen_is_spelled_out() {
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
            assert!(shell_quoted(&name).to_string().is_ascii(), "{code:x}");
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

    /// Passes words to a shell, and returns each as the shell gives it back, followed by a NUL.
    fn shell(name: &str, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let quoted: Vec<_> =
            words.iter().map(|word| shell_quoted(OsStr::from_bytes(word)).to_string()).collect();
        assert!(quoted.iter().all(|word| is_safe(word)), "{quoted:?}");
        let script = format!("printf '%s\\0' {}", quoted.join(" "));
        let output = Command::new(name).args(["-c", &script]).env("LC_ALL", "C.UTF-8").output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        output.stdout.strip_suffix(b"\0").unwrap().split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_shell_gives_back_every_word(words in prop::collection::vec(nasty(), 1..20)) {
            // No word of a command line and no path contains a NUL.
            let words: Vec<Vec<u8>> =
                words.into_iter().map(|word| word.into_iter().filter(|byte| *byte != 0).collect()).collect();
            prop_assert_eq!(shell("bash", &words), &*words);
            // Any POSIX shell knows the plain quotes.
            let plain = |word: &&Vec<u8>| escaped_bytes(word).plain().is_some();
            let plain: Vec<Vec<u8>> = words.iter().filter(plain).cloned().collect();
            if !plain.is_empty() {
                prop_assert_eq!(shell("sh", &plain), plain);
            }
        }
    }
}
