//! The table of all advice: settings of databases, the advised values, and everything that has to
//! be known about them.
//!
//! Its rows are data, in `advice/*.toml` of this crate, and are parsed once.
//! `docs/src/reference/doctor.md` shows them.
//!
//! Invariants, which tests check for each row: no row touches durability or replication. A row
//! touches recovery only if its goal is recovery itself or moving a log. No value is below the
//! vendor's default.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::Restart;
use crate::settings::{Engine, Settings, option_file};

/// The rows, in the order of the book.
const TABLE_TEXTS: [&str; 3] = [
    include_str!("../../advice/innodb.toml"),
    include_str!("../../advice/postgresql.toml"),
    include_str!("../../advice/rocksdb.toml"),
];

/// All database settings that are ever advised.
pub static TABLE: LazyLock<Vec<Advice>> = LazyLock::new(|| {
    TABLE_TEXTS.iter().flat_map(|text| parsed(text).expect("the table is tested")).collect()
});

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    /// Its name for programs: "mariadb-log-file-buffering".
    pub id: String,
    /// The product of the setting.
    pub product: Product,
    /// The first version that has the setting; `None` if all supported ones do.
    pub since: Option<String>,
    /// The first version that no longer has it; `None` if all later ones do.
    pub before: Option<String>,
    /// The setting's name.
    pub setting: String,
    /// The advised value.
    pub offer: Offer,
    /// The vendor's documented default.
    pub default: String,
    /// The reason why the value is not the default, and not a weaker one; `None` if it is the
    /// default, or the default is its lower bound.
    pub why_not_default: Option<String>,
    /// When it takes effect.
    pub effect: Effect,
    /// The goals it serves.
    pub goals: Vec<Goal>,
    /// Its effect.
    pub does: String,
    /// Its cost.
    pub costs: String,
    /// Its effect on recovery after a crash; `None` if there is none. No row affects durability or
    /// replication.
    pub recovery: Option<String>,
    /// The vendor's documentation of the setting.
    pub source: String,
}

/// The purpose of a database setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Its logs stay out of the page cache.
    LogsOutOfCache,
    /// The database needs less of the page cache.
    LessPageCache,
    /// Data that the database caches itself is not cached a second time.
    LessDoubleCaching,
    /// All I/O on a file is direct, or none is.
    NoMixedIo,
    /// Dirty pages go to storage continuously and do not pile up.
    SteadyWriteback,
    /// After a restart the database's data is soon resident again.
    WarmStart,
    /// A log does not share a disk with bulk output.
    LogOnItsOwnDisk,
    /// A recovery takes no longer than the operator's target.
    ShortRecovery,
}

/// The product that a setting belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// The advised value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offer {
    /// A fixed value.
    Value(String),
    /// A value computed for this server, never below the vendor's default; contains the method in
    /// words.
    Computed(String),
}

/// When a setting takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// Returns the rows of a text. A row with `like` takes the keys that it lacks from the row of that
/// name.
fn parsed(text: &str) -> Result<Vec<Advice>, toml::de::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TableRows {
        row: Vec<toml::Table>,
    }
    let mut rows = toml::from_str::<TableRows>(text)?.row;
    for index in 0..rows.len() {
        let like = rows[index].remove("like");
        let model = like.and_then(|id| rows[..index].iter().find(|row| row.get("id") == Some(&id)).cloned());
        for (key, value) in model.into_iter().flatten() {
            rows[index].entry(key).or_insert(value);
        }
    }
    rows.into_iter().map(toml::Table::try_into).collect()
}

/// Returns the row for an option of a product that this server has. `option` is a setting's name
/// without [prefixes](option_of).
pub(crate) fn find(settings: &Settings, product: Product, option: &str) -> Option<&'static Advice> {
    let is_it = |row: &&Advice| row.product == product && option_of(&row.setting) == option;
    TABLE.iter().filter(is_it).find(|row| row.is_known_to(settings))
}

/// Returns a setting's name without the prefixes and in the spelling by which products name an
/// option of `RocksDB`.
pub(super) fn option_of(setting: &str) -> String {
    let option = setting.rsplit('.').next().unwrap_or(setting).replace('-', "_");
    option.strip_prefix("rocksdb_").unwrap_or(&option).to_owned()
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

    /// Returns the server of InnoDB that an engine is.
    pub(super) fn with_innodb(engine: Engine) -> Self {
        if engine == Engine::MySql { Self::MySql } else { Self::MariaDb }
    }

    /// Returns the product by which an engine has `RocksDB`.
    pub(super) fn with_rocksdb(engine: Engine) -> Self {
        match engine {
            Engine::MariaDb | Engine::MySql => Self::MyRocks,
            Engine::TiKv => Self::TiKv,
            Engine::PostgreSql | Engine::RocksDb | Engine::MongoDb | Engine::Other => Self::RocksDb,
        }
    }

    /// Returns the oldest supported version.
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

impl Effect {
    /// Returns the restart that it needs.
    pub(super) fn restart(self) -> Restart {
        match self {
            Self::Restart => Restart::Database,
            Self::SetGlobal | Self::SetDbOptions => Restart::Nothing,
            Self::Reload => Restart::Reload,
        }
    }
}

impl Advice {
    /// Returns its versions in words: "10.8 and later", "10.5 and later, before 10.9".
    pub fn versions(&self) -> String {
        match &self.before {
            Some(before) => format!("{} and later, before {before}", self.first()),
            None => format!("{} and later", self.first()),
        }
    }

    /// Whether it holds for a version: "10.11.14". For `MyRocks` this is the version of its
    /// `MariaDB`.
    pub fn holds_for(&self, version: &str) -> bool {
        let Some(version) = parts(version) else { return false };
        let since = parts(self.first()).is_some_and(|since| version >= since);
        since && self.before.as_deref().and_then(parts).is_none_or(|before| version < before)
    }

    /// Whether a server has the setting: by its version. If that is unknown, because every
    /// supported version has it, or because it is already set.
    fn is_known_to(&self, settings: &Settings) -> bool {
        match settings.version.as_deref().filter(|version| parts(version).is_some()) {
            Some(version) => self.holds_for(version),
            None => self.since.is_none() || settings.written(&self.setting).is_some(),
        }
    }

    /// Returns the vendor's default in bytes, if it is a size.
    pub(super) fn default_bytes(&self) -> Option<u64> {
        bytes_of(&self.default)
    }

    /// Returns the default as text shows it.
    pub(super) fn shown_default(&self) -> &str {
        if self.default.is_empty() { "empty" } else { &self.default }
    }

    /// Returns the first version that has the setting.
    fn first(&self) -> &str {
        self.since.as_deref().unwrap_or_else(|| self.product.oldest())
    }
}

/// Returns the numbers of a version: "10.11.14-MariaDB" is 10, 11, 14.
fn parts(version: &str) -> Option<Vec<u32>> {
    let numbers = version.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let parts: Option<Vec<u32>> = numbers.split('.').map(|part| part.parse().ok()).collect();
    parts.filter(|parts| !parts.is_empty())
}

/// Parses a size in the vendor's syntax to bytes.
fn bytes_of(text: &str) -> Option<u64> {
    let plain = text.trim_end_matches(['B', 'b']).trim_end_matches('i');
    option_file::size(plain)
}

#[cfg(test)]
mod tests;
