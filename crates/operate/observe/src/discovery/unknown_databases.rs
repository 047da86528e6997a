//! Finds processes that no profile knows, but that hold or read as much through the page cache as a
//! large database.
//!
//! Invariants: this module only reads. Only processes whose counters show that much I/O have files
//! opened, at most [`OPENED_FILES_MAX`] each. Programs that are known to stream, other known
//! programs ([`OTHER_PROGRAMS`]), and files that a found database holds, do not count. One user's
//! processes take at most [`PER_PARTY_MAX`] places, and do not keep others' from being inspected.

use std::collections::{BTreeMap, HashSet};

use pagekeeper_catalog::{Party, streaming_programs};
use pagekeeper_kernel::process::{ProcRoot, ProcessIo};
use pagekeeper_kernel::{ExpectedFile, Inode, InspectedFile};
use pagekeeper_text::unescaped;

use crate::files::opened_files::{OpenedFile, opened_by};
use crate::files::sample::FileSample;

/// Processes that moved fewer bytes between storage and memory since their start are not inspected.
const MOVED_BYTES_MIN: u64 = 256 << 20;
/// Maximum number of processes inspected, those that moved most of each party.
const INSPECTED_PROCESSES_MAX: usize = 64;
/// Maximum number of descriptors and mappings read of one process.
const OPENED_FILES_MAX: usize = 4096;
/// Smaller files do not count.
const FILE_BYTES_MIN: u64 = 1 << 20;
/// Page cache that a process must hold to be found.
const HELD_BYTES_MIN: u64 = 256 << 20;
/// Total size of the files that a process must have read several times over to be found.
const REREAD_BYTES_MIN: u64 = 64 << 20;
/// The number of times.
const REREAD_TIMES: u64 = 4;
/// Maximum number of processes found, the largest first.
const FOUND_MAX: usize = 4;
/// Maximum of these of one party.
const PER_PARTY_MAX: usize = 2;

/// Beginnings of the names of programs that hold or read much, and are no databases: the journal,
/// virtual machines and browsers.
const OTHER_PROGRAMS: [&str; 21] = [
    "systemd-journal",
    "qemu",
    "kvm",
    "cloud-hyperviso",
    "firecracker",
    "VBoxHeadless",
    "VirtualBoxVM",
    "vmware-vmx",
    "firefox",
    "GeckoMain",
    "Web Content",
    "Isolated Web Co",
    "Privileged Cont",
    "chrome",
    "chromium",
    "msedge",
    "brave",
    "vivaldi",
    "epiphany",
    "WebKitWebProces",
    "WebKitNetworkPr",
];

/// The files of a process.
struct Candidate {
    pid: u32,
    io: ProcessIo,
    files: Vec<OpenedFile>,
}

impl Candidate {
    /// Returns the resident bytes of its files, without those of others; `None` if it is no large
    /// database.
    fn resident(&self, taken: &HashSet<Inode>) -> Option<u64> {
        let own = self.files.iter().filter(|file| !taken.contains(&file.inode));
        let (mut resident, mut size) = (0, 0);
        for file in own {
            size += file.size;
            resident += resident_of(file);
        }
        let has_reread = size >= REREAD_BYTES_MIN && self.io.from_storage / REREAD_TIMES >= size;
        (resident >= HELD_BYTES_MIN || has_reread).then_some(resident)
    }
}

/// Returns these processes with their start times. `known` are the processes of databases that were
/// found, and `taken` the files that they hold.
pub(crate) fn find(proc: &ProcRoot, known: &HashSet<u32>, mut taken: HashSet<Inode>) -> Vec<(u32, u64)> {
    let mut found: Vec<(u64, Candidate)> = Vec::new();
    for candidate in candidates(proc, known) {
        if let Some(resident) = candidate.resident(&taken) {
            // Processes of one program share its files.
            taken.extend(candidate.files.iter().map(|file| file.inode));
            found.push((resident, candidate));
        }
    }
    found.sort_by_key(|(resident, candidate)| (std::cmp::Reverse(*resident), candidate.pid));
    let mut parties: BTreeMap<Party, usize> = BTreeMap::new();
    found.retain(|(_, candidate)| {
        let of_party = parties.entry(Party::of(proc, candidate.pid)).or_default();
        *of_party += 1;
        *of_party <= PER_PARTY_MAX
    });
    let pids = found.into_iter().map(|(_, candidate)| candidate.pid).take(FOUND_MAX);
    pids.filter_map(|pid| Some((pid, proc.start_time(pid).ok()?))).collect()
}

/// Returns the processes that moved most, with their files. Every party has a place before any has
/// two.
fn candidates(proc: &ProcRoot, known: &HashSet<u32>) -> Vec<Candidate> {
    let own = proc.own_pid();
    let pids = proc.pids().unwrap_or_default().into_iter();
    let unknown = pids.filter(|pid| *pid != own && !known.contains(pid));
    let moved = unknown.filter_map(|pid| Some((pid, proc.io(pid).ok()?)));
    let mut moved: Vec<(u32, ProcessIo)> =
        moved.filter(|(_, io)| io.from_storage.saturating_add(io.to_storage) >= MOVED_BYTES_MIN).collect();
    moved.retain(|(pid, _)| !is_known(proc, *pid));
    moved.sort_by_key(|(pid, io)| (std::cmp::Reverse(io.from_storage.saturating_add(io.to_storage)), *pid));
    let moved = first_of_each_party(moved, |pid| Party::of(proc, pid));
    moved.into_iter().map(|(pid, io)| Candidate { pid, io, files: files_of(proc, pid) }).collect()
}

/// Returns the first [`INSPECTED_PROCESSES_MAX`] processes in their order. If there are more, no
/// party has a further one before each party has as many.
fn first_of_each_party(
    mut moved: Vec<(u32, ProcessIo)>,
    party_of: impl Fn(u32) -> Party,
) -> Vec<(u32, ProcessIo)> {
    if moved.len() <= INSPECTED_PROCESSES_MAX {
        return moved;
    }
    let mut parties: BTreeMap<Party, usize> = BTreeMap::new();
    let mut places: Vec<(usize, u32)> = Vec::with_capacity(moved.len());
    for (pid, _) in &moved {
        let of_party = parties.entry(party_of(*pid)).or_default();
        *of_party += 1;
        places.push((*of_party, *pid));
    }
    places.sort_by_key(|(place, _)| *place);
    let kept: HashSet<u32> = places.into_iter().take(INSPECTED_PROCESSES_MAX).map(|(_, pid)| pid).collect();
    moved.retain(|(pid, _)| kept.contains(pid));
    moved
}

/// Whether a process is known to be no database: to stream, one of [`OTHER_PROGRAMS`], or of this
/// project.
fn is_known(proc: &ProcRoot, pid: u32) -> bool {
    let name = proc.name(pid).unwrap_or_default();
    let name = unescaped(&name);
    let is_other = OTHER_PROGRAMS.iter().any(|start| name.starts_with(start));
    is_other
        || name.starts_with("pagekeeper")
        || streaming_programs().iter().any(|glob| glob.is_match(&*name))
}

/// Returns the files that a process holds, each once, without programs and libraries.
fn files_of(proc: &ProcRoot, pid: u32) -> Vec<OpenedFile> {
    let mut seen = HashSet::new();
    let mut files = opened_by(proc, pid, OPENED_FILES_MAX).kept;
    files.retain(|file| !file.private && file.size >= FILE_BYTES_MIN && seen.insert(file.inode));
    files
}

fn resident_of(file: &OpenedFile) -> u64 {
    let opened =
        InspectedFile::open_magic_link(&file.link, ExpectedFile::Inode(file.inode), file.path.clone());
    let residency = opened.ok().and_then(|opened| FileSample::of(&opened).0.residency);
    residency.map_or(0, |residency| residency.resident)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenerKind;
    use pagekeeper_kernel::process::AccessMode;

    fn candidate(path: &std::path::Path, size: u64, from_storage: u64) -> Candidate {
        let link = path.to_path_buf();
        let opened = InspectedFile::open(path, pagekeeper_kernel::Links::Follow).unwrap();
        let file = OpenedFile {
            kind: OpenerKind::Buffered(AccessMode::ReadOnly),
            inode: opened.inode(),
            path: link.clone(),
            deleted: false,
            private: false,
            link,
            size,
            count: 1,
        };
        Candidate { pid: 7, io: ProcessIo { from_storage, ..ProcessIo::default() }, files: vec![file] }
    }

    #[test]
    fn a_process_that_rereads_its_files_is_found() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        let found = |size, from_storage| candidate(file.path(), size, from_storage).resident(&HashSet::new());
        let size = REREAD_BYTES_MIN;
        assert_eq!(found(size, 4 * size), Some(0));
        assert_eq!(found(size, 3 * size), None, "it may be read for the first time");
        assert_eq!(found(size - 1, 4 * size), None, "it is small");
        let own = candidate(file.path(), size, 4 * size);
        assert_eq!(own.resident(&HashSet::from([own.files[0].inode])), None, "a database has it");
    }

    #[test]
    fn many_processes_of_one_user_do_not_hide_others() {
        let of = |pids: std::ops::Range<u32>| pids.map(|pid| (pid, ProcessIo::default())).collect::<Vec<_>>();
        let party_of = |pid| Party::User(if pid < 1000 { 1 } else { pid });
        let pids = |moved| -> Vec<u32> {
            first_of_each_party(moved, party_of).into_iter().map(|(pid, _)| pid).collect()
        };
        assert_eq!(pids(of(0..64)), (0..64).collect::<Vec<_>>());
        let all = pids(of(0..500).into_iter().chain(of(1000..1003)).collect());
        assert_eq!(all, (0..61).chain(1000..1003).collect::<Vec<_>>());
    }

    #[test]
    fn programs_that_stream_and_processes_of_databases_are_none() {
        let tree = tempfile::tempdir().unwrap();
        let proc = ProcRoot::at(tree.path());
        for (pid, name, bytes) in [
            (7, "db", MOVED_BYTES_MIN),
            (8, "tar", 1 << 40),
            (9, "db", 1),
            (10, "db", 1 << 40),
            (11, "systemd-journal", 1 << 40),
            (12, "qemu-system-x86", 1 << 40),
            (13, "Isolated Web Co", 1 << 40),
        ] {
            let directory = tree.path().join(pid.to_string());
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("comm"), format!("{name}\n")).unwrap();
            let io = format!("rchar: 0\nwchar: 0\nread_bytes: {bytes}\nwrite_bytes: 0\n");
            std::fs::write(directory.join("io"), io).unwrap();
        }
        let found = candidates(&proc, &HashSet::from([10]));
        assert_eq!(found.iter().map(|candidate| candidate.pid).collect::<Vec<_>>(), [7]);
    }
}
