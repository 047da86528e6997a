//! A small chart for the terminal: one figure over time in three parts, drawn in block characters.
//!
//! Invariants: each part has the same width for any number of samples; a value above zero is visible.

use std::fmt::Write;

use crate::size::Size;

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LABEL_WIDTH: usize = 10;
const ROWS: u32 = 10;

/// The content of a chart.
pub(super) struct Chart<'a> {
    /// Bytes over time, and the label of each part.
    pub(super) parts: [(&'a [u64], &'a str); 3],
    /// Columns of the whole chart.
    pub(super) width: usize,
    /// Whether all parts but the first are coloured.
    pub(super) colour: bool,
}

impl Chart<'_> {
    /// Returns the chart's lines.
    pub(super) fn draw(&self) -> String {
        let columns = self.width.saturating_sub(LABEL_WIDTH + 4).max(24) / 3;
        let parts = self.parts.map(|(samples, _)| spread(samples, columns));
        let top = parts.iter().flatten().copied().max().unwrap_or(0);
        let (on, off) = if self.colour { ("\x1b[32m", "\x1b[0m") } else { ("", "") };
        let mut out = String::new();
        for row in (0..ROWS).rev() {
            let label = match row {
                _ if row == ROWS - 1 => Size(top).to_string(),
                0 => Size(0).to_string(),
                _ => String::new(),
            };
            let tick = if label.is_empty() { '│' } else { '┤' };
            let line = |values: &[u64]| values.iter().map(|&value| cell(value, top, row)).collect::<String>();
            let [first, second, third] = parts.each_ref().map(|part| line(part));
            let text = format!(
                "{label:>LABEL_WIDTH$} {tick}{first}│{on}{second}{off}│{on}{}{off}",
                third.trim_end()
            );
            out.push_str(text.trim_end());
            out.push('\n');
        }
        let [(_, first), (_, second), (_, third)] = self.parts;
        // Writing to a string does not fail.
        let _ = writeln!(out, "{:>LABEL_WIDTH$}  {first:<columns$} {second:<columns$} {third}", "");
        out
    }
}

/// Returns the samples as `columns` values: means if there are more samples, repeated values if there are fewer.
fn spread(samples: &[u64], columns: usize) -> Vec<u64> {
    if samples.is_empty() {
        return vec![0; columns];
    }
    let part = |column: usize| {
        let start = column * samples.len() / columns;
        let end = ((column + 1) * samples.len() / columns).max(start + 1);
        let stretch = &samples[start..end];
        stretch.iter().sum::<u64>() / stretch.len() as u64
    };
    (0..columns).map(part).collect()
}

/// Returns the block that shows `value` in a row, counted from the bottom; `top` fills all rows.
fn cell(value: u64, top: u64, row: u32) -> char {
    let eighths = u128::from(ROWS) * 8;
    let level = (u128::from(value) * eighths).div_ceil(u128::from(top.max(1)));
    let in_row = level.saturating_sub(u128::from(row) * 8).min(8);
    BLOCKS[usize::try_from(in_row).unwrap_or(8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn three_parts_stand_side_by_side() {
        let first: Vec<u64> = (1..=20).map(|step| step * 10 * MIB).collect();
        let chart = Chart {
            parts: [(&first, "alone"), (&[10 * MIB; 5], "guarded"), (&[0], "inside")],
            width: 74,
            colour: false,
        };
        let expected = "
   200 MiB ┤                  ▄█│                    │
           │                ▄███│                    │
           │              ▄█████│                    │
           │            ▄███████│                    │
           │          ▄█████████│                    │
           │        ▄███████████│                    │
           │      ▄█████████████│                    │
           │    ▄███████████████│                    │
           │  ▄█████████████████│                    │
       0 B ┤▄███████████████████│▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄│
            alone                guarded              inside
";
        assert_eq!(format!("\n{}", chart.draw()), expected);
        let coloured = Chart { colour: true, ..chart }.draw();
        assert_eq!(coloured.replace("\x1b[32m", "").replace("\x1b[0m", ""), expected[1..]);
    }

    #[test]
    fn a_little_is_not_nothing() {
        assert_eq!(cell(1, 1 << 40, 0), '▁');
        assert_eq!(cell(0, 1 << 40, 0), ' ');
        assert_eq!(cell(1 << 40, 1 << 40, ROWS - 1), '█');
        assert_eq!(cell(0, 0, 0), ' ');
    }

    #[test]
    fn few_samples_are_repeated_and_many_are_averaged() {
        assert_eq!(spread(&[1, 2], 4), [1, 1, 2, 2]);
        assert_eq!(spread(&[1, 3, 5, 7], 2), [2, 6]);
        assert_eq!(spread(&[], 2), [0, 0]);
    }
}
