//! Replication between two processes: each of them is killed again and again, and at the end the replica is what the store is.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pagekeeper_store::{Create, Durability, Error, Follower, Shipped, Store, StoreOptions};
use pagekeeper_testing::{Rng, Seed, disk_dir};

const PAGES: u64 = 400;
/// Where the children work, and what each of them is.
const DIRECTORY: &str = "PAGEKEEPER_FOLLOWED_IN";
const SIDE: &str = "PAGEKEEPER_FOLLOWED_AS";

fn options() -> StoreOptions {
    Store::options().memory(32 << 20).journal_bytes(4 << 20)
}

/// What a replica asks for that has nothing.
const NOTHING: u64 = u64::MAX;

/// The source: commits, and sends what each replica that comes lacks.
fn source(directory: &Path) -> Result<(), Error> {
    let store = options().open(&directory.join("store"))?;
    if store.begin_read()?.pages() == 0 {
        let mut txn = store.begin()?;
        txn.allocate_run(PAGES)?;
        (0..PAGES).try_for_each(|page| txn.write(page, &vec![0; store.payload_size()]))?;
        txn.commit(Durability::Sync)?;
    }
    let socket = directory.join("socket");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::from_seed(std::process::id().into());
            loop {
                let mut txn = store.begin().unwrap();
                for _ in 0..3 {
                    let at = rng.index(4000);
                    txn.page_mut(rng.of(0..PAGES)).unwrap()[at..at + 8]
                        .copy_from_slice(&rng.number().to_le_bytes());
                }
                txn.commit(Durability::Sync).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        for stream in listener.incoming() {
            // A replica that was killed.
            let _ = serve(&store, stream.unwrap(), directory);
        }
    });
    Ok(())
}

fn serve(store: &Store, mut stream: UnixStream, directory: &Path) -> std::io::Result<()> {
    let mut after = [0; 8];
    stream.read_exact(&mut after)?;
    let after = u64::from_le_bytes(after);
    assert!(after == NOTHING || after <= store.stat().seq, "the replica is ahead");
    let mut ahead = VecDeque::new();
    let mut follower = match store.follow(after.min(store.stat().seq)) {
        Ok(follower) if after != NOTHING => follower,
        Ok(_) | Err(Error::TooOld { .. }) => {
            let copy = directory.join("copy");
            let _ = std::fs::remove_dir_all(&copy);
            // Followed from before the backup on: meanwhile the journal may be given up.
            let mut follower = store.follow(store.stat().seq).unwrap();
            std::thread::scope(|scope| {
                let backup = scope.spawn(|| store.backup(&copy).unwrap());
                while !backup.is_finished() {
                    if !send_on(&mut follower, |commit| {
                        ahead.push_back(commit);
                        Ok(())
                    })? {
                        return Ok(());
                    }
                }
                stream.write_all(&0_u32.to_le_bytes())
            })?;
            follower
        }
        Err(error) => panic!("{error}"),
    };
    let mut send = |commit: Shipped| {
        let bytes = commit.encode();
        stream.write_all(&u32::try_from(bytes.len()).unwrap().to_le_bytes())?;
        stream.write_all(&bytes)
    };
    ahead.into_iter().try_for_each(&mut send)?;
    while send_on(&mut follower, &mut send)? {}
    Ok(())
}

/// Sends what there is; false where the next one is gone: the replica comes again, and gets a backup.
fn send_on(
    follower: &mut Follower<'_>,
    mut send: impl FnMut(Shipped) -> std::io::Result<()>,
) -> std::io::Result<bool> {
    match follower.next() {
        Ok(Some(commit)) => send(commit)?,
        Ok(None) => std::thread::sleep(Duration::from_millis(1)),
        Err(Error::TooOld { .. }) => return Ok(false),
        Err(error) => panic!("{error}"),
    }
    Ok(true)
}

/// The replica: takes what it gets, and begins with a backup where it has to.
fn replica(directory: &Path) {
    loop {
        let _ = follow(directory);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn follow(directory: &Path) -> std::io::Result<()> {
    let dir = directory.join("replica");
    let mut store = match options().create(Create::Never).open(&dir) {
        Ok(store) => Some(store),
        Err(Error::NoStore { .. } | Error::Unfinished { .. }) => None,
        Err(error) => panic!("{error}"),
    };
    let mut stream = UnixStream::connect(directory.join("socket"))?;
    stream.write_all(&store.as_ref().map_or(NOTHING, |store| store.stat().seq).to_le_bytes())?;
    loop {
        let mut len = [0; 4];
        stream.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len == 0 {
            drop(store.take());
            // Aside first: a kill in the midst of a removal leaves a half of it.
            let old = directory.join("old");
            let _ = std::fs::remove_dir_all(&old);
            let _ = std::fs::rename(&dir, &old);
            std::fs::rename(directory.join("copy"), &dir)?;
            store = Some(options().create(Create::Never).open(&dir).unwrap());
            continue;
        }
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes)?;
        let commit = Shipped::decode(&bytes).unwrap();
        let store = store.as_ref().expect("it gets commits only for what it has");
        store.apply(&commit, Durability::Sync).unwrap();
    }
}

/// No test of its own: what the children do, until they are killed.
#[test]
fn child_that_follows_or_is_followed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    match std::env::var(SIDE).as_deref() {
        Ok("source") => source(Path::new(&directory)).unwrap(),
        _ => replica(Path::new(&directory)),
    }
}

fn start(directory: &Path, side: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child_that_follows_or_is_followed", "--exact", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(SIDE, side)
        .spawn()
        .unwrap()
}

/// Ends when this one does, also by a panic.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_replica_survives_kills_of_both_sides() {
    let temp = disk_dir();
    let directory = temp.path();
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let run = |side| Running(start(directory, side));
    let mut sides = [run("source"), run("replica")];
    // Until there is a replica at all.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !directory.join("replica/superblock").exists() {
        assert!(Instant::now() < deadline, "no replica was made");
        std::thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..16 {
        std::thread::sleep(Duration::from_millis(rng.of(20..300)));
        let which = rng.index(2);
        assert!(sides[which].0.try_wait().unwrap().is_none(), "it ended by itself");
        sides[which].0.kill().unwrap();
        sides[which].0.wait().unwrap();
        sides[which] = run(["source", "replica"][which]);
    }
    drop(sides);
    // What the source found in its journal when it was started last is given up soon: until the replica has caught up with that.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_the_same(directory) {
        assert!(Instant::now() < deadline, "it does not catch up");
        let sides = [run("source"), run("replica")];
        std::thread::sleep(Duration::from_secs(1));
        drop(sides);
    }
}

/// Whether the replica has what the store has, when it was given what it lacks; false if that is gone from the journal.
fn is_the_same(directory: &Path) -> bool {
    let store = options().create(Create::Never).open(&directory.join("store")).unwrap();
    let Ok(replica) = options().create(Create::Never).open(&directory.join("replica")) else { return false };
    let (last, had) = (store.stat().seq, replica.stat().seq);
    println!("commits: {last} in the store, {had} in the replica");
    assert!(had <= last, "the replica is ahead");
    let mut follower = match store.follow(had) {
        Ok(follower) => follower,
        Err(Error::TooOld { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    loop {
        match follower.next() {
            Ok(Some(commit)) => drop(replica.apply(&commit, Durability::None).unwrap()),
            Ok(None) => break,
            Err(Error::TooOld { .. }) => return false,
            Err(error) => panic!("{error}"),
        }
    }
    let page = |store: &Store, page| store.begin_read().unwrap().read(page).unwrap().to_vec();
    assert_eq!(replica.stat().seq, last);
    for number in 0..PAGES {
        assert!(page(&store, number) == page(&replica, number), "page {number}");
    }
    assert!(replica.verify().unwrap().is_sound());
    true
}

/// What the source has as diffs is whole pages in a replica whose checkpoint came later; a backup gets past that.
#[test]
fn a_commit_that_is_too_large_as_whole_pages_is_refused_and_a_backup_has_it() {
    const CHANGED: u64 = 400;
    let temp = disk_dir();
    let at = |name: &str| temp.path().join(name);
    let options = || options().journal_bytes(1 << 20).warm(false).without_threads();
    let store = options().open(&at("store")).unwrap();
    let mut txn = store.begin().unwrap();
    for _ in 0..CHANGED {
        txn.allocate().unwrap();
    }
    let seq = txn.commit(Durability::Sync).unwrap();
    let mut follower = store.follow(seq).unwrap();
    store.backup(&at("replica")).unwrap();
    let mut txn = store.begin().unwrap();
    for page in 0..CHANGED {
        let payload = txn.page_mut(page).unwrap();
        payload[0] = 1;
        payload[payload.len() - 1] = 1;
    }
    txn.commit(Durability::Sync).unwrap();
    let commit = follower.next().unwrap().unwrap();
    let replica = options().open(&at("replica")).unwrap();
    match replica.apply(&commit, Durability::Sync) {
        // Pages are written atomically there.
        Ok(_) => println!("diffs are enough on this file system"),
        Err(Error::TransactionTooLarge { .. }) => assert_eq!(replica.stat().seq, seq),
        Err(error) => panic!("{error}"),
    }
    store.backup(&at("next")).unwrap();
    assert_eq!(options().open(&at("next")).unwrap().stat().seq, seq + 1);
}

fn varint(mut number: u64, to: &mut Vec<u8>) {
    loop {
        let byte = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        to.push(if number == 0 { byte } else { byte | 0x80 });
        if number == 0 {
            return;
        }
    }
}

/// A commit as another one could send it, with right checksums of the whole.
fn shipped(store: u64, seq: u64, items: &[Vec<u8>]) -> Shipped {
    let mut part = vec![1, 0, 0, 0, 0, 0, 0, 0];
    part.extend(seq.to_le_bytes());
    for item in items {
        varint(item.len() as u64, &mut part);
        part.extend(item);
    }
    let mut bytes = b"pks\x01".to_vec();
    bytes.extend(store.to_le_bytes());
    bytes.extend(seq.to_le_bytes());
    bytes.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
    bytes.extend(part);
    let crc = crc32c::crc32c(&bytes);
    Shipped::decode(&[&crc.to_le_bytes()[..], &bytes].concat()).unwrap()
}

/// What a commit says of the store: no root, so many pages, the free list.
fn meta(pages: u64, free: Option<(u64, u64)>) -> Vec<u8> {
    let mut meta = vec![if free.is_some() { 2 } else { 0 }];
    varint(pages, &mut meta);
    if let Some((head, _)) = free {
        varint(head, &mut meta);
    }
    varint(free.map_or(0, |(_, count)| count), &mut meta);
    meta
}

#[test]
fn a_commit_that_is_refused_leaves_all_as_it_was() {
    let temp = disk_dir();
    let dir = temp.path().join("store");
    let store = options().warm(false).without_threads().open(&dir).unwrap();
    let mut txn = store.begin().unwrap();
    for _ in 0..3 {
        txn.allocate().unwrap();
    }
    let seq = txn.commit(Durability::Sync).unwrap();
    let id = store.follow(0).unwrap().next().unwrap().unwrap().store();
    let bytes = || std::fs::metadata(dir.join("data")).unwrap().len();
    let before = bytes();
    // A free page with a checksum that is not its own, in a store that would be as large as can be.
    let mut free = vec![(2 << 4) | 3];
    varint(1, &mut free);
    free.extend([9; 4]);
    let hostile = [
        ("grows", vec![meta(1 << 31, None), free]),
        ("has fewer pages", vec![meta(1, None)]),
        ("has a free list that begins with data", vec![meta(3, Some((1, 1)))]),
    ];
    for (what, items) in hostile {
        let error = store.apply(&shipped(id, seq + 1, &items), Durability::Sync).unwrap_err();
        assert!(matches!(error, Error::Diverged { .. }), "{what}: {error}");
        assert_eq!((bytes(), store.stat().seq), (before, seq), "{what}");
        assert!(store.begin_read().unwrap().read(2).is_ok(), "{what}");
    }
    assert!(store.verify().unwrap().is_sound());
    // It takes what fits.
    store.apply(&shipped(id, seq + 1, &[meta(4, None)]), Durability::Sync).unwrap();
    assert_eq!(store.begin_read().unwrap().pages(), 4);
}
