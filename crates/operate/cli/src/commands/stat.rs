//! `pagekeeper stat`: how much of each file is in the page cache, and in which state.
//!
//! Rows with nothing to show are left out. The rest is sorted by resident bytes, and at most twenty
//! rows are shown unless requested otherwise; the total covers every file. Fails path by path; ends
//! with 1 if a path failed or the user may not see a file's figures.

mod choice;
mod columns;
mod json;
mod row;
mod scan;
mod table;
mod totals;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use pagekeeper_text::parse_size;

use crate::arguments::{parse_limit, parse_time};
use crate::output::{self, Screen};
use crate::paths::{Tree, TreeArgs};
use crate::problems;
use crate::signals::Stop;
use choice::Choice;
use columns::Sort;
use scan::{Scan, Wanted};
use table::{Before, Style};

/// Show which files are in the page cache, and how much of each
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("stat"))]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct StatArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Sort by this figure, greatest first, or by path
    #[arg(short, long, value_name = "FIGURE", default_value = "resident",
          value_parser = PossibleValuesParser::new(Sort::names()).map(|name| Sort::named(&name)))]
    sort: Sort,
    /// Show at most N files, or "all" [default: 20, or all with --json]
    #[arg(short = 'n', long, alias = "top", value_name = "N", value_parser = parse_limit)]
    limit: Option<usize>,
    /// Show files with nothing resident, too
    #[arg(short, long)]
    all: bool,
    /// Show no files with less than SIZE (64M, 1.5G) of the figure sorted by (of what is resident,
    /// with --sort path)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    min: Option<u64>,
    /// Draw which parts of each file are resident
    #[arg(short, long)]
    map: bool,
    /// Show how much was evicted so recently that reading it again would count as thrashing, too
    #[arg(long)]
    wide: bool,
    /// Show plain numbers of bytes
    #[arg(short, long)]
    bytes: bool,
    /// Print one JSON object with all figures in bytes
    #[arg(long)]
    json: bool,
    /// Sample again at this interval until interrupted, and show what changed [default: 2s]
    #[arg(short, long, alias = "watch", short_alias = 'w', value_name = "TIME", num_args = 0..=1,
          require_equals = true, default_missing_value = "2s", value_parser = parse_interval)]
    interval: Option<Duration>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_millis(10))
}

/// Runs the command.
pub(crate) fn run(args: &StatArgs) -> anyhow::Result<ExitCode> {
    let tree = args.tree.tree()?.with_devices(&args.tree);
    let screen = Screen::of_stdout();
    let Some(pause) = args.interval else {
        return sample(args, &tree, screen, &Sample::Only).map(|(_, code)| code);
    };
    let stop = Stop::on_signals().context("can't catch signals")?;
    let mut this = Sample::First;
    loop {
        this = Sample::Later(sample(args, &tree, screen, &this)?.0);
        if stop.wait(pause)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The position of a sample in the series.
enum Sample {
    Only,
    First,
    Later(Before),
}

/// Takes a sample, shows it, and returns the figures that the next one is compared with.
fn sample(args: &StatArgs, tree: &Tree, screen: Screen, this: &Sample) -> anyhow::Result<(Before, ExitCode)> {
    let limit = args.limit.unwrap_or(if args.json || args.all { usize::MAX } else { 20 });
    let choice = Choice::new(args.sort, limit, args.min.unwrap_or(0), args.all || args.json);
    let cells = || screen.width.map_or(60, |width| width.saturating_sub(24).clamp(10, 4096));
    let wanted = Wanted { cells: args.map.then(cells), remember: !matches!(this, Sample::Only) };
    let Scan { choice, totals, problems, mounted, remembered } = scan::scan(tree, choice, wanted);
    let seen = Before { files: remembered, total: totals.resident() };
    let (rows, left_out) = choice.finish();

    if args.json {
        output::json(output::SCHEMA_VERSION, &json::StatReport::new(&rows, &totals, &problems))?;
    } else {
        let style = Style { screen, bytes: args.bytes, wide: args.wide };
        let mut page = Vec::new();
        let before = match this {
            Sample::Later(before) => Some(before),
            Sample::Only | Sample::First => None,
        };
        if screen.terminal && !matches!(this, Sample::Only) {
            page.extend_from_slice(b"\x1b[H\x1b[2J");
        } else if before.is_some() {
            page.push(b'\n');
        }
        style.draw(&mut page, &rows, &totals, left_out, before)?;
        output::print(|out| out.write_all(&page))?;
        problems::report(&problems, false);
        if totals.unknown_files > 0 {
            let files = output::files(totals.unknown_files);
            problems::report_unknown(format_args!("the {files} marked \"?\""));
        }
    }
    if !matches!(this, Sample::Later(_)) {
        mounted.report("the data of its files is counted with them");
    }
    let fine = problems.is_empty() && totals.unknown_files == 0;
    Ok((seen, output::code(fine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tops_and_seconds_are_read() {
        assert_eq!((parse_limit("7"), parse_limit("all")), (Ok(7), Ok(usize::MAX)));
        assert!(parse_limit("some").is_err());
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_interval("2m"), Ok(Duration::from_secs(120)));
        for bad in ["0", "-1", "x", "NaN", "inf", "1e30"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
