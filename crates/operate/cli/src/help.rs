//! The text below a command's options in its help, and the sections of its man page that follow
//! from it. The texts are in `help/`.
//!
//! A text consists of blocks with empty lines between them. A block with indented lines has a
//! heading, is at most 80 columns wide and stays as it is. Any other block is a paragraph.

/// The text of this name, for `after_help`.
macro_rules! of {
    ($name:literal) => {
        $crate::help::page(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/help/", $name, ".txt")))
    };
}
pub(crate) use of;

/// Returns the text with each paragraph on one line, for clap to wrap.
pub(crate) fn page(text: &str) -> String {
    let joined = |block: &str| if is_list(block) { block.to_owned() } else { block.replace('\n', " ") };
    text.trim_end().split("\n\n").map(joined).collect::<Vec<_>>().join("\n\n")
}

/// Whether a block has a heading and indented lines.
fn is_list(block: &str) -> bool {
    block.contains("\n  ")
}

/// Returns a text as sections of a man page: each list under its own heading, and all paragraphs
/// under one.
pub(crate) fn roff(text: &str) -> String {
    let (mut notes, mut lists) = (Vec::new(), Vec::new());
    for block in text.split("\n\n") {
        match block.split_once(":\n").filter(|_| is_list(block)) {
            Some((heading, lines)) => {
                let lines: Vec<_> =
                    lines.lines().map(|line| plain(line.strip_prefix("  ").unwrap_or(line))).collect();
                lists.push(format!(".SH \"{}\"\n.nf\n{}\n.fi\n", heading.to_uppercase(), lines.join("\n")));
            }
            None => notes.push(format!("{}\n", plain(block))),
        }
    }
    let notes = if notes.is_empty() { String::new() } else { format!(".SH NOTES\n{}", notes.join(".PP\n")) };
    format!("{notes}{}", lists.concat())
}

/// Returns a line in which roff finds no request.
fn plain(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Examples:\n  stat -a  all\n  stat .\n\nA paragraph\nof two lines.\n\n.An\\other.\n";

    #[test]
    fn paragraphs_are_joined_and_lists_stay() {
        assert_eq!(
            page(TEXT),
            "Examples:\n  stat -a  all\n  stat .\n\nA paragraph of two lines.\n\n.An\\other."
        );
    }

    #[test]
    fn a_man_page_has_lists_as_sections_and_no_request_of_a_text() {
        assert_eq!(
            roff(&page(TEXT)),
            ".SH NOTES\nA paragraph of two lines.\n.PP\n\\&.An\\eother.\n.SH \"EXAMPLES\"\n.nf\nstat \\-a  all\nstat .\n.fi\n"
        );
    }
}
