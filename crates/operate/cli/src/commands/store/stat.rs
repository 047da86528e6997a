//! `store stat`: figures of a store, and the work of opening it after a crash.

use std::io::{self, Write};
use std::process::ExitCode;

use pagekeeper_store::{Opening, PageNo, Store, StoreStats, SuperblockInfo};
use pagekeeper_text::{ByteSize, count, escaped, percent, unescaped};
use serde_json::{Value, json};

use super::{StorePath, commits, pages};
use crate::output;

/// Show a store's size, and what a recovery would do
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("store-stat"))]
pub(super) struct StoreStatArgs {
    #[command(flatten)]
    place: StorePath,
    /// Print one JSON object with all figures in bytes and seconds
    #[arg(long)]
    json: bool,
}

/// The figures of a store that was just opened. Any other opening now would read and find the same.
struct StoreFigures {
    stat: StoreStats,
    superblocks: [Option<SuperblockInfo>; 2],
    root: Option<u64>,
    metadata_bytes: usize,
}

/// Runs the command.
pub(super) fn run(args: &StoreStatArgs) -> anyhow::Result<ExitCode> {
    let dir = args.place.dir.path();
    let store = super::open(dir)?;
    let figures = StoreFigures::of(&store)?;
    store.close()?;
    let json = || figures.json(&unescaped(dir));
    output::show(args.json, json, |out| {
        write!(out, "{}", escaped(dir))?;
        figures.write_text(out)
    })?;
    Ok(ExitCode::SUCCESS)
}

impl StoreFigures {
    fn of(store: &Store) -> anyhow::Result<Self> {
        let read = store.begin_read()?;
        let (root, metadata_bytes) = (read.root().map(PageNo::get), read.metadata().len());
        Ok(Self { stat: store.stats(), superblocks: store.superblocks()?, root, metadata_bytes })
    }

    fn json(&self, path: &str) -> Value {
        let Self { stat, superblocks, root, metadata_bytes } = self;
        let superblock = |slot: &SuperblockInfo| {
            json!({
                "number": slot.number,
                "checkpoint_seq": slot.checkpoint_seq.get(),
                "checkpoint_lsn": slot.checkpoint_lsn.get(),
            })
        };
        json!({
            "path": path,
            "page_size": stat.page_size,
            "pages": stat.pages,
            "free_pages": stat.free_pages,
            "root": root,
            "metadata_bytes": metadata_bytes,
            "seq": stat.seq.get(),
            "checkpoint_seq": stat.checkpoint_seq.get(),
            "journal_bytes": stat.journal_bytes,
            "max_journal_bytes": stat.max_journal_bytes,
            "full_page_images": stat.full_page_images,
            "superblocks": superblocks.each_ref().map(|slot| slot.as_ref().map(superblock)),
            "recovery": {
                "seconds": stat.opening.took.as_secs_f64(),
                "journal_read_seconds": stat.opening.journal_read.as_secs_f64(),
                "journal_bytes": stat.opening.journal_bytes,
                "commits": stat.opening.commits,
                "pages": stat.opening.pages,
            },
        })
    }

    /// Writes everything but the path.
    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let stat = &self.stat;
        writeln!(out, ": a store of pages of {}", ByteSize(stat.page_size as u64))?;
        let bytes = stat.pages.saturating_mul(stat.page_size as u64);
        let (bytes_now, most) = (stat.journal_bytes, stat.max_journal_bytes);
        let journal = match most {
            0 => ByteSize(bytes_now).to_string(),
            _ => format!(
                "{}, {} of at most {}",
                ByteSize(bytes_now),
                percent(bytes_now, most, 1),
                ByteSize(most)
            ),
        };
        let first_changes = if stat.full_page_images {
            "journaled as whole pages"
        } else {
            "journaled by bytes: pages are written atomically"
        };
        let rows = [
            (
                "pages",
                format!(
                    "{} ({}), {} of them free",
                    count(stat.pages),
                    ByteSize(bytes),
                    count(stat.free_pages)
                ),
            ),
            ("root page", self.root.map_or_else(|| "none".to_owned(), count)),
            ("metadata", format!("{} B", count(self.metadata_bytes as u64))),
            ("commits", count(stat.seq.get())),
            ("  in the data file", format!("up to {}", count(stat.checkpoint_seq.get()))),
            ("journal to recover", journal),
            ("first changes of pages", first_changes.to_owned()),
            ("superblocks", self.superblocks_in_words()),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<24}{value}"))?;
        writeln!(out, "{}", recovery_in_words(&stat.opening))
    }

    fn superblocks_in_words(&self) -> String {
        let whole: Vec<String> = self.superblocks.iter().flatten().map(|slot| count(slot.number)).collect();
        let numbers = if whole.len() == 1 { "number" } else { "numbers" };
        format!("{} of 2 whole: {numbers} {}", whole.len(), whole.join(" and "))
    }
}

fn recovery_in_words(opening: &Opening) -> String {
    let ms = 1000.0 * opening.took.as_secs_f64();
    if opening.commits == 0 {
        return format!("Nothing is to be recovered: the data file has all commits. Opened in {ms:.1} ms.");
    }
    format!(
        "The journal has {} that the data file has not; they change {}. Opened with them in {ms:.1} ms.",
        commits(opening.commits),
        pages(opening.pages)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_store::{Create, Durability};
    use pagekeeper_tree::Tree;
    use std::time::Duration;

    #[test]
    fn figures_are_for_people() {
        let dir = pagekeeper_testing::disk_dir();
        let path = dir.path().join("store");
        let options = Store::options().create(Create::New).page_size(8192).journal_bytes(1 << 20);
        let store = options.open(&path).unwrap();
        let mut txn = store.begin_write().unwrap();
        let root = Tree::create(&mut txn).unwrap().root();
        txn.set_root(Some(root));
        txn.set_metadata(b"sixteen bytes...").unwrap();
        txn.commit(Durability::Sync).unwrap();
        store.sync().unwrap();
        let mut figures = StoreFigures::of(&store).unwrap();
        let mut text = Vec::new();
        figures.write_text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            ": a store of pages of 8 KiB\n  pages                   ",
            &format!("\n  root page               {root}\n  metadata                16 B\n"),
            "\n  commits                 1\n    in the data file      up to 1\n",
            " of them free\n",
            "\n  journal to recover      ",
            "\n  first changes of pages  ",
            "Nothing is to be recovered: the data file has all commits. Opened in ",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert_eq!(figures.json("/s")["checkpoint_seq"], 1);
        let whole = figures.superblocks.into_iter().flatten().max_by_key(|slot| slot.number).unwrap();
        let number = whole.number;
        figures.superblocks = [None, Some(whole)];
        assert_eq!(figures.superblocks_in_words(), format!("1 of 2 whole: number {number}"));
        store.close().unwrap();
    }

    #[test]
    fn a_recovery_is_summed_up_in_a_sentence() {
        let mut opening = Opening::default();
        (opening.took, opening.commits, opening.pages) = (Duration::from_micros(12_300), 1, 1200);
        assert_eq!(
            recovery_in_words(&opening),
            "The journal has 1 commit that the data file has not; they change 1,200 pages. Opened with them in 12.3 ms."
        );
    }
}
