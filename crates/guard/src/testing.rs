//! Helpers of this crate's own tests.

use std::path::Path;
use std::sync::Arc;

pub(crate) use pagekeeper_testing::disk_dir;

use crate::Profile;

/// The built-in profiles.
pub(crate) fn profiles() -> Vec<Arc<Profile>> {
    Profile::built_in().into_iter().map(Arc::new).collect()
}

/// A process in a fake `/proc`: its name, parent and what its descriptors lead to.
pub(crate) fn fake_process(proc: &Path, pid: u32, name: &str, parent: u32, files: &[&str]) {
    let dir = proc.join(pid.to_string());
    std::fs::create_dir_all(dir.join("fd")).unwrap();
    std::fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
    let stat = format!("{pid} ({name}) S {parent} 1 1 0 -1 0 {}\n", "0 ".repeat(40));
    std::fs::write(dir.join("stat"), stat).unwrap();
    for (fd, target) in files.iter().enumerate() {
        std::os::unix::fs::symlink(target, dir.join(format!("fd/{fd}"))).unwrap();
    }
}
