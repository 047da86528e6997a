//! A census that continues if a file system hangs: it restarts without that file system.

use pagekeeper_kernel::hang;
use pagekeeper_observe::{Census, CensusOptions, CensusTick, ObserveError};

/// A census, and what is needed to restart it.
pub(super) struct Counting {
    options: CensusOptions,
    /// `None` until it has started.
    census: Option<Census>,
}

impl Counting {
    /// Starts it with the first walk.
    pub(super) fn start(options: CensusOptions) -> Result<Self, ObserveError> {
        let mut counting = Self { options, census: None };
        counting.renew()?;
        Ok(counting)
    }

    /// Walks all file systems again. If that fails, the old census continues.
    pub(super) fn renew(&mut self) -> Result<(), ObserveError> {
        let census = hang::patiently(|| {
            let options = self.options.clone();
            move || Census::start(options)
        })??;
        self.census = Some(census);
        Ok(())
    }

    /// Brings all figures up to date.
    pub(super) fn tick(&mut self) -> Result<CensusTick, ObserveError> {
        let (census, tick) = hang::patiently(|| {
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
    pub(super) fn census(&mut self) -> Option<&mut Census> {
        self.census.as_mut()
    }
}
