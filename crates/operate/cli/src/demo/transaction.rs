//! The log records of one commit, and the check that the binlog's follower makes of them.
//!
//! Invariant: each committer numbers its changes from 1, so a lost, doubled or reordered change is found. The
//! log's own checksum shows that a change's bytes are as written.

use anyhow::{Context, ensure};
use pagekeeper_log::{Event, Position};

use super::config::{BINLOG_PER_COMMIT_BYTES, COMMITTERS, REDO_PER_COMMIT_BYTES};

/// The head of a change: committer, number and time, of 8 bytes each.
const HEAD: usize = 24;

/// One transaction: redo, followed by the change for the binlog.
pub(super) struct Transaction(Vec<u8>);

impl Transaction {
    /// Makes one with bytes that do not repeat, by xorshift64 (Marsaglia, 2003). `random` is not 0.
    pub(super) fn make(random: &mut u64, committer: u64, number: u64) -> Self {
        let mut bytes = vec![0; REDO_PER_COMMIT_BYTES + BINLOG_PER_COMMIT_BYTES];
        fill(&mut bytes, random);
        let head = &mut bytes[REDO_PER_COMMIT_BYTES..];
        head[..8].copy_from_slice(&committer.to_le_bytes());
        head[8..16].copy_from_slice(&number.to_le_bytes());
        Self(bytes)
    }

    /// Returns the bytes for the redo log.
    pub(super) fn redo(&self) -> &[u8] {
        &self.0[..REDO_PER_COMMIT_BYTES]
    }

    /// Returns the bytes for the binlog with this time, in nanoseconds of the monotonic clock.
    pub(super) fn change(&mut self, now_ns: u64) -> &[u8] {
        let change = &mut self.0[REDO_PER_COMMIT_BYTES..];
        change[16..HEAD].copy_from_slice(&now_ns.to_le_bytes());
        change
    }
}

/// Fills `bytes`, whose length is a multiple of 8.
pub(super) fn fill(bytes: &mut [u8], random: &mut u64) {
    for chunk in bytes.as_chunks_mut::<8>().0 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *chunk = random.to_le_bytes();
    }
}

/// Checks changes in the order of the binlog.
#[derive(Default)]
pub(super) struct Checker {
    /// The number of each committer's last change.
    last: [u64; COMMITTERS],
}

impl Checker {
    /// Checks the next event, and returns the time of its append in nanoseconds of the monotonic clock.
    pub(super) fn check(&mut self, event: &Event) -> anyhow::Result<u64> {
        self.check_change(&event.bytes, event.position)
    }

    fn check_change(&mut self, bytes: &[u8], at: Position) -> anyhow::Result<u64> {
        let len = bytes.len();
        ensure!(len == BINLOG_PER_COMMIT_BYTES, "binlog {at}: an event of {len} bytes");
        let [committer, number, appended_ns] = [0, 8, 16]
            .map(|start| bytes[start..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        let last = usize::try_from(committer).ok().and_then(|committer| self.last.get_mut(committer));
        let last = last.with_context(|| format!("binlog {at}: an event of committer {committer}"))?;
        let expected = *last + 1;
        ensure!(
            number == expected,
            "binlog {at}: change {number} of committer {committer} stands where change {expected} should"
        );
        *last = number;
        Ok(appended_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Position = Position { segment: 1, offset: 4096 };

    fn change(committer: u64, number: u64) -> Vec<u8> {
        Transaction::make(&mut 7, committer, number).change(1 << 40).to_vec()
    }

    #[test]
    fn each_committers_changes_are_counted_for_themselves() {
        let mut checker = Checker::default();
        for (committer, number) in [(0, 1), (7, 1), (0, 2), (0, 3), (7, 2)] {
            assert_eq!(checker.check_change(&change(committer, number), AT).unwrap(), 1 << 40);
        }
    }

    #[test]
    fn what_is_lost_doubled_or_foreign_is_found() {
        let mut checker = Checker::default();
        checker.check_change(&change(3, 1), AT).unwrap();
        for (bytes, reason) in [
            (change(3, 3), "binlog 000001:4096: change 3 of committer 3 stands where change 2 should"),
            (change(3, 1), "binlog 000001:4096: change 1 of committer 3 stands where change 2 should"),
            (change(8, 1), "binlog 000001:4096: an event of committer 8"),
            (change(3, 2)[1..].to_vec(), "binlog 000001:4096: an event of 5119 bytes"),
        ] {
            assert_eq!(checker.check_change(&bytes, AT).unwrap_err().to_string(), reason);
        }
        checker.check_change(&change(3, 2), AT).unwrap();
    }
}
