//! The messages of the page on troubleshooting: each is in the code, so that a user who searches
//! for it finds the explanation.
//!
//! A message is the first cell of a table's row. `…` stands for text that the code inserts, `;`
//! separates several messages. Messages of others are in italics, and `(in …)` or `(over …)` at the
//! end names the place where the message is seen.

use std::path::Path;

use super::files_below;

/// Shorter pieces are too common to search for.
const PIECE_CHARS_MIN: usize = 6;

/// Returns each piece of a message that is in no source file.
pub(super) fn unknown(root: &Path) -> Vec<String> {
    let mut sources = String::new();
    collect(&root.join("crates"), &mut sources);
    let sources = plain(&sources);
    let page = std::fs::read_to_string(root.join("docs/src/troubleshooting.md")).expect("a page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let messages = rows.filter(|cell| !cell.starts_with('*') && !matches!(*cell, "message" | "what"));
    let pieces = messages.flat_map(|cell| {
        let seen = cell.rfind(" (in ").or_else(|| cell.rfind(" (over ")).unwrap_or(cell.len());
        cell[..seen].split(['…', ';', '`'])
    });
    let pieces = pieces.map(|piece| piece.trim_matches([' ', '.', ':', ',', '"', '(', ')']));
    let long = pieces.filter(|piece| piece.chars().count() >= PIECE_CHARS_MIN);
    long.filter(|piece| !sources.contains(*piece)).map(str::to_owned).collect()
}

/// Appends all Rust below a directory, and all tables of texts.
pub(super) fn collect(directory: &Path, all: &mut String) {
    for path in ["rs", "toml"].into_iter().flat_map(|kind| files_below(directory, kind)) {
        all.push_str(&std::fs::read_to_string(path).expect("a source"));
    }
}

/// Returns source text with strings as printed: on one line, quotes without a backslash.
fn plain(source: &str) -> String {
    let mut lines = source.split("\\\n");
    let mut plain = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        plain.push_str(line.trim_start());
    }
    plain.replace("\\\"", "\"")
}

#[test]
fn strings_are_as_they_are_printed() {
    assert_eq!(plain("\"a \\\"b\\\" \\\n      c\""), "\"a \"b\" c\"");
}
