//! Models of commits, checkpoints and readers that meet over one page. Loom runs the real sources
//! of index and snapshots in every order of two or three threads. A thread is preempted at most
//! [`PREEMPTIONS`] times.
//!
//! A model fails by an assertion: a snapshot does not find the page as of its commit. Nothing is
//! random.
//!
//! Not modelled: bytes (a page is its seq), the disk (the data file is one number, written at
//! once), the journal, the page cache.
//!
//! Each model was seen to fail. Each of these faults was injected, and found by these models:
//!
//! | broken | found by |
//! |---|---|
//! | no version is kept before the page is overwritten | an old snapshot |
//! | the page is overwritten before its old version is kept | an old snapshot |
//! | a page is looked up once only | an old snapshot |
//! | the newest version is dropped although an older one is kept | an old snapshot, the three |
//! | versions that a snapshot needs are dropped | an old snapshot, the three |
//! | versions that a later snapshot would read are dropped | commits beside a reader, the three |
//! | the versions of a checkpoint's start are not kept while it runs | commits beside a checkpoint |
//! | the index lets the page go before it is written | a checkpoint beside a reader, the three |
//! | a commit is visible before its versions are in the index | commits beside a reader, the three |

mod sync;

macro_rules! modelled {
    ($($path:literal $module:ident)*) => {$(
        #[path = $path]
        #[allow(clippy::duplicate_mod, reason = "the very source that the store runs, with loom's atomics and locks")]
        #[allow(dead_code, reason = "a model uses only a part")]
        mod $module;
    )*};
}

modelled! {
    "../index.rs" index
    "../snapshots.rs" snapshots
}

use std::sync::Arc;

use loom::thread;

use index::Index;
use snapshots::{LiveSnapshot, Snapshots};
use sync::{AtomicU64, Mutex, Ordering};

use crate::buffers::BufferPool;
use crate::format::page::PageKind;
use crate::version::{VersionContent, WholePage};
use crate::{PageNo, Seq};
use pagekeeper_wal::Lsn;

/// For two threads, and for three: there are too many orders to try all.
const PREEMPTIONS: [usize; 2] = [4, 2];
const PAGE: PageNo = PageNo::new(0);

/// A store with one page, which each commit changes: its content is the seq.
struct World {
    index: Index,
    snapshots: Snapshots,
    /// The data file.
    file: AtomicU64,
    /// The tail: the last commit.
    tail: Mutex<Seq>,
}

impl World {
    /// Creates a store whose data file has commit 1.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            index: Index::default(),
            snapshots: Snapshots::new(Seq::new(1), Arc::default()),
            file: AtomicU64::new(1),
            tail: Mutex::new(Seq::new(1)),
        })
    }

    /// Commits as `commit::commit` does, without waiting for durability.
    fn commit(&self) {
        let seq = self.append();
        self.snapshots.show(seq);
    }

    /// Runs the first half of a commit.
    fn append(&self) -> Seq {
        {
            let mut tail = self.tail.lock().unwrap();
            let seq = *tail + 1;
            let needed = self.snapshots.needed();
            self.index.push(PAGE, seq, content(seq), &needed);
            *tail = seq;
            self.snapshots.committed(seq, Lsn::new(seq.get()), Arc::default());
            seq
        }
    }

    /// Runs a checkpoint as `Core::run_checkpoint` does.
    fn checkpoint(&self) {
        let start = {
            let tail = self.tail.lock().unwrap();
            self.snapshots.set_checkpoint(Some(*tail));
            *tail
        };
        self.snapshots.show(start);
        if !self.index.unapplied(start).is_empty() {
            let in_file = || {
                let found = self.read_file();
                Ok::<_, ()>(Some((content(found), found)))
            };
            self.index.keep_base(PAGE, self.snapshots.oldest(), in_file).unwrap();
            let version = self.index.get(PAGE, start).expect("versions that a checkpoint covers are kept");
            assert_eq!(version.seq, start, "a checkpoint applies what was committed before its start");
            self.file.store(version.seq.get(), Ordering::Release);
            self.index.applied(PAGE, version.seq, &self.snapshots.needed());
        }
        self.snapshots.set_checkpoint(None);
        self.index.prune_all(&self.snapshots.needed());
    }

    fn read_file(&self) -> Seq {
        Seq::new(self.file.load(Ordering::Acquire))
    }

    /// Reads as `ReadTxn::read` does.
    fn read(&self, live: &LiveSnapshot) {
        let in_file = || {
            let found = self.read_file();
            Ok::<_, ()>(Some((found, found)))
        };
        let found = self.index.find(PAGE, live.seq, |version| Ok(version.seq), in_file).unwrap();
        assert_eq!(found, Some(live.seq), "a snapshot finds the page as its commit left it");
    }

    /// Runs a checkpoint when nobody reads any more: afterwards the index has only what the data
    /// file lacks.
    fn settle(&self) {
        self.checkpoint();
        let tail = *self.tail.lock().unwrap();
        assert_eq!((self.read_file(), self.index.bytes()), (tail, 0));
    }
}

fn content(seq: Seq) -> VersionContent {
    VersionContent::Whole(WholePage::new(
        PageKind::Data,
        BufferPool::new(8, 0).copy(&seq.get().to_le_bytes()),
    ))
}

/// Runs the model in every order of this many threads.
fn check(threads: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS[threads - 2]);
    builder.check(model);
}

fn side_by_side(threads: &[fn(&World)], before: fn(&World)) {
    let threads = threads.to_vec();
    check(threads.len(), move || {
        let world = World::new();
        before(&world);
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|run| {
                let (world, run) = (Arc::clone(&world), *run);
                thread::spawn(move || run(&world))
            })
            .collect();
        threads[0](&world);
        for other in others {
            other.join().unwrap();
        }
        world.settle();
    });
}

fn reader(world: &World) {
    let live = world.snapshots.begin();
    world.read(&live);
    world.read(&live);
    world.snapshots.end(&live);
}

fn two_commits(world: &World) {
    world.commit();
    world.commit();
}

#[test]
fn commits_beside_a_reader() {
    side_by_side(&[two_commits, reader], |_| {});
}

#[test]
fn a_checkpoint_beside_a_reader() {
    side_by_side(&[World::checkpoint, reader], two_commits);
}

#[test]
fn an_old_snapshot() {
    check(2, || {
        let world = World::new();
        let live = world.snapshots.begin();
        world.commit();
        let other = Arc::clone(&world);
        let checkpoints = thread::spawn(move || {
            other.checkpoint();
            other.commit();
            other.checkpoint();
        });
        world.read(&live);
        world.read(&live);
        world.snapshots.end(&live);
        checkpoints.join().unwrap();
        world.settle();
    });
}

#[test]
fn commits_beside_a_checkpoint() {
    side_by_side(&[World::checkpoint, two_commits], World::commit);
}

#[test]
fn commits_beside_a_checkpoint_and_a_reader() {
    side_by_side(&[World::checkpoint, World::commit, reader], World::commit);
}

/// A commit becomes durable while another thread asks which versions are needed.
#[test]
fn versions_are_dropped_beside_a_commit_and_a_reader() {
    let before = |world: &World| {
        world.commit();
        world.append();
    };
    let prune = |world: &World| {
        world.index.prune_all(&world.snapshots.needed());
    };
    side_by_side(&[prune, |world| world.snapshots.show(Seq::new(3)), reader], before);
}
