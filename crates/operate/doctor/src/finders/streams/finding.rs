//! The finding about streams, with its evidence as text.

use std::collections::HashMap;

use pagekeeper_kernel::Inode;
use pagekeeper_observe::{Database, File};
use pagekeeper_text::{ByteSize, duration, escaped, rate, unescaped};

use super::fixes::{fixes, pagekeeper};
use super::{CacheLoss, StreamingProcess, data_files};
use crate::phrases::per_second;
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
    let added = per_second(main.added, observation.period()).unwrap_or_default();
    let mut evidence: Vec<Evidence> =
        streams.iter().take(LISTED_STREAMS_MAX).map(|stream| of_stream(observation, stream, &data)).collect();
    if streams.len() > LISTED_STREAMS_MAX {
        let others = &streams[LISTED_STREAMS_MAX..];
        let bytes: u64 = others.iter().map(|stream| stream.added).sum();
        evidence.push(
            Evidence::new(format!("{} more processes brought {} in", others.len(), ByteSize(bytes)))
                .with("processes", others.len())
                .with("added_bytes", bytes),
        );
    }
    evidence.push(of_loss(observation, loss));
    evidence.extend(of_refaults(observation, loss));
    evidence.push(of_memory(observation, database, main));
    Finding {
        kind: Kind::Stream,
        severity: if missed >= SERIOUS_REREADS_RATE { Severity::Serious } else { Severity::Warning },
        database: Some(observation.subject(index)),
        title: if main.dropped() > main.added {
            format!(
                "{} (process {}) drops its pages from the page cache, {}",
                main.name,
                main.pid,
                rate(per_second(main.dropped(), observation.period()).unwrap_or_default())
            )
        } else {
            format!(
                "{} (process {}) {} {} through the page cache and pushes its pages out",
                main.name,
                main.pid,
                main.verb(),
                rate(added)
            )
        },
        evidence,
        cost: Cost::estimated(format!(
            "{} that it has to read from storage again; in a measurement, a stream of 200 to 400 MiB/s \
             beside a hot set that just fitted halved the throughput or worse",
            rate(missed)
        )),
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
    let own = match stream.added_own {
        0 => String::new(),
        bytes => format!("; {} of it was the database's own data", ByteSize(bytes)),
    };
    let dropped = match stream.dropped() {
        0 => String::new(),
        bytes => format!("; it dropped {} of the database's data itself", ByteSize(bytes)),
    };
    let text = format!(
        "{} (process {}{}) brought {} into the page cache in {}, {}, {whose}{own}{dropped}",
        stream.name,
        stream.pid,
        title.map(|title| format!(", \"{}\"", shortened(title))).unwrap_or_default(),
        ByteSize(stream.added),
        duration(period),
        rate(per_second(stream.added, period).unwrap_or_default()),
    );
    let mut evidence = Evidence::new(text)
        .with("process", stream.pid)
        .with("task", stream.name)
        .with("added_bytes", stream.added)
        .with("added_bytes_per_second", per_second(stream.added, period))
        .with("added_of_database_bytes", stream.added_own)
        .with("dropped_bytes", stream.dropped())
        .with("worker", stream.worker);
    if let Some(path) = path {
        evidence = evidence.with("path", unescaped(path));
    }
    evidence
}

fn of_loss(observation: &Observation<'_>, loss: &CacheLoss) -> Evidence {
    let period = observation.period();
    let gone = match loss.evicted {
        Some(bytes @ 1..) => format!("; {} more than before were missing for it at the end", ByteSize(bytes)),
        _ => String::new(),
    };
    let mut evidence = Evidence::new(format!(
        "meanwhile {} of its data left the page cache, {}{gone}; its own processes brought {} in, {} (first \
         reads are \
         among them, if there were any)",
        ByteSize(loss.pushed),
        rate(per_second(loss.pushed, period).unwrap_or_default()),
        ByteSize(loss.came_back),
        rate(per_second(loss.came_back, period).unwrap_or_default()),
    ))
    .with("pushed_out_bytes", loss.pushed)
    .with("read_again_bytes", loss.came_back)
    .with("read_again_bytes_per_second", per_second(loss.came_back, period));
    if let Some(evicted) = loss.evicted {
        evidence = evidence.with("evicted_growth_bytes", evicted);
    }
    evidence
}

pub(super) fn of_refaults(observation: &Observation<'_>, loss: &CacheLoss) -> Option<Evidence> {
    let (bytes, place) = loss.refaulted?;
    let per_second = per_second(bytes, observation.period())?;
    Some(
        Evidence::new(format!(
            "the kernel counted {} read in again after it had been pushed out, {}, {place}",
            ByteSize(bytes),
            rate(per_second)
        ))
        .with("refaulted_bytes", bytes)
        .with("refaulted_bytes_per_second", per_second),
    )
}

/// Describes the memory that both share.
fn of_memory(observation: &Observation<'_>, database: &Database, stream: &StreamingProcess<'_>) -> Evidence {
    let own = database.cgroup.as_ref();
    let limited = own.and_then(|group| Some((group, group.effective_limit?)));
    let same = own.zip(stream.streamer.and_then(|streamer| streamer.cgroup.as_ref()));
    let same = same.is_some_and(|(a, b)| a.directory == b.directory);
    let text = match limited {
        Some((group, limit)) if same => {
            format!(
                "both are in the memory cgroup {}, with {} in all",
                escaped(&group.directory),
                ByteSize(limit)
            )
        }
        Some((group, limit)) => format!(
            "the database is in the memory cgroup {}, with {} in all; the stream is in another, or had ended",
            escaped(&group.directory),
            ByteSize(limit)
        ),
        None => {
            let reclaimed = observation
                .reclaimed_by_host()
                .map(|bytes| format!(", which had to reclaim {}", ByteSize(bytes)));
            format!(
                "no memory cgroup sets a limit to the database: both share the host's memory{}",
                reclaimed.unwrap_or_default()
            )
        }
    };
    let mut evidence = Evidence::new(text).with("same_memory_cgroup", same);
    if let Some((group, limit)) = limited {
        evidence =
            evidence.with("memory_cgroup", unescaped(&group.directory)).with("memory_limit_bytes", limit);
    }
    evidence
}

/// Returns the beginning of a long title.
fn shortened(title: &str) -> String {
    const TITLE_CHARS_MAX: usize = 60;
    if title.chars().count() <= TITLE_CHARS_MAX {
        return title.to_owned();
    }
    title.chars().take(TITLE_CHARS_MAX).chain(['…']).collect()
}
