//! Runs each parser on random input, with any compiler: its seeds, then mutations of them, for
//! `PAGEKEEPER_FUZZ_SECONDS` (default: 3). Parsers of this project's own formats, which other tests
//! damage bit by bit and at random, get a twelfth of that time.
//!
//! The inputs follow from `PAGEKEEPER_SEED`. Their number depends on the time and on the machine's
//! other work, and is printed. An input that makes a parser panic is printed in hexadecimal, with
//! the seed and its number.

mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use pagekeeper_fuzzing::target;
use pagekeeper_testing::{Rng, Seed};

/// Maximum number of inputs that are mutated further.
const POOL_INPUTS_MAX: usize = 512;
/// Minimum number of mutations, however little processor time is available.
const MUTATIONS_MIN: u64 = 1000;

/// An input that made the parser panic.
#[derive(Debug)]
struct FailingInput {
    input: Vec<u8>,
    number: u64,
}

fn time() -> Duration {
    let given = std::env::var("PAGEKEEPER_FUZZ_SECONDS").ok();
    Duration::from_secs(
        given.map_or(3, |seconds| seconds.parse().expect("PAGEKEEPER_FUZZ_SECONDS is a number")),
    )
}

/// Tries the seeds, then mutations of them, until one panics or the time is over, but at least
/// [`MUTATIONS_MIN`] mutations. Returns the number of inputs tried.
fn run(
    parse: impl Fn(&[u8]),
    seeds: Vec<Vec<u8>>,
    rng: &mut Rng,
    time: Duration,
) -> Result<u64, FailingInput> {
    let ends = Instant::now() + time;
    let mut number = 0;
    let mut attempt = |input: &[u8]| {
        number += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| parse(input)));
        outcome.map_err(|_| FailingInput { input: input.to_vec(), number })
    };
    attempt(b"")?;
    for seed in &seeds {
        attempt(seed)?;
    }
    let first = seeds.len();
    let mut pool = seeds;
    let mut mutations = 0;
    while mutations < MUTATIONS_MIN || Instant::now() < ends {
        mutations += 1;
        let mut input = pool[rng.index(pool.len())].clone();
        let other = rng.index(pool.len());
        mutate::mutate(&mut input, &pool[other], rng);
        attempt(&input)?;
        // Some mutated inputs are mutated again, so that inputs get far from the seeds.
        if rng.one_in(16) {
            if pool.len() < first + POOL_INPUTS_MAX {
                pool.push(input);
            } else {
                pool[first + rng.index(POOL_INPUTS_MAX)] = input;
            }
        }
    }
    Ok(number)
}

/// Tests a parser of data that others write.
fn random_input_for(name: &str) {
    try_out(name, time());
}

/// Tests a parser of data that this project writes.
fn random_input_for_our(name: &str) {
    try_out(name, time() / 12);
}

fn try_out(name: &str, time: Duration) {
    let seed = Seed::new();
    let target = target(name);
    match run(target.fuzz_one, (target.seeds)(), &mut seed.rng(0), time) {
        Ok(tried) => println!("{name}: {tried} inputs"),
        Err(FailingInput { input, number }) => {
            panic!("{name}, input {number}, in hexadecimal: {input:02x?}");
        }
    }
}

#[test]
fn random_entries_of_a_journal_end_no_parser() {
    random_input_for_our("entry");
}

#[test]
fn random_heads_of_requests_end_no_parser() {
    random_input_for("http");
}

#[test]
fn random_headers_of_innodbs_redo_log_end_no_parser() {
    random_input_for("innodb_header");
}

#[test]
fn random_files_of_proc_and_sys_end_no_parser() {
    random_input_for("machine");
}

#[test]
fn random_pages_of_a_store_end_no_parser() {
    random_input_for_our("page");
}

#[test]
fn random_patterns_of_files_end_no_parser() {
    random_input_for("pattern");
}

#[test]
fn random_control_files_end_no_parser() {
    random_input_for("pg_control");
}

#[test]
fn random_replication_slots_end_no_parser() {
    random_input_for("pg_slot");
}

#[test]
fn random_files_of_a_process_end_no_parser() {
    random_input_for("process");
}

#[test]
fn random_profiles_end_no_parser() {
    random_input_for("profile");
}

#[test]
fn random_records_of_a_redo_log_end_no_parser() {
    random_input_for_our("redo");
}

#[test]
fn random_files_of_a_server_end_no_parser() {
    random_input_for("server");
}

#[test]
fn random_settings_of_databases_end_no_parser() {
    random_input_for("settings");
}

#[test]
fn random_snapshots_end_no_parser() {
    random_input_for("snapshot");
}

#[test]
fn random_requests_for_streams_end_no_parser() {
    random_input_for("stream_request");
}

#[test]
fn random_superblocks_end_no_parser() {
    random_input_for_our("superblock");
}

#[test]
fn random_pages_of_a_tree_end_no_parser() {
    random_input_for_our("tree_page");
}

#[test]
fn random_page_maps_end_no_parser() {
    random_input_for_our("page_map");
}

#[test]
fn random_warm_sets_end_no_parser() {
    random_input_for_our("warm");
}

#[test]
fn each_target_is_tested() {
    let (tests, bins) = (include_str!("main.rs"), include_str!("../../../../../fuzz/Cargo.toml"));
    for target in pagekeeper_fuzzing::TARGETS {
        let name = target.name;
        let is_tested = ["random_input_for", "random_input_for_our"]
            .iter()
            .any(|of| tests.contains(&format!("    {of}(\"{name}\");")));
        assert!(is_tested, "{name} is not here");
        assert!(bins.contains(&format!("name = \"{name}\"\n")), "{name} is not in fuzz/Cargo.toml");
    }
}

/// Parses a header with a length, with a planted bug: the sum overflows for the largest lengths.
fn broken_parser(bytes: &[u8]) {
    let [b'T', b'O', b'Y', high, low, rest @ ..] = bytes else { return };
    let length = u16::from_be_bytes([*high, *low]);
    if rest.len() >= 4 {
        let end = length.checked_add(4).expect("a length is small");
        assert!(end > 3);
    }
}

#[test]
fn a_planted_bug_is_found() {
    for seed in 0..4 {
        let seeds = vec![b"TOY\0\x02hello".to_vec(), b"other".to_vec()];
        let found = run(broken_parser, seeds, &mut Rng::from_seed(seed), Duration::from_secs(3)).unwrap_err();
        assert!(found.input.starts_with(b"TOY\xff\xff") && found.number > 3, "{found:?}");
    }
}
