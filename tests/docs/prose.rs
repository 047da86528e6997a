//! The language of comments, documents and names, by the rules under "Words" in CONTRIBUTING.md.

use super::{finish, root};

/// Limits of counts, in percent. Lower a bar once the tree is below it; never raise one.
const BARS_PERCENT: [(&str, usize); 6] = [
    ("sentences in Rust comments are headless", 1),
    ("sentences in documents are headless", 1),
    ("sentences have more than 35 words", 1),
    ("comment lines have more than 100 columns", 1),
    ("types share their name with another type of their crate", 1),
    ("constants share their name with another constant of their crate", 0),
];

/// Returns paragraphs without code, tables and headings, each with the number of its last line.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(usize, String)> {
    let (mut found, mut text, mut is_code) = (Vec::new(), String::new(), false);
    for (number, line) in lines.map(str::trim).chain([""]).enumerate() {
        is_code ^= line.starts_with("```");
        let line = if is_code || line.starts_with(['|', '#', '<']) { "" } else { line.trim_matches('`') };
        let item = line.strip_prefix("- ");
        if (line.is_empty() || item.is_some()) && !text.is_empty() {
            found.push((number, std::mem::take(&mut text)));
        }
        format!("{text} {}", item.unwrap_or(line)).trim().clone_into(&mut text);
    }
    found
}

/// Returns the words of each sentence of three words or more.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ends = |word: &str| word.ends_with(['.', '!', '?', ':', ';']);
    let begins = |word: &str| word.starts_with(|c: char| c.is_uppercase() || "`[*".contains(c));
    let sentences = words.chunk_by(|before, word| !(ends(before) && begins(word)));
    sentences.filter(|words| words.len() >= 3).map(<[&str]>::to_vec).collect()
}

/// Whether a sentence opens with a clause in place of its subject ("What is read is released").
fn is_headless(sentence: &[&str]) -> bool {
    let is_in = |at: usize, words: &str| words.split(' ').any(|word| sentence[at].eq_ignore_ascii_case(word));
    let is_clause = is_in(0, "what whether where who whom whose which how of than")
        || is_in(0, "by to from in at for with that") && is_in(1, "what whom which how")
        || is_in(0, "so as") && is_in(1, "many much");
    is_clause && !sentence.concat().ends_with('?')
}

/// Returns sentences and comment lines, each with its bar and whether it counts against it.
fn prose(path: &str, text: &str) -> Vec<(usize, String, bool)> {
    let document = usize::from(path.rsplit('.').next() == Some("md"));
    let comment = |line| str::trim(line).strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']));
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let comments = lines.iter().filter(|line| document == 0 && comment(line).is_some());
    found.extend(comments.map(|line| (3, format!("{path}: {line}"), line.chars().count() > 100)));
    let texts = lines.iter().map(|line| if document == 1 { line } else { comment(line).unwrap_or_default() });
    for (number, paragraph) in paragraphs(texts) {
        let is_bool = lines.iter().skip(number).take(4).any(|line| line.to_lowercase().contains("bool"));
        for sentence in sentences(&paragraph) {
            let place = format!("{path}:{number}: {}", sentence.join(" "));
            let is_usual = is_bool && sentence[0].eq_ignore_ascii_case("whether");
            found.push((document, place.clone(), is_headless(&sentence) && !is_usual));
            found.push((2, place, sentence.len() > 35));
        }
    }
    found
}

/// Returns "crate: name" of types and constants outside of functions and tests, with its bar.
fn names(path: &str, text: &str) -> Vec<(usize, String)> {
    let code = text.lines().take_while(|line| *line != "mod tests {" && !path.contains("tests"));
    let named = code.filter(|line| !line.starts_with(' ')).filter_map(|line| {
        let mut words = line.split([' ', '(', ')', '<', ':', ';']);
        let kind = words.find(|word| !["pub", "crate", "super", ""].contains(word))?;
        let at = ["struct", "enum", "trait", "type", "const", "static"].iter().position(|of| *of == kind)?;
        let name = words.next().filter(|name| name.starts_with(char::is_uppercase))?;
        Some((4 + at / 4, format!("{}: {name}", path.split("/src/").next().unwrap_or(path))))
    });
    named.collect()
}

#[test]
fn sentences_and_names_are_within_their_bars() {
    let mut git = std::process::Command::new("git");
    git.args(["-c", "safe.directory=*", "ls-files", "-z", "*.rs", "*.md"]).current_dir(root());
    let (listed, mut found, mut named) = (finish(&mut git).stdout, Vec::new(), Vec::new());
    for path in listed.split('\0').filter(|path| root().join(path).is_file()) {
        let text = std::fs::read_to_string(root().join(path)).expect("a tracked file");
        found.extend(prose(path, &text));
        named.extend(names(path, &text));
    }
    let is_shared = |name| named.iter().filter(|other| *other == name).count() > 1;
    found.extend(named.iter().map(|name| (name.0, name.1.clone(), is_shared(name))));
    for (at, (what, most)) in BARS_PERCENT.into_iter().enumerate() {
        let all: Vec<_> = found.iter().filter(|(bar, ..)| *bar == at).collect();
        let counted: Vec<_> = all.iter().filter(|(.., counts)| *counts).map(|(_, place, _)| place).collect();
        let is_within = !all.is_empty() && counted.len() * 100 <= most * all.len();
        assert!(is_within, "{counted:#?}\n{} of {} {what}: at most {most} % may", counted.len(), all.len());
    }
}
