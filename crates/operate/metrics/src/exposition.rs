//! All metrics as text for Prometheus, in the format that the client wants.
//!
//! Invariants: sizes are in bytes, durations in seconds. An unknown value has no sample, and is
//! never zero. Labels are those of [`DatabaseName`], the class, and fixed words of this module.
//! Paths are labels only for the requested number of files. The families' help texts are in
//! `families.txt`.

use std::time::Duration;

use pagekeeper_kernel::pressure::{DirtyReport, MemInfo};
use pagekeeper_kernel::process::OwnCost;
use pagekeeper_trace::TraceLevel;

use crate::digest::DatabaseFigures;
use crate::events::EventFigures;
use crate::exposition_text::{ExpositionText, SampleLabels, SampleValue};
use crate::host::PRESSURE_RESOURCES;
use crate::names::DatabaseName;
use crate::state::{MetricFigures, TraceStatus};
use crate::totals::{FileTotals, ReleaseTotals, TaskWaits};

/// Families of the host that `node_exporter` has as well. The shipped alerts need none of them.
pub(crate) const NODE_EXPORTER_FAMILIES: [&str; 5] = [
    "host_memory_available_bytes",
    "host_page_cache_bytes",
    "host_dirty_bytes",
    "host_writeback_bytes",
    "host_pressure_seconds_total",
];

/// Appends all metrics to an empty exposition, and returns its text.
pub(crate) fn write(figures: &MetricFigures, own: OwnCost, mut text: ExpositionText) -> String {
    write_databases(&mut text, figures);
    write_releases(&mut text, figures);
    write_streams(&mut text, figures);
    if let Some(trace) = figures.trace {
        write_waits(&mut text, figures, trace);
    }
    write_host_memory(&mut text, figures);
    write_host_limits(&mut text, figures);
    write_guard(&mut text, figures, own);
    write_detection(&mut text, figures);
    write_refusals(&mut text, &figures.events);
    write_samples(&mut text, figures);
    text.finish()
}

/// Returns the labels of a database, and further ones.
fn labels<const N: usize>(name: &DatabaseName, more: [(&'static str, &str); N]) -> SampleLabels {
    let DatabaseName { engine, directory, cgroup } = name;
    let labels =
        [("engine", engine.as_str()), ("directory", directory.as_str()), ("cgroup", cgroup.as_str())];
    labels.into_iter().chain(more).map(|(label, value)| (label, value.to_owned())).collect()
}

/// Returns a sample with one label.
fn with_label<V>(label: &'static str, value: &str, figure: V) -> (SampleLabels, V) {
    (vec![(label, value.to_owned())], figure)
}

fn write_databases(text: &mut ExpositionText, figures: &MetricFigures) {
    let databases = || figures.databases.iter();
    let mut by_class = |name, figure: fn(&FileTotals) -> Option<u64>| {
        let classes =
            databases().flat_map(|database| database.classes.iter().map(move |class| (database, class)));
        text.put(
            name,
            classes.map(|(database, (class, files))| {
                (labels(&database.name, [("class", class)]), figure(files))
            }),
        );
    };
    by_class("resident_bytes", |files| files.is_seen().then_some(files.resident));
    by_class("dirty_bytes", |files| files.dirty.filter(|_| files.is_seen()));
    by_class("writeback_bytes", |files| files.writeback.filter(|_| files.is_seen()));
    by_class("file_size_bytes", |files| Some(files.size));
    by_class("files", |files| Some(files.count));
    by_class("unreadable_files", |files| Some(files.unreadable));
    text.put("database_up", databases().map(|database| (labels(&database.name, []), true)));
    text.put("mixed_files", databases().map(|database| (labels(&database.name, []), database.mixed)));
    let top = figures.top.iter();
    text.put(
        "top_file_resident_bytes",
        top.map(|top| (labels(&top.name, [("class", top.class), ("path", &top.path)]), top.resident)),
    );
}

fn write_releases(text: &mut ExpositionText, figures: &MetricFigures) {
    let mut by_class = |name, figure: fn(&ReleaseTotals) -> u64| {
        let released = figures.released.iter();
        text.put(
            name,
            released.map(|((name, class), totals)| (labels(name, [("class", class)]), figure(totals))),
        );
    };
    by_class("acts_total", |totals| totals.acts);
    by_class("released_bytes_total", |totals| totals.released);
    by_class("kept_bytes_total", |totals| totals.kept);
    by_class("read_back_bytes_total", |totals| totals.read_back);
}

fn write_streams(text: &mut ExpositionText, figures: &MetricFigures) {
    let streamed = &figures.streamed;
    let by_program = streamed.released_by_program.iter();
    text.put(
        "stream_released_bytes_total",
        by_program.map(|(program, bytes)| with_label("program", program, *bytes)),
    );
    let user_label = |user: &Option<u32>| user.map_or_else(|| "other".to_owned(), |user| user.to_string());
    let by_user = streamed.released_by_user.iter();
    text.put(
        "stream_user_released_bytes_total",
        by_user.map(|(user, bytes)| with_label("user", &user_label(user), *bytes)),
    );
    text.put_one("stream_added_bytes_total", streamed.totals.added);
    text.put_one("stream_lost_bytes_total", streamed.lost_bytes);
    text.put_one("stream_left_bytes", streamed.totals.resident);
    text.put_one("stream_processes", streamed.running);
}

fn write_waits(text: &mut ExpositionText, figures: &MetricFigures, trace: TraceStatus) {
    let all = &figures.all_waits;
    if trace.pauses {
        write_by_database(text, figures, "throttle_pauses_total", |waits| waits.pauses);
        write_by_database(text, figures, "throttle_pause_seconds_total", |waits| waits.throttled);
        text.put_one("host_throttle_pauses_total", all.pauses);
        text.put_one("host_throttle_pause_seconds_total", all.throttled);
    }
    if trace.stalls {
        write_by_database(text, figures, "reclaim_stalls_total", |waits| waits.stalls);
        write_by_database(text, figures, "reclaim_stall_seconds_total", |waits| waits.stalled);
        text.put_one("host_reclaim_stalls_total", all.stalls);
        text.put_one("host_reclaim_stall_seconds_total", all.stalled);
    }
}

fn write_by_database<V: SampleValue>(
    text: &mut ExpositionText,
    figures: &MetricFigures,
    name: &str,
    figure: fn(&TaskWaits) -> V,
) {
    text.put(name, figures.waits.iter().map(|(name, waits)| (labels(name, []), figure(waits))));
}

fn write_host_memory(text: &mut ExpositionText, figures: &MetricFigures) {
    let host = &figures.host;
    let memory = |figure: fn(&MemInfo) -> u64| host.memory.as_ref().map(figure);
    let dirty = |figure: fn(&DirtyReport) -> u64| host.dirty.as_ref().map(figure);
    text.put_one("host_memory_bytes", memory(|memory| memory.total));
    text.put_one("host_memory_free_bytes", memory(|memory| memory.free));
    text.put_one("host_memory_available_bytes", memory(|memory| memory.available));
    text.put_one("host_page_cache_bytes", memory(|memory| memory.cached));
    text.put_one("host_dirty_bytes", dirty(|dirty| dirty.dirty));
    text.put_one("host_writeback_bytes", dirty(|dirty| dirty.writeback));
    text.put_one("host_allocation_stalls_total", host.allocation_stalls);
    text.put_one("host_refaulted_bytes_total", host.refaulted);
}

fn write_host_limits(text: &mut ExpositionText, figures: &MetricFigures) {
    let host = &figures.host;
    let levels = |levels: [(&str, u64); 3]| levels.map(|(level, bytes)| with_label("level", level, bytes));
    let marks = host.watermarks.map(|marks| [("min", marks.min), ("low", marks.low), ("high", marks.high)]);
    text.put("host_watermark_bytes", marks.into_iter().flat_map(levels));
    let thresholds = host.dirty.map(|dirty| {
        let limits = dirty.kernel_thresholds.unwrap_or(dirty.thresholds);
        let throttle = limits.background.midpoint(limits.limit);
        [("background", limits.background), ("throttle", throttle), ("limit", limits.limit)]
    });
    text.put("host_dirty_threshold_bytes", thresholds.into_iter().flat_map(levels));
    let shares = PRESSURE_RESOURCES.iter().zip(host.pressure).flat_map(|(resource, pressure)| {
        let some = pressure.map(|pressure| pressure.some.total);
        let full = pressure.and_then(|pressure| pressure.full).map(|full| full.total);
        let resource = || ("resource", resource.name().to_owned());
        [("some", some), ("full", full)]
            .map(|(share, waited)| (vec![resource(), ("share", share.to_owned())], waited))
    });
    text.put("host_pressure_seconds_total", shares);
}

fn write_guard(text: &mut ExpositionText, figures: &MetricFigures, own: OwnCost) {
    text.put("build_info", [with_label("version", env!("CARGO_PKG_VERSION"), true)]);
    text.put_one("process_start_time_seconds", figures.began);
    text.put_one("guard_dry_run", figures.dry_run);
    text.put_one("guard_tick_deadline_seconds", figures.deadline);
    text.put_one("guard_last_tick_timestamp_seconds", figures.ticked.map(|(_, at)| at));
    let tick = figures.events.tick.as_ref();
    text.put_one("guard_databases", tick.map(|tick| tick.databases));
    text.put_one("guard_log_files", tick.map(|tick| tick.files));
    text.put_one("guard_followers", tick.map(|tick| tick.followers));
    text.put_one("guard_log_resident_bytes", tick.map(|tick| tick.resident_bytes));
    text.put_one("guard_hung_databases", tick.map(|tick| tick.hung));
    text.put_one("guard_hung_seconds", tick.map(|tick| tick.hung_seconds));
    text.put_one("guard_acts_total", figures.acts);
    text.put_one("config_last_reload_successful", figures.is_config_current);
    text.put_one("process_cpu_seconds_total", own.cpu);
    text.put_one("process_resident_memory_bytes", own.memory);
    text.put_one("guard_memory_peak_bytes", own.memory_peak);
    text.put_histogram("guard_tick_duration_seconds", &figures.ticks);
}

fn write_detection(text: &mut ExpositionText, figures: &MetricFigures) {
    let mut each = |name, figure: fn(&EventFigures, &DatabaseFigures) -> Option<Duration>| {
        let databases = figures.databases.iter();
        text.put(
            name,
            databases.map(|database| (labels(&database.name, []), figure(&figures.events, database))),
        );
    };
    each("database_watched_after_seconds", EventFigures::watched_after);
    each("database_unwatched_seconds", EventFigures::unwatched_for);
    each("database_tick_duration_seconds", EventFigures::took);
}

fn write_refusals(text: &mut ExpositionText, events: &EventFigures) {
    text.put(
        "guard_refused_total",
        events.refused().map(|(reason, count)| with_label("reason", reason, count)),
    );
    let over_budget = events.over_budget();
    text.put(
        "guard_over_budget_total",
        over_budget.map(|(budget, count)| with_label("budget", budget, count)),
    );
    let limits = ["high", "max", "oom", "oom_kill"].into_iter().zip(events.limits_hit);
    text.put("guard_cgroup_limits_hit_total", limits.map(|(event, count)| with_label("event", event, count)));
    text.put_one("guard_postponed_acts_total", events.postponed);
    text.put_one("guard_cgroup_reclaimed_bytes_total", events.reclaimed);
    text.put_one("guard_cgroup_stops_total", events.stopped);
    text.put_one("guard_shared_directories_total", events.shared);
    text.put_one("guard_warnings_total", events.warnings);
    text.put_one("guard_problems_total", events.problems);
}

fn write_samples(text: &mut ExpositionText, figures: &MetricFigures) {
    let samples = figures.samples;
    text.put_one("samples_total", samples.done);
    text.put_one("sample_failures_total", samples.failed);
    text.put_one("sample_duration_seconds", samples.at.map(|_| samples.took));
    text.put_one("last_sample_timestamp_seconds", samples.at);
    text.put_one("databases_dropped", figures.dropped);
    text.put_one("visibility_gaps", figures.visibility_gaps.len());
    let Some(trace) = figures.trace else { return };
    let levels = [TraceLevel::Bpf, TraceLevel::Counters];
    text.put(
        "trace_source",
        levels.map(|level| with_label("source", level_label(level), level == trace.level)),
    );
    if trace.level != TraceLevel::Counters {
        let losses = trace.losses;
        let causes = [("no_room", losses.no_room), ("skipped", losses.skipped)];
        text.put("trace_lost_events_total", causes.map(|(cause, count)| with_label("cause", cause, count)));
    }
}

/// Returns the label of a trace source.
pub(crate) fn level_label(level: TraceLevel) -> &'static str {
    match level {
        TraceLevel::Bpf => "bpf",
        TraceLevel::Counters => "counters",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::headers::ExpositionFormat;

    use std::collections::BTreeMap;

    use pagekeeper_guard::StreamReport;
    use pagekeeper_kernel::pressure::SysRoots;

    use crate::digest::{SampleDigest, TracedWaits};
    use crate::exposition_text::family_names;
    use crate::host::HostFigures;
    use crate::state::MetricsState;

    fn full() -> MetricFigures {
        let state = MetricsState::new(false, Duration::from_secs(60));
        let name = DatabaseName {
            engine: "mariadb".to_owned(),
            directory: "/a \"quoted\"\nplace\\".to_owned(),
            cgroup: String::new(),
        };
        let files =
            FileTotals { count: 2, size: 8192, resident: u64::MAX, dirty: Some(0), ..FileTotals::default() };
        let seen = DatabaseFigures {
            name: name.clone(),
            pid: Some(1),
            user: 0,
            directories: vec!["/a".into()],
            classes: BTreeMap::from([("redo", files), ("other", FileTotals::default())]),
            mixed: 3,
        };
        let waited = TaskWaits { pauses: 2, throttled: Duration::from_millis(1500), ..TaskWaits::default() };
        let traced = TracedWaits {
            pauses: true,
            databases: [(0, waited)].into(),
            everyone: waited,
            ..TracedWaits::default()
        };
        let digest = SampleDigest { databases: vec![seen], traced: Some(traced), ..SampleDigest::default() };
        state.files_sampled(digest, Duration::from_millis(2), Some(TraceLevel::Bpf));
        state.ticked(
            Duration::from_millis(2),
            &[],
            &StreamReport {
                released_by_program: [("tar".to_owned(), 7)].into(),
                released_by_user: [(Some(34), 5), (None, 2)].into(),
                lost_bytes: 3,
                ..StreamReport::default()
            },
            [(1, Duration::from_millis(4))].into(),
        );
        state.host_sampled(&HostFigures::read(&SysRoots::default()));
        state.figures()
    }

    #[test]
    fn openmetrics_names_types_units_and_escapes() {
        let text = write(&full(), OwnCost::read(), ExpositionText::new(ExpositionFormat::OpenMetrics));
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
        let name = "engine=\"mariadb\",directory=\"/a \\\"quoted\\\"\\nplace\\\\\",cgroup=\"\"";
        for line in [
            format!("pagekeeper_resident_bytes{{{name},class=\"redo\"}} 18446744073709551615"),
            format!("pagekeeper_throttle_pause_seconds_total{{{name}}} 1.5"),
            format!("pagekeeper_mixed_files{{{name}}} 3"),
            format!("pagekeeper_database_tick_duration_seconds{{{name}}} 0.004"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        assert!(!text.contains("reclaim_stalls_total{engine"), "stalls are not traced");
        assert!(!text.contains("writeback_bytes{engine"), "not known, so left out");
        assert!(!text.contains("resident_bytes{class=\"other\"}"), "no file of it was seen");
    }

    #[test]
    fn each_family_has_its_help_text() {
        let text = write(&full(), OwnCost::read(), ExpositionText::new(ExpositionFormat::Plain));
        for line in text.lines().filter(|line| line.starts_with("# HELP ")) {
            assert!(line.ends_with('.') && line.split(' ').count() > 3, "{line}");
        }
        for name in family_names() {
            assert!(include_str!("exposition.rs").contains(&format!("\"{name}\"")), "{name} is not written");
        }
    }
}
