//! The programs that take part: their paths, their versions, and how to run one as a whole process.
//!
//! Peers are looked up in `peers/bin` of the target directory, where `make bench-setup` puts those
//! it builds, then in PATH. The report names a missing one. pagekeeper itself must be there. Fails
//! where a program cannot be started or ends with an error; the message has its standard error.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// An installed program.
#[derive(Debug, Clone)]
pub(crate) struct InstalledProgram {
    /// Its name.
    pub(crate) name: &'static str,
    /// Path of its file.
    pub(crate) path: PathBuf,
    /// The version that it reports.
    pub(crate) version: String,
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct FinishedProcess {
    /// Seconds from before its start to after its end.
    pub(crate) seconds: f64,
    /// Its standard output.
    pub(crate) stdout: String,
}

impl InstalledProgram {
    /// Returns a command that runs it.
    pub(crate) fn command(&self) -> Command {
        Command::new(&self.path)
    }

    /// Finds a peer; `None` if it is not installed.
    pub(crate) fn find(name: &'static str) -> Option<Self> {
        let path = directories().into_iter().map(|dir| dir.join(name)).find(|path| path.is_file())?;
        // vmtouch has no option for its version and prints it with its usage.
        let option: &[&str] = if name == "vmtouch" { &[] } else { &["--version"] };
        let output = Command::new(&path).args(option).stdin(Stdio::null()).output().ok()?;
        let version = version_in(&text_of(&output)).unwrap_or_else(|| "unknown".to_owned());
        Some(Self { name, path, version })
    }

    /// Whether a peer is installed. It is not started, because some servers have no `--version`.
    pub(crate) fn is_installed(name: &str) -> bool {
        directories().into_iter().any(|dir| dir.join(name).is_file())
    }

    /// Returns pagekeeper: `given`, or the program of this build.
    pub(crate) fn pagekeeper(given: Option<&Path>) -> Result<Self> {
        let path = match given {
            Some(path) => path.to_path_buf(),
            None => beside("pagekeeper")?,
        };
        ensure!(
            path.is_file(),
            "there is no {}; build it (cargo build --release --package pagekeeper), or name one with --bin",
            path.display()
        );
        let version = run(Command::new(&path).arg("--version"))?.stdout;
        let version = version_in(&version).unwrap_or_else(|| "unknown".to_owned());
        Ok(Self { name: "pagekeeper", path, version })
    }
}

fn beside(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe().context("can't find this program")?.with_file_name(name))
}

/// Returns the path of another program of this build.
pub(crate) fn program_beside(name: &str) -> Result<PathBuf> {
    let path = beside(name)?;
    ensure!(
        path.is_file(),
        "there is no {}; build it (cargo build --release --package pagekeeper-bench)",
        path.display()
    );
    Ok(path)
}

/// Returns a command that runs this program, for subjects that need only a few lines.
pub(crate) fn this_program() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("can't find this program")?))
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<FinishedProcess> {
    command.stdin(Stdio::null());
    let shown = command.get_program().to_string_lossy().into_owned();
    let began = Instant::now();
    let output = command.output().with_context(|| format!("can't start {shown}"))?;
    let seconds = began.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("{shown} ended with {}: {}", output.status, text_of(&output).trim());
    }
    Ok(FinishedProcess { seconds, stdout: String::from_utf8_lossy(&output.stdout).into_owned() })
}

fn text_of(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn directories() -> Vec<PathBuf> {
    let mut directories = Vec::new();
    let target = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.to_path_buf()));
    directories.extend(target.map(|target| target.join("peers/bin")));
    directories.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    // Servers, which are not in every user's PATH.
    directories.extend(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    // Debian keeps a server's programs out of PATH, because several versions may be installed; the
    // newest is used.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    directories.extend(newest.map(|version| format!("/usr/lib/postgresql/{version}/bin").into()));
    directories
}

/// Returns the first word that is a version: `1.2`, `v1.2.3`, `fio-3.33`.
fn version_in(text: &str) -> Option<String> {
    text.split_whitespace().find_map(|word| {
        let digits = word.find(|c: char| c.is_ascii_digit())?;
        let (before, version) = word.split_at(digits);
        let version: String =
            version.chars().take_while(|&c| c.is_ascii_digit() || c == '.').collect::<String>();
        let separated = before.is_empty() || before.ends_with('v') || before.ends_with('-');
        (separated && version.contains('.')).then(|| version.trim_end_matches('.').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_output_of_programs() {
        let said = [
            ("fincore from util-linux 2.38.1", "2.38.1"),
            ("fio-3.33", "3.33"),
            ("vmtouch: no files\n\nvmtouch v1.3.1 - the Virtual Memory Toucher", "1.3.1"),
            ("mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu", "10.11.19"),
            ("sysbench 1.0.20", "1.0.20"),
        ];
        for (text, version) in said {
            assert_eq!(version_in(text).as_deref(), Some(version), "{text}");
        }
        assert_eq!(version_in("no number 7 here"), None);
    }
}
