//! A reader that nobody knows of: it opens the log, reads it from its beginning and closes it,
//! again and again, as fast as it likes, beside a writer that continues. Only the pages that it
//! brings in show its reads.

use pagekeeper_policy::StepAction;
use pagekeeper_policy::{READ_BACK_EVIDENCE_BYTES, RewriteKind, Rule, StepFacts, StepState, WINDOW, step};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;

use crate::model::{CELL, MIB, config, releases};
use crate::world::{Op, World};

/// Bytes of a file of the log.
const FILE: u64 = 16 * MIB;
/// Bytes of a ring.
const RING: u64 = 64 * MIB;

/// Bytes from an inferred place of the writer on in which a reader's pages count as the
/// writer's.
const UNSEEN_AT_INFERRED_PLACE: u64 = 10 * MIB;

/// Retries in which a reader that was seen may pause: fewer than it takes to try again whether it
/// comes back.
const PAUSED_RETRIES: u64 = 3;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..6 * MIB).prop_map(Op::Write),
        2 => Just(Op::Sync),
        8 => (1..24 * MIB).prop_map(Op::Read),
        2 => Just(Op::Reopen),
        1 => Just(Op::Purge),
        1 => Just(Op::Restart),
        12 => Just(Op::Step),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::ReleaseOnRotation),
        (0..5 * MIB).prop_map(|slack| Rule::ReleaseBehindWriter { slack }),
        (0..4_u64, 0..5 * MIB)
            .prop_map(|(near_files, slack)| Rule::ReleaseBehindFollowers { near_files, slack }),
        (0..20 * MIB).prop_map(|bytes| Rule::Budget { bytes, total: u64::MAX }),
    ]
}

proptest! {
    #![proptest_config(config(8))]

    /// For each life of the guard, each released byte is read from the device once, and at most the
    /// evidence twice, whatever the reader does. The bytes that a reader reads at the writer's
    /// position come on top. Reads between a sample and its release do not occur here: a step is
    /// one.
    #[test]
    fn an_unknown_reader_reads_little_twice(
        rule in rule(),
        rewrite in prop_oneof![Just(RewriteKind::Never), Just(RewriteKind::WholePages)],
        shown in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(FILE, rule, rewrite, (shown, false));
        let unseen = if shown { WINDOW } else { UNSEEN_AT_INFERRED_PLACE };
        for op in &ops {
            world.apply(op);
            let twice = world.read_more_than(1);
            prop_assert!(twice <= READ_BACK_EVIDENCE_BYTES + unseen + CELL, "{twice} bytes were read twice");
        }
    }

    /// Once the evidence exists nothing is released, and the operator is warned once of each file.
    #[test]
    fn a_log_that_was_read_back_is_kept(
        rule in prop_oneof![8 => rule(), 1 => Just(Rule::Direct)],
        ops in prop::collection::vec(op(), 1..80),
        more in prop::collection::vec(op(), 1..40),
    ) {
        let mut world = World::new(FILE, rule, RewriteKind::Never, (true, false));
        for op in &ops {
            world.apply(op);
        }
        world.write(40 * MIB);
        for _ in 0..3 {
            world.step();
        }
        let gone = world.released_and_gone();
        world.apply(&Op::Reopen);
        world.read(u64::MAX >> 1);
        let before = world.retry;
        let is_kept = |acts: Vec<StepAction>| releases(&acts).next().is_none();
        prop_assert!(gone < READ_BACK_EVIDENCE_BYTES || is_kept(world.step()));
        for op in more.iter().filter(|op| gone >= READ_BACK_EVIDENCE_BYTES && !matches!(op, Op::Restart)) {
            world.retry = (world.retry + 1).min(before + PAUSED_RETRIES);
            prop_assert!(is_kept(world.apply(op)), "released while it is kept");
            prop_assert_eq!(world.state.kept_logs(), 1);
        }
    }

    /// Under a rule that waits for followers, a known far follower reads each byte once from the
    /// disk, as it would without memory: the log is still released. A follower that comes back to
    /// bytes it has read keeps the log.
    #[test]
    fn a_known_follower_counts_where_it_comes_back(
        speed in MIB..24 * MIB,
        rounds in 1..4_u64,
    ) {
        let rule = Rule::ReleaseBehindFollowers { near_files: 1, slack: 0 };
        let mut world = World::new(FILE, rule, RewriteKind::Never, (true, true));
        world.reader = (1, 0);
        world.write(10 * FILE);
        world.known = false;
        for _ in 0..3 {
            world.step();
        }
        world.known = true;
        let gone = world.released_and_gone();
        for _ in 0..rounds {
            world.apply(&Op::Reopen);
            while world.reader.0 < world.current {
                world.read(speed);
                world.step();
            }
        }
        prop_assert!(gone > 8 * FILE);
        prop_assert_eq!(world.state.kept_logs() > 0, rounds > 1);
        prop_assert!(world.read_more_than(2) <= READ_BACK_EVIDENCE_BYTES + CELL);
    }

    /// Without a reader no page counts as a reader's, whatever the writer does.
    #[test]
    fn a_writer_alone_is_no_reader(
        rule in rule(),
        rewrite in prop_oneof![Just(RewriteKind::Never), Just(RewriteKind::WholePages)],
        shown in any::<bool>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(FILE, rule, rewrite, (shown, false));
        for op in ops.iter().filter(|op| !matches!(op, Op::Read(_))) {
            world.apply(op);
            prop_assert_eq!(world.state.read_back(), &[]);
        }
        prop_assert_eq!(world.warnings, 0);
    }
}

/// The same in a ring, whose writer may have brought in pages up to the last dirty one, or in half of
/// the file: those count as its own. Seldom are that more than the pages near its inferred place.
#[test]
fn a_reader_of_a_ring_reads_little_twice() {
    let usual = READ_BACK_EVIDENCE_BYTES + UNSEEN_AT_INFERRED_PLACE + CELL;
    let config = config(8);
    let seldom = config.cases / 500;
    let more = Cell::new(0);
    let mut runner = TestRunner::new(config);
    let inputs = (0..5 * MIB, prop::collection::vec(op(), 1..120));
    let outcome = runner.run(&inputs, |(slack, ops)| {
        let rule = Rule::ReleaseBehindWriter { slack };
        let mut world = World::new(RING, rule, RewriteKind::WholePages, (false, false));
        world.is_ring = true;
        for op in &ops {
            world.apply(op);
        }
        let twice = world.read_more_than(1);
        more.set(more.get() + u32::from(twice > usual));
        prop_assert!(twice <= usual + RING / 2, "{twice} bytes were read twice");
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(more.get() <= seldom, "more than {usual} bytes were read twice in {more:?} cases");
}

/// A backup reads the log once. Nothing is released during the backup, nor for some minutes after
/// it. Then a part is released as a test, and then releases continue as before.
#[test]
fn a_log_that_was_read_once_is_released_again() {
    let mut world =
        World::new(FILE, Rule::ReleaseBehindWriter { slack: 0 }, RewriteKind::Never, (true, false));
    world.write(20 * FILE);
    world.step();
    world.step();
    let all = world.released_and_gone();
    assert!(all > 19 * FILE);
    for _ in 0..40 {
        world.read(8 * MIB);
        assert!(releases(&world.step()).next().is_none());
    }
    assert_eq!((world.read_more_than(0), world.read_more_than(1)), (all, 0));
    let mut left = Vec::new();
    for _ in 0..100 {
        world.retry += 1;
        world.step();
        let pages: u64 = world.files.values().map(|file| file.pages.resident()).sum();
        if left.last() != Some(&pages) {
            left.push(pages);
        }
    }
    assert_eq!(left.len(), 3, "kept, tried, free: {left:?}");
    assert!(left[0] - left[1] < left[0] / 15 && left[2] <= 2 * WINDOW, "{left:?}");
    assert_eq!(world.state.kept_logs(), 0);
    // After a long time in which nobody comes back there is nothing left to remember.
    for _ in 0..1000 {
        world.retry += 1;
        world.step();
    }
    world.files.clear();
    step(&mut world.state, &StepFacts::default());
    world.state.retain_files(|_| false);
    assert_eq!(world.state, StepState::default());
}

/// A reader that scans the whole log every few minutes, and finds it in memory, leaves no trace. A
/// sixteenth of the log is released at growing intervals, to find out whether the reader still
/// exists.
#[test]
fn a_continuing_reader_rereads_a_part_of_the_log_occasionally() {
    let mut world =
        World::new(FILE, Rule::ReleaseBehindWriter { slack: 0 }, RewriteKind::Never, (true, false));
    world.write(20 * FILE);
    world.step();
    world.step();
    let mut scans = 0;
    for retry in 0..4000 {
        world.retry = retry;
        if retry % 12 == 0 {
            world.apply(&Op::Reopen);
            world.read(u64::MAX >> 1);
            scans += 1;
        }
        world.step();
    }
    let (once, all) = (20 * FILE, world.read_more_than(0));
    assert!(scans > 300 && all >= once - 2 * WINDOW);
    // The log once, and once more at its second scan; of the other scans, which would have read it
    // each time, little more.
    assert!(all < 3 * once, "{all} bytes of {once}");
}
