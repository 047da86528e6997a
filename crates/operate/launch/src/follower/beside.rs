//! The process beside the command: it follows the command, and releases the pages it brings in.
//!
//! Invariant: it ends when no followed process runs and nothing is left to release;
//! `pagekeeper_streams` gives up a minute after the end. Never fails: pages that can't be released
//! stay, and are counted.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pagekeeper_streams::Streams;

use super::pages::FollowedPages;
use super::plan::FollowPlan;

/// The answer that it can follow.
pub(crate) const READY_MESSAGE: &str = "ready";
/// Time for which a report waits for data that is still being written.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks while pages come in.
pub(crate) const BUSY_INTERVAL: Duration = Duration::from_millis(10);
/// Interval of checks for report requests while no pages come in.
const FOLLOWER_IDLE_INTERVAL: Duration = Duration::from_millis(200);

/// Reports over the socket that it can follow, or why not; then follows the process whose ID
/// arrives, until its end.
pub(super) fn run(plan: &FollowPlan, socket: &UnixStream) {
    let mut streams = match plan.start() {
        Ok(streams) => streams,
        Err(unavailable) => return answer(socket, &unavailable.to_string()),
    };
    answer(socket, READY_MESSAGE);
    let Some(pid) = followed_process(socket) else { return };
    match plan.follow(&mut streams, pid) {
        Ok(()) => {
            answer(socket, "followed");
            follow(&mut streams, socket);
        }
        // The waiting process starts the command.
        Err(unavailable) => answer(socket, &unavailable.to_string()),
    }
}

/// Returns the ID of the process that becomes the command, once that has announced it; `None` if it
/// ended before.
pub(crate) fn followed_process(mut socket: &UnixStream) -> Option<u32> {
    let mut pid = [0; size_of::<u32>()];
    socket.read_exact(&mut pid).ok()?;
    Some(u32::from_ne_bytes(pid))
}

/// Sends an answer. Nobody reads it if the other end has ended or become the command.
pub(crate) fn answer(mut socket: &UnixStream, line: &str) {
    let _ = socket.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
}

fn follow(streams: &mut Streams, socket: &UnixStream) {
    let mut asked: Option<Instant> = None;
    let mut is_reported = false;
    loop {
        drop(streams.step());
        let is_running = streams.running() > 0 || streams.heeds_names();
        if asked.is_none() && is_asked(socket) {
            asked = Some(Instant::now());
        }
        let is_over = !is_running && !streams.is_busy();
        let is_late = asked.is_some_and(|asked| asked.elapsed() > REPORT_TIMEOUT);
        if !is_reported && (is_over || is_late) {
            is_reported = true;
            let pages = FollowedPages::of(&streams.report(), is_running);
            answer(socket, &serde_json::to_string(&pages).unwrap_or_default());
        }
        if is_over {
            return;
        }
        streams.wait(if streams.is_busy() { BUSY_INTERVAL } else { FOLLOWER_IDLE_INTERVAL });
    }
}

/// Whether the other end sends no more: it wants the report, or has become the command.
fn is_asked(socket: &UnixStream) -> bool {
    let received = socket.set_nonblocking(true).and_then(|()| (&*socket).read(&mut [0]));
    let _ = socket.set_nonblocking(false);
    match received {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}
