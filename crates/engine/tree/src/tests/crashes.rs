//! Power cuts at any operation of the disk: the tree is that of one commit, no older than the last
//! durable one.

use pagekeeper_simdisk::Persistence;
use pagekeeper_store::Seq;
use pagekeeper_testing::Seed;

use super::*;

const TRANSACTIONS: usize = 24;

/// Changes a tree until the power is cut, and records the state after each commit. Returns the last
/// durable commit.
fn change(store: &Store, tree: Tree, states: &mut BTreeMap<Seq, Model>, rng: &mut Rng) -> Seq {
    let mut durable = store.stats().seq;
    let mut model = states.last_key_value().unwrap().1.clone();
    let mut next = store.stats().seq + 1;
    for _ in 0..TRANSACTIONS {
        let Ok(mut txn) = store.begin_write() else { break };
        let changed = (0..rng.of(1..30)).try_for_each(|_| {
            let key = random_key(rng);
            if rng.one_in(3) {
                tree.remove(&mut txn, &key)?;
                model.remove(&key);
            } else {
                let value = random_value(rng, 4064);
                tree.insert(&mut txn, &key, &value)?;
                model.insert(key, value);
            }
            Ok::<_, TreeError>(())
        });
        let durability = if rng.one_in(2) { Durability::Sync } else { Durability::None };
        if changed.is_err() {
            break;
        }
        // The new state may be found even if the commit fails.
        states.insert(next, model.clone());
        match txn.commit(durability) {
            Ok(seq) => {
                // A commit without changes has no number.
                if seq < next {
                    states.remove(&next);
                } else {
                    assert_eq!(seq, next);
                    next = seq + 1;
                }
                if durability == Durability::Sync {
                    durable = seq;
                }
            }
            Err(_) => break,
        }
        if rng.one_in(8) && store.step().is_err() {
            break;
        }
    }
    durable
}

fn found(disk: &SimDisk, states: &BTreeMap<Seq, Model>, durable: Seq) -> (Store, Tree, Seq) {
    let store = open(disk, 4096).expect("nothing fails any more");
    let read = store.begin_read().unwrap();
    let seq = read.seq();
    assert!(seq >= durable, "commit {durable} was durable, and {seq} is the last that is found");
    let tree = Tree::open(&read, read.root().unwrap()).unwrap();
    compare(tree, &read, &states[&seq]);
    drop(read);
    (store, tree, seq)
}

#[test]
fn after_a_power_cut_it_is_the_tree_of_a_commit() {
    let seed = Seed::new();
    let (mut cuts, mut older) = (0, 0);
    for life in 0..60 {
        let mut rng = seed.rng(life);
        let mut disk = disk();
        let (mut store, mut tree) = with_tree(&disk, 4096);
        let mut states = BTreeMap::from([(store.stats().seq, Model::new())]);
        for _ in 0..4 {
            disk.cut_power_at(disk.ops() + rng.of(1..120));
            let durable = change(&store, tree, &mut states, &mut rng);
            let last = *states.last_key_value().unwrap().0;
            let persistence = Persistence::ALL[rng.index(Persistence::ALL.len())];
            let after = disk.after_power_cut(persistence, rng.number());
            drop(store);
            disk = after;
            let seq;
            (store, tree, seq) = found(&disk, &states, durable);
            states.retain(|state, _| *state <= seq);
            cuts += 1;
            older += u64::from(seq < last);
        }
    }
    assert!(older > 10 && older < cuts, "{older} of {cuts} cuts lost commits that were not durable");
}
