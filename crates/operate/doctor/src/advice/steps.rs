//! Fixes that are no setting of a database, in `advice/steps.toml` of this crate: parsed once, and
//! filled in by the finders.
//!
//! Invariant, which a test checks: each step is named by a finder, with all names in its braces.

use std::fmt::Display;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::{Confidence, Fix, FixKind, HoldsFor, Restart, Risk, Terms};

static STEPS: LazyLock<Vec<Step>> = LazyLock::new(|| {
    let table: StepTable = toml::from_str(include_str!("../../advice/steps.toml")).expect("it is tested");
    table.step
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    step: Vec<Step>,
}

/// One step: a fix whose texts have names in braces for what the finder knows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Its name for the finders.
    id: String,
    kind: FixKind,
    act: String,
    does: String,
    costs: String,
    undo: String,
    /// Whether `undo` is a command, to be run as it is.
    #[serde(default)]
    undo_is_command: bool,
    evidence: String,
    confidence: Confidence,
    /// The product it applies to; Linux if absent.
    product: Option<String>,
    /// The versions of the product; all if absent.
    versions: Option<String>,
    /// The restart it needs; none if absent.
    restart: Option<Restart>,
    recovery: Option<String>,
    source: Option<String>,
}

/// Returns the fix by a step of the table, with a value for each name in its braces.
pub(crate) fn step(id: &str, values: &[(&str, &dyn Display)]) -> Fix {
    let step = STEPS.iter().find(|step| step.id == id).expect("a step of the table");
    step.fix(values)
}

impl Step {
    fn fix(&'static self, values: &[(&str, &dyn Display)]) -> Fix {
        let or = |text: &Option<String>, other: &str| text.as_deref().unwrap_or(other).to_owned();
        let terms = Terms {
            holds_for: HoldsFor { product: or(&self.product, "Linux"), versions: or(&self.versions, "all") },
            risk: Risk {
                costs: filled(&self.costs, values),
                durability: None,
                recovery: self.recovery.as_deref(),
                replication: None,
                restart: self.restart.unwrap_or(Restart::Nothing),
            },
            undo: filled(&self.undo, values),
            undo_is_command: self.undo_is_command,
            evidence: filled(&self.evidence, values),
            confidence: self.confidence,
            source: self.source.as_deref(),
        };
        let (act, does) = (filled(&self.act, values), filled(&self.does, values));
        Fix { id: None, kind: self.kind, setting: None, act, does, terms }
    }
}

/// Returns a text with the values of the names in its braces.
fn filled(text: &str, values: &[(&str, &dyn Display)]) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        let value = values.iter().find(|(known, _)| *known == name);
        debug_assert!(value.is_some(), "no value for {{{name}}} in \"{text}\"");
        filled += &value.map(|(_, value)| value.to_string()).unwrap_or_default();
        filled += rest;
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_a_name_of_its_own_and_a_finder() {
        let mut sources = String::new();
        let mut directories = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    sources += &std::fs::read_to_string(path).unwrap();
                }
            }
        }
        for step in STEPS.iter() {
            assert_eq!(STEPS.iter().filter(|other| other.id == step.id).count(), 1, "{}", step.id);
            assert!(sources.contains(&format!("\"{}\"", step.id)), "no finder has {}", step.id);
        }
    }

    #[test]
    fn names_in_braces_are_filled_in_and_braces_of_values_stay() {
        let values: &[(&str, &dyn Display)] = &[("a", &"{b}"), ("b", &2)];
        assert_eq!(filled("x {a} {b}{b} y", values), "x {b} 22 y");
        assert_eq!(filled("plain", values), "plain");
    }
}
