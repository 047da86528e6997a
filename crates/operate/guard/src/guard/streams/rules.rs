//! Rules for the files of streaming programs, from what the configuration says about their
//! processes and directories.
//!
//! A file is left alone if that can't be decided.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use globset::GlobMatcher;
use pagekeeper_catalog::{ProcessTraits, Targets};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_streams::Verdict;

use crate::config::Options;

/// A process is read again after this time: it may have become another program, or moved to another
/// cgroup.
const TRAITS_FOR: Duration = Duration::from_secs(1);
/// Maximum number of remembered processes.
const PROCESSES_MAX: usize = 1024;

/// The remembered state of a process.
#[derive(Debug, Clone)]
struct StreamProcess {
    read: Instant,
    traits: ProcessTraits,
    /// Whether a profile names it.
    is_database: bool,
}

/// The rules, and the processes that they were asked about.
pub(super) struct StreamRules {
    proc: ProcRoot,
    dry_run: bool,
    targets: Targets,
    databases: Vec<GlobMatcher>,
    known: HashMap<u32, StreamProcess>,
}

impl StreamRules {
    pub(super) fn new(proc: ProcRoot, options: &Options) -> Self {
        let databases = options.profiles.iter().flat_map(|profile| profile.processes.iter().cloned());
        Self {
            proc,
            dry_run: options.dry_run,
            targets: options.targets.clone(),
            databases: databases.collect(),
            known: HashMap::new(),
        }
    }

    /// Returns the verdict on a file of which a process brought in pages.
    pub(super) fn verdict(&mut self, pid: u32, file: Option<&Path>, now: Instant) -> Verdict {
        let process = self.process(pid, now);
        let directory = file.map(|file| file.parent().unwrap_or(file));
        // The list `only` contains databases, and a streaming program is not one.
        if process.is_database || self.targets.never_in(&process.traits, directory) {
            Verdict::Leave
        } else if self.dry_run
            || !self.targets.acts_on(Some(&process.traits), directory.unwrap_or(Path::new("")))
        {
            Verdict::Report
        } else {
            Verdict::Release
        }
    }

    /// Returns why a process may not be followed for the user who asks for it.
    pub(super) fn refusal(&mut self, pid: u32, now: Instant) -> Option<&'static str> {
        let process = self.process(pid, now);
        if process.is_database {
            Some("its name is that of a database, which is never followed")
        } else if self.targets.never(Some(&process.traits), Path::new("")) {
            Some("the guard's configuration says never to touch its files")
        } else if self.dry_run || !self.targets.acts_on(Some(&process.traits), Path::new("")) {
            Some("the guard only reports what it would do")
        } else {
            None
        }
    }

    /// Returns the state of a process; the last known one, if it has ended.
    fn process(&mut self, pid: u32, now: Instant) -> StreamProcess {
        let known = self.known.get(&pid);
        if let Some(known) = known.filter(|known| now.saturating_duration_since(known.read) < TRAITS_FOR) {
            return known.clone();
        }
        let name = match (self.proc.name(pid), known) {
            (Err(_), Some(known)) => return known.clone(),
            (name, _) => name.ok(),
        };
        let is_database =
            name.is_some_and(|name| self.databases.iter().any(|database| database.is_match(&name)));
        let traits = self.targets.traits_of(&self.proc, pid);
        let process = StreamProcess { read: now, traits, is_database };
        if self.known.len() >= PROCESSES_MAX {
            self.known.clear();
        }
        self.known.insert(pid, process.clone());
        process
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_catalog::Selector;
    use pagekeeper_testing::fake_process;

    #[test]
    fn databases_and_excluded_targets_are_refused() {
        let case = Case::new();
        case.process(7, "mariadbd");
        case.process(8, "tar");
        let refusal = |targets, pid| case.rules(targets).refusal(pid, case.now);
        assert!(refusal(Targets::default(), 7).unwrap().contains("database"));
        assert_eq!(refusal(Targets::default(), 8), None);
        let never = Targets { never: vec![Selector::Process(8)], ..Targets::default() };
        assert!(refusal(never, 8).unwrap().contains("never to touch"));
        let canary = Targets { canary: Some(Selector::Process(9)), ..Targets::default() };
        assert!(refusal(canary, 8).unwrap().contains("only reports"));
        let options = Options { dry_run: true, ..Options::default() };
        let mut dry = StreamRules::new(ProcRoot::at(case.tree.path()), &options);
        assert!(dry.refusal(8, case.now).unwrap().contains("only reports"));
    }

    struct Case {
        tree: tempfile::TempDir,
        now: Instant,
    }

    impl Case {
        fn new() -> Self {
            Self { tree: tempfile::tempdir().unwrap(), now: Instant::now() }
        }

        fn process(&self, pid: u32, name: &str) {
            fake_process(self.tree.path(), pid, name, 1, &[]);
        }

        fn rules(&self, targets: Targets) -> StreamRules {
            let options = Options { targets, ..Options::default() };
            StreamRules::new(ProcRoot::at(self.tree.path()), &options)
        }

        fn verdicts(&self, targets: Targets) -> [Verdict; 2] {
            let mut rules = self.rules(targets);
            [Some(Path::new("/backup/dump")), None].map(|file| rules.verdict(7, file, self.now))
        }
    }

    fn select(text: &str) -> Vec<Selector> {
        vec![text.parse().unwrap()]
    }

    #[test]
    fn a_stream_that_the_configuration_excludes_is_left_alone() {
        use Verdict::{Leave, Release, Report};
        let case = Case::new();
        case.process(7, "tar");
        let never = |text: &str| Targets { never: select(text), ..Targets::default() };
        let canary = |text: &str| Targets { canary: select(text).pop(), ..Targets::default() };
        // A list of databases does not apply to other programs.
        let only = Targets { only: select("pid:8"), ..Targets::default() };
        for (targets, expected) in [
            (Targets::default(), [Release, Release]),
            (only, [Release, Release]),
            (never("pid:7"), [Leave, Leave]),
            (never("pid:8"), [Release, Release]),
            // A file whose directory is not known may be in this one.
            (never("dir:/backup"), [Leave, Leave]),
            (never("dir:/data"), [Release, Leave]),
            // A process whose user is not known may be this user's.
            (never("user:4711"), [Leave, Leave]),
            (canary("pid:7"), [Release, Release]),
            (canary("pid:8"), [Report, Report]),
            (canary("dir:/backup"), [Release, Report]),
        ] {
            assert_eq!(case.verdicts(targets.clone()), expected, "{targets:?}");
        }
        let mut rules = case.rules(Targets::default());
        rules.dry_run = true;
        assert_eq!(rules.verdict(7, None, case.now), Report);
    }

    #[test]
    fn a_database_is_left_alone_also_where_a_stream_becomes_one() {
        let case = Case::new();
        case.process(7, "tar");
        let mut rules = case.rules(Targets::default());
        assert_eq!(rules.verdict(7, None, case.now), Verdict::Release);
        case.process(7, "mariadbd");
        assert_eq!(rules.verdict(7, None, case.now + TRAITS_FOR), Verdict::Leave);
        // The last known state still holds when it has ended.
        std::fs::remove_dir_all(case.tree.path().join("7")).unwrap();
        assert_eq!(rules.verdict(7, None, case.now + 3 * TRAITS_FOR), Verdict::Leave);
        assert_eq!(rules.verdict(8, None, case.now), Verdict::Release, "a process that was never seen");
    }
}
