//! A census that continues if a file system hangs: it restarts without that file system.

use pagekeeper_kernel::hang;

use super::{Census, CensusOptions, CensusTick};
use crate::ObserveError;

/// A census, and what is needed to restart it.
#[derive(Debug)]
pub struct PatientCensus {
    options: CensusOptions,
    /// `None` until it has started.
    census: Option<Census>,
}

impl PatientCensus {
    /// Starts it with the first walk.
    ///
    /// # Errors
    ///
    /// If the census can't start, or too many file systems do not answer.
    pub fn start(options: CensusOptions) -> Result<Self, ObserveError> {
        let mut patient = Self { options, census: None };
        patient.renew()?;
        Ok(patient)
    }

    /// Walks all file systems again. If that fails, the old census continues.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn renew(&mut self) -> Result<(), ObserveError> {
        let census = hang::run_job(|| {
            let options = self.options.clone();
            move || Census::start(options)
        })??;
        self.census = Some(census);
        Ok(())
    }

    /// Brings all figures up to date.
    ///
    /// # Errors
    ///
    /// As [`Census::tick`].
    pub fn tick(&mut self) -> Result<CensusTick, ObserveError> {
        let (census, tick) = hang::run_job(|| {
            let (census, options) = (self.census.take(), self.options.clone());
            move || {
                let mut census = census.map_or_else(|| Census::start(options), Ok)?;
                let tick = census.tick();
                Ok::<_, ObserveError>((census, tick))
            }
        })??;
        self.census = Some(census);
        tick
    }

    /// Returns the census, unless it failed.
    pub fn census(&mut self) -> Option<&mut Census> {
        self.census.as_mut()
    }
}
