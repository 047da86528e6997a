//! Findings: their severity, evidence, cost, and fixes.
//!
//! Invariant: evidence, cost and fixes are separate, and each states its confidence.

use std::fmt::Display;

use serde::Serialize;

use crate::{Confidence, Fix, texts};

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Log files fill the page cache.
    LogsInCache,
    /// A file that the server writes as a log, and that no pattern of its profile matches.
    UnnamedLog,
    /// Memory is short: free memory at its watermarks, tasks that wait for memory.
    MemoryShort,
    /// A memory cgroup is near its limit because of page cache.
    CgroupCache,
    /// A pod may be evicted because of active file pages of its node.
    NearEviction,
    /// `MariaDB` gave memory of its buffer pool away because of memory pressure.
    PoolPressure,
    /// Direct and buffered I/O meet on one file.
    MixedIo,
    /// A stream (backup, archiver, dump) pushes a database's hot set out.
    Stream,
    /// Pages of a database's data are considered idle and reclaimed, however much memory is free
    /// (DAMON, `memory.reclaim`).
    IdleReclaim,
    /// Read-ahead is too large for a database that maps its files or reads them at random.
    ReadAhead,
    /// The kernel moves a database's memory to swap.
    Swapped,
    /// Writers are throttled because of dirty pages.
    WritersThrottled,
    /// Syncs of a log wait for data that others wrote to its device.
    SyncedLog,
    /// A log and bulk output share a device whose dirty pages throttle writers.
    SharedDevice,
    /// The limits on dirty pages are set so that they can't work as intended.
    DirtyLimits,
    /// After a restart little of the data is resident.
    ColdStart,
    /// A recovery would have much to read.
    LongRecovery,
    /// A database setting that makes it use the page cache unnecessarily.
    Setting,
}

/// The severity of a finding, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; costs nothing now.
    Note,
    /// Costs memory or time now.
    Warning,
    /// Makes the database wait now.
    Serious,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// Its severity.
    pub severity: Severity,
    /// The database, as "mariadb (process 1234)"; `None` if it concerns the host.
    pub database: Option<Subject>,
    /// The problem, in one sentence.
    pub title: String,
    /// The observations.
    pub evidence: Vec<Evidence>,
    /// Its cost.
    pub cost: Cost,
    /// The fixes, starting with the database's own settings.
    pub fixes: Vec<Fix>,
    /// Problems that no setting fixes, and reasons why expected advice is not given.
    pub remarks: Vec<String>,
    /// The help that pagekeeper offers now: a command with its effects and limits. `None` if there
    /// is none.
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
    /// Its name in findings: "mariadb (process 1234)".
    pub name: String,
    /// Its index in [`Observation::after`](crate::Observation::after).
    #[serde(skip)]
    pub index: usize,
}

/// The cost of a finding, in one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// The sentence.
    pub text: String,
    /// The source of this knowledge.
    pub confidence: Confidence,
}

impl Cost {
    /// Creates a cost that was seen or counted on this host.
    pub fn measured(text: impl Into<String>) -> Self {
        Self { text: text.into(), confidence: Confidence::Measured }
    }

    /// Creates a cost that was calculated, or measured elsewhere.
    pub fn estimated(text: impl Into<String>) -> Self {
        Self { text: text.into(), confidence: Confidence::Estimated }
    }
}

/// One observation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// The sentence for people.
    pub text: String,
    /// The source of this knowledge.
    pub confidence: Confidence,
    /// Its figures for programs, by name with the unit last (`resident_bytes`).
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub figures: serde_json::Map<String, serde_json::Value>,
    /// The text with its places still empty; `None` for a text that has none.
    #[serde(skip)]
    template: Option<&'static str>,
    /// The values for these places.
    #[serde(skip)]
    values: Vec<(&'static str, String)>,
}

impl Evidence {
    /// Creates a sentence without figures, about something seen or counted.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            confidence: Confidence::Measured,
            figures: serde_json::Map::new(),
            template: None,
            values: Vec::new(),
        }
    }

    /// Creates a sentence of the table of texts. Its figures and words follow.
    pub(crate) fn of(id: &str) -> Self {
        let template = texts::template(id);
        debug_assert!(template.is_some(), "no text is called {id}");
        Self { template, ..Self::new("") }.filled()
    }

    /// Sets another confidence.
    #[must_use]
    pub fn known(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
    }

    /// Adds a figure; its name has the unit last.
    ///
    /// ```
    /// use pagekeeper_doctor::Evidence;
    /// let evidence = Evidence::new("4 KiB of ibdata1 are resident").with("resident_bytes", 4096_u64);
    /// assert_eq!(evidence.figures["resident_bytes"], 4096);
    /// ```
    #[must_use]
    pub fn with(self, name: &'static str, figure: impl Into<serde_json::Value>) -> Self {
        self.add(name, figure.into())
    }

    /// Adds a figure if it is known.
    #[must_use]
    pub(crate) fn with_known(self, name: &'static str, figure: Option<impl Into<serde_json::Value>>) -> Self {
        match figure {
            Some(figure) => self.add(name, figure.into()),
            None => self,
        }
    }

    fn add(mut self, name: &'static str, figure: serde_json::Value) -> Self {
        self.values.push((name, texts::shown(name, &figure)));
        self.figures.insert(name.to_owned(), figure);
        self.filled()
    }

    /// Adds words for a place of the text.
    #[must_use]
    pub(crate) fn say(mut self, name: &'static str, words: impl Display) -> Self {
        self.values.push((name, words.to_string()));
        self.filled()
    }

    fn filled(mut self) -> Self {
        let values: Vec<_> = self.values.iter().map(|(name, words)| (*name, words as &dyn Display)).collect();
        if let Some(text) = self.template.and_then(|template| texts::filled(template, &values)) {
            self.text = text;
        }
        self
    }
}
