//! Balances in memory with a redo log: threads share each sync, and a new process gets all that was
//! acknowledged.
//!
//! Run it by `cargo run -p pagekeeper-wal --example wal`.

use std::error::Error;
use std::path::Path;
use std::thread;

use pagekeeper_wal::{RedoLog, RedoOptions};

const ACCOUNTS: u8 = 4;
const DEPOSITS: u64 = 100;

fn options() -> RedoOptions {
    RedoLog::options().files(2).file_bytes(1 << 20) // a ring: its space is taken once
}

/// Pays into one account. Each deposit is durable when its wait returns.
fn deposit(log: &RedoLog, account: u8) -> Result<(), pagekeeper_wal::Error> {
    for amount in 1..=DEPOSITS {
        let mut record = vec![account];
        record.extend(amount.to_le_bytes());
        log.wait_flushed(log.append(&record)?)?;
    }
    Ok(())
}

/// Opens the log as after a crash, and applies its records.
fn recover(dir: &Path) -> Result<[u64; ACCOUNTS as usize], Box<dyn Error>> {
    let mut balances = [0; ACCOUNTS as usize];
    let (log, records) = options().recover(dir, None)?;
    for record in records {
        balances[usize::from(record.body[0])] += u64::from_le_bytes(record.body[1..].try_into()?);
    }
    log.checkpoint(log.end())?; // once the balances are saved elsewhere: recovery begins here
    log.close()?;
    Ok(balances)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let temp = tempfile::tempdir_in(".")?;
    let dir = temp.path().join("redo");
    let log = options().create(&dir)?;
    let shared = &log;
    thread::scope(|scope| {
        let start = |account| scope.spawn(move || deposit(shared, account));
        let threads: Vec<_> = (0..ACCOUNTS).map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread ended"))
    })?;
    drop(log); // without a close, as in a crash
    let balances = recover(&dir)?;
    assert_eq!(balances, [DEPOSITS * (DEPOSITS + 1) / 2; ACCOUNTS as usize]);
    println!("recovered as after a crash: {balances:?}");
    assert_eq!(recover(&dir)?, [0; ACCOUNTS as usize]); // nothing is left to apply
    Ok(())
}
