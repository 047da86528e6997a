//! Compares documented with actual output: everything except figures, their units, and spaces must
//! match, in order.

/// Stands for anything.
const ANY_TEXT: char = '…';

/// Returns `Err` with the documented line that is missing in the output.
pub(crate) fn compare(documented: &[String], printed: &str) -> Result<(), String> {
    let mut printed = printed.lines().map(normal).peekable();
    let mut anywhere = false;
    for line in documented {
        if line.trim() == "…" {
            anywhere = true;
            continue;
        }
        let wanted = normal(line);
        let found = if anywhere {
            printed.by_ref().any(|line| matches(&wanted, &line))
        } else {
            printed.next().is_some_and(|line| matches(&wanted, &line))
        };
        if !found {
            return Err(line.clone());
        }
        anywhere = false;
    }
    // A document must mark omitted output at the end; a block without output expects none.
    if documented.is_empty() || anywhere || printed.peek().is_none() {
        return Ok(());
    }
    Err(format!("(nothing more than these {} lines)", documented.len()))
}

/// Whether a line is as documented.
fn matches(wanted: &str, line: &str) -> bool {
    let mut parts = wanted.split(ANY_TEXT);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        let part = part.trim();
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(part) => part.is_empty() || rest.is_empty() || line.ends_with(part),
    }
}

/// Returns a line with `#` in place of each figure and unit, `[#]` in place of a drawing, and
/// single spaces.
fn normal(line: &str) -> String {
    let characters: Vec<char> = line.chars().collect();
    let is_digit = |at: usize| characters.get(at).is_some_and(char::is_ascii_digit);
    let mut plain = String::new();
    let mut at = 0;
    while let Some(&c) = characters.get(at) {
        at += 1;
        if c.is_ascii_digit() && (at < 2 || !characters[at - 2].is_alphanumeric()) {
            // Points and commas before digits belong to the figure.
            while is_digit(at) || matches!(characters.get(at), Some('.' | ',')) && is_digit(at + 1) {
                at += 1;
            }
            plain.push('#');
        } else {
            plain.push(if ('▁'..='█').contains(&c) { '█' } else { c });
        }
    }
    let mut words: Vec<&str> = Vec::new();
    for word in plain.split_whitespace() {
        let unit = word.trim_end_matches([',', ';', ')', ':']);
        let bytes = unit.trim_end_matches("/s").trim_start_matches(['K', 'M', 'G', 'T']);
        let is_unit = matches!(bytes, "B" | "iB") || matches!(unit, "µs" | "ms" | "s" | "%");
        if !(is_unit && words.last().is_some_and(|last| last.ends_with('#'))) {
            words.push(word);
        }
    }
    words
        .join(" ")
        .replace("#.", "#")
        .replace("#B", "#")
        .replace("#K", "#")
        .replace("#M", "#")
        .replace("#G", "#")
}

#[test]
fn figures_units_and_omitted_parts_may_differ() {
    let documented = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<String>>();
    let same = |lines: &[&str], printed: &str| compare(&documented(lines), printed).is_ok();
    assert!(same(
        &["evicted 4 MiB of 4 MiB resident in 1 file"],
        "evicted 96.0 KiB of 2 GiB resident in 7 file\n"
    ));
    assert!(!same(&["evicted 4 MiB in 1 file"], "loaded 4 MiB in 1 file\n"));
    assert!(
        same(&["a", "…", "z"], "a\nb\nc\nz\n") && same(&["a", "…"], "a\nb\n") && same(&["…", "b"], "a\nb\n")
    );
    assert!(!same(&["a"], "a\nb\n") && !same(&["a", "b"], "a\n") && !same(&["b", "…", "a"], "a\nb\n"));
    assert!(same(&["watching mariadb: …/data"], "watching mariadb: /var/tmp/x/data\n"));
    assert!(!same(&["watching mariadb: …/data"], "watching mysql: /var/tmp/x/data\n"));
    assert!(!same(&["kept …: why"], "kept 4: because\n"));
    assert!(same(&["by 3,066, CRC …, from it"], "by 1, CRC eb1d1f18, from it\n"));
    assert!(same(&[], "anything\n"));
}
