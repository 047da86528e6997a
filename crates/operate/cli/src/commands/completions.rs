//! Shell completions, which clap makes from the same definitions as `--help`. Three kinds of words
//! are added: profiles, processes, and files, which a shell completes better itself.
//!
//! Invariant: a file name that the shell puts on the command line is quoted by that shell. Clap's
//! script for bash falls back to listing files as unquoted words: a file named `$(command)` would
//! be run. All such lists are removed.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use pagekeeper_catalog::BUILT_IN_PROFILES;

use crate::Cli;
use crate::output;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("completions"))]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Marks the places in clap's script where processes are listed.
const PIDS: &str = "PAGEKEEPER_PIDS";

/// Lists processes except for kernel threads, which have no command line.
const BASH_PIDS: &str = include_str!("../../completions/pids.bash");
/// The line of a script for zsh that the functions of others follow.
const ZSH_START: &str = "autoload -U is-at-least\n";
const ZSH_PIDS: &str = include_str!("../../completions/pids.zsh");

/// Prints the completion script.
pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    // Made in memory: the generator panics if a write fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut with_values(Cli::command()), "pagekeeper", &mut script);
    let script = String::from_utf8(script)?;
    let script = match args.shell {
        Shell::Bash => bash(&script),
        Shell::Zsh => script
            .replacen(ZSH_START, &format!("{ZSH_START}\n{ZSH_PIDS}"), 1)
            .replace(&format!("({PIDS})"), "_pagekeeper_pids"),
        Shell::Fish => script.replace(&format!("\"{PIDS}\\t''\""), "\"(__fish_complete_pids)\""),
        // The scripts for Elvish and PowerShell list no values.
        _ => script,
    };
    output::print(|out| out.write_all(script.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the command with suggested values for its arguments. Other values are allowed, too.
fn with_values(command: Command) -> Command {
    let known = |arg: clap::Arg| match arg.get_id().as_str() {
        "profile" | "print_profile" => {
            arg.value_parser(PossibleValuesParser::new(BUILT_IN_PROFILES.iter().map(|(name, _)| *name)))
        }
        "pid" => arg.value_parser(PossibleValuesParser::new([PIDS])),
        _ => arg,
    };
    command.mut_args(known).mut_subcommands(with_values)
}

/// Returns clap's script for bash with file names left to bash, which completes and quotes them
/// itself if the function finds nothing.
fn bash(script: &str) -> String {
    const FILES: &str = r#"COMPREPLY=($(compgen -f "${cur}"))"#;
    const NOTHING: &str = "COMPREPLY=()";
    let mut out = String::with_capacity(script.len());
    // Whether all listed words of the command are options, so that its other words are files.
    let mut takes_files = false;
    let mut in_default = false;
    for line in script.lines() {
        let text = line.trim_start();
        if let Some(words) = text.strip_prefix("opts=\"") {
            let mut words = words.trim_end_matches('"').split_whitespace().peekable();
            takes_files = words.peek().is_some() && words.all(|word| word.starts_with('-'));
        }
        in_default = in_default && text != ";;" || text == "*)";
        let indent = &line[..line.len() - text.len()];
        if takes_files && text.starts_with("if [[ ${cur} == -* || ") {
            out.push_str(indent);
            out.push_str("if [[ ${cur} == -* ]] ; then");
        } else if takes_files && in_default && text == NOTHING {
            out.extend([line, "\n", indent, "return 0"]);
        } else {
            out.push_str(&line.replace(FILES, NOTHING));
        }
        out.push('\n');
    }
    format!("{BASH_PIDS}\n{out}").replace(PIDS, "$(_pagekeeper_pids)")
}
