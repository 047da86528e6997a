//! One way to fix what was found, with all that has to be known before anybody does it.
//!
//! Invariant: every field of [`Fix`] is required, so that none can be left out: for what it holds, what it costs, what it
//! touches, how to take it back, and why it applies here.

use serde::Serialize;

/// How something is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// It was seen or counted on this host.
    Measured,
    /// It was reckoned from what was seen, or from measurements elsewhere.
    Estimated,
    /// The database's settings say so.
    FromSettings,
}

impl Confidence {
    /// In words: "from settings".
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
            Self::FromSettings => "from settings",
        }
    }
}

/// One way to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// The row of the [table of advice](crate::TABLE) that it is of; `None` for what is no setting of a database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'static str>,
    /// What kind of act it is.
    pub kind: FixKind,
    /// The setting of the database that it sets, by its name there; `None` for what is no [`FixKind::Setting`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// The command or setting, ready to be copied: `innodb_log_file_buffering=OFF`, `sysctl vm.dirty_bytes=…`.
    pub act: String,
    /// Where it goes, when it takes effect, and what it does then.
    pub does: String,
    /// What has to be known before.
    #[serde(flatten)]
    pub terms: Terms,
}

/// What has to be known of a fix before it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// What it holds for.
    pub holds_for: HoldsFor,
    /// What it costs and touches.
    pub risk: Risk,
    /// How to take it back.
    pub undo: String,
    /// That is a command, to be run as it is.
    #[serde(skip)]
    pub undo_is_command: bool,
    /// Why it applies here.
    pub evidence: String,
    /// How that is known.
    pub confidence: Confidence,
    /// The vendor's documentation; `None` for what is no setting of a database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'static str>,
}

/// What a fix holds for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HoldsFor {
    /// The engine or program: "MariaDB".
    pub product: String,
    /// Its versions: "10.5 and later".
    pub versions: String,
}

/// What a fix costs, and what it touches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Risk {
    /// What it costs, in a sentence.
    pub costs: String,
    /// What it does to the durability of commits; `None`: nothing.
    pub durability: Option<&'static str>,
    /// What it does to recovery after a crash; `None`: nothing.
    pub recovery: Option<&'static str>,
    /// What it does to replication; `None`: nothing.
    pub replication: Option<&'static str>,
    /// What has to be restarted for it.
    pub restart: Restart,
}

/// What has to be restarted for a fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// Nothing: it takes effect at once, or is for the next time.
    Nothing,
    /// The database loads its configuration again.
    Reload,
    /// The database.
    Database,
}

impl Risk {
    /// One that touches neither durability, recovery nor replication, and for which nothing is restarted.
    pub(crate) fn none_but(costs: impl Into<String>) -> Self {
        Self {
            costs: costs.into(),
            durability: None,
            recovery: None,
            replication: None,
            restart: Restart::Nothing,
        }
    }

    /// What it touches, in words: "durability, recovery and replication as before".
    pub(crate) fn touches(&self) -> String {
        let parts =
            [("durability", self.durability), ("recovery", self.recovery), ("replication", self.replication)];
        let (changed, same): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(_, what)| what.is_some());
        let changed = changed.into_iter().map(|(name, what)| format!("{name}: {}", what.unwrap_or_default()));
        let same: Vec<&str> = same.into_iter().map(|(name, _)| name).collect();
        let same = match same.as_slice() {
            [] => None,
            [one] => Some(format!("{one} as before")),
            [first @ .., last] => Some(format!("{} and {last} as before", first.join(", "))),
        };
        changed.chain(same).collect::<Vec<_>>().join("; ")
    }
}

impl Terms {
    /// Those of what anybody can do on any Linux.
    pub(crate) fn anywhere(
        confidence: Confidence,
        evidence: impl Into<String>,
        costs: impl Into<String>,
        undo: impl Into<String>,
    ) -> Self {
        Self {
            holds_for: HoldsFor { product: "Linux".to_owned(), versions: "all".to_owned() },
            risk: Risk::none_but(costs),
            undo: undo.into(),
            undo_is_command: false,
            evidence: evidence.into(),
            confidence,
            source: None,
        }
    }

    /// The same, where what takes it back is a command.
    pub(crate) fn taken_back_by_command(self) -> Self {
        Self { undo_is_command: true, ..self }
    }
}

impl Fix {
    /// Sets a setting of the system.
    pub(crate) fn system(act: impl Into<String>, does: impl Into<String>, terms: Terms) -> Self {
        Self { id: None, kind: FixKind::System, setting: None, act: act.into(), does: does.into(), terms }
    }

    /// Runs a command.
    pub(crate) fn command(act: impl Into<String>, does: impl Into<String>, terms: Terms) -> Self {
        Self { id: None, kind: FixKind::Command, setting: None, act: act.into(), does: does.into(), terms }
    }

    /// What can't be put into one line.
    pub(crate) fn advice(act: impl Into<String>, does: impl Into<String>, terms: Terms) -> Self {
        Self { id: None, kind: FixKind::Advice, setting: None, act: act.into(), does: does.into(), terms }
    }
}

/// What kind of act a fix is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FixKind {
    /// A setting of the database.
    Setting,
    /// A setting of the system.
    System,
    /// A command to run.
    Command,
    /// What can't be put into one line.
    Advice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_said_and_what_is_not_too() {
        let mut risk = Risk::none_but("nothing");
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
