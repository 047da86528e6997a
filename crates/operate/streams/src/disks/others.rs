//! Computes the share of each disk that a task of this process leaves to others, from the kernel's
//! counts of their requests.
//!
//! Invariants: requests of this process never count as others' ([`DiskUse`]). Follows no
//! process and holds none.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use pagekeeper_policy::disk_contention::{DiskContention, YieldShare};
use pagekeeper_policy::pacer::nanoseconds;
use pagekeeper_trace::TraceError;
use pagekeeper_trace::disk_use::DiskUse;
use pagekeeper_trace::page_events::{FollowedNames, PageEvents};

use crate::Unavailable;
use crate::disks::turns::seen;

/// The requests of others to all disks, from its creation until it is dropped.
pub struct OthersOnDisks {
    source: DiskUse,
    /// Follows no process; the counts need its BPF map.
    _events: PageEvents,
    disks: HashMap<u64, DiskContention>,
    last_look: Instant,
}

impl OthersOnDisks {
    /// Starts to count. Needs the same permissions and kernel features as following streams.
    ///
    /// ```no_run
    /// use pagekeeper_streams::OthersOnDisks;
    ///
    /// let mut others = OthersOnDisks::start()?;
    /// let disk = 0x800; // 8:0
    /// loop {
    ///     std::thread::sleep(std::time::Duration::from_millis(10));
    ///     others.look();
    ///     println!("{:?}", others.share(disk));
    /// }
    /// # Ok::<(), pagekeeper_streams::Unavailable>(())
    /// ```
    pub fn start() -> Result<Self, Unavailable> {
        let unavailable = |error: TraceError| Unavailable(error.to_string());
        let events = PageEvents::open(&FollowedNames::default()).map_err(unavailable)?;
        let source = DiskUse::open(&events).map_err(unavailable)?;
        Ok(Self { source, _events: events, disks: HashMap::new(), last_look: Instant::now() })
    }

    /// Records the requests since the last look. To be called about every 10 ms while the task
    /// works.
    pub fn look(&mut self) {
        let now = Instant::now();
        let since = nanoseconds(now.duration_since(std::mem::replace(&mut self.last_look, now)));
        let Ok(window) = self.source.take() else { return self.disks.clear() };
        for (disk, requests) in &window.others {
            self.disks.entry(*disk).or_default().others(seen(&requests.waited_for(), since));
        }
    }

    /// Returns the share to leave to others on a disk (`st_rdev` of the whole disk).
    pub fn share(&self, disk: u64) -> YieldShare {
        self.disks.get(&disk).map_or(YieldShare::NONE, DiskContention::share)
    }
}

impl fmt::Debug for OthersOnDisks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OthersOnDisks").field("disks", &self.disks).finish_non_exhaustive()
    }
}
