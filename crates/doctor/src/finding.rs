//! What was found: its severity, evidence, cost, and fixes.

use serde::Serialize;

/// What kind of thing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Log files fill the page cache.
    LogsInCache,
    /// Memory is short: free memory at its watermarks, tasks that wait for memory.
    MemoryShort,
    /// Direct and buffered I/O meet on one file.
    MixedIo,
    /// A stream (backup, archiver, dump) pushes a database's hot set out.
    Stream,
    /// Pages of a database's data are taken for being idle, however much memory is free (DAMON, `memory.reclaim`).
    IdleReclaim,
    /// Writers are throttled for dirty pages.
    WritersThrottled,
    /// A log and bulk output share a device whose dirty pages pause writers.
    SharedDevice,
    /// The limits on dirty pages are set so that they can't do what they should.
    DirtyLimits,
    /// After a restart little of the data is resident.
    ColdStart,
    /// A recovery would have much to read.
    LongRecovery,
    /// A setting of the database that makes it use the page cache where it need not.
    Setting,
}

/// How much it matters, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth to know; costs nothing now.
    Note,
    /// Costs memory or time now.
    Warning,
    /// Makes the database wait now.
    Serious,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// How much it matters.
    pub severity: Severity,
    /// The database, as "mariadb (process 1234)"; `None` if it is the host's.
    pub database: Option<Subject>,
    /// One sentence: what is the matter.
    pub title: String,
    /// What was seen.
    pub evidence: Vec<Evidence>,
    /// One sentence: what it costs.
    pub cost: String,
    /// How to fix it, the database's own settings first.
    pub fixes: Vec<Fix>,
    /// What pagekeeper can do about it now: a command, and what that will and won't do. `None`: nothing.
    pub pagekeeper: Option<String>,
}

impl Finding {
    /// Whether it is about this database, by its index.
    pub(crate) fn is_about(&self, database: usize) -> bool {
        self.database.as_ref().is_some_and(|subject| subject.index == database)
    }
}

/// The database that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Subject {
    /// What findings call it: "mariadb (process 1234)".
    pub name: String,
    /// Its index in [`Observation::after`](crate::Observation::after).
    #[serde(skip)]
    pub index: usize,
}

/// One thing that was seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// The sentence for people.
    pub text: String,
    /// Its figures, by name with the unit last (`resident_bytes`), for programs.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub figures: serde_json::Map<String, serde_json::Value>,
}

impl Evidence {
    /// A sentence without figures.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), figures: serde_json::Map::new() }
    }

    /// With a figure; its name has the unit last.
    ///
    /// ```
    /// use pagekeeper_doctor::Evidence;
    /// let evidence = Evidence::new("4 KiB of ibdata1 are resident").with("resident_bytes", 4096_u64);
    /// assert_eq!(evidence.figures["resident_bytes"], 4096);
    /// ```
    #[must_use]
    pub fn with(mut self, name: &str, figure: impl Into<serde_json::Value>) -> Self {
        self.figures.insert(name.to_owned(), figure.into());
        self
    }
}

/// One way to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// What kind of act it is.
    pub kind: FixKind,
    /// The setting of the database that it sets, by its name there; `None` for what is no [`FixKind::Setting`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// The command or setting, ready to be copied: `innodb_log_file_buffering=OFF`, `sysctl vm.dirty_bytes=…`.
    pub act: String,
    /// Where it goes and what it does: "in my.cnf, needs a restart", "at once".
    pub note: String,
}

impl Fix {
    /// Sets a setting of the database.
    pub(crate) fn setting(name: &str, act: String, note: String) -> Self {
        Self { kind: FixKind::Setting, setting: Some(name.to_owned()), act, note }
    }

    /// Sets a setting of the system.
    pub(crate) fn system(act: impl Into<String>, note: impl Into<String>) -> Self {
        Self { kind: FixKind::System, setting: None, act: act.into(), note: note.into() }
    }

    /// Runs a command.
    pub(crate) fn command(act: impl Into<String>, note: impl Into<String>) -> Self {
        Self { kind: FixKind::Command, setting: None, act: act.into(), note: note.into() }
    }

    /// What can't be put into one line.
    pub(crate) fn advice(act: impl Into<String>, note: impl Into<String>) -> Self {
        Self { kind: FixKind::Advice, setting: None, act: act.into(), note: note.into() }
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
