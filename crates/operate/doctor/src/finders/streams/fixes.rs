//! The fixes against a stream.

use std::collections::HashMap;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::CgroupVersion;
use pagekeeper_observe::File;
use pagekeeper_text::{ByteSize, shell_quoted};

use super::StreamingProcess;
use crate::programs::{guard_follows, run_as_stream};
use crate::{Confidence, Fix, Terms};

/// The size of a separate group, as `memory.limit_in_bytes` and systemd take it. Streams need a few
/// MiB for read-ahead and dirty pages.
const STREAM_GROUP_SIZE: &str = "256M";

/// Returns the fixes: running the program under pagekeeper first, then its own options, if it has
/// any.
pub(super) fn fixes(stream: &StreamingProcess<'_>) -> Vec<Fix> {
    // The work of a server's own worker does not belong to the program that requested it.
    let run = run_as_stream(stream.name, Confidence::Measured, evidence(stream)).filter(|_| !stream.worker);
    let mut fixes: Vec<Fix> = run.into_iter().collect();
    let title = stream.streamer.map(|streamer| streamer.title.as_str()).unwrap_or_default();
    let mut command = |act: &str, does: &str, costs: &str| {
        fixes.push(Fix::command(act, does, terms(stream, costs, "start it as before")));
    };
    match stream.name {
        "dd" => command(
            "dd iflag=direct oflag=direct bs=1M ...",
            "iflag for what it reads, oflag for what it writes: both bypass the page cache, where the \
             file system allows that",
            "without read-ahead: give it a large bs",
        ),
        _ if stream.worker && title.contains("backup") => command(
            "pg_basebackup --max-rate=32M ...",
            "it can't bypass the page cache; at a lower rate it leaves the database more time to use its pages \
             again. The \
             server reads for it, in the server's own memory",
            "the backup takes longer",
        ),
        "mariabackup" | "mariadb-backup" => command(
            "mariabackup --backup --throttle=100 ...",
            "limits reads and writes per second; it drops all pages that it has read, even those \
                 that others use, and has no option against that",
            "the backup takes longer, and keeps up with the redo log less easily",
        ),
        "rsync" => command(
            "rsync --bwlimit=32M ...",
            "it can't bypass the page cache; at a lower rate it leaves the database more time to use its pages again",
            "it takes longer",
        ),
        _ => {}
    }
    fixes.extend(own_group(stream));
    fixes
}

fn evidence(stream: &StreamingProcess<'_>) -> String {
    format!("it brought {} into the page cache while it was watched", ByteSize(stream.added))
}

fn terms(stream: &StreamingProcess<'_>, costs: &str, undo: &str) -> Terms {
    Terms::anywhere(Confidence::Measured, evidence(stream), costs, undo)
}

/// Returns the fix of a separate memory cgroup for the stream, in which it reclaims its own pages.
fn own_group(stream: &StreamingProcess<'_>) -> Option<Fix> {
    // The server's own worker stays in the server's group.
    if stream.worker {
        return None;
    }
    let version = stream.streamer.and_then(|streamer| streamer.cgroup.as_ref()).map(|group| group.version);
    let group = stream.streamer.and_then(|streamer| streamer.group_beside.as_ref());
    Some(match (version, group) {
        (Some(CgroupVersion::V1), Some(group)) => {
            let group = shell_quoted(group);
            Fix::command(
                format!(
                    "mkdir {group} && echo {STREAM_GROUP_SIZE} >{group}/memory.limit_in_bytes && echo {} >{group}/cgroup.procs",
                    stream.pid
                ),
                "at once, for this run: from now on it evicts only its own pages. \
                       Remove the group when it has ended (rmdir)",
                terms(
                    stream,
                    "it can use at most that much page cache, and may run slower",
                    &format!("move it back: echo {} into cgroup.procs of the group it came from", stream.pid),
                ),
            )
        }
        _ => Fix::command(
            format!(
                "systemd-run --scope -p MemoryHigh={STREAM_GROUP_SIZE} -- {} ...",
                shell_quoted(stream.name)
            ),
            "start it this way next time: in a memory cgroup of its own it evicts only its own \
                 pages. Pages that are resident already stay with the group that brought them in",
            terms(
                stream,
                "it can use at most that much page cache, and may run slower",
                "start it as before",
            ),
        ),
    })
}

/// Describes what pagekeeper can do about it now.
pub(super) fn pagekeeper(stream: &StreamingProcess<'_>, data: &HashMap<Inode, &File>) -> String {
    let foreign = stream.files.iter().find(|(_, inode)| !data.contains_key(inode));
    let path = foreign.and_then(|(_, inode)| stream.open(*inode)).map(|file| shell_quoted(&file.path));
    let evict = match path {
        Some(path) => format!(
            "`pagekeeper evict {path}` releases that file's pages now; it prevents no further \
                 ones, and does not bring the database's pages back. "
        ),
        None => String::new(),
    };
    if stream.worker {
        return format!("{evict}`pagekeeper guard` does not help here: the server itself reads for it");
    }
    let guard = guard_follows(stream.name);
    format!(
        "{evict}{guard} follows it from outside, where it can't be restarted: it releases what the \
         stream brings in"
    )
}
