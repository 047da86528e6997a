//! The format of a store, checked by a reader that shares nothing with pagekeeper
//! (`tests/store_reader`, Python, written from the documented format alone). In any store that a
//! kill or rot leaves, it finds the same as `pagekeeper store`.
//!
//! `PAGEKEEPER_KILLS` sets the number of kills; `make test-faults` has more of them.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use crate::support::command::{finish, pagekeeper};
use pagekeeper_store::{Durability, Error, PageNo, PageState, Store, StoreOptions, WriteTxn};
use pagekeeper_testing::{Rng, Seed};
use serde_json::{Value, json};

/// Variables with the child's store, and the number of commits after which the child closes it.
const DIRECTORY: &str = "PAGEKEEPER_KILLED_STORE";
const COMMITS: &str = "PAGEKEEPER_KILLED_COMMITS";
/// Kills in `make test`.
const KILLS: u64 = 16;
/// Damages of the medium after each kill.
const DAMAGES: u64 = 2;
/// Maximum pages of a store.
const PAGES_MAX: u64 = 250;

/// Returns options with little memory and a short journal, so that checkpoints never end.
fn options() -> StoreOptions {
    Store::options().memory(2 << 20).journal_bytes(1 << 20)
}

/// Changes some pages, in every possible way.
fn change(txn: &mut WriteTxn<'_>, len: usize, rng: &mut Rng, owned: &mut Vec<PageNo>) -> Result<(), Error> {
    // Now and then so many that the entry has several records.
    let pages = if rng.one_in(50) { 60 } else { rng.of(1..6) };
    for _ in 0..pages {
        let may_grow = (owned.len() as u64) < PAGES_MAX / 2;
        match rng.of(0..8) {
            0 | 1 if may_grow => owned.push(txn.allocate()?),
            2 if txn.pages() < PAGES_MAX && rng.one_in(4) => {
                let run = rng.of(2..20);
                let first = txn.allocate_run(run)?;
                owned.extend(PageNo::each(first..first + run));
            }
            3 | 4 if owned.len() > 30 => {
                let page = owned.swap_remove(rng.index(owned.len()));
                txn.free(page)?;
            }
            which if !owned.is_empty() => {
                let page = owned[rng.index(owned.len())];
                let mut bytes = vec![0; len];
                let part = rng.index(len - 200)..len - rng.index(100);
                bytes[part.clone()].fill_with(|| rng.number().to_le_bytes()[0]);
                match txn.page_mut(page) {
                    Ok(payload) if which > 5 => {
                        payload[part.clone()][..50].copy_from_slice(&bytes[part][..50]);
                    }
                    // The pages of a run were never written.
                    Ok(_) | Err(Error::NeverWritten { .. }) => txn.write(page, &bytes)?,
                    Err(error) => return Err(error),
                }
            }
            _ => owned.push(txn.allocate()?),
        }
    }
    txn.set_root(owned.first().copied().filter(|_| !rng.one_in(9)));
    let metadata: Vec<u8> = (0..rng.of(0..40)).map(|_| rng.number().to_le_bytes()[0]).collect();
    txn.set_metadata(&metadata)
}

/// Commits in a child until it is killed or has made this many commits; not a test of its own.
#[test]
fn child_that_changes_a_store() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let commits: u64 = std::env::var(COMMITS).unwrap().parse().unwrap();
    let mut rng = Rng::from_seed(commits);
    let page_size = if commits.is_multiple_of(2) { 4096 } else { 16384 };
    // A kill may come while its journal gets another size.
    let journal = [1 << 20, 3 << 20, 2 << 20][usize::try_from(commits % 3).unwrap()];
    let store = options().page_size(page_size).journal_bytes(journal).open(Path::new(&directory)).unwrap();
    let listed = store.inspect(PageNo::new(0)..PageNo::new(store.stats().pages)).unwrap();
    let data = listed.iter().filter(|info| matches!(info.state, PageState::Data));
    let mut owned: Vec<_> = data.map(|info| info.page).collect();
    drop(listed);
    for _ in 0..commits {
        let mut txn = store.begin_write().unwrap();
        change(&mut txn, store.payload_size(), &mut rng, &mut owned).unwrap();
        let durability = if rng.one_in(3) { Durability::Sync } else { Durability::None };
        txn.commit(durability).unwrap();
        println!("committed");
        std::io::stdout().flush().unwrap();
        if rng.one_in(100) {
            store.compact().unwrap();
        }
    }
    if rng.one_in(2) { store.close_and_sync() } else { store.close() }.unwrap();
}

fn start(directory: &Path, commits: u64) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["store_format::child_that_changes_a_store", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(COMMITS, commits.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Kills a child this long after its first commit, or lets it finish. Returns whether it was
/// killed.
fn change_and_kill(directory: &Path, commits: u64, wait: Duration) -> bool {
    let mut child = start(directory, commits);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.by_ref().map_while(Result::ok).find(|line| line.ends_with("committed"));
    assert!(first.is_some(), "it failed before its first commit: {:?}", child.wait());
    let rest = std::thread::spawn(move || lines.map_while(Result::ok).count());
    std::thread::sleep(wait);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    rest.join().unwrap();
    assert!(status.success() || status.code().is_none(), "it failed: {status}");
    !status.success()
}

/// Returns the reader's findings.
fn independent_findings(directory: &Path) -> Value {
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/store_reader");
    let outcome = finish(Command::new("python3").args(["-B", reader]).arg(directory));
    let found = outcome.json();
    assert!(outcome.stderr.is_empty(), "{outcome:?}");
    let sound = found["verify"]["sound"] == true;
    assert_eq!(outcome.code, i32::from(!sound), "{outcome:?}");
    found
}

/// Asserts that `found` has each field of `expected`, and perhaps more.
fn assert_has(found: &Value, expected: &Value, what: &str) {
    match expected {
        Value::Object(fields) => {
            fields
                .iter()
                .for_each(|(name, value)| assert_has(&found[name], value, &format!("{what}.{name}")));
        }
        Value::Array(values) => {
            assert_eq!(found.as_array().map(Vec::len), Some(values.len()), "{what}");
            for (index, value) in values.iter().enumerate() {
                assert_has(&found[index], value, &format!("{what}[{index}]"));
            }
        }
        value => assert_eq!(found, value, "{what}"),
    }
}

/// Checks that both readers find the same in a store. Returns whether it is sound.
fn assert_same(directory: &Path) -> bool {
    let expected = independent_findings(directory);
    let sound = expected["verify"]["sound"] == true;
    let mut said = Vec::new();
    for command in ["stat", "dump", "verify"] {
        let outcome = finish(pagekeeper().args(["store", command, "--json"]).arg(directory));
        said.push(format!("{}: {}", outcome.code, outcome.stderr));
        if let Some(reason) = expected["refused"].as_str() {
            assert!(
                outcome.code == 1 && outcome.stdout.is_empty(),
                "refused by the reader: {reason}\n{outcome:?}"
            );
            continue;
        }
        assert!(outcome.stderr.is_empty(), "{}\n{outcome:?}", expected["faults"]);
        let mut found = outcome.json();
        if command == "dump" {
            let whole = found["free_list"]["fault"].is_null();
            found["free_list"]["whole"] = json!(whole);
        }
        assert_has(&found, &expected[command], command);
    }
    sound
}

#[test]
#[ignore = "long: make test-stories"]
fn an_independent_reader_finds_the_same_after_kills_and_damages() {
    if !support::can_start("the independent reader of the format", &["python3"]) {
        return;
    }
    let seed = Seed::new();
    let kills = std::env::var("PAGEKEEPER_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let temp = support::scratch();
    let (mut killed, mut damaged) = (0, 0);
    for round in 0..kills {
        let mut rng = seed.rng(round);
        // A store lives through some kills; the parity of its number decides the page size.
        let dir = temp.path().join(format!("store-{}", round / 8));
        let commits = 2 * rng.of(100..100_000) + (round / 8) % 2;
        let commits = if rng.one_in(5) { rng.of(1..20) * 2 + (round / 8) % 2 } else { commits };
        killed += u64::from(change_and_kill(&dir, commits, Duration::from_micros(rng.of(0..150_000))));
        assert!(assert_same(&dir), "round {round}: a store that was killed is not sound");
        for _ in 0..DAMAGES {
            let copy = temp.path().join("damaged");
            copy_store(&dir, &copy);
            // Mostly one damage, which the other of two copies repairs; sometimes one that hits
            // that copy, too.
            for _ in 0..[1, 1, 2, 4][rng.index(4)] {
                let what = damage(&copy, &mut rng);
                println!("round {round}: {what}");
            }
            damaged += u64::from(!assert_same(&copy));
            std::fs::remove_dir_all(&copy).unwrap();
        }
    }
    println!("{kills} runs, {killed} of them killed; {damaged} of {} damages seen", kills * DAMAGES);
    assert!(killed > kills / 2 && damaged > kills * DAMAGES / 4, "{killed} kills, {damaged} damages seen");
}

fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_store(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

/// Damages one place of one file. Returns which.
fn damage(dir: &Path, rng: &mut Rng) -> String {
    let name = ["superblock", "data", "data", "map", "control", "journal"][rng.index(6)];
    let (path, at) = match name {
        "journal" => random_live_place(dir, rng),
        "control" => random_place(journal(dir, rng).join(name), rng),
        name => random_place(dir.join(name), rng),
    };
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    let how = if at >= len {
        "nothing, since the file is cut off already,"
    } else if rng.one_in(2) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << rng.of(0..8)], at).unwrap();
        "a flipped bit"
    } else if rng.one_in(8) {
        file.set_len(at).unwrap();
        "cut off"
    } else {
        let sector = if rng.one_in(2) { 512 } else { 4096 };
        let zeros = vec![0; usize::try_from(sector.min(len - at / sector * sector)).unwrap()];
        file.write_all_at(&zeros, at / sector * sector).unwrap();
        "a sector of zeros"
    };
    format!("{how} at {at} of {}", path.strip_prefix(dir).unwrap().to_string_lossy())
}

fn random_place(path: PathBuf, rng: &mut Rng) -> (PathBuf, u64) {
    let len = path.metadata().unwrap().len().max(1);
    // Most meaningful bytes are at the front.
    let at = if rng.one_in(2) { rng.of(0..len) } else { rng.of(0..len.min(16 << 10)) };
    (path, at)
}

/// Returns the directory of the journal, or of one that a kill left beside it.
fn journal(dir: &Path, rng: &mut Rng) -> PathBuf {
    let places: Vec<_> = ["journal", "journal.2"]
        .map(|name| dir.join(name))
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    places[rng.index(places.len())].clone()
}

/// Returns a position in the part of the ring that a recovery reads, or slightly outside.
fn random_live_place(dir: &Path, rng: &mut Rng) -> (PathBuf, u64) {
    let found = independent_findings(dir);
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let slots = found["stat"]["superblocks"].as_array();
    let newest = slots.and_then(|slots| slots.iter().map(|slot| number(&slot["checkpoint_lsn"])).max());
    let from = newest.unwrap_or_default().saturating_sub(8192);
    let lsn = from + rng.of(0..number(&found["stat"]["journal_bytes"]) + 16384);
    let journal = journal(dir, rng);
    let files = (0..).map(|number| journal.join(format!("redo.{number:03}")));
    let files: Vec<PathBuf> = files.take_while(|path| path.exists()).collect();
    let size = files[0].metadata().unwrap().len();
    let which = usize::try_from(lsn / size).unwrap() % files.len();
    (files[which].clone(), lsn % size)
}
