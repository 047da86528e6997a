//! The last source: no events, only the residency of the chosen files, sampled at each reading.
//!
//! Invariants: no descriptor is held between readings. Only the difference between two readings is
//! seen, not pages that entered and left in between. A file that is gone, or was replaced by
//! another, has lost all its pages.

use std::path::PathBuf;

use super::options::traced_inode;
use super::period_sums::PeriodSums;
use super::{PageFilter, PageFlow, PageTotals, TraceError, TraceOptions};
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::{Inode, InspectedFile, Links, page_size, residency};

/// A file, and its resident bytes at the last sample.
#[derive(Debug)]
struct SampledFile {
    path: PathBuf,
    seen: Option<(Inode, u64)>,
}

/// The files that are sampled.
#[derive(Debug)]
pub(super) struct PollingSource {
    roots: SysRoots,
    files: Vec<SampledFile>,
}

impl PollingSource {
    pub(super) fn start(options: &TraceOptions) -> Result<Self, TraceError> {
        let paths = match &options.filter {
            PageFilter::Files(paths) if options.pages => paths.as_slice(),
            PageFilter::Files(_) | PageFilter::Devices(_) | PageFilter::Everything => &[],
        };
        let mut source = Self { roots: options.roots.clone(), files: Vec::new() };
        for path in paths {
            let seen = Some(source.sample(path)?);
            source.files.push(SampledFile { path: path.clone(), seen });
        }
        Ok(source)
    }

    /// Returns whether there are files to sample.
    pub(super) fn watches(&self) -> bool {
        !self.files.is_empty()
    }

    fn sample(&self, path: &PathBuf) -> pagekeeper_kernel::Result<(Inode, u64)> {
        let file = InspectedFile::open(path, Links::Follow)?;
        let resident = residency(&file, 0..u64::MAX)?.resident;
        Ok((traced_inode(&self.roots, &file, path)?, resident))
    }

    /// Adds the changes since the last reading.
    pub(super) fn read(&mut self, sums: &mut PeriodSums) -> Result<(), TraceError> {
        for at in 0..self.files.len() {
            let now = match self.sample(&self.files[at].path) {
                Ok(now) => Some(now),
                Err(error) if error.is_gone() => None,
                Err(error) => return Err(error.into()),
            };
            let then = std::mem::replace(&mut self.files[at].seen, now);
            let same = matches!((then, now), (Some((old, _)), Some((new, _))) if old == new);
            let count = |file: Option<(Inode, u64)>| file.map_or(0, |(_, resident)| resident);
            if same {
                add_change(
                    sums,
                    now,
                    count(now).saturating_sub(count(then)),
                    count(then).saturating_sub(count(now)),
                );
            } else {
                add_change(sums, then, 0, count(then));
                add_change(sums, now, count(now), 0);
            }
        }
        Ok(())
    }
}

fn add_change(sums: &mut PeriodSums, file: Option<(Inode, u64)>, added: u64, removed: u64) {
    // The number of folios is not known: pages are counted.
    let totals = |bytes: u64| PageTotals { folios: bytes / page_size(), bytes };
    if let Some((file, _)) = file
        && added + removed > 0
    {
        sums.add_pages(file, None, &PageFlow { added: totals(added), removed: totals(removed) });
    }
}
