//! Rules in configurations: a name and its parameters, among the other keys of a table.
//!
//! They are read directly into the policy's [`Rule`]. Errors point to line and key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use pagekeeper_policy::{DEFAULT_BUDGET_TOTAL, DEFAULT_NEAR_FILES, DEFAULT_SLACK, FileClass, Rule};
use pagekeeper_text::ByteSize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::profile::{BUILT_IN_PROFILES, Profile, find_profile};
use crate::text_value::TextValue;

/// Every rule by name, with the default parameters. A budget has no default.
const DEFAULT_RULES: [(&str, Rule); 7] = {
    const fn named(rule: Rule) -> (&'static str, Rule) {
        (rule.name(), rule)
    }
    [
        named(Rule::Keep),
        named(Rule::ReleaseBehindWriter { slack: DEFAULT_SLACK }),
        named(Rule::ReleaseOnRotation),
        named(Rule::ReleaseBehindFollowers { near_files: DEFAULT_NEAR_FILES, slack: DEFAULT_SLACK }),
        named(Rule::ReleaseBeforeCheckpoint { near_files: DEFAULT_NEAR_FILES, slack: DEFAULT_SLACK }),
        named(Rule::Budget { bytes: 0, total: DEFAULT_BUDGET_TOTAL }),
        named(Rule::Direct),
    ]
};
const RULE_NAMES: &[&str] = &[
    DEFAULT_RULES[0].0,
    DEFAULT_RULES[1].0,
    DEFAULT_RULES[2].0,
    DEFAULT_RULES[3].0,
    DEFAULT_RULES[4].0,
    DEFAULT_RULES[5].0,
    DEFAULT_RULES[6].0,
];

/// A rule by its name alone.
#[derive(Clone, Copy)]
struct NamedRule(Rule);

impl<'de> Deserialize<'de> for NamedRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = DEFAULT_RULES.iter().find(|(other, _)| *other == name);
        found.map(|(_, rule)| Self(*rule)).ok_or_else(|| D::Error::unknown_variant(&name, RULE_NAMES))
    }
}

/// The keys of a rule, as far as a table has them.
#[derive(Default)]
struct RuleKeys {
    rule: Option<NamedRule>,
    slack: Option<TextValue<ByteSize>>,
    near_files: Option<u64>,
    budget: Option<TextValue<ByteSize>>,
    total: Option<TextValue<ByteSize>>,
}

impl RuleKeys {
    /// Returns the rule, or an error if a parameter is missing or does not apply.
    fn rule<E: Error>(mut self) -> Result<Rule, E> {
        let NamedRule(mut rule) = self.rule.ok_or_else(|| E::missing_field("rule"))?;
        let name = rule.name();
        match &mut rule {
            Rule::Keep | Rule::ReleaseOnRotation | Rule::Direct => {}
            Rule::ReleaseBehindWriter { slack } => *slack = self.slack.take().map_or(*slack, |size| size.0.0),
            Rule::ReleaseBehindFollowers { near_files, slack }
            | Rule::ReleaseBeforeCheckpoint { near_files, slack } => {
                *slack = self.slack.take().map_or(*slack, |size| size.0.0);
                *near_files = self.near_files.take().unwrap_or(*near_files);
            }
            Rule::Budget { bytes, total } => {
                let missing = "the rule \"budget\" needs the key \"budget\", a size like 64M";
                *bytes = self.budget.take().ok_or_else(|| E::custom(missing))?.0.0;
                *total = match self.total.take().map(|size| size.0.0) {
                    // One log may use everything that one log is given.
                    None => *bytes.max(total),
                    Some(all) if all < *bytes => {
                        return Err(E::custom(format!(
                            "the \"budget\" of one log is {}, more than the \"total\" of all, {}: raise \"total\" or lower \"budget\"",
                            ByteSize(*bytes),
                            ByteSize(all)
                        )));
                    }
                    Some(all) => all,
                };
            }
        }
        // The keys that the rule has not used.
        let left = [
            ("slack", self.slack.is_some()),
            ("near_files", self.near_files.is_some()),
            ("budget", self.budget.is_some()),
            ("total", self.total.is_some()),
        ];
        match left.iter().find(|(_, given)| *given) {
            Some((key, _)) => {
                Err(E::custom(format!("the key \"{key}\" has no meaning for the rule \"{name}\"")))
            }
            None => Ok(rule),
        }
    }
}

/// A table with the keys of a rule beside its own.
pub(crate) struct WithRule<T> {
    pub(crate) rule: Rule,
    pub(crate) table: T,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WithRule<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for TableVisitor<T> {
            type Value = WithRule<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with a rule")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WithRule<T>, A::Error> {
                let mut keys = RuleKeys::default();
                let table = T::deserialize(MapAccessDeserializer::new(OwnKeys { map, keys: &mut keys }))?;
                Ok(WithRule { rule: keys.rule()?, table })
            }
        }

        deserializer.deserialize_map(TableVisitor(PhantomData))
    }
}

/// The keys of a table without those of its rule, which are collected separately.
struct OwnKeys<'a, A> {
    map: A,
    keys: &'a mut RuleKeys,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for OwnKeys<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let mut seed = Some(seed);
        loop {
            match self.map.next_key_seed(KeySeed(&mut seed))? {
                None => return Ok(None),
                Some(TableKey::Own(key)) => return Ok(Some(key)),
                Some(TableKey::Rule) => self.keys.rule = Some(self.map.next_value()?),
                Some(TableKey::Slack) => self.keys.slack = Some(self.map.next_value()?),
                Some(TableKey::NearFiles) => self.keys.near_files = Some(self.map.next_value()?),
                Some(TableKey::Budget) => self.keys.budget = Some(self.map.next_value()?),
                Some(TableKey::Total) => self.keys.total = Some(self.map.next_value()?),
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

enum TableKey<K> {
    Rule,
    Slack,
    NearFiles,
    Budget,
    Total,
    /// Another key, which the seed has read.
    Own(K),
}

/// The seed is left in place if the key belongs to a rule.
struct KeySeed<'a, K>(&'a mut Option<K>);

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for KeySeed<'_, K> {
    type Value = TableKey<K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(match name.as_str() {
            "rule" => TableKey::Rule,
            "slack" => TableKey::Slack,
            "near_files" => TableKey::NearFiles,
            "budget" => TableKey::Budget,
            "total" => TableKey::Total,
            _ => {
                let seed = self.0.take().expect("a seed is used for one key");
                TableKey::Own(seed.deserialize(name.into_deserializer())?)
            }
        })
    }
}

/// Rules that replace those of profiles: for all logs of a class, or for those of one profile.
///
/// In a configuration: the tables `[rules.binlog]` and `[rules.PROFILE.binlog]`, each with the keys
/// of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleOverrides {
    by_class: BTreeMap<FileClass, Rule>,
    by_profile: BTreeMap<String, BTreeMap<FileClass, Rule>>,
}

impl RuleOverrides {
    /// Returns the rule for logs of a class in a profile, if any. The profile's own rule takes
    /// precedence over that of the class.
    pub fn of(&self, profile: &str, class: FileClass) -> Option<Rule> {
        let own = self.by_profile.get(profile).and_then(|own| own.get(&class));
        own.or_else(|| self.by_class.get(&class)).copied()
    }

    /// Refuses rules for a profile that is not among these, or for a class of which it has no log.
    pub fn check(&self, profiles: &[Profile]) -> Result<(), String> {
        for (name, own) in &self.by_profile {
            let profile = find_profile(profiles, name).map_err(|error| format!("[rules.{name}]: {error}"))?;
            let logs: BTreeSet<FileClass> = profile.logs.iter().map(|log| log.class).collect();
            if let Some(class) = own.keys().find(|class| !logs.contains(class)) {
                let has = logs.iter().map(|class| class.as_str()).collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "[rules.{name}.{class}]: the profile {name} has no log of the class {class}; it has {has}"
                ));
            }
        }
        Ok(())
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.by_class.is_empty() && self.by_profile.is_empty()
    }
}

/// A table with only the keys of a rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoOtherKeys {}

impl<'de> Deserialize<'de> for RuleOverrides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OverridesVisitor;

        impl<'de> Visitor<'de> for OverridesVisitor {
            type Value = RuleOverrides;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("rules by class, or by profile and class")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RuleOverrides, A::Error> {
                let mut rules = RuleOverrides::default();
                while let Some(name) = map.next_key::<String>()? {
                    if let Some(class) = class_of(&name) {
                        let WithRule { rule, table: NoOtherKeys {} } = map.next_value()?;
                        rules.by_class.insert(class, rule);
                    } else {
                        let own = map.next_value_seed(ProfileOverridesSeed(&name))?;
                        rules.by_profile.insert(name, own);
                    }
                }
                Ok(rules)
            }
        }

        deserializer.deserialize_map(OverridesVisitor)
    }
}

/// Reads the rules of the profile with this name.
struct ProfileOverridesSeed<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for ProfileOverridesSeed<'_> {
    type Value = BTreeMap<FileClass, Rule>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ProfileOverridesSeed<'_> {
    type Value = BTreeMap<FileClass, Rule>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rules of the profile \"{}\" by class", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut rules = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let class = class_of(&name).ok_or_else(|| {
                // If the profile exists, the class is wrong; another name may be a mistyped class.
                let profile = self.0;
                let is_profile = BUILT_IN_PROFILES.iter().any(|(built_in, _)| *built_in == profile);
                let (wrong, of) = if is_profile {
                    (name.as_str(), "this profile")
                } else {
                    (profile, "a profile that is called so")
                };
                A::Error::custom(format!(
                    "\"{wrong}\" is no class of files (redo, binlog, relay, wal, messages, text, data or temp); rules of {of} are \
                     [rules.{profile}.CLASS]"
                ))
            })?;
            let WithRule { rule, table: NoOtherKeys {} } = map.next_value()?;
            rules.insert(class, rule);
        }
        Ok(rules)
    }
}

fn class_of(name: &str) -> Option<FileClass> {
    FileClass::ALL.into_iter().find(|class| class.as_str() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Profile, find_profile};

    #[derive(Debug, Deserialize)]
    struct Config {
        rules: RuleOverrides,
    }

    fn rule(text: &str) -> Result<Rule, String> {
        let config = toml::from_str::<Config>(&format!("[rules.wal]\n{text}\n"));
        config
            .map(|config| config.rules.of("kafka", FileClass::Wal).unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn every_rule_is_read_with_its_figures() {
        for (text, expected) in [
            ("rule = \"keep\"", Rule::Keep),
            ("rule = \"direct\"", Rule::Direct),
            ("rule = \"release-on-rotation\"", Rule::ReleaseOnRotation),
            ("rule = \"release-behind-writer\"", Rule::ReleaseBehindWriter { slack: 4 << 20 }),
            (
                "slack = \"1M\"\nrule = \"release-behind-writer\"",
                Rule::ReleaseBehindWriter { slack: 1 << 20 },
            ),
            (
                "rule = \"release-behind-followers\"",
                Rule::ReleaseBehindFollowers { near_files: 3, slack: 4 << 20 },
            ),
            (
                "rule = \"release-behind-followers\"\nnear_files = 7\nslack = \"0\"",
                Rule::ReleaseBehindFollowers { near_files: 7, slack: 0 },
            ),
            (
                "rule = \"release-before-checkpoint\"\nslack = \"1M\"",
                Rule::ReleaseBeforeCheckpoint { near_files: 3, slack: 1 << 20 },
            ),
            ("rule = \"budget\"\nbudget = \"64M\"", Rule::Budget { bytes: 64 << 20, total: 1 << 30 }),
            ("rule = \"budget\"\nbudget = \"2G\"", Rule::Budget { bytes: 2 << 30, total: 2 << 30 }),
            (
                "rule = \"budget\"\nbudget = \"16M\"\ntotal = \"256M\"",
                Rule::Budget { bytes: 16 << 20, total: 256 << 20 },
            ),
            (
                "rule = \"budget\"\nbudget = \"16M\"\ntotal = \"16M\"",
                Rule::Budget { bytes: 16 << 20, total: 16 << 20 },
            ),
        ] {
            assert_eq!(rule(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_profiles_own_rule_comes_before_that_of_the_class() {
        let text = "[rules.wal]\nrule = \"keep\"\n[rules.kafka.wal]\nrule = \"budget\"\nbudget = \"16M\"\n";
        let rules = toml::from_str::<Config>(text).unwrap().rules;
        let budget = Rule::Budget { bytes: 16 << 20, total: 1 << 30 };
        assert_eq!(rules.of("kafka", FileClass::Wal), Some(budget));
        assert_eq!(rules.of("etcd", FileClass::Wal), Some(Rule::Keep));
        assert_eq!(rules.of("kafka", FileClass::Redo), None);
        let error = rules.check(&Profile::built_in()).unwrap_err();
        assert!(error.contains("[rules.kafka.wal]") && error.contains("it has messages"), "{error}");
        assert!(rules.check(&[]).unwrap_err().starts_with("[rules.kafka]: "));
        let error = toml::from_str::<Config>("[rules.binlock]\nrule = \"keep\"\n").unwrap_err().to_string();
        assert!(error.contains("\"binlock\" is no class of files"), "{error}");
        assert!(error.contains("[rules.binlock.CLASS]"), "{error}");
        // The profile exists, so the mistyped name is the class.
        let error =
            toml::from_str::<Config>("[rules.postgresql.wall]\nrule = \"keep\"\n").unwrap_err().to_string();
        assert!(error.contains("\"wall\" is no class of files"), "{error}");
        assert!(error.contains("[rules.postgresql.CLASS]"), "{error}");
    }

    #[test]
    fn a_rule_for_binlogs_leaves_streams_and_topics_to_their_profiles() {
        let text = "[rules.binlog]\nrule = \"release-behind-followers\"\n[rules.wal]\nrule = \"direct\"\n";
        let rules = toml::from_str::<Config>(text).unwrap().rules;
        for profile in Profile::built_in() {
            for log in profile.logs.iter().filter(|log| log.class == FileClass::Messages) {
                assert_eq!(rules.of(&profile.name, log.class), None, "{}", profile.name);
            }
        }
        for profile in ["nats", "kafka", "rabbitmq"] {
            let profiles = Profile::built_in();
            let logs = &find_profile(&profiles, profile).unwrap().logs;
            assert!(logs.iter().any(|log| log.class == FileClass::Messages), "{profile}");
        }
        let text = "[rules.kafka.messages]\nrule = \"keep\"\n";
        let rules = toml::from_str::<Config>(text).unwrap().rules;
        assert_eq!(rules.of("kafka", FileClass::Messages), Some(Rule::Keep));
        assert_eq!(rules.of("nats", FileClass::Messages), None);
    }

    #[test]
    fn keys_that_a_rule_does_not_take_are_refused() {
        for (text, line, reason) in [
            ("", "line 1", "missing field `rule`"),
            ("rule = \"burn\"", "line 2", "`release-behind-writer`"),
            ("rule = 1", "line 2", "string"),
            ("rule = \"budget\"", "line 1", "needs the key \"budget\""),
            (
                "rule = \"budget\"\nbudget = \"2G\"\ntotal = \"1G\"",
                "line 1",
                "the \"budget\" of one log is 2 GiB, more than the \"total\" of all, 1 GiB",
            ),
            ("rule = \"keep\"\nslack = \"4M\"", "line 1", "\"slack\" has no meaning for the rule \"keep\""),
            ("rule = \"release-behind-writer\"\nnear_files = 1", "line 1", "\"near_files\" has no meaning"),
            ("rule = \"keep\"\ntotal = \"1G\"", "line 1", "\"total\" has no meaning"),
            ("rule = \"keep\"\nslack = \"x\"", "line 3", "not a size"),
            ("rule = \"keep\"\nfoo = 1", "line 3", "foo"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(line) && error.contains(reason), "{text}: {error}");
        }
    }
}
