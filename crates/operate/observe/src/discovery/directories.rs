//! Finds the processes that directories named by the user belong to.
//!
//! A directory belongs to the database with the best claim to it ([`ClaimStrength`], as for the
//! guard), among those that have one of its files open. Otherwise it belongs to the process that
//! writes to its files and has most of them open. A process that only reads them (a backup, another
//! user) is not an owner.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_catalog::{ClaimStrength, Profile, ProfileMatch, one_user, recognise};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::stat_of_name;

use crate::discovery::subjects::ObservedDatabase;
use crate::files::FileSet;

/// Finds the process of each directory, and merges directories that belong to the same process.
pub(crate) fn find_processes(
    proc: &ProcRoot,
    subjects: &mut Vec<ObservedDatabase>,
    files: &mut FileSet,
    profiles: &[Arc<Profile>],
) {
    for (index, subject) in subjects.iter_mut().enumerate() {
        let Some((pid, profile)) = owner(proc, files, index, &subject.directories[0], profiles) else {
            continue;
        };
        let before = Arc::clone(&subject.profile);
        subject.take_process(proc, pid, profile.unwrap_or_else(|| Arc::clone(&before)));
        if subject.profile.name != before.name {
            let exists = |path: &Path| stat_of_name(path).is_ok();
            for file in files.of_database(index) {
                file.class = subject.profile.class_beside(&file.path, exists);
            }
        }
    }
    let mut at = 0;
    while at < subjects.len() {
        let pid = subjects[at].pid;
        match subjects[..at].iter().position(|other| other.pid == pid).filter(|_| pid.is_some()) {
            Some(first) => {
                let same = subjects.remove(at);
                subjects[first].directories.extend(same.directories);
                files.merge_databases(first, at);
            }
            None => at += 1,
        }
    }
}

fn owner(
    proc: &ProcRoot,
    files: &mut FileSet,
    index: usize,
    directory: &Path,
    profiles: &[Arc<Profile>],
) -> Option<(u32, Option<Arc<Profile>>)> {
    let mut writers: HashMap<u32, usize> = HashMap::new();
    let mut readers: HashMap<u32, usize> = HashMap::new();
    for opener in files.of_database(index).flat_map(|file| &file.openers) {
        let by = if opener.kind.writes() { &mut writers } else { &mut readers };
        *by.entry(opener.pid).or_default() += opener.count;
    }
    // No user has the number -1.
    let user = stat_of_name(directory).map_or(u32::MAX, |found| found.st_uid);
    let recognised = writers.keys().chain(readers.keys()).filter_map(|&pid| {
        let ProfileMatch { profile, certain } = recognise(proc, pid, profiles)?;
        let of = proc.users(pid).ok().and_then(one_user)?;
        let strength = ClaimStrength::of_claim(Some(of), user, writers.contains_key(&pid), certain)?;
        // For a database with workers it is the process that started them.
        let parent = proc.parent(pid).ok().filter(|&parent| {
            recognise(proc, parent, profiles).is_some_and(|of| of.profile.name == profile.name)
        });
        Some((strength, parent.unwrap_or(pid), profile))
    });
    // Among equals the lowest pid, so that every snapshot makes the same choice.
    let best = recognised.max_by_key(|(strength, pid, _)| (*strength, Reverse(*pid)));
    best.map(|(_, pid, profile)| (pid, Some(profile))).or_else(|| {
        let busiest = writers.iter().max_by_key(|&(pid, count)| (*count, Reverse(*pid)));
        busiest.map(|(pid, _)| (*pid, None))
    })
}
