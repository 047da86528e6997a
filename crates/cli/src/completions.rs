//! Shell completions, made from the same definitions as `--help` by clap, and of three things more than clap knows: profiles,
//! processes, and files, which a shell completes better itself.
//!
//! Invariant: what a shell puts on the command line of a file's name is quoted by that shell. clap's script for bash lists files
//! where it knows nothing better, as words that are pasted as they are: a file that somebody called `$(command)` would be run. All
//! such lists are taken out.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use pagekeeper_catalog::BUILT_IN;

use crate::Cli;
use crate::output;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper completions bash > /usr/share/bash-completion/completions/pagekeeper
  pagekeeper completions fish > ~/.config/fish/completions/pagekeeper.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Stands in clap's script where processes are to be listed.
const PIDS: &str = "PAGEKEEPER_PIDS";

/// Lists processes, but for threads of the kernel, which have no command line.
const BASH_PIDS: &str = r#"
_pagekeeper_pids() {
    local process
    for process in /proc/[0-9]*; do
        { read -r -n 1 _ <"$process/cmdline"; } 2>/dev/null && echo "${process#/proc/}"
    done
}
"#;
const ZSH_PIDS: &str = r#"
_pagekeeper_pids() {
    local process
    local -a pids
    for process in /proc/<->(N); do
        [[ -n "$(<$process/cmdline)" ]] 2>/dev/null && pids+=(${process:t})
    done
    compadd -- $pids
}
"#;

/// Prints completions.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Made in memory: the generator panics where the write fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut with_values(Cli::command()), "pagekeeper", &mut script);
    let script = String::from_utf8(script)?;
    let script = match args.shell {
        Shell::Bash => bash(&script),
        Shell::Zsh => with_function(&script, "autoload -U is-at-least\n", ZSH_PIDS)
            .replace(&format!("({PIDS})"), "_pagekeeper_pids"),
        Shell::Fish => script.replace(&format!("\"{PIDS}\\t''\""), "\"(__fish_complete_pids)\""),
        // Elvish and PowerShell list no values.
        _ => script,
    };
    output::print(script.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The command with what may stand for its arguments, where that is known but may be something else, too.
fn with_values(command: Command) -> Command {
    let known = |arg: clap::Arg| match arg.get_id().as_str() {
        "profile" | "print_profile" => {
            arg.value_parser(PossibleValuesParser::new(BUILT_IN.iter().map(|(name, _)| *name)))
        }
        "pid" => arg.value_parser(PossibleValuesParser::new([PIDS])),
        _ => arg,
    };
    command.mut_args(known).mut_subcommands(with_values)
}

/// The script behind whose line a function is put.
fn with_function(script: &str, line: &str, function: &str) -> String {
    script.replacen(line, &format!("{line}{function}"), 1)
}

/// clap's script for bash, with files left to bash: it completes them itself, and quotes them, where a function finds nothing.
fn bash(script: &str) -> String {
    const FILES: &str = r#"COMPREPLY=($(compgen -f "${cur}"))"#;
    const NOTHING: &str = "COMPREPLY=()";
    let mut out = String::with_capacity(script.len());
    // Whether the command's words are all options, so that its other words are files.
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
    format!("{}\n{out}", BASH_PIDS.trim_start()).replace(PIDS, "$(_pagekeeper_pids)")
}
