//! The screen's state: what is shown, and the effect of each key. It holds and returns plain data.
//!
//! Invariants: no action happens without a question that was answered with y. The chosen row stays
//! chosen while rows move. The history of a row is kept while the row exists, and for a minute
//! after it left. Never fails.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use pagekeeper_kernel::{Inode, ResidencyMap};
use pagekeeper_observe::{CensusTick, QueryRows, Row, RowKey, RowQuery, SortKey};
use ratatui::crossterm::event::KeyCode as Key;

use super::choices::{GROUPS, SORTS, next};

/// Ticks of a row's history: as many as its trend shows.
pub(super) const HISTORY: usize = 8;
/// Ticks for which the history of a row that left is kept.
const HISTORY_KEPT_TICKS: u64 = 60;
/// Rows requested from the census: more than any screen has, so that one can scroll.
const TABLE_ROWS_MAX: usize = 200;

/// An action on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileAct {
    Evict,
    Warm,
}

impl FileAct {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::Warm => "warm",
        }
    }
}

/// A file to act on or show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TargetFile {
    pub(super) path: PathBuf,
    pub(super) inode: Inode,
    /// Its name on the screen.
    pub(super) label: String,
    pub(super) resident: u64,
    pub(super) size: u64,
}

/// The next action of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    /// Request other rows.
    Ask,
    /// Do this to a file.
    Do(FileAct, TargetFile),
    /// Draw a map of a file.
    Map(TargetFile),
}

/// The overlay on the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Overlay {
    Nothing,
    Help,
    /// A question, to be answered with y.
    Confirm(FileAct, TargetFile),
    /// One file.
    Detail(RowKey),
}

/// The latest result of the census.
#[derive(Debug, Clone)]
pub(super) struct SeenRows {
    pub(super) tick: CensusTick,
    pub(super) rows: QueryRows,
    /// The query that selected the rows.
    pub(super) query: RowQuery,
}

/// The state.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) query: RowQuery,
    pub(super) seen: Option<Box<SeenRows>>,
    /// Files read so far, before the first tick.
    pub(super) walked: u64,
    chosen: Option<RowKey>,
    /// The position of the chosen row, if it has left.
    place: usize,
    pub(super) overlay: Overlay,
    /// The previous filter, while a new one is typed.
    typing: Option<String>,
    pub(super) paused: bool,
    /// The result of the last action, or the one in progress, and the number of ticks for which it
    /// is still shown.
    message: Option<(String, u32)>,
    history: HashMap<RowKey, (u64, VecDeque<u64>)>,
    ticks: u64,
    pub(super) map: Option<(Inode, Result<ResidencyMap, String>)>,
    /// Rows that fit on the screen, set by the code that draws.
    pub(super) visible: usize,
    pub(super) interval: Duration,
}

impl Model {
    pub(super) fn new(query: RowQuery, interval: Duration) -> Self {
        Self {
            query: RowQuery { limit: TABLE_ROWS_MAX, ..query },
            seen: None,
            walked: 0,
            chosen: None,
            place: 0,
            overlay: Overlay::Nothing,
            typing: None,
            paused: false,
            message: None,
            history: HashMap::new(),
            ticks: 0,
            map: None,
            visible: 10,
            interval,
        }
    }

    /// Takes a result of the census. `ticked` if time has passed, false if only other rows were
    /// requested.
    pub(super) fn take(&mut self, seen: SeenRows, ticked: bool) {
        if self.paused && ticked && self.seen.is_some() {
            return;
        }
        if ticked {
            self.ticks += 1;
            let ticks = self.ticks;
            for row in &seen.rows.rows {
                let (last, history) = self.history.entry(row.key.clone()).or_default();
                *last = ticks;
                history.push_back(row.resident);
                if history.len() > HISTORY {
                    history.pop_front();
                }
            }
            self.history.retain(|_, (last, _)| *last + HISTORY_KEPT_TICKS > ticks);
            if let Some((_, left)) = &mut self.message {
                *left = left.saturating_sub(1);
            }
            self.message.take_if(|(_, left)| *left == 0);
        }
        self.seen = Some(Box::new(seen));
    }

    /// Shows the message of an action that finished or failed.
    pub(super) fn say(&mut self, text: String) {
        // About ten seconds.
        let ticks = Duration::from_secs(10).div_duration_f64(self.interval.max(Duration::from_millis(1)));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "10,000 at most")]
        let ticks = ticks as u32;
        self.message = Some((text, ticks.max(3)));
    }

    pub(super) fn message(&self) -> Option<&str> {
        self.message.as_ref().map(|(text, _)| text.as_str())
    }

    pub(super) fn rows(&self) -> &[Row] {
        self.seen.as_ref().map_or(&[], |seen| &seen.rows.rows)
    }

    /// Returns the number of the chosen row.
    pub(super) fn cursor(&self) -> usize {
        let rows = self.rows();
        let at = self.chosen.as_ref().and_then(|key| rows.iter().position(|row| row.key == *key));
        at.unwrap_or(self.place).min(rows.len().saturating_sub(1))
    }

    /// Returns the first row on the screen, so that the chosen one is visible.
    pub(super) fn first(&self) -> usize {
        (self.cursor() + 1).saturating_sub(self.visible.max(1))
    }

    pub(super) fn chosen(&self) -> Option<&Row> {
        self.rows().get(self.cursor())
    }

    /// Returns the resident bytes of a row in the last ticks, the oldest first.
    pub(super) fn history(&self, key: &RowKey) -> impl ExactSizeIterator<Item = u64> {
        const NONE: &VecDeque<u64> = &VecDeque::new();
        self.history.get(key).map_or(NONE, |(_, history)| history).iter().copied()
    }

    /// Whether a filter is being typed.
    pub(super) fn typing(&self) -> bool {
        self.typing.is_some()
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: Key) -> Option<Action> {
        if self.typing.is_some() {
            return self.type_filter(key);
        }
        match std::mem::replace(&mut self.overlay, Overlay::Nothing) {
            Overlay::Nothing => self.press_table(key),
            Overlay::Help => None,
            Overlay::Confirm(act, target) => {
                if key != Key::Char('y') && key != Key::Char('Y') {
                    self.say(format!("{} not done", act.verb()));
                    return None;
                }
                self.say(format!("{} {} …", act.verb(), target.label));
                Some(Action::Do(act, target))
            }
            Overlay::Detail(row) => self.press_detail(key, row),
        }
    }

    fn type_filter(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Char(letter) if !letter.is_control() && self.query.filter.chars().count() < 200 => {
                self.query.filter.push(letter);
            }
            Key::Backspace => {
                self.query.filter.pop();
            }
            Key::Enter => {
                self.typing = None;
                return None;
            }
            Key::Esc => self.query.filter = self.typing.take().unwrap_or_default(),
            _ => return None,
        }
        Some(Action::Ask)
    }

    fn press_table(&mut self, key: Key) -> Option<Action> {
        let page = self.visible.max(1);
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('?' | 'h') => self.overlay = Overlay::Help,
            Key::Char(' ') => self.paused = !self.paused,
            Key::Char('f' | '/') => self.typing = Some(self.query.filter.clone()),
            Key::Esc if !self.query.filter.is_empty() => {
                self.query.filter.clear();
                return Some(Action::Ask);
            }
            Key::Char('s') => return Some(self.sort(next(&SORTS, self.query.sort, 1))),
            Key::Char('r') => return Some(self.sort(SortKey::Resident)),
            Key::Char('g') => return Some(self.sort(SortKey::Growth)),
            Key::Char('d') => return Some(self.sort(SortKey::Dirty)),
            Key::Char('v') => return Some(self.sort(SortKey::Evicted)),
            Key::Tab | Key::BackTab => {
                let step = if key == Key::Tab { 1 } else { GROUPS.len() - 1 };
                self.query.group = next(&GROUPS, self.query.group, step);
                (self.chosen, self.place) = (None, 0);
                return Some(Action::Ask);
            }
            Key::Char('e') => self.ask(FileAct::Evict),
            Key::Char('w') => self.ask(FileAct::Warm),
            Key::Enter => return self.open(),
            Key::Up | Key::Char('k') => self.go(self.cursor().saturating_sub(1)),
            Key::Down | Key::Char('j') => self.go(self.cursor() + 1),
            Key::PageUp => self.go(self.cursor().saturating_sub(page)),
            Key::PageDown => self.go(self.cursor() + page),
            Key::Home => self.go(0),
            Key::End => self.go(usize::MAX),
            _ => {}
        }
        None
    }

    fn press_detail(&mut self, key: Key, row: RowKey) -> Option<Action> {
        match key {
            Key::Char('q') => return Some(Action::Quit),
            // The displayed file may have left the table: then another row is the chosen one.
            Key::Char('e' | 'w') if self.chosen().is_none_or(|chosen| chosen.key != row) => {
                self.say("this file has nothing in memory any more".to_owned());
            }
            Key::Char('e') => self.ask(FileAct::Evict),
            Key::Char('w') => self.ask(FileAct::Warm),
            Key::Enter | Key::Esc | Key::Backspace => {}
            _ => self.overlay = Overlay::Detail(row),
        }
        None
    }

    fn sort(&mut self, sort: SortKey) -> Action {
        self.query.sort = sort;
        // The greatest rows are wanted, not the chosen one.
        (self.chosen, self.place) = (None, 0);
        Action::Ask
    }

    fn go(&mut self, to: usize) {
        self.place = to.min(self.rows().len().saturating_sub(1));
        self.chosen = self.rows().get(self.place).map(|row| row.key.clone());
    }

    /// Returns the chosen file, if it can be opened.
    fn target(&self) -> Result<TargetFile, &'static str> {
        let row = self.chosen().ok_or("no row is chosen")?;
        match (&row.key, &row.path) {
            (RowKey::File(inode), Some(path)) => Ok(TargetFile {
                path: path.clone(),
                inode: *inode,
                label: row.label.clone(),
                resident: row.resident,
                size: row.size,
            }),
            (RowKey::File(_), None) => Err("this file has no name yet to open it by"),
            (RowKey::Group(_), _) => Err("this is a group: Tab shows files"),
        }
    }

    fn ask(&mut self, act: FileAct) {
        match self.target() {
            Ok(target) => {
                self.go(self.cursor());
                self.overlay = Overlay::Confirm(act, target);
            }
            Err(why) => self.say(why.to_owned()),
        }
    }

    fn open(&mut self) -> Option<Action> {
        let target = match self.target() {
            Ok(target) => target,
            Err(why) => {
                self.say(why.to_owned());
                return None;
            }
        };
        self.go(self.cursor());
        self.overlay = Overlay::Detail(RowKey::File(target.inode));
        if self.map.as_ref().is_some_and(|(inode, _)| *inode != target.inode) {
            self.map = None;
        }
        Some(Action::Map(target))
    }

    /// Returns the file whose map is displayed, to be redrawn at intervals.
    pub(super) fn mapped(&self) -> Option<TargetFile> {
        match &self.overlay {
            Overlay::Detail(key) => self.target().ok().filter(|target| RowKey::File(target.inode) == *key),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::screen_tests::{file_row, model_with};
    use super::*;
    use pagekeeper_observe::GroupBy;

    #[test]
    fn nothing_is_done_without_a_y() {
        let mut model = model_with(&[file_row(1, "/a", 10), file_row(2, "/b", 5)]);
        assert_eq!(model.press(Key::Char('e')), None);
        assert!(matches!(&model.overlay, Overlay::Confirm(FileAct::Evict, target) if target.label == "/a"));
        assert_eq!(model.press(Key::Enter), None);
        assert_eq!((model.message(), &model.overlay), (Some("evict not done"), &Overlay::Nothing));
        model.press(Key::Down);
        model.press(Key::Char('w'));
        let done = model.press(Key::Char('y'));
        assert!(matches!(done, Some(Action::Do(FileAct::Warm, target)) if target.label == "/b"));
    }

    #[test]
    fn the_chosen_row_stays_chosen_while_rows_move() {
        let mut model = model_with(&[file_row(1, "/a", 10), file_row(2, "/b", 5)]);
        model.press(Key::Down);
        assert_eq!(model.chosen().unwrap().label, "/b");
        let seen = |rows: &[Row]| {
            let mut seen = *model_with(rows).seen.unwrap();
            seen.rows.rows = rows.to_vec();
            seen
        };
        model.take(seen(&[file_row(2, "/b", 20), file_row(1, "/a", 10)]), true);
        assert_eq!((model.chosen().unwrap().label.as_str(), model.cursor()), ("/b", 0));
        // The chosen row left: the one in its place is chosen.
        model.take(seen(&[file_row(1, "/a", 10)]), true);
        assert_eq!(model.chosen().unwrap().label, "/a");
        model.take(seen(&[]), true);
        assert_eq!(model.chosen(), None);
        assert_eq!(model.press(Key::Char('e')), None);
    }

    #[test]
    fn questions_concern_only_the_file_on_the_screen() {
        let mut model = model_with(&[file_row(1, "/a", 10), file_row(2, "/b", 5)]);
        assert!(matches!(model.press(Key::Enter), Some(Action::Map(target)) if target.label == "/a"));
        model.take(*model_with(&[file_row(2, "/b", 5)]).seen.unwrap(), true);
        assert_eq!(model.press(Key::Char('e')), None);
        assert_eq!(model.message(), Some("this file has nothing in memory any more"));
        assert_eq!(model.overlay, Overlay::Nothing);
        assert_eq!(model.press(Key::Char('y')), None);
    }

    #[test]
    fn a_filter_is_typed_kept_and_taken_back() {
        let mut model = model_with(&[file_row(1, "/a", 10)]);
        model.press(Key::Char('f'));
        for key in ['q', 'x'] {
            assert_eq!(model.press(Key::Char(key)), Some(Action::Ask));
        }
        model.press(Key::Backspace);
        assert_eq!((model.query.filter.as_str(), model.typing()), ("q", true));
        assert_eq!(model.press(Key::Enter), None);
        assert_eq!((model.query.filter.as_str(), model.typing()), ("q", false));
        model.press(Key::Char('/'));
        model.press(Key::Char('z'));
        assert_eq!(model.press(Key::Esc), Some(Action::Ask));
        assert_eq!(model.query.filter, "q");
        assert_eq!(model.press(Key::Esc), Some(Action::Ask));
        assert_eq!(model.query.filter, "");
    }

    #[test]
    fn keys_sort_group_and_quit() {
        let mut model = model_with(&[file_row(1, "/a", 10)]);
        for (key, sort) in
            [('g', SortKey::Growth), ('d', SortKey::Dirty), ('v', SortKey::Evicted), ('s', SortKey::Resident)]
        {
            assert_eq!(model.press(Key::Char(key)), Some(Action::Ask));
            assert_eq!(model.query.sort, sort);
        }
        model.press(Key::Tab);
        assert_eq!(model.query.group, GroupBy::Class);
        model.press(Key::BackTab);
        model.press(Key::BackTab);
        assert_eq!(model.query.group, GroupBy::Cgroup);
        model.press(Key::Char('?'));
        assert_eq!(model.overlay, Overlay::Help);
        assert_eq!((model.press(Key::Char('q')), &model.overlay), (None, &Overlay::Nothing));
        assert_eq!(model.press(Key::Char('q')), Some(Action::Quit));
    }

    #[test]
    fn the_chosen_row_is_always_on_the_screen() {
        let rows: Vec<Row> = (0..50).map(|ino| file_row(ino, &format!("/{ino}"), 100 - ino)).collect();
        let mut model = model_with(&rows);
        model.visible = 10;
        model.press(Key::End);
        assert_eq!((model.cursor(), model.first()), (49, 40));
        model.press(Key::PageUp);
        assert_eq!((model.cursor(), model.first()), (39, 30));
        model.press(Key::Home);
        assert_eq!((model.cursor(), model.first()), (0, 0));
    }

    #[test]
    fn history_is_of_ticks_and_pausing_stops_it() {
        let mut model = model_with(&[file_row(1, "/a", 10)]);
        let key = file_row(1, "/a", 0).key;
        assert_eq!(model.history(&key).collect::<Vec<_>>(), [10 << 20]);
        let seen = *model_with(&[file_row(1, "/a", 20)]).seen.unwrap();
        model.take(seen.clone(), false);
        assert_eq!(model.history(&key).len(), 1);
        model.take(seen.clone(), true);
        assert_eq!(model.history(&key).collect::<Vec<_>>(), [10 << 20, 20 << 20]);
        model.press(Key::Char(' '));
        model.take(*model_with(&[]).seen.unwrap(), true);
        assert_eq!(model.rows().len(), 1);
        for _ in 0..50 {
            model.press(Key::Char(' '));
            model.take(seen.clone(), true);
            model.press(Key::Char(' '));
        }
        assert_eq!(model.history(&key).len(), HISTORY);
    }

    #[test]
    fn a_file_is_opened_and_left() {
        let mut model = model_with(&[file_row(1, "/a", 10)]);
        assert!(matches!(model.press(Key::Enter), Some(Action::Map(target)) if target.label == "/a"));
        assert_eq!(model.mapped().unwrap().label, "/a");
        model.press(Key::Char('x'));
        assert!(matches!(model.overlay, Overlay::Detail(_)));
        model.press(Key::Esc);
        assert_eq!(model.overlay, Overlay::Nothing);
    }
}
