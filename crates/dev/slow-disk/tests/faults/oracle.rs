//! The required state: every acknowledged commit, and each other one as a whole or not at all.
//!
//! A commit is identified by its thread, its cycle and its number in that cycle, from 1. A process
//! under test reports commits in lines (see [`Line`]) on its standard output, each by one write(2),
//! which a pipe takes whole or not at all.

use std::fmt;

/// A commit, and its end in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) thread: u64,
    pub(crate) cycle: u64,
    pub(crate) number: u64,
    pub(crate) place: u64,
}

/// A line of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// These commits of a thread and cycle are there, all from the first to the last.
    Found {
        thread: u64,
        cycle: u64,
        first: u64,
        last: u64,
    },
    /// All commits were found; anything that ends before this place is no longer needed.
    Opened(u64),
    Acknowledged(Commit),
    /// Something is there that was never committed, or only half of a commit.
    Wrong(String),
    Failed(String),
}

const MARK: &str = "faults:";

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found { thread, cycle, first, last } => {
                writeln!(f, "{MARK} found {thread} {cycle} {first} {last}")
            }
            Self::Opened(place) => writeln!(f, "{MARK} opened {place}"),
            Self::Acknowledged(Commit { thread, cycle, number, place }) => {
                writeln!(f, "{MARK} acknowledged {thread} {cycle} {number} {place}")
            }
            Self::Wrong(what) => writeln!(f, "{MARK} wrong {}", what.replace('\n', " ")),
            Self::Failed(why) => writeln!(f, "{MARK} failed {}", why.replace('\n', " ")),
        }
    }
}

impl Line {
    /// Prints it.
    pub(crate) fn say(&self) {
        // Nobody reads any more: the harness has ended, and so will this process.
        let _ = rustix::io::write(rustix::stdio::stdout(), self.to_string().as_bytes());
    }

    /// Parses a line; `None` for the test harness's own output.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(MARK)?.1.trim_start().split_once(' ')?;
        let numbers: Vec<u64> = rest.split(' ').map_while(|number| number.parse().ok()).collect();
        match (word, &numbers[..]) {
            ("wrong", _) => Some(Self::Wrong(rest.to_owned())),
            ("failed", _) => Some(Self::Failed(rest.to_owned())),
            ("found", &[thread, cycle, first, last]) => Some(Self::Found { thread, cycle, first, last }),
            ("opened", &[place]) => Some(Self::Opened(place)),
            ("acknowledged", &[thread, cycle, number, place]) => {
                Some(Self::Acknowledged(Commit { thread, cycle, number, place }))
            }
            _ => panic!("not understood: {line}"),
        }
    }
}

/// All acknowledged commits that are still needed.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    acknowledged: Vec<Commit>,
    pub(crate) acknowledgements: u64,
    pub(crate) openings: u64,
}

impl Oracle {
    /// Checks a process's output; fails where something is lost or was never committed.
    pub(crate) fn hear(&mut self, lines: &[Line]) -> Result<(), String> {
        let mut found = Vec::new();
        for line in lines {
            match line {
                Line::Found { thread, cycle, first, last } => found.push((*thread, *cycle, *first..=*last)),
                Line::Opened(place) => self.check(&found, *place)?,
                Line::Acknowledged(commit) => {
                    self.acknowledgements += 1;
                    self.acknowledged.push(*commit);
                }
                Line::Wrong(what) => return Err(what.clone()),
                Line::Failed(_) => {}
            }
        }
        Ok(())
    }

    fn check(
        &mut self,
        found: &[(u64, u64, std::ops::RangeInclusive<u64>)],
        from: u64,
    ) -> Result<(), String> {
        self.openings += 1;
        self.acknowledged.retain(|commit| commit.place > from);
        let is_there = |commit: &Commit| {
            found.iter().any(|(thread, cycle, numbers)| {
                (*thread, *cycle) == (commit.thread, commit.cycle) && numbers.contains(&commit.number)
            })
        };
        let lost: Vec<&Commit> = self.acknowledged.iter().filter(|commit| !is_there(commit)).collect();
        match lost[..] {
            [] => Ok(()),
            [first, ..] => Err(format!("{} acknowledged commits are lost, {first:?} the first", lost.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_parse_back() {
        let commit = Commit { thread: 1, cycle: 2, number: 3, place: 4 };
        for line in [
            Line::Found { thread: 1, cycle: 2, first: 3, last: 4 },
            Line::Opened(7),
            Line::Acknowledged(commit),
            Line::Wrong("half a commit".to_owned()),
            Line::Failed("Input/output error (os error 5)".to_owned()),
        ] {
            assert_eq!(Line::parse(format!("test child ... {line}").trim_end()), Some(line));
        }
        assert_eq!(Line::parse("running 1 test"), None);
    }

    #[test]
    fn lost_writes_are_detected() {
        let commit = |number, place| Line::Acknowledged(Commit { thread: 1, cycle: 2, number, place });
        let found = |last| [Line::Found { thread: 1, cycle: 2, first: 1, last }, Line::Opened(0)];
        let mut oracle = Oracle::default();
        oracle.hear(&[Line::Opened(0), commit(1, 10), commit(2, 20)]).unwrap();
        oracle.hear(&found(2)).unwrap();
        assert!(oracle.hear(&found(1)).unwrap_err().contains("1 acknowledged commits are lost"));
        assert!(oracle.hear(&[Line::Opened(10)]).is_err());
        oracle.hear(&[Line::Opened(20)]).unwrap();
        assert!(oracle.hear(&[Line::Wrong("half".to_owned())]).is_err());
    }
}
