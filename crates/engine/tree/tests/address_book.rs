//! Stories of a tree's user, on a real disk: an address book with an index, read and changed at the
//! same time, closed, opened read-only, and copied.

#[path = "../examples/accounts.rs"]
mod accounts;

use std::path::PathBuf;

use pagekeeper_store::{Durability, PageNo, ReadTxn, Store, WriteTxn};
use pagekeeper_testing::disk_dir;
use pagekeeper_tree::{Tree, TreeError, unused_pages};
use tempfile::TempDir;

const PEOPLE: u64 = 3000;

fn dir() -> (TempDir, PathBuf) {
    let temp = disk_dir();
    let path = temp.path().join("store");
    (temp, path)
}

fn open(dir: &std::path::Path) -> Store {
    Store::options().memory(16 << 20).journal_bytes(4 << 20).open(dir).unwrap()
}

/// People by number, their numbers by town, and portraits of some.
#[derive(Clone, Copy)]
struct Book {
    names: Tree,
    people: Tree,
    towns: Tree,
}

impl Book {
    fn create(txn: &mut WriteTxn<'_>) -> Result<Self, TreeError> {
        let [names, people, towns] = [Tree::create(txn)?, Tree::create(txn)?, Tree::create(txn)?];
        names.insert(txn, b"people", &people.root().get().to_le_bytes())?;
        names.insert(txn, b"towns", &towns.root().get().to_le_bytes())?;
        txn.set_root(Some(names.root()));
        Ok(Self { names, people, towns })
    }

    fn find(read: &ReadTxn<'_>) -> Result<Self, TreeError> {
        let names = Tree::open(read, read.root().expect("it was set"))?;
        let tree = |name: &[u8]| {
            let root = names.get(read, name)?.expect("it has a name");
            let number = u64::from_le_bytes(root[..].try_into().expect("a number"));
            Tree::open(read, PageNo::new(number))
        };
        Ok(Self { names, people: tree(b"people")?, towns: tree(b"towns")? })
    }

    fn move_in(&self, txn: &mut WriteTxn<'_>, person: u64, town: &str) -> Result<(), TreeError> {
        let before = self.people.get(txn, &person.to_be_bytes())?;
        if let Some(before) = before {
            assert!(self.towns.remove(txn, &by_town(&before, person))?);
        }
        self.people.insert(txn, &person.to_be_bytes(), town.as_bytes())?;
        assert!(!self.towns.insert(txn, &by_town(town.as_bytes(), person), b"")?);
        Ok(())
    }

    /// Checks that the index agrees with the people, and returns how many of them live in a town.
    fn count(&self, read: &ReadTxn<'_>, town: &str) -> usize {
        assert_eq!(self.people.len(read).unwrap(), self.towns.len(read).unwrap());
        let (from, to) = (by_town(town.as_bytes(), 0), by_town(town.as_bytes(), u64::MAX));
        let found = self.towns.range(read, from..=to).map(|entry| entry.unwrap().0);
        found
            .inspect(|key| {
                let person = key.last_chunk::<8>().unwrap();
                assert_eq!(&self.people.get(read, person).unwrap().unwrap()[..], town.as_bytes());
            })
            .count()
    }
}

fn by_town(town: &[u8], person: u64) -> Vec<u8> {
    [town, b"\0", &person.to_be_bytes()].concat()
}

#[test]
fn an_address_book_keeps_its_index_through_all_there_is() {
    let (temp, dir) = dir();
    let store = open(&dir);
    let mut txn = store.begin_write().unwrap();
    let book = Book::create(&mut txn).unwrap();
    for person in 0..PEOPLE {
        book.move_in(&mut txn, person, ["Bonn", "Graz", "Oslo"][usize::try_from(person % 3).unwrap()])
            .unwrap();
    }
    let portrait: Vec<u8> = (0..300_000_u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
    book.people.insert(&mut txn, b"portrait", &portrait).unwrap();
    book.towns.insert(&mut txn, b"portrait", b"").unwrap();
    txn.commit(Durability::Sync).unwrap();

    // Readers beside a writer: each sees all of a commit or nothing.
    let before = store.begin_read().unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut most = 0;
                    while most < 1500 {
                        let read = store.begin_read().unwrap();
                        let counts = ["Bonn", "Graz", "Oslo"].map(|town| book.count(&read, town));
                        assert_eq!(counts.iter().sum::<usize>() as u64, PEOPLE, "{counts:?}");
                        most = counts[0];
                    }
                })
            })
            .collect();
        for person in (0..PEOPLE).filter(|person| person % 3 != 0).step_by(2) {
            let mut txn = store.begin_write().unwrap();
            book.move_in(&mut txn, person, "Bonn").unwrap();
            txn.commit(Durability::None).unwrap();
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
    assert_eq!(["Bonn", "Graz", "Oslo"].map(|town| book.count(&before, town)), [1000; 3]);
    assert_eq!(book.count(&store.begin_read().unwrap(), "Bonn"), 2000);
    drop(before);
    store.close().unwrap();

    let check = |store: &Store| {
        let read = store.begin_read().unwrap();
        let book = Book::find(&read).unwrap();
        assert_eq!(book.count(&read, "Bonn"), 2000);
        assert_eq!(book.people.get(&read, b"portrait").unwrap().unwrap()[..], portrait);
        assert_eq!(unused_pages(&read, &[book.names, book.people, book.towns]).unwrap(), []);
        book
    };
    let store = Store::options().read_only(true).open(&dir).unwrap();
    check(&store);
    drop(store);
    let store = open(&dir);
    let copy = temp.path().join("copy");
    store.backup(&copy).unwrap();
    check(&open(&copy));

    // Everything is deleted, including its pages.
    let book = check(&store);
    let mut txn = store.begin_write().unwrap();
    for tree in [book.names, book.people, book.towns] {
        tree.delete(&mut txn).unwrap();
    }
    txn.set_root(None);
    txn.commit(Durability::Sync).unwrap();
    let stat = store.stats();
    assert_eq!(stat.free_pages, stat.pages);
    assert_eq!(store.compact().unwrap().pages, 0);
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    accounts::main()
}
