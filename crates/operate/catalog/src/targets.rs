//! Selects the databases that the guard acts on: those that `only` lists, none that `never` lists,
//! and with a canary only that one for real.
//!
//! Invariants:
//! 1. `never` overrides `only`. A database for which a list can't be decided (its process has just
//!    ended) is left alone.
//! 2. With a canary, decisions for anything that it does not select are reported, as in a dry run,
//!    and never carried out.
//!
//! An invalid selector is refused with a sentence that quotes it and shows the valid form.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};
use pagekeeper_kernel::process::ProcRoot;
use serde::{Deserialize, Deserializer};

use crate::directories::ownership::one_user;
use crate::text_value::TextValue;

/// Databases by one property.
///
/// ```
/// use pagekeeper_catalog::Selector;
///
/// let unit: Selector = "unit:mariadb@*.service".parse()?;
/// assert_eq!(unit.to_string(), "unit:mariadb@*.service");
/// assert!("service:mariadb".parse::<Selector>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone)]
pub enum Selector {
    /// Databases whose process runs as this user: `user:mysql`, `user:999`.
    User {
        /// As it was given.
        name: String,
        /// The user's number, in the user namespace of this process.
        uid: u32,
    },
    /// Databases in a systemd unit, by a glob: `unit:mariadb@*.service`. The unit is the outermost
    /// one: a container may make groups of any name inside its own.
    Unit(GlobMatcher),
    /// Databases in a control group or below it, by a glob of its path: `cgroup:/kubepods.slice/*`.
    Cgroup(GlobMatcher),
    /// Everything in a directory or below it, as the database sees it, with links followed:
    /// `dir:/var/lib/mysql`.
    Directory(PathBuf),
    /// One process: `pid:1234`.
    Process(u32),
}

/// The properties of a database's process that selectors check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessTraits {
    /// Its process id.
    pub pid: u32,
    /// Its user, if it has the rights of exactly one. A setuid program has those of two, and no
    /// single user.
    pub uid: Option<u32>,
    /// The paths of its control groups, from the root of this process's cgroup namespace, where
    /// they are known.
    pub cgroups: Option<Vec<PathBuf>>,
}

impl ProcessTraits {
    /// Reads the properties; one that can't be read is not known.
    fn of(proc: &ProcRoot, pid: u32) -> Self {
        let paths = proc.cgroup_paths(pid).ok().filter(|paths| !paths.is_empty());
        Self {
            pid,
            uid: proc.users(pid).ok().and_then(one_user),
            cgroups: paths.map(|paths| paths.into_iter().map(|cgroup| cgroup.path).collect()),
        }
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            format!(
                "\"{text}\" selects no database: {why}; give user:NAME, unit:NAME, cgroup:/PATH, dir:/PATH or \
                 pid:NUMBER, like unit:mariadb.service"
            )
        };
        let (kind, value) = text.split_once(':').ok_or_else(|| bad("it has no kind"))?;
        if value.is_empty() {
            return Err(bad("nothing stands after the colon"));
        }
        let glob = || path_glob(value).map_err(|error| bad(&error));
        let absolute = || if value.starts_with('/') { Ok(()) } else { Err(bad("its path is not absolute")) };
        match kind {
            "user" => {
                let uid = value.parse().ok().or_else(|| named_id("/etc/passwd", value));
                let uid = uid.ok_or_else(|| bad("/etc/passwd has no such user; a number will do"))?;
                Ok(Self::User { name: value.to_owned(), uid })
            }
            "unit" => Ok(Self::Unit(glob()?)),
            "cgroup" => absolute().and_then(|()| Ok(Self::Cgroup(glob()?))),
            "dir" => absolute().map(|()| Self::Directory(PathBuf::from(value))),
            "pid" => value.parse().map(Self::Process).map_err(|_| bad("that is no number of a process")),
            _ => Err(bad("its kind is unknown")),
        }
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TextValue::deserialize(deserializer).map(|selector| selector.0)
    }
}

impl Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User { name, .. } => write!(f, "user:{name}"),
            Self::Unit(glob) => write!(f, "unit:{}", glob.glob()),
            Self::Cgroup(glob) => write!(f, "cgroup:{}", glob.glob()),
            Self::Directory(path) => write!(f, "dir:{}", pagekeeper_text::escaped(path)),
            Self::Process(pid) => write!(f, "pid:{pid}"),
        }
    }
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Selector {
    /// Returns whether a process is in the unit or control group.
    pub fn has_member(&self, proc: &ProcRoot, pid: u32) -> bool {
        self.matches(Some(&ProcessTraits::of(proc, pid)), Path::new("")) == Some(true)
    }

    /// Returns whether it selects what lies in `directory` for that process; `None` if that is not
    /// known. Without a process only the directory counts.
    fn matches(&self, process: Option<&ProcessTraits>, directory: &Path) -> Option<bool> {
        if let Self::Directory(path) = self {
            return Some(directory.starts_with(path));
        }
        let Some(process) = process else { return Some(false) };
        Some(match self {
            Self::User { uid, .. } => process.uid? == *uid,
            Self::Unit(glob) => {
                process.cgroups.as_ref()?.iter().any(|path| {
                    path.iter().find(|name| is_unit(name)).is_some_and(|name| glob.is_match(name))
                })
            }
            Self::Cgroup(glob) => {
                let mut groups = process.cgroups.as_ref()?.iter().flat_map(|path| path.ancestors());
                groups.any(|group| glob.is_match(group))
            }
            Self::Directory(_) => false,
            Self::Process(pid) => process.pid == *pid,
        })
    }
}

/// Returns a glob of a whole path of a control group, or of the name of a unit.
pub fn path_glob(text: &str) -> Result<GlobMatcher, String> {
    // Names given by systemd contain backslashes: `system-a\x2db.slice`.
    let glob = GlobBuilder::new(text).literal_separator(true).backslash_escape(false).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.to_string())
}

/// Returns whether a control group is a systemd unit that holds processes: `mariadb.service`,
/// `docker-1a2b.scope`.
fn is_unit(name: &std::ffi::OsStr) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "service" || extension == "scope")
}

/// Returns the number of a user or group of this host, from `/etc/passwd` (passwd(5)) or
/// `/etc/group` (group(5)).
#[allow(clippy::disallowed_methods, reason = "a file of root's")]
pub fn named_id(table: &str, name: &str) -> Option<u32> {
    let table = std::fs::read(table).ok()?;
    table.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let is_it = fields.next()? == name.as_bytes();
        let id = fields.nth(1).filter(|_| is_it)?;
        std::str::from_utf8(id).ok()?.parse().ok()
    })
}

/// The reason why the configuration excludes a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// It lists what is watched, and this is not listed.
    NotSelected,
    /// It lists the directory as never to be watched.
    Never,
}

/// The databases that the guard acts on, among those that it finds; by default all.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Targets {
    /// If not empty, no other database that was found is watched. Databases that were named by
    /// process or directory still are.
    pub only: Vec<Selector>,
    /// Databases that are never watched, not even if they were named.
    pub never: Vec<Selector>,
    /// If set, decisions for everything else are reported, as in a dry run.
    pub canary: Option<Selector>,
}

impl Targets {
    /// Returns the properties of a process, as far as any selector needs them.
    pub fn traits_of(&self, proc: &ProcRoot, pid: u32) -> ProcessTraits {
        if self.only.is_empty() && self.never.is_empty() && self.canary.is_none() {
            return ProcessTraits { pid, ..ProcessTraits::default() };
        }
        ProcessTraits::of(proc, pid)
    }

    /// Returns why a directory of a process that was found, or that was `named` by the user, is not
    /// watched.
    pub fn refusal(
        &self,
        process: Option<&ProcessTraits>,
        directory: &Path,
        named: bool,
    ) -> Option<Exclusion> {
        let selects = |selector: &Selector| selector.matches(process, directory) == Some(true);
        if self.never(process, directory) {
            Some(Exclusion::Never)
        } else {
            let selected = named || self.only.is_empty() || self.only.iter().any(selects);
            (!selected).then_some(Exclusion::NotSelected)
        }
    }

    /// Returns whether what lies in a directory is never to be touched for that process, or that
    /// can't be ruled out.
    pub fn never(&self, process: Option<&ProcessTraits>, directory: &Path) -> bool {
        self.never.iter().any(|selector| selector.matches(process, directory) != Some(false))
    }

    /// Returns the same for a file of a streaming program, whose directory may not be known.
    pub fn never_in(&self, process: &ProcessTraits, directory: Option<&Path>) -> bool {
        let is_directory = |selector: &Selector| matches!(selector, Selector::Directory(_));
        match directory {
            Some(directory) => self.never(Some(process), directory),
            None => self.never.iter().any(is_directory) || self.never(Some(process), Path::new("")),
        }
    }

    /// Returns whether a directory of a process that was found, or one that was `named`, may be
    /// watched; for observers beside the guard.
    pub fn watches(&self, proc: &ProcRoot, pid: Option<u32>, directory: &Path, named: bool) -> bool {
        let process = pid.map(|pid| self.traits_of(proc, pid));
        self.refusal(process.as_ref(), directory, named).is_none()
    }

    /// Returns whether decisions for a directory are carried out, and not only reported.
    pub fn acts_on(&self, process: Option<&ProcessTraits>, directory: &Path) -> bool {
        self.canary.as_ref().is_none_or(|canary| canary.matches(process, directory) == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(text: &str) -> Selector {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn mariadb() -> ProcessTraits {
        ProcessTraits {
            pid: 7,
            uid: Some(999),
            cgroups: Some(vec!["/".into(), "/system.slice/mariadb@one.service/inner.service".into()]),
        }
    }

    #[test]
    fn names_that_systemd_gives_are_matched_with_their_backslashes() {
        let process = ProcessTraits {
            pid: 7,
            uid: Some(1),
            cgroups: Some(vec![r"/system.slice/my\x2ddb.service".into()]),
        };
        for text in [r"unit:my\x2d*.service", r"cgroup:/system.slice/my\x2ddb.service"] {
            assert_eq!(selector(text).matches(Some(&process), Path::new("/")), Some(true), "{text}");
        }
        assert_eq!(selector("unit:my-db.service").matches(Some(&process), Path::new("/")), Some(false));
    }

    #[test]
    fn databases_are_selected_by_each_property() {
        let (mariadb, data) = (mariadb(), Path::new("/var/lib/mysql/binlogs"));
        for (text, expected) in [
            ("user:999", true),
            ("user:root", false),
            ("unit:mariadb@*.service", true),
            ("unit:mariadb@one.service", true),
            ("unit:mariadb", false),
            ("unit:system.slice", false),
            ("unit:inner.service", false),
            ("cgroup:/system.slice", true),
            ("cgroup:/system.slice/*", true),
            ("cgroup:/user.slice/*", false),
            ("dir:/var/lib/mysql", true),
            ("dir:/var/lib/my", false),
            ("pid:7", true),
            ("pid:8", false),
        ] {
            assert_eq!(selector(text).matches(Some(&mariadb), data), Some(expected), "{text}");
            assert_eq!(selector(text).to_string(), text);
            // For a directory that was named no process is known.
            let of_directory = expected && text.starts_with("dir:");
            assert_eq!(selector(text).matches(None, data), Some(of_directory), "{text}");
        }
    }

    #[test]
    fn never_wins_and_named_databases_need_no_list() {
        let (process, directory) = (mariadb(), Path::new("/d"));
        let targets = |only: &[&str], never: &[&str]| Targets {
            only: only.iter().map(|text| selector(text)).collect(),
            never: never.iter().map(|text| selector(text)).collect(),
            canary: None,
        };
        for (only, never, found, named) in [
            (&[][..], &[][..], true, true),
            (&["user:999"], &[], true, true),
            (&["user:1", "dir:/d"], &[], true, true),
            (&["user:1"], &[], false, true),
            (&["user:999"], &["pid:7"], false, false),
            (&[], &["dir:/d"], false, false),
        ] {
            let targets = targets(only, never);
            let refusal = |named| targets.refusal(Some(&process), directory, named);
            assert_eq!(
                [false, true].map(|named| refusal(named).is_none()),
                [found, named],
                "{only:?} {never:?}"
            );
        }
        // Its user could not be read, or the program has the permissions of two users.
        let unknown = ProcessTraits { pid: 7, ..ProcessTraits::default() };
        let refusal =
            |only: &[&str], never: &[&str]| targets(only, never).refusal(Some(&unknown), directory, false);
        assert_eq!(refusal(&["user:999"], &[]), Some(Exclusion::NotSelected));
        assert_eq!(refusal(&[], &["user:999"]), Some(Exclusion::Never), "it may be that user's");
        assert_eq!(refusal(&[], &["unit:x.service"]), Some(Exclusion::Never));
        assert_eq!(refusal(&[], &["pid:8", "dir:/e"]), None);
    }

    #[test]
    fn a_canary_is_the_only_one_that_is_acted_on() {
        let process = mariadb();
        let targets = Targets { canary: Some(selector("unit:mariadb@one.service")), ..Targets::default() };
        assert!(targets.acts_on(Some(&process), Path::new("/d")));
        assert!(!targets.acts_on(None, Path::new("/d")));
        assert!(!targets.acts_on(Some(&ProcessTraits::default()), Path::new("/d")));
        assert!(Targets::default().acts_on(None, Path::new("/d")));
    }

    #[test]
    fn a_selector_that_selects_nothing_is_refused_with_an_example() {
        for text in
            ["mysql", "user:", "user:no-such-user", "cgroup:a", "dir:x", "pid:x", "unit:[", "service:x"]
        {
            let error = text.parse::<Selector>().unwrap_err();
            assert!(error.contains(text) && error.contains("like unit:mariadb.service"), "{error}");
        }
    }
}
