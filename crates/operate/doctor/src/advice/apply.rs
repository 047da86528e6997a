//! Applies a row of the table to one server: the line in its own syntax, where to put it, why, and
//! how to revert it.

use pagekeeper_text::{escaped, unescaped};

use super::rocksdb_options::rocks_setting;
use super::statement;
use super::table::{Advice, Effect, Offer, Product, find, option_of};
use crate::settings::{Engine, Setting, SettingOrigin, Settings};
use crate::{Confidence, Fix, FixKind, HoldsFor, Risk, Terms};

/// Returns the fix by an option of a product, with the row's value; `None` if this server lacks the
/// setting, or if the value has to be computed.
pub(crate) fn fix(settings: &Settings, product: Product, option: &str) -> Option<Fix> {
    find(settings, product, option)?.fix(settings)
}

/// Returns the fix with a computed value; `None` if this server lacks the setting.
pub(crate) fn fix_to(settings: &Settings, product: Product, option: &str, value: &str) -> Option<Fix> {
    Some(find(settings, product, option)?.fix_to(settings, value))
}

impl Advice {
    fn fix(&'static self, settings: &Settings) -> Option<Fix> {
        match &self.offer {
            Offer::Value(value) => Some(self.fix_to(settings, value)),
            Offer::Computed(_) => None,
        }
    }

    /// Returns the fix with a value for a server that has the setting.
    pub(super) fn fix_to(&'static self, settings: &Settings, value: &str) -> Fix {
        let (act, place, effect) = match statement::of(settings, &self.setting) {
            Some(own) => statement::set(settings.engine, own, value, self.effect),
            None => (self.line(settings.engine, value), self.place(settings), self.effect_in_words()),
        };
        let (evidence, confidence) = self.why(self.known(settings));
        Fix {
            id: Some(&self.id),
            kind: FixKind::Setting,
            setting: Some(self.setting.clone()),
            act,
            does: [place, effect, self.does.clone()].join("; "),
            terms: Terms {
                holds_for: HoldsFor { product: self.product.name().to_owned(), versions: self.versions() },
                risk: Risk {
                    costs: self.costs.clone(),
                    durability: None,
                    recovery: self.recovery.as_deref(),
                    replication: None,
                    restart: self.effect.restart(),
                },
                undo: self.undo(settings),
                undo_is_command: false,
                evidence,
                confidence,
                source: Some(&self.source),
            },
        }
    }

    /// Returns the line in the syntax of the engine's file.
    fn line(&self, engine: Engine, value: &str) -> String {
        let name = &self.setting;
        match (engine, self.product) {
            (Engine::PostgreSql, _) => format!("{name} = '{value}'"),
            (Engine::TiKv, Product::TiKv) => {
                let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
                let is_bare =
                    matches!(value, "true" | "false") || value.bytes().all(|byte| byte.is_ascii_digit());
                let value = if is_bare { value.to_owned() } else { format!("\"{value}\"") };
                format!("[{table}] {key} = {value}")
            }
            _ => format!("{name}={value}"),
        }
    }

    /// Returns where the line goes: to the one that sets it now, or else to the engine's own file.
    fn place(&self, settings: &Settings) -> String {
        if self.product == Product::RocksDb {
            let now = self.known(settings).map(now).unwrap_or_default();
            return format!("among the options that the program opens the database with{now}");
        }
        if let Some(setting) = settings.written(&self.setting).filter(|setting| is_editable(setting)) {
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

    fn effect_in_words(&self) -> String {
        match self.effect {
            Effect::Restart => "needs a restart".to_owned(),
            Effect::SetGlobal => format!("SET GLOBAL {} changes it at once", self.setting.replace('-', "_")),
            Effect::SetDbOptions => "SetDBOptions changes it at once".to_owned(),
            Effect::Reload => statement::RELOAD_STATEMENT.to_owned(),
        }
    }

    /// Returns the setting's current value, by whatever name it has in the files that were read.
    fn known<'a>(&self, settings: &'a Settings) -> Option<&'a Setting> {
        let known = settings.get(&self.setting);
        match self.product {
            Product::MyRocks | Product::RocksDb | Product::TiKv => {
                known.or_else(|| rocks_setting(settings, &option_of(&self.setting)))
            }
            Product::MariaDb | Product::MySql | Product::PostgreSql => known,
        }
    }

    /// Returns the evidence that the row applies here.
    fn why(&self, setting: Option<&Setting>) -> (String, Confidence) {
        match setting {
            Some(Setting { value, from: SettingOrigin::Seen, .. }) => (
                format!("{} is {value} in effect: the flags of its open files show it", self.setting),
                Confidence::Measured,
            ),
            Some(Setting { value, from: SettingOrigin::Default, .. }) => (
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
    fn undo(&self, settings: &Settings) -> String {
        let again = match self.effect {
            Effect::Restart => ", and restart",
            Effect::Reload => ", and reload",
            Effect::SetGlobal | Effect::SetDbOptions => ", at once",
        };
        if let Some(own) = statement::of(settings, &self.setting) {
            return format!("the same statement with {}, as it was{again}", own.value);
        }
        match settings.written(&self.setting).filter(|setting| setting.from != SettingOrigin::Default) {
            Some(setting) => format!("{}{again}", self.line(settings.engine, &setting.value)),
            None => format!("remove it (the default is {}){again}", self.shown_default()),
        }
    }
}

/// Describes a setting's current value.
fn now(setting: &Setting) -> String {
    match &setting.from {
        SettingOrigin::Seen => String::new(),
        from => format!(" (now {}: {from})", setting.value),
    }
}

/// Whether a setting may be edited: a file that the engine writes itself may not.
fn is_editable(setting: &Setting) -> bool {
    match &setting.from {
        SettingOrigin::CommandLine => true,
        SettingOrigin::File { path, .. } => {
            let file = unescaped(path.file_name().unwrap_or_default());
            !file.starts_with("OPTIONS-") && file != "last_tikv.toml"
        }
        SettingOrigin::Environment | SettingOrigin::Seen | SettingOrigin::Default => false,
    }
}
