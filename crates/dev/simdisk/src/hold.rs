//! Holds requests back, so that tests order the events of several threads.

use std::sync::Arc;

use crate::request::SharedDisk;

/// Stops reads and writes of a range, and syncs, until it is dropped.
///
/// ```
/// use pagekeeper_io::{Access, Io};
/// use pagekeeper_simdisk::SimDisk;
///
/// let disk = SimDisk::new();
/// disk.create("/file", [7; 4096])?;
/// let file = disk.open("/file".as_ref(), Access::Buffered)?;
/// let hold = disk.hold("/file", 0..4096)?;
/// let read = std::thread::scope(|scope| {
///     let reader = scope.spawn(|| file.read_at(0, &mut [0; 4096]));
///     hold.wait_for(1); // the read has come, and will not end …
///     disk.truncate("/file", 100)?;
///     drop(hold); // … before now
///     reader.join().unwrap()
/// })?;
/// assert_eq!(read, 100);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug)]
pub struct Hold {
    shared: Arc<SharedDisk>,
    number: u64,
}

impl Hold {
    pub(crate) fn new(shared: Arc<SharedDisk>, number: u64) -> Self {
        Self { shared, number }
    }

    /// Returns how many requests it stops now.
    pub fn held(&self) -> usize {
        self.shared.lock().held_by(self.number)
    }

    /// Waits until it stops at least this many requests.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.shared.lock();
        while state.held_by(self.number) < count {
            state = self.shared.wait(state);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.lock().release(self.number);
        self.shared.changed();
    }
}
