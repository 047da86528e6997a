//! The paths of a command and the tree below them: the arguments that `stat`, `evict` and others
//! share.
//!
//! Invariants: a named link is followed, a link found below only with `-L`. An excluded directory
//! is not entered. Globs apply to named files as to files found below, so a shell's wildcard and
//! `--exclude` work together. Fails with a usage error if no path is given, and with the file's
//! name if a list can't be read.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use pagekeeper_kernel::{InspectedFile, Result, WalkOptions, read_named, walk};
use pagekeeper_text::escaped;

use crate::output::UsageError;

/// Longest list of paths, in bytes: ten million names.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// Which files a command works on.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TreeArgs {
    /// Files, and directories with all that is below them
    #[arg(value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// A directory, as a PATH; may be given several times
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, help_heading = "Which files")]
    dir: Vec<PathBuf>,
    /// Stay on the file system of each PATH
    #[arg(short = 'x', long, help_heading = "Which files")]
    one_file_system: bool,
    /// Follow symbolic links found below PATH (a PATH itself is always followed)
    #[arg(short = 'L', long, help_heading = "Which files")]
    follow: bool,
    /// Only files whose name, or path below PATH, matches; may be given several times
    #[arg(long, value_name = "GLOB", value_parser = parse_glob, help_heading = "Which files")]
    include: Vec<Glob>,
    /// No files or directories whose name, or path below PATH, matches; may be given several times
    #[arg(long, value_name = "GLOB", value_parser = parse_glob, help_heading = "Which files")]
    exclude: Vec<Glob>,
    /// Take more PATHs from FILE, one a line; "-" is standard input
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "Which files")]
    files_from: Option<PathBuf>,
    /// The paths in FILE end with a NUL byte, as "find -print0" writes them
    #[arg(short = '0', long, requires = "files_from", help_heading = "Which files")]
    null: bool,
}

/// In a path, `*` stops at a slash and `**` does not, as in .gitignore.
fn parse_glob(text: &str) -> std::result::Result<Glob, globset::Error> {
    GlobBuilder::new(text).literal_separator(true).build()
}

impl TreeArgs {
    /// Returns the paths of the command line.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Reads the list of paths and compiles the globs.
    pub(crate) fn tree(&self) -> anyhow::Result<Tree> {
        let mut roots = [self.paths.as_slice(), &self.dir].concat();
        if let Some(list) = &self.files_from {
            roots.extend(read_list(list, if self.null { 0 } else { b'\n' })?);
        } else if roots.is_empty() {
            return Err(UsageError(
                "no PATH given: name files or directories, or use --files-from".to_owned(),
            )
            .into());
        }
        let set = |globs: &[Glob]| -> anyhow::Result<Option<GlobSet>> {
            if globs.is_empty() {
                return Ok(None);
            }
            let mut builder = GlobSetBuilder::new();
            for glob in globs {
                builder.add(glob.clone());
            }
            Ok(Some(builder.build()?))
        };
        Ok(Tree {
            named: roots.iter().cloned().collect(),
            roots,
            include: set(&self.include)?,
            exclude: set(&self.exclude)?,
            one_file_system: self.one_file_system,
            follow: self.follow,
            devices: Vec::new(),
        })
    }
}

fn read_list(list: &Path, separator: u8) -> anyhow::Result<Vec<PathBuf>> {
    let content = if list == Path::new("-") {
        read_open(std::io::stdin().lock()).context("can't read paths from standard input")?
    } else if list.starts_with("/dev/fd") {
        // For a shell's <(…) the pipe is already open, so this waits only for its writer.
        let file = std::fs::File::open(list);
        file.and_then(read_open).with_context(|| format!("can't read paths from {}", escaped(list)))?
    } else {
        read_named(list, LIST_BYTES_MAX)
            .with_context(|| format!("can't read paths from {}", escaped(list)))?
    };
    let paths = content.split(|&byte| byte == separator).filter(|path| !path.is_empty());
    Ok(paths.map(|path| OsString::from_vec(path.to_vec()).into()).collect())
}

/// Reads an open file to its end, at most [`LIST_BYTES_MAX`].
fn read_open(list: impl Read) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    list.take(LIST_BYTES_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LIST_BYTES_MAX {
        return Err(std::io::Error::other(format!("longer than {LIST_BYTES_MAX} bytes")));
    }
    Ok(content)
}

/// The files of a command, ready to be walked.
#[derive(Debug)]
pub(crate) struct Tree {
    roots: Vec<PathBuf>,
    named: HashSet<PathBuf>,
    include: Option<GlobSet>,
    exclude: Option<GlobSet>,
    one_file_system: bool,
    follow: bool,
    /// Paths that may be block devices.
    devices: Vec<PathBuf>,
}

impl Tree {
    /// Accepts block devices, too, if they are on the command line: a list may come from a search.
    pub(crate) fn with_devices(self, args: &TreeArgs) -> Self {
        Self { devices: args.paths.clone(), ..self }
    }

    /// Whether the caller named exactly this path.
    pub(crate) fn is_named(&self, path: &Path) -> bool {
        self.named.contains(path)
    }

    /// Visits each file once, from `threads` threads (by default one for each CPU), in no
    /// particular order.
    pub(crate) fn walk(&self, threads: Option<usize>, visit: &(dyn Fn(Result<InspectedFile>) + Sync)) {
        self.walk_until(&|| false, threads, visit);
    }

    /// Does the same as [`Self::walk`], but ends early once `stop` returns true.
    pub(crate) fn walk_until(
        &self,
        stop: &(dyn Fn() -> bool + Sync),
        threads: Option<usize>,
        visit: &(dyn Fn(Result<InspectedFile>) + Sync),
    ) {
        let defaults = WalkOptions::default();
        let threads = threads.unwrap_or(defaults.threads);
        let options = WalkOptions {
            follow_links: self.follow,
            one_file_system: self.one_file_system,
            devices: &self.devices,
            threads,
            filter: None,
            beneath: None,
            names: None,
            stop: Some(stop),
        };
        if self.include.is_none() && self.exclude.is_none() {
            return walk(&self.roots, &options, visit);
        }
        let wanted = |path: &Path, is_directory: bool| self.wanted(path, is_directory);
        walk(&self.roots, &WalkOptions { filter: Some(&wanted), ..options }, &|visited| match visited {
            Ok(file) if self.is_named(file.path()) && !self.wanted(file.path(), false) => {}
            visited => visit(visited),
        });
    }

    /// Judges a path by its name and by each of its parent paths below a named one.
    fn wanted(&self, path: &Path, is_directory: bool) -> bool {
        let matched = |set: &GlobSet| {
            path.file_name().is_some_and(|name| set.is_match(name))
                || path
                    .ancestors()
                    .skip(1)
                    .filter(|ancestor| self.is_named(ancestor))
                    .any(|root| path.strip_prefix(root).is_ok_and(|below| set.is_match(below)))
        };
        if self.exclude.as_ref().is_some_and(matched) {
            return false;
        }
        is_directory || self.include.as_ref().is_none_or(matched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn found(args: &TreeArgs) -> Vec<String> {
        let found = Mutex::new(Vec::new());
        args.tree().unwrap().walk(None, &|visited| {
            let name = visited.unwrap().path().file_name().unwrap().to_string_lossy().into_owned();
            found.lock().unwrap().push(name);
        });
        let mut found = found.into_inner().unwrap();
        found.sort();
        found
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("logs/old")).unwrap();
        for file in ["a.ibd", "b.ibd", "logs/binlog.1", "logs/old/binlog.0", "logs/old/note"] {
            std::fs::write(dir.path().join(file), b"").unwrap();
        }
        dir
    }

    fn args(dir: &Path, include: &[&str], exclude: &[&str]) -> TreeArgs {
        let globs = |texts: &[&str]| texts.iter().map(|text| parse_glob(text).unwrap()).collect();
        TreeArgs {
            paths: vec![dir.to_path_buf()],
            include: globs(include),
            exclude: globs(exclude),
            ..TreeArgs::default()
        }
    }

    #[test]
    fn globs_judge_names_and_paths_below() {
        let dir = tree();
        for (include, exclude, expected) in [
            (&[][..], &[][..], &["a.ibd", "b.ibd", "binlog.0", "binlog.1", "note"][..]),
            (&["*.ibd"], &[], &["a.ibd", "b.ibd"]),
            (&["binlog.*", "note"], &[], &["binlog.0", "binlog.1", "note"]),
            (&["logs/*"], &[], &["binlog.1"]),
            (&["logs/**"], &[], &["binlog.0", "binlog.1", "note"]),
            (&[], &["old"], &["a.ibd", "b.ibd", "binlog.1"]),
            (&[], &["logs/old"], &["a.ibd", "b.ibd", "binlog.1"]),
            (&["*.ibd"], &["a.*"], &["b.ibd"]),
        ] {
            assert_eq!(found(&args(dir.path(), include, exclude)), expected, "{include:?} {exclude:?}");
        }
    }

    #[test]
    fn named_files_are_judged_too() {
        let dir = tree();
        let mut args = args(dir.path(), &[], &["a.*"]);
        args.paths = vec![dir.path().join("a.ibd"), dir.path().join("b.ibd")];
        assert_eq!(found(&args), ["b.ibd"]);
    }

    #[test]
    fn lists_of_paths_are_read_by_line_or_nul() {
        let dir = tree();
        let list = dir.path().join("logs/old/note");
        for (null, separator) in [(false, "\n"), (true, "\0")] {
            let paths: Vec<String> =
                ["a.ibd", "b.ibd"].iter().map(|name| format!("{}/{name}", dir.path().display())).collect();
            std::fs::write(&list, paths.join(separator) + separator).unwrap();
            let args = TreeArgs { files_from: Some(list.clone()), null, ..TreeArgs::default() };
            assert_eq!(found(&args), ["a.ibd", "b.ibd"]);
        }
    }

    #[test]
    fn no_path_is_a_usage_error() {
        let error = TreeArgs::default().tree().unwrap_err();
        assert!(error.downcast_ref::<UsageError>().is_some());
    }
}
