//! Replicas: the commits of a store, taken in order, make another one that is the same bit by bit.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Persistence, SimDisk};
use pagekeeper_testing::{Rng, Seed};

use super::disk::{Meanwhile, Prompt};
use crate::{Create, Durability, Error, PageState, Seq, Shipped, Store, StoreOptions};

const PAGES: u64 = 60;

fn dir() -> &'static Path {
    Path::new("/store")
}

fn to() -> &'static Path {
    Path::new("/replica")
}

fn options(disk: &SimDisk) -> StoreOptions {
    let io = Arc::new(Prompt::new(disk.clone(), Meanwhile::default()));
    Store::options().io(io).memory(1 << 20).journal_bytes(256 << 10).warm(false).without_threads()
}

fn new() -> (SimDisk, Store) {
    let disk = SimDisk::builder().by_steps().build();
    let store = options(&disk).open(dir()).unwrap();
    let mut txn = store.begin().unwrap();
    txn.allocate_run(PAGES).unwrap();
    txn.commit(Durability::Sync).unwrap();
    (disk, store)
}

/// One commit at random: whole pages, parts of them, allocated and freed ones, root and metadata.
fn commit(store: &Store, rng: &mut Rng, durability: Durability) -> Seq {
    let mut txn = store.begin().unwrap();
    for _ in 0..=rng.of(0..4) {
        let page = rng.of(0..PAGES);
        let byte = rng.number().to_le_bytes()[0];
        match rng.of(0..8) {
            0 => drop(txn.allocate().unwrap()),
            1 => drop(txn.free(page)),
            2 => txn.set_root(Some(page)),
            3 => txn.set_metadata(&[byte; 9]).unwrap(),
            4 => drop(txn.allocate_run(2).unwrap()),
            5 => drop(txn.write(page, &vec![byte; 4064])),
            _ => {
                if let Ok(payload) = txn.page_mut(page) {
                    payload[rng.index(4000)..][..50].fill(byte);
                }
            }
        }
    }
    txn.commit(durability).unwrap()
}

type Content = (Seq, Option<u64>, Vec<u8>, Vec<(PageState, Box<[u8]>)>);

/// All of it, headers of pages too.
fn content(store: &Store) -> Content {
    let read = store.begin_read().unwrap();
    let pages = store.inspect(0..read.pages()).unwrap();
    let pages = pages.into_iter().map(|page| (page.state, page.bytes)).collect();
    (read.seq(), read.root(), read.metadata().to_vec(), pages)
}

/// Sends all that is there.
fn ship(store: &Store, replica: &Store, durability: Durability) -> Result<u64, Error> {
    let mut follower = store.follow(replica.stat().seq)?;
    let mut sent = 0;
    while let Some(commit) = follower.next()? {
        assert_eq!(commit.seq(), follower.seq());
        replica.apply(&Shipped::decode(&commit.encode()).unwrap(), durability)?;
        sent += 1;
    }
    Ok(sent)
}

#[test]
fn a_replica_becomes_what_the_store_is() {
    let (disk, store) = new();
    let mut rng = Seed::new().rng(0);
    commit(&store, &mut rng, Durability::Sync);
    store.backup(to()).unwrap();
    let replica = options(&disk).open(to()).unwrap();
    for round in 0..60 {
        for _ in 0..rng.of(0..6) {
            commit(&store, &mut rng, Durability::Sync);
        }
        ship(&store, &replica, if round % 2 == 0 { Durability::Sync } else { Durability::None }).unwrap();
        assert!(content(&replica) == content(&store), "round {round}");
        if round % 10 == 5 {
            store.sync().unwrap();
        }
        if round % 15 == 7 {
            replica.sync().unwrap();
        }
    }
    assert!(replica.verify().unwrap().is_sound());
}

#[test]
fn only_what_is_durable_is_shipped_and_what_is_large_as_well() {
    let (_, store) = new();
    let mut follower = store.follow(store.stat().seq).unwrap();
    let mut txn = store.begin().unwrap();
    (0..30).for_each(|page| txn.write(page, &vec![page.to_le_bytes()[0]; 4064]).unwrap());
    let seq = txn.commit(Durability::None).unwrap();
    assert!(follower.next().unwrap().is_none_or(|commit| commit.seq() < seq), "it may be lost");
    let mut rng = Rng::from_seed(1);
    let last = commit(&store, &mut rng, Durability::Sync);
    assert_eq!([0; 2].map(|_| follower.next().unwrap().map(|commit| commit.seq())), [Some(seq), Some(last)]);
    assert!(follower.next().unwrap().is_none());
}

#[test]
fn who_does_not_keep_up_gets_an_error() {
    let (disk, store) = new();
    store.backup(to()).unwrap();
    let replica = options(&disk).open(to()).unwrap();
    let mut rng = Rng::from_seed(2);
    let mut behind = store.follow(replica.stat().seq).unwrap();
    commit(&store, &mut rng, Durability::Sync);
    assert!(behind.next().unwrap().is_some());
    for _ in 0..100 {
        commit(&store, &mut rng, Durability::Sync);
        store.sync().unwrap();
    }
    let error = behind.next().unwrap_err();
    assert!(matches!(error, Error::TooOld { after: 2, oldest } if oldest > 2), "{error}");
    assert!(matches!(ship(&store, &replica, Durability::Sync), Err(Error::TooOld { after: 1, .. })));
    let ahead = store.stat().seq + 1;
    assert!(matches!(store.follow(ahead), Err(Error::NotTheNext { .. })));
}

fn write(store: &Store) -> Seq {
    let mut txn = store.begin().unwrap();
    let seq = store.stat().seq + 1;
    txn.write(7, &[seq.to_le_bytes()[0]; 4064]).unwrap();
    txn.commit(Durability::Sync).unwrap()
}

/// What of the journal is given up had nothing that it lacks: marks, and commits that it has.
#[test]
fn who_lacks_nothing_goes_on_behind_what_was_given_up() {
    let (_, store) = new();
    write(&store);
    let mut follower = store.follow(store.stat().seq).unwrap();
    for round in 0..20 {
        store.sync().unwrap();
        if round % 3 == 0 {
            assert!(follower.next().unwrap().is_none(), "round {round}");
        }
        let seq = write(&store);
        assert_eq!(follower.next().unwrap().map(|commit| commit.seq()), Some(seq), "round {round}");
    }
}

#[test]
fn who_follows_goes_on_behind_the_mark_of_an_opening() {
    let (disk, store) = new();
    store.close().unwrap();
    for round in 0..12 {
        let store = options(&disk).open(dir()).unwrap();
        let mut follower = store.follow(store.stat().seq).unwrap();
        assert!(follower.next().unwrap().is_none(), "round {round}");
        store.sync().unwrap();
        assert!(follower.next().unwrap().is_none(), "round {round}");
        let seq = write(&store);
        assert_eq!(follower.next().unwrap().map(|commit| commit.seq()), Some(seq), "round {round}");
        store.close().unwrap();
    }
}

/// A commit is taken only by the store that it is for, in its place; and what does not fit changes nothing.
#[test]
fn what_does_not_fit_is_refused() {
    let (disk, store) = new();
    store.backup(to()).unwrap();
    let replica = options(&disk).open(to()).unwrap();
    let mut follower = store.follow(replica.stat().seq).unwrap();
    let write = |store: &Store, at: usize| {
        let mut txn = store.begin().unwrap();
        if txn.read(7).is_err() {
            txn.write(7, &[1; 4064]).unwrap();
        }
        txn.page_mut(7).unwrap()[at] = 9;
        txn.commit(Durability::Sync).unwrap();
        store.stat().seq
    };
    for at in 0..3 {
        write(&store, at);
    }
    let commits: Vec<_> = std::iter::from_fn(|| follower.next().unwrap()).collect();
    let apply = |commit: &Shipped| replica.apply(commit, Durability::Sync);
    assert!(matches!(apply(&commits[1]), Err(Error::NotTheNext { found: 3, due: 2 })));
    assert!(matches!(apply(&Shipped { store: 1, ..commits[0].clone() }), Err(Error::OtherStore { .. })));
    assert!(matches!(apply(&Shipped { seq: 2, ..commits[1].clone() }), Err(Error::NotShipped { .. })));
    assert_eq!(apply(&commits[0]).unwrap(), 2);
    // Once more, as after a kill that came before it was said to be there.
    assert_eq!(apply(&commits[0]).unwrap(), 2);
    // It has a commit of its own.
    let own = write(&replica, 4000);
    assert_eq!(own, 3);
    assert!(matches!(apply(&commits[2]), Err(Error::Diverged { page: 7, seq: 4 })));
    assert_eq!(replica.stat().seq, own);
    assert!(replica.verify().unwrap().is_sound());
    // From another store.
    let (_, other) = new();
    let mut follower = other.follow(other.stat().seq).unwrap();
    write(&other, 1);
    let foreign = follower.next().unwrap().unwrap();
    assert!(matches!(apply(&foreign), Err(Error::OtherStore { .. })));
}

/// Power cuts of the one or the other: a replica is never ahead of what the source still has, and goes on.
#[test]
fn a_power_cut_of_either_side_loses_no_step() {
    let seed = Seed::new();
    let mut caught_up = 0;
    for life in 0..150 {
        let mut rng = seed.rng(life);
        let (disk, store) = new();
        store.backup(to()).unwrap();
        let mut at = [(disk.clone(), store), {
            let replica = disk.after_power_cut(Persistence::All, 0);
            let store = options(&replica).open(to()).unwrap();
            (replica, store)
        }];
        for _ in 0..rng.of(4..20) {
            let durability = if rng.one_in(2) { Durability::Sync } else { Durability::None };
            match rng.of(0..8) {
                0..4 => drop(commit(&at[0].1, &mut rng, durability)),
                4..6 => drop(ship(&at[0].1, &at[1].1, durability).map_err(|error| {
                    assert!(matches!(error, Error::TooOld { .. }), "life {life}: {error}");
                })),
                6 if rng.one_in(3) => at[rng.index(2)].1.sync().unwrap(),
                _ => {
                    let side = rng.index(2);
                    let found = at[side].0.after_power_cut(Persistence::ALL[rng.index(3)], rng.number());
                    let place = [dir(), to()][side];
                    let store = options(&found).create(Create::Never).open(place).unwrap();
                    at[side] = (found, store);
                }
            }
            let [(_, store), (_, replica)] = &at;
            assert!(replica.stat().seq <= store.stat().seq, "life {life}: the replica is ahead");
        }
        let [(_, store), (_, replica)] = &at;
        commit(store, &mut rng, Durability::Sync);
        match ship(store, replica, Durability::Sync) {
            Ok(_) => {
                assert!(content(replica) == content(store), "life {life}");
                caught_up += 1;
            }
            Err(error) => assert!(matches!(error, Error::TooOld { .. }), "life {life}: {error}"),
        }
        assert!(replica.verify().unwrap().is_sound(), "life {life}");
    }
    println!("{caught_up} of 150 caught up, the others were too old");
    assert!(caught_up > 50);
}
