//! The settings of a command in the text that its processes get
//! ([`VARIABLE`](pagekeeper_preload::settings::VARIABLE)), which the preloaded library reads
//! ([`Plan`]).
//!
//! Invariant: decoding returns what was encoded, except names that contain a newline.

#![allow(clippy::disallowed_methods, reason = "the text of settings, which is not printed")]

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use pagekeeper_policy::file_action::{FileAction, split_word};
use pagekeeper_preload::settings::{Part, Plan};

/// The role of the processes of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Each by its own name: a streaming program, or one of a profile's.
    Auto,
    /// Each reads and writes streams.
    Stream,
    /// Each writes files in bulk.
    Bulk,
    /// Each writes logs.
    Logs,
}

/// The settings that a launcher gives to the processes that it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Their role.
    pub role: Role,
    /// Names of streaming programs (`comm`, in which `*` stands for any characters).
    pub streams: Vec<String>,
    /// The name of the typed command (`comm`), if it is on no list and so taken for a stream.
    pub command: Option<String>,
    /// Bytes that the writers of a process together may have unwritten.
    pub budget: u64,
    /// The path of the report (`pagekeeper_preload::counters`).
    pub report: Option<PathBuf>,
    /// The path of the table that readers of the user's commands share
    /// ([`pagekeeper_preload::open_readers`]).
    pub readers: Option<PathBuf>,
    /// The program that starts programs that the library does not reach; `None` if all are reached.
    pub launcher: Option<Launcher>,
    /// The profiles, the more specific ones first.
    pub profiles: Vec<ProfileRules>,
}

/// The program that starts programs that the library does not reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// Its path.
    pub path: PathBuf,
    /// Whether nothing may be started without the rules.
    pub is_required: bool,
}

/// The files of one kind of program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRules {
    /// Its name, for people.
    pub name: String,
    /// Names of its processes (`comm`, in which `*` stands for any characters).
    pub processes: Vec<String>,
    /// Its files, the more specific ones first.
    pub files: Vec<FileRule>,
}

/// A rule for files, as a launcher writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRule {
    /// Their names, as [`matches`](pagekeeper_policy::names::matches) takes them.
    pub pattern: String,
    /// Their treatment.
    pub action: FileAction,
}

impl Settings {
    /// Reads the streams, the report, and the processes of profiles from a text, without their
    /// files. `None` if it is not understood.
    pub fn decode(text: &[u8]) -> Option<Self> {
        // A name that no process has: only settings for all processes remain.
        let plan = Plan::decode(text, b"")?;
        let role = match plan.part {
            Part::Stream => Role::Stream,
            Part::Bulk => Role::Bulk,
            Part::Logs => Role::Logs,
            Part::None | Part::Files | Part::Undecided => Role::Auto,
        };
        let lines = text.split(|&byte| byte == b'\n').map(split_word);
        let of = |kind: &'static [u8]| lines.clone().filter(move |(word, _)| *word == kind);
        let text = |(_, name): (&[u8], &[u8])| String::from_utf8_lossy(name).into_owned();
        let path = |path: &[u8]| PathBuf::from(OsStr::from_bytes(path));
        Some(Self {
            role,
            streams: of(b"stream").map(text).collect(),
            command: of(b"command").map(text).next(),
            budget: plan.budget,
            report: plan.report.map(path),
            readers: plan.readers.map(path),
            launcher: None,
            profiles: profiles(lines),
        })
    }

    /// Returns the text for [`VARIABLE`](pagekeeper_preload::settings::VARIABLE). Leaves out names
    /// that contain a newline: no program and no pattern has one.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| {
            let start = text.len();
            let _ = text.write_fmt(line);
            if text[start..].contains('\n') {
                text.truncate(start);
            } else {
                text.push('\n');
            }
        };
        line(format_args!(
            "as {}",
            match self.role {
                Role::Auto => "auto",
                Role::Stream => "stream",
                Role::Bulk => "bulk",
                Role::Logs => "logs",
            }
        ));
        line(format_args!("budget {}", self.budget));
        if let Some(report) = &self.report {
            line(format_args!("report {}", report.display()));
        }
        if let Some(readers) = &self.readers {
            line(format_args!("readers {}", readers.display()));
        }
        if let Some(Launcher { path, is_required }) = &self.launcher {
            line(format_args!("launcher {}", path.display()));
            if *is_required {
                line(format_args!("require"));
            }
        }
        for stream in &self.streams {
            line(format_args!("stream {stream}"));
        }
        if let Some(command) = &self.command {
            line(format_args!("command {command}"));
        }
        for profile in &self.profiles {
            line(format_args!("profile {}", profile.name));
            for process in &profile.processes {
                line(format_args!("process {process}"));
            }
            for FileRule { pattern, action } in &profile.files {
                line(format_args!("file {action} {pattern}"));
            }
        }
        text
    }
}

/// Returns the profiles of a text, given the first word and the rest of each line.
fn profiles<'a>(lines: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<ProfileRules> {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let mut profiles: Vec<ProfileRules> = Vec::new();
    for (word, rest) in lines {
        match (word, profiles.last_mut()) {
            (b"profile", _) => {
                profiles.push(ProfileRules { name: text(rest), processes: Vec::new(), files: Vec::new() });
            }
            (b"process", Some(profile)) => profile.processes.push(text(rest)),
            _ => {}
        }
    }
    profiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::{BulkPages, RewriteKind, RewriteSource, Rule};

    fn settings() -> Settings {
        let file = |pattern: &str, action| FileRule { pattern: pattern.to_owned(), action };
        Settings {
            role: Role::Auto,
            streams: vec!["tar".to_owned(), "pg_*".to_owned()],
            command: Some("my packer*".to_owned()),
            budget: 8 << 20,
            report: Some("/dev/shm/a report".into()),
            readers: Some("/dev/shm/readers".into()),
            launcher: Some(Launcher { path: "/usr/bin/a launcher".into(), is_required: true }),
            profiles: vec![
                ProfileRules {
                    name: "mysql".to_owned(),
                    processes: vec!["mysqld".to_owned()],
                    files: vec![
                        file(
                            "#innodb_redo/#ib_redo{n}",
                            FileAction::Log {
                                rule: Rule::ReleaseBehindWriter { slack: 1 },
                                rewrite: RewriteSource::Known(RewriteKind::WholePages),
                            },
                        ),
                        file("*.ibd", FileAction::Data { direct_only: true }),
                        file("*.MYD", FileAction::Data { direct_only: false }),
                    ],
                },
                ProfileRules {
                    name: "rocksdb".to_owned(),
                    processes: vec!["db_bench".to_owned(), "mysqld".to_owned()],
                    files: vec![
                        file(
                            "{n}.log",
                            FileAction::Log {
                                rule: Rule::ReleaseBehindFollowers { near_files: 3, slack: 4 << 20 },
                                rewrite: RewriteSource::Detect,
                            },
                        ),
                        file("*.sst", FileAction::Bulk(BulkPages::Keep)),
                        file("*", FileAction::Leave),
                    ],
                },
            ],
        }
    }

    #[test]
    fn each_program_finds_its_own_settings() {
        let text = settings().encode();
        let plan = Plan::decode(text.as_bytes(), b"pg_dump").unwrap();
        assert_eq!((plan.part, plan.budget, plan.rules().len()), (Part::Stream, 8 << 20, 0));
        assert_eq!(plan.report, Some(&b"/dev/shm/a report"[..]));
        assert_eq!(plan.readers, Some(&b"/dev/shm/readers"[..]));
        assert_eq!((plan.launcher, plan.is_required), (Some(&b"/usr/bin/a launcher"[..]), true));
        let plan = Plan::decode(text.as_bytes(), b"mysqld").unwrap();
        assert_eq!((plan.part, plan.rules().len()), (Part::Files, 3));
        let redo = plan.rule_for(b"/d/#innodb_redo/#ib_redo12").map(|rule| rule.1);
        assert_eq!(
            redo,
            Some(FileAction::Log {
                rule: Rule::ReleaseBehindWriter { slack: 1 },
                rewrite: RewriteSource::Known(RewriteKind::WholePages)
            })
        );
        assert_eq!(
            plan.rule_for(b"shop/t.ibd").map(|rule| rule.1),
            Some(FileAction::Data { direct_only: true })
        );
        assert_eq!(
            plan.rule_for(b"shop/t.MYD").map(|rule| rule.1),
            Some(FileAction::Data { direct_only: false })
        );
        assert_eq!(plan.rule_for(b"/d/1.sst").map(|rule| rule.1), None);
        let plan = Plan::decode(text.as_bytes(), b"db_bench").unwrap();
        assert_eq!(
            plan.rule_for(b"/d/000012.sst").map(|rule| rule.1),
            Some(FileAction::Bulk(BulkPages::Keep))
        );
        assert_eq!(plan.rule_for(b"LOG").map(|rule| rule.1), Some(FileAction::Leave));
        assert_eq!(Plan::decode(text.as_bytes(), b"sh").unwrap().part, Part::Undecided);
        // The typed name is not a pattern.
        assert_eq!(Plan::decode(text.as_bytes(), b"my packer*").unwrap().part, Part::Stream);
        assert_eq!(Plan::decode(text.as_bytes(), b"my packers").unwrap().part, Part::Undecided);
    }

    #[test]
    fn the_launcher_reads_its_own_settings() {
        let own = settings();
        let read = Settings::decode(own.encode().as_bytes()).unwrap();
        let profiles =
            own.profiles.iter().map(|profile| ProfileRules { files: Vec::new(), ..profile.clone() });
        assert_eq!(read, Settings { launcher: None, profiles: profiles.collect(), ..own.clone() });
        assert_eq!(Settings::decode(b"as stream\n").unwrap().role, Role::Stream);
        assert_eq!(Settings::decode(b"as king"), None);
    }

    #[test]
    fn settings_for_all_programs_apply_to_all() {
        for (role, part) in [(Role::Stream, Part::Stream), (Role::Bulk, Part::Bulk), (Role::Logs, Part::Logs)]
        {
            let text = Settings { role, ..settings() }.encode();
            assert_eq!(Plan::decode(text.as_bytes(), b"sh").unwrap().part, part);
            assert_eq!(Plan::decode(text.as_bytes(), b"mysqld").unwrap().part, part);
        }
    }
}
