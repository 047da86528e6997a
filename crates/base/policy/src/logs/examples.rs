//! Each rule by example. Windows are numbered: window 1 is the bytes from 2 MiB to 4 MiB.

use std::ops::Range;
use std::sync::Arc;

use crate::step;
use crate::{
    DatabaseId, FileClass, FileFacts, FileId, FilePosition, FollowerFacts, FollowerId, LogId, LogWarning,
    RewriteKind, Rule, StepAction, StepFacts, StepState, WINDOW, WindowFacts,
};

pub(crate) const MIB: u64 = 1 << 20;

/// Returns a window that is fully resident and clean.
pub(crate) fn clean(number: u64) -> WindowFacts {
    WindowFacts { start: number * WINDOW, end: (number + 1) * WINDOW, resident: WINDOW, unwritten: 0 }
}

/// Returns a window that is fully resident and dirty.
pub(crate) fn dirty(number: u64) -> WindowFacts {
    WindowFacts { unwritten: WINDOW, ..clean(number) }
}

/// Returns the file of log 1 with this number, which is also its sequence. It has no writer.
pub(crate) fn file(number: u64, rule: Rule, size: u64, windows: &[WindowFacts]) -> FileFacts {
    FileFacts {
        id: FileId(number),
        database: DatabaseId(1),
        log: LogId(1),
        sequence: number,
        class: FileClass::Binlog,
        rule,
        rewrite: RewriteKind::Never,
        size,
        writer: None,
        changed: 0,
        windows: windows
            .iter()
            .filter(|window| window.start < size)
            .map(|window| WindowFacts { end: window.end.min(size), ..window.clone() })
            .collect(),
    }
}

/// Returns the same file with a writer at this position.
pub(crate) fn written_at(position: FilePosition, file: FileFacts) -> FileFacts {
    FileFacts { writer: Some(position), ..file }
}

pub(crate) fn log_of(files: impl IntoIterator<Item = FileFacts>) -> StepFacts {
    StepFacts { files: files.into_iter().collect(), ..StepFacts::default() }
}

fn with_follower(sequence: u64, position: FilePosition, mut facts: StepFacts) -> StepFacts {
    let id = FollowerId(facts.followers.len() as u64);
    facts.followers.push(FollowerFacts { id, log: LogId(1), sequence, position, near_files: 0 });
    facts
}

pub(crate) fn release(file: u64, windows: Range<u64>) -> StepAction {
    StepAction::Release { file: FileId(file), range: windows.start * WINDOW..windows.end * WINDOW }
}

pub(crate) fn flush(file: u64, windows: Range<u64>) -> StepAction {
    StepAction::StartWriteback { file: FileId(file), range: windows.start * WINDOW..windows.end * WINDOW }
}

fn first_step(facts: &StepFacts) -> Vec<StepAction> {
    step(&mut StepState::default(), facts)
}

const BEHIND_WRITER: Rule = Rule::ReleaseBehindWriter { slack: 0 };
const BEHIND_FOLLOWERS: Rule = Rule::ReleaseBehindFollowers { near_files: 1, slack: 0 };

fn all_clean(windows: u64) -> Vec<WindowFacts> {
    (0..windows).map(clean).collect()
}

#[test]
fn keep_leaves_everything_alone() {
    let facts = log_of([file(1, Rule::Keep, 8 * MIB, &[clean(0), dirty(1), clean(2)])]);
    assert_eq!(first_step(&facts), []);
}

#[test]
fn direct_releases_all_and_warns_once() {
    let facts = log_of([file(1, Rule::Direct, 8 * MIB, &[clean(0), clean(3)])]);
    let mut state = StepState::default();
    let warning = StepAction::Warn { file: FileId(1), warning: LogWarning::DirectButResident };
    assert_eq!(step(&mut state, &facts), [warning, release(1, 0..1), release(1, 3..4)]);
    assert_eq!(step(&mut state, &log_of([file(1, Rule::Direct, 8 * MIB, &[])])), []);
    let again = log_of([file(1, Rule::Direct, 8 * MIB, &[clean(2)])]);
    assert_eq!(step(&mut state, &again), [release(1, 2..3)], "released again, without a warning");
}

#[test]
fn behind_the_writer_its_own_window_stays() {
    let at = |position| {
        first_step(&log_of([written_at(
            FilePosition::At(position),
            file(1, BEHIND_WRITER, 8 * MIB, &all_clean(4)),
        )]))
    };
    assert_eq!(at(0), []);
    assert_eq!(at(2 * MIB - 1), []);
    assert_eq!(at(2 * MIB), [release(1, 0..1)], "the next byte goes to window 1");
    assert_eq!(at(7 * MIB), [release(1, 0..3)]);
    assert_eq!(at(8 * MIB), [release(1, 0..4)], "the file is full");
    assert_eq!(at(99 * MIB), [release(1, 0..4)], "a position from after the size was seen");
}

#[test]
fn behind_the_writer_slack_stays_too() {
    let at = |slack| {
        let rule = Rule::ReleaseBehindWriter { slack };
        first_step(&log_of([written_at(FilePosition::At(7 * MIB), file(1, rule, 8 * MIB, &all_clean(4)))]))
    };
    assert_eq!(at(MIB), [release(1, 0..3)]);
    assert_eq!(at(MIB + 1), [release(1, 0..2)]);
    assert_eq!(at(u64::MAX), []);
}

#[test]
fn the_short_last_window_stays_while_a_writer_is_there() {
    // The size was seen before the position: window 2 has grown since, and the writer's last page
    // is in it.
    let rule = BEHIND_WRITER;
    let facts = log_of([written_at(FilePosition::At(6 * MIB), file(1, rule, 5 * MIB, &all_clean(3)))]);
    assert_eq!(first_step(&facts), [release(1, 0..2)]);
    let left = log_of([file(1, rule, 5 * MIB, &all_clean(3))]);
    assert_eq!(first_step(&left), [StepAction::Release { file: FileId(1), range: 0..5 * MIB }]);
}

#[test]
fn files_the_writer_does_not_have_go_whole_whether_older_or_newer() {
    let facts = log_of([
        file(3, BEHIND_WRITER, 4 * MIB, &all_clean(2)),
        written_at(FilePosition::At(3 * MIB), file(2, BEHIND_WRITER, 4 * MIB, &all_clean(2))),
        file(1, BEHIND_WRITER, 4 * MIB, &all_clean(2)),
    ]);
    assert_eq!(
        first_step(&facts),
        [release(1, 0..2), release(2, 0..1), release(3, 0..2)],
        "in order of the log"
    );
}

#[test]
fn on_rotation_the_file_goes_when_the_writer_has_left_it() {
    let rule = Rule::ReleaseOnRotation;
    let current = file(1, rule, 8 * MIB, &all_clean(4));
    for position in [FilePosition::At(8 * MIB), FilePosition::Unknown] {
        assert_eq!(first_step(&log_of([written_at(position, current.clone())])), []);
    }
    assert_eq!(first_step(&log_of([current])), [release(1, 0..4)]);
}

fn followed_log() -> StepFacts {
    log_of([
        file(1, BEHIND_FOLLOWERS, 8 * MIB, &all_clean(4)),
        file(2, BEHIND_FOLLOWERS, 8 * MIB, &all_clean(4)),
        written_at(FilePosition::At(5 * MIB), file(3, BEHIND_FOLLOWERS, 8 * MIB, &all_clean(3))),
    ])
}

#[test]
fn behind_followers_nothing_is_held_without_them() {
    assert_eq!(first_step(&followed_log()), [release(1, 0..4), release(2, 0..4), release(3, 0..2)]);
}

#[test]
fn the_lowest_near_follower_holds_everything_after_it() {
    let facts = with_follower(3, FilePosition::At(5 * MIB), followed_log());
    let facts = with_follower(2, FilePosition::At(5 * MIB), facts);
    assert_eq!(first_step(&facts), [release(1, 0..4), release(2, 0..2)]);
}

#[test]
fn behind_followers_an_unknown_position_holds_the_file() {
    let facts = with_follower(2, FilePosition::Unknown, followed_log());
    assert_eq!(first_step(&facts), [release(1, 0..4)]);
}

#[test]
fn behind_followers_one_on_a_file_not_seen_still_counts() {
    let mut facts = with_follower(2, FilePosition::At(5 * MIB), followed_log());
    facts.files.remove(1);
    assert_eq!(first_step(&facts), [release(1, 0..4)], "file 3 is yet to be read");
}

#[test]
fn behind_followers_recycled_files_ahead_of_the_writer_go() {
    let segment = |number, changed| FileFacts {
        rewrite: RewriteKind::WholePages,
        changed,
        ..file(number, BEHIND_FOLLOWERS, 4 * MIB, &all_clean(2))
    };
    let ahead_of_writer = |three: FileFacts| {
        let writers = written_at(FilePosition::At(4 * MIB), segment(2, 9));
        log_of([segment(1, 8), writers, three, segment(4, 7)])
    };
    let recycled = ahead_of_writer(segment(3, 6));
    let reads_two = with_follower(2, FilePosition::At(0), recycled.clone());
    assert_eq!(first_step(&reads_two), [release(1, 0..2), release(3, 0..2), release(4, 0..2)]);

    let reads_three = with_follower(3, FilePosition::At(0), recycled);
    let held = [release(1, 0..2), release(2, 0..2)];
    assert_eq!(first_step(&reads_three), held, "the follower shows that the writer is further than it seems");
    for three in [segment(3, 9), FileFacts { rewrite: RewriteKind::Never, ..segment(3, 6) }] {
        let facts = with_follower(2, FilePosition::At(0), ahead_of_writer(three));
        assert_eq!(first_step(&facts), [release(1, 0..2), release(4, 0..2)], "it may be new");
    }
}

#[test]
fn a_far_follower_holds_its_readahead_while_it_moves_and_nothing_once_it_stalls() {
    let rule = BEHIND_FOLLOWERS;
    let far = |position| {
        let files = [
            file(1, rule, 20 * MIB, &all_clean(10)),
            written_at(FilePosition::At(0), file(9, rule, 2 * MIB, &all_clean(1))),
        ];
        with_follower(1, FilePosition::At(position), log_of(files))
    };
    let mut state = StepState::default();
    assert_eq!(step(&mut state, &far(3 * MIB)), [release(1, 0..1), release(1, 6..10)]);
    assert_eq!(step(&mut state, &far(5 * MIB)), [release(1, 1..2)], "the others were asked for");
    assert_eq!(step(&mut state, &far(5 * MIB)), [release(1, 2..6)], "it did not move");
    assert_eq!(step(&mut state, &far(5 * MIB)), []);
}

#[test]
fn a_far_follower_at_an_unknown_position_holds_its_file_and_no_other() {
    let files = [
        file(1, BEHIND_FOLLOWERS, 4 * MIB, &all_clean(2)),
        file(2, BEHIND_FOLLOWERS, 4 * MIB, &all_clean(2)),
        written_at(FilePosition::At(0), file(9, BEHIND_FOLLOWERS, 2 * MIB, &all_clean(1))),
    ];
    let facts = with_follower(1, FilePosition::Unknown, log_of(files));
    let mut state = StepState::default();
    assert_eq!(step(&mut state, &facts), [release(2, 0..2)]);
    assert_eq!(step(&mut state, &facts), [], "it may go on where it stands");
}

#[test]
fn without_a_writer_near_is_counted_from_the_newest_file() {
    let files = (1..=3).map(|n| file(n, BEHIND_FOLLOWERS, 4 * MIB, &all_clean(2)));
    let facts = with_follower(2, FilePosition::At(2 * MIB), log_of(files));
    assert_eq!(first_step(&facts), [release(1, 0..2), release(2, 0..1)]);
}

#[test]
fn pages_for_a_near_follower_are_written_but_not_released() {
    let windows = [clean(0), dirty(1), clean(2), dirty(3)];
    let facts = log_of([written_at(FilePosition::At(7 * MIB), file(1, BEHIND_FOLLOWERS, 8 * MIB, &windows))]);
    let facts = with_follower(1, FilePosition::At(0), facts);
    let mut state = StepState::default();
    assert_eq!(step(&mut state, &facts), [flush(1, 1..2)]);
    assert_eq!(step(&mut state, &facts), [], "once");
}

#[test]
fn a_budget_keeps_the_newest() {
    let rule = Rule::Budget { bytes: 6 * MIB, total: u64::MAX };
    let facts = log_of([
        file(1, rule, 4 * MIB, &all_clean(2)),
        file(2, rule, 8 * MIB, &all_clean(4)),
        written_at(FilePosition::At(2 * MIB), file(3, rule, 2 * MIB, &all_clean(1))),
    ]);
    assert_eq!(first_step(&facts), [release(1, 0..2), release(2, 0..2)]);
}

#[test]
fn a_budget_of_nothing_leaves_the_tail_window() {
    let rule = Rule::Budget { bytes: 0, total: u64::MAX };
    let facts = log_of([written_at(FilePosition::At(3 * MIB), file(1, rule, 8 * MIB, &all_clean(4)))]);
    assert_eq!(first_step(&facts), [release(1, 0..1), release(1, 2..4)]);
}

#[test]
fn a_database_keeps_no_more_of_all_its_logs_than_the_total_of_their_budget() {
    let rule = Rule::Budget { bytes: 16 * MIB, total: 40 * MIB };
    let of = |log: u64, database: u64, windows: u64| FileFacts {
        id: FileId(log),
        database: DatabaseId(database),
        log: LogId(log),
        ..written_at(FilePosition::At(32 * MIB), file(1, rule, 32 * MIB, &all_clean(windows)))
    };
    let kept = |facts: &StepFacts| {
        let acts = first_step(facts);
        let gone = acts.iter().map(|act| match act {
            StepAction::Release { range, .. } => range.end - range.start,
            other => panic!("{other:?}"),
        });
        facts.resident() - gone.sum::<u64>()
    };
    assert_eq!(kept(&log_of([of(1, 1, 12)])), 16 * MIB);
    assert_eq!(kept(&log_of([of(1, 1, 12), of(2, 1, 12), of(3, 1, 2)])), 36 * MIB, "all that each may");
    // Each log has a share, and what one does not need goes to the others: 4 MiB stay of the small
    // log, 12 MiB of each other one.
    let four = log_of([of(1, 1, 12), of(2, 1, 12), of(3, 1, 12), of(4, 1, 2)]);
    assert_eq!(kept(&four), 40 * MIB);
    let many = log_of((1..=5).map(|log| of(log, 1, 12)));
    assert_eq!(kept(&many), 40 * MIB);
    let others = log_of((1..=5).map(|log| of(log, log, 12)));
    assert_eq!(kept(&others), 80 * MIB, "each is another database's");
    // Nothing is released again and again.
    let mut state = StepState::default();
    step(&mut state, &many);
    step(&mut state, &many);
    assert_eq!(step(&mut state, &many), []);
}

#[test]
fn a_recycled_log_of_part_pages_is_kept_and_warned_of_once() {
    let recycled = |windows: &[WindowFacts]| {
        log_of([FileFacts { rewrite: RewriteKind::SubPages, ..file(1, BEHIND_WRITER, 8 * MIB, windows) }])
    };
    let mut state = StepState::default();
    assert_eq!(step(&mut state, &recycled(&[])), []);
    let warning = StepAction::Warn { file: FileId(1), warning: LogWarning::RecycledSubPages };
    assert_eq!(step(&mut state, &recycled(&[clean(0), dirty(1)])), [warning]);
    assert_eq!(step(&mut state, &recycled(&[dirty(0), dirty(1)])), []);
    assert_eq!(step(&mut state, &recycled(&[])), []);
    assert_eq!(step(&mut state, &recycled(&[clean(0)])), [], "not even after it had no pages");
}

#[test]
fn dirty_windows_are_flushed_first_and_released_in_the_next_step() {
    let facts = log_of([file(1, BEHIND_WRITER, 8 * MIB, &[dirty(0), clean(1), dirty(2), dirty(3)])]);
    let mut state = StepState::default();
    assert_eq!(step(&mut state, &facts), [flush(1, 0..1), release(1, 1..2), flush(1, 2..4)]);
    assert_eq!(step(&mut state, &facts), [release(1, 0..1), release(1, 2..4)], "still unwritten: it waits");
    assert_eq!(step(&mut state, &facts), []);
}

#[test]
fn pages_that_resist_are_left_alone_until_retry_changes() {
    let mut facts = log_of([file(1, BEHIND_WRITER, 4 * MIB, &all_clean(2))]);
    let mut state = StepState::default();
    assert_eq!(step(&mut state, &facts), [release(1, 0..2)]);
    assert_eq!(step(&mut state, &facts), []);
    facts.retry += 1;
    assert_eq!(step(&mut state, &facts), [release(1, 0..2)]);
    Arc::make_mut(&mut facts.files[0].windows)[1].resident -= MIB;
    assert_eq!(step(&mut state, &facts), [release(1, 1..2)], "only what changed");
}

#[test]
fn misaligned_windows_are_cut_to_aligned_ones() {
    let window = |start, end| WindowFacts { start, end, resident: MIB, unwritten: 0 };
    let windows = vec![
        window(MIB, 5 * MIB),
        window(3 * MIB, 7 * MIB),
        window(8 * MIB, 8 * MIB),
        window(10 * MIB, u64::MAX),
        window(u64::MAX - 1, u64::MAX),
    ];
    let facts = log_of([FileFacts { windows: windows.into(), ..file(1, BEHIND_WRITER, 11 * MIB, &[]) }]);
    let last = StepAction::Release { file: FileId(1), range: 10 * MIB..11 * MIB };
    assert_eq!(first_step(&facts), [release(1, 1..3), last]);
}
