//! Takes snapshots in succession, with the changes between them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use pagekeeper_catalog::Profile;
use pagekeeper_catalog::settings::uptime;
use pagekeeper_kernel::hang;
use pagekeeper_kernel::pressure::{BackingDevice, MemoryCgroup, SysRoots};
use pagekeeper_text::unescaped;
use pagekeeper_trace::{MachineCounts, TraceSource, Tracer};

use crate::discovery::directories;
use crate::discovery::subjects::{self, EarlierFindings, ObservedDatabase};
use crate::files::FileSet;
use crate::files::devices::DeviceTable;
use crate::trees::directory_owners::DirectoryOwners;
use crate::trees::directory_trees::DirectoryTrees;
use crate::visibility::{GapKind, VisibilityGaps};
use crate::{
    Database, HostChange, ObserveError, ObserverOptions, ObserverScope, Snapshot, host, host_gaps, openers,
};

/// Takes snapshots of a host and the databases on it.
#[derive(Debug)]
pub struct Observer {
    options: ObserverOptions,
    profiles: Vec<Arc<Profile>>,
    tracer: Option<Tracer>,
    before: Option<(Instant, MachineCounts)>,
    state: ObserverState,
}

/// The state that is kept from one snapshot to the next.
#[derive(Debug, Default)]
struct ObserverState {
    earlier: EarlierFindings,
    trees: DirectoryTrees,
    devices: DeviceTable,
}

/// The part of a snapshot that comes from file systems, which may hang.
struct FileFindings {
    databases: Vec<Database>,
    files: FileSet,
    devices: Vec<(u64, BackingDevice)>,
    gaps: VisibilityGaps,
}

impl Observer {
    /// Gets ready, and starts tracing if the options ask for it.
    ///
    /// Fails only if not even the kernel's plain counters can be read. If a better method of
    /// tracing is not available, [`Observer::source`] and each snapshot report that.
    pub fn start(options: ObserverOptions) -> Result<Self, ObserveError> {
        let tracer = options.trace.as_ref().map(Tracer::start).transpose()?;
        let profiles = options.profiles.iter().cloned().map(Arc::new).collect();
        Ok(Self { options, profiles, tracer, before: None, state: ObserverState::default() })
    }

    /// Returns the source of the counts in [`HostChange::trace`]; `None` without tracing.
    pub fn source(&self) -> Option<&TraceSource> {
        self.tracer.as_ref().map(Tracer::source)
    }

    /// Takes a snapshot. The first has no [`Snapshot::change`]; each later one has the changes
    /// since the one before.
    ///
    /// The first snapshot samples every file: some 5 µs each, more for files with gigabytes in
    /// memory. Later ones sample as many files as 2 % of the time between snapshots allows (at
    /// least 50 ms), open and dirty files first. Among hundreds of thousands of files, the figures
    /// of the others may be some snapshots old.
    pub fn snapshot(&mut self) -> Result<Snapshot, ObserveError> {
        let change = self.change()?;
        // State that is lost with a hung job is found again, except named processes and
        // directories.
        let named = self.state.earlier.named_only();
        let mut kept = Some(std::mem::take(&mut self.state));
        let (state, found) = hang::run_job(|| {
            let lost = || ObserverState { earlier: named.named_only(), ..ObserverState::default() };
            let mut state = kept.take().unwrap_or_else(lost);
            let (options, profiles) = (self.options.clone(), self.profiles.clone());
            move || {
                let found = state.find(&options, &profiles);
                (state, found)
            }
        })?;
        self.state = state;
        let FileFindings { databases, files, devices, mut gaps } = found?;
        gaps.unanswered();
        let host = host::read(&self.options.roots, devices)?;
        host_gaps::of_processes(&self.options.roots, &mut gaps);
        host_gaps::of_host(&host, &mut gaps);
        if let Some(tracer) = &self.tracer {
            host_gaps::of_tracing(tracer, &mut gaps);
        }
        Ok(Snapshot {
            at: SystemTime::now(),
            host,
            change,
            databases,
            files: files.into_files(),
            visibility_gaps: gaps.into_gaps(),
        })
    }

    /// Returns the changes since the snapshot before.
    fn change(&mut self) -> Result<Option<HostChange>, ObserveError> {
        let trace = self.tracer.as_mut().map(Tracer::take).transpose()?;
        let (now, machine) = (Instant::now(), MachineCounts::read(&self.options.roots)?);
        let before = self.before.replace((now, machine));
        Ok(before.map(|(then, machine_then)| HostChange {
            period: now.duration_since(then),
            machine: machine.since(&machine_then),
            trace,
        }))
    }
}

impl ObserverState {
    /// Finds the databases and their files on their file systems.
    fn find(
        &mut self,
        options: &ObserverOptions,
        profiles: &[Arc<Profile>],
    ) -> Result<FileFindings, ObserveError> {
        let roots = &options.roots;
        let mut gaps = VisibilityGaps::default();
        let mut subjects = subjects::find(&roots.proc, options, profiles, &mut self.earlier, &mut gaps)?;
        let mut files = FileSet::new(options.max_files);
        let owners = DirectoryOwners::of(&roots.proc, &subjects);
        self.trees.begin(&subjects, &owners, options);
        let (trees, devices) = (&mut self.trees, &mut self.devices);
        for index in trees.order(&subjects, &owners) {
            let subject = (index, &subjects[index]);
            files.take_directories(options, subject, &owners, trees, devices, &mut gaps);
        }
        for subject in subjects.iter().enumerate() {
            files.take_held(roots, subject, trees, devices, &mut gaps);
        }
        let known: HashSet<u32> = subjects.iter().flat_map(ObservedDatabase::fully_read_pids).collect();
        openers::find(&roots.proc, &mut files, &known, &mut gaps)?;
        files.report_left_out(&mut gaps);
        self.trees.end(files.in_use());
        if matches!(options.scope, ObserverScope::Directories(_)) {
            directories::find_processes(&roots.proc, &mut subjects, &mut files, profiles);
        }
        let databases = subjects.into_iter().map(|subject| database(roots, subject, &mut gaps)).collect();
        let devices = self.devices.take_backing(roots, &mut gaps);
        Ok(FileFindings { databases, files, devices, gaps })
    }
}

fn database(roots: &SysRoots, subject: ObservedDatabase, gaps: &mut VisibilityGaps) -> Database {
    let cgroup = subject.pid.and_then(|pid| match MemoryCgroup::of(roots, pid) {
        Ok(group) => group,
        Err(error) => {
            gaps.failed(subject.party, GapKind::Cgroup, &error);
            None
        }
    });
    Database {
        pid: subject.pid,
        name: unescaped(&subject.name).into_owned(),
        profile: subject.profile,
        directories: subject.directories,
        command_line: subject.pid.and_then(|pid| roots.proc.command_line(pid).ok()).unwrap_or_default(),
        uptime: subject.pid.and_then(|pid| uptime(&roots.proc, pid)),
        cgroup,
        workers: subject.workers,
    }
}
