//! Settings of `PostgreSQL`: `postgresql.conf` with its includes, `postgresql.auto.conf`, and the
//! postmaster's command line, which takes precedence over both.
//!
//! Settings reloaded at run time (SIGHUP) can't be distinguished from those that wait for a
//! restart, so a change of a file after the start puts its settings in doubt. Settings of a
//! session, a role or a database can't be seen from outside.

use std::path::{Path, PathBuf};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::hang::announce;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::unescaped;

use super::guc::{self, GucEntry};
use super::limits::{INCLUDE_DEPTH_MAX, LimitHit, without_long_lines};
use super::server_root::{ReadFailure, ServerRoot, normalized_path};
use super::{ServerFacts, SettingOrigin, Settings};

/// The file in which a server records the command line of its last start.
const START_COMMAND_FILE: &str = "postmaster.opts";

/// Defaults common to `PostgreSQL` 13 to 18 (guc.c of each; checked on 15 by
/// `postgres --describe-config`).
const GUC_DEFAULTS: [(&str, &str); 11] = [
    ("checkpoint_flush_after", "256kB"),
    ("bgwriter_flush_after", "512kB"),
    ("backend_flush_after", "0"),
    ("checkpoint_timeout", "5min"),
    ("max_wal_size", "1GB"),
    ("wal_keep_size", "0"),
    ("wal_level", "replica"),
    ("wal_recycle", "on"),
    ("wal_init_zero", "on"),
    ("archive_mode", "off"),
    ("shared_preload_libraries", ""),
];
const GUC_DEFAULTS_VERSIONS: std::ops::RangeInclusive<u32> = 13..=18;

/// Reads all settings into `settings`.
pub(super) fn read(server: &ServerFacts, proc: &ProcRoot, settings: &mut Settings) {
    let root = ServerRoot::of(server, proc);
    let mut arguments: Vec<String> =
        server.command_line.iter().skip(1).map(|word| unescaped(word).into_owned()).collect();
    let mut unknown = "named relative to where the server was started, which can't be seen".to_owned();
    let directory = match (server.pid, server.directories.first()) {
        // The postmaster's working directory is its data directory.
        (Some(_), _) => root.working_directory().unwrap_or_else(|why| {
            unknown = why;
            named_directory(&arguments).unwrap_or_default()
        }),
        (None, Some(directory)) if directory.ends_with("pg_wal") => {
            directory.parent().map(Path::to_path_buf).unwrap_or_default()
        }
        (None, directory) => directory.cloned().unwrap_or_default(),
    };
    let mut of_another = None;
    if server.pid.is_none()
        && let Ok(text) = root.read(&directory.join(START_COMMAND_FILE))
    {
        // The command line of its last start: each argument in double quotes.
        arguments = text.content.split('"').skip(1).step_by(2).map(str::to_owned).collect();
        of_another = started_elsewhere(&arguments, &directory);
        if of_another.is_some() {
            arguments.clear();
        }
    }
    if let Ok(text) = root.read(&directory.join("PG_VERSION")) {
        settings.version = Some(text.content.trim().to_owned()).filter(|version| !version.is_empty());
    }
    let options = parse_command_line(&arguments);
    let of_line =
        |name: &str| options.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let main = match (of_line("config_file"), of_line("data_directory")) {
        (Some(path), _) => PathBuf::from(path),
        (None, _) => directory.join("postgresql.conf"),
    };
    let mut reader = GucReader { root: &root, settings, failed: false, open: Vec::new() };
    if let Some(other) = of_another {
        reader.record_problem(
            &directory.join(START_COMMAND_FILE),
            format!("it is of a server that worked in {other}"),
        );
    }
    if main.is_absolute() {
        reader.read_file(&main, 0, true);
        reader.settings.home = Some(main);
    } else {
        reader.record_problem(&main, unknown);
    }
    reader.read_file(&directory.join("postgresql.auto.conf"), 0, false);
    let failed = reader.failed || reader.settings.is_cut();
    for (name, value) in options {
        settings.add(&name, value, SettingOrigin::CommandLine);
    }
    let major = settings.version.as_deref().and_then(|version| version.parse().ok());
    if !failed && major.is_some_and(|major: u32| GUC_DEFAULTS_VERSIONS.contains(&major)) {
        for (name, value) in GUC_DEFAULTS {
            if settings.get(name).is_none() {
                settings.add(name, value, SettingOrigin::Default);
            }
        }
    }
}

/// Returns the data directory that a server's arguments name, if it is absolute.
fn named_directory(arguments: &[String]) -> Option<PathBuf> {
    let at = arguments.iter().position(|argument| argument == "-D")?;
    arguments.get(at + 1).map(PathBuf::from).filter(|directory| directory.is_absolute())
}

/// Returns the data directory of a server's arguments if it differs from this one: this is a copy,
/// or was moved.
fn started_elsewhere(arguments: &[String], directory: &Path) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == "-D")?;
    let named = arguments.get(at + 1)?;
    let same = announce(Path::new(named))
        .is_ok_and(|_call| std::fs::canonicalize(named).is_ok_and(|resolved| resolved == directory));
    (!same || Path::new(named).is_relative()).then(|| named.clone())
}

/// Returns the settings of the postmaster's arguments: `-c name=value`, `--name=value`,
/// `-B buffers`.
fn parse_command_line(arguments: &[String]) -> Vec<(String, String)> {
    let mut options = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let pair = if let Some(long) = argument.strip_prefix("--") {
            Some(long.to_owned())
        } else if let Some(attached) = argument.strip_prefix("-c") {
            if attached.is_empty() { rest.next().cloned() } else { Some(attached.to_owned()) }
        } else if let Some(buffers) = argument.strip_prefix("-B") {
            let buffers = if buffers.is_empty() { rest.next().cloned() } else { Some(buffers.to_owned()) };
            buffers.map(|buffers| format!("shared_buffers={buffers}"))
        } else {
            // Options that take the next word as their argument (postgres.c:
            // "b:C:D:d:h:k:N:o:p:r:S:t:v:W:").
            if argument.len() == 2 && "bCDdhkNoprStvW".contains(&argument[1..]) {
                rest.next();
            }
            None
        };
        if let Some((name, value)) = pair.as_deref().and_then(|pair| pair.split_once('=')) {
            options.push((super::normalized(name), value.to_owned()));
        }
    }
    options
}

struct GucReader<'a> {
    root: &'a ServerRoot<'a>,
    settings: &'a mut Settings,
    /// Whether something could not be read: a missing setting may then be set.
    failed: bool,
    /// The files being read: each includes the next.
    open: Vec<Inode>,
}

impl GucReader<'_> {
    fn record_problem(&mut self, path: &Path, why: impl Into<String>) {
        (self.failed, self.settings.is_partial) = (true, true);
        self.settings.record_unread(path, why);
    }

    fn read_file(&mut self, path: &Path, depth: u32, must_be: bool) {
        if depth > INCLUDE_DEPTH_MAX {
            return self.settings.record_limit(path, LimitHit::Depth);
        }
        let text = match self.root.read(path) {
            Ok(text) if self.open.contains(&text.inode) => {
                return self.settings.record_limit(path, LimitHit::Cycle);
            }
            Ok(text) => text,
            Err(ReadFailure::Missing) if !must_be => return,
            Err(unread) => return self.record_failure(path, unread),
        };
        let (content, long) = without_long_lines(&text.content);
        if long {
            self.settings.record_limit(path, LimitHit::Line);
        }
        self.open.push(text.inode);
        self.settings.read_from.push(path.to_path_buf());
        if let Some(doubt) = text.doubt {
            self.record_problem(path, doubt);
        }
        // Relative to the including file.
        let beside = |name: &str| normalized_path(&path.parent().unwrap_or(Path::new("/")).join(name));
        for line in guc::lines(&content) {
            match line.entry {
                GucEntry::Set { name, value } => {
                    let origin = SettingOrigin::File { path: path.to_path_buf(), line: line.number };
                    self.settings.add_doubted(&name, value, origin, text.doubt);
                }
                GucEntry::Include(name) => self.read_file(&beside(&name), depth + 1, true),
                GucEntry::IncludeIfExists(name) => self.read_file(&beside(&name), depth + 1, false),
                GucEntry::IncludeDirectory(name) => self.read_directory(&beside(&name), depth + 1),
                GucEntry::Odd => {
                    self.record_problem(
                        path,
                        format!("line {} is nothing that the server understands", line.number),
                    );
                }
            }
        }
        self.open.pop();
    }

    fn read_directory(&mut self, directory: &Path, depth: u32) {
        let wanted = |name: &[u8]| name.ends_with(b".conf") && !name.starts_with(b".");
        match self.root.names(directory, wanted) {
            Ok(names) => names.iter().for_each(|name| self.read_file(&directory.join(name), depth, true)),
            Err(unread) => self.record_failure(directory, unread),
        }
    }

    fn record_failure(&mut self, path: &Path, unread: ReadFailure) {
        self.failed = true;
        self.settings.record_failure(path, unread);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Engine;
    use super::*;
    use crate::settings::testing::{server, words};

    fn settings_in(directory: &Path) -> Settings {
        let mut settings = Settings::new(Engine::PostgreSql);
        read(&server(Engine::PostgreSql, directory, ""), &ProcRoot::default(), &mut settings);
        settings
    }

    #[test]
    fn files_and_command_line_are_read_in_the_servers_order() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        write("PG_VERSION", "15\n");
        write(
            "postgresql.conf",
            "shared_buffers = 64MB\ninclude_dir 'conf.d'\ninclude_if_exists='none'\nWAL_LEVEL = logical\n",
        );
        write("conf.d/a.conf", "shared_buffers = 128MB\nmax_wal_size = 2GB\n");
        write("conf.d/.b.conf", "shared_buffers = 1MB\n");
        write("conf.d/c.txt", "shared_buffers = 1MB\n");
        write("postgresql.auto.conf", "# Do not edit this file manually!\nmax_wal_size = '3GB'\n");
        let started_in = |directory: &Path| {
            let directory = directory.display();
            write(
                "postmaster.opts",
                &format!("/bin/postgres \"-D\" \"{directory}\" \"-c\" \"wal_recycle=off\" \"-B\" \"100\"\n"),
            );
        };
        started_in(dir.path());
        let settings = settings_in(dir.path());
        let get = |name: &str| {
            let found = settings.get(name).unwrap();
            (found.value.as_str(), found.from.clone())
        };
        assert_eq!(get("shared_buffers"), ("100", SettingOrigin::CommandLine));
        assert_eq!(settings.bytes("shared_buffers"), Some(800 << 10));
        let auto = SettingOrigin::File { path: dir.path().join("postgresql.auto.conf"), line: 2 };
        assert_eq!(get("max_wal_size"), ("3GB", auto));
        assert_eq!(get("wal_level").0, "logical");
        assert_eq!(get("wal_recycle"), ("off", SettingOrigin::CommandLine));
        assert_eq!(get("checkpoint_flush_after"), ("256kB", SettingOrigin::Default));
        assert_eq!(settings.version.as_deref(), Some("15"));
        assert_eq!(settings.read_from.len(), 3);
        assert_eq!(settings.unread, []);

        // A copy of another server's directory is not started with that server's command line.
        started_in(Path::new("/var/lib/postgresql/15/main"));
        let settings = settings_in(dir.path());
        assert_eq!(settings.get("shared_buffers").unwrap().value, "128MB");
        assert_eq!(settings.get("checkpoint_flush_after"), None);
        assert!(settings.unread[0].1.ends_with("/var/lib/postgresql/15/main"), "{settings:?}");
    }

    #[test]
    fn a_missing_permission_to_inspect_the_server_is_named() {
        if !rustix::process::geteuid().is_root() {
            pagekeeper_testing::skip("only root can be another user");
            return;
        }
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let plain = server(Engine::PostgreSql, Path::new("/somewhere"), "");
        let mut database = ServerFacts { pid: Some(process.id()), ..plain };
        database.command_line = words("postgres -D /srv/pg");
        let read_by_nobody = |database: &ServerFacts| {
            let mut settings = Settings::new(Engine::PostgreSql);
            pagekeeper_testing::as_nobody(|| read(database, &ProcRoot::default(), &mut settings));
            settings.unread
        };
        let named = read_by_nobody(&database);
        database.command_line.truncate(1);
        let nameless = read_by_nobody(&database);
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(named[0].0, Path::new("/srv/pg/postgresql.conf"));
        assert_eq!(nameless[0].0, Path::new("postgresql.conf"));
        for (_, why) in named.iter().chain(&nameless) {
            assert!(why.ends_with("needs CAP_SYS_PTRACE"), "{named:?} {nameless:?}");
        }
    }

    #[test]
    fn without_all_files_no_default_is_claimed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("PG_VERSION"), "15\n").unwrap();
        std::fs::write(dir.path().join("postgresql.conf"), "include 'gone.conf'\nport = 1\n").unwrap();
        let settings = settings_in(dir.path());
        assert_eq!(settings.get("checkpoint_flush_after"), None);
        assert_eq!(settings.get("port").unwrap().value, "1");
        assert_eq!(settings.unread.len(), 1);
        // Nor for an unknown version.
        std::fs::write(dir.path().join("postgresql.conf"), "port = 1\n").unwrap();
        std::fs::write(dir.path().join("PG_VERSION"), "99\n").unwrap();
        assert_eq!(settings_in(dir.path()).get("checkpoint_flush_after"), None);
    }

    #[test]
    fn a_loop_of_includes_ends() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("postgresql.conf"), "include './postgresql.conf'\n").unwrap();
        let mut settings = settings_in(dir.path());
        settings.finish();
        assert_eq!(settings.unread[0].1, LimitHit::Cycle.to_string());
    }

    #[test]
    fn arguments_are_read_from_the_postmaster() {
        let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            parse_command_line(&words("-D -c -p 5 -ca=1 -c b=2 --max-wal-size=1GB -B 7 -B8 -c x")),
            [
                pair("a", "1"),
                pair("b", "2"),
                pair("max_wal_size", "1GB"),
                pair("shared_buffers", "7"),
                pair("shared_buffers", "8")
            ]
        );
    }
}
