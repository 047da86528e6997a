//! Infers the writer of a ring from changes of its pages, and checks which part of the ring is
//! released then.

use super::QUIET_STEPS;
use crate::logs::examples::{MIB, clean, dirty, file, flush, log_of, release, written_at};
use crate::step;
use crate::{
    CheckpointFacts, CheckpointPosition, FileFacts, FilePosition, LogId, RewriteKind, Rule, StepAction,
    StepFacts, StepState, WindowFacts,
};

/// One file of 20 windows, written with `pwrite`, and the effect of the acts so far.
struct Ring {
    state: StepState,
    rule: Rule,
    windows: Vec<WindowFacts>,
}

impl Ring {
    fn new(slack: u64, windows: impl IntoIterator<Item = WindowFacts>) -> Self {
        let rule = Rule::ReleaseBehindWriter { slack };
        Self { state: StepState::default(), rule, windows: windows.into_iter().collect() }
    }

    fn facts(&self) -> FileFacts {
        written_at(FilePosition::Unknown, file(1, self.rule, 40 * MIB, &self.windows))
    }

    /// Makes the writer write all of window `number`, without a sync.
    fn write(&mut self, number: u64) {
        self.windows.retain(|window| window.start != dirty(number).start);
        self.windows.push(dirty(number));
        self.windows.sort_by_key(|window| window.start);
    }

    fn sync(&mut self) {
        for window in &mut self.windows {
            window.unwritten = 0;
        }
    }

    /// Runs a step whose releases drop the pages.
    fn step(&mut self) -> Vec<StepAction> {
        let facts = log_of([self.facts()]);
        let acts = step(&mut self.state, &facts);
        for act in &acts {
            if let StepAction::Release { range, .. } = act {
                self.windows.retain(|window| !range.contains(&window.start));
            }
        }
        acts
    }
}

#[test]
fn nothing_goes_until_the_writer_has_shown_itself() {
    let mut ring =
        Ring::new(0, [dirty(0), clean(1), clean(2), dirty(3), clean(4), clean(5), clean(8), clean(9)]);
    assert_eq!(ring.step(), [], "dirt in the first sample may be old");
    ring.write(0);
    ring.windows[1].resident -= MIB;
    assert_eq!(ring.step(), [], "no growth: the header again, and the kernel took a page");
    ring.windows[4].unwritten = MIB;
    assert_eq!(
        ring.step(),
        [flush(1, 0..1), release(1, 1..3), flush(1, 3..4), release(1, 9..10)],
        "the writer is in window 4, or has gone on a little"
    );
}

#[test]
fn an_idle_writer_of_whole_pages_holds_nothing_that_is_clean() {
    let mut ring = Ring::new(0, [clean(1), clean(2), dirty(7), clean(19)]);
    let facts = |ring: &Ring, retry| {
        let file = FileFacts { rewrite: RewriteKind::WholePages, ..ring.facts() };
        StepFacts { retry, ..log_of([file]) }
    };
    for _ in 0..100 {
        let facts = facts(&ring, 0);
        assert_eq!(step(&mut ring.state, &facts), [], "it may be about to write");
    }
    let later = facts(&ring, 1);
    assert_eq!(step(&mut ring.state, &later), [release(1, 1..3), release(1, 19..20)]);
    let appends = StepFacts { retry: 1, ..log_of([ring.facts()]) };
    assert_eq!(step(&mut StepState::default(), &appends), [], "one that appends needs its tail page");
}

#[test]
fn a_writer_of_whole_pages_that_falls_idle_lets_its_last_windows_go() {
    let mut ring = Ring::new(2 * MIB, []);
    let step_at = |ring: &mut Ring, retry| {
        let file = FileFacts { rewrite: RewriteKind::WholePages, ..ring.facts() };
        step(&mut ring.state, &StepFacts { retry, ..log_of([file]) })
    };
    step_at(&mut ring, 0);
    ring.write(4);
    ring.write(5);
    ring.sync();
    assert_eq!(step_at(&mut ring, 0), [], "it is here");
    ring.write(5);
    assert_eq!(step_at(&mut ring, 1), [], "and still writes");
    ring.sync();
    assert_eq!(step_at(&mut ring, 1), []);
    assert_eq!(step_at(&mut ring, 2), [release(1, 4..6)], "idle");
}

#[test]
fn windows_before_the_writers_last_one_are_released() {
    let mut ring = Ring::new(0, []);
    assert_eq!(ring.step(), []);
    ring.write(4);
    ring.write(5);
    ring.sync();
    assert_eq!(ring.step(), [], "written in one step: which is last is not known");
    ring.write(6);
    ring.sync();
    assert_eq!(ring.step(), [release(1, 4..6)]);
    for _ in 0..100 {
        assert_eq!(ring.step(), [], "idle");
    }
    ring.write(7);
    assert_eq!(ring.step(), [release(1, 6..7)]);
}

#[test]
fn slack_stays_behind_the_writer() {
    let mut ring = Ring::new(2 * MIB + 1, []);
    ring.step();
    for number in 4..8 {
        ring.write(number);
        ring.sync();
        let gone = if number < 7 { vec![] } else { vec![release(1, 4..5)] };
        assert_eq!(ring.step(), gone);
    }
}

#[test]
fn dirty_windows_are_flushed_then_released() {
    let mut ring = Ring::new(0, []);
    ring.step();
    ring.write(4);
    assert_eq!(ring.step(), [], "the newest may be dirty");
    ring.write(5);
    assert_eq!(ring.step(), [flush(1, 4..5)]);
    ring.write(6);
    assert_eq!(ring.step(), [release(1, 4..5), flush(1, 5..6)], "written or not");
}

#[test]
fn the_end_of_the_ring_is_forgotten_after_a_lap() {
    let mut ring = Ring::new(0, []);
    ring.step();
    ring.write(19);
    ring.sync();
    ring.step();
    for number in 1..=u64::from(QUIET_STEPS) {
        assert!(ring.windows.contains(&clean(19)), "kept in step {number}");
        ring.write(number);
        ring.sync();
        ring.step();
    }
    assert_eq!(ring.windows, [clean(u64::from(QUIET_STEPS))]);
}

#[test]
fn checkpoints_alone_do_not_unprotect_an_idle_writer() {
    let mut ring = Ring::new(0, []);
    ring.step();
    ring.write(4);
    ring.sync();
    ring.step();
    for _ in 0..3 * QUIET_STEPS {
        ring.write(0);
        assert_eq!(ring.step(), []);
        ring.sync();
        assert_eq!(ring.step(), []);
    }
}

#[test]
fn pages_in_a_window_just_released_are_the_writers() {
    let mut ring = Ring::new(0, [clean(1), clean(2)]);
    ring.step();
    ring.write(8);
    assert_eq!(ring.step(), [release(1, 1..3)]);
    ring.windows.insert(0, WindowFacts { resident: MIB, ..clean(2) });
    ring.sync();
    assert_eq!(ring.step(), [], "less than was released, but new");
}

#[test]
fn a_refused_release_is_no_writer() {
    let mut ring = Ring::new(0, [clean(1), clean(2)]);
    ring.step();
    ring.write(8);
    assert_eq!(ring.step(), [release(1, 1..3)]);
    ring.windows.insert(0, clean(2));
    assert_eq!(ring.step(), []);
    ring.windows[0].resident -= MIB;
    assert_eq!(ring.step(), [release(1, 2..3)], "not protected: it is tried again when it has changed");
}

/// Runs a step with the checkpoint at this byte of the ring.
fn step_with(ring: &mut Ring, checkpoint: u64) -> Vec<StepAction> {
    let at = CheckpointPosition::InRing { offset: checkpoint };
    let facts = StepFacts {
        checkpoints: vec![CheckpointFacts { log: LogId(1), at }],
        ..log_of([FileFacts { rewrite: RewriteKind::WholePages, ..ring.facts() }])
    };
    let acts = step(&mut ring.state, &facts);
    for act in &acts {
        if let StepAction::Release { range, .. } = act {
            ring.windows.retain(|window| !range.contains(&window.start));
        }
    }
    acts
}

fn recovered(windows: impl IntoIterator<Item = WindowFacts>) -> Ring {
    let rule = Rule::ReleaseBeforeCheckpoint { near_files: 0, slack: 0 };
    Ring { rule, ..Ring::new(0, windows) }
}

#[test]
fn pages_from_the_checkpoint_to_the_writer_stay() {
    let mut ring = recovered((0..20).map(clean));
    assert_eq!(step_with(&mut ring, 6 * MIB), [], "where the writer is has yet to show");
    ring.write(9);
    // Window 3 has the checkpoint; windows 10 to 13 are ahead of the writer.
    assert_eq!(step_with(&mut ring, 6 * MIB), [release(1, 0..3), release(1, 14..20)]);
    ring.sync();
    for _ in 0..100 {
        assert_eq!(step_with(&mut ring, 6 * MIB), [], "however long it is idle");
    }
    assert_eq!(step_with(&mut ring, 19 * MIB), [release(1, 3..9)], "all is in the tables");
}

#[test]
fn a_writer_that_went_on_without_a_trace_is_at_its_checkpoint() {
    let size = 200 * MIB;
    let mut ring = recovered((0..100).map(clean));
    let step_at = |ring: &mut Ring, checkpoint: u64| {
        let at = CheckpointPosition::InRing { offset: checkpoint };
        let file = written_at(FilePosition::Unknown, file(1, ring.rule, size, &ring.windows));
        step(
            &mut ring.state,
            &StepFacts { checkpoints: vec![CheckpointFacts { log: LogId(1), at }], ..log_of([file]) },
        )
    };
    step_at(&mut ring, 10 * MIB);
    ring.write(9);
    assert_eq!(step_at(&mut ring, 10 * MIB), [release(1, 0..5), release(1, 14..100)]);
    ring.sync();
    // Writes over resident pages, synced. Windows 14 to 99 are released.
    ring.windows.retain(|window| window.start < 28 * MIB);
    assert_eq!(step_at(&mut ring, 20 * MIB + 9), [release(1, 5..9)]);
}

#[test]
fn pages_from_the_checkpoint_around_the_end_of_the_file_stay() {
    let mut ring = recovered([]);
    step_with(&mut ring, 34 * MIB);
    for number in [17, 18, 19, 1, 2] {
        ring.write(number);
        ring.sync();
        assert_eq!(step_with(&mut ring, 34 * MIB), [], "{number}");
    }
    assert_eq!(step_with(&mut ring, 3 * MIB), [release(1, 17..20)]);
}

#[test]
fn a_checkpoint_in_the_headers_window_does_not_hide_a_writer_at_the_end() {
    let mut ring = recovered((1..16).map(clean));
    step_with(&mut ring, MIB);
    // Close to the end of the file, with the header written.
    ring.write(0);
    ring.write(16);
    ring.write(17);
    let released =
        |acts: Vec<StepAction>| acts.into_iter().any(|act| matches!(act, StepAction::Release { .. }));
    assert!(!released(step_with(&mut ring, MIB)), "recovery reads all of it");
    ring.sync();
    assert!(!released(step_with(&mut ring, MIB)));
}

#[test]
fn a_file_the_writer_leaves_goes_whole() {
    let mut ring = Ring::new(0, [clean(1), clean(2)]);
    ring.step();
    let left = log_of([FileFacts { writer: None, ..ring.facts() }]);
    assert_eq!(step(&mut ring.state, &left), [release(1, 1..3)]);
}
