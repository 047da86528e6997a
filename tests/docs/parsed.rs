//! Command lines that a test can't run: each `pagekeeper` in them has a command and options that
//! its help knows, and each `make` a target that the Makefile has.

use crate::blocks::{Block, Step};
use crate::support::command::run;

/// Panics with a sentence where a command line would be refused.
pub(crate) fn check(step: &Step, block: &Block) {
    let command = step.command.split(" # ").next().unwrap_or_default();
    for part in command.split(['|', ';', '&', '\n', '\'']) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let at = |program: &str| {
            let ends = format!("/{program}");
            words.iter().position(|word| *word == program || word.ends_with(&ends) && !word.starts_with('-'))
        };
        if let Some(at) = at("pagekeeper").filter(|at| !words[..*at].iter().any(|word| is_file_command(word)))
        {
            check_pagekeeper(&words[at + 1..], block);
        } else if words.first() == Some(&"make") {
            let makefile =
                std::fs::read_to_string(crate::root().join("Makefile")).expect("there is a Makefile");
            let target = words.get(1).unwrap_or_else(|| panic!("{block}: make what?"));
            assert!(
                makefile.contains(&format!("\n{target}: ")),
                "{block}: the Makefile has no target {target}"
            );
        }
    }
}

/// Whether a command takes the path of a program for a file like others.
fn is_file_command(word: &str) -> bool {
    matches!(word, "cp" | "install" | "ln" | "systemctl" | "journalctl" | "mkdir" | "rm")
}

fn check_pagekeeper(words: &[&str], block: &Block) {
    // Arguments behind -- belong to another program.
    let words: Vec<&str> = words.iter().copied().take_while(|word| *word != "--").collect();
    // Without a command it prints what to type.
    let Some((command, mut rest)) = words.split_first() else { return };
    let mut arguments = vec![*command];
    if *command == "store" {
        arguments.push(rest.first().unwrap_or_else(|| panic!("{block}: store what?")));
        rest = &rest[1..];
    }
    let help = run(arguments.iter().chain(&["--help"])).expect_success();
    for option in rest.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
        let option = option.split('=').next().unwrap_or_default();
        let known = help.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | '='));
        assert!(
            known.into_iter().any(|word| word == option),
            "{block}: {arguments:?} has no option {option}"
        );
    }
}

/// Returns the long options of a command's help that a page does not have in backticks.
pub(crate) fn options_without_mention(command: &str, page: &str) -> Vec<String> {
    let help = run([command, "--help"]).expect_success();
    let (listed, _) = help.split_once("Examples:").expect("examples behind the options");
    let lines = listed.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let options =
        lines.filter_map(|line| line.split([' ', ',', '=', '[']).find(|word| word.starts_with("--")));
    let is_missing = |option: &&str| *option != "--help" && !page.contains(&format!("`{option}"));
    options.filter(is_missing).map(str::to_owned).collect()
}
