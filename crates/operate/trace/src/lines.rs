//! Parser of the lines that the kernel's tracing writes (`trace_pipe`;
//! `Documentation/trace/ftrace.rst`).
//!
//! `    reader-1234 [001] d..1. 123.456789: mm_filemap_add_to_page_cache: dev 8:0 ino 1f ofs=0
//! order=2`
//!
//! Invariants: any bytes are parsed to a line or `None`, never a panic. A task can choose any name,
//! including spaces and brackets: the text after it is found by the width of the name's column, not
//! by its content.

use std::time::Duration;

use super::event::TracepointKind;
use super::{BlockOp, ReclaimKind};
use pagekeeper_kernel::Inode;

/// The width of the column of names; they have at most 15 bytes.
const NAME_COLUMN_BYTES: usize = 16;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TraceLine<'a> {
    /// An event.
    Event(LineEvent<'a>),
    /// This number of events were lost before the next line.
    Lost(u64),
}

/// An event, and its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LineEvent<'a> {
    /// The task's name, as bytes; `<...>` where the kernel has forgotten it.
    pub(super) name: &'a [u8],
    pub(super) thread: u32,
    /// The time, by the kernel's clock.
    pub(super) at: Duration,
    pub(super) what: EventDetails<'a>,
}

/// The content of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventDetails<'a> {
    Added { file: Inode, pages: u64 },
    Removed { file: Inode, pages: u64 },
    Throttled(PauseDetails<'a>),
    ReclaimBegan(ReclaimKind),
    ReclaimEnded { kind: ReclaimKind, pages: u64 },
    Issued { dev: u64, sector: u64, sectors: u64, op: BlockOp },
    Completed { dev: u64, sector: u64 },
}

/// A pause for dirty pages; amounts in pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PauseDetails<'a> {
    pub(super) device: &'a str,
    pub(super) limit: u64,
    pub(super) setpoint: u64,
    pub(super) dirty: u64,
    pub(super) device_setpoint: u64,
    pub(super) device_dirty: u64,
    /// The time that the task has waited so far.
    pub(super) paused: Duration,
    /// The length of the pause that begins now; `None` if the task may continue at once.
    pub(super) length: Option<Duration>,
}

/// Parses a line without its end.
pub(super) fn parse(line: &[u8]) -> Option<TraceLine<'_>> {
    if let Some(lost) = line.strip_prefix(b"CPU:") {
        return parse_lost(lost).map(TraceLine::Lost);
    }
    let (name, rest) = line.split_at_checked(NAME_COLUMN_BYTES)?;
    let rest = std::str::from_utf8(rest).ok()?.strip_prefix('-')?;
    let (thread, rest) = rest.split_once(' ')?;
    // The processor in brackets, flags, the time; the process may precede the first of them.
    let (_, rest) = rest.split_once('[')?;
    let (_, rest) = rest.split_once(']')?;
    let (before, rest) = rest.split_once(": ")?;
    let at = parse_time(before.split_whitespace().next_back()?)?;
    let (event, fields) = rest.split_once(':')?;
    let what = parse_event(TracepointKind::of_name(event.as_bytes())?, fields)?;
    Some(TraceLine::Event(LineEvent {
        name: name.trim_ascii_start(),
        thread: thread.trim().parse().ok()?,
        at,
        what,
    }))
}

/// Parses `1 [LOST 23 EVENTS]`. If the kernel does not know the number, it is at least one.
fn parse_lost(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, text) = text.split_once("[LOST ")?;
    let text = text.strip_suffix("EVENTS]")?.trim();
    if text.is_empty() { Some(1) } else { text.parse().ok() }
}

/// Parses `123.456789` seconds.
fn parse_time(text: &str) -> Option<Duration> {
    let (seconds, micros) = text.split_once('.')?;
    let (seconds, micros): (u64, u32) = (seconds.parse().ok()?, micros.parse().ok()?);
    Duration::from_secs(seconds).checked_add(Duration::from_micros(micros.into()))
}

fn parse_event(event: TracepointKind, fields: &str) -> Option<EventDetails<'_>> {
    Some(match event {
        TracepointKind::Add => {
            let (file, pages) = parse_page(fields)?;
            EventDetails::Added { file, pages }
        }
        TracepointKind::Delete => {
            let (file, pages) = parse_page(fields)?;
            EventDetails::Removed { file, pages }
        }
        TracepointKind::Pause => EventDetails::Throttled(parse_pause(fields)?),
        TracepointKind::ReclaimBegin => EventDetails::ReclaimBegan(ReclaimKind::Machine),
        TracepointKind::GroupReclaimBegin => EventDetails::ReclaimBegan(ReclaimKind::Group),
        TracepointKind::ReclaimEnd => {
            EventDetails::ReclaimEnded { kind: ReclaimKind::Machine, pages: number(fields, "nr_reclaimed=")? }
        }
        TracepointKind::GroupReclaimEnd => {
            EventDetails::ReclaimEnded { kind: ReclaimKind::Group, pages: number(fields, "nr_reclaimed=")? }
        }
        TracepointKind::Issue => {
            let (dev, op, sector, sectors) = parse_request(fields)?;
            EventDetails::Issued { dev, sector, sectors, op }
        }
        TracepointKind::Complete => {
            let (dev, _, sector, _) = parse_request(fields)?;
            EventDetails::Completed { dev, sector }
        }
    })
}

/// Returns the text after a key that ends in `=`.
fn value<'a>(fields: &'a str, key: &str) -> Option<&'a str> {
    fields.split_ascii_whitespace().find_map(|field| field.strip_prefix(key))
}

fn number(fields: &str, key: &str) -> Option<u64> {
    value(fields, key)?.parse().ok()
}

fn device(number: &str, between: char) -> Option<u64> {
    let (major, minor) = number.split_once(between)?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Parses `dev 8:0 ino 1f pfn=0x1 ofs=0 order=2`.
fn parse_page(fields: &str) -> Option<(Inode, u64)> {
    let mut words = fields.split_ascii_whitespace();
    let dev = device(words.find(|word| *word == "dev").and_then(|_| words.next())?, ':')?;
    let ino = words.find(|word| *word == "ino").and_then(|_| words.next())?;
    let ino = u64::from_str_radix(ino.trim_start_matches("0x"), 16).ok()?;
    // Older kernels have no order, but an event for each page.
    let order = value(fields, "order=").map_or(Some(0), |order| order.parse::<u32>().ok())?;
    Some((Inode { dev, ino }, 1_u64.checked_shl(order)?))
}

/// Parses `bdi 8:0: limit=1 setpoint=1 …`.
fn parse_pause(fields: &str) -> Option<PauseDetails<'_>> {
    let mut words = fields.split_ascii_whitespace();
    let device = words.find(|word| *word == "bdi").and_then(|_| words.next())?.strip_suffix(':')?;
    let either = |new, old| number(fields, new).or_else(|| number(fields, old));
    let pause: i64 = value(fields, "pause=")?.parse().ok()?;
    Some(PauseDetails {
        device,
        limit: number(fields, "limit=")?,
        setpoint: number(fields, "setpoint=")?,
        dirty: number(fields, "dirty=")?,
        device_setpoint: either("wb_setpoint=", "bdi_setpoint=")?,
        device_dirty: either("wb_dirty=", "bdi_dirty=")?,
        paused: Duration::from_millis(number(fields, "paused=")?),
        length: u64::try_from(pause).ok().filter(|pause| *pause > 0).map(Duration::from_millis),
    })
}

/// Parses `8,0 WS 4096 () 1234 + 8 none,0,0 [reader]`; completions have no byte count.
fn parse_request(fields: &str) -> Option<(u64, BlockOp, u64, u64)> {
    let (before, behind) = fields.split_once(" + ")?;
    let mut words = before.split_ascii_whitespace();
    let dev = device(words.next()?, ',')?;
    let letters = words.next()?.as_bytes();
    let sector = words.next_back()?.parse().ok()?;
    let sectors = behind.split_ascii_whitespace().next()?.parse().ok()?;
    let letter = |at: usize| letters.get(at).copied().unwrap_or(0);
    Some((dev, BlockOp::of_letters(letter(0), letter(1)), sector, sectors))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADD: &str = "          reader-1234    [001] d..1.   123.456789: \
         mm_filemap_add_to_page_cache: dev 254:3 ino 1f3 pfn=0x26 ofs=0 order=2";
    const PAUSE: &str = "  kworker/u8:3+f-77      [000] .....  9023.000001: \
         balance_dirty_pages: bdi 254:0: limit=5 setpoint=4 dirty=6 wb_setpoint=2 wb_dirty=3 dirty_ratelimit=900 \
         task_ratelimit=0 dirtied=256 dirtied_pause=256 paused=12 pause=100 period=100 think=0 cgroup_ino=1";
    const ISSUE: &str = "              dd-5       [000] d....  9.000001: \
         block_rq_issue: 254,0 RA 4096 () 77 + 8 none,0,0 [dd a + 9 x]";

    fn record(line: &str) -> Option<LineEvent<'_>> {
        match parse(line.as_bytes()) {
            Some(TraceLine::Event(record)) => Some(record),
            _ => None,
        }
    }

    #[test]
    fn events_are_read() {
        let add = record(ADD).unwrap();
        let file = Inode { dev: rustix::fs::makedev(254, 3), ino: 0x1f3 };
        assert_eq!((add.name, add.thread, add.at), (&b"reader"[..], 1234, Duration::new(123, 456_789_000)));
        assert_eq!(add.what, EventDetails::Added { file, pages: 4 });

        let pause = record(PAUSE).unwrap();
        assert_eq!(pause.name, b"kworker/u8:3+f");
        let EventDetails::Throttled(pause) = pause.what else { panic!("{pause:?}") };
        assert_eq!((pause.device, pause.limit, pause.setpoint, pause.dirty), ("254:0", 5, 4, 6));
        assert_eq!((pause.device_setpoint, pause.device_dirty), (2, 3));
        assert_eq!(
            (pause.paused, pause.length),
            (Duration::from_millis(12), Some(Duration::from_millis(100)))
        );

        let dev = rustix::fs::makedev(254, 0);
        let issued = EventDetails::Issued { dev, sector: 77, sectors: 8, op: BlockOp::Read };
        assert_eq!(record(ISSUE).unwrap().what, issued);
    }

    #[test]
    fn other_kernels_lines_are_read() {
        // Without order, with a page's address; with the process; with the older name of the
        // device's share.
        let old = "          reader-1234  [001] d..1 123.456789: \
             mm_filemap_delete_from_page_cache: dev 8:1 ino 1f page=00000000f3 pfn=9 ofs=4096";
        let file = Inode { dev: rustix::fs::makedev(8, 1), ino: 0x1f };
        assert_eq!(record(old).unwrap().what, EventDetails::Removed { file, pages: 1 });
        let with_process = ADD.replace("-1234    [", "-1234    (   1230) [");
        assert_eq!(record(&with_process).unwrap().thread, 1234);
        let bdi = PAUSE.replace("wb_", "bdi_").replace("pause=100", "pause=-3");
        let EventDetails::Throttled(pause) = record(&bdi).unwrap().what else { panic!("{bdi}") };
        assert_eq!((pause.device_dirty, pause.length), (3, None));
        let complete = "          <idle>-0       [001] d.h1. 1.5: block_rq_complete: 8,0 WS () 77 + 8 [0]";
        assert_eq!(
            record(complete).unwrap().what,
            EventDetails::Completed { dev: rustix::fs::makedev(8, 0), sector: 77 }
        );
    }

    #[test]
    fn a_task_can_name_itself_as_it_likes() {
        for name in ["a-9 [0] 1.2: x", "             b ", "<...>", "]: [", "-1 [001] "] {
            let line = format!("{name:>16}{}", &ADD[16..]);
            let read = record(&line).unwrap();
            assert_eq!((read.name, read.thread), (name.trim_start().as_bytes(), 1234), "{line}");
        }
    }

    #[test]
    fn lost_events_are_counted() {
        assert_eq!(parse(b"CPU:1 [LOST 234 EVENTS]"), Some(TraceLine::Lost(234)));
        assert_eq!(parse(b"CPU:1 [LOST EVENTS]"), Some(TraceLine::Lost(1)));
        assert_eq!(parse(b"CPU:1 [FOUND 1 EVENTS]"), None);
    }

    #[test]
    fn an_unreadable_line_is_no_event() {
        for (line, from, to) in [
            (ADD, "order=2", "order=64"),
            (ADD, "254:3", "254"),
            (ADD, "ino 1f3", "ino x"),
            (ADD, "-1234", "-x"),
            (ADD, "123.456789", "123"),
            (ADD, "add_to_page", "subtract_from_page"),
            (PAUSE, "bdi 254:0:", "bdi"),
            (PAUSE, "pause=100", "pause=long"),
            (ISSUE, "77 + 8", "77 8"),
        ] {
            assert_eq!(record(&line.replace(from, to)), None, "{line}: {from} → {to}");
        }
        assert_eq!(parse(b""), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_line_or_nothing(line in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&line);
        }

        #[test]
        fn a_spoilt_line_is_a_line_or_nothing(
            line in prop::sample::select(vec![ADD, PAUSE, ISSUE]),
            at in any::<prop::sample::Index>(),
            len in 0_usize..20,
            with in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b" :=[]-.0".to_vec())], 0..12),
        ) {
            let mut line = line.as_bytes().to_vec();
            let at = at.index(line.len());
            let end = line.len().min(at + len);
            line.splice(at..end, with);
            let _ = parse(&line);
        }

        #[test]
        fn a_written_line_is_read_back(
            name in "[ -~]{1,15}", thread in any::<u32>(), major in 0_u32..4096, minor in 0_u32..(1 << 20),
            ino in any::<u64>(), order in 0_u32..10,
        ) {
            let line = format!(
                "{name:>16}-{thread:<7} [000] .....  1.000002: mm_filemap_add_to_page_cache: \
                 dev {major}:{minor} ino {ino:x} pfn=0x1 ofs=0 order={order}"
            );
            let read = record(&line).unwrap();
            let file = Inode { dev: rustix::fs::makedev(major, minor), ino };
            prop_assert_eq!((read.name, read.thread), (name.trim_start().as_bytes(), thread));
            prop_assert_eq!(read.what, EventDetails::Added { file, pages: 1 << order });
        }
    }
}
