//! What was found: its severity, evidence, cost, and fixes.
//!
//! Invariant: evidence, cost and fixes stand apart, and each says how it is known.

use serde::Serialize;

use crate::{Confidence, Fix};

/// What kind of thing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Log files fill the page cache.
    LogsInCache,
    /// A file that the server writes as a log, and that no pattern of its profile names.
    UnnamedLog,
    /// Memory is short: free memory at its watermarks, tasks that wait for memory.
    MemoryShort,
    /// A memory cgroup is near its limit because of page cache.
    CgroupCache,
    /// Direct and buffered I/O meet on one file.
    MixedIo,
    /// A stream (backup, archiver, dump) pushes a database's hot set out.
    Stream,
    /// Pages of a database's data are taken for being idle, however much memory is free (DAMON, `memory.reclaim`).
    IdleReclaim,
    /// Writers are throttled for dirty pages.
    WritersThrottled,
    /// Syncs of a log wait for data that others wrote to its device.
    SyncedLog,
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
    /// What it costs.
    pub cost: Cost,
    /// How to fix it, the database's own settings first.
    pub fixes: Vec<Fix>,
    /// What no setting fixes, and why some advice that may be looked for is not given.
    pub remarks: Vec<String>,
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

/// What a finding costs, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// The sentence.
    pub text: String,
    /// How it is known.
    pub confidence: Confidence,
}

impl Cost {
    /// What was seen or counted on this host.
    pub fn measured(text: impl Into<String>) -> Self {
        Self { text: text.into(), confidence: Confidence::Measured }
    }

    /// What was reckoned, or measured elsewhere.
    pub fn estimated(text: impl Into<String>) -> Self {
        Self { text: text.into(), confidence: Confidence::Estimated }
    }
}

/// One thing that was seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// The sentence for people.
    pub text: String,
    /// How it is known.
    pub confidence: Confidence,
    /// Its figures, by name with the unit last (`resident_bytes`), for programs.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub figures: serde_json::Map<String, serde_json::Value>,
}

impl Evidence {
    /// A sentence without figures, about what was seen or counted.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), confidence: Confidence::Measured, figures: serde_json::Map::new() }
    }

    /// The same, known in another way.
    #[must_use]
    pub fn known(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
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
