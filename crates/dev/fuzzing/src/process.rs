//! A process's own data in `/proc`: its name, title, state and users, and its groups, mounts,
//! mappings and descriptors, whose names it can choose. One file of a fake process is replaced and
//! read.
//!
//! The input: the number of the file (1 byte), and its content.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_catalog::{Profile, find_databases, postgresql};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::FilePosition;
use pagekeeper_policy::names::SegmentSize;

const FAKE_PID: u32 = 7;

/// Each file, with an example of its content.
const PROCESS_FILES: [(&str, &str); 8] = [
    ("stat", "7 (a) S (1) R) S 1 42 42 0 -1 2129984 98 0 0 0 0 0 0 0 20 0 13 0 92206 3133440 388\n"),
    ("comm", "a) S (1) R\n"),
    ("cmdline", "postgres: 15/main: walsender repl 10.0.0.7(51234) streaming 16/B374D848\0\0\0"),
    ("status", "Name:\ta\\nUid:\t0\nUmask:\t0022\nUid:\t0\t1\t2\t3\nGid:\t0\t0\t0\t0\n"),
    ("cgroup", "9:name=systemd:/a\n4:memory,cpu:/db\n0::/pod:1/x\n"),
    (
        "mountinfo",
        "36 35 98:0 /m1 /m\\0402 rw,noatime shared:1 master:2 - ext4 /dev/root rw,errors=continue,upperdir=/u\n",
    ),
    (
        "maps",
        "7f00-8f00 rw-s 00001000 08:1f 77   /data/a b\\012c  (deleted)\na000-b000 rw-p 00000000 00:00 0   [heap]\n",
    ),
    ("fdinfo/12", "pos:\t77\nflags:\t0102001\nmnt_id:\t27\nino:\t99\nlock:\t1: POSIX x\n"),
];

struct FakeProcess {
    tree: tempfile::TempDir,
    profiles: Vec<Arc<Profile>>,
}

thread_local! {
    // Per thread, since a static value is never dropped.
    static FAKE_PROCESS: FakeProcess = make();
}

fn make() -> FakeProcess {
    let tree = crate::scratch();
    let process = tree.path().join(FAKE_PID.to_string());
    for directory in ["fdinfo", "fd"] {
        std::fs::create_dir_all(process.join(directory)).unwrap();
    }
    for (name, content) in PROCESS_FILES {
        std::fs::write(process.join(name), content).unwrap();
    }
    FakeProcess { tree, profiles: Profile::built_in().into_iter().map(Arc::new).collect() }
}

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let Some((file, content)) = data.split_first() else { return };
    FAKE_PROCESS.with(|fake| replace(fake, *file, content));
}

fn replace(fake: &FakeProcess, file: u8, content: &[u8]) {
    let (name, right) = PROCESS_FILES[usize::from(file) % PROCESS_FILES.len()];
    let path = fake.tree.path().join(FAKE_PID.to_string()).join(name);
    std::fs::write(&path, content).unwrap();
    read(&ProcRoot::at(fake.tree.path()), name, &fake.profiles);
    std::fs::write(&path, right).unwrap();
}

fn read(proc: &ProcRoot, name: &str, profiles: &[Arc<Profile>]) {
    match name {
        "stat" | "comm" => {
            let _ = (proc.stat(FAKE_PID), proc.name(FAKE_PID));
            let _ = find_databases(proc, profiles);
        }
        "cmdline" => {
            let words = proc.command_line(FAKE_PID).unwrap_or_default();
            for word in &words {
                try_title(crate::text(word.as_bytes()));
            }
            let _ = find_databases(proc, profiles);
        }
        "status" => drop(proc.users(FAKE_PID)),
        "cgroup" => drop(proc.cgroup_paths(FAKE_PID)),
        "mountinfo" => {
            for mount in proc.mounts(FAKE_PID).unwrap_or_default() {
                let _ = (mount.has_option("rw"), mount.option("upperdir"));
            }
        }
        "maps" => {
            for mapping in proc.mappings(FAKE_PID).unwrap_or_default() {
                let _ = proc.mapping_path(FAKE_PID, &mapping.addresses);
            }
        }
        _ => drop(proc.fd_info(FAKE_PID, 12)),
    }
    let _ = proc.as_seen_by(FAKE_PID, Path::new("/"));
}

fn try_title(title: &str) {
    for size in [None, SegmentSize::of_file(1 << 20), SegmentSize::of_file(1 << 30)] {
        let bytes = size.unwrap_or(SegmentSize::DEFAULT).bytes();
        let place = postgresql::wal_reader(title, size).and_then(|reader| reader.place);
        if let Some((_, FilePosition::At(offset))) = place {
            assert!(offset < bytes, "{title:?}");
        }
    }
}

/// Returns each file unchanged, and more titles.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let seed = |file: u8, content: &str| [&[file], content.as_bytes()].concat();
    let mut seeds: Vec<_> =
        (0..).zip(PROCESS_FILES).map(|(file, (_, content))| seed(file, content)).collect();
    for title in [
        "postgres: archiver last was 0000000100000016000000B3.partial\0",
        "postgres: main: archiver failed on 0000000100000016000000B3\0",
        "postgres: startup recovering 0000000100000016000000B3\0",
        "/usr/sbin/mariadbd\0--datadir=/d\0",
    ] {
        seeds.push(seed(2, title));
    }
    seeds
}
