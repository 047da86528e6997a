//! The choice of rules on the command line and in a configuration, in the form that the preloaded
//! library takes.
//!
//! The profiles and the list of streaming programs are the guard's. Invariants: nothing of a
//! profile is dropped silently: anything the library could not take (too many files, names it can't
//! match) is refused. Fails with a sentence for the operator.

use std::path::PathBuf;

use globset::GlobMatcher;
use pagekeeper_catalog::{FileSpec, LogSpec, Profile, STREAMING_PROGRAMS, find_profile};
use pagekeeper_guard::Options;
use pagekeeper_kernel::page_size;
use pagekeeper_policy::file_action::FileAction;
use pagekeeper_policy::{FileClass, Rule};
use pagekeeper_preload::settings::{RULES_MAX, TEXT_MAX};

use crate::budget;
use crate::command_line::COMM_BYTES_MAX;
use crate::settings::{FileRule, ProfileRules, Role, Settings};

/// Programs that stream when started by hand or by a script, in addition to those that the guard
/// looks for among all processes. The guard must leave these alone, since they also do other
/// things.
const EXTRA_STREAMS: [&str; 8] = ["cat", "mv", "split", "openssl", "gpg", "b3sum", "pg_restore", "mysqlsh"];

/// The reason why a choice can't be used; contains a sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChoiceError(String);

/// The choice.
#[derive(Debug, Default)]
pub struct Choice {
    /// The profile of every process that is not a stream (`--profile`).
    pub profile: Option<String>,
    /// The role of every process (`--as`).
    pub role: Option<Role>,
    /// The guard's configuration file (`--config`).
    pub config: Option<PathBuf>,
}

impl Choice {
    /// Returns the settings on this host, without a report.
    pub fn settings_here(&self) -> Result<Settings, ChoiceError> {
        self.settings(budget::budget_here())
    }

    /// Returns the settings with this budget, without a report.
    pub(crate) fn settings(&self, budget: u64) -> Result<Settings, ChoiceError> {
        let given = self.config.as_deref().map(Options::read).transpose();
        let given = given.map_err(|error| ChoiceError(error.to_string()))?;
        let mut settings = Settings {
            role: Role::Auto,
            streams: Vec::new(),
            command: None,
            budget,
            report: None,
            readers: None,
            launcher: None,
            profiles: Vec::new(),
        };
        if let Some(role) = self.role {
            return Ok(Settings { role, ..settings });
        }
        // Reading the built-in profiles takes most of the start time, and is not needed above.
        let options = given.unwrap_or_default();
        settings.streams = streams(&options);
        settings.profiles = match self.profile.as_ref().or(options.profile.as_ref()) {
            Some(name) => {
                let profile =
                    find_profile(&options.profiles, name).map_err(|error| ChoiceError(error.to_string()))?;
                let files = files(profile, &options);
                vec![ProfileRules { name: name.clone(), processes: vec!["*".to_owned()], files }]
            }
            None => by_process(&options)?,
        };
        if let Some(many) = settings.profiles.iter().find(|profile| profile.files.len() > RULES_MAX) {
            return Err(ChoiceError(format!(
                "the profile \"{}\" names more than {RULES_MAX} kinds of files, the most that one process takes",
                many.name
            )));
        }
        // The paths of the report and of the readers' shared file are added later.
        if settings.encode().len() > TEXT_MAX - 4096 {
            return Err(ChoiceError(format!(
                "the profiles come to more than the {TEXT_MAX} bytes that a process takes: choose one with --profile"
            )));
        }
        Ok(settings)
    }
}

/// Returns the names of streaming programs.
fn streams(options: &Options) -> Vec<String> {
    let given = &options.streams.processes;
    let own = *given != STREAMING_PROGRAMS;
    let more = EXTRA_STREAMS.iter().filter(|_| !own).map(|&name| name.to_owned());
    given.iter().cloned().chain(more).collect()
}

/// Returns the profiles by process name. A name shared by several (both MySQL and MariaDB are
/// called `mysqld`) gets the files of all of them, which their names distinguish.
fn by_process(options: &Options) -> Result<Vec<ProfileRules>, ChoiceError> {
    let all = options.profiles.iter().map(|profile| {
        let names = profile.processes.iter().map(comm).collect::<Result<Vec<String>, _>>()?;
        Ok((profile, names))
    });
    let named: Vec<(&Profile, Vec<String>)> = all.collect::<Result<_, _>>()?;
    let mut rules: Vec<ProfileRules> = Vec::new();
    for (profile, names) in &named {
        let mut own = ProfileRules { name: profile.name.clone(), processes: Vec::new(), files: Vec::new() };
        for process in names {
            let sharers = named.iter().filter(|(_, names)| names.contains(process));
            let sharers: Vec<&Profile> = sharers.map(|(profile, _)| *profile).collect();
            if sharers.len() < 2 {
                own.processes.push(process.clone());
            } else if !rules.iter().any(|rules| rules.processes.contains(process)) {
                let together: Vec<&str> = sharers.iter().map(|profile| profile.name.as_str()).collect();
                let mut shared: Vec<FileRule> = Vec::new();
                for rule in sharers.iter().flat_map(|profile| files(profile, options)) {
                    if !shared.iter().any(|other| other.pattern == rule.pattern) {
                        shared.push(rule);
                    }
                }
                rules.push(ProfileRules {
                    name: together.join("+"),
                    processes: vec![process.clone()],
                    files: shared,
                });
            }
        }
        // A profile without process names, or with shared ones, identifies its server's scripts by
        // its own name.
        if !own.processes.is_empty() {
            own.files = files(profile, options);
        }
        rules.push(own);
    }
    Ok(rules)
}

/// Returns a process name as the kernel keeps it.
fn comm(name: &GlobMatcher) -> Result<String, ChoiceError> {
    let name = name.glob().glob();
    if name.contains(['?', '[', ']', '{', '}', '\\']) {
        return Err(ChoiceError(format!(
            "the process \"{name}\": inside a program only * stands for other characters"
        )));
    }
    let cut =
        name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= COMM_BYTES_MAX).last();
    Ok(if name.contains('*') { name } else { &name[..cut.unwrap_or(0)] }.to_owned())
}

/// Returns the actions on the files of a profile.
fn files(profile: &Profile, options: &Options) -> Vec<FileRule> {
    // Text logs are left to the guard: several processes append to one, so none of them knows its
    // end.
    let logs = profile.logs.iter().filter(|log| log.class != FileClass::Text).map(|log| FileRule {
        pattern: log.files.as_str().to_owned(),
        action: log_action(options.rule_of(&profile.name, log), log),
    });
    let files = profile
        .files
        .iter()
        .map(|file| FileRule { pattern: file.files.as_str().to_owned(), action: file_action(file) });
    logs.chain(files).collect()
}

fn log_action(rule: Rule, log: &LogSpec) -> FileAction {
    match rule {
        Rule::ReleaseBehindWriter { .. }
        | Rule::ReleaseBehindFollowers { .. }
        | Rule::Budget { .. }
        | Rule::ReleaseOnRotation => FileAction::Log { rule, rewrite: log.rewrite_on(page_size()) },
        Rule::Direct => FileAction::Data { direct_only: true },
        // The library sees no checkpoint, so it does not know what recovery would read, and
        // everything stays.
        Rule::Keep | Rule::ReleaseBeforeCheckpoint { .. } => FileAction::Leave,
    }
}

fn file_action(file: &FileSpec) -> FileAction {
    if let Some(pages) = file.bulk {
        return FileAction::Bulk(pages);
    }
    match file.class {
        FileClass::Data => FileAction::Data { direct_only: file.direct_only },
        FileClass::Redo
        | FileClass::Binlog
        | FileClass::Relay
        | FileClass::Wal
        | FileClass::Messages
        | FileClass::Text
        | FileClass::Temp => FileAction::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::{BulkPages, DEFAULT_NEAR_FILES, DEFAULT_SLACK, RewriteKind, RewriteSource};
    use pagekeeper_preload::settings::{Part, Plan};

    fn text(choice: &Choice) -> String {
        choice.settings(1 << 20).unwrap().encode()
    }

    fn configured(name: &str, config: &str) -> Result<Settings, ChoiceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guard.toml");
        std::fs::write(&path, config).unwrap();
        std::fs::write(dir.path().join("own.toml"), name).unwrap();
        Choice { config: Some(path), ..Choice::default() }.settings(1 << 20)
    }

    const BEHIND_WRITER: Rule = Rule::ReleaseBehindWriter { slack: DEFAULT_SLACK };
    const FOLLOWED: Rule =
        Rule::ReleaseBehindFollowers { near_files: DEFAULT_NEAR_FILES, slack: DEFAULT_SLACK };

    fn log(rule: Rule, rewrite: RewriteSource) -> FileAction {
        FileAction::Log { rule, rewrite }
    }

    #[test]
    fn each_program_is_known_by_its_name() {
        let text = text(&Choice::default());
        let plan = |comm: &str| Plan::decode(text.as_bytes(), comm.as_bytes()).unwrap();
        for stream in [
            "tar",
            "cp",
            "pg_basebackup",
            "pg_combinebacku",
            "mariabackup",
            "mariadb-backup",
            "barman-wal-arch",
            "wal-g-pg",
            "cat",
        ] {
            assert_eq!(plan(stream).part, Part::Stream, "{stream}");
        }
        assert_eq!(plan("sh").part, Part::Undecided);
        let rocksdb = plan("db_bench");
        assert_eq!(
            rocksdb.rule_for(b"/d/000012.sst").map(|rule| rule.1),
            Some(FileAction::Bulk(BulkPages::Keep))
        );
        assert_eq!(
            rocksdb.rule_for(b"/d/000012.log").map(|rule| rule.1),
            Some(log(BEHIND_WRITER, RewriteSource::Detect))
        );
        assert_eq!(rocksdb.rule_for(b"/d/LOG").map(|rule| rule.1), None);
        assert_eq!(
            plan("postgres").rule_for(b"pg_wal/000000010000000000000001").map(|rule| rule.1),
            Some(log(FOLLOWED, RewriteSource::Known(RewriteKind::WholePages)))
        );
    }

    #[test]
    fn a_name_that_two_databases_have_gets_the_files_of_both() {
        let text = text(&Choice::default());
        for (comm, redo) in [("mysqld", true), ("mariadbd", false)] {
            let plan = Plan::decode(text.as_bytes(), comm.as_bytes()).unwrap();
            let mysql = plan.rule_for(b"/d/#innodb_redo/#ib_redo7").map(|rule| rule.1);
            assert_eq!(
                mysql,
                redo.then(|| log(BEHIND_WRITER, RewriteSource::Known(RewriteKind::WholePages))),
                "{comm}"
            );
            assert_eq!(
                plan.rule_for(b"/d/ib_logfile0").map(|rule| rule.1),
                Some(log(BEHIND_WRITER, RewriteSource::DeviceBlocks))
            );
            assert_eq!(
                plan.rule_for(b"/d/bin.000002").map(|rule| rule.1),
                Some(log(FOLLOWED, RewriteSource::Known(RewriteKind::Never)))
            );
            assert_eq!(
                plan.rule_for(b"/d/shop/orders.ibd").map(|rule| rule.1),
                Some(FileAction::Data { direct_only: true })
            );
            assert_eq!(
                plan.rule_for(b"/d/shop/t.MYD").map(|rule| rule.1),
                Some(FileAction::Data { direct_only: false })
            );
            assert_eq!(plan.rule_for(b"/d/#sql-1.ibd").map(|rule| rule.1), Some(FileAction::Leave));
            assert_eq!(
                plan.rule_for(b"/d/#rocksdb/1.sst").map(|rule| rule.1),
                Some(FileAction::Bulk(BulkPages::Keep))
            );
        }
    }

    #[test]
    fn a_chosen_profile_is_for_every_process_that_does_not_stream() {
        let text = text(&Choice { profile: Some("rocksdb".to_owned()), ..Choice::default() });
        let part = |comm: &str| Plan::decode(text.as_bytes(), comm.as_bytes()).unwrap().part;
        assert_eq!((part("my-engine"), part("rsync")), (Part::Files, Part::Stream));
        let unknown = Choice { profile: Some("oracle".to_owned()), ..Choice::default() };
        let error = unknown.settings(0).unwrap_err().to_string();
        assert!(error.contains("\"oracle\"; there are mariadb, mysql"), "{error}");
    }

    #[test]
    fn a_kind_for_all_programs_excludes_profiles() {
        for (role, part) in [(Role::Stream, Part::Stream), (Role::Bulk, Part::Bulk), (Role::Logs, Part::Logs)]
        {
            let text = text(&Choice { role: Some(role), ..Choice::default() });
            let plan = Plan::decode(text.as_bytes(), b"mysqld").unwrap();
            assert_eq!((plan.part, plan.rules().len(), plan.budget), (part, 0, 1 << 20));
        }
    }

    #[test]
    fn a_configuration_brings_profiles_rules_and_streams() {
        let own = "name = \"own\"\nprocesses = [\"a-name-that-is-too-long\"]\n[[log]]\nclass = \"wal\"\n\
                   files = \"x.{n}\"\nrule = \"release-on-rotation\"\n[[file]]\nclass = \"data\"\n\
                   files = \"y\"\nbulk = \"release\"\n";
        let config = "profiles = [\"own.toml\"]\n[rules.binlog]\nrule = \"keep\"\n[streams]\n\
                      processes = [\"my-*\"]\n";
        let text = configured(own, config).unwrap().encode();
        let plan = |comm: &str| Plan::decode(text.as_bytes(), comm.as_bytes()).unwrap();
        assert_eq!((plan("my-backup").part, plan("tar").part), (Part::Stream, Part::Undecided));
        let own = plan("a-name-that-is-");
        assert_eq!(
            own.rule_for(b"x.7").map(|rule| rule.1),
            Some(log(Rule::ReleaseOnRotation, RewriteSource::Detect))
        );
        assert_eq!(own.rule_for(b"y").map(|rule| rule.1), Some(FileAction::Bulk(BulkPages::Release)));
        assert_eq!(plan("mariadbd").rule_for(b"bin.000001").map(|rule| rule.1), Some(FileAction::Leave));
    }

    #[test]
    fn options_that_a_process_cannot_take_are_refused() {
        let profile = |process: &str, files: usize| {
            let file = |nth| format!("[[file]]\nclass = \"data\"\nfiles = \"file-{nth}\"\n");
            format!(
                "name = \"own\"\nprocesses = [\"{process}\"]\n[[log]]\nclass = \"wal\"\nfiles = \"x\"\nrule = \"keep\"\n"
            ) + &(0..files).map(file).collect::<String>()
        };
        let refused = |own: &str| configured(own, "profiles = [\"own.toml\"]\n").unwrap_err().to_string();
        assert!(refused(&profile("p", 64)).contains("more than 64 kinds of files"));
        assert!(refused(&profile("p?", 1)).contains("only * stands"));
        assert!(configured(&profile("p", 63), "profiles = [\"own.toml\"]\n").is_ok());
    }
}
