//! Compares the log with a vector, under random sequences of operations by one thread.

use pagekeeper_simdisk::SimDisk;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult};

use super::support::{DIR, append, group, options, read_groups};
use crate::{BinLog, BinLogOptions, Error, Follower, LogMode, Position, PurgeMode};

#[derive(Debug, Clone)]
enum Op {
    Append {
        records: usize,
        len: usize,
    },
    Sync,
    Rotate,
    /// Purges all but this many segments.
    Purge {
        keep: u64,
        forced: bool,
    },
    Reopen {
        close: bool,
    },
    /// Follows from past this one of the existing groups.
    Follow {
        from: usize,
        durable_only: bool,
    },
    /// A follower reads this many records.
    Read {
        which: usize,
        records: usize,
    },
    Leave {
        which: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..5_usize, 0..6000_usize).prop_map(|(records, len)| Op::Append { records, len }),
        1 => Just(Op::Sync),
        1 => Just(Op::Rotate),
        1 => (0..4_u64, any::<bool>()).prop_map(|(keep, forced)| Op::Purge { keep, forced }),
        1 => any::<bool>().prop_map(|close| Op::Reopen { close }),
        2 => (0..100_usize, any::<bool>()).prop_map(|(from, durable_only)| Op::Follow { from, durable_only }),
        6 => (0..8_usize, 1..20_usize).prop_map(|(which, records)| Op::Read { which, records }),
        1 => (0..8_usize).prop_map(|which| Op::Leave { which }),
    ]
}

/// A record and its end.
#[derive(Debug, Clone)]
struct Record {
    bytes: Vec<u8>,
    ends_group: bool,
    next: Position,
}

struct Reader {
    follower: Follower,
    /// The index of the next record for this reader.
    at: usize,
    durable_only: bool,
    cut_off: bool,
}

struct Model {
    disk: SimDisk,
    options: BinLogOptions,
    log: Option<BinLog>,
    /// All records ever appended, including purged ones.
    records: Vec<Record>,
    /// The index of the first record that was not purged.
    first: usize,
    readers: Vec<Reader>,
    appended: u64,
}

impl Model {
    fn new(mode: LogMode, every: u64) -> Self {
        let disk = SimDisk::new();
        let options = options(&disk).mode(mode).sync_every(every);
        let log = Some(options.clone().open(DIR).unwrap());
        Self { disk, options, log, records: Vec::new(), first: 0, readers: Vec::new(), appended: 0 }
    }

    fn log(&self) -> &BinLog {
        self.log.as_ref().expect("it is open but while it is opened again")
    }

    fn segment(&self, record: usize) -> u64 {
        self.records.get(record).map_or(self.log().end().segment, |record| record.next.segment)
    }

    fn run(&mut self, op: &Op) -> TestCaseResult {
        match *op {
            Op::Append { records, len } => self.append(records, len)?,
            Op::Sync => {
                let durable = self.log().sync().unwrap();
                prop_assert_eq!(durable, self.log().end());
            }
            Op::Rotate => drop(self.log().rotate().unwrap()),
            Op::Purge { keep, forced } => self.purge(keep, forced)?,
            Op::Reopen { close } => {
                self.readers.clear();
                let log = self.log.take().expect("it is open");
                if close {
                    log.close().unwrap();
                } else {
                    drop(log);
                }
                self.log = Some(self.options.clone().open(DIR).unwrap());
                self.check_all()?;
            }
            Op::Follow { from, durable_only } => self.follow(from, durable_only),
            Op::Read { which, records } => self.read(which, records)?,
            Op::Leave { which } => {
                if !self.readers.is_empty() {
                    self.readers.swap_remove(which % self.readers.len());
                }
            }
        }
        let log = self.log();
        prop_assert!(log.first() <= log.durable_end() && log.durable_end() <= log.end());
        Ok(())
    }

    fn append(&mut self, records: usize, len: usize) -> TestCaseResult {
        self.appended += 1;
        let group = group(self.appended, records, len);
        let end = match append(self.log(), &group) {
            Ok(end) => end,
            Err(Error::GroupTooLarge { bytes, max }) => {
                prop_assert!(bytes > max);
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let mut next = end.offset;
        let mut added = Vec::new();
        for (behind, bytes) in group.into_iter().rev().enumerate() {
            let size = (24 + bytes.len() as u64).next_multiple_of(8);
            added.push(Record { bytes, ends_group: behind == 0, next: Position { offset: next, ..end } });
            next -= size;
        }
        self.records.extend(added.into_iter().rev());
        Ok(())
    }

    fn purge(&mut self, keep: u64, forced: bool) -> TestCaseResult {
        let segment = self.log().end().segment.saturating_sub(keep);
        let purge = if forced { PurgeMode::Forced } else { PurgeMode::UnlessFollowed };
        match self.log().purge_to(Position { segment, offset: 0 }, purge) {
            Ok(_) => {
                self.first =
                    self.first.max(self.records.partition_point(|record| record.next.segment < segment));
                for reader in self.readers.iter_mut().filter(|reader| !reader.cut_off) {
                    reader.cut_off = reader.follower.position().segment < segment;
                    prop_assert!(forced || !reader.cut_off);
                }
            }
            Err(Error::Followed { position }) => {
                let inside =
                    |reader: &Reader| !reader.cut_off && reader.follower.position().segment < segment;
                prop_assert!(!forced && self.readers.iter().any(inside) && position.segment < segment);
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
        Ok(())
    }

    fn follow(&mut self, from: usize, durable_only: bool) {
        let there = self.records.len() - self.first;
        let at = self.first + from % (there + 1);
        let position = match at.checked_sub(1).filter(|last| *last >= self.first) {
            Some(last) => self.records[last].next,
            None => self.log().first(),
        };
        let log = self.log();
        let follower =
            if durable_only { log.follow_durable(position) } else { log.follow(position) }.unwrap();
        self.readers.push(Reader { follower, at, durable_only, cut_off: false });
    }

    fn read(&mut self, which: usize, records: usize) -> TestCaseResult {
        let Some(at) = which.checked_rem(self.readers.len()) else { return Ok(()) };
        let durable = self.log().durable_end();
        let reader = &mut self.readers[at];
        for _ in 0..records {
            let expected = self.records.get(reader.at);
            let expected = expected.filter(|record| !reader.durable_only || record.next <= durable);
            match (reader.follower.try_next(), expected) {
                (Ok(Some(event)), Some(record)) => {
                    prop_assert!(event.bytes == record.bytes);
                    prop_assert_eq!((event.next, event.ends_group), (record.next, record.ends_group));
                    reader.at += 1;
                }
                (Ok(None), None) => break,
                (Err(Error::Purged { .. }), _) if reader.cut_off => {
                    self.readers.swap_remove(at);
                    break;
                }
                (got, expected) => return Err(TestCaseError::fail(format!("{got:?}, not {expected:?}"))),
            }
        }
        Ok(())
    }

    fn check_all(&self) -> TestCaseResult {
        let found: Vec<_> = read_groups(self.log(), self.log().first()).unwrap().concat();
        let expected: Vec<_> = self.records[self.first..].iter().map(|record| record.bytes.clone()).collect();
        prop_assert!(found == expected, "{} records, not {}", found.len(), expected.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(Config { cases: 150, failure_persistence: None, ..Config::default() })]

    #[test]
    fn it_is_a_vector(
        mode in prop_oneof![Just(LogMode::Buffered), Just(LogMode::Direct), Just(LogMode::Uncached)],
        every in 0..4_u64,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut model = Model::new(mode, every);
        for op in &ops {
            model.run(op)?;
        }
        model.run(&Op::Reopen { close: true })?;
        prop_assert!(model.segment(0) <= model.log().end().segment);
        prop_assert!(model.disk.stats().faults == 0);
    }
}
