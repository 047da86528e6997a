//! Settings of `MariaDB` and `MySQL`: option files in the server's order, its command line, the
//! variables that `MySQL` persisted, and how it has its tables and its redo log open.
//!
//! The order is that of `mysys/my_default.c`: `/etc/my.cnf`, `/etc/mysql/my.cnf`, `$MARIADB_HOME`
//! or `$MYSQL_HOME/my.cnf`, `--defaults-extra-file`, `~/.my.cnf`; then the command line; then
//! `mysqld-auto.cnf` (`sql/persisted_variable.cc` appends it to the arguments). Changes by
//! `SET GLOBAL` can't be seen from outside.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::hang::announce;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_text::unescaped;

use super::limits::{INCLUDE_DEPTH_MAX, LimitHit, beginning, without_long_lines};
use super::option_file::{self, OptionFileEntry, option};
use super::server_root::{ReadFailure, ServerRoot};
use super::version_groups::VersionGroups;
use super::{Engine, OpenMode, ServerFacts, SettingOrigin, Settings};

/// The server's groups, except those of one version.
const SERVER_GROUPS: [&str; 4] = ["mysqld", "server", "mariadb", "mariadbd"];
/// Further groups that a server reads; not the place for its own settings.
const SHARED_GROUPS: [&str; 2] = ["client-server", "galera"];
/// Maximum depth of objects in the file of persisted variables.
const OBJECT_DEPTH_MAX: u32 = 10;

/// Reads all settings into `settings`.
pub(super) fn read(
    server: &ServerFacts,
    proc: &ProcRoot,
    groups: &mut VersionGroups,
    settings: &mut Settings,
) {
    let root = ServerRoot::of(server, proc);
    let arguments: Vec<String> =
        server.command_line.iter().skip(1).map(|word| unescaped(word).into_owned()).collect();
    let variables = root.variables().unwrap_or_else(|error| {
        settings.is_partial = true;
        settings.record_unread("its environment", format!("{error}: $HOME and $MYSQL_HOME are not known"));
        Vec::new()
    });
    let variable = |name: &str| {
        variables
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
            .filter(|v| !v.is_empty())
    };
    let (defaults, rest) = DefaultsOptions::parse(&arguments);
    let suffix = defaults.suffix.clone().or_else(|| variable("MYSQL_GROUP_SUFFIX"));
    let exe = server.pid.map(|pid| proc.path().join(format!("{pid}/exe")));
    let files = defaults.files(&variable);
    if server.pid.is_none() && arguments.is_empty() {
        read_if_its_own(server, &root, &files, groups, settings);
    } else {
        let mut reader = OptionFileReader { root: &root, settings, suffix, exe, groups, open: Vec::new() };
        for path in files {
            reader.read_file(&path, 0, defaults.file.is_some());
        }
    }
    for (name, value) in long_options(rest) {
        for (name, value) in option(&name, value.as_deref()) {
            settings.add(&name, value, SettingOrigin::CommandLine);
        }
    }
    let loads = !defaults.none && settings.is_on("persisted_globals_load") != Some(false);
    if settings.engine == Engine::MySql && loads {
        let directory = match (server.pid, server.directories.first()) {
            // The server works in its data directory.
            (Some(_), _) => root.absolute(Path::new("")),
            (None, directory) => directory.cloned().unwrap_or_default(),
        };
        read_persisted(&root, &directory.join("mysqld-auto.cnf"), settings);
    }
    add_observed(server, settings);
}

/// Reads the option files for a directory that no server has open. They count as settings of its
/// server only if they name this very directory: it may be a copy, or a backup of another.
fn read_if_its_own(
    server: &ServerFacts,
    root: &ServerRoot<'_>,
    files: &[PathBuf],
    groups: &mut VersionGroups,
    settings: &mut Settings,
) {
    let mut read = Settings { usage: settings.usage.clone(), ..Settings::new(settings.engine) };
    let mut reader =
        OptionFileReader { root, settings: &mut read, suffix: None, exe: None, groups, open: Vec::new() };
    for path in files {
        reader.read_file(path, 0, false);
    }
    let its_own = read.get("datadir").is_some_and(|datadir| {
        announce(Path::new(&datadir.value)).is_ok_and(|_call| {
            let resolved = std::fs::canonicalize(&datadir.value);
            resolved.is_ok_and(|resolved| server.directories.contains(&resolved))
        })
    });
    if its_own {
        *settings = read;
    } else {
        let why = "which server this directory belongs to is not known: the option files of this machine name \
        another \
                   datadir, or none";
        settings.record_unread("my.cnf", why);
    }
}

/// The options that say where to read options: the first arguments.
#[derive(Debug, Default)]
struct DefaultsOptions {
    none: bool,
    file: Option<PathBuf>,
    extra: Option<PathBuf>,
    suffix: Option<String>,
}

impl DefaultsOptions {
    /// Returns these options and the arguments after them.
    fn parse(arguments: &[String]) -> (Self, &[String]) {
        let mut found = Self::default();
        let mut count = 0;
        for argument in arguments {
            match argument.split_once('=') {
                None if argument == "--no-defaults" => found.none = true,
                Some(("--defaults-file", path)) => found.file = Some(path.into()),
                Some(("--defaults-extra-file", path)) => found.extra = Some(path.into()),
                Some(("--defaults-group-suffix", suffix)) => found.suffix = Some(suffix.to_owned()),
                _ => break,
            }
            count += 1;
        }
        (found, &arguments[count..])
    }

    /// Returns the files to read, in order.
    fn files(&self, variable: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        if let Some(file) = &self.file {
            return vec![file.clone()];
        }
        if self.none {
            return Vec::new();
        }
        let mut files: Vec<PathBuf> = ["/etc/my.cnf", "/etc/mysql/my.cnf"].map(Into::into).to_vec();
        let home = variable("MARIADB_HOME").or_else(|| variable("MYSQL_HOME"));
        files.extend(home.map(|home| Path::new(&home).join("my.cnf")));
        files.extend(self.extra.clone());
        files.extend(variable("HOME").map(|home| Path::new(&home).join(".my.cnf")));
        files
    }
}

/// Returns the options of a command line: `--name=value`, `--name value` and `--name`.
fn long_options(arguments: &[String]) -> Vec<(String, Option<String>)> {
    let mut options = Vec::new();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        let Some(option) = argument.strip_prefix("--").filter(|option| !option.is_empty()) else { continue };
        options.push(match option.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            // A server takes no positional arguments: the next word belongs to this option.
            None => (option.to_owned(), rest.next_if(|next| !next.starts_with('-')).cloned()),
        });
    }
    options
}

struct OptionFileReader<'a> {
    root: &'a ServerRoot<'a>,
    settings: &'a mut Settings,
    suffix: Option<String>,
    exe: Option<PathBuf>,
    groups: &'a mut VersionGroups,
    /// The files being read: each includes the next.
    open: Vec<Inode>,
}

impl OptionFileReader<'_> {
    fn read_file(&mut self, path: &Path, depth: u32, must_be: bool) {
        if path.is_relative() {
            // The server has left the directory that it was started in.
            self.settings.is_partial = true;
            self.settings
                .record_unread(path, "named relative to where the server was started, which can't be seen");
            return;
        }
        if depth > INCLUDE_DEPTH_MAX {
            return self.settings.record_limit(path, LimitHit::Depth);
        }
        let text = match self.root.read(path) {
            Ok(text) if text.world_writable => {
                self.settings.record_unread(path, "anybody may write it, so the server ignores it");
                return;
            }
            Ok(text) if self.open.contains(&text.inode) => {
                return self.settings.record_limit(path, LimitHit::Cycle);
            }
            Ok(text) => text,
            Err(ReadFailure::Missing) if !must_be => return,
            Err(unread) => return self.settings.record_failure(path, unread),
        };
        let (content, long) = without_long_lines(&text.content);
        if long {
            self.settings.record_limit(path, LimitHit::Line);
        }
        self.open.push(text.inode);
        self.settings.read_from.push(path.to_path_buf());
        if let Some(doubt) = text.doubt {
            self.settings.is_partial = true;
            self.settings.record_unread(path, doubt);
        }
        let mut counts = GroupMatch::No;
        for line in option_file::lines(&content) {
            match line.entry {
                OptionFileEntry::Group(group) => counts = self.match_group(&group, path),
                OptionFileEntry::Include(file) => self.read_file(Path::new(&file), depth + 1, false),
                OptionFileEntry::IncludeDirectory(directory) => {
                    self.read_directory(Path::new(&directory), depth + 1);
                }
                OptionFileEntry::Set { name, value } => match counts {
                    GroupMatch::Yes => {
                        let origin = SettingOrigin::File { path: path.to_path_buf(), line: line.number };
                        for (name, value) in option(&name, value.as_deref()) {
                            self.settings.add_doubted(&name, value, origin.clone(), text.doubt);
                        }
                    }
                    GroupMatch::No => {}
                    GroupMatch::Unknown(ref group) => {
                        let why = format!(
                            "line {}: whether this server reads [{}] is not known",
                            line.number,
                            beginning(group)
                        );
                        self.settings.is_partial = true;
                        self.settings.record_unread(path, why);
                        counts = GroupMatch::No;
                    }
                },
                OptionFileEntry::Odd => {
                    let why = format!("line {} is nothing that a server understands", line.number);
                    self.settings.record_unread(path, why);
                }
            }
        }
        self.open.pop();
    }

    fn read_directory(&mut self, directory: &Path, depth: u32) {
        match self.root.names(directory, |name| name.ends_with(b".cnf")) {
            Ok(names) => names.iter().for_each(|name| self.read_file(&directory.join(name), depth, false)),
            Err(unread) => self.settings.record_failure(directory, unread),
        }
    }

    /// Whether the settings of a group apply to this server.
    fn match_group(&mut self, group: &str, path: &Path) -> GroupMatch {
        let bare = match &self.suffix {
            Some(suffix) => group.strip_suffix(suffix.as_str()).unwrap_or(group),
            None => group,
        };
        let mariadb = self.settings.engine == Engine::MariaDb;
        let mine = |name: &str| mariadb || !name.starts_with("mariadb");
        if SERVER_GROUPS.contains(&bare) && mine(bare) {
            if self.settings.home.is_none() {
                self.settings.home = Some(path.to_path_buf());
            }
            return GroupMatch::Yes;
        }
        if SHARED_GROUPS.contains(&bare) && mariadb {
            return GroupMatch::Yes;
        }
        let versioned = bare.rsplit_once('-').is_some_and(|(name, version)| {
            SERVER_GROUPS.contains(&name) && mine(name) && version.starts_with(|c: char| c.is_ascii_digit())
        });
        if !versioned {
            return GroupMatch::No;
        }
        match self.exe.as_deref().and_then(|exe| self.groups.is_in(exe, bare)) {
            Some(true) => GroupMatch::Yes,
            Some(false) => GroupMatch::No,
            None => GroupMatch::Unknown(group.to_owned()),
        }
    }
}

/// The answer whether a group's settings apply to a server.
enum GroupMatch {
    Yes,
    No,
    Unknown(String),
}

/// Reads the variables that `SET PERSIST` wrote.
fn read_persisted(root: &ServerRoot<'_>, path: &Path, settings: &mut Settings) {
    let text = match root.read(path) {
        Ok(text) => text.content,
        Err(ReadFailure::Missing) => return,
        Err(unread) => return settings.record_failure(path, unread),
    };
    let Ok(content) = serde_json::from_str::<serde_json::Value>(&text) else {
        settings.is_partial = true;
        return settings.record_unread(path, "not the JSON that MySQL writes");
    };
    settings.read_from.push(path.to_path_buf());
    let mut found = Vec::new();
    collect_persisted(&content, 0, &mut found);
    let lines = lines_of_names(&text);
    for (name, value) in found {
        let line = lines.get(name.as_str()).copied().unwrap_or(1);
        settings.add(&name, value, SettingOrigin::File { path: path.to_path_buf(), line });
    }
}

/// Returns the quoted texts, without escapes, and the line of each one's first occurrence, from 1.
fn lines_of_names(text: &str) -> HashMap<&str, u32> {
    let mut lines = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        for quoted in line.split('"') {
            lines.entry(quoted).or_insert(number);
        }
    }
    lines
}

/// Collects the variables that `MySQL` persisted: `{"name": {"Value": "…", …}}`, at whatever depth
/// its version writes them.
fn collect_persisted(content: &serde_json::Value, depth: u32, found: &mut Vec<(String, String)>) {
    let serde_json::Value::Object(members) = content else { return };
    if depth > OBJECT_DEPTH_MAX {
        return;
    }
    for (name, member) in members {
        match member.get("Value") {
            Some(serde_json::Value::String(value)) => found.push((name.clone(), value.clone())),
            Some(value) if !value.is_object() => found.push((name.clone(), value.to_string())),
            _ => collect_persisted(member, depth + 1, found),
        }
    }
}

/// Adds the settings that show in how the server has its files open.
fn add_observed(server: &ServerFacts, settings: &mut Settings) {
    let redo_files = |name: &OsStr| name.as_bytes().starts_with(b"#ib_redo");
    settings.redo_directory = settings.engine == Engine::MySql
        && server
            .files
            .iter()
            .any(|file| owns(server, &file.path) && file.path.file_name().is_some_and(redo_files));
    if server.pid.is_none() {
        return;
    }
    let (mut tables, mut redo) = (OpenModes::default(), OpenModes::default());
    for file in server.files.iter().filter(|file| file.is_open()) {
        let Some(name) = file.path.file_name().map(OsStrExt::as_bytes) else { continue };
        if name.ends_with(b".ibd") || name.starts_with(b"ibdata") {
            tables.take(&file.opened);
        } else if name == b"ib_logfile0" {
            redo.take(&file.opened);
        }
        settings.myrocks |= name.starts_with(b"MANIFEST-");
    }
    let says_direct = settings
        .get("innodb_flush_method")
        .map(|setting| setting.value.to_ascii_uppercase().starts_with("O_DIRECT"));
    match tables {
        OpenModes { direct: true, .. } if says_direct != Some(true) => {
            settings.add("innodb_flush_method", "O_DIRECT", SettingOrigin::Seen);
        }
        // Which of the buffered methods it is can't be seen.
        OpenModes { direct: false, buffered: true } if says_direct != Some(false) => {
            settings.add("innodb_flush_method", BUFFERED_METHOD, SettingOrigin::Seen);
        }
        _ => {}
    }
    if settings.engine == Engine::MariaDb {
        let says = settings.is_on("innodb_log_file_buffering");
        match redo {
            OpenModes { direct: true, .. } if says != Some(false) => {
                settings.add("innodb_log_file_buffering", "OFF", SettingOrigin::Seen);
            }
            OpenModes { direct: false, buffered: true } if says != Some(true) => {
                settings.add("innodb_log_file_buffering", "ON", SettingOrigin::Seen);
            }
            _ => {}
        }
    }
}

/// Whether a file is in one of the server's directories.
fn owns(server: &ServerFacts, file: &Path) -> bool {
    server.directories.iter().any(|directory| file.starts_with(directory))
}

/// The value of `innodb_flush_method` if the server has its tables open without `O_DIRECT`,
/// whatever is configured.
pub const BUFFERED_METHOD: &str = "buffered";

#[derive(Debug, Default)]
struct OpenModes {
    direct: bool,
    buffered: bool,
}

impl OpenModes {
    fn take(&mut self, opened: &[OpenMode]) {
        self.direct |= opened.contains(&OpenMode::Direct);
        self.buffered |= opened.contains(&OpenMode::Buffered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::testing::server;

    fn read(server: &ServerFacts, settings: &mut Settings) {
        super::read(server, &ProcRoot::default(), &mut VersionGroups::default(), settings);
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_first_arguments_say_where_to_read() {
        let arguments = words("--defaults-file=/a.cnf --defaults-group-suffix=-b --x --defaults-file=/c");
        let (defaults, rest) = DefaultsOptions::parse(&arguments);
        assert_eq!(defaults.files(&|_| None), [Path::new("/a.cnf")]);
        assert_eq!(defaults.suffix.as_deref(), Some("-b"));
        assert_eq!(rest.len(), 2);
        let none = words("--no-defaults --x");
        assert!(DefaultsOptions::parse(&none).0.files(&|_| Some("/h".into())).is_empty());
        let usual = DefaultsOptions { extra: Some("/e".into()), ..DefaultsOptions::default() };
        let home = |name: &str| matches!(name, "HOME" | "MYSQL_HOME").then(|| format!("/{name}"));
        let files = usual.files(&home);
        assert_eq!(
            files,
            ["/etc/my.cnf", "/etc/mysql/my.cnf", "/MYSQL_HOME/my.cnf", "/e", "/HOME/.my.cnf"]
                .map(PathBuf::from)
        );
    }

    #[test]
    fn options_of_a_command_line_have_their_values() {
        let arguments = words("--a=1 --b 2 --c --d= -u x --skip-e");
        let value = |text: &str| Some(text.to_owned());
        assert_eq!(
            long_options(&arguments),
            [
                ("a".to_owned(), value("1")),
                ("b".to_owned(), value("2")),
                ("c".to_owned(), None),
                ("d".to_owned(), value("")),
                ("skip-e".to_owned(), None),
            ]
        );
    }

    #[test]
    fn files_are_read_in_the_servers_order_with_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        let main = dir.path().join("my.cnf");
        std::fs::write(
            &main,
            format!(
                "[client]\nsync-binlog=9\n[mysqld]\nsync-binlog=1\n!includedir {}\n!include {}\ninnodb_io_capacity=5\n",
                dir.path().join("conf.d").display(),
                dir.path().join("none.cnf").display(),
            ),
        )
        .unwrap();
        write(
            "conf.d/20.cnf",
            "[mariadb]\nloose-innodb-flush-method = O_DSYNC # slow\n[mysqld-5.1]\nsync-binlog=4\n",
        );
        write("conf.d/10.cnf", "[server]\nsync_binlog=2\ninnodb_flush_method=fsync\n");
        write("conf.d/30.txt", "[mysqld]\nsync_binlog=3\n");
        let arguments = format!("mariadbd --defaults-file={} --innodb-log-file-size=64M", main.display());
        let database = server(Engine::MariaDb, Path::new("/nonexistent"), &arguments);
        let mut settings = Settings::new(Engine::MariaDb);
        read(&database, &mut settings);
        let get = |name: &str| {
            let found = settings.get(name).unwrap();
            (found.value.clone(), found.from.clone())
        };
        let at = |name: &str, line| SettingOrigin::File { path: dir.path().join(name), line };
        assert_eq!(get("sync_binlog"), ("2".to_owned(), at("conf.d/10.cnf", 2)));
        assert_eq!(get("innodb-flush-method"), ("O_DSYNC".to_owned(), at("conf.d/20.cnf", 2)));
        assert_eq!(get("innodb_io_capacity"), ("5".to_owned(), at("my.cnf", 7)));
        assert_eq!(get("innodb_log_file_size"), ("64M".to_owned(), SettingOrigin::CommandLine));
        assert_eq!(settings.bytes("innodb_log_file_size"), Some(64 << 20));
        assert_eq!(settings.read_from.len(), 3);
        assert_eq!(settings.home.as_deref(), Some(main.as_path()));
        // Without a process, the program can't be searched for its version.
        assert_eq!(settings.unread.len(), 1);
        assert!(settings.unread[0].1.contains("[mysqld-5.1]"), "{:?}", settings.unread);
    }

    #[test]
    fn a_directory_without_a_server_has_only_settings_that_name_it() {
        let dir = tempfile::tempdir().unwrap();
        let data = std::fs::canonicalize(dir.path()).unwrap().join("data");
        std::fs::create_dir(&data).unwrap();
        let cnf = dir.path().join("my.cnf");
        let database = server(Engine::MariaDb, &data, "");
        let proc = ProcRoot::default();
        let read_with = |datadir: &str| {
            std::fs::write(&cnf, format!("[mysqld]\n{datadir}\nsync_binlog=1\n")).unwrap();
            let root = ServerRoot::of(&database, &proc);
            let mut settings = Settings::new(Engine::MariaDb);
            let groups = &mut VersionGroups::default();
            read_if_its_own(&database, &root, std::slice::from_ref(&cnf), groups, &mut settings);
            settings
        };
        let own = read_with(&format!("datadir={}", data.display()));
        assert_eq!((own.get("sync_binlog").unwrap().value.as_str(), own.unread.len()), ("1", 0));
        for other in ["datadir=/var/lib/mysql", "", "datadir=/nonexistent"] {
            let settings = read_with(other);
            assert_eq!((settings.get("sync_binlog"), settings.read_from.len()), (None, 0), "{other}");
            assert!(
                settings.unread[0].1.starts_with("which server this directory belongs to"),
                "{settings:?}"
            );
        }
        // The option files of this machine do not apply to this directory.
        let mut settings = Settings::new(Engine::MariaDb);
        read(&database, &mut settings);
        assert_eq!((settings.all(), settings.unread.len()), (&[][..], 1));
    }

    #[test]
    fn a_loop_of_includes_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my.cnf");
        std::fs::write(&path, format!("[mysqld]\n!include {}\n", path.display())).unwrap();
        let line = format!("mysqld --defaults-file={}", path.display());
        let database = server(Engine::MySql, Path::new("/nonexistent"), &line);
        let mut settings = Settings::new(Engine::MySql);
        read(&database, &mut settings);
        settings.finish();
        assert_eq!(settings.unread, [(path, LimitHit::Cycle.to_string())]);
    }

    #[test]
    fn persisted_settings_win_in_every_version() {
        let dir = tempfile::tempdir().unwrap();
        let line = "mysqld --innodb-flush-method=fsync --sync-binlog=1";
        let database = server(Engine::MySql, dir.path(), line);
        for text in [
            r#"{"Version": 1, "mysql_server": {"sync_binlog": {"Value": "7", "Metadata": {"User": "root"}},
               "mysql_server_static_options": {"innodb_flush_method": {"Value": "O_DIRECT"}}}}"#,
            r#"{"Version": 2, "mysql_dynamic_variables": {"sync_binlog": {"Value": "7", "Metadata": {}}},
               "mysql_static_variables": {"innodb_flush_method": {"Value": "O_DIRECT"}}}"#,
        ] {
            std::fs::write(dir.path().join("mysqld-auto.cnf"), text).unwrap();
            let mut settings = Settings::new(Engine::MySql);
            read(&database, &mut settings);
            assert_eq!(settings.get("sync_binlog").unwrap().value, "7");
            let method = settings.get("innodb_flush_method").unwrap();
            assert_eq!(method.value, "O_DIRECT");
            assert!(matches!(method.from, SettingOrigin::File { line: 2, .. }), "{method:?}");
        }
        std::fs::write(dir.path().join("mysqld-auto.cnf"), "{").unwrap();
        let mut settings = Settings::new(Engine::MySql);
        read(&database, &mut settings);
        assert_eq!(settings.get("sync_binlog").unwrap().value, "1");
        assert_eq!(settings.unread.len(), 1);
    }
}
