//! A recording as it fits today's files.
//!
//! Logs and tables get new names all the time. A file that is gone is replaced by files of its role
//! that were written since: those that the same pattern of a profile matches in the same directory.
//! Only patterns count that name a log with numbers, or files that are written once and in bulk.
//!
//! Invariants: a file of the recording that exists is never left out. New files of a role are at
//! most twice as many as the recording has. Nothing is opened but directories. Never fails: a
//! directory that can't be read has no new files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::{Inode, Links, first_names, open_directory, stat_in, stat_of_name};
use pagekeeper_policy::FileClass;
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::ranges::append;
use rustix::fs::FileType;

use super::{SavedFile, SavedPages, SavedTime};

/// New files of a role, per file that the recording has of it.
const NEW_PER_OLD_MAX: usize = 2;
/// The most names that are read of a directory.
const NAMES_MAX: usize = 64 << 10;

/// The role of a file: files of one role in one directory replace each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FileRole {
    directory: PathBuf,
    /// The profile and its pattern.
    pattern: (usize, usize),
    /// The name without its number.
    stem: Vec<u8>,
    is_log: bool,
}

/// A file that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PresentFile {
    inode: Inode,
    size: u64,
    changed: SavedTime,
}

/// Today's files: those of the recording, and others of their roles.
type PresentFiles = BTreeMap<PathBuf, PresentFile>;

/// Returns the recording with today's files. A file that has grown where its end was read is listed
/// up to its new end.
pub fn renewed(recording: SavedPages, profiles: &[Profile]) -> SavedPages {
    let roles: HashMap<PathBuf, FileRole> = recording
        .files
        .iter()
        .filter_map(|file| Some((file.path.clone(), role_of(profiles, &file.path)?)))
        .collect();
    let present = present_files(&recording, profiles, &roles);
    renew(recording, &roles, profiles, &present)
}

/// Returns of old entries those extents that are not among the new ones.
pub fn kept_of(old: Vec<SavedFile>, new: &[SavedFile]) -> Vec<SavedFile> {
    let listed = listed_pages(new);
    let rest = |file: SavedFile| {
        let extents = match listed.get(file.path.as_path()) {
            Some(taken) => without(&file.extents, taken),
            None => file.extents,
        };
        (!extents.is_empty()).then_some(SavedFile { extents, ..file })
    };
    old.into_iter().filter_map(rest).collect()
}

/// Returns ranges in ascending order, each byte or page once.
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined = Vec::new();
    for range in ranges {
        append(&mut joined, range, 0);
    }
    joined
}

/// Returns the pages of each path in all its entries: sorted and disjoint.
fn listed_pages(entries: &[SavedFile]) -> HashMap<&Path, Vec<Range<u64>>> {
    let mut listed: HashMap<&Path, Vec<Range<u64>>> = HashMap::new();
    for file in entries {
        listed.entry(&file.path).or_default().extend(file.extents.iter().cloned());
    }
    for pages in listed.values_mut() {
        *pages = joined(std::mem::take(pages));
    }
    listed
}

/// Returns the parts of the extents that are not taken. Both lists are sorted and disjoint.
fn without(extents: &[Range<u64>], taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let first = extents.first().map_or(0, |extent| extent.start);
    let mut next = taken.partition_point(|taken| taken.end <= first);
    let mut left = Vec::new();
    for extent in extents {
        let mut start = extent.start;
        while let Some(taken) = taken.get(next).filter(|taken| taken.start < extent.end) {
            if start < taken.start {
                left.push(start..taken.start);
            }
            start = start.max(taken.end);
            if taken.end > extent.end {
                // The next extent may begin in it.
                break;
            }
            next += 1;
        }
        if start < extent.end {
            left.push(start..extent.end);
        }
    }
    left
}

fn role_of(profiles: &[Profile], path: &Path) -> Option<FileRole> {
    let directory = path.parent()?.to_path_buf();
    profiles.iter().enumerate().find_map(|(profile_index, profile)| {
        let role = |pattern: usize, stem: Vec<u8>, is_log: bool| {
            let directory = directory.clone();
            Some(FileRole { directory, pattern: (profile_index, pattern), stem, is_log })
        };
        if let Some((log, matched)) = profile.log_of(path) {
            let is_numbered =
                matched.number != FileNumber::None && profile.logs.get(log)?.class != FileClass::Text;
            return is_numbered.then(|| role(log, matched.stem().concat(), true)).flatten();
        }
        let file = profile.files.iter().position(|file| file.files.matches(path).is_some())?;
        let is_bulk = profile.files.get(file)?.bulk.is_some();
        is_bulk.then(|| role(profile.logs.len() + file, Vec::new(), false)).flatten()
    })
}

/// Looks at the files of the recording, and lists the directories of its roles.
fn present_files(
    recording: &SavedPages,
    profiles: &[Profile],
    roles: &HashMap<PathBuf, FileRole>,
) -> PresentFiles {
    let mut present = PresentFiles::new();
    for file in &recording.files {
        if !present.contains_key(&file.path) {
            let found = stat_of_name(&file.path).ok().and_then(|stat| present_file(&stat));
            present.extend(found.map(|found| (file.path.clone(), found)));
        }
    }
    let mut directories: Vec<&Path> = roles.values().map(|role| role.directory.as_path()).collect();
    directories.sort_unstable();
    directories.dedup();
    let wanted: HashSet<&FileRole> = roles.values().collect();
    for directory in directories {
        let found = files_of_roles(directory, profiles, &wanted).into_iter();
        let is_new = |(path, file): &(PathBuf, PresentFile)| {
            !roles.contains_key(path) && file.changed >= recording.created
        };
        present.extend(found.filter(is_new));
    }
    present
}

/// Returns the files of these roles in a directory.
fn files_of_roles(directory: &Path, profiles: &[Profile], roles: &HashSet<&FileRole>) -> PresentFiles {
    let Ok(open) = open_directory(directory, Links::RefuseAll) else { return PresentFiles::new() };
    let names = first_names(open.as_fd(), directory, NAMES_MAX).unwrap_or_default();
    let here = stat_of_name(directory).map(|stat| Inode::of(&stat));
    let Ok(here) = here else { return PresentFiles::new() };
    let found = names.into_iter().filter_map(|name| {
        let path = directory.join(&name);
        role_of(profiles, &path).filter(|role| roles.contains(role))?;
        let file = present_file(&stat_in(open.as_fd(), name, here, &path).ok()?)?;
        Some((path, file))
    });
    found.collect()
}

fn present_file(stat: &rustix::fs::Stat) -> Option<PresentFile> {
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then(|| PresentFile {
        inode: Inode::of(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        changed: SavedTime::from_parts(stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
    })
}

/// Replaces what is gone and extends what has grown. Pure.
fn renew(
    recording: SavedPages,
    roles: &HashMap<PathBuf, FileRole>,
    profiles: &[Profile],
    present: &PresentFiles,
) -> SavedPages {
    let SavedPages { created, page_size, files } = recording;
    let mut insertions = insertions(&files, roles, profiles, present, page_size);
    let last_entries: HashMap<PathBuf, usize> =
        files.iter().enumerate().map(|(index, file)| (file.path.clone(), index)).collect();
    let mut renewed = Vec::new();
    for (index, file) in files.into_iter().enumerate() {
        let is_log = roles.get(&file.path).is_some_and(|role| role.is_log);
        let is_last = last_entries.get(&file.path) == Some(&index);
        if let Some(found) = present.get(&file.path) {
            let is_written = is_log && is_last && found.changed >= created;
            renewed.push(grown(file, found, is_written, page_size));
        }
        renewed.extend(insertions.remove(&index).unwrap_or_default());
    }
    SavedPages { created, page_size, files: renewed }
}

/// Returns the new files of each role, each behind the entry of the recording with this index.
fn insertions(
    files: &[SavedFile],
    roles: &HashMap<PathBuf, FileRole>,
    profiles: &[Profile],
    present: &PresentFiles,
    page_size: u64,
) -> HashMap<usize, Vec<SavedFile>> {
    let mut entries: HashMap<&FileRole, Vec<usize>> = HashMap::new();
    for (index, file) in files.iter().enumerate() {
        if let Some(role) = roles.get(&file.path) {
            entries.entry(role).or_default().push(index);
        }
    }
    let mut new: HashMap<FileRole, Vec<(&PathBuf, &PresentFile)>> = HashMap::new();
    for (path, file) in present.iter().filter(|(path, _)| !roles.contains_key(*path)) {
        if let Some(role) = role_of(profiles, path).filter(|role| entries.contains_key(role)) {
            new.entry(role).or_default().push((path, file));
        }
    }
    let mut insertions: HashMap<usize, Vec<SavedFile>> = HashMap::new();
    for (role, found) in new {
        let Some(entries) = entries.get(&role) else { continue };
        let old = OldFiles::of(files, entries, present);
        let found = chosen(found, old.number, role.is_log);
        for (at, (path, file)) in found.iter().enumerate() {
            // Spread over the places of those that went.
            let place = old.places[at * old.places.len() / found.len()];
            insertions.entry(place).or_default().push(old.successor(path, file, page_size));
        }
    }
    insertions
}

/// The recording's files of one role.
struct OldFiles<'a> {
    number: usize,
    /// The entries whose places the new files take: the first of each file that is gone, or the
    /// last entry of all.
    places: Vec<usize>,
    /// The file of which most was read, and these pages of it.
    model: &'a SavedFile,
    pages: Vec<Range<u64>>,
}

impl<'a> OldFiles<'a> {
    /// `entries` are the indices of the role's entries, at least one.
    fn of(files: &'a [SavedFile], entries: &[usize], present: &PresentFiles) -> Self {
        let mut read: BTreeMap<&Path, (usize, Vec<Range<u64>>)> = BTreeMap::new();
        for &index in entries {
            let file = &files[index];
            read.entry(&file.path).or_insert((index, Vec::new())).1.extend(file.extents.iter().cloned());
        }
        let gone = read.iter().filter(|(path, _)| !present.contains_key(**path));
        let mut places: Vec<usize> = gone.map(|(_, (first, _))| *first).collect();
        places.sort_unstable();
        if places.is_empty() {
            places.extend(entries.last());
        }
        let bytes = |pages: &[Range<u64>]| pages.iter().map(|pages| pages.end - pages.start).sum::<u64>();
        let number = read.len();
        let most = read.into_values().max_by_key(|(_, pages)| bytes(pages));
        let (model, pages) = most.unwrap_or((entries[0], Vec::new()));
        Self { number, places, model: &files[model], pages }
    }

    /// Returns the entry of a new file, of which the same is read as of the model: what was read at
    /// its end is read at the new one's end.
    fn successor(&self, path: &Path, file: &PresentFile, page_size: u64) -> SavedFile {
        let (old_end, end) = (self.model.size.div_ceil(page_size), file.size.div_ceil(page_size));
        let fit = |pages: &Range<u64>| match pages {
            pages if pages.end < old_end => pages.start.min(end)..pages.end.min(end),
            pages if pages.start == 0 => 0..end,
            pages => end.saturating_sub(old_end.saturating_sub(pages.start))..end,
        };
        let pages: Vec<_> = self.pages.iter().map(fit).filter(|pages| pages.start < pages.end).collect();
        let extents = joined(pages);
        SavedFile {
            path: path.to_path_buf(),
            inode: file.inode,
            size: file.size,
            changed: file.changed,
            last_used: file.changed,
            extents,
        }
    }
}

/// Chooses the new files of a role, in the order of their names: the latest, and of a log none
/// behind the one that was written last, since those are spare files.
fn chosen<'a>(
    mut found: Vec<(&'a PathBuf, &'a PresentFile)>,
    old: usize,
    is_log: bool,
) -> Vec<(&'a PathBuf, &'a PresentFile)> {
    let order = |path: &Path| (path.as_os_str().len(), path.to_path_buf());
    found.sort_by_cached_key(|(path, _)| order(path));
    if is_log && let Some(newest) = (0..found.len()).max_by_key(|at| found[*at].1.changed) {
        found.truncate(newest + 1);
    }
    let surplus = found.len().saturating_sub(old * NEW_PER_OLD_MAX);
    found.split_off(surplus)
}

/// Returns the entry of a file that exists, as it is now. It is listed up to its new end if its
/// old end was read, or if `is_written` says that a log was written since.
fn grown(file: SavedFile, found: &PresentFile, is_written: bool, page_size: u64) -> SavedFile {
    let (old_end, end) = (file.size.div_ceil(page_size), found.size.div_ceil(page_size));
    let mut extents = file.extents;
    if let Some(last) = extents.last_mut()
        && (last.end >= old_end || is_written)
    {
        last.end = last.end.max(end);
    }
    SavedFile { extents, inode: found.inode, size: found.size, changed: found.changed, ..file }
}

#[cfg(test)]
mod tests;
