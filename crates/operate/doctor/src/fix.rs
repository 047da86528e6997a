//! One way to fix a finding, with everything that has to be known before it is applied.
//!
//! Invariant: every field of [`Fix`] is required, so that none can be forgotten: where it applies,
//! its cost, its side effects, how to revert it, and why it applies here.

use pagekeeper_text::listed;
use serde::{Deserialize, Serialize};

/// The source of some knowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Seen or counted on this host.
    Measured,
    /// Calculated from observations, or from measurements elsewhere.
    Estimated,
    /// Stated by the database's settings.
    FromSettings,
}

impl Confidence {
    /// Returns it in words: "from settings".
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
            Self::FromSettings => "from settings",
        }
    }
}

/// One way to fix a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// Its row in the [table of advice](crate::TABLE); `None` if it is not a database setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'static str>,
    /// Its kind.
    pub kind: FixKind,
    /// The name of the database setting it changes; `None` if it is not a [`FixKind::Setting`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// The command or setting, ready to copy: `innodb_log_file_buffering=OFF`,
    /// `sysctl vm.dirty_bytes=…`.
    pub act: String,
    /// The place for it, the time when it takes effect, and its effect.
    pub does: String,
    /// The terms to know before applying it.
    #[serde(flatten)]
    pub terms: Terms,
}

/// The terms of a fix, to know before it is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// The products it applies to.
    pub holds_for: HoldsFor,
    /// Its cost and side effects.
    pub risk: Risk,
    /// The way to revert it.
    pub undo: String,
    /// Whether `undo` is a command, to be run as it is.
    #[serde(skip)]
    pub undo_is_command: bool,
    /// The reason why it applies here.
    pub evidence: String,
    /// The source of this knowledge.
    pub confidence: Confidence,
    /// The vendor's documentation; `None` if it is not a database setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'static str>,
}

/// The products a fix applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HoldsFor {
    /// The engine or program: "MariaDB".
    pub product: String,
    /// Its versions: "10.5 and later".
    pub versions: String,
}

/// The cost and side effects of a fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Risk {
    /// Its cost, in one sentence.
    pub costs: String,
    /// Its effect on the durability of commits; `None` if there is none.
    pub durability: Option<&'static str>,
    /// Its effect on recovery after a crash; `None` if there is none.
    pub recovery: Option<&'static str>,
    /// Its effect on replication; `None` if there is none.
    pub replication: Option<&'static str>,
    /// The restart it needs.
    pub restart: Restart,
}

/// The restart that a fix needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// None: it takes effect at once, or applies to the next time.
    Nothing,
    /// The database reloads its configuration.
    Reload,
    /// The database restarts.
    Database,
}

impl Risk {
    /// Returns its side effects in words: "durability, recovery and replication as before".
    pub(crate) fn touches(&self) -> String {
        let parts =
            [("durability", self.durability), ("recovery", self.recovery), ("replication", self.replication)];
        let (changed, same): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(_, what)| what.is_some());
        let changed = changed.into_iter().map(|(name, what)| format!("{name}: {}", what.unwrap_or_default()));
        let same: Vec<&str> = same.into_iter().map(|(name, _)| name).collect();
        let same = (!same.is_empty()).then(|| format!("{} as before", listed(&same)));
        changed.chain(same).collect::<Vec<_>>().join("; ")
    }
}

/// The kind of a fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FixKind {
    /// A database setting.
    Setting,
    /// A system setting.
    System,
    /// A command to run.
    Command,
    /// Advice that does not fit on one line.
    Advice,
}

#[cfg(test)]
mod tests {
    use crate::advice::step;

    #[test]
    fn a_risk_lists_what_it_touches_and_what_it_does_not() {
        let mut risk = step("periodic-writeback", &[]).terms.risk;
        assert_eq!(risk.touches(), "durability, recovery and replication as before");
        risk.recovery = Some("what stays behind is lost");
        assert_eq!(
            risk.touches(),
            "recovery: what stays behind is lost; durability and replication as before"
        );
        risk.replication = Some("b");
        assert_eq!(
            risk.touches(),
            "recovery: what stays behind is lost; replication: b; durability as before"
        );
    }
}
