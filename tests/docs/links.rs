//! Links of the documents: each relative one leads to a file that is there, and each `#anchor` to a
//! heading of it.

use std::path::Path;

use super::files_below;

/// Documents beside the book.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "bench/README.md",
];

/// Returns a sentence for each link that leads nowhere.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let book = root.join("docs/src");
    let documents = DOCUMENTS.iter().map(|name| root.join(name)).chain(files_below(&book, "md"));
    let mut wrong = Vec::new();
    for page in documents {
        let text = std::fs::read_to_string(&page).expect("a document");
        for target in targets(&text) {
            if let Some(reason) = fault(&page, &target, &book) {
                wrong.push(format!("{}: ({target}): {reason}", page.display()));
            }
        }
    }
    wrong
}

/// Returns the reason that a link leads nowhere.
fn fault(page: &Path, target: &str, book: &Path) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let there = if file.is_empty() { page.to_owned() } else { page.parent()?.join(file) };
    let Ok(there) = there.canonicalize() else { return Some("no such file") };
    let book = book.canonicalize().ok()?;
    if page.starts_with(&book) && !there.starts_with(&book) {
        return Some("outside of the book, which is read without the repository");
    }
    let anchor = anchor?;
    let text = std::fs::read_to_string(&there).unwrap_or_default();
    (!headings(&text).contains(&anchor.to_owned())).then_some("no such heading there")
}

/// Returns the targets in the round brackets of `[text](target)`, outside of code.
fn targets(text: &str) -> Vec<String> {
    let prose = without_code(text);
    let after = prose.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.trim().to_owned()).collect()
}

/// Returns the text without fenced blocks and code in backticks.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            for (number, part) in line.split('`').enumerate() {
                if number % 2 == 0 {
                    prose.push_str(part);
                }
            }
            prose.push('\n');
        }
    }
    prose
}

/// Anchors of all headings, as GitHub and mdBook make them; the second of equal ones ends in `-1`.
fn headings(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut anchors: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ' '));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect();
        let same = anchors.iter().filter(|other| **other == anchor).count();
        anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
    }
    anchors
}

#[test]
fn links_and_headings_are_found() {
    let text =
        "# A page, with `code`!\n[x](a.md#b), `[y](no)`\n```text\n# no\n[z](no)\n```\n## A page\n## A page\n";
    assert_eq!(targets(text), ["a.md#b"]);
    assert_eq!(headings(text), ["a-page-with-code", "a-page", "a-page-1"]);
}
