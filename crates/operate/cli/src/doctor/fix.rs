//! `--fix`: evicts pages that are left in the page cache from files used with direct I/O.
//!
//! Invariants: no byte of a file can change. Three kinds of files are left alone:
//! * files that a process may read or write through the page cache now,
//! * files that a program other than their database read so during the watch,
//! * files whose profile does not say that their database reads them by direct I/O only.
//!
//! Fails file by file.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pagekeeper_doctor::{MixedWith, mixed_with};
use pagekeeper_kernel::{Error, Inode, ReleaseOptions, Result, release};
use pagekeeper_observe::{File, Snapshot};
use pagekeeper_text::{Size, escaped, unescaped};
use serde::{Serialize, Serializer};

use crate::evict::Figures;
use crate::output;
use crate::problems::{Problem, Problems};

/// The result for one file.
#[derive(Debug, Serialize)]
pub(super) struct Fixed {
    #[serde(serialize_with = "lossy")]
    path: PathBuf,
    #[serde(flatten)]
    figures: Figures,
    /// Why it was left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_alone: Option<&'static str>,
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&unescaped(path))
}

/// Evicts the rest of files that were just inspected, except for those in `read`, which were read during the
/// watch. Returns the results and the failures.
pub(super) fn fix(snapshot: &Snapshot, read: &HashSet<Inode>) -> (Vec<Fixed>, Vec<Problem>) {
    let problems = Problems::default();
    let mut all = Vec::new();
    for file in &snapshot.files {
        let Some(mixed_with) = mixed_with(snapshot, file) else { continue };
        match evict(file, mixed_with, read.contains(&file.inode)) {
            Ok(fixed) => all.extend(fixed),
            Err(error) => problems.note(&error),
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    (all, problems.into_sorted())
}

/// Evicts one file's pages; `None` if none is resident.
fn evict(file: &File, mixed_with: MixedWith, was_read: bool) -> Result<Option<Fixed>> {
    let resident = file.resident();
    if resident == 0 {
        return Ok(None);
    }
    let left_alone = |why| {
        let figures = Figures { resident_before: resident, ..Figures::default() };
        Ok(Some(Fixed { path: file.path.clone(), figures, left_alone: Some(why) }))
    };
    match mixed_with {
        MixedWith::Writer => return left_alone("somebody may write it through the page cache"),
        MixedWith::Reader => return left_alone("somebody may read it through the page cache"),
        MixedWith::OnPurpose => {
            return left_alone("its database may read it through the page cache, too");
        }
        MixedWith::Leftover if was_read => {
            return left_alone("it was read through the page cache while watching");
        }
        MixedWith::Leftover => {}
    }
    let opened = match file.open() {
        Err(Error::OtherFile { .. } | Error::SymbolicLink { .. }) => {
            return left_alone("another file has its name now");
        }
        other => other?,
    };
    let figures = release(&opened, 0..u64::MAX, &ReleaseOptions::default())?.into();
    Ok(Some(Fixed { path: file.path.clone(), figures, left_alone: None }))
}

/// Shows for each file how much was evicted, and how much stayed and why.
pub(super) fn show(all: &[Fixed], out: &mut impl Write) -> io::Result<()> {
    let mut evicted = 0;
    out.write_all(b"\n")?;
    for Fixed { path, figures, left_alone } in all {
        write!(out, "{}", escaped(path))?;
        match (left_alone, figures.kept_in_words()) {
            (Some(why), _) => write!(out, ": left alone: {why}")?,
            (None, kept) => {
                let (released, before) = (Size(figures.released), Size(figures.resident_before));
                write!(out, ": evicted {released} of {before} resident")?;
                if let Some(kept) = kept {
                    write!(out, "; {kept}")?;
                }
                evicted += 1;
            }
        }
        out.write_all(b"\n")?;
    }
    if all.is_empty() {
        return writeln!(out, "Nothing to evict: no file used with direct I/O has pages left.");
    }
    let released: u64 = all.iter().map(|fixed| fixed.figures.released).sum();
    writeln!(out, "Evicted {} of {}.", Size(released), output::files(evicted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::{InspectedFile, Links, residency};
    use pagekeeper_testing::{Opens, disk_dir};

    /// Returns a file of 64 KiB that was just written.
    fn written(path: &Path) -> File {
        std::fs::write(path, vec![1; 1 << 16]).unwrap();
        let opened = InspectedFile::open(path, Links::Refuse).unwrap();
        File {
            inode: Inode { dev: 1, ..opened.inode() },
            stat_inode: opened.inode(),
            path: path.to_path_buf(),
            reach: path.to_path_buf(),
            size: 1 << 16,
            database: None,
            class: None,
            residency: Some(residency(&opened, 0..u64::MAX).unwrap()),
            openers: Vec::new(),
        }
    }

    #[test]
    fn what_somebody_may_read_is_left_alone() {
        let dir = disk_dir();
        let file = written(&dir.path().join("table"));
        for (mixed_with, was_read) in [
            (MixedWith::Writer, false),
            (MixedWith::Reader, false),
            (MixedWith::OnPurpose, false),
            (MixedWith::Leftover, true),
        ] {
            let fixed = evict(&file, mixed_with, was_read).unwrap().unwrap();
            assert!(fixed.left_alone.is_some_and(|why| why.contains("through the page cache")), "{fixed:?}");
            assert_eq!(fixed.figures.released, 0, "{mixed_with:?}");
        }
        let resident = residency(&file.open().unwrap(), 0..u64::MAX).unwrap().resident;
        assert_eq!(resident, file.residency.unwrap().resident);
        assert_eq!(evict(&file, MixedWith::Leftover, false).unwrap().unwrap().left_alone, None);
    }

    #[test]
    fn what_took_the_place_of_a_file_is_neither_opened_nor_evicted() {
        let dir = disk_dir();
        let [path, secret] = ["table", "secret"].map(|name| dir.path().join(name));
        std::fs::write(&secret, vec![2; 1 << 16]).unwrap();
        let file = written(&path);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        let opens = Opens::of(&secret);
        let fixed = evict(&file, MixedWith::Leftover, false).unwrap().unwrap();
        assert_eq!((fixed.left_alone, opens.any()), (Some("another file has its name now"), false));
    }
}
