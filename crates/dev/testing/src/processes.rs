//! A fake `/proc` in a directory.

use std::path::Path;

/// Creates a process in a fake `/proc`, with its name, its parent and the targets of its
/// descriptors. Its root is this process's root.
///
/// # Panics
///
/// If it cannot be created.
pub fn fake_process(proc: &Path, pid: u32, name: &str, parent: u32, files: &[&str]) {
    let dir = proc.join(pid.to_string());
    std::fs::create_dir_all(dir.join("fd")).unwrap();
    std::fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
    let stat = format!("{pid} ({name}) S {parent} 1 1 0 -1 0 {}\n", "0 ".repeat(40));
    std::fs::write(dir.join("stat"), stat).unwrap();
    // If the process existed before, under another name, so does the link.
    let _ = std::os::unix::fs::symlink("/", dir.join("root"));
    for (fd, target) in files.iter().enumerate() {
        std::os::unix::fs::symlink(target, dir.join(format!("fd/{fd}"))).unwrap();
    }
}
