//! The fixes against a stream.

use std::collections::HashMap;
use std::fmt::Display;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::CgroupVersion;
use pagekeeper_observe::File;
use pagekeeper_text::{ByteSize, shell_quoted};

use super::StreamingProcess;
use crate::advice::step;
use crate::programs::{guard_follows, run_as_stream};
use crate::texts::{known, text};
use crate::{Confidence, Fix};

/// Returns the fixes: running the program under pagekeeper first, then its own options, if it has
/// any.
pub(super) fn fixes(stream: &StreamingProcess<'_>) -> Vec<Fix> {
    // The work of a server's own worker does not belong to the program that requested it.
    let run = run_as_stream(stream.name, Confidence::Measured, evidence(stream)).filter(|_| !stream.worker);
    let mut fixes: Vec<Fix> = run.into_iter().collect();
    let title = stream.streamer.map(|streamer| streamer.title.as_str()).unwrap_or_default();
    let own = match stream.name {
        "dd" => Some("dd-direct"),
        _ if stream.worker && title.contains("backup") => Some("pg-basebackup-rate"),
        "mariabackup" | "mariadb-backup" => Some("mariabackup-throttle"),
        "rsync" => Some("rsync-rate"),
        _ => None,
    };
    fixes.extend(own.map(|id| step(id, &[("evidence", &evidence(stream))])));
    fixes.extend(own_group(stream));
    fixes
}

fn evidence(stream: &StreamingProcess<'_>) -> String {
    format!("it brought {} into the page cache while it was watched", ByteSize(stream.added))
}

/// Returns the fix of a separate memory cgroup for the stream, in which it reclaims its own pages.
fn own_group(stream: &StreamingProcess<'_>) -> Option<Fix> {
    // The server's own worker stays in the server's group.
    if stream.worker {
        return None;
    }
    let version = stream.streamer.and_then(|streamer| streamer.cgroup.as_ref()).map(|group| group.version);
    let group = stream.streamer.and_then(|streamer| streamer.group_beside.as_ref());
    if let (Some(CgroupVersion::V1), Some(group)) = (version, group) {
        let values: &[(&str, &dyn Display)] =
            &[("group", &shell_quoted(group)), ("pid", &stream.pid), ("evidence", &evidence(stream))];
        return Some(step("stream-group", values));
    }
    let program = shell_quoted(stream.name);
    Some(step("stream-scope", &[("program", &program), ("evidence", &evidence(stream))]))
}

/// Describes what pagekeeper can do about it now.
pub(super) fn pagekeeper(stream: &StreamingProcess<'_>, data: &HashMap<Inode, &File>) -> String {
    let foreign = stream.files.iter().find(|(_, inode)| !data.contains_key(inode));
    let path = foreign.and_then(|(_, inode)| stream.open(*inode)).map(|file| shell_quoted(&file.path));
    let path = known(path);
    if stream.worker {
        return text("streams.pagekeeper-worker", &[("path", &path)]);
    }
    text("streams.pagekeeper", &[("path", &path), ("guard", &guard_follows(stream.name))])
}
