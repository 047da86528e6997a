//! The finding about streams, with its evidence as text.

use std::collections::HashMap;
use std::fmt::Display;

use pagekeeper_kernel::Inode;
use pagekeeper_observe::{Database, File};
use pagekeeper_text::{ByteSize, duration, escaped, rate, unescaped};

use super::fixes::{fixes, pagekeeper};
use super::{CacheLoss, StreamingProcess, data_files};
use crate::phrases::{per_second, process};
use crate::texts::{known, text};
use crate::{Cost, Evidence, Finding, Kind, Observation, Severity};

/// From this many bytes per second of rereads on, it is serious.
pub(super) const SERIOUS_REREADS_RATE: u64 = 1 << 20;
/// Maximum number of streams listed.
pub(super) const LISTED_STREAMS_MAX: usize = 3;

/// Describes what a database loses to streams, of which there is at least one.
pub(super) fn finding(
    observation: &Observation<'_>,
    index: usize,
    loss: &CacheLoss,
    streams: &[StreamingProcess<'_>],
) -> Finding {
    let database = &observation.after.databases[index];
    let data = data_files(observation, index);
    let main = &streams[0];
    let missed = per_second(loss.missed(), observation.period()).unwrap_or_default();
    let rate_of = |bytes| rate(per_second(bytes, observation.period()).unwrap_or_default());
    let mut evidence: Vec<Evidence> =
        streams.iter().take(LISTED_STREAMS_MAX).map(|stream| of_stream(observation, stream, &data)).collect();
    if streams.len() > LISTED_STREAMS_MAX {
        let others = &streams[LISTED_STREAMS_MAX..];
        let bytes: u64 = others.iter().map(|stream| stream.added).sum();
        evidence
            .push(Evidence::of("streams.more").with("processes", others.len()).with("added_bytes", bytes));
    }
    evidence.push(of_loss(observation, loss));
    evidence.extend(of_refaults(observation, loss));
    evidence.push(of_memory(observation, database, main));
    Finding {
        kind: Kind::Stream,
        severity: if missed >= SERIOUS_REREADS_RATE { Severity::Serious } else { Severity::Warning },
        database: Some(observation.subject(index)),
        title: if main.dropped() > main.added {
            text(
                "streams.title-drops",
                &[("process", &process(main.name, main.pid)), ("rate", &rate_of(main.dropped()))],
            )
        } else {
            let values: &[(&str, &dyn Display)] = &[
                ("process", &process(main.name, main.pid)),
                ("verb", &main.verb()),
                ("rate", &rate_of(main.added)),
            ];
            text("streams.title", values)
        },
        evidence,
        cost: Cost::estimated(text("streams.cost", &[("rate", &rate(missed))])),
        fixes: fixes(main),
        remarks: Vec::new(),
        pagekeeper: Some(pagekeeper(main, &data)),
    }
}

fn of_stream(
    observation: &Observation<'_>,
    stream: &StreamingProcess<'_>,
    data: &HashMap<Inode, &File>,
) -> Evidence {
    let period = observation.period();
    let path = stream.path(data);
    let title = stream.streamer.map(|streamer| streamer.title.as_str()).filter(|title| !title.is_empty());
    let whose = match path {
        Some(path) => format!("most of it of {}", escaped(path)),
        None => "of files whose names are not known: it had closed them, or ended".to_owned(),
    };
    let unless_zero = |bytes| known((bytes > 0).then_some(ByteSize(bytes)));
    Evidence::of("streams.stream")
        .with("process", stream.pid)
        .with("task", stream.name)
        .with("added_bytes", stream.added)
        .with("added_bytes_per_second", per_second(stream.added, period))
        .with("added_of_database_bytes", stream.added_own)
        .with("dropped_bytes", stream.dropped())
        .with("worker", stream.worker)
        .with_known("path", path.map(unescaped))
        .say("title", known(title.map(shortened)))
        .say("period", duration(period))
        .say("whose", whose)
        .say("own", unless_zero(stream.added_own))
        .say("dropped", unless_zero(stream.dropped()))
}

fn of_loss(observation: &Observation<'_>, loss: &CacheLoss) -> Evidence {
    let period = observation.period();
    Evidence::of("streams.loss")
        .with("pushed_out_bytes", loss.pushed)
        .with("read_again_bytes", loss.came_back)
        .with("read_again_bytes_per_second", per_second(loss.came_back, period))
        .with_known("evicted_growth_bytes", loss.evicted)
        .say("pushed", rate(per_second(loss.pushed, period).unwrap_or_default()))
        .say("gone", known(loss.evicted.filter(|bytes| *bytes > 0).map(ByteSize)))
}

pub(super) fn of_refaults(observation: &Observation<'_>, loss: &CacheLoss) -> Option<Evidence> {
    let (bytes, place) = loss.refaulted?;
    let per_second = per_second(bytes, observation.period())?;
    let evidence = Evidence::of("streams.refaults")
        .with("refaulted_bytes", bytes)
        .with("refaulted_bytes_per_second", per_second);
    Some(evidence.say("place", place))
}

/// Describes the memory that both share.
fn of_memory(observation: &Observation<'_>, database: &Database, stream: &StreamingProcess<'_>) -> Evidence {
    let own = database.cgroup.as_ref();
    let limited = own.and_then(|group| Some((group, group.effective_limit?)));
    let same = own.zip(stream.streamer.and_then(|streamer| streamer.cgroup.as_ref()));
    let same = same.is_some_and(|(a, b)| a.directory == b.directory);
    let id = match limited {
        Some(_) if same => "streams.both-in-group",
        Some(_) => "streams.database-in-group",
        None => "streams.no-group",
    };
    let limited_group = limited.map(|(group, _)| &group.directory);
    Evidence::of(id)
        .with("same_memory_cgroup", same)
        .with_known("memory_cgroup", limited_group.map(|directory| unescaped(directory)))
        .with_known("memory_limit_bytes", limited.map(|(_, limit)| limit))
        .say("group", known(limited_group.map(|directory| escaped(directory))))
        .say("reclaimed", known(observation.reclaimed_by_host().map(ByteSize)))
}

/// Returns the beginning of a long title.
fn shortened(title: &str) -> String {
    const TITLE_CHARS_MAX: usize = 60;
    if title.chars().count() <= TITLE_CHARS_MAX {
        return title.to_owned();
    }
    title.chars().take(TITLE_CHARS_MAX).chain(['…']).collect()
}
