//! A fake `/proc`, in a directory.

use std::path::Path;

/// A process in a fake `/proc`: its name, parent and what its descriptors lead to. Its root is this process's.
///
/// # Panics
///
/// Where it can't be made.
pub fn fake_process(proc: &Path, pid: u32, name: &str, parent: u32, files: &[&str]) {
    let dir = proc.join(pid.to_string());
    std::fs::create_dir_all(dir.join("fd")).unwrap();
    std::fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
    let stat = format!("{pid} ({name}) S {parent} 1 1 0 -1 0 {}\n", "0 ".repeat(40));
    std::fs::write(dir.join("stat"), stat).unwrap();
    // Of a process that becomes another it is there.
    let _ = std::os::unix::fs::symlink("/", dir.join("root"));
    for (fd, target) in files.iter().enumerate() {
        std::os::unix::fs::symlink(target, dir.join(format!("fd/{fd}"))).unwrap();
    }
}
