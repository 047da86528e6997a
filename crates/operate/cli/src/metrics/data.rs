//! The data of the page as JSON: the present, and the last quarter of an hour. Sizes are in bytes, durations in
//! seconds, times in seconds since 1970; unknown values are `null`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::digest::{Name, Waited};
use super::exposition::level_name;
use super::own::Own;
use super::state::{Known, MetricsState, POINT_EVERY, Point};

#[derive(Serialize)]
struct Data {
    version: &'static str,
    now: f64,
    every: u64,
    began: f64,
    dry_run: bool,
    /// Seconds for which the guard's loop has been stuck.
    stuck: Option<u64>,
    files: Option<usize>,
    cpu_seconds: f64,
    memory: Option<u64>,
    problems: u64,
    trace: Option<&'static str>,
    lost: u64,
    sample_failures: u64,
    visibility_gaps: Vec<String>,
    databases: Vec<Database>,
    points: Vec<Moment>,
}

#[derive(Serialize)]
struct Database {
    #[serde(flatten)]
    name: Name,
    pid: Option<u32>,
    mixed: u64,
    waited: Option<Waits>,
    classes: Vec<Class>,
}

#[derive(Serialize)]
struct Class {
    name: String,
    files: u64,
    unreadable: u64,
    size: u64,
    resident: u64,
    dirty: Option<u64>,
    released: u64,
}

#[derive(Serialize)]
struct Waits {
    pauses: u64,
    throttled: f64,
    stalls: u64,
    stalled: f64,
}

#[derive(Serialize)]
struct Moment {
    at: f64,
    memory: Option<u64>,
    free: Option<u64>,
    marks: Option<[u64; 3]>,
    dirty: Option<u64>,
    resident: BTreeMap<String, u64>,
    databases: Option<Waits>,
    everyone: Option<Waits>,
    released: u64,
}

impl From<Waited> for Waits {
    fn from(waited: Waited) -> Self {
        Self {
            pauses: waited.pauses,
            throttled: waited.throttled.as_secs_f64(),
            stalls: waited.stalls,
            stalled: waited.stalled.as_secs_f64(),
        }
    }
}

/// Formats all data.
pub(super) fn write(state: &MetricsState) -> Result<String, serde_json::Error> {
    let (known, points) = state.history();
    let own = Own::read();
    crate::output::json::text(&Data {
        version: env!("CARGO_PKG_VERSION"),
        now: seconds(SystemTime::now()),
        every: POINT_EVERY.as_secs(),
        began: seconds(known.began),
        dry_run: known.dry_run,
        stuck: known.stuck().map(|since| since.as_secs()),
        files: known.tick.as_ref().map(|tick| tick.files),
        cpu_seconds: own.cpu.as_secs_f64(),
        memory: own.memory,
        problems: known.problems,
        trace: known.trace.map(|trace| level_name(trace.level)),
        lost: known.trace.map_or(0, |trace| trace.losses.total()),
        sample_failures: known.samples.failed,
        visibility_gaps: known.visibility_gaps.iter().map(super::sentence).collect(),
        databases: databases(&known),
        points: points.iter().map(moment).collect(),
    })
}

fn databases(known: &Known) -> Vec<Database> {
    let released = |name: &Name, class: super::digest::Class| {
        let key = class.0.map(|class| (name.clone(), class));
        key.and_then(|key| known.released.get(&key)).map_or(0, |released| released.bytes)
    };
    let databases = known.databases.iter().map(|seen| Database {
        pid: seen.pid,
        mixed: seen.mixed,
        waited: known.trace.and_then(|_| known.waited.get(&seen.name)).map(|waited| (*waited).into()),
        classes: seen
            .classes
            .iter()
            .map(|(class, files)| Class {
                name: class.to_string(),
                files: files.count,
                unreadable: files.unreadable,
                size: files.size,
                resident: files.resident,
                dirty: files.dirty,
                released: released(&seen.name, *class),
            })
            .collect(),
        name: seen.name.clone(),
    });
    databases.collect()
}

fn moment(point: &Point) -> Moment {
    let host = point.host;
    Moment {
        at: seconds(point.at),
        memory: host.memory.map(|memory| memory.total),
        free: host.memory.map(|memory| memory.free),
        marks: host.watermarks.map(|marks| [marks.min, marks.low, marks.high]),
        dirty: host.dirty.map(|dirty| dirty.dirty),
        resident: point.resident.iter().map(|(class, bytes)| (class.to_string(), *bytes)).collect(),
        databases: point.waited.map(|(databases, _)| databases.into()),
        everyone: point.waited.map(|(_, everyone)| everyone.into()),
        released: point.released,
    }
}

fn seconds(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
