//! The subjects under test, each in a process of its own: it opens a store or log, reports its
//! content, and commits with eight threads until it is killed or something fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_store::{Durability, PageNo, Store, StoreOptions, WriteTxn};
use pagekeeper_testing::Rng;
use pagekeeper_wal::{BinLog, Error as LogError, LogMode, Lsn, Position, PurgeMode, RedoLog, RedoOptions};

use crate::oracle::{Commit, Line};

const COMMITTER_THREADS: u64 = 8;
/// Pages of the store.
const STORE_PAGES: u64 = 200;

/// A subject under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Store,
    Redo,
    Binlog,
    Sqlite,
    /// SQLite, for some commits between an opening and a close.
    SqliteShort,
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Redo => "redo",
            Self::Binlog => "binlog",
            Self::Sqlite => "sqlite",
            Self::SqliteShort => "sqlite-short",
        }
    }

    pub(crate) fn by_name(name: &str) -> Self {
        let all = [Self::Store, Self::Redo, Self::Binlog, Self::Sqlite, Self::SqliteShort];
        all.into_iter().find(|subject| subject.name() == name).unwrap()
    }

    /// Opens it, reports its content, and commits until something fails; or closes it at once.
    /// `way` chooses how a log is written.
    pub(crate) fn run(self, dir: &Path, way: u64, cycle: u64, only_look: bool) {
        let mode = [LogMode::Auto, LogMode::Buffered, LogMode::Direct][usize::try_from(way % 3).unwrap()];
        let done = match self {
            Self::Store => run_store(dir, only_look),
            Self::Redo => run_redo(dir, mode, cycle, only_look),
            Self::Binlog => run_binlog(dir, mode, cycle, only_look),
            Self::Sqlite => crate::database::run(dir, way, cycle, only_look),
            Self::SqliteShort => crate::database::run_short(dir, way, cycle, only_look),
        };
        if let Err(why) = done {
            Line::Failed(why).say();
            std::process::exit(3);
        }
    }
}

/// Runs all threads until one fails, which ends the process.
fn on_threads(work: impl Fn(u64) -> Result<(), String> + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..COMMITTER_THREADS {
            let work = &work;
            scope.spawn(move || {
                if let Err(why) = work(thread) {
                    Line::Failed(why).say();
                    std::process::exit(3);
                }
            });
        }
    });
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

// The store: a commit's number is its metadata, and is in all pages that it changes.

fn store_options() -> StoreOptions {
    Store::options().memory(2 << 20).journal_bytes(512 << 10)
}

/// Returns a number each bit of which depends on all bits of the input.
fn mix(number: u64) -> u64 {
    Rng::from_seed(number).number()
}

fn pages_of(number: u64) -> impl Iterator<Item = PageNo> {
    (0..=mix(number) % 4).map(move |which| PageNo::new(mix(number ^ (which + 1) << 40) % STORE_PAGES))
}

fn number_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn marks(len: usize) -> [std::ops::Range<usize>; 3] {
    [0, len / 2, len - 8].map(|at| at..at + 8)
}

fn change(store: &Store, txn: &mut WriteTxn<'_>) -> Result<u64, pagekeeper_store::Error> {
    let number = number_of(txn.metadata()) + 1;
    if txn.pages() == 0 {
        txn.allocate_run(STORE_PAGES)?;
        let blank = vec![0; store.payload_size()];
        (0..STORE_PAGES).try_for_each(|page| txn.write(PageNo::new(page), &blank))?;
    }
    for page in pages_of(number) {
        if number.is_multiple_of(7) {
            txn.write(page, &vec![number.to_le_bytes()[0]; store.payload_size()])?;
        }
        let payload = txn.page_mut(page)?;
        for at in marks(payload.len()) {
            payload[at].copy_from_slice(&number.to_le_bytes());
        }
    }
    txn.set_metadata(&number.to_le_bytes())?;
    Ok(number)
}

fn check_store(store: &Store) -> Result<(), String> {
    let read = store.begin_read().map_err(text)?;
    let last = number_of(read.metadata());
    let mut expected = BTreeMap::new();
    (1..=last).for_each(|number| expected.extend(pages_of(number).map(|page| (page, number))));
    for page in (0..read.pages()).map(PageNo::new) {
        let payload = read.read(page).map_err(text)?;
        let found = marks(payload.len()).map(|at| number_of(&payload[at]));
        let wanted = expected.get(&page).copied().unwrap_or(0);
        if found != [wanted; 3] {
            let what = format!("page {page} has {found:?}, not {wanted}, as of commit {last}");
            Line::Wrong(what).say();
        }
    }
    Line::Found { thread: 0, cycle: 0, first: 1, last }.say();
    Line::Opened(0).say();
    Ok(())
}

fn run_store(dir: &Path, only_look: bool) -> Result<(), String> {
    let store = store_options().open(dir).map_err(text)?;
    check_store(&store)?;
    if only_look {
        let verified = store.verify().map_err(text)?;
        if !verified.is_sound() {
            Line::Wrong(format!("not sound: {verified}")).say();
        }
        return store.close().map_err(text);
    }
    on_threads(|thread| {
        loop {
            let mut txn = store.begin_write().map_err(text)?;
            let number = change(&store, &mut txn).map_err(text)?;
            let durability = if thread == 0 { Durability::Group } else { Durability::Sync };
            txn.commit(durability).map_err(text)?;
            Line::Acknowledged(Commit { thread: 0, cycle: 0, number, place: 1 }).say();
            if number.is_multiple_of(300) {
                store.sync().map_err(text)?;
            }
        }
    });
    Ok(())
}

// Logs: a record holds its author, from which the rest of it follows.

/// Returns a record of a group of `of` records.
fn body(thread: u64, cycle: u64, number: u64, index: u64, of: u64) -> Vec<u8> {
    let head = [thread, cycle, number, index, of];
    let mut rng = Rng::from_seed(head.iter().fold(7, |seed, &part| mix(seed ^ part)));
    // Most are short.
    let words = if rng.one_in(10) { rng.skewed(6000) } else { rng.of(0..40) };
    let words = head.into_iter().chain((0..words).map(|_| rng.number()));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Returns the author of a record, if it is one.
fn head_of(bytes: &[u8]) -> Option<[u64; 5]> {
    let words: Vec<u64> = bytes.chunks(8).take(5).map(number_of).collect();
    let head: [u64; 5] = words.try_into().ok()?;
    let [thread, cycle, number, index, of] = head;
    (body(thread, cycle, number, index, of) == bytes).then_some(head)
}

/// The commits of each thread and cycle, first and last.
#[derive(Default)]
struct CommitRanges(BTreeMap<(u64, u64), (u64, u64)>);

impl CommitRanges {
    fn add(&mut self, thread: u64, cycle: u64, number: u64) {
        let (_, last) = self.0.entry((thread, cycle)).or_insert((number, number - 1));
        if *last + 1 != number {
            Line::Wrong(format!("commit {number} of thread {thread}, cycle {cycle}, follows {last}")).say();
        }
        *last = number;
    }

    fn say(&self, from: u64) {
        for (&(thread, cycle), &(first, last)) in &self.0 {
            Line::Found { thread, cycle, first, last }.say();
        }
        Line::Opened(from).say();
    }
}

fn redo_options(mode: LogMode) -> RedoOptions {
    RedoLog::options().mode(mode).files(3).file_bytes(256 << 10).buffer_bytes(128 << 10)
}

fn run_redo(dir: &Path, mode: LogMode, cycle: u64, only_look: bool) -> Result<(), String> {
    let (log, records) = match redo_options(mode).recover(dir, None) {
        Ok(found) => found,
        Err(LogError::NoLog { .. } | LogError::Unfinished { .. }) => {
            (redo_options(mode).create(dir).map_err(text)?, Vec::new())
        }
        Err(error) => return Err(text(error)),
    };
    let mut ranges = CommitRanges::default();
    for record in &records {
        match head_of(&record.body) {
            Some([thread, cycle, number, 0, 1]) => ranges.add(thread, cycle, number),
            _ => Line::Wrong(format!("the record at {} is none that was appended", record.lsn)).say(),
        }
    }
    ranges.say(log.checkpoint_lsn().get());
    if only_look {
        return log.close().map_err(text);
    }
    let durable = AtomicU64::new(log.checkpoint_lsn().get());
    let checkpoint = |lsn: Lsn| match log.checkpoint(lsn) {
        // Another thread went farther.
        Ok(()) | Err(LogError::NotInLog { .. }) => Ok(()),
        Err(error) => Err(text(error)),
    };
    on_threads(|thread| {
        for number in 1.. {
            let body = body(thread, cycle, number, 0, 1);
            let lsn = loop {
                match log.try_append(&body) {
                    Ok(lsn) => break lsn,
                    Err(LogError::RingFull { .. }) => {
                        checkpoint(Lsn::new(durable.load(Ordering::Acquire)))?;
                    }
                    Err(error) => return Err(text(error)),
                }
            };
            log.wait_flushed(lsn).map_err(text)?;
            Line::Acknowledged(Commit { thread, cycle, number, place: lsn.get() }).say();
            durable.fetch_max(lsn.get(), Ordering::AcqRel);
            if number.is_multiple_of(40) {
                checkpoint(lsn)?;
            }
        }
        Ok(())
    });
    Ok(())
}

/// Converts positions to numbers.
fn place_of(position: Position) -> u64 {
    position.segment << 40 | position.offset
}

fn check_binlog(log: &BinLog) -> Result<(), String> {
    let mut ranges = CommitRanges::default();
    let mut follower = log.follow(log.first()).map_err(text)?;
    let mut due = None;
    while let Some(event) = follower.try_next().map_err(text)? {
        let wrong = |what: &str| Line::Wrong(format!("the record at {} {what}", event.position)).say();
        let Some([thread, cycle, number, index, of]) = head_of(&event.bytes) else {
            wrong("is none that was appended");
            continue;
        };
        if due.unwrap_or((thread, cycle, number, 0)) != (thread, cycle, number, index) {
            wrong("does not continue the group before it");
        }
        if event.ends_group != (index + 1 == of) {
            wrong("does not end its group where that ended");
        }
        due = (index + 1 < of).then_some((thread, cycle, number, index + 1));
        if due.is_none() {
            ranges.add(thread, cycle, number);
        }
    }
    if due.is_some() {
        Line::Wrong("half a group is at the end".to_owned()).say();
    }
    ranges.say(place_of(log.first()));
    Ok(())
}

fn run_binlog(dir: &Path, mode: LogMode, cycle: u64, only_look: bool) -> Result<(), String> {
    let options = BinLog::options().mode(mode).max_segment_bytes(256 << 10).zero_ahead(64 << 10);
    let log = options.open(dir).map_err(text)?;
    check_binlog(&log)?;
    if only_look {
        return log.close().map_err(text);
    }
    on_threads(|thread| {
        let mut rng = Rng::from_seed(mix(cycle) ^ thread);
        for number in 1.. {
            let of = if rng.one_in(3) { rng.of(2..5) } else { 1 };
            let records: Vec<Vec<u8>> = (0..of).map(|index| body(thread, cycle, number, index, of)).collect();
            let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            let position = log.append_group(&records).map_err(text)?;
            Line::Acknowledged(Commit { thread, cycle, number, place: place_of(position) }).say();
            if thread == 0 && rng.one_in(30) {
                log.rotate().map_err(text)?;
            }
            if thread == 1 && rng.one_in(100) {
                let segment = log.end().segment.saturating_sub(2).max(log.first().segment);
                log.purge_to(Position { segment, offset: 0 }, PurgeMode::Forced).map_err(text)?;
            }
        }
        Ok(())
    });
    Ok(())
}
