//! The kernel's dirty limits, lowered for a while.
//!
//! Each limit is a ratio or a number of bytes: writing one sets the other to 0, and 0 cannot be written as bytes. So
//! the form that was in force is the one to restore.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The previous limits.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Files, and their values to restore.
    before: Vec<(PathBuf, String)>,
}

impl Limits {
    /// Sets both limits in bytes, and restores the old ones at the end.
    pub(crate) fn lower(background: u64, limit: u64) -> Result<Self> {
        Self::lower_in(Path::new("/proc/sys/vm"), background, limit)
    }

    fn lower_in(directory: &Path, background: u64, limit: u64) -> Result<Self> {
        let pairs = [("dirty_background", background), ("dirty", limit)];
        let mut before = Vec::new();
        for (name, _) in pairs {
            let [bytes, ratio] = ["bytes", "ratio"].map(|form| directory.join(format!("{name}_{form}")));
            let in_force = match read(&bytes)?.as_str() {
                "0" => (ratio.clone(), read(&ratio)?),
                set => (bytes.clone(), set.to_owned()),
            };
            before.push(in_force);
        }
        // Changes from here on are undone by the drop.
        let limits = Self { before };
        for (name, value) in pairs {
            let path = directory.join(format!("{name}_bytes"));
            std::fs::write(&path, value.to_string())
                .with_context(|| format!("can't set {}; this bench needs root", path.display()))?;
        }
        Ok(limits)
    }
}

fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

impl Drop for Limits {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            if let Err(error) = std::fs::write(path, value) {
                eprintln!("pagekeeper-bench: can't set {} back to {value}: {error}", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_that_was_in_force_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &str| std::fs::write(directory.path().join(name), value).unwrap();
        write("dirty_background_bytes", "0\n");
        write("dirty_background_ratio", "10\n");
        write("dirty_bytes", "1048576\n");
        write("dirty_ratio", "0\n");
        let read = |name: &str| read(&directory.path().join(name)).unwrap();
        let limits = Limits::lower_in(directory.path(), 8, 16).unwrap();
        assert_eq!((read("dirty_background_bytes"), read("dirty_bytes")), ("8".to_owned(), "16".to_owned()));
        // As the kernel does.
        write("dirty_background_ratio", "0\n");
        drop(limits);
        assert_eq!(
            (read("dirty_background_ratio"), read("dirty_bytes")),
            ("10".to_owned(), "1048576".to_owned())
        );
    }

    #[test]
    fn what_is_not_there_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let error = Limits::lower_in(directory.path(), 8, 16).unwrap_err();
        assert!(error.to_string().contains("dirty_background_bytes"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
