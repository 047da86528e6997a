//! Stores and logs in a forked child, as real processes. All acts of the child on objects that its
//! parent opened fail at once and change nothing. The parent continues committing, is killed, and
//! all that it acknowledged is found.
//!
//! Each case is a separate process of this program: it opens, forks, and is ended by SIGKILL.

mod begun;
mod things;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;

use pagekeeper_testing::{ForkedChild, disk_dir, forked};

use things::{ACTS, Act, Answer, Opened, THINGS, Thing, report};

/// The environment variable with the case for this program, run again: thing, act and way by their
/// numbers, and the directory.
const CASE: &str = "PAGEKEEPER_FORK_CASE";
/// Acknowledged before the fork, and again after it.
const COMMITS: u64 = 4;
/// The table of answers is on this page.
const PAGE: &str = include_str!("../../../../../docs/src/libraries/forks.md");

/// The way in which the child is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Fork,
    ForkOfFork,
    /// A fork of a process in which other threads commit and read.
    BesideThreads,
    /// It executes another program at once, as `posix_spawn(3)` has it.
    Exec,
}

const WAYS: [Way; 4] = [Way::Fork, Way::ForkOfFork, Way::BesideThreads, Way::Exec];

#[derive(Debug, Clone, Copy)]
struct Case {
    thing: Thing,
    act: Act,
    way: Way,
}

/// Returns all cases. A program that is executed does nothing with what its parent has open: one
/// act stands for all.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for thing in THINGS {
        for act in ACTS.into_iter().filter(|act| thing.has(*act)) {
            let ways = WAYS.into_iter().filter(|way| *way != Way::Exec || act == Act::Drop);
            cases.extend(ways.map(|way| Case { thing, act, way }));
        }
    }
    cases
}

/// Returns the number of forks beside threads that commit and read, for each act: all acts on an
/// object together make as many as the environment variable `PAGEKEEPER_FORKS` says.
fn busy_forks() -> usize {
    let all = std::env::var("PAGEKEEPER_FORKS").ok();
    all.map_or(4, |all| all.parse::<usize>().unwrap().div_ceil(ACTS.len() - 1))
}

/// Opens, forks, continues to commit, and is killed; not a test of its own.
#[test]
fn case() {
    let Ok(case) = std::env::var(CASE) else { return };
    let (number, directory) = case.split_once(' ').unwrap();
    let Case { thing, act, way } = cases()[number.parse::<usize>().unwrap()];
    let opened: &Opened = Box::leak(Box::new(thing.open(Path::new(directory))));
    (0..COMMITS).for_each(|_| opened.acknowledge());
    let child = || forked(|| opened.act_in_child(act));
    let ended = |child: ForkedChild| report(format!("ended {:?}", child.end()));
    match way {
        Way::Fork => ended(child()),
        Way::ForkOfFork => ended(forked(|| child().ends_well())),
        Way::BesideThreads => {
            // The threads end as this process does.
            for work in [Opened::acknowledge_while_there_is_room, Opened::read] {
                thread::spawn(move || {
                    loop {
                        work(opened);
                    }
                });
            }
            (0..busy_forks()).for_each(|_| ended(child()));
        }
        Way::Exec => {
            let Output { stdout, .. } = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
            let is_open = String::from_utf8(stdout).unwrap().contains(directory);
            report(if is_open { "ended with files of the parent open" } else { "ended Well" });
        }
    }
    (0..COMMITS).for_each(|_| opened.acknowledge());
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

/// Runs one case. Returns the child's answer.
fn run(number: usize, case: Case) -> Result<Answer, String> {
    let dir = disk_dir();
    let directory = dir.path().join("opened");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["case", "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, format!("{number} {}", directory.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let after = |what: &'static str| said.lines().filter_map(move |line| line.strip_prefix(what));
    if output.status.code().is_some() {
        return Err(format!("it was not killed: {}\n{said}\n{output:?}", output.status));
    }
    let ends: Vec<&str> = after("ended ").collect();
    if ends.is_empty() || ends.iter().any(|end| *end != "Well") {
        return Err(format!("children ended {ends:?}"));
    }
    let mut answers: Vec<&str> = after("answer ").collect();
    answers.dedup();
    let acknowledged: Vec<u64> = after("acknowledged ").map(|number| number.parse().unwrap()).collect();
    if (acknowledged.len() as u64) < 2 * COMMITS {
        return Err(format!("{} of {} were acknowledged", acknowledged.len(), 2 * COMMITS));
    }
    let found = case.thing.found(&directory)?;
    let lost: Vec<_> = acknowledged.iter().filter(|number| !found.contains(number)).collect();
    if !lost.is_empty() {
        return Err(format!("lost of {acknowledged:?}: {lost:?}"));
    }
    match answers[..] {
        _ if case.way == Way::Exec => Ok(case.act.right_answer()),
        [answer] if answer == format!("{:?}", case.act.right_answer()) => Ok(case.act.right_answer()),
        _ => Err(format!("answered {answers:?}")),
    }
}

/// Returns the answers to a child, act by act, in the form of the page.
fn table() -> Vec<String> {
    let names: Vec<_> = THINGS.iter().map(|thing| thing.name()).collect();
    let mut lines = vec![format!("| in a forked child | {} |", names.join(" | "))];
    lines.push(format!("|{}", "---|".repeat(1 + THINGS.len())));
    for act in ACTS {
        let cells = THINGS.map(|thing| if thing.has(act) { act.right_answer().text() } else { "–" });
        lines.push(format!("| {} | {} |", act.name(), cells.join(" | ")));
    }
    lines
}

#[test]
fn a_child_is_refused_and_its_parent_loses_nothing() {
    let cases = cases();
    let (next, failures) = (Mutex::new(cases.iter().copied().enumerate()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((number, case)) = next.lock().unwrap().next() else { return };
                    if let Err(why) = run(number, case) {
                        failures.lock().unwrap().push(format!("{case:?}: {why}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
    let table = table().join("\n");
    println!("{table}");
    assert!(PAGE.contains(&table), "the page has another table than this:\n{table}");
}
