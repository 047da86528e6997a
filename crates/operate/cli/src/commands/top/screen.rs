//! Draws the state: memory, waiting tasks, the table, and what covers it.
//!
//! Invariants: no file name can control the terminal; without colour, every part has its own letter
//! or sign; below [`MIN_SIZE`] columns and rows, one sentence is drawn instead. The drawing follows
//! from the model alone. Writing to a `String` can't fail.

use std::fmt::Write as _;

use pagekeeper_observe::{CensusTick, GroupBy, MemoryBreakdown, Row, RowKey, SortKey};
use pagekeeper_text::{count, counted, duration, escaped, wrapped_at};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Padding, Paragraph, Wrap};

use super::choices::heading;
use super::detail;
use super::figures::{cut_front, explained, figure, rate, size};
use super::model::{HISTORY, Model, Overlay};
use super::report::{in_words, name, unwritten, waits};
use super::theme::Theme;
use crate::output;

/// Minimum number of columns and rows.
pub(super) const MIN_SIZE: (u16, u16) = (60, 14);

/// A part of memory: its letter, name, colour and size.
type MemoryPart = (char, &'static str, Color, u64);

fn parts(split: &MemoryBreakdown) -> [MemoryPart; 9] {
    [
        ('p', "processes", Color::Magenta, split.processes),
        ('c', "clean", Color::Green, split.clean),
        ('d', "dirty", Color::Red, split.dirty),
        ('w', "writeback", Color::Yellow, split.writeback),
        ('s', "shmem", Color::Cyan, split.shmem),
        ('b', "buffers", Color::Blue, split.buffers),
        ('k', "slab", Color::LightBlue, split.slab),
        ('o', "other", Color::Gray, split.other),
        ('.', "free", Color::DarkGray, split.free),
    ]
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, theme: Theme) {
    let area = frame.area();
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        let text = format!(
            "the terminal is too small: it has {} columns and {} rows, and {} and {} are needed",
            area.width, area.height, MIN_SIZE.0, MIN_SIZE.1
        );
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let Some(seen) = &model.seen else {
        let text = format!("reading all files: {} so far. q quits", count(model.walked));
        frame.render_widget(Paragraph::new(text), area);
        return;
    };
    let waits = wait_lines(&seen.tick, if area.height >= 30 { 5 } else { 1 }, theme);
    let gaps = seen.tick.visibility_gaps.len();
    let heights = [5, u16::try_from(waits.len()).unwrap_or(1), 1, 0, 1];
    let [memory, waiting, head, table, foot] = Layout::vertical([
        Constraint::Length(heights[0]),
        Constraint::Length(heights[1]),
        Constraint::Length(heights[2]),
        Constraint::Min(heights[3]),
        Constraint::Length(heights[4]),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(memory_lines(model, &seen.tick, memory.width, theme)), memory);
    frame.render_widget(Paragraph::new(waits), waiting);
    frame.render_widget(Paragraph::new(head_line(model, head.width)), head);
    model.visible = usize::from(table.height);
    let rows: Vec<Line<'_>> = model
        .rows()
        .iter()
        .enumerate()
        .skip(model.first())
        .take(model.visible)
        .map(|(at, row)| row_line(model, row, at == model.cursor(), table.width, theme))
        .collect();
    if rows.is_empty() {
        frame.render_widget(Paragraph::new("no file here has pages in memory"), table);
    } else {
        frame.render_widget(Paragraph::new(rows), table);
    }
    frame.render_widget(Paragraph::new(foot_line(model, gaps, theme)), foot);
    match &model.overlay {
        Overlay::Nothing => {}
        Overlay::Help => over(frame, area, help_lines(model)),
        Overlay::Confirm(act, target) => {
            let name = escaped(&target.label).to_string();
            let room = usize::from(area.width).saturating_sub(12);
            over(
                frame,
                area,
                vec![
                    Line::from(format!("{} {}?", act.verb(), cut_front(&name, room, theme.mark()))),
                    Line::from(format!("{} of {} are in memory", size(target.resident), size(target.size))),
                    Line::from("y does it, any other key does not"),
                ],
            );
        }
        Overlay::Detail(key) => {
            let row = model.rows().iter().find(|row| row.key == *key);
            over(frame, area, detail::lines(model, row, area, theme));
        }
    }
}

/// Draws lines over the table, in a frame with margins.
fn over(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>) {
    const RULES: border::Set<'_> =
        border::Set { horizontal_top: "-", horizontal_bottom: "-", ..border::PLAIN };
    let width = lines.iter().map(Line::width).max().unwrap_or(0);
    let width = u16::try_from(width + 4).unwrap_or(u16::MAX).min(area.width);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let place = area.centered(Constraint::Length(width), Constraint::Length(height));
    let rules = Block::new().borders(Borders::TOP | Borders::BOTTOM).border_set(RULES);
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(rules.padding(Padding::horizontal(2))), place);
}

fn memory_lines<'a>(model: &Model, tick: &CensusTick, width: u16, theme: Theme) -> Vec<Line<'a>> {
    let split = &tick.split;
    let parts = parts(split);
    let title = format!(
        "pagekeeper top  memory {}, every {}{}",
        size(split.total),
        duration(model.interval),
        if model.paused { "  STOPPED: space continues" } else { "" }
    );
    let legend = |parts: &[MemoryPart]| {
        let mut spans = Vec::new();
        for (letter, name, colour, bytes) in parts {
            spans.push(Span::styled(format!("{letter}"), theme.style(*colour).add_modifier(Modifier::BOLD)));
            spans.push(Span::raw(format!(" {name} {}  ", figure(Some(*bytes)))));
        }
        spans
    };
    let mut second = legend(&parts[5..]);
    second.push(Span::raw(format!("(low {} min {})", size(tick.watermarks.low), size(tick.watermarks.min))));
    vec![
        Line::styled(title, Style::new().add_modifier(Modifier::BOLD)),
        bar(&parts, split.total, width, theme),
        Line::from(legend(&parts[..5])),
        Line::from(second),
        Line::from(format!(
            "{}; {} of {}",
            explained(&tick.explained),
            count(tick.files_in_memory),
            output::files(tick.files)
        )),
    ]
}

/// Returns memory as one bar; every part above zero has at least one column, if there is space.
fn bar<'a>(parts: &[MemoryPart], total: u64, width: u16, theme: Theme) -> Line<'a> {
    let width = u64::from(width).saturating_sub(2);
    let columns = |bytes: u64| if bytes == 0 { 0 } else { (bytes * width / total.max(1)).max(1) };
    let mut spans = vec![Span::raw("[")];
    let mut left = width;
    for (at, (letter, _, colour, bytes)) in parts.iter().enumerate() {
        let last = at + 1 == parts.len();
        let wanted = if last { left } else { columns(*bytes).min(left) };
        left -= wanted;
        let text =
            String::from(*letter).repeat(usize::try_from(wanted).expect("at most the width of a screen"));
        spans.push(Span::styled(text, theme.style(*colour)));
    }
    spans.push(Span::raw("]"));
    Line::from(spans)
}

/// Returns the tasks that are throttled for dirty pages, or have to reclaim memory.
fn wait_lines<'a>(tick: &CensusTick, most: usize, theme: Theme) -> Vec<Line<'a>> {
    let Some(mut words) = waits(tick).map(|lines| lines.concat()) else {
        return vec![Line::from("throttled and reclaiming tasks are not visible without tracing")];
    };
    if words.is_empty() {
        return vec![Line::from("nobody is throttled for dirty pages or has to reclaim memory")];
    }
    let more = words.len().saturating_sub(most);
    words.truncate(most);
    if let Some(last) = words.last_mut().filter(|_| more > 0) {
        let _ = write!(last, "; {more} more");
    }
    words.into_iter().map(|text| Line::styled(text, theme.style(Color::Red))).collect()
}

/// Columns of the table before the name: resident, growth, dirty, evicted, history.
const FIGURE_COLUMNS: usize = 9 + 7 + 7 + 8 + HISTORY + 2;

/// Returns the columns for the processes that use a file, which only wide screens show.
fn owner_columns(width: u16) -> usize {
    if width >= 100 { 18 } else { 0 }
}

fn head_line<'a>(model: &Model, width: u16) -> Line<'a> {
    let sorted = |sort: SortKey, name: &str| {
        if model.query.sort == sort { format!("{name}*") } else { name.to_owned() }
    };
    let mut text = format!(
        "{:>8} {:>6} {:>6} {:>7} {:<history$} ",
        sorted(SortKey::Resident, "RESIDNT"),
        sorted(SortKey::Growth, "+/S"),
        sorted(SortKey::Dirty, "DIRTY"),
        sorted(SortKey::Evicted, "EVICTED"),
        "TREND",
        history = HISTORY + 1,
    );
    let owner = owner_columns(width);
    if owner > 0 {
        let who = if model.query.group == GroupBy::File { "WHO" } else { "FILES" };
        let _ = write!(text, "{who:<owner$}");
    }
    text.push_str(&heading(model.query.group));
    if !model.query.filter.is_empty() {
        let _ = write!(text, " with \"{}\"", model.query.filter);
    }
    let matching = model.seen.as_ref().map_or(0, |seen| seen.rows.matching);
    let _ = write!(text, " ({})", count(matching as u64));
    let text = escaped(&text).to_string();
    Line::styled(
        format!("{text:<width$}", width = usize::from(width)),
        Style::new().add_modifier(Modifier::REVERSED),
    )
}

fn row_line<'a>(model: &Model, row: &Row, chosen: bool, width: u16, theme: Theme) -> Line<'a> {
    let unwritten = unwritten(row);
    let growth = match row.growth {
        0 => Style::new(),
        1.. => theme.style(Color::Green),
        _ => theme.style(Color::Yellow),
    };
    let dirty = if unwritten.unwrap_or(0) > 0 { theme.style(Color::Red) } else { Style::new() };
    let owner = owner_columns(width);
    let mut spans = vec![
        Span::raw(format!("{}{:>7} ", if chosen { ">" } else { " " }, size(row.resident))),
        Span::styled(format!("{:>6} ", rate(row.growth)), growth),
        Span::styled(format!("{:>6} ", figure(unwritten)), dirty),
        Span::raw(format!("{:>7} ", figure(row.evicted))),
        Span::styled(
            format!("{:<history$} ", trend(model, &row.key, theme), history = HISTORY + 1),
            theme.style(Color::Cyan),
        ),
    ];
    if owner > 0 {
        let who = match (row.owners.first(), model.query.group) {
            (Some(owner), GroupBy::File) => format!("{} {}", owner.name, owner.pid),
            (None, GroupBy::File) => "-".to_owned(),
            _ => count(row.files),
        };
        let who: String = escaped(&who).into_cow().chars().take(owner - 1).collect();
        spans.push(Span::raw(format!("{who:<owner$}")));
    }
    let mut name = name(row);
    if let Some(class) = row.class {
        let _ = write!(name, " [{class}]");
    }
    let room = usize::from(width).saturating_sub(FIGURE_COLUMNS + owner);
    spans.push(Span::raw(format!("{:<room$}", cut_front(&name, room, theme.mark()))));
    let line = Line::from(spans);
    if chosen { line.style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)) } else { line }
}

/// Returns the resident bytes in the last ticks as signs, scaled from the minimum to the maximum.
fn trend(model: &Model, key: &RowKey, theme: Theme) -> String {
    let history = model.history(key);
    let skipped = history.len().saturating_sub(HISTORY);
    let values: Vec<u64> = history.skip(skipped).collect();
    let (least, most) =
        (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(0));
    let heights = theme.heights();
    let height = |value: u64| {
        let at =
            if most == least { 0 } else { (value - least) * (heights.len() as u64 - 1) / (most - least) };
        heights[usize::try_from(at).expect("less than a length")]
    };
    values.into_iter().map(height).collect()
}

fn foot_line<'a>(model: &Model, gaps: usize, theme: Theme) -> Line<'a> {
    if model.typing() {
        let text = format!("filter: {}_   Enter keeps it, Esc takes it back", model.query.filter);
        return Line::from(escaped(&text).to_string());
    }
    if let Some(message) = model.message() {
        return Line::styled(escaped(message).to_string(), theme.style(Color::Yellow));
    }
    let keys = if gaps > 0 {
        let gaps = counted(gaps, "visibility gap", "visibility gaps");
        format!("? help ({gaps})  q quit  s sort  f filter  Tab group  e evict  w warm")
    } else {
        "? help  q quit  s sort  f filter  Tab group  Enter map  e evict  w warm".to_owned()
    };
    Line::from(keys)
}

/// The width of the help, in columns.
const HELP_COLUMNS: usize = 68;
/// The keys, and the columns in words.
const KEYS: &str = include_str!("../../../help/top-keys.txt");

fn help_lines<'a>(model: &Model) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = KEYS.lines().map(Line::from).collect();
    let gaps = model.seen.iter().flat_map(|seen| &seen.tick.visibility_gaps);
    for gap in gaps {
        let mut text = String::new();
        let _ = wrapped_at(HELP_COLUMNS, &mut text, "", 0, &in_words(gap));
        lines.extend(text.lines().map(|line| Line::from(line.to_owned())));
    }
    lines
}
