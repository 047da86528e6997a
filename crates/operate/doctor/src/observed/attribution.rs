//! Attributes dirty pages: how much each process dirtied on each device, as far as page-cache
//! additions show it.
//!
//! The kernel does not report which process dirtied a page, but which one brought it into the page
//! cache. Pages added through a write-only descriptor were written. A process with a readable
//! descriptor may have read them (servers open their tables in this way). For such a file, at most
//! its growth plus its dirty and writeback pages count. Rewritten resident pages are not included.
//! Neither are direct writes, which dirty nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_observe::{File, OpenerKind, Snapshot};
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{PageCounts, TaskIdentity};

use crate::Observation;

/// The owner of output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OutputOwner {
    /// A database, by its index.
    Database(usize),
    /// Another process: its ID and name.
    Process(u32, String),
}

/// The bytes that an owner wrote through the page cache to files of one class on one device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceOutput<'a> {
    pub(crate) owner: OutputOwner,
    pub(crate) class: Option<FileClass>,
    /// Bytes during the watch.
    pub(crate) bytes: u64,
    /// The file with most of it, if its name is known.
    pub(crate) path: Option<&'a Path>,
}

impl DeviceOutput<'_> {
    /// Whether it is a database's log rather than bulk output.
    pub(crate) fn is_log(&self) -> bool {
        matches!(self.owner, OutputOwner::Database(_)) && self.class.is_some_and(FileClass::is_log)
    }
}

/// Returns the kernel's name for the backing device of a file system, as in traces.
pub(crate) fn device_name(observation: &Observation<'_>, dev: u64) -> String {
    let mut known =
        [observation.after, observation.before].into_iter().flat_map(|snapshot| &snapshot.host.devices);
    match known.find(|(other, _)| *other == dev) {
        Some((_, device)) => device.name.clone(),
        // A disk without partitions, as far as is known.
        None => format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)),
    }
}

/// Returns the output to a device during the watch, largest first; `None` if pages were not traced.
pub(crate) fn on_device<'a>(observation: &Observation<'a>, device: &str) -> Option<Vec<DeviceOutput<'a>>> {
    let mut all: BTreeMap<(OutputOwner, Option<FileClass>), DeviceOutput<'a>> = BTreeMap::new();
    let mut most: BTreeMap<(OutputOwner, Option<FileClass>), u64> = BTreeMap::new();
    let mut files = OutputFiles::new(observation);
    for counts in observation.trace()?.pages.as_ref()? {
        let Some(task) = counts.task.as_ref().filter(|_| counts.flow.added.bytes > 0) else { continue };
        if device_name(observation, counts.file.dev) != device {
            continue;
        }
        let bytes = files.written(observation, counts, task);
        if bytes == 0 {
            continue;
        }
        let file = files.after.get(&counts.file).or_else(|| files.before.get(&counts.file));
        let class = file.and_then(|file| file.class);
        let owner = owner(observation, task);
        let key = (owner.clone(), class);
        let path = file.map(|file| file.path.as_path());
        let written = all.entry(key.clone()).or_insert(DeviceOutput { owner, class, bytes: 0, path: None });
        written.bytes += bytes;
        let most = most.entry(key).or_default();
        if path.is_some() && bytes > *most {
            (written.path, *most) = (path, bytes);
        }
    }
    let mut all: Vec<DeviceOutput<'a>> = all.into_values().collect();
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.owner.cmp(&b.owner)));
    Some(all)
}

/// Returns the database that a task belongs to: the one whose process or worker it is, or was when
/// the watch began. For a process that started and ended in between, only its name and the files
/// whose pages it brought in are known.
pub(crate) fn database_of(observation: &Observation<'_>, task: &TaskIdentity) -> Option<usize> {
    let pid = task.process;
    if let Some((index, _)) = observation.databases().find(|(_, database)| database.has_process(pid)) {
        return Some(index);
    }
    if let Some(earlier) = observation.before.databases.iter().find(|then| then.has_process(pid)) {
        return observation
            .databases()
            .find(|(_, database)| database.pid == earlier.pid)
            .map(|(index, _)| index);
    }
    // A running process that is not a worker is not the database's, whatever its name.
    observation.streamers.iter().find(|streamer| streamer.pid == pid && streamer.title.is_empty())?;
    // For a thread that has ended, the trace may have only its own ID.
    let mut alike =
        observation.databases().filter(|(_, known)| known.pid.is_some() && known.name == task.name);
    let (first, _) = alike.next()?;
    match alike.next() {
        None => Some(first),
        Some(_) => Some(by_files(observation, pid).unwrap_or(first)),
    }
}

/// Returns the database of the file of which a process brought in the most pages.
fn by_files(observation: &Observation<'_>, pid: u32) -> Option<usize> {
    let own = observation.trace()?.pages.iter().flatten().filter(|counts| {
        counts.task.as_ref().is_some_and(|task| task.process == pid) && counts.flow.added.bytes > 0
    });
    let most = own.max_by_key(|counts| counts.flow.added.bytes)?;
    observation.after.files.iter().find(|file| file.inode == most.file)?.database
}

fn owner(observation: &Observation<'_>, task: &TaskIdentity) -> OutputOwner {
    match database_of(observation, task) {
        Some(index) => OutputOwner::Database(index),
        None => OutputOwner::Process(task.process, task.name.clone()),
    }
}

/// The files of both snapshots, by inode.
struct OutputFiles<'a> {
    before: HashMap<Inode, &'a File>,
    after: HashMap<Inode, &'a File>,
    /// Bytes that may still be counted for a file that its openers may have read.
    left: HashMap<Inode, u64>,
}

impl<'a> OutputFiles<'a> {
    fn new(observation: &Observation<'a>) -> Self {
        let of = |snapshot: &'a Snapshot| snapshot.files.iter().map(|file| (file.inode, file)).collect();
        Self { before: of(observation.before), after: of(observation.after), left: HashMap::new() }
    }

    /// Returns how many bytes of a file a task brought in by writing.
    fn written(&mut self, observation: &Observation<'_>, counts: &PageCounts, task: &TaskIdentity) -> u64 {
        let added = counts.flow.added.bytes;
        let before = self.before.get(&counts.file).copied();
        let after = self.after.get(&counts.file).copied();
        let most = match (before, after) {
            // The file was written during the watch, though its inode number may be reused.
            (None, Some(_)) => return added,
            (Some(before), Some(after)) if after.path != before.path => return added,
            // The file was created and removed meanwhile, or belongs to no inspected process.
            (None, None) => return if may_read(observation, counts, task) { 0 } else { added },
            (Some(file), _) if only_writes(file, task) => return added,
            (Some(before), Some(after)) => {
                after.size.saturating_sub(before.size) + after.unwritten().max(before.unwritten())
            }
            // The file was removed: a merged table, or a log that is no longer needed.
            (Some(before), None) => before.unwritten(),
        };
        let left = self.left.entry(counts.file).or_insert(most);
        let written = added.min(*left);
        *left -= written;
        written
    }
}

/// Whether a process has a file open through the page cache for writing only.
fn only_writes(file: &File, task: &TaskIdentity) -> bool {
    let mut own = file.openers.iter().filter(|opener| opener.pid == task.process).peekable();
    own.peek().is_some() && own.all(|opener| opener.kind == OpenerKind::Buffered(AccessMode::WriteOnly))
}

/// Whether another process is known to have the file open for reading.
fn may_read(observation: &Observation<'_>, counts: &PageCounts, task: &TaskIdentity) -> bool {
    let streamer = observation.streamers.iter().find(|streamer| streamer.pid == task.process);
    streamer
        .and_then(|streamer| streamer.open(counts.file))
        .is_some_and(|file| matches!(file.access, AccessMode::ReadOnly | AccessMode::ReadWrite))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DEV, MIB, database, file, opener, pages, residency, sample};
    use crate::{Streamer, StreamerFile};
    use pagekeeper_observe::Opener;

    fn traced(snapshot: &mut Snapshot, pages: Vec<PageCounts>) {
        snapshot.change.as_mut().unwrap().trace.as_mut().unwrap().pages = Some(pages);
    }

    #[test]
    fn ended_workers_still_belong_to_the_database() {
        let mut before = sample();
        before.databases = vec![database("postgresql", 100, "/a"), database("postgresql", 200, "/b")];
        let mut after = before.clone();
        before.databases[1].workers = vec![201, 210];
        after.databases[0].workers = vec![101];
        after.databases[1].workers = vec![201];
        let table = File { database: Some(1), ..file("/b/base/1", FileClass::Data, MIB, 0) };
        after.files = vec![table.clone()];
        traced(&mut after, vec![pages(table.inode, 301, "postgres", MIB, 0)]);
        for database in before.databases.iter_mut().chain(&mut after.databases) {
            database.name = "postgres".to_owned();
        }
        let task = |pid, name: &str| TaskIdentity { process: pid, thread: pid, name: name.to_owned() };
        let streamer = |pid, title: &str| Streamer {
            pid,
            title: title.to_owned(),
            cgroup: None,
            group_beside: None,
            has_ended: false,
            files: Vec::new(),
        };
        let mut observation = Observation::new(&before, &after);
        observation.streamers = vec![streamer(301, ""), streamer(302, ""), streamer(303, "")];
        assert_eq!(database_of(&observation, &task(101, "postgres")), Some(0));
        assert_eq!(database_of(&observation, &task(210, "postgres")), Some(1), "when the watch began");
        assert_eq!(database_of(&observation, &task(301, "postgres")), Some(1), "by its files");
        assert_eq!(database_of(&observation, &task(302, "postgres")), Some(0), "one of the two");
        assert_eq!(database_of(&observation, &task(303, "tar")), None);
        assert_eq!(database_of(&observation, &task(304, "postgres")), None, "that it has ended is not known");
        observation.streamers = vec![streamer(301, "postgres: another's backend")];
        assert_eq!(database_of(&observation, &task(301, "postgres")), None, "it runs, and is no worker");
        after.databases.truncate(1);
        let observation = Observation::new(&before, &after);
        assert_eq!(database_of(&observation, &task(210, "postgres")), None, "its database has ended");
    }

    #[test]
    fn pages_that_were_read_are_not_output() {
        let mut before = sample();
        let writer = opener(100, "db", OpenerKind::Buffered(AccessMode::WriteOnly));
        let reader = opener(100, "db", OpenerKind::Buffered(AccessMode::ReadOnly));
        let [grown, new, overwritten, merged, read] = ["grown", "new", "overwritten", "merged", "read"]
            .map(|name| file(&format!("/var/lib/mysql/{name}"), FileClass::Data, 100 * MIB, 0));
        let log = file("/var/lib/mysql/log", FileClass::Wal, 100 * MIB, 0);
        let with = |file: &File, size: u64, opener: &Opener| File {
            size: size * MIB,
            openers: vec![opener.clone()],
            ..file.clone()
        };
        before.files = vec![
            with(&grown, 10, &reader),
            with(&overwritten, 100, &writer),
            with(&merged, 100, &reader),
            with(&read, 100, &reader),
            with(&log, 10, &writer),
            File { inode: new.inode, ..with(&merged, 200, &reader) },
        ];
        let mut after = sample();
        after.files = vec![
            with(&grown, 100, &reader),
            with(&new, 100, &reader),
            with(&overwritten, 100, &writer),
            with(&read, 100, &reader),
        ];
        let foreign = |ino| Inode { dev: DEV, ino };
        traced(
            &mut after,
            vec![
                pages(grown.inode, 100, "db", MIB, 0),
                pages(new.inode, 100, "db", 2 * MIB, 0),
                pages(overwritten.inode, 100, "db", 4 * MIB, 0),
                pages(merged.inode, 100, "db", 8 * MIB, 0),
                pages(read.inode, 100, "db", 16 * MIB, 0),
                pages(log.inode, 100, "db", 3 * MIB, 0),
                pages(foreign(1), 7, "cp", 32 * MIB, 0),
                pages(foreign(2), 7, "cp", 64 * MIB, 0),
                pages(Inode { dev: DEV + 1, ino: 1 }, 7, "cp", 128 * MIB, 0),
            ],
        );
        let mut observation = Observation::new(&before, &after);
        observation.streamers = vec![Streamer {
            pid: 7,
            title: "cp a b".to_owned(),
            cgroup: None,
            group_beside: None,
            has_ended: false,
            files: vec![StreamerFile { inode: foreign(2), path: "/a".into(), access: AccessMode::ReadOnly }],
        }];
        let found = on_device(&observation, "8:0").unwrap();
        let found: Vec<_> =
            found.iter().map(|one| (&one.owner, one.class, one.bytes / MIB, one.path)).collect();
        let database = OutputOwner::Database(0);
        assert_eq!(
            found,
            [
                (&OutputOwner::Process(7, "cp".to_owned()), None, 32, None),
                (&database, Some(FileClass::Data), 7, Some(overwritten.path.as_path())),
                (&database, Some(FileClass::Wal), 3, Some(log.path.as_path())),
            ]
        );
        let mut blind = after.clone();
        blind.change.as_mut().unwrap().trace = None;
        assert_eq!(on_device(&Observation::new(&before, &blind), "8:0"), None);
    }

    #[test]
    fn pages_read_through_a_writable_descriptor_are_not_output() {
        let both = opener(100, "db", OpenerKind::Buffered(AccessMode::ReadWrite));
        let table = |size: u64, dirty: u64| File {
            size: size * MIB,
            openers: vec![both.clone()],
            residency: Some(residency(400 * MIB, dirty * MIB)),
            ..file("/var/lib/postgresql/base/5/1", FileClass::Data, 0, 0)
        };
        let written = |before: File, after: Option<File>| {
            let (mut first, mut second) = (sample(), sample());
            let inode = before.inode;
            first.files = vec![before];
            second.files = after.into_iter().collect();
            let added = vec![pages(inode, 100, "db", 300 * MIB, 0), pages(inode, 100, "db", 100 * MIB, 0)];
            traced(&mut second, added);
            let found = on_device(&Observation::new(&first, &second), "8:0").unwrap();
            found.iter().map(|output| output.bytes / MIB).sum::<u64>()
        };
        assert_eq!(written(table(1000, 0), Some(table(1000, 0))), 0, "a scan of a table");
        assert_eq!(written(table(1000, 0), Some(table(1000, 7))), 7, "and what is dirty of it");
        assert_eq!(written(table(1000, 0), Some(table(1010, 0))), 10, "and what it grew by");
        assert_eq!(written(table(0, 0), Some(table(800, 0))), 400, "a file that is filled");
        assert_eq!(written(table(1000, 3), None), 3, "one that is gone");
    }
}
