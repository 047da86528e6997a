//! One row of the table of advice: a setting of one product, the advised value, and everything that has to be
//! known about it.
//!
//! Invariants, which a test checks for the whole table: no row touches durability or replication. A row touches
//! recovery only if its goal is recovery itself or moving a log. No value is below the vendor's default.

use pagekeeper_kernel::text::{escaped, unescaped};

use super::rocksdb_options::rocks_setting;
use super::statement;
use crate::settings::{Engine, Origin, Setting, Settings, option_file};
use crate::{Confidence, Fix, FixKind, Goal, HoldsFor, Restart, Risk, Terms};

/// The product that a setting belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Product {
    /// `MariaDB`.
    MariaDb,
    /// `MySQL`.
    MySql,
    /// `MyRocks`, as `MariaDB` has it.
    MyRocks,
    /// `PostgreSQL`.
    PostgreSql,
    /// A program that opens `RocksDB` with its own options.
    RocksDb,
    /// `TiKV`.
    TiKv,
}

impl Product {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MariaDb => "MariaDB",
            Self::MySql => "MySQL",
            Self::MyRocks => "MyRocks in MariaDB",
            Self::PostgreSql => "PostgreSQL",
            Self::RocksDb => "RocksDB",
            Self::TiKv => "TiKV",
        }
    }

    /// Returns the oldest supported version: a row that holds since then also holds for a server of unknown
    /// version.
    fn oldest(self) -> &'static str {
        match self {
            Self::MariaDb | Self::MyRocks => "10.5",
            Self::MySql => "5.7",
            Self::PostgreSql => "13",
            Self::RocksDb => "6",
            Self::TiKv => "5",
        }
    }
}

/// The advised value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// A fixed value.
    Is(&'static str),
    /// A value computed for this server, never below the vendor's default.
    Reckoned {
        /// The method, in words.
        how: &'static str,
    },
}

/// The advised value compared to the vendor's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// It is the default, or the default is its lower bound.
    Default,
    /// It is a different value, and not a weaker one; contains the reason.
    Other(&'static str),
}

/// When a setting takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// When the server starts.
    Restart,
    /// `SET GLOBAL` changes it at once; the file keeps it.
    SetGlobal,
    /// `SetDBOptions` of `RocksDB` changes it at once.
    SetDbOptions,
    /// When the configuration is loaded again.
    Reload,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Advice {
    /// Its name for programs: "mariadb-redo-direct".
    pub id: &'static str,
    /// The product of the setting.
    pub product: Product,
    /// The first version that has the setting.
    pub since: &'static str,
    /// The first version that no longer has it; `None` if all later ones do.
    pub before: Option<&'static str>,
    /// The goals it serves.
    pub goals: &'static [Goal],
    /// The setting's name.
    pub setting: &'static str,
    /// The advised value.
    pub offer: Offer,
    /// The vendor's documented default.
    pub default: &'static str,
    /// The advised value compared to the default.
    pub against: Against,
    /// When it takes effect.
    pub effect: Effect,
    /// Its effect.
    pub does: &'static str,
    /// Its cost.
    pub costs: &'static str,
    /// Its effect on recovery after a crash; `None` if there is none. No row affects durability or replication.
    pub recovery: Option<&'static str>,
    /// The vendor's documentation of the setting.
    pub source: &'static str,
}

impl Advice {
    /// Returns its versions in words: "10.8 and later", "10.5 to 10.11".
    pub fn versions(&self) -> String {
        match self.before {
            Some(before) => format!("{} and later, before {before}", self.since),
            None => format!("{} and later", self.since),
        }
    }

    /// Whether a server has the setting: by its version. If that is unknown, because every supported version has
    /// it, or because it is already set.
    pub(crate) fn holds(&self, settings: &Settings) -> bool {
        match settings.version.as_deref().filter(|version| parts(version).is_some()) {
            Some(version) => self.holds_for(version),
            None => at_least(self.product.oldest(), self.since) || settings.written(self.setting).is_some(),
        }
    }

    /// Whether it holds for a version: "10.11.14". For `MyRocks` this is the version of its `MariaDB`.
    pub fn holds_for(&self, version: &str) -> bool {
        let Some(version) = parts(version) else { return false };
        let since = parts(self.since).is_some_and(|since| version >= since);
        since && self.before.and_then(parts).is_none_or(|before| version < before)
    }

    /// Returns the fix with the row's value; `None` if this server lacks the setting, or if the value has to be
    /// computed.
    pub(crate) fn fix(&self, settings: &Settings) -> Option<Fix> {
        match self.offer {
            Offer::Is(value) => self.fix_to(settings, value),
            Offer::Reckoned { .. } => None,
        }
    }

    /// Returns the fix with a computed value.
    pub(crate) fn fix_to(&self, settings: &Settings, value: &str) -> Option<Fix> {
        self.holds(settings).then(|| self.made(settings, self.setting, value))
    }

    fn made(&self, settings: &Settings, name: &str, value: &str) -> Fix {
        let by_statement = statement::of(settings, name);
        let (act, place, effect) = match by_statement {
            Some(own) => statement::set(settings.engine, own, value, self.effect),
            None => (
                self.line(settings.engine, name, value),
                self.place(settings, name),
                self.effect.in_words(name),
            ),
        };
        let setting = known(settings, self.product, name);
        let (evidence, confidence) = self.why(setting);
        Fix {
            id: Some(self.id),
            kind: FixKind::Setting,
            setting: Some(name.to_owned()),
            act,
            does: [place, effect, self.does.to_owned()].join("; "),
            terms: Terms {
                holds_for: HoldsFor { product: self.product.name().to_owned(), versions: self.versions() },
                risk: Risk {
                    costs: self.costs.to_owned(),
                    durability: None,
                    recovery: self.recovery,
                    replication: None,
                    restart: self.effect.restart(),
                },
                undo: self.undo(settings, name),
                undo_is_command: false,
                evidence,
                confidence,
                source: Some(self.source),
            },
        }
    }

    /// Returns the line in the syntax of the engine's file.
    fn line(&self, engine: Engine, name: &str, value: &str) -> String {
        match (engine, self.product) {
            (Engine::PostgreSql, _) => format!("{name} = '{value}'"),
            (Engine::TiKv, Product::TiKv) => {
                let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
                let bare =
                    matches!(value, "true" | "false") || value.bytes().all(|byte| byte.is_ascii_digit());
                let value = if bare { value.to_owned() } else { format!("\"{value}\"") };
                format!("[{table}] {key} = {value}")
            }
            _ => format!("{name}={value}"),
        }
    }

    /// Returns where the line goes: to the one that sets it now, or else to the engine's own file.
    fn place(&self, settings: &Settings, name: &str) -> String {
        if self.product == Product::RocksDb {
            let now = known(settings, self.product, name).map(now).unwrap_or_default();
            return format!("among the options that the program opens the database with{now}");
        }
        if let Some(setting) = settings.written(name).filter(|setting| is_editable(setting)) {
            return format!("in {}, where it is {}", setting.from, setting.value);
        }
        let file = settings.home().map(|path| format!("in {}", escaped(path)));
        match settings.engine {
            Engine::MariaDb | Engine::MySql => {
                format!("{} under [mysqld]", file.as_deref().unwrap_or("in an option file"))
            }
            Engine::PostgreSql => file.unwrap_or_else(|| "in postgresql.conf".to_owned()),
            Engine::RocksDb | Engine::TiKv | Engine::MongoDb | Engine::Other => {
                file.unwrap_or_else(|| "in its configuration file".to_owned())
            }
        }
    }

    /// Returns the evidence that the row applies here.
    fn why(&self, setting: Option<&Setting>) -> (String, Confidence) {
        match setting {
            Some(Setting { value, from: Origin::Seen, .. }) => (
                format!("{} is {value} in effect: seen by how it has its files open", self.setting),
                Confidence::Measured,
            ),
            Some(Setting { value, from: Origin::Default, .. }) => (
                format!("{} is {value}: this version's default, as it is set nowhere", self.setting),
                Confidence::FromSettings,
            ),
            Some(Setting { value, from, doubt, .. }) => {
                let doubt = doubt.as_ref().map(|doubt| format!(" ({doubt})")).unwrap_or_default();
                (format!("{} is {value}: {from}{doubt}", self.setting), Confidence::FromSettings)
            }
            None => (
                format!("{} was found nowhere; its default is {}", self.setting, self.default),
                Confidence::Estimated,
            ),
        }
    }

    /// Returns how to revert the fix.
    fn undo(&self, settings: &Settings, name: &str) -> String {
        let again = match self.effect {
            Effect::Restart => ", and restart",
            Effect::Reload => ", and reload",
            Effect::SetGlobal | Effect::SetDbOptions => ", at once",
        };
        let written = settings.written(name).filter(|setting| setting.from != Origin::Default);
        match (statement::of(settings, name), written) {
            (Some(own), _) => {
                let before = &own.value;
                format!("the same statement with {before}, as it was{again}")
            }
            (None, Some(setting)) => format!("{}{again}", self.line(settings.engine, name, &setting.value)),
            (None, None) => format!("remove it (the default is {}){again}", shown(self.default)),
        }
    }
}

impl Effect {
    fn restart(self) -> Restart {
        match self {
            Self::Restart => Restart::Database,
            Self::SetGlobal | Self::SetDbOptions => Restart::Nothing,
            Self::Reload => Restart::Reload,
        }
    }

    fn in_words(self, name: &str) -> String {
        match self {
            Self::Restart => "needs a restart".to_owned(),
            Self::SetGlobal => format!("SET GLOBAL {} changes it at once", name.replace('-', "_")),
            Self::SetDbOptions => "SetDBOptions changes it at once".to_owned(),
            Self::Reload => statement::RELOAD.to_owned(),
        }
    }
}

/// Returns a default as text shows it.
pub(super) fn shown(default: &str) -> &str {
    if default.is_empty() { "empty" } else { default }
}

/// Describes the setting's current value.
fn now(setting: &Setting) -> String {
    match &setting.from {
        Origin::Seen => String::new(),
        from => format!(" (now {}: {from})", setting.value),
    }
}

/// Returns a known setting, by whatever name it has in the files that were read.
fn known<'a>(settings: &'a Settings, product: Product, name: &str) -> Option<&'a Setting> {
    match product {
        Product::MyRocks | Product::RocksDb | Product::TiKv => {
            let option = name.rsplit('.').next().unwrap_or(name).replace('-', "_");
            let option = option.strip_prefix("rocksdb_").unwrap_or(&option).to_owned();
            settings.get(name).or_else(|| rocks_setting(settings, &option))
        }
        Product::MariaDb | Product::MySql | Product::PostgreSql => settings.get(name),
    }
}

/// Whether a setting may be edited: a file that the engine writes itself may not.
fn is_editable(setting: &Setting) -> bool {
    match &setting.from {
        Origin::CommandLine => true,
        Origin::File { path, .. } => {
            let file = unescaped(path.file_name().unwrap_or_default());
            !file.starts_with("OPTIONS-") && file != "last_tikv.toml"
        }
        Origin::Environment | Origin::Seen | Origin::Default => false,
    }
}

/// Returns the numbers of a version: "10.11.14-MariaDB" is 10, 11, 14.
pub(crate) fn parts(version: &str) -> Option<Vec<u32>> {
    let numbers = version.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let parts: Option<Vec<u32>> = numbers.split('.').map(|part| part.parse().ok()).collect();
    parts.filter(|parts| !parts.is_empty())
}

fn at_least(version: &str, other: &str) -> bool {
    parts(version) >= parts(other)
}

/// Parses a size in the vendor's syntax to bytes.
pub(crate) fn bytes_of(text: &str) -> Option<u64> {
    let plain = text.trim_end_matches(['B', 'b']).trim_end_matches('i');
    option_file::size(plain)
}
