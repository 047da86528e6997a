//! Compares programs run plain and under the preloaded library: every line of output, the exit
//! code, and every file.
//!
//! Invariants: a program is built once for each test binary, by `cc`, and runs in a new directory
//! each time; values that differ from run to run by themselves are not compared (times, inode
//! numbers, allocated blocks). A control shows that the comparison finds no difference without
//! one, and notices a wrong library.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::command::{contained, finish, pagekeeper_by_library};

/// The placeholder for a program's file in compared text.
const NAME: &str = "NAME";

/// A way to run a program.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// Its name in a failure's message.
    pub(crate) label: String,
    /// Arguments of `pagekeeper run`; none for a plain run.
    run: Option<Vec<String>>,
    /// Other libraries that are preloaded.
    preload: Vec<PathBuf>,
    /// Additional environment variables.
    environment: Vec<(String, String)>,
    /// The name of the file under test, chosen so that a profile's rule matches it.
    pub(crate) file: String,
}

impl Way {
    /// Runs a program plainly.
    pub(crate) fn plain() -> Self {
        let (preload, environment) = (Vec::new(), Vec::new());
        Self { label: "plain".to_owned(), run: None, preload, environment, file: "some.file".to_owned() }
    }

    /// Runs a program with this library preloaded, without `pagekeeper`.
    pub(crate) fn with_library(library: &Path) -> Self {
        Self { label: format!("with {}", library.display()), ..Self::plain() }.with_lower_library(library)
    }

    /// Runs a program by `pagekeeper run` with these arguments and the library.
    pub(crate) fn run(arguments: &[&str], file: &str) -> Self {
        Self {
            label: format!("run {} ({file})", arguments.join(" ")),
            run: Some(arguments.iter().map(|&argument| argument.to_owned()).collect()),
            file: file.to_owned(),
            ..Self::plain()
        }
    }

    /// Runs every program as a stream.
    pub(crate) fn stream_by_library() -> Self {
        Self::run(
            &["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/preload/streams.toml")],
            "",
        )
    }

    /// Adds an option of `pagekeeper run`.
    pub(crate) fn add_option(&mut self, option: &str) {
        self.run.get_or_insert_default().push(option.to_owned());
    }

    /// Adds a library below.
    pub(crate) fn with_lower_library(mut self, library: &Path) -> Self {
        self.preload.push(library.to_owned());
        self
    }

    /// Adds an environment variable.
    pub(crate) fn and(mut self, variable: &str, value: u64) -> Self {
        self.environment.push((variable.to_owned(), value.to_string()));
        self
    }

    /// Returns a command that runs `program` this way.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = match &self.run {
            // The same calls are refused.
            None => contained(program),
            Some(arguments) => {
                let mut command = pagekeeper_by_library();
                command.arg("run").args(arguments).arg("--").arg(program);
                command
            }
        };
        command.env_remove("LD_PRELOAD").envs(self.environment.iter().map(|(name, value)| (name, value)));
        if !self.preload.is_empty() {
            let paths: Vec<OsString> =
                self.preload.iter().map(|path| path.clone().into_os_string()).collect();
            command.env("LD_PRELOAD", paths.join(":".as_ref()));
        }
        command
    }
}

/// Returns every rule, each on a file that it fits.
pub(crate) fn ways() -> Vec<Way> {
    vec![
        Way::run(&["--as", "stream"], "stream.file"),
        Way::run(&["--as", "bulk"], "bulk.file"),
        Way::run(&["--as", "logs"], "log.file"),
        Way::run(&["--profile", "rocksdb"], "000012.sst"),
        Way::run(&["--profile", "rocksdb"], "000013.log"),
        Way::run(&["--profile", "mariadb"], "ib_logfile0"),
        Way::run(&["--profile", "mariadb"], "binlog.000001"),
        Way::run(&["--profile", "mariadb"], "table.ibd"),
    ]
}

/// The results of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProgramResults {
    /// Exit code, or 128 + signal.
    pub(crate) code: i32,
    /// Lines of its standard output, with its file's name replaced.
    pub(crate) stdout: Vec<String>,
    /// Lines of its standard error, with its file's name replaced.
    pub(crate) stderr: Vec<String>,
    /// Its files: mode, size and checksum by name.
    pub(crate) files: BTreeMap<String, String>,
}

/// Runs a program in a new directory below `parent`, and records its results.
pub(crate) fn left_by(way: &Way, program: &Path, arguments: &[&str], parent: &Path) -> ProgramResults {
    let directory = tempfile::tempdir_in(parent).expect("make a directory");
    let mut command = way.command(program);
    command.arg(&way.file).args(arguments).current_dir(directory.path()).env("LIBC_FATAL_STDERR_", "1");
    let outcome = finish(&mut command);
    // A line reports streams that can't be followed by events.
    let is_own = |line: &&str| !(line.starts_with("pagekeeper: ") && line.contains("io_uring or mappings"));
    let lines = |text: &str| text.lines().filter(is_own).map(|line| line.replace(&way.file, NAME)).collect();
    let mut files = BTreeMap::new();
    take_down(directory.path(), "", &way.file, &mut files);
    ProgramResults {
        code: outcome.code,
        stdout: lines(&outcome.stdout),
        stderr: lines(&outcome.stderr),
        files,
    }
}

/// Panics unless a program leaves the same in each of these ways as it leaves plain.
pub(crate) fn assert_same(program: &Path, arguments: &[&str], ways: &[Way], parent: &Path) {
    let plain = left_by(&Way::plain(), program, arguments, parent);
    assert!(plain.code == 0 && !plain.stdout.is_empty(), "it fails already plain: {plain:#?}");
    let differences: Vec<String> = ways
        .iter()
        .filter_map(|way| {
            let difference = difference(&plain, &left_by(way, program, arguments, parent))?;
            Some(format!("{} {arguments:?}, {}:\n{difference}", program.display(), way.label))
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Returns the first differing lines and their position; none if all are equal.
pub(crate) fn difference(expected: &ProgramResults, seen: &ProgramResults) -> Option<String> {
    const SHOWN: usize = 12;
    let mut differences = Vec::new();
    if expected.code != seen.code {
        differences.push(format!("ends with {}, not {}", seen.code, expected.code));
    }
    for (what, expected, seen) in [
        ("standard output", &expected.stdout, &seen.stdout),
        ("standard error", &expected.stderr, &seen.stderr),
    ] {
        let longest = expected.len().max(seen.len());
        let at = |lines: &[String], index: usize| {
            lines.get(index).cloned().unwrap_or_else(|| "nothing".to_owned())
        };
        differences.extend((0..longest).filter(|&index| expected.get(index) != seen.get(index)).map(
            |index| {
                format!(
                    "{what} {}:\n  plain: {}\n  now:   {}",
                    index + 1,
                    at(expected, index),
                    at(seen, index)
                )
            },
        ));
    }
    let names: std::collections::BTreeSet<&String> = expected.files.keys().chain(seen.files.keys()).collect();
    differences.extend(
        names
            .into_iter()
            .filter(|name| expected.files.get(*name) != seen.files.get(*name))
            .map(|name| format!("{name}: {:?}, not {:?}", seen.files.get(name), expected.files.get(name))),
    );
    let count = differences.len();
    differences.truncate(SHOWN);
    (count > 0).then(|| format!("{count} differences\n{}", differences.join("\n")))
}

/// Returns mode, size and checksum of all files below a directory, by name.
pub(crate) fn files_below(directory: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    take_down(directory, "", NAME, &mut files);
    files
}

fn take_down(directory: &Path, prefix: &str, hidden: &str, into: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(directory).expect("list a directory") {
        let path = entry.expect("list a directory").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        let name = name.strip_prefix(hidden).map_or_else(|| name.to_string(), |rest| format!("{NAME}{rest}"));
        let name = format!("{prefix}{name}");
        let status = path.symlink_metadata().expect("stat a file");
        let mode = status.permissions().mode();
        if status.is_dir() {
            into.insert(name.clone(), format!("mode {mode:o}"));
            take_down(&path, &format!("{name}/"), hidden, into);
        } else if status.is_file() {
            let sum = crc32c::crc32c(&std::fs::read(&path).expect("read a file"));
            into.insert(name, format!("mode {mode:o}, {} bytes, checksum {sum:08x}", status.len()));
        } else {
            into.insert(name, format!("mode {mode:o}"));
        }
    }
}

/// Builds `tests/preload/programs_in_c/NAME.c`, once for each test binary and set of options, and
/// returns its path.
pub(crate) fn built(name: &str, options: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    // Kept there by cargo, so that nothing is left elsewhere by a test binary, whose statics nobody
    // drops.
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let key = format!("{name} {}", options.join(" "));
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(&key) {
        return path.clone();
    }
    let path = place.join(format!("{name}-{:08x}", crc32c::crc32c(key.as_bytes())));
    let own = tempfile::tempdir_in(place).expect("make a directory");
    let new = own.path().join(name);
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../tests/preload/programs_in_c/{name}.c"));
    // Warnings are useless here: these programs misuse calls on purpose.
    let output = Command::new("cc")
        .args(["-std=gnu11", "-w", "-pthread"])
        .args(options)
        .arg("-o")
        .arg(&new)
        .arg(&source)
        .arg("-ldl")
        .output()
        .expect("run cc");
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    super::open_to_others(&new);
    // A program that another test binary is running is not replaced.
    std::fs::rename(&new, &path).expect("rename a program");
    built.insert(key, path.clone());
    path
}

/// Builds a library to preload.
pub(crate) fn built_library(name: &str, options: &[&str]) -> PathBuf {
    built(name, &[&["-shared", "-fPIC", "-O1"], options].concat())
}
