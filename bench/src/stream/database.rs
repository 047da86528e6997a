//! The common part of both servers: hot files, and a load that reads them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::peers::run as run_process;

/// A server under measurement: filled, idle, and in its cgroup.
pub(super) trait DatabaseServer {
    /// Returns its name in cases.
    fn name(&self) -> &'static str;

    /// Returns the files that its load currently reads.
    fn hot(&self) -> Result<Vec<PathBuf>>;

    /// Lets four clients read single rows for this many seconds and returns transactions per
    /// second.
    fn load(&self, seconds: u64) -> Result<f64>;
}

/// Returns all non-empty files below a directory, in order of their paths.
pub(super) fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("can't list {}", dir.display()))? {
        let path = entry?.path();
        let metadata = path.symlink_metadata().with_context(|| format!("can't stat {}", path.display()))?;
        if metadata.is_dir() {
            files.extend(files_below(&path)?);
        } else if metadata.is_file() && metadata.len() > 0 {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Creates `home` in `parent` for the server's user.
pub(super) fn admit_server_user(parent: &Path, home: &Path, user: &str) -> Result<()> {
    std::fs::create_dir(home).context("can't make the server's directory")?;
    for path in [parent, home] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .context("can't let the server's user in")?;
    }
    run_process(Command::new("chown").arg(format!("{user}:")).arg(home))?;
    Ok(())
}

/// Returns the number that follows these words.
pub(super) fn number_after(text: &str, words: &str) -> Option<f64> {
    let (_, rest) = text.split_once(words)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_after_their_words() {
        let said =
            "number of failed transactions: 0 (0.000%)\ntps = 40812.5 (without initial connection time)\n";
        assert_eq!(number_after(said, "tps = "), Some(40812.5));
        assert_eq!(number_after(said, "transactions: "), Some(0.0));
        assert_eq!(number_after(said, "rate = "), None);
        assert_eq!(number_after("tps = none", "tps = "), None);
    }
}
