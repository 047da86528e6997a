//! Looking again and again, and what changed in between.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::pressure::MemoryCgroup;
use pagekeeper_trace::{MachineCounts, TraceSource, Tracer};

use crate::devices::Devices;
use crate::files::Files;
use crate::limits::{Kind, Limits};
use crate::subjects::{self, Earlier, Subject};
use crate::woods::Woods;
use crate::{
    Database, HostChange, Look, ObserveError, ObserverOptions, Scope, directories, host, openers, unseen,
};

/// Looks at a host and the databases on it, once or again and again.
#[derive(Debug)]
pub struct Observer {
    options: ObserverOptions,
    profiles: Vec<Arc<Profile>>,
    tracer: Option<Tracer>,
    before: Option<(Instant, MachineCounts)>,
    earlier: Earlier,
    woods: Woods,
    devices: Devices,
}

impl Observer {
    /// Gets ready, and starts to trace where that is asked for.
    ///
    /// Fails only where not even the kernel's plain counters can be read; the lack of a better way to trace is told by
    /// [`Observer::source`] and by each look.
    pub fn start(options: ObserverOptions) -> Result<Self, ObserveError> {
        let tracer = options.trace.as_ref().map(Tracer::start).transpose()?;
        let profiles = options.profiles.iter().cloned().map(Arc::new).collect();
        Ok(Self {
            options,
            profiles,
            tracer,
            before: None,
            earlier: Earlier::default(),
            woods: Woods::default(),
            devices: Devices::default(),
        })
    }

    /// Where the counts of [`HostChange::trace`] come from; `None` without tracing.
    pub fn source(&self) -> Option<&TraceSource> {
        self.tracer.as_ref().map(Tracer::source)
    }

    /// Looks. The first look has no [`Look::change`], each later one what changed since the look before.
    ///
    /// The first looks at every file: some 5 µs each, more for what has gigabytes in memory. Later ones look again at
    /// as many as 2 % of the time between looks allows (50 ms at least), those that somebody has open or that were
    /// dirty before all others: where there are 100,000s of files, what is said of the others may be some looks old.
    pub fn look(&mut self) -> Result<Look, ObserveError> {
        self.look_for(false)
    }

    /// As [`Self::look`], however long it takes: nothing that it says is older.
    pub fn look_at_all(&mut self) -> Result<Look, ObserveError> {
        self.look_for(true)
    }

    fn look_for(&mut self, as_long_as_it_takes: bool) -> Result<Look, ObserveError> {
        let change = self.change()?;
        let mut limits = Limits::default();
        let roots = &self.options.roots;
        let mut subjects =
            subjects::find(&roots.proc, &self.options.scope, &self.profiles, &mut self.earlier, &mut limits)?;
        let mut files = Files::default();
        self.woods.begin(subjects.iter().map(|subject| subject.directories.len()).sum());
        if as_long_as_it_takes {
            self.woods.take_all_time();
        }
        for index in 0..subjects.len() {
            files.take_directories(roots, &subjects, index, &mut self.woods, &mut self.devices, &mut limits);
        }
        for (index, subject) in subjects.iter().enumerate() {
            files.take_held(roots, subject, index, &mut self.devices, &mut limits);
        }
        let known: HashSet<u32> = subjects.iter().flat_map(Subject::pids).collect();
        openers::find(&roots.proc, &mut files, &known, &mut limits)?;
        self.woods.end(files.inodes().filter(|(_, file)| !file.openers.is_empty()).map(|(inode, _)| inode));
        if matches!(self.options.scope, Scope::Directories(_)) {
            directories::find_processes(&roots.proc, &mut subjects, &mut files, &self.profiles);
        }
        let databases = subjects.into_iter().map(|subject| self.database(subject, &mut limits)).collect();
        let devices = self.devices.take_backing(&self.options.roots, &mut limits);
        let host = host::read(&self.options.roots, devices)?;
        unseen::of_processes(&self.options.roots, &mut limits);
        unseen::of_host(&host, &mut limits);
        if let Some(tracer) = &self.tracer {
            unseen::of_tracing(tracer, &mut limits);
        }
        Ok(Look {
            at: SystemTime::now(),
            host,
            change,
            databases,
            files: files.into_files(),
            limits: limits.into_said(),
        })
    }

    fn database(&self, subject: Subject, limits: &mut Limits) -> Database {
        let roots = &self.options.roots;
        let cgroup = subject.pid.and_then(|pid| match MemoryCgroup::of(roots, pid) {
            Ok(group) => group,
            Err(error) => {
                limits.failed(Kind::Cgroup, &error);
                None
            }
        });
        Database {
            pid: subject.pid,
            name: subject.name.to_string_lossy().into_owned(),
            profile: subject.profile,
            directories: subject.directories,
            command_line: subject.pid.and_then(|pid| roots.proc.command_line(pid).ok()).unwrap_or_default(),
            uptime: subject.pid.and_then(|pid| self.uptime(pid)),
            cgroup,
            workers: subject.workers,
        }
    }

    /// How long a process has been running.
    fn uptime(&self, pid: u32) -> Option<Duration> {
        let started = self.options.roots.proc.start_time(pid).ok()?;
        let text = std::fs::read_to_string(self.options.roots.proc.path().join("uptime")).ok()?;
        let host: f64 = text.split_whitespace().next()?.parse().ok()?;
        let ticks = rustix::param::clock_ticks_per_second();
        Duration::try_from_secs_f64(host - started as f64 / ticks as f64).ok()
    }

    /// What changed since the look before.
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
