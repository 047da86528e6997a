//! One file: its figures, the processes that use it, and a map of its resident parts.

use pagekeeper_kernel::ResidencyMap;
use pagekeeper_observe::{Row, RowKey, RowOwner};
use pagekeeper_text::{escaped, percent};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::figures::{cut_front, figure, rate, size};
use super::model::Model;
use super::theme::Theme;

/// Columns of a map, and its greatest number of lines.
const MAP_COLUMNS: u16 = 72;
const MAP_LINES_MAX: u16 = 8;

/// Returns the number of a map's cells on a screen of this size.
pub(super) fn cells(area: Rect) -> usize {
    usize::from(columns(area)) * usize::from(MAP_LINES_MAX.min(area.height.saturating_sub(12).max(1)))
}

fn columns(area: Rect) -> u16 {
    MAP_COLUMNS.min(area.width.saturating_sub(6))
}

/// Returns the lines about a file.
pub(super) fn lines<'a>(model: &Model, row: Option<&Row>, area: Rect, theme: Theme) -> Vec<Line<'a>> {
    let Some(row) = row else {
        return vec![Line::from("this file has nothing in memory any more"), Line::from("Esc goes back")];
    };
    let width = usize::from(columns(area));
    let name = escaped(&row.label).to_string();
    let mut lines = vec![
        Line::styled(
            cut_front(&name, width, if theme.unicode { "…" } else { "..." }),
            Style::new().add_modifier(Modifier::BOLD),
        ),
        Line::from(format!(
            "resident {} of {} ({}), {} a second, dirty {}, writeback {}",
            size(row.resident),
            size(row.size),
            percent(row.resident, row.size.max(row.resident), 0),
            rate(row.growth),
            figure(row.dirty),
            figure(row.writeback)
        )),
        Line::from(format!(
            "evicted under pressure {}, of these {} recently{}",
            figure(row.evicted),
            figure(row.recently_evicted),
            what_it_is(row)
        )),
    ];
    if let Some(flow) = row.total_flow {
        lines.push(Line::from(format!(
            "since the start: {} came; left: {} reclaimed, {} dropped",
            size(flow.added),
            size(flow.reclaimed),
            size(flow.dropped)
        )));
    }
    if row.owners.is_empty() {
        lines.push(Line::from("nobody has it open"));
    }
    for owner in row.owners.iter().take(if area.height >= 30 { 6 } else { 3 }) {
        let text = escaped(&owner_words(owner)).into_cow().chars().take(width).collect::<String>();
        lines.push(Line::from(text));
    }
    lines.extend(map_lines(model, row, width, theme));
    lines.push(Line::from("e evict  w warm  Esc back"));
    lines
}

fn what_it_is(row: &Row) -> String {
    match (&row.database, row.class) {
        (Some(database), Some(class)) => format!("; {class} of {database}"),
        (Some(database), None) => format!("; of {database}"),
        _ => String::new(),
    }
}

fn owner_words(owner: &RowOwner) -> String {
    let mut how = Vec::new();
    match owner.used {
        None => how.push("no longer has it".to_owned()),
        Some(used) => {
            how.push(if used.writes { "may write to it" } else { "reads it" }.to_owned());
            if used.direct {
                how.push("past the page cache".to_owned());
            }
            if used.mapped {
                how.push("mapped".to_owned());
            }
        }
    }
    if owner.brought > 0 {
        how.push(format!("brought in {}", size(owner.brought)));
    }
    format!("{} {} ({}): {}", owner.name, owner.pid, owner.cgroup, how.join(", "))
}

fn map_lines<'a>(model: &Model, row: &Row, width: usize, theme: Theme) -> Vec<Line<'a>> {
    let map = match &model.map {
        Some((inode, map)) if row.key == RowKey::File(*inode) => map,
        _ => return vec![Line::from("the map is being drawn")],
    };
    match map {
        Err(error) => vec![Line::from(escaped(error).to_string())],
        Ok(map) => {
            let signs: Vec<char> = signs(map, row.size, theme).chars().collect();
            let mut lines = vec![Line::from(format!("each sign is {}:", size(map.cell_bytes)))];
            lines.extend(
                signs
                    .chunks(width.max(1))
                    .map(|signs| Line::styled(signs.iter().collect::<String>(), theme.style(Color::Green))),
            );
            lines
        }
    }
}

/// Returns a sign for each cell: the first sign only if nothing is resident, the last only if
/// everything is.
fn signs(map: &ResidencyMap, file_size: u64, theme: Theme) -> String {
    let shades = theme.shades();
    let last = u8::try_from(shades.len() - 1).expect("a few signs");
    map.levels(file_size, last).into_iter().map(|level| shades[usize::from(level)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::{Residency, ResidencySource};

    #[test]
    fn none_and_all_are_distinguished_from_nearly() {
        let total = Residency {
            resident: 0,
            dirty: None,
            writeback: None,
            evicted: None,
            recently_evicted: None,
            source: ResidencySource::Mincore,
        };
        let map = ResidencyMap {
            cell_bytes: 8192 * 100,
            resident: vec![0, 4096, 8192 * 100 - 4096, 8192 * 100, 4096],
            total,
        };
        let theme = Theme { colour: false, unicode: false };
        assert_eq!(signs(&map, 8192 * 400 + 1, theme), ".-*##");
    }

    #[test]
    fn a_map_fits_the_screen() {
        assert_eq!(cells(Rect::new(0, 0, 80, 24)), 72 * 8);
        assert_eq!(cells(Rect::new(0, 0, 60, 14)), 54 * 2);
    }
}
