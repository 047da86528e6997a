//! Giving back the pages of what was written: by the rule of `pagekeeper-policy`, whose facts are exact here.
//!
//! The rule is *release behind the writer*, of a log that overwrites whole pages: a released page costs nothing a lap
//! later. Windows that are written and not yet released are remembered until they are gone, or were tried
//! [`TRIES`] times (somebody else maps or locks them).
//!
//! The kernel tells of a failed writeback once, to whoever asks first: where that is here, it ends the log as a failed sync does.
//! What can't be released for another reason stays, and does no other harm.

use std::ops::Range;
use std::sync::atomic::Ordering;

use pagekeeper_policy::{
    Act, Facts, FileClass, FileFacts, FileId, LogId, Position, Rewrite, Rule, StepState, WINDOW, Window, step,
};

use super::core::Core;
use crate::LogMode;

/// So much is written before anything is released: each release costs a few system calls.
pub(super) const STEP: u64 = WINDOW;
/// So much may be written and not yet released: then the log writer waits.
pub(super) const MOST: u64 = 2 * WINDOW;

const TRIES: u32 = 4;

/// What is written and not yet released.
#[derive(Debug)]
pub(super) struct Releaser {
    /// All before this was looked at.
    at: u64,
    windows: Vec<UnreleasedWindow>,
    state: StepState,
    steps: u64,
}

/// A window that may have resident pages.
#[derive(Debug)]
struct UnreleasedWindow {
    file: usize,
    range: Range<u64>,
    /// Whether it was ever seen to have pages, and released.
    tries: u32,
}

impl Releaser {
    /// For what is written from `lsn` on.
    pub(super) fn new(lsn: u64) -> Self {
        Self { at: lsn, windows: Vec::new(), state: StepState::default(), steps: 0 }
    }

    /// Releases what is behind the writer; all, if there is none any more.
    pub(super) fn step(&mut self, core: &Core, has_writer: bool) {
        let written = core.buffer.taken();
        if core.config.mode == LogMode::Direct {
            self.reached(core, written);
            return;
        }
        self.add(core, written);
        let geometry = core.ring.geometry;
        let place = has_writer.then(|| geometry.locate(written));
        let mut files: Vec<FileFacts> = Vec::new();
        let mut resident = 0;
        self.windows.sort_by_key(|window| (window.file, window.range.start));
        self.windows.retain(|window| {
            let found = core.ring.files[window.file].residency(window.range.clone());
            let len = window.range.end - window.range.start;
            // Where it can't be seen, all is taken to be there until it was released.
            let (there, unwritten) = match found {
                Ok(Some(found)) => (found.resident.min(len), found.unwritten.min(len)),
                _ if window.tries > 1 => (0, 0),
                _ => (len, if window.tries == 0 { len } else { 0 }),
            };
            // What is on its way to the device need not be told to go, and one step later: the release waits for it.
            let unwritten = if core.writes_back() { 0 } else { unwritten };
            let holds_writer =
                place.is_some_and(|(file, offset)| file == window.file && window.range.contains(&offset));
            if (there == 0 && !holds_writer) || window.tries >= TRIES {
                return false;
            }
            resident += there;
            if files.last().is_none_or(|file| file.id.0 != window.file as u64) {
                files.push(facts(window.file, geometry.file_bytes, place));
            }
            if let Some(file) = files.last_mut().filter(|_| there > 0) {
                let Range { start, end } = window.range;
                file.windows.push(Window { start, end, resident: there, unwritten });
            }
            true
        });
        self.steps += 1;
        let acts = step(&mut self.state, &Facts { files, followers: Vec::new(), retry: self.steps });
        for act in acts {
            match act {
                Act::StartWriteback { file, range } => {
                    let Some(file) = usize::try_from(file.0).ok().and_then(|file| core.ring.files.get(file))
                    else {
                        continue;
                    };
                    if let Err(error) = file.start_writeback(range) {
                        core.poison(error.into());
                    }
                }
                Act::Release { file, range } => self.release(core, file, &range),
                _ => {}
            }
        }
        core.counters.resident.store(resident, Ordering::Relaxed);
        self.reached(core, written);
    }

    fn release(&mut self, core: &Core, id: FileId, range: &Range<u64>) {
        let Some(index) = usize::try_from(id.0).ok().filter(|index| *index < core.ring.files.len()) else {
            return;
        };
        let file = &core.ring.files[index];
        if let Err(error) = file.wait_writeback(range.clone()) {
            core.poison(error.into());
            return;
        }
        if file.release(range.clone()).is_ok() {
            core.counters.released.fetch_add(range.end - range.start, Ordering::Relaxed);
        }
        for window in &mut self.windows {
            if window.file == index && range.start <= window.range.start && window.range.end <= range.end {
                window.tries += 1;
            }
        }
    }

    /// Adds the windows that were written to since the last step.
    fn add(&mut self, core: &Core, written: u64) {
        let geometry = core.ring.geometry;
        let from = self.at.max(written.saturating_sub(geometry.capacity()));
        for (file, range) in geometry.pieces(from..written) {
            let mut start = range.start - range.start % WINDOW;
            while start < range.end {
                let end = (start + WINDOW).min(geometry.file_bytes);
                match self.windows.iter_mut().find(|known| known.file == file && known.range.start == start) {
                    Some(known) => known.tries = 0,
                    None => self.windows.push(UnreleasedWindow { file, range: start..end, tries: 0 }),
                }
                start = end;
            }
        }
    }

    fn reached(&mut self, core: &Core, written: u64) {
        self.at = written;
        core.release.considered_upto.store(written, Ordering::Relaxed);
        core.events.released.notify_all();
    }
}

fn facts(file: usize, size: u64, writer: Option<(usize, u64)>) -> FileFacts {
    FileFacts {
        id: FileId(file as u64),
        log: LogId(0),
        sequence: file as u64,
        class: FileClass::Redo,
        rule: Rule::ReleaseBehindWriter { slack: 0 },
        rewrite: Rewrite::WholePages,
        size,
        writer: writer.filter(|(at, _)| *at == file).map(|(_, offset)| Position::At(offset)),
        windows: Vec::new(),
    }
}
