//! A file of fixed-size records, read by four threads through one page cache.
//!
//! Run it by `cargo run -p pagekeeper-cache --example cache`.

use std::thread;

use pagekeeper_cache::{CachedFile, Error, PageCache, ReadRequest};

/// A number, and 92 bytes that nobody reads.
const RECORD_BYTES: u64 = 8 + 92;
const RECORDS: u64 = 50_000;

/// Reads the number in a record. A page that is absent is read once, however many threads want it.
fn number(file: &CachedFile, record: u64) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    file.read_at(record * RECORD_BYTES, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Adds up every fourth record.
fn every_fourth(file: &CachedFile, first: u64) -> Result<u64, Error> {
    (first..RECORDS).step_by(4).map(|record| number(file, record)).sum()
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir_in(".")?;
    let path = dir.path().join("numbers");
    let records = (0..RECORDS).flat_map(|number| number.to_le_bytes().into_iter().chain([0; 92]));
    std::fs::write(&path, records.collect::<Vec<u8>>())?;

    let cache = PageCache::options().memory(16 << 20).build()?; // all memory: pages, tables, records of them
    let file = cache.open(&path)?; // direct I/O: the kernel caches none of it
    let shared = &file;
    let sum = thread::scope(|scope| {
        let readers = [0, 1, 2, 3].map(|first| scope.spawn(move || every_fourth(shared, first)));
        readers.into_iter().map(|reader| reader.join().expect("a reader ended")).sum::<Result<u64, Error>>()
    })?;
    assert_eq!(sum, RECORDS * (RECORDS - 1) / 2);

    let (mut first, mut last) = ([0; 8], [0; 8]);
    let end = (RECORDS - 1) * RECORD_BYTES;
    // Misses of one call go to the device together.
    file.read_many(&mut [ReadRequest::new(0, &mut first), ReadRequest::new(end, &mut last)])?;
    assert_eq!(u64::from_le_bytes(last), RECORDS - 1);
    println!("{}", cache.stats());
    Ok(())
}
