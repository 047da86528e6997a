//! A small chart for the terminal: one figure over time in three parts, drawn in block characters.
//!
//! Invariants: each part has the same width for any number of samples; a value above zero is
//! visible.

use std::fmt::Write;

use pagekeeper_text::ByteSize;

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const CHART_LABEL_COLUMNS: usize = 10;
const CHART_ROWS: u32 = 10;

/// Draws bytes over time, each part with its label, on `width` columns. All parts but the first may
/// be coloured.
pub(super) fn draw(parts: &[Vec<u64>; 3], labels: [&str; 3], width: usize, has_colour: bool) -> String {
    let columns = width.saturating_sub(CHART_LABEL_COLUMNS + 4).max(24) / 3;
    let parts = parts.each_ref().map(|samples| spread(samples, columns));
    let top = parts.iter().flatten().copied().max().unwrap_or(0);
    let (on, off) = if has_colour { ("\x1b[32m", "\x1b[0m") } else { ("", "") };
    let mut out = String::new();
    for row in (0..CHART_ROWS).rev() {
        let (label, tick) = match row {
            0 => (ByteSize(0).to_string(), '┤'),
            _ if row == CHART_ROWS - 1 => (ByteSize(top).to_string(), '┤'),
            _ => (String::new(), '│'),
        };
        let [first, second, third] = parts
            .each_ref()
            .map(|values| values.iter().map(|&value| cell(value, top, row)).collect::<String>());
        let line = format!(
            "{label:>CHART_LABEL_COLUMNS$} {tick}{first}│{on}{second}{off}│{on}{}{off}",
            third.trim_end()
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let [first, second, third] = labels;
    // Writing to a string does not fail.
    let _ = writeln!(out, "{:>CHART_LABEL_COLUMNS$}  {first:<columns$} {second:<columns$} {third}", "");
    out
}

/// Returns the samples as `columns` values: means if there are more samples, repeated values if
/// there are fewer.
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
    let eighths = u128::from(CHART_ROWS) * 8;
    let level = (u128::from(value) * eighths).div_ceil(u128::from(top.max(1)));
    let in_row = level.saturating_sub(u128::from(row) * 8).min(8);
    BLOCKS[usize::try_from(in_row).unwrap_or(8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_parts_stand_side_by_side() {
        let parts = [(1..=20).map(|step| (step * 10) << 20).collect(), vec![10 << 20; 5], vec![0]];
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
        let drawn = |has_colour| draw(&parts, ["alone", "guarded", "inside"], 74, has_colour);
        assert_eq!(format!("\n{}", drawn(false)), expected);
        assert_eq!(drawn(true).replace("\x1b[32m", "").replace("\x1b[0m", ""), expected[1..]);
    }
}
