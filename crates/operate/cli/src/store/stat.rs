//! `store stat`: figures of a store, and the work of opening it after a crash.

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;

use pagekeeper_store::{StoreStat, SuperblockInfo};
use pagekeeper_text::{Size, count, escaped, percent, unescaped};
use serde::Serialize;

use super::{StorePath, commits, pages};
use crate::output;

/// Show the size of a store, how current its data file is, and what a recovery would read and change
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store stat /srv/app/store
  pagekeeper store stat --json /srv/app/store | jq .recovery.pages")]
pub(super) struct Args {
    #[command(flatten)]
    place: StorePath,
    /// Print one JSON object with all figures in bytes and seconds
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    path: Cow<'a, str>,
    page_size: usize,
    pages: u64,
    free_pages: u64,
    root: Option<u64>,
    metadata_bytes: usize,
    /// The last commit, followed by the last commit in the data file.
    seq: u64,
    checkpoint_seq: u64,
    journal_bytes: u64,
    max_journal_bytes: u64,
    /// Whether first changes are journaled as whole pages.
    full_page_images: bool,
    superblocks: [Option<Superblock>; 2],
    recovery: Recovery,
}

#[derive(Debug, Serialize)]
struct Superblock {
    number: u64,
    checkpoint_seq: u64,
    checkpoint_lsn: u64,
}

/// The recovery by this opening. Any other opening now would read and find the same.
#[derive(Debug, Serialize)]
struct Recovery {
    seconds: f64,
    journal_read_seconds: f64,
    journal_bytes: u64,
    commits: u64,
    pages: u64,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = super::open(&args.place.dir)?;
    let (stat, superblocks) = (store.stat(), store.superblocks()?);
    let read = store.begin_read()?;
    let report = Report::new(unescaped(&args.place.dir), &stat, superblocks)
        .with_user(read.root(), read.metadata().len());
    drop(read);
    store.close()?;
    if args.json {
        output::json(&report)?;
    } else {
        let mut out = output::stdout();
        write!(out, "{}", escaped(&args.place.dir))?;
        report.write_text(&mut out)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

impl<'a> Report<'a> {
    fn new(path: Cow<'a, str>, stat: &StoreStat, superblocks: [Option<SuperblockInfo>; 2]) -> Self {
        let opening = &stat.opening;
        Self {
            path,
            page_size: stat.page_size,
            pages: stat.pages,
            free_pages: stat.free_pages,
            root: None,
            metadata_bytes: 0,
            seq: stat.seq,
            checkpoint_seq: stat.checkpoint_seq,
            journal_bytes: stat.journal_bytes,
            max_journal_bytes: stat.max_journal_bytes,
            full_page_images: stat.full_page_images,
            superblocks: superblocks.map(|slot| {
                slot.map(|slot| Superblock {
                    number: slot.number,
                    checkpoint_seq: slot.checkpoint_seq,
                    checkpoint_lsn: slot.checkpoint_lsn,
                })
            }),
            recovery: Recovery {
                seconds: opening.took.as_secs_f64(),
                journal_read_seconds: opening.journal_read.as_secs_f64(),
                journal_bytes: opening.journal_bytes,
                commits: opening.commits,
                pages: opening.pages,
            },
        }
    }

    fn with_user(self, root: Option<u64>, metadata_bytes: usize) -> Self {
        Self { root, metadata_bytes, ..self }
    }

    /// Writes everything but the path.
    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, ": a store of pages of {}", Size(self.page_size as u64))?;
        let bytes = self.pages.saturating_mul(self.page_size as u64);
        let (bytes_now, most) = (self.journal_bytes, self.max_journal_bytes);
        let journal = match most {
            0 => Size(bytes_now).to_string(),
            _ => format!("{}, {} of at most {}", Size(bytes_now), percent(bytes_now, most, 1), Size(most)),
        };
        let first_changes = if self.full_page_images {
            "journaled as whole pages"
        } else {
            "journaled by bytes: pages are written atomically"
        };
        let rows = [
            (
                "pages",
                format!("{} ({}), {} of them free", count(self.pages), Size(bytes), count(self.free_pages)),
            ),
            ("root page", self.root.map_or_else(|| "none".to_owned(), count)),
            ("metadata", format!("{} B", count(self.metadata_bytes as u64))),
            ("commits", count(self.seq)),
            ("  in the data file", format!("up to {}", count(self.checkpoint_seq))),
            ("journal to recover", journal),
            ("first changes of pages", first_changes.to_owned()),
            ("superblocks", self.superblocks_in_words()),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<24}{value}"))?;
        writeln!(out, "{}", self.recovery_in_words())
    }

    fn superblocks_in_words(&self) -> String {
        let whole: Vec<String> = self.superblocks.iter().flatten().map(|slot| count(slot.number)).collect();
        let numbers = if whole.len() == 1 { "number" } else { "numbers" };
        format!("{} of 2 whole: {numbers} {}", whole.len(), whole.join(" and "))
    }

    fn recovery_in_words(&self) -> String {
        let Recovery { seconds, commits: found, pages: changed, .. } = self.recovery;
        let ms = 1000.0 * seconds;
        if found == 0 {
            return format!(
                "Nothing is to be recovered: the data file has all commits. Opened in {ms:.1} ms."
            );
        }
        format!(
            "The journal has {} that the data file has not; they change {}. Opened with them in {ms:.1} ms.",
            commits(found),
            pages(changed)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(commits: u64) -> Report<'static> {
        Report {
            path: "/srv/store".into(),
            page_size: 8192,
            pages: 2048,
            free_pages: 12,
            root: Some(3),
            metadata_bytes: 16,
            seq: 5000 + commits,
            checkpoint_seq: 5000,
            journal_bytes: 3 << 20,
            max_journal_bytes: 256 << 20,
            full_page_images: true,
            superblocks: [
                None,
                Some(Superblock { number: 17, checkpoint_seq: 5000, checkpoint_lsn: 1 << 20 }),
            ],
            recovery: Recovery {
                seconds: 0.0123,
                journal_read_seconds: 0.01,
                journal_bytes: 3 << 20,
                commits,
                pages: 1200,
            },
        }
    }

    #[test]
    fn figures_are_for_people() {
        let mut text = Vec::new();
        report(1).write_text(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            ": a store of pages of 8 KiB
  pages                   2,048 (16 MiB), 12 of them free
  root page               3
  metadata                16 B
  commits                 5,001
    in the data file      up to 5,000
  journal to recover      3 MiB, 1.2 % of at most 256 MiB
  first changes of pages  journaled as whole pages
  superblocks             1 of 2 whole: number 17
The journal has 1 commit that the data file has not; they change 1,200 pages. Opened with them in 12.3 ms.
"
        );
        let nothing = report(0).recovery_in_words();
        assert_eq!(nothing, "Nothing is to be recovered: the data file has all commits. Opened in 12.3 ms.");
    }
}
