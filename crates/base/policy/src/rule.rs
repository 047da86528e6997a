//! File classes and rules: the role that a profile gives to a file, and the treatment of its pages.
//!
//! This is the only schema of rules: configurations are read into these types, and
//! [`crate::step()`] and the preloaded library act on them. Each value has one text form, which
//! `Display` writes, serde uses (feature `std`) and `from_text` reads without allocating.

use core::fmt;

use crate::WINDOW;

/// Default number of bytes that stay resident behind a writer: two windows.
pub const DEFAULT_SLACK: u64 = 2 * WINDOW;
/// Default number of files behind the writer up to which a follower counts as near.
pub const DEFAULT_NEAR_FILES: u64 = 3;

/// Default limit of the bytes that all logs of one database with the same budget keep together,
/// unless one log may keep more: 1 GiB.
pub const DEFAULT_BUDGET_TOTAL: u64 = 1 << 30;

/// The role of a file in its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum FileClass {
    /// A redo log: fixed files used as a ring, read only by recovery.
    Redo,
    /// A replication log of the server: segments that followers tail.
    Binlog,
    /// A relay log: received by a replica and yet to be applied.
    Relay,
    /// A write-ahead log in segments.
    Wal,
    /// Segments of a stream or topic: the log is the data, and its readers are mostly invisible.
    Messages,
    /// Text for people and programs: error, query, slow and audit logs. The server does not read
    /// them.
    Text,
    /// Table files, SST files: the data itself.
    Data,
    /// Sort runs, temporary tables, spill files.
    Temp,
}

impl FileClass {
    /// All classes.
    pub const ALL: [Self; 8] = [
        Self::Redo,
        Self::Binlog,
        Self::Relay,
        Self::Wal,
        Self::Messages,
        Self::Text,
        Self::Data,
        Self::Temp,
    ];

    /// Returns the name, as in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redo => "redo",
            Self::Binlog => "binlog",
            Self::Relay => "relay",
            Self::Wal => "wal",
            Self::Messages => "messages",
            Self::Text => "text",
            Self::Data => "data",
            Self::Temp => "temp",
        }
    }

    /// Whether the class is a log of any kind.
    ///
    /// ```
    /// use pagekeeper_policy::FileClass;
    /// assert!(FileClass::Relay.is_log() && !FileClass::Temp.is_log());
    /// ```
    pub const fn is_log(self) -> bool {
        match self {
            Self::Redo | Self::Binlog | Self::Relay | Self::Wal | Self::Messages | Self::Text => true,
            Self::Data | Self::Temp => false,
        }
    }
}

impl fmt::Display for FileClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The treatment of a file's resident pages.
///
/// Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Leave the pages alone.
    Keep,
    /// Release everything more than `slack` bytes behind the writer, and whole files that the
    /// writer has left.
    ReleaseBehindWriter {
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// Leave the writer's file alone; release each file once the writer has left it.
    ReleaseOnRotation,
    /// As [`Rule::ReleaseBehindWriter`], but keep what a near follower has yet to read.
    ReleaseBehindFollowers {
        /// A follower is near, so that pages wait for it, if it is at most this many files behind
        /// the writer's file.
        near_files: u64,
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// As [`Rule::ReleaseBehindFollowers`], but also keep what crash recovery would read, from the
    /// last checkpoint on. If the checkpoint is unknown, keep everything.
    ReleaseBeforeCheckpoint {
        /// A follower is near, so that pages wait for it, if it is at most this many files behind
        /// the writer's file.
        near_files: u64,
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// Keep `bytes` of the log resident, newest first, and at most `total` of all logs of a
    /// database that have this rule; release the oldest beyond that.
    Budget {
        /// Bytes of the whole log that may stay resident.
        bytes: u64,
        /// Bytes of all such logs of one database that may stay resident; each log has a share. A
        /// caller that sees only one log ignores it.
        total: u64,
    },
    /// The database uses direct I/O on this file: resident pages are leftovers, which are released
    /// and warned about.
    Direct,
}

impl Rule {
    /// Returns the name, as in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::ReleaseBehindWriter { .. } => "release-behind-writer",
            Self::ReleaseOnRotation => "release-on-rotation",
            Self::ReleaseBehindFollowers { .. } => "release-behind-followers",
            Self::ReleaseBeforeCheckpoint { .. } => "release-before-checkpoint",
            Self::Budget { .. } => "budget",
            Self::Direct => "direct",
        }
    }

    /// Returns the same rule with less resident data, for logs in a memory cgroup whose page cache
    /// takes too much of its limit. It still waits for the same followers, checkpoints and
    /// rotations, and [`Rule::Keep`] stays as it is.
    ///
    /// ```
    /// use pagekeeper_policy::Rule;
    ///
    /// let rule = Rule::Budget { bytes: 64 << 20, total: 1 << 30 };
    /// assert_eq!(rule.tightened(), Rule::Budget { bytes: 16 << 20, total: 256 << 20 });
    /// assert_eq!(Rule::Keep.tightened(), Rule::Keep);
    /// ```
    #[must_use]
    pub fn tightened(self) -> Self {
        let least = |slack: u64| slack.min(DEFAULT_SLACK);
        let quarter = |bytes: u64| (bytes / 4).max(least(bytes));
        match self {
            Self::ReleaseBehindWriter { slack } => Self::ReleaseBehindWriter { slack: least(slack) },
            Self::ReleaseBehindFollowers { near_files, slack } => {
                Self::ReleaseBehindFollowers { near_files, slack: least(slack) }
            }
            Self::ReleaseBeforeCheckpoint { near_files, slack } => {
                Self::ReleaseBeforeCheckpoint { near_files, slack: least(slack) }
            }
            Self::Budget { bytes, total } => Self::Budget { bytes: quarter(bytes), total: quarter(total) },
            Self::Keep | Self::ReleaseOnRotation | Self::Direct => self,
        }
    }

    /// Parses what `Display` writes: the name and its numbers, separated by colons. Returns `None`
    /// for anything else.
    ///
    /// ```
    /// use pagekeeper_policy::Rule;
    ///
    /// let rule = Rule::ReleaseBehindFollowers { near_files: 3, slack: 4096 };
    /// assert_eq!(rule.to_string(), "release-behind-followers:3:4096");
    /// assert_eq!(Rule::from_text(b"release-behind-followers:3:4096"), Some(rule));
    /// assert_eq!(Rule::from_text(b"release-behind-followers:3"), None);
    /// ```
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let mut words = text.split(|&byte| byte == b':');
        let mut rule = match words.next()? {
            b"keep" => Self::Keep,
            b"release-behind-writer" => Self::ReleaseBehindWriter { slack: 0 },
            b"release-on-rotation" => Self::ReleaseOnRotation,
            b"release-behind-followers" => Self::ReleaseBehindFollowers { near_files: 0, slack: 0 },
            b"release-before-checkpoint" => Self::ReleaseBeforeCheckpoint { near_files: 0, slack: 0 },
            b"budget" => Self::Budget { bytes: 0, total: 0 },
            b"direct" => Self::Direct,
            _ => return None,
        };
        match &mut rule {
            Self::Keep | Self::ReleaseOnRotation | Self::Direct => {}
            Self::ReleaseBehindWriter { slack } => *slack = number(words.next()?)?,
            Self::ReleaseBehindFollowers { near_files, slack }
            | Self::ReleaseBeforeCheckpoint { near_files, slack } => {
                *near_files = number(words.next()?)?;
                *slack = number(words.next()?)?;
            }
            Self::Budget { bytes, total } => {
                *bytes = number(words.next()?)?;
                *total = number(words.next()?)?;
            }
        }
        words.next().is_none().then_some(rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Keep | Self::ReleaseOnRotation | Self::Direct => Ok(()),
            Self::ReleaseBehindWriter { slack } => write!(f, ":{slack}"),
            Self::ReleaseBehindFollowers { near_files, slack }
            | Self::ReleaseBeforeCheckpoint { near_files, slack } => write!(f, ":{near_files}:{slack}"),
            Self::Budget { bytes, total } => write!(f, ":{bytes}:{total}"),
        }
    }
}

/// The way in which a log's writer overwrites bytes that are already in the file.
///
/// This decides whether a released page costs a read later: overwriting a whole page does not need
/// its old content, overwriting a part of it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RewriteKind {
    /// It only appends: no released page is written again, except for the tail page.
    Never,
    /// It overwrites whole aligned pages of this kernel (a ring, recycled segments): releasing
    /// costs nothing.
    WholePages,
    /// It overwrites parts of pages: a released page would be read again before each write, so none
    /// is released. Blocks of 8 KiB are whole pages of 4 KiB, but parts of pages of 64 KiB.
    SubPages,
}

impl RewriteKind {
    /// Returns the kind of a writer that overwrites whole aligned blocks of `block` bytes, on a
    /// kernel with pages of `page` bytes.
    ///
    /// ```
    /// use pagekeeper_policy::RewriteKind;
    ///
    /// assert_eq!(RewriteKind::of_blocks(8192, 4096), RewriteKind::WholePages);
    /// assert_eq!(RewriteKind::of_blocks(8192, 65536), RewriteKind::SubPages);
    /// ```
    pub const fn of_blocks(block: u64, page: u64) -> Self {
        if block > 0 && block.is_multiple_of(page) { Self::WholePages } else { Self::SubPages }
    }

    /// Whether a released page would be read again before it is written. Such a file is kept.
    pub const fn needs_old_pages(self) -> bool {
        match self {
            Self::Never | Self::WholePages => false,
            Self::SubPages => true,
        }
    }
}

/// The source from which a profile takes the [`RewriteKind`] of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RewriteSource {
    /// From the writes: the log counts as append-only until a file is seen to be recycled.
    #[default]
    Detect,
    /// From the device: the writer overwrites its physical blocks, which are whole pages if they
    /// are at least a page long. If the device is unknown, the writes decide.
    DeviceBlocks,
    /// From the profile.
    Known(RewriteKind),
}

impl RewriteSource {
    const SOURCES: [Self; 5] = [
        Self::Detect,
        Self::DeviceBlocks,
        Self::Known(RewriteKind::Never),
        Self::Known(RewriteKind::WholePages),
        Self::Known(RewriteKind::SubPages),
    ];

    /// Returns the name, as in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::DeviceBlocks => "device-blocks",
            Self::Known(RewriteKind::Never) => "never",
            Self::Known(RewriteKind::WholePages) => "whole-pages",
            Self::Known(RewriteKind::SubPages) => "sub-pages",
        }
    }

    /// Parses a name. Returns `None` for anything else.
    ///
    /// ```
    /// use pagekeeper_policy::{RewriteKind, RewriteSource};
    /// assert_eq!(RewriteSource::from_text(b"whole-pages"), Some(RewriteSource::Known(RewriteKind::WholePages)));
    /// ```
    pub fn from_text(text: &[u8]) -> Option<Self> {
        Self::SOURCES.into_iter().find(|source| source.as_str().as_bytes() == text)
    }
}

impl fmt::Display for RewriteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(feature = "std")]
impl<'de> serde::Deserialize<'de> for RewriteSource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const SOURCE_NAMES: [&str; 5] = {
            let all = RewriteSource::SOURCES;
            [all[0].as_str(), all[1].as_str(), all[2].as_str(), all[3].as_str(), all[4].as_str()]
        };
        let name = String::deserialize(deserializer)?;
        Self::from_text(name.as_bytes())
            .ok_or_else(|| serde::de::Error::unknown_variant(&name, &SOURCE_NAMES))
    }
}

/// The treatment of written pages of bulk output: files that are written once and in order. Only a
/// process that holds up its writers can apply it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum BulkPages {
    /// Keep them: the database reads them again.
    Keep,
    /// Release them.
    Release,
}

impl BulkPages {
    /// Returns the name, as in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Release => "release",
        }
    }

    /// Parses a name. Returns `None` for anything else.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        [Self::Keep, Self::Release].into_iter().find(|pages| pages.as_str().as_bytes() == text)
    }
}

impl fmt::Display for BulkPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Parses a number in decimal digits, without a sign. Returns `None` for anything else.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule() -> impl Strategy<Value = Rule> {
        prop_oneof![
            Just(Rule::Keep),
            Just(Rule::Direct),
            Just(Rule::ReleaseOnRotation),
            any::<u64>().prop_map(|slack| Rule::ReleaseBehindWriter { slack }),
            any::<(u64, u64)>()
                .prop_map(|(near_files, slack)| Rule::ReleaseBehindFollowers { near_files, slack }),
            any::<(u64, u64)>()
                .prop_map(|(near_files, slack)| Rule::ReleaseBeforeCheckpoint { near_files, slack }),
            any::<(u64, u64)>().prop_map(|(bytes, total)| Rule::Budget { bytes, total }),
        ]
    }

    proptest! {
        #[test]
        fn a_rule_is_read_as_it_was_written(rule in rule()) {
            prop_assert_eq!(Rule::from_text(rule.to_string().as_bytes()), Some(rule));
        }

        #[test]
        fn random_text_is_handled(text: Vec<u8>) {
            let _ = (Rule::from_text(&text), RewriteSource::from_text(&text), BulkPages::from_text(&text));
        }
    }

    #[test]
    fn text_that_is_not_a_rule_is_refused() {
        for text in [
            "",
            "keep:",
            "keep:1",
            "kep",
            "budget",
            "budget:",
            "budget:1",
            "budget:1:2:3",
            "budget:-1:2",
            "budget:99999999999999999999:1",
        ] {
            assert_eq!(Rule::from_text(text.as_bytes()), None, "{text}");
        }
        assert_eq!((RewriteSource::from_text(b""), BulkPages::from_text(b"drop")), (None, None));
    }

    #[test]
    fn rewrite_modes_and_page_kinds_parse_back() {
        for source in RewriteSource::SOURCES {
            assert_eq!(RewriteSource::from_text(source.to_string().as_bytes()), Some(source));
        }
        for pages in [BulkPages::Keep, BulkPages::Release] {
            assert_eq!(BulkPages::from_text(pages.to_string().as_bytes()), Some(pages));
        }
    }
}
