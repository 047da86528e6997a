//! Gaps in what the guard can see: what this kernel or the guard's permissions do not offer. They
//! are found once at the start, as sentences for the operator.

use std::os::fd::AsRawFd;
use std::path::Path;

use pagekeeper_kernel::{InspectedFile, Links, ResidencySource, residency};
use rustix::fs::MemfdFlags;
use rustix::thread::CapabilitySet;

/// Returns the gaps, one sentence each.
pub(crate) fn gaps() -> Vec<String> {
    let mut gaps = Vec::new();
    // Any readable file shows which call answers.
    let probe = InspectedFile::open(Path::new("/proc/self/exe"), Links::Follow)
        .and_then(|file| residency(&file, 0..u64::MAX));
    match probe {
        Ok(counts) if counts.source == ResidencySource::Mincore && !has_counts() => gaps.push(
            "this kernel or sandbox has no cachestat(2) (Linux 6.5): residency is read by mincore(2), which is slower and does not see dirty pages"
                .to_owned(),
        ),
        Ok(_) => {}
        Err(error) if error.is_denied() => gaps.push(
            "the residency of files of others can't be seen: run as root, as their owner, or with CAP_FOWNER".to_owned(),
        ),
        Err(error) => gaps.push(error.to_string()),
    }
    let needed = CapabilitySet::SYS_PTRACE;
    if !rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed)) {
        gaps.push(
            "who else reads log files can't be seen of processes of others: run as root or with CAP_SYS_PTRACE"
                .to_owned(),
        );
    }
    gaps
}

/// Returns whether cachestat(2) answers at all. The program's own file does not show it where that
/// is on an overlay, as in a container.
fn has_counts() -> bool {
    let made = |flags| rustix::fs::memfd_create("pagekeeper", MemfdFlags::CLOEXEC | flags);
    // `vm.memfd_noexec=2` demands the flag (Linux 6.3); older kernels do not know it.
    let Ok(memory) = made(MemfdFlags::NOEXEC_SEAL).or_else(|_| made(MemfdFlags::empty())) else {
        return false;
    };
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    InspectedFile::open(Path::new(&path), Links::Follow)
        .and_then(|file| residency(&file, 0..u64::MAX))
        .is_ok_and(|counts| counts.source != ResidencySource::Mincore)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::FileSystem;

    #[test]
    fn that_there_are_counts_is_asked_of_memory_as_of_a_file() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let file = InspectedFile::open(&path, Links::Refuse).unwrap();
        if file.file_system().unwrap() == FileSystem::Overlay {
            return pagekeeper_testing::skip(
                "that_there_are_counts_is_asked_of_memory_as_of_a_file: the temporary directory is on an overlay, which has none",
            );
        }
        assert_eq!(has_counts(), residency(&file, 0..u64::MAX).unwrap().source != ResidencySource::Mincore);
    }
}
