//! The digest of a sample for metrics, by database and class: a few figures out of very many.
//!
//! Invariants: figures are kept per database and class, and per file only for the requested number of files. A
//! database's name is the same from sample to sample and from start to start, as long as its location is the same.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use pagekeeper_doctor::{MixedWith, mixed_with};
use pagekeeper_kernel::process::{CgroupPath, ProcRoot};
use pagekeeper_kernel::text::escaped;
use pagekeeper_observe::{Database, File, Snapshot, VisibilityGap};
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{Losses, Task, TraceCounts};
use serde::Serialize;

/// Maximum length of a database's label in bytes.
const LONGEST_LABEL: usize = 240;

/// The identity of a database in all its series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Name {
    /// Its kind: the profile's name.
    pub(super) database: String,
    /// The directory of its files, as it sees it.
    pub(super) directory: String,
    /// Its memory cgroup, which distinguishes containers that all see the same directory.
    pub(super) cgroup: String,
}

impl Name {
    /// Returns the name for databases without a name of their own.
    pub(super) fn others() -> Self {
        Self { database: "other".to_owned(), directory: String::new(), cgroup: String::new() }
    }

    fn of(database: &Database, places: &Places<'_>, proc: &ProcRoot) -> Self {
        let works_in = |pid| Some(proc.as_seen_by(pid, &proc.working_directory(pid).ok()?));
        let works_in = database.pid.and_then(works_in);
        let directory = data_directory(&database.directories, works_in.as_deref(), places).map(label);
        let paths = database.pid.and_then(|pid| proc.cgroup_paths(pid).ok());
        let cgroup = paths.as_deref().and_then(cgroup_name);
        Self {
            database: database.profile.name.clone(),
            directory: directory.unwrap_or_default(),
            cgroup: cgroup.unwrap_or_default(),
        }
    }
}

/// The directories in which a database's files were seen.
#[derive(Debug, Clone, Default)]
struct Places<'a> {
    /// Its own directories with data in them.
    with_data: BTreeSet<&'a Path>,
    /// Directories above those of its logs, one for each partition or index: these come and go.
    above: BTreeSet<&'a Path>,
}

/// Returns the directory that identifies a database: its working directory, as SQL servers work in their data
/// directory. Otherwise the one above those that its profile names, or else the first with data in it. A log's
/// directory is not used, since several databases may share it.
fn data_directory<'a>(
    directories: &'a [PathBuf],
    works_in: Option<&Path>,
    places: &Places<'a>,
) -> Option<&'a Path> {
    let own = || directories.iter().map(PathBuf::as_path);
    own()
        .find(|directory| Some(*directory) == works_in)
        .or_else(|| places.above.first().copied())
        .or_else(|| own().find(|directory| places.with_data.contains(directory)))
        .or_else(|| own().next())
}

/// Returns the places of each database, by its index.
fn places(snapshot: &Snapshot) -> Vec<Places<'_>> {
    let nested: Vec<Nested<'_>> =
        snapshot.databases.iter().map(|database| Nested::new(&database.directories)).collect();
    let mut places = vec![Places::default(); nested.len()];
    for file in &snapshot.files {
        let Some(index) = file.database.filter(|index| *index < nested.len()) else { continue };
        places[index].above.extend(snapshot.databases[index].profile.base_of_marker(&file.path));
        if file.class == Some(FileClass::Data) {
            places[index].with_data.extend(nested[index].deepest_around(&file.path));
        }
    }
    places
}

/// Directories, prepared to find the deepest one of a file by comparing only a few paths. A hostile user's path
/// can have two thousand components, and a database a thousand directories.
struct Nested<'a> {
    /// Sorted by bytes.
    all: Vec<Nest<'a>>,
}

struct Nest<'a> {
    directory: &'a Path,
    /// Its path with one trailing slash: the common prefix of the files in it.
    prefix: Vec<u8>,
    /// The deepest other directory that contains it.
    around: Option<usize>,
}

impl<'a> Nested<'a> {
    fn new(directories: &'a [PathBuf]) -> Self {
        let nest = |directory: &'a PathBuf| {
            let mut prefix = directory.as_os_str().as_bytes().to_vec();
            prefix.truncate(prefix.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1));
            prefix.push(b'/');
            Nest { directory, prefix, around: None }
        };
        let mut all: Vec<Nest<'_>> = directories.iter().map(nest).collect();
        all.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        for index in 1..all.len() {
            let mut around = Some(index - 1);
            while let Some(outer) = around.filter(|outer| !all[index].prefix.starts_with(&all[*outer].prefix))
            {
                around = all[outer].around;
            }
            all[index].around = around;
        }
        Self { all }
    }

    /// Returns the deepest directory that contains a file. The candidates are the last directory before the file
    /// in the order, if no other one comes between, and those around it.
    fn deepest_around(&self, file: &Path) -> Option<&'a Path> {
        let file = file.as_os_str().as_bytes();
        let last = self.all.partition_point(|nest| nest.prefix.as_slice() <= file).checked_sub(1)?;
        let same = self.all[last].prefix.iter().zip(file).take_while(|(a, b)| a == b).count();
        let mut around = Some(last);
        while let Some(nest) = around.map(|index| &self.all[index]) {
            if nest.prefix.len() <= same {
                return Some(nest.directory);
            }
            around = nest.around;
        }
        None
    }
}

/// Numbers databases that would otherwise have the same name, since each series belongs to one database. The first
/// keeps its name.
fn distinguish(databases: &mut [Seen]) {
    let mut order: Vec<usize> = (0..databases.len()).collect();
    order.sort_by_key(|index| databases[*index].pid);
    let mut met: HashMap<Name, usize> = HashMap::new();
    for index in order {
        let seen = &mut databases[index];
        let count = met.entry(seen.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            seen.name.directory = bounded(format!("{} ({count})", seen.name.directory));
        }
    }
}

/// Returns a label of a foreign name. It is escaped before anything is counted by it, since the metrics formats
/// escape only line ends and quotes, and people read them, too.
pub(super) fn label<T: AsRef<OsStr> + ?Sized>(name: &T) -> String {
    bounded(escaped(name).into_cow().into_owned())
}

/// Returns a label short enough for very many series: a longer one is cut, and a hash of it all is appended.
pub(super) fn bounded(label: String) -> String {
    if label.len() <= LONGEST_LABEL {
        return label;
    }
    let mut hasher = std::hash::DefaultHasher::new();
    label.hash(&mut hasher);
    let end = (0..=LONGEST_LABEL - 20).rev().find(|at| label.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…{:016x}", &label[..end], hasher.finish())
}

/// Returns the kernel's name of the cgroup in this process's view: that of the memory controller, or of version 2.
/// Works without a mounted hierarchy, or with one that lacks the cgroup, as in a private container.
fn cgroup_name(paths: &[CgroupPath]) -> Option<String> {
    let memory = paths.iter().find(|path| path.controllers.iter().any(|name| name == "memory"));
    let group = memory.or_else(|| paths.iter().find(|path| path.is_v2()))?;
    let named = group.path.components().filter(|part| matches!(part, Component::Normal(_)));
    Some(label(&named.collect::<PathBuf>()))
}

/// A file's class; `other` if the profile states none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Class(pub(super) Option<FileClass>);

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(class) => class.fmt(f),
            None => f.pad("other"),
        }
    }
}

/// The files of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) count: u64,
    pub(super) size: u64,
    /// The number of unreadable files, which the following figures exclude.
    pub(super) unreadable: u64,
    pub(super) resident: u64,
    /// `None` if it is unknown for one of them.
    pub(super) dirty: Option<u64>,
    pub(super) writeback: Option<u64>,
}

/// A database in a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) name: Name,
    pub(super) pid: Option<u32>,
    /// Its user; root if it has no process, since it was named explicitly then.
    pub(super) user: u32,
    pub(super) directories: Vec<PathBuf>,
    pub(super) classes: BTreeMap<Class, Files>,
    /// Number of files that are open with direct I/O, and through the page cache by a program other than their
    /// database.
    pub(super) mixed: u64,
}

impl Seen {
    /// Whether its profile knows some of its files, and they are not empty.
    pub(super) fn holds_logs(&self) -> bool {
        self.classes.iter().any(|(class, files)| class.0.is_some() && files.size > 0)
    }
}

/// The waits of tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Waited {
    /// Pauses because of dirty pages.
    pub(super) pauses: u64,
    pub(super) throttled: Duration,
    /// Direct reclaim.
    pub(super) stalls: u64,
    pub(super) stalled: Duration,
}

impl Waited {
    /// Adds further waits.
    pub(super) fn add(&mut self, more: &Self) {
        self.pauses += more.pauses;
        self.throttled = self.throttled.saturating_add(more.throttled);
        self.stalls += more.stalls;
        self.stalled = self.stalled.saturating_add(more.stalled);
    }
}

/// The counts of the trace since the previous sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Traced {
    /// Whether pauses and stalls were counted.
    pub(super) pauses: bool,
    pub(super) stalls: bool,
    /// By index into [`Digest::databases`].
    pub(super) databases: HashMap<usize, Waited>,
    /// Waits of all tasks of the host.
    pub(super) everyone: Waited,
    pub(super) losses: Losses,
}

/// One of the files with the most resident bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Top {
    pub(super) name: Name,
    pub(super) class: Class,
    pub(super) path: String,
    pub(super) resident: u64,
}

/// The result of a sample.
#[derive(Debug, Clone, Default)]
pub(super) struct Digest {
    pub(super) databases: Vec<Seen>,
    pub(super) traced: Option<Traced>,
    pub(super) top: Vec<Top>,
    pub(super) visibility_gaps: Vec<VisibilityGap>,
}

impl Digest {
    /// Extracts what metrics need from a snapshot, with the paths of the `top` largest files.
    pub(super) fn of(snapshot: &Snapshot, proc: &ProcRoot, top: usize) -> Self {
        let mut databases: Vec<Seen> = snapshot
            .databases
            .iter()
            .zip(places(snapshot))
            .map(|(database, places)| Seen {
                name: Name::of(database, &places, proc),
                pid: database.pid,
                user: database.pid.and_then(|pid| proc.users(pid).ok()).map_or(0, |users| users.real),
                directories: database.directories.clone(),
                classes: BTreeMap::new(),
                mixed: 0,
            })
            .collect();
        distinguish(&mut databases);
        for file in &snapshot.files {
            if let Some(seen) = file.database.and_then(|index| databases.get_mut(index)) {
                let mixed_with = mixed_with(snapshot, file);
                seen.mixed += u64::from(matches!(mixed_with, Some(MixedWith::Writer | MixedWith::Reader)));
                add(seen.classes.entry(Class(file.class)).or_default(), file);
            }
        }
        Self {
            top: most_resident(&snapshot.files, &databases, top),
            traced: snapshot
                .change
                .as_ref()
                .and_then(|change| change.trace.as_ref())
                .map(|counts| traced(counts, snapshot)),
            visibility_gaps: snapshot.visibility_gaps.clone(),
            databases,
        }
    }
}

fn add(files: &mut Files, file: &File) {
    let known = |sum: Option<u64>, more: Option<u64>| Some(sum? + more?);
    if files.count == files.unreadable {
        (files.dirty, files.writeback) = (Some(0), Some(0));
    }
    files.count += 1;
    files.size += file.size;
    let Some(residency) = file.residency else {
        files.unreadable += 1;
        return;
    };
    files.resident += residency.resident;
    files.dirty = known(files.dirty, residency.dirty);
    files.writeback = known(files.writeback, residency.writeback);
}

fn most_resident(files: &[File], databases: &[Seen], count: usize) -> Vec<Top> {
    if count == 0 {
        return Vec::new();
    }
    let resident = |file: &&File| file.residency.map_or(0, |residency| residency.resident);
    let mut files: Vec<&File> =
        files.iter().filter(|file| file.database.is_some() && resident(file) > 0).collect();
    files.sort_by(|a, b| resident(b).cmp(&resident(a)).then_with(|| a.path.cmp(&b.path)));
    let top = files.into_iter().filter_map(|file| {
        Some(Top {
            name: databases.get(file.database?)?.name.clone(),
            class: Class(file.class),
            path: escaped(&file.path).into_cow().into_owned(),
            resident: resident(&file),
        })
    });
    // Removed files may have the name of others; a series must be unique.
    let mut named = HashSet::new();
    let once = |top: &Top| named.insert((top.name.clone(), top.class, top.path.clone()));
    top.filter(once).take(count).collect()
}

fn traced(counts: &TraceCounts, snapshot: &Snapshot) -> Traced {
    let owners: HashMap<u32, usize> = snapshot
        .databases
        .iter()
        .enumerate()
        .flat_map(|(index, database)| {
            database.pid.into_iter().chain(database.workers.iter().copied()).map(move |pid| (pid, index))
        })
        .collect();
    let mut traced = Traced {
        pauses: counts.pauses.is_some(),
        stalls: counts.reclaim.is_some(),
        losses: counts.losses,
        ..Traced::default()
    };
    let mut note = |task: &Task, waited: Waited| {
        traced.everyone.add(&waited);
        if let Some(index) = owners.get(&task.process) {
            traced.databases.entry(*index).or_default().add(&waited);
        }
    };
    for counts in counts.pauses.iter().flatten() {
        let all = &counts.pauses;
        note(&counts.task, Waited { pauses: all.count(), throttled: all.total(), ..Waited::default() });
    }
    for counts in counts.reclaim.iter().flatten() {
        let all = &counts.stalls;
        note(&counts.task, Waited { stalls: all.count(), stalled: all.total(), ..Waited::default() });
    }
    traced
}

#[cfg(test)]
mod tests {
    use super::*;

    use pagekeeper_catalog::{Profile, find_profile};
    use pagekeeper_kernel::Inode;
    use pagekeeper_kernel::Residency;

    #[test]
    fn what_is_unknown_of_one_file_is_unknown_of_all_of_its_class() {
        let residency = |dirty| Residency {
            resident: 8192,
            dirty,
            writeback: Some(0),
            evicted: None,
            recently_evicted: None,
            source: pagekeeper_kernel::Source::Cachestat,
        };
        let file = |residency| File {
            inode: Inode { dev: 1, ino: 1 },
            stat_inode: Inode { dev: 1, ino: 1 },
            path: PathBuf::new(),
            reach: PathBuf::new(),
            size: 10_000,
            database: None,
            class: None,
            residency,
            openers: Vec::new(),
        };
        let mut files = Files::default();
        add(&mut files, &file(None));
        add(&mut files, &file(Some(residency(Some(4096)))));
        add(&mut files, &file(Some(residency(Some(4096)))));
        let expected = Files {
            count: 3,
            size: 30_000,
            unreadable: 1,
            resident: 16_384,
            dirty: Some(8192),
            writeback: Some(0),
        };
        assert_eq!(files, expected);
        add(&mut files, &file(Some(residency(None))));
        assert_eq!((files.dirty, files.writeback), (None, Some(0)));
    }

    #[test]
    fn a_path_is_among_the_files_with_most_resident_once() {
        let seen = Seen {
            name: Name::others(),
            pid: Some(1),
            user: 0,
            directories: Vec::new(),
            classes: BTreeMap::new(),
            mixed: 0,
        };
        let file = |path: &str, resident, database| File {
            inode: Inode { dev: 1, ino: resident },
            stat_inode: Inode { dev: 1, ino: resident },
            path: path.into(),
            reach: PathBuf::new(),
            size: resident,
            database,
            class: None,
            residency: Some(Residency {
                resident,
                dirty: None,
                writeback: None,
                evicted: None,
                recently_evicted: None,
                source: pagekeeper_kernel::Source::Mincore,
            }),
            openers: Vec::new(),
        };
        let files = [
            file("/tmp/removed", 4096, Some(0)),
            file("/tmp/removed", 8192, Some(0)),
            file("/nobodys", 9 << 20, None),
            file("/empty", 0, Some(0)),
            file("/small", 1024, Some(0)),
        ];
        let top = most_resident(&files, &[seen], 2);
        let listed: Vec<_> = top.iter().map(|top| (top.path.as_str(), top.resident)).collect();
        assert_eq!(listed, [("/tmp/removed", 8192), ("/small", 1024)]);
    }

    #[test]
    fn a_database_is_known_by_the_directory_of_its_data() {
        let paths = ["/srv/binlog", "/srv/data", "/srv/more"].map(PathBuf::from);
        let places = |with_data: &[&'static str], above: &[&'static str]| Places {
            with_data: with_data.iter().map(|path| Path::new(*path)).collect(),
            above: above.iter().map(|path| Path::new(*path)).collect(),
        };
        let chosen = |works_in: Option<&str>, places: &Places<'static>| {
            data_directory(&paths, works_in.map(Path::new), places).unwrap().to_str().unwrap().to_owned()
        };
        let both = places(&["/srv/more", "/srv/data"], &[]);
        assert_eq!(
            chosen(Some("/srv/data"), &places(&["/srv/more"], &["/srv"])),
            "/srv/data",
            "where it works"
        );
        assert_eq!(chosen(Some("/"), &both), "/srv/data", "the first with data");
        assert_eq!(chosen(None, &places(&[], &[])), "/srv/binlog");
        assert_eq!(chosen(None, &places(&["/srv/data"], &["/srv", "/mnt"])), "/mnt", "above its logs");
        assert_eq!(data_directory(&[], Some(Path::new("/srv/data")), &places(&[], &[])), None);
    }

    #[test]
    fn a_broker_is_not_known_by_its_first_partition() {
        let profiles = Profile::built_in();
        let named = |files: &[&'static str], kind: &str| {
            let profile = find_profile(&profiles, kind).unwrap();
            let above = files.iter().filter_map(|file| profile.base_of_marker(Path::new(*file))).collect();
            let places = Places { above, ..Places::default() };
            let directories = [Path::new(files[0]).parent().unwrap().to_path_buf()];
            data_directory(&directories, None, &places).unwrap().to_str().unwrap().to_owned()
        };
        let partitions = ["/srv/kafka/a-0/0.log", "/srv/kafka/b-0/0.log", "/srv/kafka/b-0/0.index"];
        assert_eq!(named(&partitions, "kafka"), "/srv/kafka");
        assert_eq!(named(&partitions[1..], "kafka"), "/srv/kafka", "its first topic was deleted");
        assert_eq!(named(&["/mnt/b/t-1/0.log", "/mnt/a/t-0/0.log"], "kafka"), "/mnt/a", "two of log.dirs");
        let streams = ["/js/$G/streams/s/msgs/1.blk", "/js/$SYS/_js_/group/msgs/1.blk"];
        assert_eq!(named(&streams, "nats"), "/js");
        assert_eq!(named(&["/srv/mongo/journal/WiredTigerLog.0000000001"], "mongodb"), "/srv/mongo/journal");
        let translog = ["/os/nodes/0/indices/U/0/translog/translog-3.tlog"];
        assert_eq!(named(&translog, "opensearch"), "/os/nodes/0/indices");
        assert_eq!(
            named(&["/var/lib/cassandra/commitlog/CommitLog-7-1.log"], "cassandra"),
            "/var/lib/cassandra/commitlog"
        );
    }

    #[test]
    fn data_is_in_the_deepest_directory_around_it() {
        let directories = ["/srv/data", "/", "/srv/data/deep/", "/srv/dat", "/srv/data/deep/x/y"];
        let directories = directories.map(PathBuf::from);
        let nested = Nested::new(&directories);
        let around = |path: &str| nested.deepest_around(Path::new(path)).unwrap().to_str().unwrap();
        assert_eq!(around("/srv/data/t.ibd"), "/srv/data");
        assert_eq!(around("/srv/data/deep/t/t.ibd"), "/srv/data/deep/");
        assert_eq!(around("/srv/data/deep/x/z"), "/srv/data/deep/", "another one comes between");
        assert_eq!(around("/srv/data"), "/", "it is not in itself");
        assert_eq!(around("/srv/database/t.ibd"), "/");
        assert_eq!(Nested::new(&directories[..1]).deepest_around(Path::new("/x/t")), None);
        assert_eq!(Nested::new(&directories[..1]).deepest_around(Path::new("/a")), None);
        assert_eq!(Nested::new(&[]).deepest_around(Path::new("/a")), None);
    }

    #[test]
    fn very_deep_paths_take_no_time_to_attribute() {
        // Hashing each ancestor of such paths takes minutes for 10,000 open files.
        let deep = PathBuf::from("/a".repeat(2031));
        let directories: Vec<PathBuf> = deep.ancestors().skip(900).step_by(2).map(Path::to_owned).collect();
        let nested = Nested::new(&directories);
        for number in 0..10_000 {
            let file = deep.join(number.to_string());
            assert_eq!(nested.deepest_around(&file), Some(directories[0].as_path()));
        }
    }

    #[test]
    fn no_two_databases_have_the_same_name() {
        let of = |pid, directory: &str| Seen {
            name: Name { database: "mariadb".into(), directory: directory.into(), cgroup: String::new() },
            pid: Some(pid),
            user: 0,
            directories: Vec::new(),
            classes: BTreeMap::new(),
            mixed: 0,
        };
        let mut databases = [of(9, "/d"), of(7, "/d"), of(8, "/e")];
        distinguish(&mut databases);
        let names = databases.map(|seen| seen.name.directory);
        assert_eq!(names, ["/d (2)", "/d", "/e"]);
    }

    #[test]
    fn a_label_has_a_longest_length_and_remains_one_of_its_own() {
        assert_eq!(bounded("/var/lib/mysql".to_owned()), "/var/lib/mysql");
        let (one, other) = ("é".repeat(2000), format!("{}x", "é".repeat(1999)));
        assert_eq!(bounded(one.clone()), bounded(one.clone()));
        assert_ne!(bounded(one.clone()), bounded(other));
        assert!(bounded(one).len() <= LONGEST_LABEL);
    }

    #[test]
    fn no_label_steers_a_terminal() {
        let name = OsStr::from_bytes(b"/srv/a\x1b[2J\n\x9b\x7f \xc2\x9b\xe2\x80\xae");
        assert_eq!(label(name), r"/srv/a\x1b[2J\n\x9b\x7f \u{9b}\u{202e}");
        assert_eq!(label("/srv/donn\u{e9}es"), "/srv/donn\u{e9}es");
    }

    #[test]
    fn cgroups_are_named_as_the_kernel_does() {
        let path = |controllers: &[&str], path: &str| CgroupPath {
            hierarchy: u32::from(!controllers.is_empty()),
            controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
            path: path.into(),
        };
        let mariadb = "/system.slice/mariadb.service";
        assert_eq!(cgroup_name(&[path(&[], mariadb)]).unwrap(), mariadb[1..]);
        let both = [path(&[], "/"), path(&["cpu"], "/x"), path(&["memory"], "/docker/ab12")];
        assert_eq!(cgroup_name(&both).unwrap(), "docker/ab12");
        assert_eq!(cgroup_name(&[path(&[], "/../../kubepods/pod7/c1")]).unwrap(), "kubepods/pod7/c1");
        assert_eq!(cgroup_name(&[path(&[], "/")]).unwrap(), "");
    }
}
