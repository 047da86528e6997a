//! The live screen: it combines the terminal, the census and the actions, each in a thread.
//!
//! Invariants: when [`run`] returns or panics, also after SIGINT and SIGTERM, the terminal is
//! restored. The screen is drawn only when something changed. One thread writes to the terminal.
//! Fails with an error if the terminal can't show the screen, and with the census' error.

use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use pagekeeper_kernel::{
    ExpectedFile, Inode, InspectedFile, Links, PathHandle, ReleaseOptions, ResidencyMap, WarmOptions,
    release, residency_map, warm,
};
use pagekeeper_observe::{CensusOptions, PatientCensus, RowQuery, WalkProgress};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::detail;
use super::figures::size;
use super::model::{Action, FileAct, Model, SeenRows, TargetFile};
use super::screen::{self, MIN_SIZE};
use super::theme::Theme;
use crate::output::{Screen, UsageError};
use crate::problems::in_words;
use crate::signals::Stop;

/// Ticks that may wait for a screen that does not read them.
const UNREAD_TICKS_MAX: usize = 8;

/// Minimum time between two full walks. A full walk is repeated when file systems were mounted
/// meanwhile, and takes seconds of processor time.
const RENEW_EVERY: Duration = Duration::from_secs(300);

/// Events that wake the screen.
enum News {
    Key(KeyCode),
    Resized,
    /// The census' result, whether it is of a new tick, and a token that is dropped when the result
    /// is read.
    Seen(Box<SeenRows>, bool, Arc<()>),
    /// The census failed or ended.
    Failed(anyhow::Error),
    /// An action ended.
    Done(String),
    Map(Inode, Result<ResidencyMap, String>),
    Stop,
}

/// Returns why this terminal can't show the screen, if it can't.
fn refusal() -> Option<String> {
    let instead = "use --once for a table, or --once --json";
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Some(format!("standard input and output are not both a terminal: {instead}"));
    }
    let term = std::env::var("TERM").unwrap_or_default();
    if term.is_empty() || term == "dumb" {
        return Some(format!(
            "this terminal can't move its cursor (TERM is {}): {instead}",
            if term.is_empty() { "not set" } else { "\"dumb\"" }
        ));
    }
    let (columns, rows) = ratatui::crossterm::terminal::size().ok()?;
    (columns < MIN_SIZE.0 || rows < MIN_SIZE.1).then(|| {
        format!(
            "the terminal is too small: it has {columns} columns and {rows} rows, and {} and {} are needed; {instead}",
            MIN_SIZE.0, MIN_SIZE.1
        )
    })
}

/// Whether the locale's characters are Unicode.
fn is_unicode() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    set.is_some_and(|locale| {
        let locale = locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// Shows the screen until the user quits.
pub(super) fn run(query: RowQuery, census: CensusOptions, interval: Duration) -> anyhow::Result<()> {
    if let Some(why) = refusal() {
        return Err(UsageError(why).into());
    }
    let theme = Theme { colour: Screen::of_stdout().colour, unicode: is_unicode() };
    let stop = Stop::on_signals().context("catch signals")?;
    let model = Model::new(query, interval);
    let progress = Arc::clone(&census.progress);
    let (news, coming) = channel();
    let (orders, taken) = channel();
    let first = model.query.clone();
    let sender = news.clone();
    let counting = aside("pk-count", sender, move |sender| count(&census, first, interval, &taken, sender))?;
    // Its panic hook restores the terminal.
    let mut terminal = ratatui::try_init().context("set up the terminal")?;
    listen(&news, stop);
    let mut shown = LiveScreen { model, theme, news, orders, progress, drawing: None };
    let ended = shown.show(&mut terminal, &coming);
    ratatui::restore();
    shown.progress.cancel();
    drop(shown);
    // The thread removes the kernel's part of tracing. Its panic, if any, was reported by the hook.
    let _ = counting.join();
    ended
}

/// Starts a thread whose failure ends the screen; so does its panic, because the panic hook has
/// restored the terminal.
fn aside(
    name: &str,
    news: Sender<News>,
    work: impl FnOnce(&Sender<News>) -> anyhow::Result<()> + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Nothing that it leaves in an inconsistent state is used again.
        let ended = catch_unwind(AssertUnwindSafe(|| work(&news))).unwrap_or_else(|_| {
            Err(anyhow!("a part of this program failed: that is an error in pagekeeper"))
        });
        if let Err(error) = ended {
            // Nobody receives it if the user has quit.
            let _ = news.send(News::Failed(error));
        }
    })
}

/// Starts the threads that pass on keys and signals. They end with the process.
fn listen(news: &Sender<News>, stop: Stop) {
    let keys = news.clone();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => pressed(key),
                Event::Resize(..) => Some(News::Resized),
                _ => None,
            };
            if key.is_some_and(|key| keys.send(key).is_err()) {
                return;
            }
        }
        let _ = keys.send(News::Stop);
    });
    let signals = news.clone();
    std::thread::spawn(move || {
        while matches!(stop.wait(Duration::from_secs(3600)), Ok(false)) {}
        let _ = signals.send(News::Stop);
        // The second signal ends the process as long as `stop` exists.
        std::thread::park();
    });
}

/// Returns the news of a key; `None` for combinations without a meaning.
fn pressed(key: KeyEvent) -> Option<News> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(News::Stop),
        KeyCode::Char(_) if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => None,
        code => Some(News::Key(code)),
    }
}

/// Runs the census' thread: it ticks, and answers queries in between.
fn count(
    options: &CensusOptions,
    mut query: RowQuery,
    interval: Duration,
    orders: &Receiver<RowQuery>,
    news: &Sender<News>,
) -> anyhow::Result<()> {
    let mut counting = PatientCensus::start(options.clone())?;
    let mut started = Instant::now();
    let unread = Arc::new(());
    let mut next = Instant::now();
    loop {
        if started.elapsed() > RENEW_EVERY && counting.census().is_some_and(|census| census.is_outdated()) {
            started = Instant::now();
            // If that fails, the old one continues, and reports what it does not see.
            let _failed = counting.renew();
        }
        let tick = counting.tick()?;
        let Some(census) = counting.census() else { continue };
        let mut ticked = true;
        // The query that was made during the first walk.
        query = orders.try_iter().last().unwrap_or(query);
        next = (next + interval).max(Instant::now());
        loop {
            let rows = census.rows(&query);
            let seen = SeenRows { tick: tick.clone(), rows, query: query.clone() };
            // A terminal behind a stalled connection may not accept output for hours.
            if Arc::strong_count(&unread) <= UNREAD_TICKS_MAX
                && news.send(News::Seen(Box::new(seen), ticked, Arc::clone(&unread))).is_err()
            {
                return Ok(());
            }
            ticked = false;
            match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(asked) => query = orders.try_iter().last().unwrap_or(asked),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// The screen and its threads.
struct LiveScreen {
    model: Model,
    theme: Theme,
    news: Sender<News>,
    orders: Sender<RowQuery>,
    progress: Arc<WalkProgress>,
    /// The file whose map is being drawn: for a large one, this may take longer than a tick.
    drawing: Option<Inode>,
}

impl LiveScreen {
    fn show(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        coming: &Receiver<News>,
    ) -> anyhow::Result<()> {
        loop {
            self.model.walked = self.progress.files();
            terminal.draw(|frame| screen::draw(frame, &mut self.model, self.theme)).context("draw")?;
            let cells = detail::cells(terminal.get_frame().area());
            let mut waited = self.next(coming);
            // Takes all pending news before the screen is drawn again.
            while let Some(news) = waited {
                if !self.take(news, cells)? {
                    return Ok(());
                }
                waited = coming.try_recv().ok();
            }
        }
    }

    /// Waits for news; during the first walk only shortly, since its progress is shown.
    fn next(&self, coming: &Receiver<News>) -> Option<News> {
        if self.model.seen.is_none() {
            coming.recv_timeout(Duration::from_millis(200)).ok()
        } else {
            // This side keeps a sender, so the channel never closes.
            coming.recv().ok()
        }
    }

    /// Processes news; returns whether to continue.
    fn take(&mut self, news: News, cells: usize) -> anyhow::Result<bool> {
        match news {
            News::Stop => return Ok(false),
            News::Failed(error) => return Err(error),
            News::Resized => {}
            News::Done(text) => self.model.say(text),
            News::Map(inode, map) => {
                self.drawing.take_if(|drawing| *drawing == inode);
                self.model.map = Some((inode, map));
            }
            News::Seen(seen, ticked, _read) => {
                // Drops an answer to an outdated query.
                if seen.query == self.model.query {
                    self.model.take(*seen, ticked);
                }
                if let (true, Some(target)) = (ticked && !self.model.paused, self.model.mapped()) {
                    self.draw_map(target, cells);
                }
            }
            News::Key(key) => match self.model.press(key) {
                None => {}
                Some(Action::Quit) => return Ok(false),
                Some(Action::Ask) => {
                    // The census may have failed; its own news reports that.
                    let _ = self.orders.send(self.model.query.clone());
                }
                Some(Action::Map(target)) => self.draw_map(target, cells),
                Some(Action::Do(act, target)) => self.act(act, target),
            },
        }
        Ok(true)
    }

    fn draw_map(&mut self, target: TargetFile, cells: usize) {
        let inode = target.inode;
        if self.drawing.replace(inode) == Some(inode) {
            return;
        }
        let started = aside("pk-map", self.news.clone(), move |news| {
            let map = open(&target).and_then(|file| residency_map(&file, cells, 1).map_err(|e| in_words(&e)));
            // Nobody receives it if the user has quit.
            let _ = news.send(News::Map(inode, map));
            Ok(())
        });
        if let Err(error) = started {
            self.drawing = None;
            self.model.map = Some((inode, Err(error.to_string())));
        }
    }

    fn act(&mut self, act: FileAct, target: TargetFile) {
        let started = aside("pk-act", self.news.clone(), move |news| {
            let outcome = match act {
                FileAct::Evict => evict(&target),
                FileAct::Warm => load(&target),
            };
            let text = outcome.unwrap_or_else(|why| format!("can't {} {}: {why}", act.verb(), target.label));
            // Nobody receives it if the user has quit.
            let _ = news.send(News::Done(text));
            Ok(())
        });
        if let Err(error) = started {
            self.model.say(format!("can't {} it: {error}", act.verb()));
        }
    }
}

/// Opens the same file that was on the screen.
fn open(target: &TargetFile) -> Result<InspectedFile, String> {
    let handle = if target.path.starts_with("/proc") {
        PathHandle::of_magic_link(&target.path, target.label.clone().into())
    } else {
        PathHandle::at(&target.path, Links::Refuse)
    };
    handle.and_then(|handle| handle.open(ExpectedFile::Inode(target.inode))).map_err(|error| in_words(&error))
}

fn evict(target: &TargetFile) -> Result<String, String> {
    let report =
        release(&open(target)?, 0..u64::MAX, &ReleaseOptions::default()).map_err(|e| in_words(&e))?;
    let kept = match (report.kept(), report.kept_mapped) {
        (0, _) => String::new(),
        (kept, mapped) if mapped > 0 => format!("; kept {}, {} of it mapped", size(kept), size(mapped)),
        (kept, _) => format!("; kept {} in use", size(kept)),
    };
    let (released, before) = (size(report.released), size(report.resident_before));
    Ok(format!("evicted {released} of {before}{kept}: {}", target.label))
}

fn load(target: &TargetFile) -> Result<String, String> {
    let never = AtomicBool::new(false);
    let options = WarmOptions::default();
    let report = warm(&open(target)?, 0..u64::MAX, &options, &|_| {}, &never).map_err(|e| in_words(&e))?;
    let now =
        report.resident_after.map_or_else(String::new, |bytes| format!(", {} resident now", size(bytes)));
    Ok(format!("read {}{now}: {}", size(report.loaded), target.label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_c_ends_it_wherever_it_is_pressed() {
        let press = |letter, modifiers| pressed(KeyEvent::new(KeyCode::Char(letter), modifiers));
        assert!(matches!(press('c', KeyModifiers::CONTROL), Some(News::Stop)));
        assert!(matches!(press('c', KeyModifiers::NONE), Some(News::Key(KeyCode::Char('c')))));
        assert!(matches!(press('G', KeyModifiers::SHIFT), Some(News::Key(KeyCode::Char('G')))));
        assert!(press('x', KeyModifiers::CONTROL).is_none() && press('c', KeyModifiers::ALT).is_none());
    }

    #[test]
    fn a_thread_that_fails_or_panics_ends_the_screen() {
        let (news, coming) = channel();
        for (work, said) in
            [(false, "it failed"), (true, "a part of this program failed: that is an error in pagekeeper")]
        {
            let work = move |_: &Sender<News>| {
                assert!(!work, "a panic of this test's own");
                Err(anyhow!("it failed"))
            };
            aside("aside", news.clone(), work).unwrap().join().unwrap();
            let Ok(News::Failed(error)) = coming.try_recv() else { panic!("nothing was reported") };
            assert_eq!(error.to_string(), said);
        }
    }

    #[test]
    fn only_the_very_file_is_acted_on() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let inode = InspectedFile::open(&path, Links::Refuse).unwrap().inode();
        let label = path.display().to_string();
        let target = TargetFile { path: path.clone(), inode, label, resident: 0, size: 0 };
        let said = evict(&target).unwrap();
        assert!(said.starts_with("evicted 1M of 1M: ") || said.contains("kept"), "{said}");
        let said = load(&target).unwrap();
        assert!(said.contains("1M resident now"), "{said}");
        let other = TargetFile { inode: pagekeeper_kernel::Inode { ino: inode.ino + 1, ..inode }, ..target };
        assert_eq!(evict(&other).unwrap_err(), "another file has its name now, not opened");
    }
}
