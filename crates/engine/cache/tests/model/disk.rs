//! The disks that the model runs on: one interface for a simulated disk and a directory.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pagekeeper_cache::{Backend, CacheOptions};
use pagekeeper_simdisk::{Fault, RandomFaults, SimDisk, Times};
use tempfile::TempDir;

use crate::support::{bytes, write_patterned};
use pagekeeper_testing::disk_dir;

/// A disk whose files can be changed under the cache.
pub(crate) trait Disk: Sync {
    /// Makes a cache read from this disk.
    fn set_up(&self, options: CacheOptions) -> CacheOptions;

    fn path(&self, file: usize) -> PathBuf;

    /// Puts a new file in the place of an existing one, or of none.
    fn replace(&self, path: &Path, seed: u64, len: u64);

    fn remove(&self, path: &Path);

    /// Grows or truncates a file of this seed from one length to another.
    fn resize(&self, path: &Path, seed: u64, lengths: (u64, u64));

    /// Injects a fault; false if this disk has no faults.
    fn inject(&self, path: &Path, range: Range<u64>, fault: Fault, times: Times) -> bool;

    fn heal(&self, path: &Path);

    /// Does one background read; false if there is none to do on this disk.
    fn step(&self) -> bool;
}

pub(crate) struct SimulatedDisk(SimDisk);

impl SimulatedDisk {
    /// Creates a disk whose reads are randomly short and interrupted, which nobody may notice.
    pub(crate) fn new(seed: u64) -> Self {
        let random = RandomFaults { short_per_mille: 30, interrupted_per_mille: 30, failing_per_mille: 0 };
        Self(SimDisk::builder().seed(seed).by_steps().random_faults(random).build())
    }
}

impl Disk for SimulatedDisk {
    fn set_up(&self, options: CacheOptions) -> CacheOptions {
        options.io(std::sync::Arc::new(self.0.clone()))
    }

    fn path(&self, file: usize) -> PathBuf {
        format!("/{file}").into()
    }

    fn replace(&self, path: &Path, seed: u64, len: u64) {
        // Two steps in place of rename(2): nobody reads in between.
        let _ = self.0.remove(path);
        self.0.create_patterned(path, len, seed).unwrap();
    }

    fn remove(&self, path: &Path) {
        self.0.remove(path).unwrap();
    }

    fn resize(&self, path: &Path, _: u64, (from, to): (u64, u64)) {
        if to < from { self.0.truncate(path, to) } else { self.0.grow(path, to) }.unwrap();
    }

    fn inject(&self, path: &Path, range: Range<u64>, fault: Fault, times: Times) -> bool {
        self.0.inject(path, range, fault, times).unwrap();
        true
    }

    fn heal(&self, path: &Path) {
        self.0.heal(path).unwrap();
    }

    fn step(&self) -> bool {
        self.0.step()
    }
}

pub(crate) struct OnDisk {
    backend: Backend,
    directory: TempDir,
}

impl OnDisk {
    pub(crate) fn new(backend: Backend) -> Self {
        Self { backend, directory: disk_dir() }
    }
}

impl Disk for OnDisk {
    fn set_up(&self, options: CacheOptions) -> CacheOptions {
        options.backend(self.backend)
    }

    fn path(&self, file: usize) -> PathBuf {
        self.directory.path().join(file.to_string())
    }

    fn replace(&self, path: &Path, seed: u64, len: u64) {
        let new = path.with_extension("new");
        std::fs::write(&new, bytes(seed, 0, usize::try_from(len).unwrap())).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    fn remove(&self, path: &Path) {
        std::fs::remove_file(path).unwrap();
    }

    fn resize(&self, path: &Path, seed: u64, (from, to): (u64, u64)) {
        if to < from {
            std::fs::File::options().write(true).open(path).unwrap().set_len(to).unwrap();
        } else {
            write_patterned(path, seed, from..to);
        }
    }

    fn inject(&self, _: &Path, _: Range<u64>, _: Fault, _: Times) -> bool {
        false
    }

    fn heal(&self, _: &Path) {}

    fn step(&self) -> bool {
        false
    }
}
