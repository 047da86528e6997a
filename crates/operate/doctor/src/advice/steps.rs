//! Fixes that are no setting of a database, in `advice/steps.toml` of this crate: parsed once, and
//! filled in by the finders.
//!
//! Invariant, which a test checks: each step is named by a finder, with all names in its braces.

use std::fmt::Display;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::texts::filled;
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
        let filled = |text: &str| {
            let filled = filled(text, values);
            debug_assert!(filled.is_some(), "a value of {} is missing", self.id);
            filled.unwrap_or_default()
        };
        let or = |text: &Option<String>, other: &str| text.as_deref().unwrap_or(other).to_owned();
        let terms = Terms {
            holds_for: HoldsFor { product: or(&self.product, "Linux"), versions: or(&self.versions, "all") },
            risk: Risk {
                costs: filled(&self.costs),
                durability: None,
                recovery: self.recovery.as_deref(),
                replication: None,
                restart: self.restart.unwrap_or(Restart::Nothing),
            },
            undo: filled(&self.undo),
            undo_is_command: self.undo_is_command,
            evidence: filled(&self.evidence),
            confidence: self.confidence,
            source: self.source.as_deref(),
        };
        let (act, does) = (filled(&self.act), filled(&self.does));
        Fix { id: None, kind: self.kind, setting: None, act, does, terms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_a_name_of_its_own_and_a_finder() {
        let sources = crate::testing::sources();
        for step in STEPS.iter() {
            assert_eq!(STEPS.iter().filter(|other| other.id == step.id).count(), 1, "{}", step.id);
            assert!(sources.contains(&format!("\"{}\"", step.id)), "no finder has {}", step.id);
        }
    }
}
