//! The guard's configuration: one TOML file. `guard.toml` in `deploy/` shows every key
//! with a comment.
//!
//! A file that can't be read is refused with file, line and key.

mod streams;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use globset::GlobMatcher;
use pagekeeper_catalog::{
    LogSpec, Profile, ProfileError, RuleOverrides, Targets, TextValue, disks, find_profile, parse_config,
    path_glob, read_config,
};
use pagekeeper_policy::{DiskProfile, Rule};
use pagekeeper_text::{ByteSize, HumanDuration};
use serde::{Deserialize, Deserializer};

pub use streams::Streams;
use streams::StreamsText;

/// The guard's options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time between ticks.
    pub tick: Duration,
    /// Time between ticks while nothing happens.
    pub idle_tick: Duration,
    /// Whether acts are only reported.
    pub dry_run: bool,
    /// Whether databases are looked for among all processes. Without it, only `pids` and
    /// `directories` are watched.
    pub find: bool,
    /// Processes to watch.
    pub pids: Vec<u32>,
    /// Directories to watch.
    pub directories: Vec<PathBuf>,
    /// The profile for all named processes and directories; without it, each gets the one that
    /// fits.
    pub profile: Option<String>,
    /// All profiles; the built-in ones last.
    pub profiles: Vec<Profile>,
    /// Rules that replace those of the profiles.
    pub rules: RuleOverrides,
    /// Measurements of disks by `pagekeeper probe`, in addition to those saved in
    /// [`disks::PROFILE_DIRECTORY`]. They decide whether leftover pages of a file in direct I/O are
    /// worth a warning.
    pub disk_profiles: Vec<DiskProfile>,
    /// Limits of the wait for PostgreSQL's readers of WAL.
    pub wal_readers: WalReaderLimits,
    /// The handling of streaming programs.
    pub streams: Streams,
    /// The handling of the page cache of memory cgroups.
    pub cgroup: Groups,
    /// The databases that are watched and acted on.
    pub targets: Targets,
}

/// Distance in bytes behind the writer up to which the guard waits for PostgreSQL's own readers of
/// WAL, if that is more than the `near_files` of their rule. These readers read each byte once,
/// however late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalReaderLimits {
    /// The replay of a standby.
    #[serde(deserialize_with = "size")]
    pub standby: u64,
    /// The archiver.
    #[serde(deserialize_with = "size")]
    pub archiver: u64,
}

impl Default for WalReaderLimits {
    fn default() -> Self {
        Self { standby: 1 << 30, archiver: 0 }
    }
}

/// Reads a size written as text.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    TextValue::<ByteSize>::deserialize(deserializer).map(|size| size.0.0)
}

/// The handling of the page cache of databases' memory cgroups; none unless some are named.
#[derive(Debug, Clone)]
pub struct Groups {
    /// The groups, by globs of their whole paths.
    pub groups: Vec<GlobMatcher>,
    /// The share of its limit that a group's page cache may take, in percent, before the guard
    /// acts.
    pub percent: u64,
    /// Whether the kernel is asked to reclaim file pages if releasing logs is not enough.
    pub reclaim: bool,
    /// Time between samples.
    pub tick: Duration,
}

impl Default for Groups {
    fn default() -> Self {
        Self { groups: Vec::new(), percent: 50, reclaim: false, tick: Duration::from_secs(5) }
    }
}

/// A glob of the whole path of a control group.
pub(crate) struct GroupGlob(pub(crate) GlobMatcher);

impl FromStr for GroupGlob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err(format!(
                "\"{text}\" names no control group: give its whole path, like /system.slice/mariadb.service or \
                 /kubepods.slice/**"
            ));
        }
        path_glob(text).map(Self)
    }
}

/// A share in percent: `50%`.
struct Percent(u64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        let share = number.filter(|number| (1..=100).contains(number)).map(Self);
        share.ok_or_else(|| format!("\"{text}\" is no share: give one from 1% to 100%"))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReclaimText {
    Off,
    File,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupsText {
    groups: Vec<TextValue<GroupGlob>>,
    share: Option<TextValue<Percent>>,
    reclaim: Option<ReclaimText>,
    tick: Option<TextValue<HumanDuration>>,
}

impl GroupsText {
    fn groups(self) -> Groups {
        let defaults = Groups::default();
        Groups {
            groups: self.groups.into_iter().map(|glob| glob.0.0).collect(),
            percent: self.share.map_or(defaults.percent, |share| share.0.0),
            reclaim: matches!(self.reclaim, Some(ReclaimText::File)),
            tick: self.tick.map_or(defaults.tick, |period| period.0.0),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(500),
            idle_tick: Duration::from_secs(2),
            dry_run: false,
            find: true,
            pids: Vec::new(),
            directories: Vec::new(),
            profile: None,
            profiles: Profile::built_in(),
            rules: RuleOverrides::default(),
            disk_profiles: Vec::new(),
            wal_readers: WalReaderLimits::default(),
            streams: Streams::default(),
            cgroup: Groups::default(),
            targets: Targets::default(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigText {
    tick: Option<TextValue<HumanDuration>>,
    idle_tick: Option<TextValue<HumanDuration>>,
    dry_run: Option<bool>,
    #[serde(default)]
    directories: Vec<PathBuf>,
    profile: Option<String>,
    #[serde(default)]
    profiles: Vec<PathBuf>,
    #[serde(default)]
    rules: RuleOverrides,
    #[serde(default)]
    disk_profiles: Vec<PathBuf>,
    #[serde(default)]
    postgresql: WalReaderLimits,
    streams: Option<StreamsText>,
    cgroup: Option<GroupsText>,
    #[serde(default)]
    guard: Targets,
}

impl Options {
    /// Returns the rule for a log of the profile of this name.
    pub fn rule_of(&self, profile: &str, log: &LogSpec) -> Rule {
        self.rules.of(profile, log.class).unwrap_or(log.rule)
    }

    /// Reads a configuration file. Profiles of databases and of disks are named relative to it. A
    /// profile that has the name of a built-in one replaces it.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        Self::parse(&read_config(path)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        let refuse = |message: String| ProfileError::Text { path: path.to_path_buf(), message };
        let text: ConfigText = parse_config(text, path)?;
        let defaults = Self::default();
        let mut profiles = Vec::new();
        for profile in &text.profiles {
            let profile = path.parent().unwrap_or(Path::new("")).join(profile);
            profiles.push(Profile::read(&profile)?);
        }
        let own: Vec<String> = profiles.iter().map(|profile: &Profile| profile.name.clone()).collect();
        profiles.extend(defaults.profiles.into_iter().filter(|profile| !own.contains(&profile.name)));
        text.rules.check(&profiles).map_err(&refuse)?;
        if let Some(name) = &text.profile {
            find_profile(&profiles, name).map_err(|error| refuse(error.to_string()))?;
        }
        let mut disk_profiles = Vec::new();
        for disk in &text.disk_profiles {
            let disk = path.parent().unwrap_or(Path::new("")).join(disk);
            let disk = disks::read(&disk);
            disk_profiles.push(disk.map_err(|error| refuse(format!("disk_profiles: {error}")))?);
        }
        let tick = text.tick.map_or(defaults.tick, |period| period.0.0);
        Ok(Self {
            tick,
            idle_tick: text.idle_tick.map_or(defaults.idle_tick, |period| period.0.0).max(tick),
            dry_run: text.dry_run.unwrap_or(false),
            find: text.directories.is_empty(),
            pids: Vec::new(),
            directories: text.directories,
            profile: text.profile,
            profiles,
            rules: text.rules,
            disk_profiles,
            wal_readers: text.postgresql,
            streams: text.streams.map_or_else(Streams::default, StreamsText::streams),
            cgroup: text.cgroup.map_or_else(Groups::default, GroupsText::groups),
            targets: text.guard,
        })
    }
}

/// The options in force, with the rules applied to the profiles.
pub(crate) struct Settings {
    pub(crate) options: Options,
    pub(crate) profiles: Vec<Arc<Profile>>,
}

impl Settings {
    /// Fails if there is no profile of the requested name, or if nothing could ever be watched by
    /// it.
    pub(crate) fn new(options: Options) -> Result<Self, ProfileError> {
        if let Some(name) = &options.profile {
            let profile = find_profile(&options.profiles, name)?;
            if options.find && !profile.can_be_found() && !options.streams.on {
                return Err(ProfileError::FindsNothing { name: name.clone() });
            }
        }
        let in_force = |mut profile: Profile| {
            for log in &mut profile.logs {
                log.rule = options.rule_of(&profile.name, log);
            }
            Arc::new(profile)
        };
        let profiles = options.profiles.iter().cloned().map(in_force).collect();
        Ok(Self { options, profiles })
    }

    /// Returns the profile that was requested by name.
    pub(crate) fn named_profile(&self) -> Option<Arc<Profile>> {
        let name = self.options.profile.as_ref()?;
        self.profiles.iter().find(|profile| profile.name == *name).cloned()
    }

    /// Returns the profiles that a database may have.
    pub(crate) fn candidates(&self) -> Vec<Arc<Profile>> {
        self.named_profile().map_or_else(|| self.profiles.clone(), |profile| vec![profile])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_catalog::STREAMING_PROGRAMS;
    use pagekeeper_policy::FileClass;
    use pagekeeper_streams::stream_name;

    fn parse(text: &str) -> Result<Options, ProfileError> {
        Options::parse(text, Path::new("guard.toml"))
    }

    #[test]
    fn the_shipped_example_is_the_default() {
        let example =
            Options::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/guard.toml")));
        let (example, default) = (example.unwrap(), Options::default());
        assert_eq!((example.tick, example.idle_tick), (default.tick, default.idle_tick));
        assert_eq!((example.find, example.dry_run), (default.find, default.dry_run));
        assert!(example.rules.is_empty());
        assert_eq!(example.wal_readers, default.wal_readers);
        assert!(!example.streams.on && !default.streams.on);
        assert!(example.cgroup.groups.is_empty() && default.cgroup.groups.is_empty());
    }

    /// Returns a minimal configuration to which the key can be added: its section with that
    /// section's required keys. `[rules.…]` has keys of several rules.
    fn needed(section: &str, key: &str) -> &'static str {
        match (section, key) {
            ("RULES", "total") => "[rules.wal]\nrule = \"budget\"\nbudget = \"16M\"\n",
            ("RULES", _) => "[rules.wal]\nrule = \"release-behind-followers\"\n",
            ("GUARD", _) => "[guard]\n",
            ("POSTGRESQL", _) => "[postgresql]\n",
            ("STREAMS", "socket_mode") => "[streams]\nsocket = \"/run/s\"\n",
            ("STREAMS", _) => "[streams]\n",
            ("CGROUP", _) => "[cgroup]\ngroups = [\"/a\"]\n",
            _ => "",
        }
    }

    /// Formats a default as a TOML value.
    fn value(default: &str) -> String {
        match default {
            "empty" | "[]" => "[]".to_owned(),
            "true" | "false" => default.to_owned(),
            octal if octal.starts_with('0') => format!("\"{octal}\""),
            number if number.parse::<u32>().is_ok() => number.to_owned(),
            text => format!("\"{text}\""),
        }
    }

    /// Fails unless setting a key to its default makes no difference.
    fn check_default(section: &str, key: &str, default: &str) {
        let without = needed(section, key);
        let with = format!("{without}{key} = {}\n", value(default));
        let parsed = |text: &str| parse(text).map(|options| format!("{options:?}"));
        assert_eq!(parsed(&with).unwrap(), parsed(without).unwrap(), "{default} is not the default of {key}");
    }

    #[test]
    fn the_page_has_the_defaults() {
        let page = include_str!("../../../../deploy/pagekeeper-guard.toml.5").replace("\\-", "-");
        let (mut section, mut checked) = ("", 0);
        for line in page.lines() {
            section = line.strip_prefix(".SH ").unwrap_or(section);
            // `.BR key " (type, default)"`
            let Some((key, kind)) = line.strip_prefix(".BR ").and_then(|line| line.split_once(" \" ("))
            else {
                continue;
            };
            let Some((_, default)) = kind.trim_end_matches(")\"").rsplit_once(", ") else { continue };
            if default != "needed" {
                check_default(section, key, default);
                checked += 1;
            }
        }
        assert_eq!(checked, 18, "keys with defaults");
    }

    #[test]
    fn the_shipped_example_names_the_defaults() {
        let example = include_str!("../../../../deploy/guard.toml");
        let (mut section, mut checked) = (String::new(), 0);
        for line in example.lines() {
            let line = line.strip_prefix("# ").unwrap_or(line);
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name.split('.').next().unwrap_or_default().to_uppercase();
            }
            let Some((key, rest)) = line.split_once(" = ") else { continue };
            let default = rest.split('#').next().unwrap_or_default().trim().trim_matches('"');
            // Keys with an example instead of a default.
            let examples =
                ["rule", "budget", "profile", "canary", "groups", "processes", "socket", "socket_group"];
            let has_default = !examples.contains(&key);
            if has_default && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
                check_default(&section, key, default);
                checked += 1;
            }
        }
        assert_eq!(checked, 18, "keys with defaults");
    }

    #[test]
    fn groups_are_left_alone_unless_named() {
        let options = parse("[cgroup]\ngroups = [\"/kubepods.slice/**\", \"/db\"]\n").unwrap();
        let Groups { groups, percent, reclaim, tick } = options.cgroup;
        assert_eq!((percent, reclaim, tick), (50, false, Duration::from_secs(5)));
        assert!(groups[0].is_match("/kubepods.slice/pod1/db") && !groups[0].is_match("/kubepods.slicex/a"));
        assert!(
            groups[1].is_match("/db") && !groups[1].is_match("/db/below") && !groups[1].is_match("/a/db")
        );
        let escaped = parse("[cgroup]\ngroups = ['/system.slice/system-my\\x2ddb.slice/*']\n").unwrap();
        assert!(escaped.cgroup.groups[0].is_match(r"/system.slice/system-my\x2ddb.slice/a"));
        let text = "[cgroup]\ngroups = [\"/db\"]\nshare = \"10%\"\nreclaim = \"file\"\ntick = \"1s\"\n";
        let groups = parse(text).unwrap().cgroup;
        assert!(groups.reclaim && groups.percent == 10 && groups.tick == Duration::from_secs(1));
    }

    #[test]
    fn streams_are_off_unless_asked_for() {
        let default = parse("").unwrap().streams;
        assert!(!default.on);
        assert_eq!(default.processes, STREAMING_PROGRAMS);
        let on = parse("[streams]\n").unwrap().streams;
        assert!(on.on && on.processes == STREAMING_PROGRAMS);
        let own = "[streams]\nprocesses = [\"tar\", \"my-*\", \"pg_combinebackup\", \"0123456789abcdef*\"]\n";
        let own = parse(own).unwrap().streams;
        assert!(own.on);
        assert_eq!(
            own.processes,
            ["tar", "my-*", "pg_combinebacku", "0123456789abcde"],
            "as the kernel keeps them"
        );
        assert!(!parse("[streams]\nprocesses = []\n").unwrap().streams.on);
    }

    #[test]
    fn default_names_fit_the_kernels_name_length() {
        for name in STREAMING_PROGRAMS {
            assert_eq!(stream_name(name).as_deref(), Ok(name));
        }
    }

    #[test]
    fn rules_replace_those_of_a_class() {
        let options = parse("[rules.binlog]\nrule = \"release-behind-writer\"\nslack = \"16M\"\n").unwrap();
        let rule = Rule::ReleaseBehindWriter { slack: 16 << 20 };
        assert_eq!(options.rules.of("mysql", FileClass::Binlog), Some(rule));
        let options = parse("[rules.postgresql.wal]\nrule = \"keep\"\n").unwrap();
        let settings = Settings::new(options).unwrap();
        let rule_in = |name: &str, class| {
            let profile = settings.profiles.iter().find(|profile| profile.name == name).unwrap();
            profile.logs.iter().find(|log| log.class == class).unwrap().rule
        };
        assert_eq!(rule_in("postgresql", FileClass::Wal), Rule::Keep);
        assert_ne!(rule_in("mongodb", FileClass::Wal), Rule::Keep);
    }

    #[test]
    fn errors_point_at_line_and_key() {
        for (text, position, reason) in [
            ("tick = \"500ms\"\ntock = 1\n", "line 2", "tock"),
            ("tick = \"half a second\"\n", "line 1", "500ms"),
            ("tick = 5\n", "line 1", "string"),
            ("[rules.binlock]\nrule = \"keep\"\n", "line", "\"binlock\" is no class of files"),
            ("[rules.oracle.wal]\nrule = \"keep\"\n", "[rules.oracle]", "no profile is called \"oracle\""),
            (
                "[rules.kafka.wal]\nrule = \"keep\"\n",
                "[rules.kafka.wal]",
                "the profile kafka has no log of the class wal; it has messages",
            ),
            ("[rules.mariadb.data]\nrule = \"keep\"\n", "[rules.mariadb.data]", "it has redo, binlog, relay"),
            ("[rules.wal]\nrule = \"keep\"\nslack = \"x\"\n", "line 3", "not a size"),
            ("[rules.wal]\nrule = \"budget\"\n", "[rules.wal]", "needs the key"),
            ("[streams]\nprocesses = [\"a[\"]\n", "line 2", "a["),
            ("[streams]\nprocesses = [\"tar\", \"*dump\"]\n", "line 2", "\"*dump\" can't be compared"),
            ("[streams]\nprocesses = [\"\"]\n", "line 2", "\"\" can't be compared"),
            ("[streams]\ntick = \"1s\"\n", "line 2", "remove this key"),
            ("[streams]\ntick = 5\n", "line 2", "string"),
            ("[streams]\nprogram = \"tar\"\n", "line 2", "processes"),
            ("[cgroup]\nshare = \"10%\"\n", "line 1", "groups"),
            ("[cgroup]\ngroups = [\"db\"]\n", "line 2", "names no control group"),
            ("[cgroup]\ngroups = [\"/[\"]\n", "line 2", "/["),
            ("[cgroup]\ngroups = []\nshare = \"0%\"\n", "line 3", "from 1% to 100%"),
            ("[cgroup]\ngroups = []\nshare = \"101%\"\n", "line 3", "from 1% to 100%"),
            ("[cgroup]\ngroups = []\nreclaim = \"anon\"\n", "line 3", "file"),
            ("[guard]\nonly = [\"mysql\"]\n", "line 2", "unit:mariadb.service"),
            ("[guard]\nallow = []\n", "line 2", "never"),
            ("profile = \"oracle\"\n", "guard.toml", "mariadb, mysql"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(position) && error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_profile_that_finds_no_database_needs_one_that_is_named() {
        let refusal = |text: &str| Settings::new(parse(text).unwrap()).err().map(|error| error.to_string());
        let refused = refusal("profile = \"generic\"\n").unwrap();
        assert!(refused.contains("\"generic\"") && refused.contains("--pid") && refused.contains("--dir"));
        for watches in ["directories = [\"/d\"]\n", "[streams]\n"] {
            assert_eq!(refusal(&format!("profile = \"generic\"\n{watches}")), None);
        }
        assert_eq!(refusal("profile = \"mariadb\"\n"), None);
        let mut named = parse("profile = \"generic\"\n").unwrap();
        (named.find, named.pids) = (false, vec![1]);
        assert!(Settings::new(named).is_ok());
        let own = "name = \"generic\"\nprocesses = [\"my-db\"]\n[[log]]\nclass = \"wal\"\nfiles = \"x.{n}\"\nrule = \"keep\"\n";
        let shadowed = Options {
            profile: Some("generic".to_owned()),
            profiles: vec![Profile::parse(own, Path::new("own.toml")).unwrap()],
            ..Options::default()
        };
        assert!(Settings::new(shadowed).is_ok());
    }

    #[test]
    fn profiles_of_ones_own_come_first_and_replace() {
        let dir = tempfile::tempdir().unwrap();
        let own = "name = \"mysql\"\nprocesses = [\"my-mysqld\"]\n[[log]]\nclass = \"wal\"\nfiles = \"x.{n}\"\nrule = \"keep\"\n";
        std::fs::write(dir.path().join("own.toml"), own).unwrap();
        let config = dir.path().join("guard.toml");
        std::fs::write(&config, "profiles = [\"own.toml\"]\n").unwrap();
        let options = Options::read(&config).unwrap();
        let mysql: Vec<_> = options.profiles.iter().filter(|profile| profile.name == "mysql").collect();
        assert_eq!(mysql.len(), 1);
        assert_eq!(mysql[0].logs[0].rule, Rule::Keep);
        // Their classes of logs are replaced as well.
        let read = |class: &str| {
            let rules = format!("profiles = [\"own.toml\"]\n[rules.mysql.{class}]\nrule = \"direct\"\n");
            std::fs::write(&config, rules).unwrap();
            Options::read(&config).map_err(|error| error.to_string())
        };
        assert_eq!(read("wal").unwrap().rules.of("mysql", FileClass::Wal), Some(Rule::Direct));
        let error = read("redo").unwrap_err();
        assert!(error.contains("the profile mysql has no log of the class redo; it has wal"), "{error}");
    }

    #[test]
    fn profiles_of_disks_are_read_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DiskProfile { kernel: "6.18".to_owned(), ..DiskProfile::default() };
        disks::write(&disk, &dir.path().join("disk.toml")).unwrap();
        let config = dir.path().join("guard.toml");
        std::fs::write(&config, "disk_profiles = [\"disk.toml\"]\n").unwrap();
        assert_eq!(Options::read(&config).unwrap().disk_profiles, [disk]);
        std::fs::write(dir.path().join("disk.toml"), "version = 9\n").unwrap();
        let error = Options::read(&config).unwrap_err().to_string();
        assert!(
            error.contains("guard.toml") && error.contains("disk.toml: a profile of version 9"),
            "{error}"
        );
    }
}
