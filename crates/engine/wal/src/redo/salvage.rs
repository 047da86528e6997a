//! Reads the intact part of a corrupt log, for repairs.
//!
//! Nothing is written. Records are returned in order up to the first lost one. Records behind it
//! are not returned, since nobody can know what came between.

use std::path::Path;

use pagekeeper_io::open_past_cache;

use super::control::{self, DecodedControl};
use super::journal::RecoveredRecord;
use super::lsn::Lsn;
use super::open::recover;
use super::options::RedoOptions;
use crate::Error;

/// The readable part of a log; from [`RedoOptions::salvage`](crate::RedoOptions::salvage).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvagedLog {
    /// The random number that the log got at its creation, if it is readable.
    pub id: Option<u64>,
    /// Its records from the start on, up to the first lost one.
    pub records: Vec<RecoveredRecord>,
    /// The reason why there are no more, unless the log ends there.
    pub fault: Option<Error>,
}

pub(super) fn salvage(options: RedoOptions, directory: &Path, from: Option<Lsn>) -> SalvagedLog {
    let options = options.read_only(true);
    let control = open_past_cache(&*options.io_or_best(), directory.join(control::CONTROL_NAME));
    let id = match control.map(|file| control::read(&*file)) {
        Ok(Ok(DecodedControl::State(state, _))) => Some(state.log_id),
        Ok(Ok(DecodedControl::Nothing | DecodedControl::Version(_)) | Err(_)) | Err(_) => None,
    };
    let mut records = Vec::new();
    let fault = recover(&options, directory, from.map(Lsn::get), &mut |record| records.push(record)).err();
    SalvagedLog { id, records, fault }
}
