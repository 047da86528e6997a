//! The names of databases in their series, and labels of what others named.
//!
//! Invariants: a database's name is the same from sample to sample and from start to start, as long
//! as its location is the same. A label is bounded, and no character in it controls a terminal.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Component, Path, PathBuf};

use pagekeeper_kernel::process::{CgroupPath, ProcRoot};
use pagekeeper_observe::{Database, Snapshot};
use pagekeeper_policy::FileClass;
use pagekeeper_text::escaped;
use serde::Serialize;

use crate::nested_directories::NestedDirectories;

/// Maximum length of a database's label in bytes.
const LABEL_BYTES_MAX: usize = 240;

/// The identity of a database in all its series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct DatabaseName {
    /// Its engine: the profile's name.
    pub(crate) engine: String,
    /// The directory of its files, as it sees it.
    pub(crate) directory: String,
    /// Its memory cgroup, which distinguishes containers that all see the same directory.
    pub(crate) cgroup: String,
}

impl DatabaseName {
    /// Returns the name for databases without a name of their own.
    pub(crate) fn others() -> Self {
        Self { engine: "other".to_owned(), directory: String::new(), cgroup: String::new() }
    }

    fn of(database: &Database, places: &DataPlaces<'_>, proc: &ProcRoot) -> Self {
        let works_in = |pid| Some(proc.as_seen_by(pid, &proc.working_directory(pid).ok()?));
        let works_in = database.pid.and_then(works_in);
        let directory = data_directory(&database.directories, works_in.as_deref(), places).map(label);
        let paths = database.pid.and_then(|pid| proc.cgroup_paths(pid).ok());
        let cgroup = paths.as_deref().and_then(cgroup_name);
        Self {
            engine: database.profile.name.clone(),
            directory: directory.unwrap_or_default(),
            cgroup: cgroup.unwrap_or_default(),
        }
    }
}

/// Returns the names of a snapshot's databases, by their index. No two are the same.
pub(crate) fn names(snapshot: &Snapshot, proc: &ProcRoot) -> Vec<DatabaseName> {
    let places = places(snapshot);
    let databases = snapshot.databases.iter().zip(&places);
    let mut names: Vec<_> =
        databases.map(|(database, places)| DatabaseName::of(database, places, proc)).collect();
    let pids: Vec<_> = snapshot.databases.iter().map(|database| database.pid).collect();
    distinguish(&mut names, &pids);
    names
}

/// The directories in which a database's files were seen.
#[derive(Debug, Clone, Default)]
struct DataPlaces<'a> {
    /// Its own directories with data in them.
    with_data: BTreeSet<&'a Path>,
    /// Directories above those of its logs, one for each partition or index: these come and go.
    above: BTreeSet<&'a Path>,
}

/// Returns the directory that identifies a database: its working directory, as SQL servers work in
/// their data directory. Otherwise the one above those that its profile names, or else the first
/// with data in it. A log's directory is not used, since several databases may share it.
fn data_directory<'a>(
    directories: &'a [PathBuf],
    works_in: Option<&Path>,
    places: &DataPlaces<'a>,
) -> Option<&'a Path> {
    let own = || directories.iter().map(PathBuf::as_path);
    own()
        .find(|directory| Some(*directory) == works_in)
        .or_else(|| places.above.first().copied())
        .or_else(|| own().find(|directory| places.with_data.contains(directory)))
        .or_else(|| own().next())
}

/// Returns the places of each database, by its index.
fn places(snapshot: &Snapshot) -> Vec<DataPlaces<'_>> {
    let nested: Vec<NestedDirectories<'_>> =
        snapshot.databases.iter().map(|database| NestedDirectories::new(&database.directories)).collect();
    let mut places = vec![DataPlaces::default(); nested.len()];
    for file in &snapshot.files {
        let Some(index) = file.database.filter(|index| *index < nested.len()) else { continue };
        places[index].above.extend(snapshot.databases[index].profile.base_of_marker(&file.path));
        if file.class == Some(FileClass::Data) {
            places[index].with_data.extend(nested[index].deepest_around(&file.path));
        }
    }
    places
}

/// Numbers databases that would otherwise have the same name, since each series belongs to one
/// database. The one with the lowest PID keeps its name.
fn distinguish(names: &mut [DatabaseName], pids: &[Option<u32>]) {
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|index| pids[*index]);
    let mut met: HashMap<DatabaseName, usize> = HashMap::new();
    for index in order {
        let count = met.entry(names[index].clone()).or_default();
        *count += 1;
        if *count > 1 {
            names[index].directory = bounded(format!("{} ({count})", names[index].directory));
        }
    }
}

/// Returns a label of a foreign name. It is escaped before anything is counted by it, since the
/// metrics formats escape only line ends and quotes, and people read them, too.
pub(crate) fn label<T: AsRef<OsStr> + ?Sized>(name: &T) -> String {
    bounded(escaped(name).into_cow().into_owned())
}

/// Returns a label short enough for very many series: a longer one is cut, and a hash of it all is
/// appended.
fn bounded(label: String) -> String {
    if label.len() <= LABEL_BYTES_MAX {
        return label;
    }
    let mut hasher = std::hash::DefaultHasher::new();
    label.hash(&mut hasher);
    let end = (0..=LABEL_BYTES_MAX - 20).rev().find(|at| label.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…{:016x}", &label[..end], hasher.finish())
}

/// Returns the kernel's name of the cgroup in this process's view: that of the memory controller,
/// or of version 2. Works without a mounted hierarchy, or with one that lacks the cgroup, as in a
/// private container.
fn cgroup_name(paths: &[CgroupPath]) -> Option<String> {
    let named =
        CgroupPath::charged(paths)?.path.components().filter(|part| matches!(part, Component::Normal(_)));
    Some(label(&named.collect::<PathBuf>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::ffi::OsStrExt as _;

    use pagekeeper_catalog::{Profile, find_profile};

    #[test]
    fn a_database_is_known_by_the_directory_of_its_data() {
        let paths = ["/srv/binlog", "/srv/data", "/srv/more"].map(PathBuf::from);
        let places = |with_data: &[&'static str], above: &[&'static str]| DataPlaces {
            with_data: with_data.iter().map(|path| Path::new(*path)).collect(),
            above: above.iter().map(|path| Path::new(*path)).collect(),
        };
        let chosen = |works_in: Option<&str>, places: &DataPlaces<'static>| {
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
            let places = DataPlaces { above, ..DataPlaces::default() };
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
    fn no_two_databases_have_the_same_name() {
        let name = |directory: &str| DatabaseName {
            engine: "mariadb".into(),
            directory: directory.into(),
            cgroup: String::new(),
        };
        let mut names = [name("/d"), name("/d"), name("/e")];
        distinguish(&mut names, &[Some(9), Some(7), Some(8)]);
        assert_eq!(names.map(|name| name.directory), ["/d (2)", "/d", "/e"]);
    }

    #[test]
    fn a_label_has_a_longest_length_and_remains_one_of_its_own() {
        assert_eq!(bounded("/var/lib/mysql".to_owned()), "/var/lib/mysql");
        let (one, other) = ("é".repeat(2000), format!("{}x", "é".repeat(1999)));
        assert_eq!(bounded(one.clone()), bounded(one.clone()));
        assert_ne!(bounded(one.clone()), bounded(other));
        assert!(bounded(one).len() <= LABEL_BYTES_MAX);
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
