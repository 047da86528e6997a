//! The settings of a preloaded process: one text in its environment, which the launcher writes and each process reads when it starts.
//!
//! Each line is one setting, its words separated by single spaces; a pattern or path is the rest of its line. The text names all programs
//! that rules apply to, so that child processes of other programs find theirs: each process takes what fits its own name.
//!
//! Invariants: reading allocates nothing and cannot fail half way: a line that is not understood voids the whole text, and the process is
//! left alone. Rules for other programs' files are not read, since that would take most of a small program's start. Decoding returns what
//! was encoded ([`Settings::encode`]).

#[cfg(not(feature = "interpose"))]
use std::fmt::Write as _;
#[cfg(not(feature = "interpose"))]
use std::path::PathBuf;

use pagekeeper_policy::{BulkPages, RewriteSource, Rule, names, number};

/// The environment variable that holds the text.
pub const VARIABLE: &str = "PAGEKEEPER_RUN";

/// The longest text in bytes; a longer one is void.
pub const TEXT_MAX: usize = 32 << 10;

/// The words for data that its users read by direct I/O only, and for data that they may also read through the page cache.
const DIRECT_ONLY: &[u8] = b"direct-only";
const DIRECT_AND_BUFFERED: &[u8] = b"direct-and-buffered";

/// The most file rules of one process; a longer list voids the text.
pub const RULES_MAX: usize = 64;

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

/// The treatment of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A log: released behind the flush.
    Log {
        /// The rule for its release.
        rule: Rule,
        /// The way in which its writer overwrites pages.
        rewrite: RewriteSource,
    },
    /// Bulk output: written behind the writer, which waits for it.
    Bulk(BulkPages),
    /// Data that may be used by direct and by buffered I/O.
    Data {
        /// Whether a program that uses it by direct I/O reads it by that only: then resident pages are leftovers, and go. Otherwise they
        /// stay, since the program may read them again.
        direct_only: bool,
    },
    /// Nothing is done.
    Leave,
}

/// A rule for files, as a plan has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRule<'a> {
    /// Their names, as [`names::matches`] takes them.
    pub pattern: &'a [u8],
    /// The end of every matching path: a quick "no" for most.
    pub tail: &'a [u8],
    /// Their treatment.
    pub action: Action,
}

/// The part of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// No rule applies to it.
    None,
    /// A stream: all regular files that it opens are streamed.
    Stream,
    /// All that it writes is bulk output.
    Bulk,
    /// All files that it writes and syncs are logs.
    Logs,
    /// Rules apply to some of its files ([`Plan::rules`]).
    Files,
    /// It becomes a stream if it turns out to go through its files once.
    Undecided,
}

/// The settings of one process, taken from the text.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Its part.
    pub part: Part,
    /// Bytes that its writers together may have unwritten.
    pub budget: u64,
    /// The path of the report.
    pub report: Option<&'a [u8]>,
    /// The path of the table that readers of the user's commands share ([`crate::open_readers`]).
    pub readers: Option<&'a [u8]>,
    /// The program that starts programs that the library does not reach ([`crate::launcher`]).
    pub launcher: Option<&'a [u8]>,
    /// Whether nothing may be started without the rules.
    pub is_required: bool,
    rules: [PlannedRule<'a>; RULES_MAX],
    count: usize,
}

impl<'a> Plan<'a> {
    /// A plan without rules.
    pub const NONE: Plan<'static> = Plan {
        part: Part::None,
        budget: 0,
        report: None,
        readers: None,
        launcher: None,
        is_required: false,
        rules: [PlannedRule { pattern: b"", tail: b"", action: Action::Leave }; RULES_MAX],
        count: 0,
    };

    /// Returns the rules for files; the first that matches applies.
    pub fn rules(&self) -> &[PlannedRule<'a>] {
        self.rules.get(..self.count).unwrap_or_default()
    }

    /// Returns the treatment of the file at that path.
    pub fn action_for(&self, path: &[u8]) -> Option<Action> {
        self.rules().iter().find(|rule| names::matches(rule.pattern, path).is_some()).map(|rule| rule.action)
    }

    /// Reads the text for the process of that name (`comm`, at most 15 bytes). `None` if it is not understood.
    ///
    /// ```
    /// use pagekeeper_preload::settings::{Part, Plan};
    ///
    /// let text = b"as auto\nbudget 8388608\nstream tar\nprofile rocksdb\nprocess db_*\nfile bulk keep *.sst";
    /// assert_eq!(Plan::decode(text, b"tar").unwrap().part, Part::Stream);
    /// assert_eq!(Plan::decode(text, b"db_bench").unwrap().rules().len(), 1);
    /// assert_eq!(Plan::decode(text, b"sh").unwrap().part, Part::Undecided);
    /// ```
    pub fn decode(text: &'a [u8], comm: &[u8]) -> Option<Self> {
        if text.len() > TEXT_MAX {
            return None;
        }
        let mut plan = Plan::NONE;
        // Whether the current lines belong to the profile of this process, which is the first that fits.
        let mut fits = false;
        let mut has_profile = false;
        let mut is_auto = false;
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let (word, rest) = split_word(line);
            match word {
                b"as" => match rest {
                    b"auto" => is_auto = true,
                    b"stream" => plan.part = Part::Stream,
                    b"bulk" => plan.part = Part::Bulk,
                    b"logs" => plan.part = Part::Logs,
                    _ => return None,
                },
                b"budget" => plan.budget = number(rest)?,
                b"report" => plan.report = Some(rest),
                b"readers" => plan.readers = Some(rest),
                b"launcher" => plan.launcher = Some(rest),
                b"require" => plan.is_required = true,
                b"stream" => {
                    if plan.part == Part::None && is_name_of(rest, comm) {
                        plan.part = Part::Stream;
                    }
                }
                b"command" => {
                    if plan.part == Part::None && rest == comm {
                        plan.part = Part::Stream;
                    }
                }
                b"profile" => fits = false,
                b"process" => {
                    if plan.part == Part::None && !has_profile && is_name_of(rest, comm) {
                        (fits, has_profile, plan.part) = (true, true, Part::Files);
                    }
                }
                b"file" if fits => {
                    *plan.rules.get_mut(plan.count)? = rule(rest)?;
                    plan.count += 1;
                }
                b"file" => {}
                _ => return None,
            }
        }
        if is_auto && plan.part == Part::None {
            plan.part = Part::Undecided;
        }
        Some(plan)
    }
}

/// Whether the pattern matches the name. The first byte rules out most.
fn is_name_of(pattern: &[u8], comm: &[u8]) -> bool {
    let is_open = matches!(pattern.first(), None | Some(b'*' | b'{'));
    (is_open || pattern.first() == comm.first()) && names::matches_name(pattern, comm).is_some()
}

fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&byte| byte == b' ') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, b""),
    }
}

fn rule(text: &[u8]) -> Option<PlannedRule<'_>> {
    let (word, rest) = split_word(text);
    let (action, pattern) = match word {
        b"log" => {
            let (rule, rest) = split_word(rest);
            let (rewrite, rest) = split_word(rest);
            let action =
                Action::Log { rule: Rule::from_text(rule)?, rewrite: RewriteSource::from_text(rewrite)? };
            (action, rest)
        }
        b"bulk" => {
            let (pages, rest) = split_word(rest);
            (Action::Bulk(BulkPages::from_text(pages)?), rest)
        }
        b"data" => {
            let (word, rest) = split_word(rest);
            let direct_only = match word {
                DIRECT_ONLY => true,
                DIRECT_AND_BUFFERED => false,
                _ => return None,
            };
            (Action::Data { direct_only }, rest)
        }
        b"leave" => (Action::Leave, rest),
        _ => return None,
    };
    names::check(pattern).is_ok().then_some(PlannedRule { pattern, tail: names::tail(pattern), action })
}

/// The settings that a launcher gives to the processes that it starts.
#[cfg(not(feature = "interpose"))]
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
    /// The path of the report ([`crate::counters::Report`]).
    pub report: Option<PathBuf>,
    /// The path of the table that readers of the user's commands share ([`crate::open_readers`]).
    pub readers: Option<PathBuf>,
    /// The program that starts programs that the library does not reach; `None` if all are reached.
    pub launcher: Option<Launcher>,
    /// The profiles, the more specific ones first.
    pub profiles: Vec<ProfileRules>,
}

/// The program that starts programs that the library does not reach.
#[cfg(not(feature = "interpose"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// Its path.
    pub path: PathBuf,
    /// Whether nothing may be started without the rules.
    pub is_required: bool,
}

/// The files of one kind of program.
#[cfg(not(feature = "interpose"))]
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
#[cfg(not(feature = "interpose"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRule {
    /// Their names, as [`names::matches`] takes them.
    pub pattern: String,
    /// Their treatment.
    pub action: Action,
}

#[cfg(not(feature = "interpose"))]
impl Settings {
    /// Reads the streams, the report, and the processes of profiles from a text, without their files. `None` if it is not understood.
    pub fn decode(text: &[u8]) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt as _;

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
        let path = |path: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(path));
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

    /// Returns the text for [`VARIABLE`]. Leaves out names that contain a newline: no program and no pattern has one.
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
                match action {
                    Action::Log { rule, rewrite } => {
                        line(format_args!("file log {rule} {rewrite} {pattern}"));
                    }
                    Action::Bulk(pages) => line(format_args!("file bulk {pages} {pattern}")),
                    Action::Data { direct_only } => {
                        let word = if *direct_only { DIRECT_ONLY } else { DIRECT_AND_BUFFERED };
                        line(format_args!("file data {} {pattern}", String::from_utf8_lossy(word)));
                    }
                    Action::Leave => line(format_args!("file leave {pattern}")),
                }
            }
        }
        text
    }
}

/// Returns the profiles of a text, given the first word and the rest of each line.
#[cfg(not(feature = "interpose"))]
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

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;
    use pagekeeper_policy::Rewrite;

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
                            Action::Log {
                                rule: Rule::ReleaseBehindWriter { slack: 1 },
                                rewrite: RewriteSource::Known(Rewrite::WholePages),
                            },
                        ),
                        file("*.ibd", Action::Data { direct_only: true }),
                        file("*.MYD", Action::Data { direct_only: false }),
                    ],
                },
                ProfileRules {
                    name: "rocksdb".to_owned(),
                    processes: vec!["db_bench".to_owned(), "mysqld".to_owned()],
                    files: vec![
                        file(
                            "{n}.log",
                            Action::Log {
                                rule: Rule::ReleaseBehindFollowers { near_files: 3, slack: 4 << 20 },
                                rewrite: RewriteSource::Detect,
                            },
                        ),
                        file("*.sst", Action::Bulk(BulkPages::Keep)),
                        file("*", Action::Leave),
                    ],
                },
            ],
        }
    }

    #[test]
    fn each_program_finds_what_is_meant_for_it() {
        let text = settings().encode();
        let plan = Plan::decode(text.as_bytes(), b"pg_dump").unwrap();
        assert_eq!((plan.part, plan.budget, plan.rules().len()), (Part::Stream, 8 << 20, 0));
        assert_eq!(plan.report, Some(&b"/dev/shm/a report"[..]));
        assert_eq!(plan.readers, Some(&b"/dev/shm/readers"[..]));
        assert_eq!((plan.launcher, plan.is_required), (Some(&b"/usr/bin/a launcher"[..]), true));
        let plan = Plan::decode(text.as_bytes(), b"mysqld").unwrap();
        assert_eq!((plan.part, plan.rules().len()), (Part::Files, 3));
        let redo = plan.action_for(b"/d/#innodb_redo/#ib_redo12");
        assert_eq!(
            redo,
            Some(Action::Log {
                rule: Rule::ReleaseBehindWriter { slack: 1 },
                rewrite: RewriteSource::Known(Rewrite::WholePages)
            })
        );
        assert_eq!(plan.action_for(b"shop/t.ibd"), Some(Action::Data { direct_only: true }));
        assert_eq!(plan.action_for(b"shop/t.MYD"), Some(Action::Data { direct_only: false }));
        assert_eq!(plan.action_for(b"/d/1.sst"), None);
        let plan = Plan::decode(text.as_bytes(), b"db_bench").unwrap();
        assert_eq!(plan.action_for(b"/d/000012.sst"), Some(Action::Bulk(BulkPages::Keep)));
        assert_eq!(plan.action_for(b"LOG"), Some(Action::Leave));
        assert_eq!(Plan::decode(text.as_bytes(), b"sh").unwrap().part, Part::Undecided);
        // The typed name is not a pattern.
        assert_eq!(Plan::decode(text.as_bytes(), b"my packer*").unwrap().part, Part::Stream);
        assert_eq!(Plan::decode(text.as_bytes(), b"my packers").unwrap().part, Part::Undecided);
    }

    #[test]
    fn the_launcher_reads_what_it_needs() {
        let own = settings();
        let read = Settings::decode(own.encode().as_bytes()).unwrap();
        let profiles =
            own.profiles.iter().map(|profile| ProfileRules { files: Vec::new(), ..profile.clone() });
        assert_eq!(read, Settings { launcher: None, profiles: profiles.collect(), ..own.clone() });
        assert_eq!(Settings::decode(b"as stream\n").unwrap().role, Role::Stream);
        assert_eq!(Settings::decode(b"as king"), None);
    }

    #[test]
    fn what_is_asked_for_all_counts_for_all() {
        for (role, part) in [(Role::Stream, Part::Stream), (Role::Bulk, Part::Bulk), (Role::Logs, Part::Logs)]
        {
            let text = Settings { role, ..settings() }.encode();
            assert_eq!(Plan::decode(text.as_bytes(), b"sh").unwrap().part, part);
            assert_eq!(Plan::decode(text.as_bytes(), b"mysqld").unwrap().part, part);
        }
    }

    #[test]
    fn what_is_not_understood_is_void() {
        for text in [
            "as",
            "as king",
            "budget",
            "budget 8M",
            "budget 99999999999999999999999",
            "fiel data x",
            "file",
            "file data",
            "file data a",
            "file data direct a",
            "file log release-behind-writer:1 never",
            "file log release-behind-writer:x never a",
            "file log release-behind-writer never a",
            "file log release-behind-writer:1 ever a",
            "file bulk a",
            "file bulk drop a",
        ] {
            let text = format!("profile x\nprocess tar\n{text}\n");
            assert!(Plan::decode(text.as_bytes(), b"tar").is_none(), "{text}");
        }
        assert!(
            Plan::decode(b"profile x\nprocess tar\nfile data\n", b"cat").is_some(),
            "it is not for that one"
        );
        let many = "profile x\nprocess tar\n".to_owned() + &"file leave a\n".repeat(RULES_MAX + 1);
        assert!(Plan::decode(many.as_bytes(), b"tar").is_none());
        assert!(Plan::decode(&vec![b'\n'; TEXT_MAX + 1], b"tar").is_none());
        assert_eq!(Plan::decode(b"", b"tar").unwrap().part, Part::None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_odd(text: Vec<u8>, comm: Vec<u8>) {
            let _ = Plan::decode(&text, &comm);
        }
    }
}
