//! The process beside the command: follows it, and releases what it brings in.
//!
//! Invariant: it ends when nobody whom it follows runs and nothing is left to be released, which `pagekeeper_streams` gives up a minute
//! behind the end. Never fails: what can't be released stays, and is counted.

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_guard::stream_name;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::names;
use pagekeeper_preload::launcher::LIBRARY_PREFIX;
use pagekeeper_streams::{StreamOptions, StreamPace, Streams, Verdict};

use super::{FollowedPages, READY, REPORTED_AFTER};

/// How often it looks where something comes in.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);
/// How often it looks whether somebody asks for a report, where nothing comes in.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);

/// Says over the socket that it can follow, or why not; follows the process whose number comes then, to its end.
pub(super) fn run(never: &[String], socket: &UnixStream) {
    let (began, databases) = (SystemTime::now(), never.to_vec());
    let decide = move |pid, path: Option<&Path>| {
        let is_left = path.is_some_and(|path| looks_temporary(path, began)) && has_library(pid);
        if is_left || is_called(pid, &databases) { Verdict::Leave } else { Verdict::Release }
    };
    let never = never.iter().filter_map(|pattern| kernel_name(pattern)).collect();
    let options =
        StreamOptions { names: Vec::new(), never, decide: Box::new(decide), pace: StreamPace::Auto };
    let mut streams = match Streams::start(options) {
        Ok(streams) => streams,
        Err(unavailable) => return answer(socket, &unavailable.to_string()),
    };
    answer(socket, READY);
    let mut pid = [0; size_of::<u32>()];
    if (&*socket).read_exact(&mut pid).is_err() {
        return;
    }
    match streams.follow(u32::from_ne_bytes(pid)) {
        Ok(()) => {
            answer(socket, "followed");
            follow(&mut streams, socket);
        }
        // Whoever waits starts the command.
        Err(unavailable) => answer(socket, &unavailable.to_string()),
    }
}

/// Whether a file was made as mkstemp(3) makes it, for its maker alone, since then. The library keeps such files until they are removed,
/// since they are read again soon.
fn looks_temporary(path: &Path, began: SystemTime) -> bool {
    const MAKER_ALONE: u32 = 0o600;
    path.symlink_metadata().is_ok_and(|metadata| {
        metadata.mode() & 0o7777 == MAKER_ALONE && metadata.created().is_ok_and(|created| created >= began)
    })
}

/// A pattern of names as the kernel compares it: up to its first `*`. One that begins with that can't be compared there.
fn kernel_name(pattern: &str) -> Option<String> {
    let name = pattern.split_once('*').map_or_else(|| pattern.to_owned(), |(begin, _)| format!("{begin}*"));
    stream_name(&name).ok().filter(|name| name != "*")
}

/// Whether a process's name is one of these patterns.
fn is_called(pid: u32, patterns: &[String]) -> bool {
    ProcRoot::default().name(pid).is_ok_and(|name| {
        patterns.iter().any(|pattern| names::matches_name(pattern.as_bytes(), name.as_bytes()).is_some())
    })
}

/// Whether the library is loaded into a process.
fn has_library(pid: u32) -> bool {
    let prefix = LIBRARY_PREFIX.as_bytes();
    let maps = std::fs::read(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|maps| maps.windows(prefix.len()).any(|name| name == prefix))
}

/// Nobody reads it where the other end has ended or become the command.
fn answer(mut socket: &UnixStream, line: &str) {
    let _ = socket.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
}

fn follow(streams: &mut Streams, socket: &UnixStream) {
    let mut asked: Option<Instant> = None;
    let mut is_reported = false;
    loop {
        drop(streams.step());
        let is_running = streams.running() > 0;
        if asked.is_none() && is_asked(socket) {
            asked = Some(Instant::now());
        }
        let is_over = !is_running && !streams.is_busy();
        let is_late = asked.is_some_and(|asked| asked.elapsed() > REPORTED_AFTER);
        if !is_reported && (is_over || is_late) {
            is_reported = true;
            let pages = FollowedPages::of(&streams.report(), is_running);
            answer(socket, &serde_json::to_string(&pages).unwrap_or_default());
        }
        if is_over {
            return;
        }
        streams.wait(if streams.is_busy() { BUSY_INTERVAL } else { IDLE_INTERVAL });
    }
}

/// Whether the other end says no more: it wants the report, or has become the command.
fn is_asked(socket: &UnixStream) -> bool {
    let received = socket.set_nonblocking(true).and_then(|()| (&*socket).read(&mut [0]));
    let _ = socket.set_nonblocking(false);
    match received {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_of_their_maker_alone_look_temporary() {
        let hour = Duration::from_secs(3600);
        let temporary = tempfile::NamedTempFile::new().unwrap();
        assert!(looks_temporary(temporary.path(), SystemTime::now() - hour));
        assert!(!looks_temporary(temporary.path(), SystemTime::now() + hour), "it was there before");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(temporary.path(), mode).unwrap();
        assert!(!looks_temporary(temporary.path(), SystemTime::now() - hour));
    }
}
