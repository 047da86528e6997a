//! The view of the files: the first of them by some figure, or sums by class, process or control
//! group.
//!
//! Invariants: all files are ranked rarely enough for that to take 0.5 % of a processor. In
//! between, the files that led the ranking and those that changed are ranked again, so that a
//! file's own figures are always those of the last tick.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_kernel::{Inode, page_size};
use pagekeeper_policy::FileClass;
use pagekeeper_text::unescaped;

use super::Census;
use super::flow::{FileFlow, FlowBytes, SourceProcess};
use super::processes::{FileUse, shown_cgroup};
use super::table::{FileEntry, FileName};

/// The figure to sort by, the greatest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortKey {
    /// Resident bytes.
    #[default]
    Resident,
    /// Growth rate of resident bytes.
    Growth,
    /// Changed bytes, whether being written or not.
    Dirty,
    /// Bytes evicted under memory pressure.
    Evicted,
}

/// The unit of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupBy {
    /// Each file.
    #[default]
    File,
    /// Files of one class of one kind of database.
    Class,
    /// Files that one process brought in or has open.
    Process,
    /// The same for one control group, which may be a container.
    Cgroup,
}

/// A query for rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowQuery {
    /// The sort order.
    pub sort: SortKey,
    /// The unit of a row.
    pub group: GroupBy,
    /// Only files whose path contains this text; case matters only if it contains capitals. Empty
    /// for all.
    pub filter: String,
    /// Only files that one of these processes brought in or has open. Empty for all.
    pub pids: Vec<u32>,
    /// Maximum number of rows.
    pub limit: usize,
}

impl Default for RowQuery {
    fn default() -> Self {
        Self {
            sort: SortKey::default(),
            group: GroupBy::default(),
            filter: String::new(),
            pids: Vec::new(),
            limit: 100,
        }
    }
}

/// The identity of a row, by which it is recognised in the next tick.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RowKey {
    /// A file.
    File(Inode),
    /// A group, by its label.
    Group(String),
}

/// A process that has a file, or brought its pages in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOwner {
    /// The process; it may have ended.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The readable name of its control group.
    pub cgroup: String,
    /// The ways in which it uses the file; `None` if it does not have it.
    pub used: Option<FileUse>,
    /// Bytes it brought in since the census began.
    pub brought: u64,
}

/// A file, or a group of files. Figures are bytes, rates are bytes a second.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The row's identity.
    pub key: RowKey,
    /// Its label: a path, a class, a process, a control group.
    pub label: String,
    /// The path by which this process can open the file; `None` for groups and for files without a
    /// name.
    pub path: Option<PathBuf>,
    /// Whether the file was removed and a process still has it.
    pub deleted: bool,
    /// The number of files.
    pub files: u64,
    /// The size of the files.
    pub size: u64,
    /// Resident bytes.
    pub resident: u64,
    /// Bytes changed and not being written yet; `None` if unknown.
    pub dirty: Option<u64>,
    /// Bytes being written.
    pub writeback: Option<u64>,
    /// Bytes evicted by the kernel under memory pressure.
    pub evicted: Option<u64>,
    /// Of these, bytes evicted so recently that reading them again would count as thrashing.
    pub recently_evicted: Option<u64>,
    /// Growth rate of resident bytes.
    pub growth: i64,
    /// Bytes that entered and left in the last tick; `None` without tracing.
    pub flow: Option<FlowBytes>,
    /// The same since the census began.
    pub total_flow: Option<FlowBytes>,
    /// Processes that have it or brought it in, largest first; empty for groups.
    pub owners: Vec<RowOwner>,
    /// The file's class in its database.
    pub class: Option<FileClass>,
    /// The profile of the database that it belongs to.
    pub database: Option<String>,
}

/// The rows of a [`RowQuery`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QueryRows {
    /// The rows, sorted.
    pub rows: Vec<Row>,
    /// The number of rows without the limit.
    pub matching: usize,
    /// Resident bytes of all of these.
    pub resident: u64,
}

/// A ranking of all files, and what changed since it was created.
#[derive(Debug)]
pub(super) struct RankedView {
    query: RowQuery,
    leaders: Vec<u32>,
    groups: Vec<Row>,
    touched: HashSet<u32>,
    matching: usize,
    resident: u64,
    made: Instant,
    cost: Duration,
}

impl RankedView {
    pub(super) fn touch(&mut self, ids: impl Iterator<Item = u32>) {
        self.touched.extend(ids);
    }

    fn is_fresh(&self, query: &RowQuery) -> bool {
        self.query == *query && self.made.elapsed() < self.cost * 200
    }
}

/// Tests a path against the filter text.
struct PathMatcher<'a> {
    text: &'a str,
    lower: bool,
}

impl<'a> PathMatcher<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, lower: !text.chars().any(char::is_uppercase) }
    }

    fn matches(&self, label: &str) -> bool {
        self.text.is_empty()
            || if self.lower { label.to_lowercase().contains(self.text) } else { label.contains(self.text) }
    }
}

impl Census {
    /// Returns the rows of a query, with the figures of the last tick. Files among them are sampled
    /// in each tick from now on.
    pub fn rows(&mut self, query: &RowQuery) -> QueryRows {
        let fresh = self.view.as_ref().is_some_and(|view| view.is_fresh(query));
        if !fresh {
            let view = self.rank(query);
            self.view = Some(view);
        }
        let Some(view) = &self.view else { return QueryRows::default() };
        let (matching, resident) = (view.matching, view.resident);
        if query.group != GroupBy::File {
            return QueryRows { rows: view.groups.clone(), matching, resident };
        }
        let matcher = PathMatcher::new(&query.filter);
        let candidates: HashSet<u32> = view.leaders.iter().chain(&view.touched).copied().collect();
        let mut ranked: Vec<(i64, u32)> = candidates
            .into_iter()
            .filter_map(|id| {
                let entry = self.files.table.get(id)?;
                self.is_wanted(entry, query, &matcher).then(|| (self.figure(id, entry, query.sort), id))
            })
            .collect();
        ranked.sort_unstable_by_key(|(figure, id)| (Reverse(*figure), *id));
        ranked.truncate(query.limit);
        let rows: Vec<Row> =
            ranked.iter().filter_map(|(_, id)| Some(self.row(*id, self.files.table.get(*id)?))).collect();
        // The files that are sampled in every tick have to fit in one.
        self.files.shown = ranked.into_iter().take(50).map(|(_, id)| id).collect();
        QueryRows { rows, matching, resident }
    }

    /// Ranks all files.
    fn rank(&self, query: &RowQuery) -> RankedView {
        let made = Instant::now();
        let matcher = PathMatcher::new(&query.filter);
        let mut ranked: Vec<(i64, u32)> = Vec::new();
        let mut groups: HashMap<String, Row> = HashMap::new();
        let (mut matching, mut resident) = (0, 0);
        for (id, entry) in self.files.table.iter() {
            if !self.is_wanted(entry, query, &matcher) {
                continue;
            }
            resident += bytes(entry.pages.resident);
            if query.group == GroupBy::File {
                matching += 1;
                ranked.push((self.figure(id, entry, query.sort), id));
            } else {
                let label = self.group_label(entry, query.group);
                let row = groups.entry(label).or_insert_with_key(|label| empty_group(label.clone()));
                self.add_to_group(row, id, entry);
            }
        }
        let keep = query.limit.saturating_mul(4).max(1024);
        if ranked.len() > keep {
            ranked.select_nth_unstable_by_key(keep, |(figure, _)| Reverse(*figure));
            ranked.truncate(keep);
        }
        let mut groups: Vec<Row> = groups.into_values().collect();
        groups.sort_by(|a, b| {
            let figure = |row: &Row| figure_of(row, query.sort);
            figure(b).cmp(&figure(a)).then_with(|| a.label.cmp(&b.label))
        });
        if query.group != GroupBy::File {
            matching = groups.len();
        }
        groups.truncate(query.limit);
        RankedView {
            query: query.clone(),
            leaders: ranked.into_iter().map(|(_, id)| id).collect(),
            groups,
            touched: HashSet::new(),
            matching,
            resident,
            made,
            cost: made.elapsed(),
        }
    }

    fn is_wanted(&self, entry: &FileEntry, query: &RowQuery, matcher: &PathMatcher<'_>) -> bool {
        let opens = |pid| self.processes.openers.of(entry.inode).iter().any(|(user, _)| *user == pid);
        let brings = |pid| {
            let flow = self.files.flows.of(entry.inode);
            flow.is_some_and(|flow| flow.sources.iter().any(|source| source.pid == pid))
        };
        let of_process = query.pids.is_empty() || query.pids.iter().any(|&pid| opens(pid) || brings(pid));
        of_process && (matcher.text.is_empty() || matcher.matches(&self.label(entry)))
    }

    fn figure(&self, id: u32, entry: &FileEntry, sort: SortKey) -> i64 {
        match sort {
            SortKey::Resident => i64::from(entry.pages.resident),
            SortKey::Growth => self.files.growth.get(&id).copied().unwrap_or(0),
            SortKey::Dirty => i64::from(entry.pages.dirty) + i64::from(entry.pages.writeback),
            SortKey::Evicted => i64::from(entry.pages.evicted),
        }
    }

    /// Returns a file's label.
    fn label(&self, entry: &FileEntry) -> String {
        if let Some(path) = entry.path(&self.scope.directories()) {
            return unescaped(&path).into_owned();
        }
        let file_system = self.scope.file_systems.walked.get(usize::from(entry.file_system));
        format!(
            "inode {} on {}",
            entry.inode.ino,
            file_system.map_or("?", |file_system| file_system.source.as_str())
        )
    }

    fn row(&self, id: u32, entry: &FileEntry) -> Row {
        let mut row = empty_group(self.label(entry));
        self.add_to_group(&mut row, id, entry);
        row.key = RowKey::File(entry.inode);
        row.deleted = matches!(entry.name, FileName::Deleted(_));
        if entry.resident_only {
            (row.dirty, row.writeback, row.evicted, row.recently_evicted) = (None, None, None, None);
        }
        row.path = self
            .files
            .reach
            .get(&entry.inode)
            .cloned()
            .or_else(|| entry.path(&self.scope.directories()).filter(|_| !row.deleted));
        row.owners = self.owners(entry.inode);
        if let FileName::In(..) = entry.name
            && let Some((database, class)) = self.database(Path::new(&row.label))
        {
            (row.database, row.class) = (Some(database.to_owned()), class);
        }
        row
    }

    fn add_to_group(&self, row: &mut Row, id: u32, entry: &FileEntry) {
        let pages = entry.pages;
        // A file that just came has no figures yet; a group's sums are as good without it.
        let known = !entry.resident_only || entry.name == FileName::Unknown;
        row.files += 1;
        row.size += entry.size;
        row.resident += bytes(pages.resident);
        for (sum, pages) in [
            (&mut row.dirty, pages.dirty),
            (&mut row.writeback, pages.writeback),
            (&mut row.evicted, pages.evicted),
            (&mut row.recently_evicted, pages.recently_evicted),
        ] {
            *sum = sum.filter(|_| known).map(|sum| sum + bytes(pages));
        }
        row.growth += self.files.growth.get(&id).copied().unwrap_or(0);
        if self.has_events() {
            let of_file = self.files.flows.of(entry.inode);
            let last = of_file.filter(|flow| flow.tick == self.clock.tick).map(|flow| flow.last);
            let total = of_file.map(|flow| flow.total);
            for (sum, part) in [(&mut row.flow, last), (&mut row.total_flow, total)] {
                let (sum, part) = (sum.get_or_insert_default(), part.unwrap_or_default());
                sum.added += part.added;
                sum.reclaimed += part.reclaimed;
                sum.dropped += part.dropped;
            }
        }
    }

    fn group_label(&self, entry: &FileEntry, group: GroupBy) -> String {
        match group {
            GroupBy::File => self.label(entry),
            GroupBy::Class => {
                let label = self.label(entry);
                let found =
                    (entry.name != FileName::Unknown).then(|| self.database(Path::new(&label))).flatten();
                match found {
                    Some((database, Some(class))) => format!("{database} {class}"),
                    Some((database, None)) => format!("{database} other"),
                    None => "no database's".to_owned(),
                }
            }
            GroupBy::Process | GroupBy::Cgroup => match self.owners(entry.inode).into_iter().next() {
                Some(owner) if group == GroupBy::Process => format!("{} {}", owner.name, owner.pid),
                Some(owner) => owner.cgroup,
                None => "nobody's now".to_owned(),
            },
        }
    }

    /// Returns the processes that have a file or brought it in: those that brought in most first,
    /// then those that may write to it.
    fn owners(&self, inode: Inode) -> Vec<RowOwner> {
        let sources = self.files.flows.of(inode).map_or(&[][..], |flow: &FileFlow| &flow.sources);
        let name_of = |source: &SourceProcess| Arc::clone(&source.name);
        let users = self.processes.openers.of(inode);
        let used = |pid: u32| users.iter().find(|(user, _)| *user == pid).map(|(_, used)| *used);
        let mut owners: Vec<RowOwner> = sources
            .iter()
            .map(|one| self.owner(one.pid, used(one.pid), one.bytes, Some(name_of(one))))
            .collect();
        let mut others: Vec<_> =
            users.iter().filter(|(user, _)| !sources.iter().any(|source| source.pid == *user)).collect();
        others.sort_by_key(|(pid, used)| (Reverse(used.writes), *pid));
        owners.extend(others.into_iter().take(8).map(|(pid, used)| self.owner(*pid, Some(*used), 0, None)));
        owners
    }

    /// Returns an owner. `traced` is the name that tracing reported, which is all that is known of
    /// a process that ended before it was inspected.
    fn owner(&self, pid: u32, used: Option<FileUse>, brought: u64, traced: Option<Arc<str>>) -> RowOwner {
        let process = self.processes.known.get(&pid);
        let known = process.map(|process| Arc::clone(&process.name));
        let name = known.or(traced.filter(|name| !name.is_empty()));
        RowOwner {
            pid,
            name: name.map_or_else(|| "?".to_owned(), |name| name.to_string()),
            cgroup: process.map_or_else(|| "?".to_owned(), |process| shown_cgroup(&process.cgroup)),
            used,
            brought,
        }
    }

    /// Returns the database in whose directories a file lies, and the file's class.
    fn database(&self, path: &Path) -> Option<(&str, Option<FileClass>)> {
        let innermost = |directories: &[PathBuf]| {
            let around = directories.iter().filter(|directory| path.starts_with(directory));
            around.map(|directory| directory.as_os_str().len()).max()
        };
        let found = self
            .processes
            .databases
            .iter()
            .filter_map(|database| Some((innermost(&database.directories)?, database)))
            .max_by_key(|(depth, _)| *depth);
        let (_, database) = found?;
        Some((&database.profile.name, database.profile.class_of(path)))
    }
}

fn bytes(pages: u32) -> u64 {
    u64::from(pages) * page_size()
}

fn empty_group(label: String) -> Row {
    Row {
        key: RowKey::Group(label.clone()),
        label,
        path: None,
        deleted: false,
        files: 0,
        size: 0,
        resident: 0,
        dirty: Some(0),
        writeback: Some(0),
        evicted: Some(0),
        recently_evicted: Some(0),
        growth: 0,
        flow: None,
        total_flow: None,
        owners: Vec::new(),
        class: None,
        database: None,
    }
}

fn figure_of(row: &Row, sort: SortKey) -> i64 {
    let unwritten = || row.dirty.unwrap_or(0) + row.writeback.unwrap_or(0);
    match sort {
        SortKey::Resident => row.resident.cast_signed(),
        SortKey::Growth => row.growth,
        SortKey::Dirty => unwritten().cast_signed(),
        SortKey::Evicted => row.evicted.unwrap_or(0).cast_signed(),
    }
}
