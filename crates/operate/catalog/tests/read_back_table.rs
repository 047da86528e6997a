//! The table of the book with, for each built-in profile, the maximum that an unknown reader
//! reads back before its log is kept. The model under the policy's own tests makes it.
//! `PAGEKEEPER_WRITE_TABLES=1 cargo test -p pagekeeper-catalog --test read_back_table` writes it
//! into the page.

#[path = "../../../base/policy/tests/properties/model.rs"]
#[allow(dead_code, reason = "shared with the policy's properties, which use all of it")]
mod model;
#[path = "../../../base/policy/tests/properties/world.rs"]
#[allow(dead_code, reason = "shared with the policy's properties, which use all of it")]
mod world;

use std::path::Path;

use model::{CELL, MIB};
use pagekeeper_catalog::{LogSpec, PositionSpec, Profile};
use pagekeeper_policy::{FileClass, READ_BACK_EVIDENCE_BYTES, RewriteKind, RewriteSource, Rule, WINDOW};
use pagekeeper_text::ByteSize;
use world::{Op, World};

/// Bytes that such a reader reads in a tick.
const SLOW_READ_BYTES: u64 = CELL;
const FAST_READ_BYTES: u64 = 16 * MIB;
/// Bytes that the writer adds in a tick.
const WRITTEN_BYTES: u64 = MIB;
/// Bytes of a file of the log, or of the ring.
const FILE_BYTES: u64 = 64 * MIB;
/// Bytes of the log when the reader comes: more than any budget.
const LOG_BYTES: u64 = 512 * MIB;
const TICKS: usize = 200;

/// The bytes of a log that a reader read back.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Until the log was kept.
    until_kept: u64,
    /// More than once, in the end.
    twice: u64,
}

fn rewrite(spec: &LogSpec) -> RewriteKind {
    match spec.rewrite {
        RewriteSource::Detect => RewriteKind::Never,
        // The device may be one of larger blocks.
        RewriteSource::DeviceBlocks => RewriteKind::WholePages,
        RewriteSource::Known(rewrite) => rewrite,
    }
}

/// Whether nothing is ever released of a log.
fn is_kept(spec: &LogSpec) -> bool {
    spec.rule == Rule::Keep || rewrite(spec).needs_old_pages()
}

/// Runs a log like this one, with a steady writer and a reader that scans it repeatedly from
/// its beginning at this many bytes per tick.
fn outcome(spec: &LogSpec, speed: u64) -> Outcome {
    let shown = spec.position != PositionSpec::Hidden;
    let mut world = World::new(FILE_BYTES, spec.rule, rewrite(spec), (shown, false));
    world.is_ring = spec.class == FileClass::Redo;
    world.write(LOG_BYTES);
    // The first show where the writer is.
    for _ in 0..8 {
        world.apply(&Op::Sync);
        world.write(WRITTEN_BYTES);
        world.step();
    }
    let mut outcome = Outcome::default();
    for _ in 0..TICKS {
        world.apply(&Op::Sync);
        world.write(WRITTEN_BYTES);
        world.read(speed);
        world.step();
        if world.state.kept_logs() == 0 {
            outcome.until_kept = 0;
        } else if outcome.until_kept == 0 {
            outcome.until_kept = world.read_more_than(0);
        }
    }
    assert_eq!(world.state.kept_logs(), 1, "it is not kept: {} {}", spec.class, spec.rule);
    outcome.twice = world.read_more_than(1);
    outcome
}

fn row(profile: &Profile, spec: &LogSpec) -> String {
    let start = format!("| `{}` | {} | `{}` |", profile.name, spec.class, spec.rule.name());
    if is_kept(spec) {
        return format!("{start} nothing is released | |");
    }
    let (slow, fast) = (outcome(spec, SLOW_READ_BYTES), outcome(spec, FAST_READ_BYTES));
    // If the writer's position is inferred, pages that come there count as the writer's.
    let unseen = if spec.position == PositionSpec::Hidden { 5 * WINDOW } else { 0 };
    for (outcome, speed) in [(&slow, SLOW_READ_BYTES), (&fast, FAST_READ_BYTES)] {
        assert!(outcome.until_kept < READ_BACK_EVIDENCE_BYTES + unseen + speed, "{start} {outcome:?}");
        assert!(outcome.twice <= READ_BACK_EVIDENCE_BYTES + unseen, "{start} {outcome:?}");
    }
    format!("{start} {} | {} |", ByteSize(slow.until_kept), ByteSize(fast.until_kept))
}

#[test]
fn the_book_has_the_read_back_limits() {
    const HEADING: &str = "| profile | class | rule |";
    let profiles = Profile::built_in();
    let rows = profiles.iter().flat_map(|profile| profile.logs.iter().map(|spec| row(profile, spec)));
    // One row for logs of one class that are written alike.
    let mut expected: Vec<String> = Vec::new();
    for row in rows {
        if !expected.contains(&row) {
            expected.push(row);
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/internals/policy.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let lines: Vec<&str> = page.lines().collect();
    let begin = lines.iter().position(|line| line.starts_with(HEADING)).expect("the table") + 2;
    let count = lines[begin..].iter().take_while(|line| line.starts_with('|')).count();
    if std::env::var_os("PAGEKEEPER_WRITE_TABLES").is_some() {
        let expected = expected.iter().map(String::as_str);
        let all =
            lines[..begin].iter().copied().chain(expected).chain(lines[begin + count..].iter().copied());
        std::fs::write(&path, all.collect::<Vec<_>>().join("\n") + "\n").expect("write the page");
        return;
    }
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    assert!(
        lines[begin..begin + count] == expected,
        "the table of what is read back should be\n{}\n",
        expected.join("\n")
    );
}
