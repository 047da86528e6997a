//! `pagekeeper run`: reads the arguments, prints what the user is to know, and leaves the rest to
//! [`pagekeeper_launch`].

mod report;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pagekeeper_launch::{
    Choice, CommandEnd, LaunchReport, PreparedCommand, Role, RunningProcesses, Settings, StartError,
    StartState,
};

use crate::arguments::{NamedValue, PaceArgs, one_of};
use crate::output::{self, ConfigError, UsageError};
use report::ReportPrinter;

/// Run a command that does not evict others' pages
///
/// Pages that a streaming program (tar, cp, rsync, mariabackup, mysqldump and others) brings in are
/// released behind it, never those that were there before. A command that no list and no profile
/// knows counts as a stream, and one line says so. A script is none: the streams that it starts
/// are known by their names.
///
/// As root, on Linux 5.9 and later, a stream is followed by events of the kernel, by a process
/// beside it. For other users, and for databases, a library is preloaded into the command and what
/// it starts: databases release their logs once they are synced, and write compactions at the
/// disk's pace. What neither reaches is said.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "pagekeeper run [OPTIONS] -- COMMAND [ARGS]…",
    after_help = crate::help::of!("run")
)]
pub(crate) struct RunArgs {
    /// Profile for every process that is not a streaming program, instead of the one that its name
    /// selects
    #[arg(long, value_name = "NAME", conflicts_with = "role")]
    profile: Option<String>,
    /// Role of every process of the command, whatever its name
    #[arg(long = "as", value_name = "WHAT", value_parser = one_of(&ROLES))]
    role: Option<Role>,
    /// Follow this process, which runs already, and its children, until they end or a signal comes;
    /// no command is started. May be given several times
    #[arg(long = "pid", value_name = "PID", conflicts_with_all = ["command", "profile", "role", "require"])]
    pids: Vec<u32>,
    #[command(flatten)]
    pace: PaceArgs,
    /// The guard's configuration file: profiles, rules and streaming programs
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Report at the end what each rule did and what stayed resident; "json": as one JSON object,
    /// on standard error; pagekeeper stays as the command's parent until then
    /// [default: standard error]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = report::STANDARD_ERROR, value_hint = clap::ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Print the report as one JSON object; without --report on standard error
    #[arg(long)]
    json: bool,
    /// Fail rather than start the command without the rules
    #[arg(long)]
    require: bool,
    /// What a process of a command under `run` becomes instead of a program that its library does
    /// not reach
    #[arg(long, hide = true, num_args = 3, allow_hyphen_values = true, value_names = ["HOW", "SETTINGS", "FILE"])]
    inside: Option<Vec<OsString>>,
    /// The command and its arguments
    #[arg(required_unless_present = "pids", trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The values of `--as`.
const ROLES: [NamedValue<Role>; 3] = [
    (
        "stream",
        Role::Stream,
        "They read or write much data once: what they bring into the page cache is released",
    ),
    ("bulk", Role::Bulk, "They write large files, which are written to disk at its pace"),
    ("logs", Role::Logs, "They append to logs, which are released once they are synced"),
];

/// Starts the command, or follows the processes.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let start = StartState::now();
    pagekeeper_launch::survive_size_limit();
    if let Some(inside) = &args.inside {
        let prepared = PreparedCommand::inside(inside, &args.command, start);
        return Ok(prepared.map_or_else(|why| refuse(&why), become_command));
    }
    // Before the command or a follower is started.
    args.report_to().and_then(report::file).into_iter().for_each(output::wait_while_frozen);
    let choice = Choice { profile: args.profile.clone(), role: args.role, config: args.config.clone() };
    let settings = choice.settings_here().map_err(|error| match &args.config {
        Some(_) => anyhow::Error::new(ConfigError(error.to_string())),
        None => UsageError(error.to_string()).into(),
    })?;
    if !args.pids.is_empty() {
        return Ok(follow(args, &settings));
    }
    let prepared = PreparedCommand::new(&args.command, settings, args.pace.pace, args.require, start);
    Ok(match (prepared, args.report_to()) {
        (Err(why), _) => refuse(&why),
        (Ok(prepared), None) => become_command(prepared),
        (Ok(prepared), Some(to)) => run_and_report(prepared, to, args.json),
    })
}

impl RunArgs {
    /// Returns the destination of the report, if there is one.
    fn report_to(&self) -> Option<&Path> {
        self.report.as_deref().or(self.json.then_some(Path::new(report::STANDARD_ERROR)))
    }
}

fn become_command(prepared: PreparedCommand) -> ExitCode {
    prepared.warning().into_iter().for_each(output::warn);
    refuse(&prepared.exec())
}

fn run_and_report(mut prepared: PreparedCommand, to: &Path, is_json: bool) -> ExitCode {
    prepared.warning().into_iter().for_each(output::warn);
    let printer = ReportPrinter::begin(to, is_json);
    if let Err(error) = prepared.count() {
        output::complain(format_args!("nothing can be counted ({error})"));
    }
    match prepared.run() {
        Ok(ended) => {
            printer.print(ended.report);
            if let CommandEnd::Unknown(error) = &ended.end {
                output::complain(format_args!("the command's exit status is unknown: {error}"));
            }
            ended.end.pass_on()
        }
        Err(why) => refuse(&why),
    }
}

/// Follows processes that run already.
fn follow(args: &RunArgs, settings: &Settings) -> ExitCode {
    let config = args.config.as_deref();
    let processes = match RunningProcesses::follow(&args.pids, config, settings, args.pace.pace) {
        Ok(processes) => processes,
        Err(sentence) => {
            output::complain(sentence);
            return ExitCode::FAILURE;
        }
    };
    let printer = args.report_to().map(|to| ReportPrinter::begin(to, args.json));
    let events = Some(processes.until_end());
    if let Some(printer) = printer {
        printer.print(Ok(LaunchReport { events, ..LaunchReport::uncounted(false) }));
    }
    ExitCode::SUCCESS
}

/// Says why a command was not started, and returns its exit code.
pub(crate) fn refuse(why: &StartError) -> ExitCode {
    output::complain(&why.sentence);
    ExitCode::from(why.code)
}
