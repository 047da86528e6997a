//! Gaps in what the guard can see: what this kernel or the guard's permissions do not offer. They
//! are found once at the start, as sentences for the operator.

use std::path::Path;

use pagekeeper_kernel::{InspectedFile, Links, ResidencySource, has_cachestat, residency};
use rustix::thread::CapabilitySet;

/// Returns the gaps, one sentence each.
pub(crate) fn gaps() -> Vec<String> {
    let mut gaps = Vec::new();
    // Any readable file shows which call answers.
    let probe = InspectedFile::open(Path::new("/proc/self/exe"), Links::Follow)
        .and_then(|file| residency(&file, 0..u64::MAX));
    match probe {
        Ok(counts) if counts.source == ResidencySource::Mincore && !has_cachestat() => gaps.push(
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
            "readers of log files among other users' processes can't be seen: run as root or with CAP_SYS_PTRACE"
                .to_owned(),
        );
    }
    gaps
}
