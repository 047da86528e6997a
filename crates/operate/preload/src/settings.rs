//! The settings of a preloaded process: one text in its environment, which the launcher writes and
//! each process reads when it starts.
//!
//! Each line is one setting, its words separated by single spaces; a pattern or path is the rest of
//! its line. The text names all programs that rules apply to, so that child processes of other
//! programs find theirs: each process takes what fits its own name.
//!
//! Invariants: reading allocates nothing and cannot fail half way: a line that is not understood
//! voids the whole text, and the process is left alone. Rules for other programs' files are not
//! read, since that would take most of a small program's start. The launcher encodes the text, and
//! tests there that decoding returns what was encoded.

use pagekeeper_policy::file_action::{FileAction, split_word};
use pagekeeper_policy::{names, number};

/// The environment variable that holds the text.
pub const VARIABLE: &str = "PAGEKEEPER_RUN";

/// The longest text in bytes; a longer one is void.
pub const TEXT_MAX: usize = 32 << 10;

/// Maximum number of file rules of one process; a longer list voids the text.
pub const RULES_MAX: usize = 64;

/// A rule for files, as a plan has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRule<'a> {
    /// Their names, as [`names::matches`] takes them.
    pub pattern: &'a [u8],
    /// The end of every matching path: a quick "no" for most.
    pub tail: &'a [u8],
    /// Their treatment.
    pub action: FileAction,
}

/// The part of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// No rule applies to it.
    None,
    /// A stream: all regular files that it opens are streamed.
    Stream,
    /// All that it writes is bulk output.
    Bulk,
    /// All files that it writes and syncs are logs.
    Logs,
    /// Rules apply to some of its files ([`Plan::rules`]).
    Files,
    /// It becomes a stream if it turns out to go through its files once.
    Undecided,
}

/// The settings of one process, taken from the text.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Its part.
    pub part: Part,
    /// Bytes that its writers together may have unwritten.
    pub budget: u64,
    /// The path of the report.
    pub report: Option<&'a [u8]>,
    /// The path of the table that readers of the user's commands share ([`crate::open_readers`]).
    pub readers: Option<&'a [u8]>,
    /// The program that starts programs that the library does not reach ([`crate::launcher`]).
    pub launcher: Option<&'a [u8]>,
    /// Whether nothing may be started without the rules.
    pub is_required: bool,
    rules: [PlannedRule<'a>; RULES_MAX],
    count: usize,
}

impl<'a> Plan<'a> {
    /// A plan without rules.
    pub const NONE: Plan<'static> = Plan {
        part: Part::None,
        budget: 0,
        report: None,
        readers: None,
        launcher: None,
        is_required: false,
        rules: [PlannedRule { pattern: b"", tail: b"", action: FileAction::Leave }; RULES_MAX],
        count: 0,
    };

    /// Returns the rules for files; the first that matches applies.
    pub fn rules(&self) -> &[PlannedRule<'a>] {
        self.rules.get(..self.count).unwrap_or_default()
    }

    /// Returns the rule for the file at that path, by its number, and its treatment.
    pub fn rule_for(&self, path: &[u8]) -> Option<(u16, FileAction)> {
        let mut rules = (0..).zip(self.rules());
        let (number, rule) = rules.find(|(_, rule)| names::matches(rule.pattern, path).is_some())?;
        Some((number, rule.action))
    }

    /// Reads the text for the process of that name (`comm`, at most 15 bytes). `None` if it is not
    /// understood.
    ///
    /// ```
    /// use pagekeeper_preload::settings::{Part, Plan};
    ///
    /// let text = b"as auto\nbudget 8388608\nstream tar\nprofile rocksdb\nprocess db_*\nfile bulk keep *.sst";
    /// assert_eq!(Plan::decode(text, b"tar").unwrap().part, Part::Stream);
    /// assert_eq!(Plan::decode(text, b"db_bench").unwrap().rules().len(), 1);
    /// assert_eq!(Plan::decode(text, b"sh").unwrap().part, Part::Undecided);
    /// ```
    pub fn decode(text: &'a [u8], comm: &[u8]) -> Option<Self> {
        if text.len() > TEXT_MAX {
            return None;
        }
        let mut plan = Plan::NONE;
        // Whether the current lines belong to the profile of this process, which is the first that
        // fits.
        let mut fits = false;
        let mut has_profile = false;
        let mut is_auto = false;
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let (word, rest) = split_word(line);
            match word {
                b"as" => match rest {
                    b"auto" => is_auto = true,
                    b"stream" => plan.part = Part::Stream,
                    b"bulk" => plan.part = Part::Bulk,
                    b"logs" => plan.part = Part::Logs,
                    _ => return None,
                },
                b"budget" => plan.budget = number(rest)?,
                b"report" => plan.report = Some(rest),
                b"readers" => plan.readers = Some(rest),
                b"launcher" => plan.launcher = Some(rest),
                b"require" => plan.is_required = true,
                b"stream" => {
                    if plan.part == Part::None && is_name_of(rest, comm) {
                        plan.part = Part::Stream;
                    }
                }
                b"command" => {
                    if plan.part == Part::None && rest == comm {
                        plan.part = Part::Stream;
                    }
                }
                b"profile" => fits = false,
                b"process" => {
                    if plan.part == Part::None && !has_profile && is_name_of(rest, comm) {
                        (fits, has_profile, plan.part) = (true, true, Part::Files);
                    }
                }
                b"file" if fits => {
                    *plan.rules.get_mut(plan.count)? = rule(rest)?;
                    plan.count += 1;
                }
                b"file" => {}
                _ => return None,
            }
        }
        if is_auto && plan.part == Part::None {
            plan.part = Part::Undecided;
        }
        Some(plan)
    }
}

/// Whether the pattern matches the name. The first byte rules out most.
fn is_name_of(pattern: &[u8], comm: &[u8]) -> bool {
    let is_open = matches!(pattern.first(), None | Some(b'*' | b'{'));
    (is_open || pattern.first() == comm.first()) && names::matches_name(pattern, comm).is_some()
}

fn rule(text: &[u8]) -> Option<PlannedRule<'_>> {
    let (action, pattern) = FileAction::from_line(text)?;
    names::check(pattern).is_ok().then_some(PlannedRule { pattern, tail: names::tail(pattern), action })
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_void() {
        for text in [
            "as",
            "as king",
            "budget",
            "budget 8M",
            "budget 99999999999999999999999",
            "fiel data x",
            "file",
            "file data",
            "file data a",
            "file data direct a",
            "file log release-behind-writer:1 never",
            "file log release-behind-writer:x never a",
            "file log release-behind-writer never a",
            "file log release-behind-writer:1 ever a",
            "file bulk a",
            "file bulk drop a",
        ] {
            let text = format!("profile x\nprocess tar\n{text}\n");
            assert!(Plan::decode(text.as_bytes(), b"tar").is_none(), "{text}");
        }
        assert!(
            Plan::decode(b"profile x\nprocess tar\nfile data\n", b"cat").is_some(),
            "it is not for that one"
        );
        let many = "profile x\nprocess tar\n".to_owned() + &"file leave a\n".repeat(RULES_MAX + 1);
        assert!(Plan::decode(many.as_bytes(), b"tar").is_none());
        assert!(Plan::decode(&vec![b'\n'; TEXT_MAX + 1], b"tar").is_none());
        assert_eq!(Plan::decode(b"", b"tar").unwrap().part, Part::None);
    }

    proptest::proptest! {
        #[test]
        fn random_text_is_handled(text: Vec<u8>, comm: Vec<u8>) {
            let _ = Plan::decode(&text, &comm);
        }
    }
}
