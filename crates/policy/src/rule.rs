//! File classes and rules: what a profile says a file is, and what is to be done with its pages.
//!
//! The one schema of rules: configurations are read into these types, [`crate::step()`] and the library that is preloaded
//! act by them. Each has one text, which serde uses (feature `std`) and `from_text` reads without allocating; `Display`
//! writes it.

use core::fmt;

use crate::WINDOW;

/// Bytes that stay resident behind a writer where a rule does not say: two windows.
pub const DEFAULT_SLACK: u64 = 2 * WINDOW;
/// Files behind the writer up to which a follower is near, where a rule does not say.
pub const DEFAULT_NEAR_FILES: u64 = 3;

/// Bytes that all logs of one database with the same budget keep together, where a rule does not say, unless one log
/// may keep more: 1 GiB.
pub const DEFAULT_TOTAL: u64 = 1 << 30;

/// What a file is to its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum FileClass {
    /// A redo log: fixed files used as a ring, read only by recovery.
    Redo,
    /// A replication log of the server: segments that followers tail.
    Binlog,
    /// What a replica received and has yet to apply.
    Relay,
    /// A write-ahead log in segments.
    Wal,
    /// Segments of a stream or topic: the log is the data, and its readers are mostly not seen.
    Messages,
    /// What the server writes for people and programs to read: error, query, slow and audit logs. It does not read them.
    Text,
    /// Table files, SST files: the data itself.
    Data,
    /// Sort runs, temporary tables, spill files.
    Temp,
}

impl FileClass {
    /// All of them.
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

    /// Its name, as configurations give it.
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

    /// Whether it is a log of any kind.
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

/// What is to be done with the resident pages of a file.
///
/// Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Leave the pages alone.
    Keep,
    /// Release what lies more than `slack` bytes behind the writer; release whole files the writer has left.
    ReleaseBehindWriter {
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// Leave the writer's file alone, release each file once the writer has left it.
    ReleaseOnRotation,
    /// As [`Rule::ReleaseBehindWriter`], but leave what a near follower has yet to read.
    ReleaseBehindFollowers {
        /// A follower at most this many files behind the writer's file is near: pages wait for it.
        near_files: u64,
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// As [`Rule::ReleaseBehindFollowers`], but leave what crash recovery would read, too: from the last checkpoint on. Where that
    /// is not known, leave everything.
    ReleaseBeforeCheckpoint {
        /// A follower at most this many files behind the writer's file is near: pages wait for it.
        near_files: u64,
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// Let the log keep `bytes` resident, newest first, and all logs of a database that have this rule no more than `total`;
    /// release the oldest beyond it.
    Budget {
        /// Bytes of the whole log that may stay resident.
        bytes: u64,
        /// Bytes of all such logs of one database together that may: each has a share. Who sees one log alone does not go by it.
        total: u64,
    },
    /// The database uses direct I/O on this file: resident pages are leftovers, released and warned of.
    Direct,
}

impl Rule {
    /// Its name, as configurations give it.
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

    /// The same rule leaving less: for logs in a memory cgroup whose page cache takes too much of its limit. What it waits for
    /// (followers, checkpoints, rotation) it waits for still, and what it keeps altogether it keeps.
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

    /// Reads what `Display` writes: the name, and its figures apart by colons. `None` if it is anything else.
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

/// How a log's writer comes back to bytes that are in the file already.
///
/// It decides whether a released page costs a read later: a whole page that is overwritten does not need its old
/// content, a part of a page does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rewrite {
    /// It only appends: no released page is written again, but for the tail page.
    Never,
    /// It overwrites whole aligned pages of this kernel (a ring, recycled segments): releasing costs nothing.
    WholePages,
    /// It overwrites parts of pages: a released page would be read again before each write. Never released. Blocks of 8 KiB are whole
    /// pages where pages have 4 KiB, and parts of pages where they have 64 KiB.
    SubPages,
}

impl Rewrite {
    /// That of a writer who overwrites whole aligned blocks of this size, on a kernel with pages of that one. In bytes.
    ///
    /// ```
    /// use pagekeeper_policy::Rewrite;
    ///
    /// assert_eq!(Rewrite::of_blocks(8192, 4096), Rewrite::WholePages);
    /// assert_eq!(Rewrite::of_blocks(8192, 65536), Rewrite::SubPages);
    /// ```
    pub const fn of_blocks(block: u64, page: u64) -> Self {
        if block > 0 && block.is_multiple_of(page) { Self::WholePages } else { Self::SubPages }
    }

    /// Whether a released page would be read again before it is written: such a file is kept.
    pub const fn needs_old_pages(self) -> bool {
        match self {
            Self::Never | Self::WholePages => false,
            Self::SubPages => true,
        }
    }
}

/// Where it is known from how a log's writer comes back to old bytes: what a profile says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RewriteSource {
    /// From what is written: it is taken to append only until a file is seen to be recycled.
    #[default]
    Detect,
    /// From the device: its physical blocks are overwritten, which are whole pages where they are a page or more. Who does
    /// not know the device goes by what is written.
    DeviceBlocks,
    /// From the profile.
    Known(Rewrite),
}

impl RewriteSource {
    const ALL: [Self; 5] = [
        Self::Detect,
        Self::DeviceBlocks,
        Self::Known(Rewrite::Never),
        Self::Known(Rewrite::WholePages),
        Self::Known(Rewrite::SubPages),
    ];

    /// Its name, as configurations give it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::DeviceBlocks => "device-blocks",
            Self::Known(Rewrite::Never) => "never",
            Self::Known(Rewrite::WholePages) => "whole-pages",
            Self::Known(Rewrite::SubPages) => "sub-pages",
        }
    }

    /// Reads the name; `None` if it is anything else.
    ///
    /// ```
    /// use pagekeeper_policy::{Rewrite, RewriteSource};
    /// assert_eq!(RewriteSource::from_text(b"whole-pages"), Some(RewriteSource::Known(Rewrite::WholePages)));
    /// ```
    pub fn from_text(text: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str().as_bytes() == text)
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
        const NAMES: [&str; 5] = {
            let all = RewriteSource::ALL;
            [all[0].as_str(), all[1].as_str(), all[2].as_str(), all[3].as_str(), all[4].as_str()]
        };
        let name = String::deserialize(deserializer)?;
        Self::from_text(name.as_bytes()).ok_or_else(|| serde::de::Error::unknown_variant(&name, &NAMES))
    }
}

/// What becomes of the pages of bulk output once they are written: of files that are written once and in order. Only a
/// process that holds its writers up can act by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum BulkPages {
    /// They stay: the database reads them again.
    Keep,
    /// They are released.
    Release,
}

impl BulkPages {
    /// Its name, as configurations give it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Release => "release",
        }
    }

    /// Reads the name; `None` if it is anything else.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        [Self::Keep, Self::Release].into_iter().find(|pages| pages.as_str().as_bytes() == text)
    }
}

impl fmt::Display for BulkPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Reads a number in decimal digits, without a sign; `None` if it is anything else.
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
        fn no_text_is_too_odd(text: Vec<u8>) {
            let _ = (Rule::from_text(&text), RewriteSource::from_text(&text), BulkPages::from_text(&text));
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
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
    fn each_kind_of_rewriting_and_of_pages_is_read_as_it_was_written() {
        for source in RewriteSource::ALL {
            assert_eq!(RewriteSource::from_text(source.to_string().as_bytes()), Some(source));
        }
        for pages in [BulkPages::Keep, BulkPages::Release] {
            assert_eq!(BulkPages::from_text(pages.to_string().as_bytes()), Some(pages));
        }
    }
}
