//! `store dump`: the pages of a store, one a line, or one page byte by byte.
//!
//! Invariant: pages are read and shown some MiB at a time, whatever their number. Damage is shown
//! as such, and the command then ends with 1.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;

use pagekeeper_store::{Error, FreeList, PageInfo, PageNo, PageState, ReadTxn, Store};
use pagekeeper_text::{ByteSize, count, counted, escaped, unescaped};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{StorePath, pages};
use crate::arguments::parse_limit;
use crate::output;

/// Bytes that are read at a time.
const READ_BYTES: usize = 4 << 20;
/// Pages that are listed by default.
const LISTED_PAGES_DEFAULT: usize = 100;
/// Bytes of a page's header, before the payload.
const HEADER_BYTES: usize = 32;
/// Bytes in a line of a hexdump.
const LINE_BYTES: usize = 16;

/// List a store's pages, or show the bytes of one
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("store-dump"))]
pub(super) struct DumpArgs {
    #[command(flatten)]
    place: StorePath,
    /// Only these pages: A..B (without B), A.. or ..B
    #[arg(long, value_name = "RANGE", value_parser = parse_pages, default_value = "..", hide_default_value = true)]
    pages: Range<u64>,
    /// List at most N pages, or "all" [default: 100, or all with --json]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_limit)]
    limit: Option<usize>,
    /// Show the payload of page N in hexadecimal and ASCII; of a damaged page what stands there
    #[arg(long, value_name = "N", conflicts_with_all = ["pages", "limit"])]
    page: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_pages(text: &str) -> Result<Range<u64>, String> {
    let bad = || format!("\"{text}\" is not a range of pages: give A..B, A.. or ..B, like 0..100");
    let (start, end) = text.split_once("..").ok_or_else(bad)?;
    let number =
        |text: &str, default| if text.is_empty() { Ok(default) } else { text.parse().map_err(|_| bad()) };
    let (start, end) = (number(start, 0)?, number(end, u64::MAX)?);
    if start < end {
        Ok(start..end)
    } else {
        Err(format!("the range \"{text}\" is empty: its end is not after its start"))
    }
}

/// Runs the command.
pub(super) fn run(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let store = super::open(args.place.dir.path())?;
    let damaged = match args.page {
        Some(page) => dump_page(&store, page, args.json)?,
        None => dump_all(&store, args)?,
    };
    store.close()?;
    Ok(output::code(damaged == 0))
}

/// A page without its bytes.
#[derive(Debug, Serialize)]
struct DumpLine {
    page: u64,
    kind: &'static str,
    seq: u64,
    crc: String,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

impl From<&PageInfo> for DumpLine {
    fn from(info: &PageInfo) -> Self {
        let (kind, fault) = match &info.state {
            PageState::Data => ("data", None),
            PageState::Free => ("free", None),
            PageState::Trunk => ("trunk", None),
            PageState::NeverWritten => ("never-written", None),
            PageState::Damaged(reason) => ("damaged", Some(reason.clone())),
            _ => ("unknown", None),
        };
        Self {
            page: info.page.get(),
            kind,
            seq: info.seq.get(),
            crc: format!("{:08x}", info.crc),
            source: if info.applied { "file" } else { "journal" },
            fault,
        }
    }
}

/// Lists pages; returns the number of damaged ones, and of faults of the free list.
fn dump_all(store: &Store, args: &DumpArgs) -> anyhow::Result<u64> {
    let read = store.begin_read()?;
    let free = store.free_list()?;
    let listed = listed(&args.pages, args.limit, args.json, read.pages())?;
    let left_out = args.pages.end.min(read.pages()).saturating_sub(listed.end);
    let in_list = u64::from(free.fault.is_some());
    let listing = PageListing { store, pages: listed, damaged: Cell::new(0), failed: RefCell::new(None) };
    let json = || StoreDump {
        path: unescaped(args.place.dir.path()),
        page_size: store.page_size(),
        seq: read.seq().get(),
        page_count: read.pages(),
        root: read.root().map(PageNo::get),
        metadata: hex(read.metadata()),
        free_list: free_list_json(&free),
        pages: &listing,
    };
    let written = output::show(args.json, json, |out| {
        write!(out, "{}", escaped(args.place.dir.path()))?;
        write_head(&read, store.page_size(), &free, out)?;
        listing.write_text(out)?;
        if left_out > 0 {
            writeln!(out, "{} more: see --limit and --pages", pages(left_out))?;
        }
        Ok(())
    });
    if let Some(error) = listing.failed.take() {
        return Err(error.into());
    }
    written?;
    Ok(listing.damaged.get() + in_list)
}

/// Returns the pages to list, for a store of this many pages.
fn listed(wanted: &Range<u64>, limit: Option<usize>, json: bool, pages: u64) -> Result<Range<u64>, Error> {
    if wanted.start >= pages && wanted.start > 0 {
        return Err(Error::OutOfRange { page: PageNo::new(wanted.start), pages });
    }
    let limit = limit.unwrap_or(if json { usize::MAX } else { LISTED_PAGES_DEFAULT }) as u64;
    Ok(wanted.start..wanted.end.min(pages).min(wanted.start.saturating_add(limit)))
}

/// A store, with its pages as they are read.
#[derive(Serialize)]
struct StoreDump<'a> {
    path: Cow<'a, str>,
    page_size: usize,
    seq: u64,
    page_count: u64,
    root: Option<u64>,
    /// The user's metadata, in hexadecimal.
    metadata: String,
    free_list: Value,
    pages: &'a PageListing<'a>,
}

fn free_list_json(list: &FreeList) -> Value {
    let trunks = list.trunks.iter().map(|trunk| json!({ "page": trunk.page.get(), "names": trunk.names }));
    json!({ "pages": list.pages(), "trunks": trunks.collect::<Vec<_>>(), "fault": list.fault })
}

/// Pages, read as they are shown.
struct PageListing<'a> {
    store: &'a Store,
    pages: Range<u64>,
    /// The number of damaged pages among those shown.
    damaged: Cell<u64>,
    /// The error that ended it early.
    failed: RefCell<Option<Error>>,
}

impl PageListing<'_> {
    /// Returns the pages up to the first that can't be read; that failure is kept.
    fn lines(&self) -> impl Iterator<Item = DumpLine> {
        let step = READ_BYTES / self.store.page_size();
        let steps = self.pages.clone().step_by(step);
        let read = move |first: u64| {
            let end = self.pages.end.min(first + step as u64);
            match self.store.inspect(PageNo::new(first)..PageNo::new(end)) {
                Ok(pages) => pages.iter().map(|page| Ok(DumpLine::from(page))).collect(),
                Err(error) => vec![Err(error)],
            }
        };
        steps.flat_map(read).map_while(|line| {
            let line = line.map_err(|error| *self.failed.borrow_mut() = Some(error)).ok()?;
            self.damaged.set(self.damaged.get() + u64::from(line.kind == "damaged"));
            Some(line)
        })
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let width = count(self.pages.end).len().max(8);
        writeln!(out, "{:>width$}  {:<13}  {:>12}  {:<8}  WHERE", "PAGE", "KIND", "SEQ", "CRC")?;
        for line in self.lines() {
            let DumpLine { page, kind, seq, crc, source, fault } = line;
            write!(out, "{:>width$}  {kind:<13}  {:>12}  {crc}  {source}", count(page), count(seq))?;
            match fault {
                Some(fault) => writeln!(out, ": {fault}")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }
}

impl Serialize for PageListing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.lines())
    }
}

/// Writes everything but the path and the pages.
fn write_head(read: &ReadTxn<'_>, page_size: usize, free: &FreeList, out: &mut impl Write) -> io::Result<()> {
    let size = ByteSize(page_size as u64);
    writeln!(out, ": {} of {size}, as of commit {}", pages(read.pages()), count(read.seq().get()))?;
    let root = read.root().map_or_else(|| "none".to_owned(), |root| format!("page {}", count(root.get())));
    writeln!(out, "  root       {root}")?;
    match read.metadata() {
        [] => writeln!(out, "  metadata   none")?,
        bytes => {
            writeln!(out, "  metadata   {} B: {}", count(bytes.len() as u64), bytes.escape_ascii())?;
        }
    }
    write!(out, "  free list  {}", pages(free.pages()))?;
    if let [first, ..] = &free.trunks[..] {
        let trunks = counted(free.trunks.len() as u64, "trunk", "trunks");
        write!(out, " in {trunks}, the first is page {}", count(first.page.get()))?;
    }
    match &free.fault {
        Some(fault) => writeln!(out, "; it breaks off: {fault}"),
        None => writeln!(out),
    }
}

/// Shows one page; returns 1 if it is damaged.
fn dump_page(store: &Store, page: u64, is_json: bool) -> anyhow::Result<u64> {
    let number = PageNo::new(page);
    let out_of_range = Error::OutOfRange { page: number, pages: store.stats().pages };
    let end = page.checked_add(1).ok_or(out_of_range)?;
    let found = store.inspect(number..PageNo::new(end))?;
    let Some(info) = found.first() else { return Ok(0) };
    let line = DumpLine::from(info);
    let damaged = u64::from(line.fault.is_some());
    let payload = &info.bytes[HEADER_BYTES..];
    let DumpLine { kind, seq, crc, source, fault, .. } = &line;
    let mut json = serde_json::to_value(&line)?;
    json["payload"] = hex(payload).into();
    output::show(
        is_json,
        || json,
        |out| {
            let fault = fault.as_ref().map_or_else(String::new, |fault| format!(": {fault}"));
            writeln!(out, "page {}: {kind}{fault}", count(page))?;
            writeln!(out, "  changed last by commit {}, CRC-32C {crc}, from the {source}", count(*seq))?;
            write_hex(payload, out)
        },
    )?;
    Ok(damaged)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes as `hexdump -C` does: lines that repeat the previous one become a star.
fn write_hex(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut before: Option<&[u8]> = None;
    let mut starred = false;
    for (at, line) in (0..).step_by(LINE_BYTES).zip(bytes.chunks(LINE_BYTES)) {
        if before == Some(line) {
            if !starred {
                writeln!(out, "*")?;
            }
            starred = true;
            continue;
        }
        (before, starred) = (Some(line), false);
        write!(out, "{at:08x} ")?;
        for place in 0..LINE_BYTES {
            if place == LINE_BYTES / 2 {
                out.write_all(b" ")?;
            }
            match line.get(place) {
                Some(byte) => write!(out, " {byte:02x}")?,
                None => out.write_all(b"   ")?,
            }
        }
        let text: String =
            line.iter().map(|&byte| if (b' '..=b'~').contains(&byte) { byte.into() } else { '.' }).collect();
        writeln!(out, "  |{text}|")?;
    }
    writeln!(out, "{:08x}", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_pages_are_read_as_people_write_them() {
        for (text, expected) in [("..", 0..u64::MAX), ("3..7", 3..7), ("3..", 3..u64::MAX), ("..7", 0..7)] {
            assert_eq!(parse_pages(text).unwrap(), expected, "{text}");
        }
        for (text, fix) in
            [("7", "give A..B"), ("a..", "give A..B"), ("7..7", "is empty"), ("-1..", "give A..B")]
        {
            assert!(parse_pages(text).unwrap_err().contains(fix), "{text}");
        }
    }

    #[test]
    fn a_list_is_within_the_store_and_the_limit() {
        let all = 0..u64::MAX;
        assert_eq!(listed(&all, None, false, 1000).unwrap(), 0..LISTED_PAGES_DEFAULT as u64);
        assert_eq!(listed(&all, None, true, 1000).unwrap(), 0..1000);
        assert_eq!(listed(&all, None, false, 0).unwrap(), 0..0);
        assert_eq!(listed(&(990..u64::MAX), Some(5), false, 1000).unwrap(), 990..995);
        assert_eq!(listed(&(990..992), Some(usize::MAX), false, 1000).unwrap(), 990..992);
        let out_of_range = listed(&(1000..1001), None, false, 1000);
        assert!(matches!(out_of_range, Err(Error::OutOfRange { page, .. }) if page.get() == 1000));
    }

    #[test]
    fn bytes_are_shown_as_hexdump_shows_them() {
        let mut bytes = vec![0; 60];
        bytes[..5].copy_from_slice(b"h\x1bllo");
        let mut text = Vec::new();
        write_hex(&bytes, &mut text).unwrap();
        let expected = "\
00000000  68 1b 6c 6c 6f 00 00 00  00 00 00 00 00 00 00 00  |h.llo...........|
00000010  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|
*
00000030  00 00 00 00 00 00 00 00  00 00 00 00              |............|
0000003c
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(hex(b"\x00\xff"), "00ff");
    }
}
