//! `stat` for people: a table of files, pictures of their residency, and the total in a sentence.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pagekeeper_kernel::page_size;
use pagekeeper_text::{ByteSize, count, escaped, percent};

use super::choice::LeftOut;
use super::columns::{COLUMNS, Column};
use super::row::{FULL, Picture, Row};
use super::totals::Totals;
use crate::output::{self, Screen};

/// The style of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) screen: Screen,
    /// Plain numbers of bytes instead of sizes with units.
    pub(super) bytes: bool,
    /// Show recently evicted bytes, too.
    pub(super) wide: bool,
}

/// Resident bytes one sample earlier.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Bytes of each file that had any.
    pub(super) files: HashMap<PathBuf, u64>,
    /// Bytes of all files.
    pub(super) total: u64,
}

impl Before {
    fn change(&self, path: &Path, resident: u64) -> Change {
        Change { now: resident, before: self.files.get(path).copied().unwrap_or(0) }
    }
}

/// A change of a number of bytes.
#[derive(Debug, Clone, Copy)]
struct Change {
    now: u64,
    before: u64,
}

impl Style {
    fn size(self, bytes: u64) -> String {
        if self.bytes { bytes.to_string() } else { ByteSize(bytes).to_string() }
    }

    fn figure(self, bytes: Option<u64>) -> String {
        bytes.map_or_else(|| "?".to_owned(), |bytes| self.size(bytes))
    }

    /// Returns the figure, or a dash for the usual 0.
    fn figure_or_dash(self, bytes: Option<u64>) -> String {
        if bytes == Some(0) { "-".to_owned() } else { self.figure(bytes) }
    }

    fn change(self, Change { now, before }: Change) -> String {
        match now.cmp(&before) {
            std::cmp::Ordering::Equal => "-".to_owned(),
            std::cmp::Ordering::Greater => format!("+{}", self.size(now - before)),
            std::cmp::Ordering::Less => format!("-{}", self.size(before - now)),
        }
    }

    /// Draws everything: the rows in the given order, the total, and the number left out.
    pub(super) fn draw(
        self,
        out: &mut impl Write,
        rows: &[Row],
        totals: &Totals,
        left_out: LeftOut,
        before: Option<&Before>,
    ) -> io::Result<()> {
        if !rows.is_empty() {
            self.table(out, rows, before)?;
        }
        writeln!(out, "{}", self.total_sentence(totals, before))?;
        if let Some(sentence) = left_out_sentence(left_out) {
            writeln!(out, "{sentence}")?;
        }
        if totals.resident_only_files > 0 {
            let files = output::files(totals.resident_only_files);
            writeln!(
                out,
                "of {files} only resident pages are known: on overlayfs, before Linux 6.5, or in a sandbox without \
                 cachestat"
            )?;
        }
        Ok(())
    }

    fn table(self, out: &mut impl Write, rows: &[Row], before: Option<&Before>) -> io::Result<()> {
        let mut heads: Vec<&str> = Vec::new();
        for column in self.columns() {
            heads.push(column.head);
            if column.shared {
                heads.push("%");
            }
        }
        if before.is_some() {
            heads.push("CHANGE");
        }
        let lines: Vec<Vec<String>> = rows.iter().map(|row| self.figures(row, before)).collect();
        let widths: Vec<usize> = (0..heads.len())
            .map(|column| {
                lines.iter().map(|line| line[column].len()).chain([heads[column].len()]).max().unwrap_or(0)
            })
            .collect();
        let (bold, plain) = if self.screen.colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        out.write_all(bold.as_bytes())?;
        for (head, &width) in heads.iter().zip(&widths) {
            write!(out, "{head:>width$}  ")?;
        }
        writeln!(out, "FILE{plain}")?;
        for (row, line) in rows.iter().zip(&lines) {
            for (figure, &width) in line.iter().zip(&widths) {
                write!(out, "{figure:>width$}  ")?;
            }
            write!(out, "{}", escaped(&row.path))?;
            out.write_all(b"\n")?;
            if let Some(picture) = &row.picture {
                writeln!(out, "  {}", self.picture(picture))?;
            }
        }
        Ok(())
    }

    fn columns(self) -> impl Iterator<Item = &'static Column> {
        const ALL: &[Column] = &COLUMNS;
        ALL.iter().filter(move |column| self.wide || !column.wide)
    }

    fn figures(self, row: &Row, before: Option<&Before>) -> Vec<String> {
        let whole = row.size.next_multiple_of(page_size());
        let mut figures = Vec::new();
        for column in self.columns() {
            let value = (column.value)(row);
            figures.push(if column.quiet { self.figure_or_dash(value) } else { self.figure(value) });
            if column.shared {
                figures.push(match value {
                    None => "?".to_owned(),
                    Some(_) if whole == 0 => "-".to_owned(),
                    Some(bytes) => percent(bytes, whole, 1),
                });
            }
        }
        if let Some(before) = before {
            figures.push(self.change(before.change(&row.path, row.resident())));
        }
        figures
    }

    fn picture(self, picture: &Picture) -> String {
        const BLOCKS: [char; FULL as usize + 1] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let cells: String = picture.cells.iter().map(|&level| BLOCKS[usize::from(level.min(FULL))]).collect();
        format!("[{cells}] {} a cell", self.size(picture.cell_bytes))
    }

    fn total_sentence(self, totals: &Totals, before: Option<&Before>) -> String {
        let mut parts = vec![output::files(totals.files)];
        for (column, sum) in totals.of_columns().filter(|(column, _)| self.wide || !column.wide) {
            let mut part = format!("{} {}", column.total, self.figure(sum)).trim_start().to_owned();
            if column.shared {
                if let Some(bytes) = sum.filter(|_| totals.whole_pages > 0) {
                    part = format!("{part} ({})", percent(bytes, totals.whole_pages, 1));
                }
                if let Some(before) = before {
                    let change = Change { now: totals.resident(), before: before.total };
                    part = format!("{part} [{}]", self.change(change));
                }
            }
            parts.push(part);
        }
        if totals.unknown_files > 0 {
            parts.push(format!("unknown {}", output::files(totals.unknown_files)));
        }
        parts.join(", ")
    }
}

fn left_out_sentence(LeftOut { by_top, by_min, empty }: LeftOut) -> Option<String> {
    let why: Vec<String> = [
        (by_top, "beyond the limit (--limit all shows them)"),
        (by_min, "below --min"),
        (empty, "with nothing resident (--all shows them)"),
    ]
    .into_iter()
    .filter(|&(files, _)| files > 0)
    .map(|(files, why)| format!("{} {why}", count(files)))
    .collect();
    (!why.is_empty()).then(|| format!("not shown: {}", why.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::{Residency, ResidencySource};

    fn style() -> Style {
        let screen = Screen { terminal: false, colour: false, width: None };
        Style { screen, bytes: false, wide: false }
    }

    fn row(path: &str, size: u64, resident: Option<u64>) -> Row {
        let residency = resident.map(|resident| Residency {
            resident,
            dirty: Some(0),
            writeback: Some(0),
            evicted: Some(8192),
            recently_evicted: Some(4096),
            source: ResidencySource::Cachestat,
        });
        Row { path: path.into(), size, residency, picture: None }
    }

    fn drawn(style: Style, rows: &[Row], left_out: LeftOut, before: Option<&Before>) -> String {
        let mut out = Vec::new();
        let sums = [5000, 4096, 0, 0, 0, 0].map(Some);
        let totals = Totals { files: rows.len() as u64, sums, whole_pages: 8192, ..Totals::default() };
        style.draw(&mut out, rows, &totals, left_out, before).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_line_up_and_unknown_is_a_question_mark() {
        let rows = [row("a", 64 << 20, Some(32 << 20)), row("b", 0, Some(0)), row("c", 5, None)];
        assert_eq!(
            drawn(style(), &rows, LeftOut { by_top: 1234, by_min: 0, empty: 5 }, None),
            "  SIZE  RESIDENT       %  DIRTY  WRITEBACK  EVICTED  FILE\n\
             64 MiB    32 MiB  50.0 %      -          -    8 KiB  a\n\
             \u{20}  0 B       0 B       -      -          -    8 KiB  b\n\
             \u{20}  5 B         ?       ?      ?          ?        ?  c\n\
             3 files, 4.9 KiB, resident 4 KiB (50.0 %), dirty 0 B, writeback 0 B, evicted 0 B\n\
             not shown: 1,234 beyond the limit (--limit all shows them), 5 with nothing resident (--all shows them)\n"
        );
    }

    #[test]
    fn plain_bytes_and_the_wide_column() {
        let shown = drawn(
            Style { bytes: true, wide: true, ..style() },
            &[row("a", 8192, Some(4096))],
            LeftOut::default(),
            None,
        );
        assert!(
            shown.contains("8192      4096  50.0 %      -          -     8192      4096  a\n"),
            "{shown}"
        );
    }

    #[test]
    fn changes_since_the_last_sample() {
        let files = HashMap::from([("a".into(), 8192), ("b".into(), 4096)]);
        let before = Before { files, total: 12_288 };
        let now =
            [row("a", 1 << 20, Some(4096)), row("b", 1 << 20, Some(4096)), row("new", 4096, Some(4096))];
        let shown = drawn(style(), &now, LeftOut::default(), Some(&before));
        let changes: Vec<&str> =
            shown.lines().take(4).map(|line| line.rsplit("  ").nth(1).unwrap().trim()).collect();
        assert_eq!(changes, ["CHANGE", "-4 KiB", "-", "+4 KiB"], "{shown}");
        assert!(shown.contains("resident 4 KiB (50.0 %) [-8 KiB]"), "{shown}");
    }

    #[test]
    fn the_picture_has_a_block_for_each_cell() {
        let picture = Picture { cell_bytes: 4096, cells: vec![0, 1, 4, 8] };
        assert_eq!(style().picture(&picture), "[·▁▄█] 4 KiB a cell");
    }
}
