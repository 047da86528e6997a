//! The data of the page as JSON: the present, and the last quarter of an hour. Sizes are in bytes,
//! durations in seconds, times in seconds since 1970; unknown values are `null`.

use pagekeeper_kernel::process::OwnCost;
use pagekeeper_text::json_escaped;
use serde::Serialize;
use serde_json::json;

use crate::digest::DatabaseFigures;
use crate::exposition::level_label;
use crate::names::DatabaseName;
use crate::state::{MetricFigures, POINT_INTERVAL, unix_now};
use crate::totals::{FileTotals, TaskWaits};

#[derive(Serialize)]
struct DatabaseRow<'a> {
    #[serde(flatten)]
    name: &'a DatabaseName,
    pid: Option<u32>,
    mixed: u64,
    waited: Option<&'a TaskWaits>,
    classes: Vec<ClassRow>,
}

#[derive(Serialize)]
struct ClassRow {
    name: &'static str,
    #[serde(flatten)]
    files: FileTotals,
    released: u64,
}

/// Formats all data, on one line that is safe for terminals.
pub(crate) fn write(figures: &MetricFigures) -> String {
    let (own, events) = (OwnCost::read(), &figures.events);
    let data = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": unix_now(),
        "every": POINT_INTERVAL.as_secs(),
        "began": figures.began,
        "dry_run": figures.dry_run,
        // Seconds for which the guard's loop has been stuck.
        "stuck": figures.stuck().map(|since| since.as_secs()),
        "files": events.tick.as_ref().map(|tick| tick.files),
        "cpu_seconds": own.cpu.as_secs_f64(),
        "memory": own.memory,
        "problems": events.problems,
        "trace": figures.trace.map(|trace| level_label(trace.level)),
        "lost": figures.trace.map_or(0, |trace| trace.losses.total()),
        "sample_failures": figures.samples.failed,
        "visibility_gaps": figures.visibility_gaps,
        "databases": figures.databases.iter().map(|database| row(figures, database)).collect::<Vec<_>>(),
        "points": figures.history,
    });
    json_escaped(&data.to_string()).into_owned()
}

fn row<'a>(figures: &'a MetricFigures, database: &'a DatabaseFigures) -> DatabaseRow<'a> {
    let released = |class| {
        let totals = figures.released.get(&(database.name.clone(), class));
        totals.map_or(0, |totals| totals.released)
    };
    let classes = database.classes.iter();
    DatabaseRow {
        name: &database.name,
        pid: database.pid,
        mixed: database.mixed,
        waited: figures.trace.and_then(|_| figures.waits.get(&database.name)),
        classes: classes
            .map(|(name, files)| ClassRow { name, files: *files, released: released(*name) })
            .collect(),
    }
}
