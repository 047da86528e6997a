//! Fenced blocks of a Markdown file, and the commands in them.

use std::fmt;
use std::path::{Path, PathBuf};

/// A fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    page: PathBuf,
    /// The line of its fence, from 1.
    line: usize,
    /// The words behind the fence, between commas.
    info: Vec<String>,
    /// The lines between the fences.
    pub(crate) text: String,
}

/// A command and what it prints.
#[derive(Debug)]
pub(crate) struct Step {
    /// The command line, in a shell's syntax.
    pub(crate) command: String,
    /// Whether it needs root.
    pub(crate) root: bool,
    /// The lines of its output.
    pub(crate) output: Vec<String>,
}

/// Returns all blocks of a file.
pub(crate) fn of(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).expect("a page can be read");
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            if !open {
                let info = info.split(',').map(|word| word.trim().to_owned()).collect();
                blocks.push(Block { page: page.to_owned(), line: number + 1, info, text: String::new() });
            }
            open = !open;
        } else if let Some(block) = blocks.last_mut().filter(|_| open) {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    assert!(!open, "{}: a block is not closed", page.display());
    blocks
}

impl Block {
    /// Whether the fence has this word.
    pub(crate) fn is(&self, word: &str) -> bool {
        self.info.iter().any(|given| given == word)
    }

    /// Returns the commands of a `console` block.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for line in self.text.lines() {
            let begin = |command: &str, root| Step { command: command.to_owned(), root, output: Vec::new() };
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(begin(command, false));
            } else if let Some(command) = line.strip_prefix("# ") {
                steps.push(begin(command, true));
            } else {
                let step = steps.last_mut().unwrap_or_else(|| panic!("{self} begins with a command"));
                match line.strip_prefix("> ") {
                    Some(more) if step.output.is_empty() => {
                        step.command.push('\n');
                        step.command.push_str(more);
                    }
                    _ => step.output.push(line.to_owned()),
                }
            }
        }
        steps
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.page.display(), self.line)
    }
}
