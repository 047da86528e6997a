//! All metrics in text form for Prometheus: `OpenMetrics` 1.0, written by `prometheus-client`, and derived from it
//! the older text format 0.0.4.
//!
//! Invariants: sizes are in bytes, durations in seconds. An unknown value has no sample, and is never zero. Labels
//! are those of [`Name`], the class, and fixed words of this module. Paths are labels only for the requested
//! number of files.

use std::fmt;
use std::time::{Duration, SystemTime};

use pagekeeper_trace::TraceLevel;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::digest::{Files, Name, Seen};
use super::fleet::Fleet;
use super::format::Format;
use super::host::RESOURCES;
use super::own::Own;
use super::plain::plain;
use super::state::Known;

/// Formats all metrics.
pub(super) fn write(known: Known, own: Own, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("pagekeeper");
    registry.register_collector(Box::new(Exposition { known, own }));
    let mut text = String::with_capacity(16 << 10);
    encode(&mut text, &registry)?;
    Ok(match format {
        Format::OpenMetrics => text,
        Format::Plain => plain(&text),
    })
}

#[derive(Debug)]
struct Exposition {
    known: Known,
    own: Own,
}

type Labels = Vec<(&'static str, String)>;

/// A sample's value. Integers stay exact.
#[derive(Debug, Clone, Copy)]
enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<Duration> for Value {
    fn from(value: Duration) -> Self {
        Self::Real(value.as_secs_f64())
    }
}

impl From<SystemTime> for Value {
    fn from(value: SystemTime) -> Self {
        value.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().into()
    }
}

/// The name of a metric family (without unit and `_total`), its unit, and its help text.
type Family = (&'static str, Option<Unit>, &'static str);

struct Sheet<'a>(DescriptorEncoder<'a>);

impl Sheet<'_> {
    fn gauge<V: Into<Value>>(
        &mut self,
        (name, unit, help): Family,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            write_gauge(&mut family, &labels, value.into())?;
        }
        Ok(())
    }

    fn counter<V: Into<Value>>(
        &mut self,
        (name, unit, help): Family,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in samples {
            write_counter(&mut family, &labels, value.into())?;
        }
        Ok(())
    }
}

fn write_gauge(family: &mut MetricEncoder<'_>, labels: &Labels, value: Value) -> fmt::Result {
    let write = |metric: &mut MetricEncoder<'_>| match value {
        Value::Whole(value) => metric.encode_gauge(&value),
        Value::Real(value) => metric.encode_gauge(&value),
    };
    if labels.is_empty() { write(family) } else { write(&mut family.encode_family(labels)?) }
}

fn write_counter(family: &mut MetricEncoder<'_>, labels: &Labels, value: Value) -> fmt::Result {
    let write = |metric: &mut MetricEncoder<'_>| match value {
        Value::Whole(value) => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
        Value::Real(value) => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
    };
    if labels.is_empty() { write(family) } else { write(&mut family.encode_family(labels)?) }
}

/// Returns the only sample of a family.
fn one<V>(value: V) -> [(Labels, V); 1] {
    [(Labels::new(), value)]
}

/// Returns the only sample of a family, if its value is known.
fn known<V>(value: Option<V>) -> Option<(Labels, V)> {
    value.map(|value| (Labels::new(), value))
}

fn labels(name: &Name) -> Labels {
    vec![
        ("database", name.database.clone()),
        ("directory", name.directory.clone()),
        ("cgroup", name.cgroup.clone()),
    ]
}

fn labels_and(name: &Name, key: &'static str, value: &impl ToString) -> Labels {
    let mut labels = labels(name);
    labels.push((key, value.to_string()));
    labels
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sheet = Sheet(encoder);
        self.databases(&mut sheet)?;
        self.acts(&mut sheet)?;
        self.waits(&mut sheet)?;
        self.host(&mut sheet)?;
        self.guard(&mut sheet)?;
        self.fleet(&mut sheet)?;
        self.watching(&mut sheet)
    }
}

impl Exposition {
    fn by_class<V>(&self, figure: impl Fn(&Files) -> Option<V>) -> Vec<(Labels, V)> {
        let classes = self
            .known
            .databases
            .iter()
            .flat_map(|seen| seen.classes.iter().map(move |(class, files)| (&seen.name, class, files)));
        classes
            .filter_map(|(name, class, files)| Some((labels_and(name, "class", class), figure(files)?)))
            .collect()
    }

    fn databases(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let seen = |files: &Files| files.count > files.unreadable;
        let databases = || self.known.databases.iter();
        sheet.gauge(
            ("database_up", None, "1 for each database that the last sample found."),
            databases().map(|seen| (labels(&seen.name), true)),
        )?;
        sheet.gauge(
            ("resident", Some(Unit::Bytes), "Bytes of the database's files in the page cache."),
            self.by_class(|files| seen(files).then_some(files.resident)),
        )?;
        sheet.gauge(
            (
                "dirty",
                Some(Unit::Bytes),
                "Resident bytes of the database's files that are not yet written to disk.",
            ),
            self.by_class(|files| files.dirty.filter(|_| seen(files))),
        )?;
        sheet.gauge(
            (
                "writeback",
                Some(Unit::Bytes),
                "Resident bytes of the database's files that are being written to disk.",
            ),
            self.by_class(|files| files.writeback.filter(|_| seen(files))),
        )?;
        sheet.gauge(
            ("file_size", Some(Unit::Bytes), "Sizes of the database's files together."),
            self.by_class(|files| Some(files.size)),
        )?;
        sheet.gauge(("files", None, "Files of the database."), self.by_class(|files| Some(files.count)))?;
        sheet.gauge(
            ("unreadable_files", None, "Files whose residency can't be read; they are not in the bytes."),
            self.by_class(|files| Some(files.unreadable)),
        )?;
        sheet.gauge(
            ("mixed_files", None, "Files that are open past the page cache, and through it by another program than their database."),
            databases().map(|seen| (labels(&seen.name), seen.mixed)),
        )?;
        sheet.gauge(
            (
                "top_file_resident",
                Some(Unit::Bytes),
                "Resident bytes of the files with most of them (--metrics-files).",
            ),
            self.known.top.iter().map(|top| {
                let mut labels = labels_and(&top.name, "class", &top.class);
                labels.push(("path", top.path.clone()));
                (labels, top.resident)
            }),
        )
    }

    fn acts(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let streamed = &self.known.streamed;
        let released = || {
            let released = self.known.released.iter();
            released.map(|((name, class), released)| (labels_and(name, "class", class), released))
        };
        sheet.counter(
            ("acts", None, "Releases of, and starts of writeback for, files of the database."),
            released().map(|(labels, released)| (labels, released.acts)),
        )?;
        sheet.counter(
            ("released", Some(Unit::Bytes), "Bytes released from the page cache."),
            released().map(|(labels, released)| (labels, released.bytes)),
        )?;
        sheet.counter(
            (
                "kept",
                Some(Unit::Bytes),
                "Bytes that were to be released, and resisted at the time; they are tried again.",
            ),
            released().map(|(labels, released)| (labels, released.kept)),
        )?;
        sheet.counter(
            (
                "read_back",
                Some(Unit::Bytes),
                "Bytes that were released, and that somebody read back since: from the device, which would not have been needed.",
            ),
            released().map(|(labels, released)| (labels, released.read_back)),
        )?;
        sheet.counter(
            (
                "stream_released",
                Some(Unit::Bytes),
                "Bytes released behind streaming programs, which they brought into the page cache.",
            ),
            streamed
                .released_by_program
                .iter()
                .map(|(program, bytes)| (vec![("program", program.clone())], *bytes)),
        )?;
        sheet.counter(
            (
                "stream_user_released",
                Some(Unit::Bytes),
                "Bytes released behind streaming programs, by the number of the user who ran them.",
            ),
            streamed.released_by_user.iter().map(|(user, bytes)| {
                let user = user.map_or_else(|| "other".to_owned(), |user| user.to_string());
                (vec![("user", user)], *bytes)
            }),
        )?;
        sheet.counter(
            ("stream_added", Some(Unit::Bytes), "Bytes that streaming programs brought into the page cache."),
            one(streamed.totals.added),
        )?;
        sheet.counter(
            (
                "stream_lost",
                Some(Unit::Bytes),
                "Bytes that streaming programs brought in unseen, since events found no room.",
            ),
            one(streamed.lost_bytes),
        )?;
        sheet.gauge(
            (
                "stream_left",
                Some(Unit::Bytes),
                "Bytes that streaming programs brought in, and that are resident or were given up.",
            ),
            one(streamed.totals.resident),
        )?;
        sheet.gauge(
            ("stream_processes", None, "Streaming processes that are followed and run."),
            one(streamed.running as u64),
        )
    }

    fn waits(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let Some(trace) = self.known.trace else {
            return Ok(());
        };
        let (waited, all) = (&self.known.waited, self.known.everyone);
        if trace.pauses {
            sheet.counter(
                ("throttle_pauses", None, "Pauses of the database's threads for dirty pages."),
                waited.iter().map(|(name, waited)| (labels(name), waited.pauses)),
            )?;
            sheet.counter(
                (
                    "throttle_pause",
                    Some(Unit::Seconds),
                    "Time that the database's threads were throttled for dirty pages.",
                ),
                waited.iter().map(|(name, waited)| (labels(name), waited.throttled)),
            )?;
            sheet.counter(
                ("host_throttle_pauses", None, "Pauses of all threads of the host for dirty pages."),
                one(all.pauses),
            )?;
            sheet.counter(
                (
                    "host_throttle_pause",
                    Some(Unit::Seconds),
                    "Time that threads of the host were throttled for dirty pages.",
                ),
                one(all.throttled),
            )?;
        }
        if trace.stalls {
            sheet.counter(
                (
                    "reclaim_stalls",
                    None,
                    "Times that a thread of the database had to reclaim memory before it got some.",
                ),
                waited.iter().map(|(name, waited)| (labels(name), waited.stalls)),
            )?;
            sheet.counter(
                (
                    "reclaim_stall",
                    Some(Unit::Seconds),
                    "Time that the database's threads reclaimed memory themselves.",
                ),
                waited.iter().map(|(name, waited)| (labels(name), waited.stalled)),
            )?;
            sheet.counter(
                (
                    "host_reclaim_stalls",
                    None,
                    "Times that a thread of the host had to reclaim memory before it got some.",
                ),
                one(all.stalls),
            )?;
            sheet.counter(
                (
                    "host_reclaim_stall",
                    Some(Unit::Seconds),
                    "Time that threads of the host reclaimed memory themselves.",
                ),
                one(all.stalled),
            )?;
        }
        Ok(())
    }

    fn host(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let host = &self.known.host;
        let memory = host.memory;
        for (family, bytes) in [
            (("host_memory", Some(Unit::Bytes), "Memory of the host."), memory.map(|memory| memory.total)),
            (
                ("host_memory_free", Some(Unit::Bytes), "Memory that nobody uses."),
                memory.map(|memory| memory.free),
            ),
            (
                ("host_memory_available", Some(Unit::Bytes), "Memory that could be had without swapping."),
                memory.map(|memory| memory.available),
            ),
            (
                ("host_page_cache", Some(Unit::Bytes), "Page cache, tmpfs and shared memory included."),
                memory.map(|memory| memory.cached),
            ),
            (
                ("host_dirty", Some(Unit::Bytes), "Dirty page cache of the host."),
                host.dirty.map(|dirty| dirty.dirty),
            ),
            (
                (
                    "host_writeback",
                    Some(Unit::Bytes),
                    "Page cache of the host that is being written to disk.",
                ),
                host.dirty.map(|dirty| dirty.writeback),
            ),
        ] {
            sheet.gauge(family, known(bytes))?;
        }
        let level = |name: &str, bytes: u64| (vec![("level", name.to_owned())], bytes);
        let watermarks = host
            .watermarks
            .iter()
            .flat_map(|marks| [level("min", marks.min), level("low", marks.low), level("high", marks.high)]);
        sheet.gauge(
            (
                "host_watermark",
                Some(Unit::Bytes),
                "Free memory below which tasks reclaim themselves (min), the kernel begins to (low), and up to which it does (high).",
            ),
            watermarks,
        )?;
        let thresholds = host.dirty.iter().flat_map(|dirty| {
            let limits = dirty.kernel_thresholds.unwrap_or(dirty.thresholds);
            [
                level("background", limits.background),
                level("throttle", limits.background.midpoint(limits.limit)),
                level("limit", limits.limit),
            ]
        });
        sheet.gauge(
            (
                "host_dirty_threshold",
                Some(Unit::Bytes),
                "Dirty page cache at which the kernel begins to write (background), to throttle writers (throttle), and which it does not let through (limit).",
            ),
            thresholds,
        )?;
        let waits = RESOURCES.iter().zip(host.waits).flat_map(|(resource, waits)| {
            [("some", waits.some), ("full", waits.full)].into_iter().filter_map(|(share, time)| {
                let resource = resource.name().to_owned();
                Some((vec![("resource", resource), ("share", share.to_owned())], time?))
            })
        });
        sheet.counter(
            (
                "host_pressure",
                Some(Unit::Seconds),
                "Time that some tasks, or all tasks at once (full), waited for a resource (PSI).",
            ),
            waits,
        )?;
        sheet.counter(
            (
                "host_allocation_stalls",
                None,
                "Times that a task had to reclaim memory for itself, since boot.",
            ),
            known(host.allocation_stalls),
        )?;
        sheet.counter(
            (
                "host_refaulted",
                Some(Unit::Bytes),
                "Page cache that was reclaimed and had to be read again, since boot.",
            ),
            known(host.refaulted),
        )
    }

    fn fleet(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let (fleet, tick) = (&self.known.fleet, self.known.tick.as_ref());
        let each = |figure: fn(&Fleet, &Seen) -> Option<Duration>| {
            let databases = self.known.databases.iter();
            databases.filter_map(move |seen| Some((labels(&seen.name), figure(fleet, seen)?)))
        };
        for (name, help, figure) in [
            (
                "database_watched_after",
                "How long after its start, or the guard's, the database was first watched.",
                Fleet::watched_after as fn(&Fleet, &Seen) -> Option<Duration>,
            ),
            (
                "database_unwatched",
                "How long the database has been seen with logs that are not watched; 0 if they are.",
                Fleet::unwatched_for,
            ),
            ("database_tick_duration", "How long the last tick took for the database.", Fleet::took),
        ] {
            sheet.gauge((name, Some(Unit::Seconds), help), each(figure))?;
        }
        let by = |key: &'static str, (value, count): (&str, u64)| (vec![(key, value.to_owned())], count);
        sheet.counter(
            ("guard_refused", None, "Directories and files of databases that are not watched, once each."),
            fleet.refused().map(|one| by("reason", one)),
        )?;
        sheet.counter(
            ("guard_over_budget", None, "Databases that had more than the guard gives to one, once each."),
            fleet.over_budget().map(|one| by("budget", one)),
        )?;
        sheet.counter(
            ("guard_postponed_acts", None, "Acts for which a database's budget left no time in their tick."),
            one(fleet.postponed),
        )?;
        sheet.counter(
            (
                "guard_cgroup_reclaimed",
                Some(Unit::Bytes),
                "File pages reclaimed in memory cgroups, as [cgroup] asks for.",
            ),
            one(fleet.reclaimed),
        )?;
        sheet.counter(
            (
                "guard_cgroup_stops",
                None,
                "Times that reclaim in a cgroup was stopped: pages were read again, tasks waited, or the kernel found no more.",
            ),
            one(fleet.stopped),
        )?;
        let limits = ["high", "max", "oom", "oom_kill"].into_iter().zip(fleet.limits_hit);
        sheet.counter(
            (
                "guard_cgroup_limits_hit",
                None,
                "Times that limits of the cgroups that [cgroup] names took effect: as memory.events counts them, while watched.",
            ),
            limits.map(|one| by("event", one)),
        )?;
        sheet.counter(
            ("guard_shared_directories", None, "Directories found to be of two databases of one kind."),
            one(fleet.shared),
        )?;
        sheet.gauge(
            ("guard_hung_databases", None, "Databases whose file systems do not answer."),
            known(tick.map(|tick| tick.hung as u64)),
        )?;
        sheet.gauge(
            ("guard_hung", Some(Unit::Seconds), "For how long the first of them has not answered."),
            known(tick.map(|tick| tick.hung_seconds)),
        )
    }

    fn guard(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let (state, own) = (&self.known, &self.own);
        sheet
            .0
            .encode_descriptor("build", "Version of pagekeeper.", None, MetricType::Info)?
            .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        sheet.gauge(
            ("guard_start_timestamp", Some(Unit::Seconds), "When the guard was started."),
            one(state.began),
        )?;
        sheet
            .gauge(("guard_dry_run", None, "1 if nothing is released, only reported."), one(state.dry_run))?;
        sheet.gauge(
            ("guard_last_tick_timestamp", Some(Unit::Seconds), "When the guard's last tick ended."),
            known(state.ticked.map(|(_, at)| at)),
        )?;
        sheet.gauge(
            (
                "guard_patience",
                Some(Unit::Seconds),
                "The longest time since the last tick that is no reason to worry, by the configured pauses.",
            ),
            one(state.patience),
        )?;
        sheet.gauge(
            (
                "databases_dropped",
                None,
                "Databases of the last sample without series of their own: they are counted as other.",
            ),
            one(state.dropped as u64),
        )?;
        let tick = state.tick.as_ref();
        for (family, figure) in [
            (("guard_databases", None, "Databases that the guard watches."), tick.map(|tick| tick.databases)),
            (("guard_log_files", None, "Log files that the guard watches."), tick.map(|tick| tick.files)),
            (
                ("guard_followers", None, "Followers of logs that the guard sees."),
                tick.map(|tick| tick.followers),
            ),
        ] {
            sheet.gauge(family, known(figure.map(|figure| figure as u64)))?;
        }
        sheet.gauge(
            (
                "guard_log_resident",
                Some(Unit::Bytes),
                "Bytes of all watched logs in the page cache, by the last tick.",
            ),
            known(tick.map(|tick| tick.resident_bytes)),
        )?;
        sheet.counter(("guard_acts", None, "Releases and starts of writeback."), one(state.acts))?;
        sheet.counter(
            ("guard_warnings", None, "Warnings about files, once for each directory of each database."),
            one(state.warnings),
        )?;
        sheet.counter(
            ("guard_problems", None, "What could not be seen or done, reported once for each path."),
            one(state.problems),
        )?;
        sheet.counter(
            ("guard_cpu", Some(Unit::Seconds), "CPU time of the guard, metrics included."),
            one(own.cpu),
        )?;
        sheet.gauge(
            ("guard_memory", Some(Unit::Bytes), "Memory that the guard has resident."),
            known(own.memory),
        )?;
        sheet.gauge(
            ("guard_memory_peak", Some(Unit::Bytes), "The most memory that the guard had resident."),
            known(own.memory_peak),
        )?;
        let ticks = state.ticks;
        sheet
            .0
            .encode_descriptor(
                "guard_tick_duration",
                "How long the guard's ticks took, releases included.",
                Some(&Unit::Seconds),
                MetricType::Histogram,
            )?
            .encode_histogram::<NoLabelSet>(ticks.sum(), ticks.count(), &ticks.classes(), None)
    }

    fn watching(&self, sheet: &mut Sheet<'_>) -> fmt::Result {
        let samples = self.known.samples;
        sheet.counter(
            ("samples", None, "Samples of all files of the databases, for metrics."),
            one(samples.done),
        )?;
        sheet.counter(("sample_failures", None, "Samples that failed."), one(samples.failed))?;
        sheet.gauge(
            ("sample_duration", Some(Unit::Seconds), "How long the last sample took."),
            known(samples.at.map(|_| samples.took)),
        )?;
        sheet.gauge(
            ("last_sample_timestamp", Some(Unit::Seconds), "When the last sample ended."),
            known(samples.at),
        )?;
        sheet.gauge(
            (
                "visibility_gaps",
                None,
                "Things that can't be seen; the page and the guard's output say which.",
            ),
            one(self.known.visibility_gaps.len() as u64),
        )?;
        let Some(trace) = self.known.trace else {
            return Ok(());
        };
        let levels = [TraceLevel::Bpf, TraceLevel::Tracefs, TraceLevel::Counters];
        sheet.gauge(
            ("trace_source", None, "1 for where pauses and stalls are counted: in the kernel (bpf), by its trace (tracefs), or not (counters)."),
            levels.map(|level| (vec![("source", level_name(level).to_owned())], level == trace.level)),
        )?;
        if trace.level == TraceLevel::Counters {
            return Ok(());
        }
        let losses = trace.losses;
        sheet.counter(
            ("trace_lost_events", None, "Events that are not in the counts."),
            [
                ("no_room", losses.no_room),
                ("skipped", losses.skipped),
                ("overrun", losses.overrun),
                ("unread", losses.unread),
            ]
            .map(|(cause, count)| (vec![("cause", cause.to_owned())], count)),
        )
    }
}

/// Returns the label of a trace source.
pub(super) fn level_name(level: TraceLevel) -> &'static str {
    match level {
        TraceLevel::Bpf => "bpf",
        TraceLevel::Tracefs => "tracefs",
        TraceLevel::Counters => "counters",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::metrics::digest::{Class, Digest, Traced, Waited};
    use crate::metrics::host::Host;
    use crate::metrics::state::MetricsState;
    use pagekeeper_guard::StreamFigures;
    use pagekeeper_kernel::pressure::SysRoots;
    use pagekeeper_policy::FileClass;
    use std::collections::BTreeMap;

    pub(crate) fn full() -> Known {
        let state = MetricsState::new(false, Duration::from_secs(60));
        let name = Name {
            database: "mariadb".to_owned(),
            directory: "/a \"quoted\"\nplace\\".to_owned(),
            cgroup: String::new(),
        };
        let files = Files { count: 2, size: 8192, resident: u64::MAX, dirty: Some(0), ..Files::default() };
        let seen = Seen {
            name: name.clone(),
            pid: Some(1),
            user: 0,
            directories: vec!["/a".into()],
            classes: BTreeMap::from([(Class(Some(FileClass::Redo)), files), (Class(None), Files::default())]),
            mixed: 3,
        };
        let waited = Waited { pauses: 2, throttled: Duration::from_millis(1500), ..Waited::default() };
        let traced =
            Traced { pauses: true, databases: [(0, waited)].into(), everyone: waited, ..Traced::default() };
        let digest = Digest { databases: vec![seen], traced: Some(traced), ..Digest::default() };
        state.files_sampled(digest, Duration::from_millis(2), Some(TraceLevel::Bpf));
        state.ticked(
            Duration::from_millis(2),
            &[],
            &StreamFigures {
                released_by_program: [("tar".to_owned(), 7)].into(),
                released_by_user: [(Some(34), 5), (None, 2)].into(),
                lost_bytes: 3,
                ..StreamFigures::default()
            },
            [(1, Duration::from_millis(4))].into(),
        );
        state.host_sampled(&Host::read(&SysRoots::default()));
        state.known()
    }

    #[test]
    fn openmetrics_names_types_units_and_escapes() {
        let text = write(full(), Own::read(), Format::OpenMetrics).unwrap();
        for line in [
            "# TYPE pagekeeper_resident_bytes gauge",
            "# UNIT pagekeeper_resident_bytes bytes",
            "# TYPE pagekeeper_throttle_pause_seconds counter",
            "pagekeeper_build_info{version=\"0.1.0\"} 1",
            "pagekeeper_stream_released_bytes_total{program=\"tar\"} 7",
            "pagekeeper_stream_user_released_bytes_total{user=\"34\"} 5",
            "pagekeeper_stream_user_released_bytes_total{user=\"other\"} 2",
            "pagekeeper_stream_lost_bytes_total 3",
            "pagekeeper_guard_refused_total{reason=\"not-owner\"} 0",
            "pagekeeper_guard_over_budget_total{budget=\"names\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        let name = "database=\"mariadb\",directory=\"/a \\\"quoted\\\"\\nplace\\\\\",cgroup=\"\"";
        for line in [
            format!("pagekeeper_resident_bytes{{{name},class=\"redo\"}} 18446744073709551615"),
            format!("pagekeeper_throttle_pause_seconds_total{{{name}}} 1.5"),
            format!("pagekeeper_mixed_files{{{name}}} 3"),
            format!("pagekeeper_database_tick_duration_seconds{{{name}}} 0.004"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        assert!(!text.contains("reclaim_stalls_total{database"), "stalls are not traced");
        assert!(!text.contains("writeback_bytes{database"), "not known, so left out");
        assert!(!text.contains("resident_bytes{class=\"other\"}"), "no file of it was seen");
    }
}
