//! The common part of peers whose commits are values by number: they are created, changed, killed, opened and read
//! alike.
//!
//! Invariant: every commit of the changes is durable when it returns; commits that create the values need not be
//! durable one by one. Fails where the peer does.

use std::any::Any;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::changes::{BODY, Load, PER_COMMIT};
use super::{Engine, Recovered};

/// Values of a transaction that creates them.
const FILL: usize = 5000;

/// A store of values of [`BODY`] bytes by number, which is closed on drop.
pub(super) trait Peer: Sized + 'static {
    /// Opens the store in the directory, or creates it.
    fn open(dir: &Path, load: &Load) -> Result<Self>;

    /// Puts values, which are consecutive in `bodies`, in one commit.
    fn put(&self, pages: &[u64], bodies: &[u8], durably: bool) -> Result<()>;

    /// Makes all puts durable, and waits until no background work is left.
    fn settle(&self) -> Result<()>;

    /// Returns the value of a page.
    fn get(&self, page: u64) -> Result<Vec<u8>>;
}

/// Returns the peer as an engine.
pub(super) const fn engine<P: Peer>(name: &'static str, word: &'static str) -> Engine {
    Engine {
        name,
        word,
        prepare: prepare::<P>,
        recover: |_, dir, load| recover::<P>(dir, load),
        check: check::<P>,
    }
}

fn put(peer: &impl Peer, pages: &[u64], durably: bool, of: impl Fn(u64, &mut [u8])) -> Result<()> {
    let mut bodies = vec![0; pages.len() * BODY];
    for (page, body) in pages.iter().zip(bodies.chunks_mut(BODY)) {
        of(*page, body);
    }
    peer.put(pages, &bodies, durably)
}

fn prepare<P: Peer>(dir: &Path, load: &Load) -> Result<Box<dyn Any>> {
    let is_new = std::fs::read_dir(dir)?.next().is_none();
    let peer = P::open(dir, load)?;
    if is_new {
        let pages: Vec<u64> = (0..load.pages).collect();
        for pages in pages.chunks(FILL) {
            put(&peer, pages, false, |page, body| load.base(page, body))?;
        }
        peer.settle()?;
    }
    for pages in load.changed().chunks(PER_COMMIT) {
        put(&peer, pages, true, |page, body| load.expected(page, body))?;
    }
    Ok(Box::new(peer))
}

fn recover<P: Peer>(dir: &Path, load: &Load) -> Result<Recovered> {
    let changed = load.changed();
    let began = Instant::now();
    let peer = P::open(dir, load)?;
    let open = began.elapsed().as_secs_f64() * 1e3;
    let body = peer.get(changed[0])?;
    let first = began.elapsed().as_secs_f64() * 1e3;
    load.check(changed[0], &body)?;
    Ok(Recovered { open, first, applied: None, ours: None })
}

fn check<P: Peer>(dir: &Path, load: &Load) -> Result<()> {
    let peer = P::open(dir, load)?;
    load.changed().into_iter().try_for_each(|page| load.check(page, &peer.get(page)?))
}

/// Tests a peer: it recovers the commits of each round.
#[cfg(test)]
pub(super) fn recovers_what_was_committed_in_each_round<P: Peer>() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for round in 0..2 {
        let load = Load { pages: 300, changes: 60, seed: 3, round };
        drop(prepare::<P>(dir.path(), &load).unwrap());
        let recovered = recover::<P>(dir.path(), &load).unwrap();
        assert!(recovered.first >= recovered.open);
        check::<P>(dir.path(), &load).unwrap();
        assert!(check::<P>(dir.path(), &Load { round: 2, ..load }).is_err());
    }
}
