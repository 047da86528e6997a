//! pagekeeper's store.
//!
//! The killed process applies nothing in the background, so that every change is still to be
//! applied; the recovering process opens the store with defaults. Invariant: it finds as many pages
//! to apply as were changed. Fails where the store does.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pagekeeper_store::{Durability, PageNo, Store};

use super::changes::{CHANGE_BYTES, ChangeLoad, PAGES_PER_COMMIT};
use super::{RecoveryDetails, RecoveryTimes, journal};

/// Its name in tables.
pub(super) const OUR_RECOVERY_NAME: &str = "pagekeeper";

/// Memory of the killed store, in bytes: with less, pages have to be applied before the kill.
const STORE_MEMORY_BYTES: u64 = 1 << 30;
/// Pages of a transaction that first writes pages.
const FILL_COMMIT_PAGES: usize = 500;

/// Creates the store if there is none, and changes pages; the returned store is open.
pub(super) fn prepare(dir: &Path, load: &ChangeLoad) -> Result<Store> {
    let store = Store::options().background_apply(false).memory(STORE_MEMORY_BYTES).open(dir)?;
    if store.stats().pages == 0 {
        let mut transaction = store.begin_write()?;
        let first = transaction.allocate_run(load.pages)?;
        ensure!(first == PageNo::new(0), "the first page is {first}");
        transaction.commit(Durability::Sync)?;
    }
    let changed = load.changed();
    let mut body = vec![0; store.payload_size()];
    for pages in changed.chunks(FILL_COMMIT_PAGES) {
        let mut transaction = store.begin_write()?;
        for page in pages {
            load.base(*page, &mut body);
            transaction.write(PageNo::new(*page), &body)?;
        }
        transaction.commit(Durability::None)?;
    }
    store.sync()?;
    for pages in changed.chunks(PAGES_PER_COMMIT) {
        let mut transaction = store.begin_write()?;
        for page in pages {
            let (offset, bytes) = load.change(*page);
            transaction.page_mut(PageNo::new(*page))?[offset..offset + CHANGE_BYTES].copy_from_slice(&bytes);
        }
        transaction.commit(Durability::Sync)?;
    }
    Ok(store)
}

/// Opens it on the slow disk.
pub(super) fn recover(dir: &Path, load: &ChangeLoad) -> Result<RecoveryTimes> {
    let changed = load.changed();
    let began = Instant::now();
    let store = Store::options().open(dir)?;
    let opened = began.elapsed();
    let page = store.begin_read()?.read(PageNo::new(changed[0]))?;
    let first = began.elapsed();
    load.check(changed[0], &page)?;
    drop(page);
    store.sync()?;
    let applied = began.elapsed();
    let apply = applied.saturating_sub(opened);
    let opening = store.stats().opening;
    store.close()?;
    ensure!(
        opening.pages == load.changes as u64,
        "{} pages were found to apply, of {} that were changed",
        opening.pages,
        load.changes
    );
    let directory = dir.join("journal");
    let io = pagekeeper_io::best();
    let wide = journal::wide_time(&*io, &directory, opening.journal_bytes)?;
    // Each was written in full before it was changed.
    let pages = [&changed[..], &changed[..]].concat();
    let least = journal::least_time(&*io, &directory, opening.journal_bytes, &pages)?;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    Ok(RecoveryTimes {
        open: ms(opened),
        first: ms(first),
        applied: Some(ms(applied)),
        ours: Some(RecoveryDetails {
            apply: ms(apply),
            journal: ms(opening.journal_read),
            wide: ms(wide),
            least: ms(least),
        }),
    })
}

/// Compares every changed page, off the slow disk.
pub(super) fn check(dir: &Path, load: &ChangeLoad) -> Result<()> {
    let store = Store::options().open(dir)?;
    let reader = store.begin_read()?;
    for page in load.changed() {
        load.check(page, &reader.read(PageNo::new(page))?).with_context(|| format!("{}", dir.display()))?;
    }
    drop(reader);
    store.close()?;
    Ok(())
}
