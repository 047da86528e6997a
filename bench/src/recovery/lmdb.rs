//! LMDB, by heed: a value per page, in synced transactions (LMDB's default). It has no log: commits are in place, and
//! an opening reads which of two meta pages is newer.
//!
//! Fails where LMDB does.

#![expect(unsafe_code, reason = "a file that is mapped")]

use std::path::Path;

use anyhow::{Context, Result};
use heed::byteorder::NativeEndian;
use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvOpenOptions, IntegerComparator};

use super::Engine;
use super::changes::{BODY, Load};
use super::peer::{Peer, engine};
use crate::data::MIB;
use crate::drive::PAGE;

/// The engine.
pub(super) const ENGINE: Engine = engine::<Lmdb>("LMDB", "lmdb");

pub(super) struct Lmdb {
    env: Env,
    values: Database<U64<NativeEndian>, Bytes, IntegerComparator>,
}

impl Peer for Lmdb {
    fn open(dir: &Path, load: &Load) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        // A value needs a page of its own, and a commit copies what it changes.
        options.map_size(usize::try_from(load.pages * PAGE * 2 + 64 * MIB)?);
        // SAFETY: nobody else touches the files of this directory, which belongs to this run alone.
        let env = unsafe { options.open(dir)? };
        let txn = env.read_txn()?;
        let options = env.database_options().types::<U64<NativeEndian>, Bytes>();
        let options = options.key_comparator::<IntegerComparator>();
        let found = options.open(&txn)?;
        drop(txn);
        let values = if let Some(values) = found {
            values
        } else {
            let mut txn = env.write_txn()?;
            let options = env.database_options().types::<U64<NativeEndian>, Bytes>();
            let values = options.key_comparator::<IntegerComparator>().create(&mut txn)?;
            txn.commit()?;
            values
        };
        Ok(Self { env, values })
    }

    fn put(&self, pages: &[u64], bodies: &[u8], _: bool) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (page, body) in pages.iter().zip(bodies.chunks(BODY)) {
            self.values.put(&mut txn, page, body)?;
        }
        Ok(txn.commit()?)
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn get(&self, page: u64) -> Result<Vec<u8>> {
        let txn = self.env.read_txn()?;
        Ok(self.values.get(&txn, &page)?.with_context(|| format!("there is no page {page}"))?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_committed_is_recovered_in_each_round() {
        super::super::peer::recovers_what_was_committed_in_each_round::<super::Lmdb>();
    }
}
