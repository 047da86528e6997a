//! Man pages, made from the same definitions as `--help`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap::builder::Resettable;
use pagekeeper_text::escaped;

use crate::Cli;
use crate::help;
use crate::output::{self, UsageError};

/// The exit codes of a command that has no others.
const EXIT_STATUS: &str =
    "Exit status:\n  0   success\n  1   something failed, or could not be seen\n  64  wrong usage";

/// Print a man page, or write all of them
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("man"))]
pub(crate) struct ManualsArgs {
    /// The command to print the page of, like "stat" or "store verify"; without it, that of
    /// pagekeeper itself
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands into DIR, one file each
    #[arg(long, value_name = "DIR", conflicts_with = "command", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// Prints one man page, or writes all.
pub(crate) fn man(args: &ManualsArgs) -> anyhow::Result<ExitCode> {
    let mut root = Cli::command();
    root.build();
    if let Some(dir) = &args.dir {
        output::wait_while_frozen(dir);
        return write_all(&root, dir);
    }
    let mut command = &root;
    for name in &args.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let all = args.command.join(" ");
            UsageError(format!("there is no command \"{all}\": pagekeeper --help lists all"))
        })?;
    }
    let page = page(command.clone())?;
    output::print(|out| out.write_all(&page))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and its subcommands.
fn write_all(command: &clap::Command, dir: &Path) -> anyhow::Result<ExitCode> {
    let path = dir.join(format!("{}.1", display_name(command)));
    std::fs::write(&path, page(command.clone())?)
        .with_context(|| format!("can't write {}", escaped(&path)))?;
    // The subcommands of "help" are all commands once more.
    if command.get_name() != "help" {
        command.get_subcommands().try_for_each(|below| write_all(below, dir).map(drop))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of the command's page: "pagekeeper-store-verify".
fn display_name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let name = display_name(&command).to_owned();
    let below = command.get_subcommands().map(display_name).filter(|name| !name.ends_with("-help"));
    let others = below.chain(["pagekeeper"]).filter(|other| *other != name);
    let see = others.map(|other| format!("{other}(1), ")).collect::<Vec<_>>().concat();
    let own = command.get_after_help().map(|text| help::roff(&text.to_string())).unwrap_or_default();
    let status = if own.contains("EXIT STATUS") { String::new() } else { help::roff(EXIT_STATUS) };
    let common = help::roff(&help::of!("common"));
    // Subcommands have no version of their own.
    let source = concat!("pagekeeper ", env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    let command = command.display_name(name).after_help(Resettable::Reset);
    clap_mangen::Man::new(command).source(source).render(&mut text)?;
    let see = see.replace('-', "\\-");
    writeln!(text, "{own}{status}{common}.SH \"SEE ALSO\"\n{see}pagekeeper\\-guard.toml(5)")?;
    Ok(text)
}
