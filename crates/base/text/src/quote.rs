//! Words of a command line that is offered for pasting.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter, Write as _};
use std::os::unix::ffi::OsStrExt;

use crate::escape::{escaped_bytes, is_plain};

/// Quotes foreign text as one word of a command line that is offered for pasting.
///
/// A word of letters, digits and `_./:@%+=,-#` that starts with neither `#` nor `=` stays as it is;
/// others are put in POSIX single quotes. Text that [`escaped`](crate::escaped) would change can't
/// be pasted or read safely either. Such a word becomes `$'…'` with octal escapes, which POSIX has
/// since 2024. bash, zsh, ksh and busybox know them; dash (0.5.12) and fish do not. To those it is
/// a word with a dollar sign and backslashes: the wrong name, but nothing is executed.
///
/// ```
/// use pagekeeper_text::shell_quoted;
/// assert_eq!(shell_quoted("/var/lib/mysql").to_string(), "/var/lib/mysql");
/// assert_eq!(shell_quoted("/srv/db$(id>x)").to_string(), "'/srv/db$(id>x)'");
/// assert_eq!(shell_quoted("it's\n").to_string(), r"$'it\047s\012'");
/// ```
pub fn shell_quoted<T: AsRef<OsStr> + ?Sized>(word: &T) -> ShellQuoted<'_> {
    ShellQuoted(word.as_ref().as_bytes())
}

/// A word that is printed quoted for a shell: see [`shell_quoted`].
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
                        // `\'` would end the quotes for the history of an interactive bash, which
                        // then expands text after an exclamation mark.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::{is_safe, nasty};

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
