//! Text for people in a fixed number of columns.
//!
//! Invariants: a figure and its unit stay on one line. A command in backticks is one word, whatever
//! its length, and stays unchanged: another space or line end in it would make it another command,
//! on another path. A quoted backtick or space inside it belongs to the command.

use std::fmt;

use crate::escaped;

/// Width of the text in columns.
const LINE_COLUMNS: usize = 80;
/// The column where the text beside a label starts.
pub const LABEL_COLUMNS: usize = 14;

/// Writes `label`, then `text` wrapped beside it.
pub fn labelled(f: &mut impl fmt::Write, label: &str, text: &str) -> fmt::Result {
    wrapped(f, &format!("  {label:<width$}", width = LABEL_COLUMNS - 2), LABEL_COLUMNS, text)
}

/// Writes `first`, then `text` wrapped into 80 columns, with further lines indented by `indent`. A
/// command in backticks stays whole.
pub fn wrapped(f: &mut impl fmt::Write, first: &str, indent: usize, text: &str) -> fmt::Result {
    wrapped_at(LINE_COLUMNS, f, first, indent, text)
}

/// Writes a text as [`wrapped`] does, into this many columns.
pub fn wrapped_at(
    columns: usize,
    f: &mut impl fmt::Write,
    first: &str,
    indent: usize,
    text: &str,
) -> fmt::Result {
    let mut column = first.chars().count();
    f.write_str(first)?;
    let mut at_start = true;
    let mut words = TextWords(text).peekable();
    while let Some(word) = words.next() {
        // A figure and its unit stay together.
        let unit = words.next_if(|next| ends_in_figure(word) && is_unit(next));
        let width = word.chars().count() + unit.map_or(0, |unit| 1 + unit.chars().count());
        if !at_start && column + 1 + width > columns {
            write!(f, "\n{:indent$}", "")?;
            column = indent;
            at_start = true;
        }
        if !at_start {
            f.write_char(' ')?;
            column += 1;
        }
        // Names in it were escaped at their source. Anything that was not is at least unable to
        // control a terminal.
        write!(f, "{}", escaped(word))?;
        if let Some(unit) = unit {
            write!(f, " {unit}")?;
        }
        column += width;
        at_start = false;
    }
    f.write_char('\n')
}

fn ends_in_figure(word: &str) -> bool {
    let word = word.trim_start_matches(['(', '<', '>']);
    !word.is_empty() && word.chars().all(|letter| letter.is_ascii_digit() || matches!(letter, '.' | ','))
}

/// Whether a word is a unit, with any punctuation after it.
fn is_unit(word: &str) -> bool {
    let word = word.trim_end_matches([')', ',', ';', '.', ':']);
    let (word, _) = word.split_once('/').unwrap_or((word, ""));
    matches!(word, "B" | "KiB" | "MiB" | "GiB" | "TiB" | "PiB" | "EiB" | "s" | "ms" | "µs" | "%")
}

/// An iterator over the words of a text. A command in backticks is one word.
struct TextWords<'a>(&'a str);

impl<'a> Iterator for TextWords<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let mut end = 0;
        while let Some(c) = text[end..].chars().next().filter(|c| !c.is_whitespace()) {
            let begins = text[..end].chars().all(|before| matches!(before, '(' | '"'));
            end += c.len_utf8();
            if c == '`' && begins {
                end += command_end(&text[end..]).unwrap_or(0);
            }
        }
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}

/// Returns the length of a command including the backtick that ends it. A backtick in quotes ends
/// nothing.
fn command_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\'' => quoted = !quoted,
            // Outside of quotes a backslash only precedes a quote.
            '\\' if !quoted => drop(characters.next()),
            '`' if !quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell_quoted;

    #[test]
    fn a_figure_and_its_unit_stay_on_one_line() {
        let mut text = String::new();
        let before = "x".repeat(71);
        wrapped(&mut text, "", 2, &format!("{before} (64.0 MiB), 3 MiB/s of 10 files")).unwrap();
        assert_eq!(text, format!("{before}\n  (64.0 MiB), 3 MiB/s of 10 files\n"));
    }

    #[test]
    fn commands_stay_as_they_are_wherever_a_line_ends() {
        for path in
            ["/srv/a  b", "/srv/it's  `id`", "/srv/x\u{202e}y  z", "/srv/back\\slash  '", "/srv/plain"]
        {
            let command = format!("`pagekeeper warm {}`", shell_quoted(path));
            for before in 0..2 * LINE_COLUMNS {
                let mut text = String::new();
                let prose = "x ".repeat(before);
                wrapped(&mut text, "", 2, &format!("{prose}{command}, and a  few more   words")).unwrap();
                assert!(text.lines().any(|line| line.contains(&command)), "{command} in {text}");
                assert!(text.ends_with("words\n") && !text.contains("more  "), "{text}");
            }
        }
    }

    #[test]
    fn an_unpaired_backtick_is_an_ordinary_character() {
        let mut text = String::new();
        wrapped(&mut text, "", 2, "file a`b  it's ` and   more").unwrap();
        assert_eq!(text, "file a`b it's ` and more\n");
    }
}
