//! Standard output as command-line users expect it: buffered, coloured only on a terminal, silent
//! on a broken pipe.
//!
//! Fails with the error of the write; [`exit_code`] turns it, like any error of a command, into a
//! message and an exit code.

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagekeeper_text::{counted, escaped};
use serde::Serialize;

pub(crate) mod json;

/// The version of the schemas in `docs/schemas`; a report that has changed since has its own.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// A report, and the version of its schema.
#[derive(Debug, Serialize)]
pub(crate) struct Versioned<T> {
    pub(crate) schema_version: u32,
    #[serde(flatten)]
    pub(crate) report: T,
}

/// The exit code of a wrong configuration file.
const WRONG_CONFIG: u8 = 2;
/// The exit code of wrong usage: `EX_USAGE` of sysexits.h.
pub(crate) const WRONG_USAGE: u8 = 64;

/// A mistake in the command line, found after clap had read the arguments: exit code 64.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// A configuration file that is wrong: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(pub(crate) String);

/// Buffered standard output.
pub(crate) type StandardOutput = BufWriter<StdoutLock<'static>>;

/// Writes a report of this version as one JSON object and a newline to standard output.
pub(crate) fn json(schema_version: u32, report: &impl Serialize) -> io::Result<()> {
    print(|out| {
        json::write(out, &Versioned { schema_version, report })?;
        out.write_all(b"\n")
    })
}

/// Writes to standard output, all of it or an error.
pub(crate) fn print(text: impl FnOnce(&mut StandardOutput) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
    text(&mut out)?;
    out.flush()
}

/// Prints a result as one JSON object, or as text for people.
pub(crate) fn show<T: Serialize>(
    is_json: bool,
    value: impl FnOnce() -> T,
    text: impl FnOnce(&mut StandardOutput) -> io::Result<()>,
) -> io::Result<()> {
    if is_json { json(SCHEMA_VERSION, &value()) } else { print(text) }
}

/// Writes an error to standard error, after the program's name. If that fails, it is lost.
pub(crate) fn complain(text: impl Display) {
    say(Priority::Error, text);
}

/// Writes a warning in the same way.
pub(crate) fn warn(text: impl Display) {
    say(Priority::Warning, text);
}

/// The priority of a message, as syslog(3) counts.
#[derive(Debug, Clone, Copy)]
enum Priority {
    Error = 3,
    Warning = 4,
}

fn say(priority: Priority, text: impl Display) {
    let level = if is_journal() { format!("<{}>", priority as u8) } else { String::new() };
    let text = format!("pagekeeper: {text}");
    // Names in the text were escaped before; this keeps any other character from controlling the
    // terminal.
    let lines: Vec<_> = text.lines().map(|line| format!("{level}{}", escaped(line))).collect();
    let _ = writeln!(io::stderr().lock(), "{}", lines.join("\n"));
}

/// Whether standard error is the journal's, which takes priorities at the beginning of lines
/// (sd-daemon(3)).
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let ours = || rustix::fs::fstat(io::stderr()).ok().map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    stream.is_some_and(|stream| ours() == Some(stream))
}

/// Waits while the file system of `path` is frozen, and reports a wait that takes long.
pub(crate) fn wait_while_frozen(path: &Path) {
    let say = |why| warn(format_args!("{}: {why}; waiting", escaped(path)));
    pagekeeper_kernel::frozen::wait_while_frozen(path, say);
}

/// Prints why a command failed, and returns its exit code. A broken pipe is not reported: the
/// process ends by SIGPIPE, as programs do that do not handle it.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    // serde_json passes an error of the writer on unchanged.
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        // This does not return if the default action can be restored, which is possible except in
        // unusual sandboxes.
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
        return ExitCode::from(141);
    }
    // An error of a write without context: all others name their path.
    let bare = error.chain().next().is_some_and(<dyn std::error::Error>::is::<io::Error>);
    complain(format_args!("{}{}", if bare { "standard output: " } else { "" }, in_words(error)));
    if error.is::<UsageError>() {
        ExitCode::from(WRONG_USAGE)
    } else if error.is::<ConfigError>() {
        ExitCode::from(WRONG_CONFIG)
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the exit code of a command that did all, or not all, of its work.
pub(crate) fn code(is_fine: bool) -> ExitCode {
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns an error and its causes, each once: many libraries' errors already include their cause.
fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    let mut last = String::new();
    for cause in error.chain() {
        let cause_text = cause.to_string();
        if !last.contains(&cause_text) {
            if !words.is_empty() {
                words.push_str(": ");
            }
            words.push_str(&cause_text);
            last = cause_text;
        }
    }
    words
}

/// Returns a bar on standard error, drawn only if that is a terminal.
pub(crate) fn progress_bar(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// The settings for text on this process's standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    /// Standard output is a terminal.
    pub(crate) terminal: bool,
    /// Colours and bold type may be used.
    pub(crate) colour: bool,
    /// Columns of text; `None` if unknown.
    pub(crate) width: Option<usize>,
}

impl Screen {
    /// Reads the terminal's size and `NO_COLOR`, TERM and COLUMNS.
    pub(crate) fn of_stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let width = columns.or_else(|| {
            let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
            Some(usize::from(size.ws_col))
        });
        Self {
            terminal,
            colour: terminal && !dumb && !set("NO_COLOR"),
            width: width.filter(|&columns| columns > 0),
        }
    }
}

/// Returns "1 file", "2 files".
pub(crate) fn files(number: u64) -> String {
    counted(number, "file", "files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_named_once() {
        let failed = || pagekeeper_kernel::Error::call("open", "/a", rustix::io::Errno::NOENT);
        let said = "open /a: No such file or directory (os error 2)";
        assert_eq!(in_words(&failed().into()), said);
        let error = anyhow::Error::from(failed()).context("can't use the snapshot /a");
        assert_eq!(in_words(&error), format!("can't use the snapshot /a: {said}"));
        let plain = anyhow::Error::from(io::Error::from(ErrorKind::NotADirectory)).context("inspect /a");
        assert_eq!(in_words(&plain), "inspect /a: not a directory");
    }

    #[test]
    fn mistakes_have_their_exit_codes_and_failures_1() {
        let code = |error: anyhow::Error| format!("{:?}", exit_code(&error));
        assert_eq!(code(UsageError("give a path".to_owned()).into()), format!("{:?}", ExitCode::from(64)));
        assert_eq!(code(ConfigError("line 1".to_owned()).into()), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(io::Error::from(ErrorKind::StorageFull).into()), format!("{:?}", ExitCode::FAILURE));
    }
}
