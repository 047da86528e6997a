//! The doctor's facts about a server: its program, its settings files, and the state of its WAL.
//! One file of a fake server is replaced, or a segment of the WAL gets another name, and everything
//! is read.
//!
//! The input: the number of the file (1 byte), and its content, or the name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use pagekeeper_catalog::Profile;
use pagekeeper_doctor::journal;
use pagekeeper_doctor::settings::{self, SettingsReader};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{DirtyReport, MemInfo, SysRoots, VmStat, Watermarks};
use pagekeeper_observe::{Database, File, Host, Opener, OpenerKind, Snapshot};
use pagekeeper_policy::FileClass;

use crate::pg_control;

const SERVER_PID: u32 = 7;
/// The size of segments according to the seeds' control file, and the path of one.
const WAL_SEGMENT_BYTES: u64 = 16 << 20;
const WAL_SEGMENT_PATH: &str = "pg_wal/000000010000000000000001";
/// The head of the segment's first page: its position at byte 8, the page size at byte 36.
const FIRST_PAGE_HEAD: &str =
    "\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0";

/// Each file, with its process and an example of its content.
const SERVER_FILES: [(&str, &str, &str); 9] = [
    ("mysqld", "mysqld", "\0mysqld-8.0\0enforce-gtid-consistency\x008.0.29\0client\0mysqld\0"),
    ("mysqld", "my.cnf", "[mysqld]\nsync-binlog = 1\n!includedir .\n[mysqld-8.0]\nplugin-load=ha_rocksdb\n"),
    (
        "mysqld",
        "mysqld-auto.cnf",
        r#"{"Version": 2, "mysql_dynamic_variables": {"sync_binlog": {"Value": "7"}}}"#,
    ),
    ("postgres", "postgresql.conf", "max_wal_size = '1GB'\ninclude 'postgresql.conf'\ninclude_dir '.'\n"),
    ("postgres", "postgresql.auto.conf", "wal_recycle off # written by ALTER SYSTEM\n"),
    ("postgres", "global/pg_control", ""),
    ("postgres", WAL_SEGMENT_PATH, FIRST_PAGE_HEAD),
    ("db_bench", "OPTIONS-000005", "[Version]\n  rocksdb_version=7.8.3\n[DBOptions]\n  bytes_per_sync=0\n"),
    ("tikv-server", "tikv.toml", "[rocksdb]\nbytes-per-sync = \"1MB\"\n[raft-engine]\ndir = \"/r\"\n"),
];

struct FakeServer {
    tree: tempfile::TempDir,
    host: Host,
    profiles: Vec<Arc<Profile>>,
}

thread_local! {
    // Per thread, since a static value is never dropped.
    static FAKE_SERVER: FakeServer = make();
}

fn make() -> FakeServer {
    let tree = crate::scratch();
    let process = tree.path().join("proc").join(SERVER_PID.to_string());
    std::fs::create_dir_all(&process).unwrap();
    std::os::unix::fs::symlink("/", process.join("root")).unwrap();
    std::os::unix::fs::symlink(tree.path(), process.join("cwd")).unwrap();
    std::os::unix::fs::symlink(tree.path().join("mysqld"), process.join("exe")).unwrap();
    for (file, (_, name, content)) in SERVER_FILES.into_iter().enumerate() {
        let path = tree.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, right(file, content)).unwrap();
    }
    let roots = SysRoots::default();
    let host = Host {
        memory: MemInfo::read(&roots).unwrap(),
        watermarks: Watermarks::read(&roots).unwrap(),
        dirty: DirtyReport::read(&roots).unwrap(),
        memory_pressure: None,
        io_pressure: None,
        vmstat: VmStat::read(&roots).unwrap(),
        devices: Vec::new(),
    };
    FakeServer { tree, host, profiles: Profile::built_in().into_iter().map(Arc::new).collect() }
}

/// Returns a valid replacement for a file.
fn right(file: usize, content: &str) -> Vec<u8> {
    match SERVER_FILES[file].1 {
        "global/pg_control" => pg_control::seeds().remove(0),
        _ => content.as_bytes().to_vec(),
    }
}

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let Some((file, content)) = data.split_first() else { return };
    FAKE_SERVER.with(|fake| {
        let file = usize::from(*file) % (SERVER_FILES.len() + 1);
        let Some(&(_, name, seed)) = SERVER_FILES.get(file) else {
            return read(fake, "postgres", Path::new(crate::text(content)));
        };
        let path = fake.tree.path().join(name);
        std::fs::write(&path, content).unwrap();
        read(fake, SERVER_FILES[file].0, Path::new(WAL_SEGMENT_PATH));
        if name == "global/pg_control" {
            std::fs::write(&path, pg_control::sealed(content, 0)).unwrap();
            read(fake, "postgres", Path::new(WAL_SEGMENT_PATH));
        }
        std::fs::write(&path, right(file, seed)).unwrap();
    });
}

fn read(fake: &FakeServer, process: &str, wal: &Path) {
    let tree = fake.tree.path();
    let argument = |name: &str, file: &str| format!("--{name}={}", tree.join(file).display()).into();
    let (profile, arguments) = match process {
        "mysqld" => ("mysql", vec![argument("defaults-file", "my.cnf"), argument("datadir", "")]),
        "postgres" => ("postgresql", Vec::new()),
        "tikv-server" => ("rocksdb", vec![argument("config", "tikv.toml")]),
        _ => ("rocksdb", Vec::new()),
    };
    let profile = fake.profiles.iter().find(|known| known.name == profile).expect("built in");
    let database = Database {
        pid: Some(SERVER_PID),
        name: process.to_owned(),
        profile: Arc::clone(profile),
        directories: vec![tree.to_path_buf()],
        command_line: [vec![process.into()], arguments].concat(),
        uptime: None,
        cgroup: None,
        workers: Vec::new(),
    };
    let names: &[&Path] = if process == "postgres" {
        &[Path::new(WAL_SEGMENT_PATH), wal]
    } else {
        &[Path::new("MANIFEST-000004")]
    };
    let snapshot = Snapshot {
        at: SystemTime::UNIX_EPOCH,
        host: fake.host.clone(),
        change: None,
        databases: vec![database],
        files: names.iter().map(|name| held(tree.join(name))).collect(),
        visibility_gaps: Vec::new(),
    };
    let roots = SysRoots::at(tree);
    let settings = settings::read(&mut SettingsReader::default(), &snapshot.databases[0], &snapshot, &roots);
    let _ = journal(0, &snapshot, &settings, &roots);
}

/// Returns a file that the process has open.
fn held(path: PathBuf) -> File {
    let inode = Inode { dev: 1, ino: 1 };
    let kind = OpenerKind::Mapped { writable: true };
    File {
        inode,
        stat_inode: inode,
        reach: path.clone(),
        path,
        size: WAL_SEGMENT_BYTES,
        database: Some(0),
        class: Some(FileClass::Wal),
        residency: None,
        openers: vec![Opener { pid: SERVER_PID, name: String::new(), kind, count: 1 }],
    }
}

/// Returns each file unchanged, and a name.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let seed = |file: usize, content: &[u8]| [&[u8::try_from(file).unwrap()], content].concat();
    let mut seeds: Vec<_> = SERVER_FILES
        .iter()
        .enumerate()
        .map(|(file, (_, _, content))| seed(file, &right(file, content)))
        .collect();
    seeds.push(seed(SERVER_FILES.len(), b"pg_wal/0000000100000000000000FF"));
    seeds
}
