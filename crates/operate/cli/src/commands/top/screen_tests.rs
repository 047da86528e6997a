//! The screen as a terminal shows it, and plain data for that.

use std::time::{Duration, SystemTime};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{MemInfo, SysRoots, Watermarks};
use pagekeeper_observe::{
    CachedBreakdown, CensusTick, FlowBytes, MemoryBreakdown, QueryRows, Row, RowKey, RowQuery, VisibilityGap,
};
use pagekeeper_trace::{DirtyLevels, DurationStats, EventLosses, PauseCounts, TaskIdentity};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode as Key;
use ratatui::style::Color;

use super::model::{Model, SeenRows};
use super::screen::draw;
use super::theme::Theme;

const GIB: u64 = 1 << 30;

/// Returns a file with this many MiB resident.
pub(super) fn file_row(ino: u64, path: &str, mib: u64) -> Row {
    Row {
        key: RowKey::File(Inode { dev: 1, ino }),
        label: path.to_owned(),
        path: Some(path.into()),
        deleted: false,
        files: 1,
        size: 1 << 30,
        resident: mib << 20,
        dirty: Some(0),
        writeback: Some(0),
        evicted: Some(0),
        recently_evicted: Some(0),
        growth: 0,
        flow: Some(FlowBytes::default()),
        total_flow: Some(FlowBytes::default()),
        owners: Vec::new(),
        class: None,
        database: None,
    }
}

/// Returns a tick with round figures.
fn tick() -> CensusTick {
    let memory = MemInfo::read(&SysRoots::default()).expect("there is a /proc");
    CensusTick {
        at: SystemTime::UNIX_EPOCH,
        period: Duration::from_secs(1),
        memory,
        watermarks: Watermarks { min: 64 << 20, low: 80 << 20, high: 96 << 20, reserve: 0 },
        split: MemoryBreakdown {
            total: 16 * GIB,
            processes: 4 * GIB,
            clean: 6 * GIB,
            dirty: GIB,
            writeback: 0,
            shmem: GIB / 2,
            buffers: GIB / 4,
            slab: GIB,
            free: 3 * GIB,
            other: GIB / 4,
        },
        explained: CachedBreakdown {
            cached: 7 * GIB + GIB / 2,
            files: 7 * GIB,
            shmem: GIB / 2,
            scoped: false,
        },
        file_systems: Vec::new(),
        files: 12_345,
        files_in_memory: 2_000,
        pauses: Some(Vec::new()),
        reclaim: Some(Vec::new()),
        machine: None,
        losses: EventLosses::default(),
        rescan: None,
        visibility_gaps: Vec::new(),
    }
}

/// Returns a screen that shows these rows.
pub(super) fn model_with(rows: &[Row]) -> Model {
    let mut model = Model::new(RowQuery::default(), Duration::from_secs(1));
    let rows = QueryRows { rows: rows.to_vec(), matching: rows.len(), resident: 0 };
    model.take(SeenRows { tick: tick(), rows, query: model.query.clone() }, true);
    model
}

const PLAIN: Theme = Theme { colour: false, unicode: false };

fn drawn(model: &mut Model, columns: u16, rows: u16, theme: Theme) -> (String, Terminal<TestBackend>) {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, model, theme)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
    let text = (0..rows).map(|y| line(y).trim_end().to_owned()).collect::<Vec<_>>().join("\n");
    (text, terminal)
}

fn model() -> Model {
    let mut growing = file_row(2, "/var/lib/mysql/binlog.000007", 512);
    (growing.growth, growing.dirty) = (10 << 20, Some(64 << 20));
    growing.class = Some(pagekeeper_policy::FileClass::Binlog);
    let long = format!("/srv/{}ibdata1", "deep/".repeat(20));
    let mut odd = file_row(3, "/tmp/\u{1b}[2Jodd\n", 1);
    odd.evicted = None;
    model_with(&[file_row(1, &long, 6000), growing, odd])
}

#[test]
fn a_plain_screen_of_80_by_24() {
    let (text, _) = drawn(&mut model(), 80, 24, PLAIN);
    let lines: Vec<&str> = text.lines().collect();
    let bar = format!(
        "[{}{}{}{}{}{}{}{}]",
        "p".repeat(19),
        "c".repeat(29),
        "d".repeat(4),
        "ss",
        "b",
        "kkkk",
        "o",
        ".".repeat(18)
    );
    let expected = [
        "pagekeeper top  memory 16G, every 1.0 s",
        &bar,
        "p processes 4G  c clean 6G  d dirty 1G  w writeback -  s shmem 512M",
        "b buffers 256M  k slab 1G  o other 256M  . free 3G  (low 80M min 64M)",
        "Cached 7.5G = files 7G + shmem 512M: 100.0 % explained; 2,000 of 12,345 files",
        "nobody is throttled for dirty pages or has to reclaim memory",
        "RESIDNT*    +/S  DIRTY EVICTED TREND     FILE (3)",
        ">   5.9G      -      -       - _         ...eep/deep/deep/deep/deep/deep/ibdata1",
        "    512M   +10M    64M       - _         /var/lib/mysql/binlog.000007 [binlog]",
        "      1M      -      -       ? _         /tmp/\\x1b[2Jodd\\n",
    ];
    for (at, line) in expected.iter().enumerate() {
        assert_eq!(lines[at], *line, "line {at} of\n{text}");
    }
    assert!(lines[23].starts_with("? help  q quit"), "{text}");
}

#[test]
fn colours_only_where_they_are_welcome() {
    for colour in [false, true] {
        let (_, terminal) = drawn(&mut model(), 80, 24, Theme { colour, unicode: true });
        let coloured = terminal.backend().buffer().content().iter().any(|cell| cell.fg != Color::Reset);
        assert_eq!(coloured, colour);
    }
}

#[test]
fn unicode_only_where_it_is_known() {
    for unicode in [false, true] {
        let (text, _) = drawn(&mut model(), 80, 24, Theme { colour: true, unicode });
        assert_eq!(text.is_ascii(), !unicode, "{text}");
    }
}

#[test]
fn a_small_terminal_shows_the_size_it_needs() {
    for (columns, rows) in [(59, 24), (80, 13), (20, 5), (1, 1)] {
        let (text, _) = drawn(&mut model(), columns, rows, PLAIN);
        assert!(columns < 20 || text.starts_with("the terminal is too"), "{text}");
    }
    let (text, _) = drawn(&mut model(), 60, 14, PLAIN);
    assert!(text.starts_with("pagekeeper top"), "{text}");
}

#[test]
fn every_size_can_be_drawn_with_everything_over_it() {
    let mut model = model();
    for keys in ["", "?", "e", "f"] {
        for key in keys.chars() {
            model.press(Key::Char(key));
        }
        for (columns, rows) in [(60, 14), (61, 15), (80, 24), (132, 43), (300, 100)] {
            drawn(&mut model, columns, rows, Theme { colour: true, unicode: true });
        }
        model.press(Key::Esc);
    }
    model.press(Key::Enter);
    for (columns, rows) in [(60, 14), (80, 24), (300, 100)] {
        let (text, _) = drawn(&mut model, columns, rows, PLAIN);
        assert!(text.contains("the map is being drawn") && text.contains("nobody has it open"), "{text}");
    }
}

#[test]
fn questions_help_and_filters_are_shown() {
    let mut model = model();
    model.press(Key::Down);
    model.press(Key::Char('e'));
    let (text, _) = drawn(&mut model, 80, 24, PLAIN);
    assert!(text.contains("evict /var/lib/mysql/binlog.000007?") && text.contains("y does it"), "{text}");
    model.press(Key::Char('n'));
    assert!(drawn(&mut model, 80, 24, PLAIN).0.contains("evict not done"));
    model.press(Key::Char('f'));
    model.press(Key::Char('x'));
    assert!(drawn(&mut model, 80, 24, PLAIN).0.contains("filter: x_"));
    model.press(Key::Enter);
    let gap = VisibilityGap { what: "a thing".into(), why: "no right".into(), needs: Some("root".into()) };
    model.seen.as_mut().unwrap().tick.visibility_gaps.push(gap);
    model.press(Key::Char('?'));
    let (text, _) = drawn(&mut model, 80, 24, PLAIN);
    assert!(
        text.contains("sort by resident") && text.contains("not seen: a thing: no right; needs root"),
        "{text}"
    );
}

#[test]
fn paused_databases_are_shown() {
    let mut model = model();
    let paused = |name: &str| PauseCounts {
        task: TaskIdentity { process: 42, thread: 43, name: name.into() },
        device: "8:0".into(),
        pauses: [Duration::from_millis(250)].into_iter().collect::<DurationStats>(),
        waits: 1,
        longest_wait: Duration::from_millis(250),
        levels: DirtyLevels::default(),
    };
    let tick = &mut model.seen.as_mut().unwrap().tick;
    tick.pauses = Some(vec![paused("mysqld"), paused("dd")]);
    let (text, _) = drawn(&mut model, 80, 24, PLAIN);
    assert!(text.contains("mysqld 42 throttled 25 % of the time for dirty pages of 8:0; 1 more"), "{text}");
    let (text, _) = drawn(&mut model, 80, 40, PLAIN);
    assert!(text.contains("dd 42 throttled 25 %"), "{text}");
}

#[test]
fn the_first_walk_shows_how_far_it_is() {
    let mut model = Model::new(RowQuery::default(), Duration::from_secs(1));
    model.walked = 123_456;
    assert!(drawn(&mut model, 80, 24, PLAIN).0.starts_with("reading all files: 123,456 so far"));
}
